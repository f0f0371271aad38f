// Streams: queues of work that run asynchronously, in order within a stream and in no order
// between streams that nothing synchronises.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime.h"

namespace hipsim {

struct Capture;

// A point in a stream: reached when the stream has done its first `sequence` works.
struct Point {
  std::shared_ptr<Stream> stream;
  std::uint64_t sequence = 0;
};

// One thing a stream can do; the same whether it runs now or from a graph.
struct Op {
  hipGraphNodeType type;
  std::function<hipError_t(Stream&)> run;
};

struct Work {
  Op op;
  std::vector<Point> after;
};

struct Stream : std::enable_shared_from_this<Stream> {
  Device* device = nullptr;
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t id = 0;
  bool is_null = false;

  // Guarded by the scheduler's mutex.
  std::deque<Work> queue;
  std::uint64_t submitted = 0, done = 0;
  bool running = false, closing = false;
  std::thread worker;
  std::shared_ptr<Capture> capture;

  // Of whoever runs the stream's work.
  int connection = -1;

  bool blocking() const { return !is_null && !(flags & hipStreamNonBlocking); }
};

// The mutex of all queues. A simulated device is slow enough for one.
std::mutex& scheduler_mutex();

// The stream a handle means; throws hipErrorInvalidHandle.
std::shared_ptr<Stream> stream_of(hipStream_t handle);
std::vector<std::shared_ptr<Stream>> streams_of(const Device& device);

// Append work to a stream: to its queue, or to the graph that it captures.
void enqueue(Stream& stream, Op op);
// Append work without looking at captures. The scheduler's mutex is held.
std::uint64_t submit(Stream& stream, Op op, std::vector<Point> after = {});

bool reached(const Point& point);
void wait_for(const Point& point);
void wait_for_stream(const std::shared_ptr<Stream>& stream);
void wait_for_device(Device& device);
void wake_scheduler();
// Look for damage beside the device's allocations; what is found is reported and loses the device.
void check_guards(Device& device);
// In the shuffled order nothing happens but by waiting: let one ready work happen.
void poll_once();

}  // namespace hipsim
