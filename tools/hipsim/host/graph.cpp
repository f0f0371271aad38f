// Graphs: what captures have recorded, made executable and launched.
#include <map>

#include "capture.h"
#include "launch.h"

namespace hipsim {

struct GraphExec {
  std::vector<std::shared_ptr<GraphNode>> nodes;
};

namespace {
std::mutex mutex;
std::map<hipGraph_t, std::shared_ptr<Graph>> graphs;
std::map<hipGraphExec_t, std::shared_ptr<GraphExec>> executables;

template <class M>
auto find(M& map, typename M::key_type handle) {
  std::lock_guard lock(mutex);
  const auto found = map.find(handle);
  require(found != map.end());
  return found->second;
}

hipError_t instantiate(const char* call, hipGraphExec_t* executable, hipGraph_t graph) {
  return api(call, kDevice, [&](Runtime&) {
    require(executable);
    auto made = std::make_shared<GraphExec>(GraphExec{find(graphs, graph)->nodes});
    std::lock_guard lock(mutex);
    *executable = made.get();
    executables[made.get()] = std::move(made);
    return hipSuccess;
  });
}
}  // namespace

hipGraph_t publish(const std::shared_ptr<Graph>& graph) {
  std::lock_guard lock(mutex);
  graphs[graph.get()] = graph;
  return graph.get();
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipGraphCreate(hipGraph_t* graph, unsigned flags) {
  return api("hipGraphCreate", kDevice, [&](Runtime&) {
    require(graph && flags == 0);
    *graph = publish(std::make_shared<Graph>());
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipGraphDestroy(hipGraph_t graph) {
  return api("hipGraphDestroy", kAlways, [&](Runtime&) {
    std::lock_guard lock(mutex);
    require(graphs.erase(graph) == 1);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes,
                                       std::size_t* count) {
  return api("hipGraphGetNodes", kDevice, [&](Runtime&) {
    require(count);
    const auto found = find(graphs, graph);
    if (nodes)
      for (std::size_t i = 0; i < *count; ++i)
        nodes[i] = i < found->nodes.size() ? found->nodes[i].get() : nullptr;
    if (!nodes || *count > found->nodes.size()) *count = found->nodes.size();
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipGraphNodeGetType(hipGraphNode_t node, hipGraphNodeType* type) {
  return api("hipGraphNodeGetType", kDevice, [&](Runtime&) {
    require(node && type);
    *type = node->op.type;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph,
                                          hipGraphNode_t* error_node, char* log,
                                          std::size_t log_bytes) {
  if (error_node) *error_node = nullptr;
  if (log && log_bytes) *log = 0;
  return instantiate("hipGraphInstantiate", executable, graph);
}

HIPSIM_API hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* executable, hipGraph_t graph,
                                                   unsigned long long) {
  return instantiate("hipGraphInstantiateWithFlags", executable, graph);
}

HIPSIM_API hipError_t hipGraphUpload(hipGraphExec_t executable, hipStream_t stream) {
  return api("hipGraphUpload", kDevice, [&](Runtime&) {
    find(executables, executable);
    stream_of(stream);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipGraphLaunch(hipGraphExec_t handle, hipStream_t stream) {
  return api("hipGraphLaunch", kDevice, [&](Runtime&) {
    const auto executable = find(executables, handle);
    const auto target = stream_of(stream);
    const hipError_t injected = count_launch();
    enqueue(*target, {hipGraphNodeTypeGraph, [executable, injected](Stream& running) {
                        for (const auto& node : executable->nodes)
                          if (const hipError_t error = node->op.run(running)) return error;
                        return injected;
                      }});
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipGraphExecDestroy(hipGraphExec_t executable) {
  return api("hipGraphExecDestroy", kAlways, [&](Runtime&) {
    std::lock_guard lock(mutex);
    require(executables.erase(executable) == 1);
    return hipSuccess;
  });
}
