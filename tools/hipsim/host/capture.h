// Stream capture: streams that record their work into a graph instead of doing it.
#pragma once
#include <memory>
#include <thread>
#include <vector>

#include "stream.h"

namespace hipsim {

struct GraphNode {
  Op op;
  std::vector<GraphNode*> after;
};

struct Graph {
  std::vector<std::shared_ptr<GraphNode>> nodes;  // each after those it depends on
};

struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  hipStreamCaptureMode mode;
  std::thread::id thread;
  Stream* origin;
  bool invalid = false;
  std::uint64_t id;
  struct Member {
    Stream* stream;
    std::vector<GraphNode*> tail;  // what the stream's next node comes after
  };
  std::vector<Member> members;

  Member& member(const Stream& stream);
};

// All of these take the scheduler's mutex themselves.

// Throws when the stream captures: its work cannot be waited for or asked about.
void refuse_captured(Stream& stream, const char* call);
// Take the stream out of its capture, which is invalid from then on.
void leave_capture(Stream& stream);
// Let the stream wait for a node another stream has captured; it joins that capture.
void join_capture(Stream& stream, const std::shared_ptr<Capture>& capture,
                  const std::vector<GraphNode*>& nodes);

// Give a graph its handle.
hipGraph_t publish(const std::shared_ptr<Graph>& graph);

}  // namespace hipsim
