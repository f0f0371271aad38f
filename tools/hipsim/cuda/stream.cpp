// Streams, events and graphs.
#include "common.h"

#include "../common/hipsim_api.h"

using namespace hipsim;

HIPSIM_API int hipStreamCreate(CUstream *stream) {
    HIPSIM_FORWARD(cuStreamCreate(stream, CU_STREAM_DEFAULT));
}

HIPSIM_API int hipStreamCreateWithFlags(CUstream *stream, unsigned flags) {
    HIPSIM_FORWARD(cuStreamCreate(stream, flags));
}

HIPSIM_API int hipStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    HIPSIM_FORWARD(cuStreamCreateWithPriority(stream, flags, priority));
}

HIPSIM_API int hipDeviceGetStreamPriorityRange(int *least, int *greatest) {
    HIPSIM_FORWARD(cuCtxGetStreamPriorityRange(least, greatest));
}

HIPSIM_API int hipStreamDestroy(CUstream stream) { HIPSIM_FORWARD(cuStreamDestroy(stream)); }

HIPSIM_API int hipStreamSynchronize(CUstream stream) {
    HIPSIM_FORWARD(cuStreamSynchronize(stream));
}

HIPSIM_API int hipStreamQuery(CUstream stream) { HIPSIM_FORWARD(cuStreamQuery(stream)); }

HIPSIM_API int hipStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    HIPSIM_FORWARD(cuStreamWaitEvent(stream, event, flags));
}

HIPSIM_API int hipEventCreate(CUevent *event) {
    HIPSIM_FORWARD(cuEventCreate(event, CU_EVENT_DEFAULT));
}

HIPSIM_API int hipEventCreateWithFlags(CUevent *event, unsigned flags) {
    // HIP's further flags (release scopes) have no counterpart here.
    HIPSIM_FORWARD(cuEventCreate(event, flags & 7U));
}

HIPSIM_API int hipEventDestroy(CUevent event) { HIPSIM_FORWARD(cuEventDestroy(event)); }

HIPSIM_API int hipEventRecord(CUevent event, CUstream stream) {
    HIPSIM_FORWARD(cuEventRecord(event, stream));
}

HIPSIM_API int hipEventSynchronize(CUevent event) { HIPSIM_FORWARD(cuEventSynchronize(event)); }

HIPSIM_API int hipEventQuery(CUevent event) { HIPSIM_FORWARD(cuEventQuery(event)); }

HIPSIM_API int hipEventElapsedTime(float *ms, CUevent start, CUevent stop) {
    HIPSIM_FORWARD(cuEventElapsedTime(ms, start, stop));
}

HIPSIM_API int hipStreamBeginCapture(CUstream stream, int mode) {
    HIPSIM_FORWARD(cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

HIPSIM_API int hipStreamEndCapture(CUstream stream, CUgraph *graph) {
    HIPSIM_FORWARD(cuStreamEndCapture(stream, graph));
}

HIPSIM_API int hipStreamIsCapturing(CUstream stream, int *status) {
    HIPSIM_FORWARD(cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus *>(status)));
}

HIPSIM_API int hipThreadExchangeStreamCaptureMode(int *mode) {
    HIPSIM_FORWARD(
        cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode *>(mode)));
}

HIPSIM_API int hipGraphInstantiate(CUgraphExec *exec, CUgraph graph, void **, char *, size_t) {
    HIPSIM_FORWARD(cuGraphInstantiateWithFlags(exec, graph, 0));
}

HIPSIM_API int hipGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                               unsigned long long flags) {
    HIPSIM_FORWARD(cuGraphInstantiateWithFlags(exec, graph, flags));
}

HIPSIM_API int hipGraphLaunch(CUgraphExec exec, CUstream stream) {
    HIPSIM_FORWARD(cuGraphLaunch(exec, stream));
}

HIPSIM_API int hipGraphExecDestroy(CUgraphExec exec) {
    HIPSIM_FORWARD(cuGraphExecDestroy(exec));
}

HIPSIM_API int hipGraphDestroy(CUgraph graph) { HIPSIM_FORWARD(cuGraphDestroy(graph)); }

HIPSIM_API int hipGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    HIPSIM_FORWARD(cuGraphGetNodes(graph, nodes, count));
}
