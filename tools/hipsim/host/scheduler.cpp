// When a stream's work runs. Normally each stream has a thread. With HIPSIM_SHUFFLE nothing
// runs until somebody waits, and then ready streams take turns at random: the same seed gives
// the same order, and what is not synchronised happens as late or as early as it may.
#include <unistd.h>

#include <algorithm>
#include <random>

#include "stream.h"

namespace hipsim {

namespace {
std::condition_variable& progress() {
  static auto* made = new std::condition_variable;
  return *made;
}

std::vector<Stream*>& busy_streams() {  // with work queued; shuffled order only
  static auto* made = new std::vector<Stream*>;
  return *made;
}

bool ready(const Stream& stream) {
  if (stream.queue.empty() || stream.running) return false;
  for (const Point& point : stream.queue.front().after)
    if (point.stream->done < point.sequence) return false;
  return true;
}

// Run the stream's next work; the lock is given up meanwhile.
void run_next(Stream& stream, std::unique_lock<std::mutex>& lock) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.running = true;
  lock.unlock();
  Device& device = *stream.device;
  if (device.lost == hipSuccess && work.op.run) {
    hipError_t error;
    try {
      error = work.op.run(stream);
    } catch (const Error& thrown) {
      error = thrown.code;
    } catch (const EngineError& thrown) {
      report("%s", thrown.what());
      error = thrown.timed_out ? hipErrorLaunchTimeOut : hipErrorUnknown;
      device.engine.stop();  // whatever it is at
    }
    // What was valid when it was submitted has been freed since.
    if (error == hipErrorInvalidValue) error = hipErrorIllegalAddress;
    if (error != hipSuccess) device.lose(error);
  }
  work = {};  // what it held may take its time to go
  lock.lock();
  stream.running = false;
  ++stream.done;
  progress().notify_all();
}

void serve(std::shared_ptr<Stream> stream) {
  std::unique_lock lock(scheduler_mutex());
  for (;;) {
    progress().wait(lock,
                    [&] { return ready(*stream) || (stream->closing && stream->queue.empty()); });
    if (stream->queue.empty()) break;
    run_next(*stream, lock);
  }
}

// Shuffled order: run one ready work of any stream; false when there is none.
bool step(std::unique_lock<std::mutex>& lock) {
  static auto* random = new std::mt19937_64(*settings().shuffle);
  std::vector<Stream*> candidates;
  auto& busy = busy_streams();
  std::erase_if(busy, [](Stream* stream) { return stream->queue.empty(); });
  for (Stream* stream : busy)
    if (ready(*stream)) candidates.push_back(stream);
  if (candidates.empty()) return false;
  const auto keep = candidates[(*random)() % candidates.size()]->shared_from_this();
  run_next(*keep, lock);
  return true;
}

void wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& condition) {
  if (!settings().shuffle) {
    progress().wait(lock, condition);
    return;
  }
  while (!condition())
    if (!step(lock)) progress().wait(lock);  // another thread runs what this one waits for
}
}  // namespace

std::mutex& scheduler_mutex() {
  static auto* made = new std::mutex;
  return *made;
}

std::uint64_t submit(Stream& stream, Op op, std::vector<Point> after) {
  // The null stream waits for every blocking stream, and each of those for the null stream.
  if (stream.is_null) {
    for (const auto& other : streams_of(*stream.device))
      if (other->blocking() && other->submitted > other->done)
        after.push_back({other, other->submitted});
  } else if (stream.blocking()) {
    const auto& null_stream = stream.device->null_stream;
    if (null_stream->submitted > null_stream->done)
      after.push_back({null_stream, null_stream->submitted});
  }
  stream.queue.push_back({std::move(op), std::move(after)});
  if (settings().shuffle) {
    auto& busy = busy_streams();
    if (std::find(busy.begin(), busy.end(), &stream) == busy.end()) busy.push_back(&stream);
  } else if (!stream.worker.joinable()) {
    stream.worker = std::thread(serve, stream.shared_from_this());
  } else if (!stream.running) {
    progress().notify_all();
  }
  return ++stream.submitted;
}

bool reached(const Point& point) {
  std::lock_guard lock(scheduler_mutex());
  return !point.stream || point.stream->done >= point.sequence;
}

void wait_for(const Point& point) {
  if (!point.stream) return;
  std::unique_lock lock(scheduler_mutex());
  wait_until(lock, [&] { return point.stream->done >= point.sequence; });
}

void wait_for_stream(const std::shared_ptr<Stream>& stream) {
  std::unique_lock lock(scheduler_mutex());
  const std::uint64_t sequence = stream->submitted;
  wait_until(lock, [&] { return stream->done >= sequence; });
}

void wait_for_device(Device& device) {
  for (const auto& stream : streams_of(device)) wait_for_stream(stream);
}

void wake_scheduler() { progress().notify_all(); }

void poll_once() {
  if (!settings().shuffle) return;
  std::unique_lock lock(scheduler_mutex());
  step(lock);
}

}  // namespace hipsim
