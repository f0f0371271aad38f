#include "capture.h"

#include <algorithm>
#include <set>

namespace hipsim {

namespace {
std::vector<std::shared_ptr<Capture>>&
captures() {  // in progress; guarded by the scheduler's mutex
  static auto* made = new std::vector<std::shared_ptr<Capture>>;
  return *made;
}
std::uint64_t next_capture = 1;

thread_local hipStreamCaptureMode thread_mode = hipStreamCaptureModeGlobal;

// Whether the capture forbids unsafe calls to the calling thread.
bool forbids(const Capture& capture) {
  if (thread_mode == hipStreamCaptureModeRelaxed || capture.mode == hipStreamCaptureModeRelaxed)
    return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return capture.mode == hipStreamCaptureModeGlobal && thread_mode == hipStreamCaptureModeGlobal;
}

void dissolve(const std::shared_ptr<Capture>& capture) {
  for (const Capture::Member& member : capture->members) member.stream->capture.reset();
  std::erase(captures(), capture);
}

// Whether the other streams' last nodes all come before the origin's.
bool joined(const Capture& capture) {
  std::set<const GraphNode*> before;
  std::vector<const GraphNode*> open;
  for (const auto& member : capture.members)
    if (member.stream == capture.origin) open.assign(member.tail.begin(), member.tail.end());
  while (!open.empty()) {
    const GraphNode* node = open.back();
    open.pop_back();
    if (before.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
  }
  for (const auto& member : capture.members)
    for (const GraphNode* node : member.tail)
      if (!before.count(node)) return false;
  return true;
}
}  // namespace

Capture::Member& Capture::member(const Stream& stream) {
  return *std::find_if(members.begin(), members.end(),
                       [&](const Member& m) { return m.stream == &stream; });
}

void refuse_in_capture(const char* call) {
  std::lock_guard lock(scheduler_mutex());
  bool refused = false;
  for (const auto& capture : captures())
    if (forbids(*capture)) refused = capture->invalid = true;
  if (!refused) return;
  report("%s is not allowed while a stream captures: the capture is invalid now", call);
  throw Error{hipErrorStreamCaptureUnsupported};
}

void refuse_captured(Stream& stream, const char* call) {
  std::lock_guard lock(scheduler_mutex());
  if (!stream.capture) {
    // Waiting for the null stream is waiting for every blocking stream.
    if (!stream.is_null) return;
    for (const auto& capture : captures())
      for (const auto& member : capture->members)
        if (member.stream->device == stream.device && member.stream->blocking()) {
          capture->invalid = true;
          report(
              "%s of the null stream while a blocking stream captures: the capture is invalid now",
              call);
          throw Error{hipErrorStreamCaptureImplicit};
        }
    return;
  }
  stream.capture->invalid = true;
  report("%s of a stream that captures: the capture is invalid now", call);
  throw Error{hipErrorStreamCaptureUnsupported};
}

void leave_capture(Stream& stream) {
  std::lock_guard lock(scheduler_mutex());
  if (!stream.capture) return;
  const auto capture = stream.capture;
  capture->invalid = true;
  std::erase_if(capture->members,
                [&](const Capture::Member& member) { return member.stream == &stream; });
  stream.capture.reset();
  if (capture->origin == &stream) dissolve(capture);
}

void join_capture(Stream& stream, const std::shared_ptr<Capture>& capture,
                  const std::vector<GraphNode*>& nodes) {
  std::lock_guard lock(scheduler_mutex());
  if (std::find(captures().begin(), captures().end(), capture) == captures().end())
    throw Error{hipErrorCapturedEvent};
  if (stream.capture && stream.capture != capture) {
    stream.capture->invalid = capture->invalid = true;
    throw Error{hipErrorStreamCaptureMerge};
  }
  if (!stream.capture) {
    if (stream.is_null) throw Error{hipErrorStreamCaptureImplicit};
    stream.capture = capture;
    capture->members.push_back({&stream, {}});
  }
  auto& tail = capture->member(stream).tail;
  for (GraphNode* node : nodes)
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
}

void enqueue(Stream& stream, Op op) {
  std::unique_lock lock(scheduler_mutex());
  if (!stream.capture) {
    lock.unlock();
    refuse_captured(stream, "work");
    lock.lock();
    submit(stream, std::move(op));
    return;
  }
  Capture& capture = *stream.capture;
  if (capture.invalid) throw Error{hipErrorStreamCaptureInvalidated};
  auto& tail = capture.member(stream).tail;
  auto node = std::make_shared<GraphNode>(GraphNode{std::move(op), tail});
  tail = {node.get()};
  capture.graph->nodes.push_back(std::move(node));
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipStreamBeginCapture(hipStream_t handle, hipStreamCaptureMode mode) {
  return api("hipStreamBeginCapture", kDevice, [&](Runtime&) {
    require(mode >= hipStreamCaptureModeGlobal && mode <= hipStreamCaptureModeRelaxed);
    const auto stream = stream_of(handle);
    require(!stream->is_null, hipErrorStreamCaptureUnsupported);
    std::lock_guard lock(scheduler_mutex());
    require(!stream->capture, hipErrorIllegalState);
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream.get();
    capture->id = next_capture++;
    capture->members.push_back({stream.get(), {}});
    stream->capture = capture;
    captures().push_back(capture);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamEndCapture(hipStream_t handle, hipGraph_t* graph) {
  return api("hipStreamEndCapture", kDevice, [&](Runtime&) {
    require(graph);
    *graph = nullptr;
    const auto stream = stream_of(handle);
    std::lock_guard lock(scheduler_mutex());
    const auto capture = stream->capture;
    require(capture != nullptr, hipErrorIllegalState);
    require(capture->origin == stream.get(), hipErrorStreamCaptureUnmatched);
    require(capture->mode == hipStreamCaptureModeRelaxed ||
                capture->thread == std::this_thread::get_id(),
            hipErrorStreamCaptureWrongThread);
    const bool complete = joined(*capture);
    dissolve(capture);
    require(!capture->invalid, hipErrorStreamCaptureInvalidated);
    require(complete, hipErrorStreamCaptureUnjoined);
    *graph = publish(capture->graph);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamIsCapturing(hipStream_t handle, hipStreamCaptureStatus* status) {
  return api("hipStreamIsCapturing", kDevice, [&](Runtime&) {
    require(status);
    const auto stream = stream_of(handle);
    std::lock_guard lock(scheduler_mutex());
    *status = !stream->capture           ? hipStreamCaptureStatusNone
              : stream->capture->invalid ? hipStreamCaptureStatusInvalidated
                                         : hipStreamCaptureStatusActive;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamGetCaptureInfo(hipStream_t handle, hipStreamCaptureStatus* status,
                                              unsigned long long* id) {
  return api("hipStreamGetCaptureInfo", kDevice, [&](Runtime&) {
    require(status);
    const auto stream = stream_of(handle);
    std::lock_guard lock(scheduler_mutex());
    *status = !stream->capture           ? hipStreamCaptureStatusNone
              : stream->capture->invalid ? hipStreamCaptureStatusInvalidated
                                         : hipStreamCaptureStatusActive;
    if (id) *id = stream->capture ? stream->capture->id : 0;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
  return api("hipThreadExchangeStreamCaptureMode", kDevice, [&](Runtime&) {
    require(mode && *mode >= hipStreamCaptureModeGlobal && *mode <= hipStreamCaptureModeRelaxed);
    std::swap(*mode, thread_mode);
    return hipSuccess;
  });
}
