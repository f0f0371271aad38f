// Events: points in streams, with the time at which they were reached.
#include <chrono>
#include <map>

#include "capture.h"

namespace hipsim {

struct Event {
  unsigned flags = 0;
  Device* device = nullptr;
  // The last record. A new record replaces it; who waits for the old one keeps it.
  struct Record {
    Point point;
    std::chrono::steady_clock::time_point time;
  };
  std::shared_ptr<Record> record;
  std::shared_ptr<Capture> capture;  // recorded by a capturing stream: after these nodes
  std::vector<GraphNode*> nodes;
};

namespace {
std::mutex mutex;
std::map<hipEvent_t, std::shared_ptr<Event>> events;

std::shared_ptr<Event> find(hipEvent_t handle) {
  std::lock_guard lock(mutex);
  const auto found = events.find(handle);
  require(found != events.end(), hipErrorInvalidHandle);
  return found->second;
}

// The event's last record, or null; throws when a capture has recorded it.
std::shared_ptr<Event::Record> record_of(const Event& event) {
  std::lock_guard lock(scheduler_mutex());
  require(!event.capture, hipErrorCapturedEvent);
  return event.record;
}

hipError_t create(const char* call, hipEvent_t* event, unsigned flags) {
  return api(call, kDevice, [&](Runtime& runtime) {
    constexpr unsigned known =
        hipEventBlockingSync | hipEventDisableTiming | hipEventInterprocess | 0x60000000u;
    require(event && (flags & ~known) == 0);
    auto made = std::make_shared<Event>();
    made->flags = flags;
    made->device = &runtime.current();
    std::lock_guard lock(mutex);
    *event = made.get();
    events[made.get()] = std::move(made);
    return hipSuccess;
  });
}

hipError_t record(const char* call, hipEvent_t handle, hipStream_t stream_handle) {
  return api(call, kDevice, [&](Runtime&) {
    const auto event = find(handle);
    const auto stream = stream_of(stream_handle);
    require(event->device == stream->device, hipErrorInvalidHandle);
    auto record = std::make_shared<Event::Record>();
    std::unique_lock lock(scheduler_mutex());
    if (stream->capture) {
      require(!stream->capture->invalid, hipErrorStreamCaptureInvalidated);
      event->capture = stream->capture;
      event->nodes = stream->capture->member(*stream).tail;
      return hipSuccess;
    }
    lock.unlock();
    refuse_captured(*stream, call);
    lock.lock();
    const std::uint64_t sequence = submit(*stream, {hipGraphNodeTypeEmpty, [record](Stream&) {
                                                      record->time =
                                                          std::chrono::steady_clock::now();
                                                      return hipSuccess;
                                                    }});
    record->point = {stream, sequence};
    event->record = std::move(record);
    event->capture.reset();
    return hipSuccess;
  });
}
}  // namespace

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipEventCreate(hipEvent_t* event) {
  return create("hipEventCreate", event, 0);
}

HIPSIM_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return create("hipEventCreateWithFlags", event, flags);
}

HIPSIM_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return record("hipEventRecord", event, stream);
}

HIPSIM_API hipError_t hipEventRecordWithFlags(hipEvent_t event, hipStream_t stream, unsigned) {
  return record("hipEventRecordWithFlags", event, stream);
}

HIPSIM_API hipError_t hipEventSynchronize(hipEvent_t handle) {
  return api("hipEventSynchronize", kDevice, [&](Runtime&) {
    const auto event = find(handle);
    const auto record = record_of(*event);
    if (!record) return hipSuccess;
    wait_for(record->point);
    check_guards(*event->device);
    return event->device->lost.load();
  });
}

HIPSIM_API hipError_t hipEventQuery(hipEvent_t handle) {
  return api("hipEventQuery", kDevice, [&](Runtime&) {
    const auto event = find(handle);
    const auto record = record_of(*event);
    if (!record) return hipSuccess;
    poll_once();
    if (!reached(record->point)) return hipErrorNotReady;
    return event->device->lost.load();
  });
}

HIPSIM_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start_handle,
                                          hipEvent_t stop_handle) {
  return api("hipEventElapsedTime", kDevice, [&](Runtime&) {
    require(milliseconds);
    const auto start = find(start_handle), stop = find(stop_handle);
    const auto begin = record_of(*start), end = record_of(*stop);
    require(begin && end, hipErrorInvalidHandle);
    require(!((start->flags | stop->flags) & hipEventDisableTiming), hipErrorInvalidHandle);
    require(reached(begin->point) && reached(end->point), hipErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipEventDestroy(hipEvent_t event) {
  return api("hipEventDestroy", kAlways, [&](Runtime&) {
    std::lock_guard lock(mutex);
    require(events.erase(event) == 1, hipErrorInvalidHandle);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamWaitEvent(hipStream_t stream_handle, hipEvent_t handle,
                                         unsigned flags) {
  return api("hipStreamWaitEvent", kDevice, [&](Runtime&) {
    require(flags == 0);
    const auto event = find(handle);
    const auto stream = stream_of(stream_handle);
    std::unique_lock lock(scheduler_mutex());
    if (const auto capture = event->capture) {
      const auto nodes = event->nodes;
      lock.unlock();
      join_capture(*stream, capture, nodes);
      return hipSuccess;
    }
    if (stream->capture) {  // a graph cannot wait for what is outside of it
      stream->capture->invalid = true;
      throw Error{hipErrorStreamCaptureIsolation};
    }
    if (event->record) submit(*stream, {hipGraphNodeTypeEmpty, nullptr}, {event->record->point});
    return hipSuccess;
  });
}
