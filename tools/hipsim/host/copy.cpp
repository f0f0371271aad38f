// Copies and fills. They run on the host side of the simulator, through the host views. Memory
// that is not pinned is staged as on hardware: read before an asynchronous call returns, and
// written before it returns too; pinned memory is read and written when the stream gets there.
#include <chrono>
#include <cstring>
#include <vector>

#include "capture.h"
#include "places.h"
#include "stream.h"

namespace hipsim {

namespace {
struct Rows {
  std::size_t width, height, destination_pitch, source_pitch;
  std::size_t span(std::size_t pitch) const { return height ? (height - 1) * pitch + width : 0; }
};

void slow_down() {
  if (const int microseconds = settings().slow_copies_us)
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

void copy_rows(char* destination, const char* source, const Rows& rows) {
  for (std::size_t y = 0; y < rows.height; ++y)
    std::memmove(destination + y * rows.destination_pitch, source + y * rows.source_pitch,
                 rows.width);
}

void check_kind(hipMemcpyKind kind, const Place& destination, const Place& source) {
  require((kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault) ||
              kind == hipMemcpyDeviceToDeviceNoCU,
          hipErrorInvalidMemcpyDirection);
  const bool to_device = destination.kind == Kind::device,
             from_device = source.kind == Kind::device;
  // Pinned memory may stand for either side.
  const bool to_host = destination.kind == Kind::pageable,
             from_host = source.kind == Kind::pageable;
  const bool wrong = (kind == hipMemcpyHostToHost && (to_device || from_device)) ||
                     (kind == hipMemcpyHostToDevice && (to_host || from_device)) ||
                     (kind == hipMemcpyDeviceToHost && (to_device || from_host)) ||
                     (kind == hipMemcpyDeviceToDevice && (to_host || from_host));
  if (!wrong) return;
  report("a copy's kind says %d, but its destination is %s memory and its source %s",
         static_cast<int>(kind), to_device ? "device" : "host", from_device ? "device" : "host");
  throw Error{hipErrorInvalidMemcpyDirection};
}

hipError_t copy(const char* call, void* destination, const void* source, const Rows& rows,
                hipMemcpyKind kind, hipStream_t handle, bool wait) {
  return api(call, kDevice | (wait ? kNotCaptured : kAlways), [&](Runtime&) {
    const auto stream = stream_of(handle);
    if (rows.width == 0 || rows.height == 0) return hipSuccess;
    require(destination && source);
    require(rows.destination_pitch >= rows.width && rows.source_pitch >= rows.width,
            hipErrorInvalidPitchValue);
    const std::size_t written = rows.span(rows.destination_pitch),
                      read = rows.span(rows.source_pitch);
    const Place to = place_of(destination, written, call), from = place_of(source, read, call);
    check_kind(kind, to, from);
    const bool staged_source = from.kind == Kind::pageable,
               staged_destination = to.kind == Kind::pageable;
    if (!wait && (staged_source || staged_destination)) {
      std::lock_guard lock(scheduler_mutex());
      if (stream->capture) {
        stream->capture->invalid = true;
        report("%s with host memory that is not pinned cannot be captured", call);
        throw Error{hipErrorStreamCaptureUnsupported};
      }
    }
    std::shared_ptr<std::vector<char>> staging;
    if (staged_source && !wait)
      staging = std::make_shared<std::vector<char>>(from.bytes, from.bytes + read);
    enqueue(*stream, {hipGraphNodeTypeMemcpy, [=](Stream&) {
                        slow_down();
                        // Where it was allocated it may be freed by now.
                        const Place now_to = place_of(destination, written, call);
                        const char* bytes =
                            staging ? staging->data() : place_of(source, read, call).bytes;
                        copy_rows(now_to.bytes, bytes, rows);
                        return hipSuccess;
                      }});
    if (!wait && !staged_destination) return hipSuccess;
    wait_for_stream(stream);
    check_guards(*stream->device);
    return stream->device->lost.load();
  });
}

hipError_t copy(const char* call, void* destination, const void* source, std::size_t bytes,
                hipMemcpyKind kind, hipStream_t stream, bool wait) {
  return copy(call, destination, source, Rows{bytes, 1, bytes, bytes}, kind, stream, wait);
}

// Fill rows of `width` elements of `element` bytes with the lowest bytes of `value`.
hipError_t fill(const char* call, void* destination, std::size_t pitch, unsigned value,
                std::size_t element, std::size_t width, std::size_t height, hipStream_t handle,
                bool wait) {
  return api(call, kDevice | (wait ? kNotCaptured : kAlways), [&](Runtime&) {
    const auto stream = stream_of(handle);
    if (width == 0 || height == 0) return hipSuccess;
    const std::size_t row = width * element, bytes = (height - 1) * pitch + row;
    require(destination && address_of(destination) % element == 0);
    require(height == 1 || pitch >= row, hipErrorInvalidPitchValue);
    require(place_of(destination, bytes, call).kind != Kind::pageable);
    enqueue(*stream, {hipGraphNodeTypeMemset, [=](Stream&) {
                        char* at = place_of(destination, bytes, call).bytes;
                        for (std::size_t y = 0; y < height; ++y)
                          if (element == 1)
                            std::memset(at + y * pitch, static_cast<int>(value), row);
                          else
                            for (std::size_t x = 0; x < row; x += element)
                              std::memcpy(at + y * pitch + x, &value, element);
                        return hipSuccess;
                      }});
    if (!wait) return hipSuccess;
    wait_for_stream(stream);
    return stream->device->lost.load();
  });
}
}  // namespace

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipMemcpy(void* dst, const void* src, std::size_t bytes, hipMemcpyKind kind) {
  return copy("hipMemcpy", dst, src, bytes, kind, nullptr, true);
}
HIPSIM_API hipError_t hipMemcpyWithStream(void* dst, const void* src, std::size_t bytes,
                                          hipMemcpyKind kind, hipStream_t stream) {
  return copy("hipMemcpyWithStream", dst, src, bytes, kind, stream, true);
}
HIPSIM_API hipError_t hipMemcpyAsync(void* dst, const void* src, std::size_t bytes,
                                     hipMemcpyKind kind, hipStream_t stream) {
  return copy("hipMemcpyAsync", dst, src, bytes, kind, stream, false);
}
HIPSIM_API hipError_t hipMemcpyHtoD(void* dst, const void* src, std::size_t bytes) {
  return copy("hipMemcpyHtoD", dst, src, bytes, hipMemcpyHostToDevice, nullptr, true);
}
HIPSIM_API hipError_t hipMemcpyDtoH(void* dst, void* src, std::size_t bytes) {
  return copy("hipMemcpyDtoH", dst, src, bytes, hipMemcpyDeviceToHost, nullptr, true);
}
HIPSIM_API hipError_t hipMemcpyDtoD(void* dst, void* src, std::size_t bytes) {
  return copy("hipMemcpyDtoD", dst, src, bytes, hipMemcpyDeviceToDevice, nullptr, true);
}
HIPSIM_API hipError_t hipMemcpyHtoDAsync(void* dst, const void* src, std::size_t bytes,
                                         hipStream_t stream) {
  return copy("hipMemcpyHtoDAsync", dst, src, bytes, hipMemcpyHostToDevice, stream, false);
}
HIPSIM_API hipError_t hipMemcpyDtoHAsync(void* dst, void* src, std::size_t bytes,
                                         hipStream_t stream) {
  return copy("hipMemcpyDtoHAsync", dst, src, bytes, hipMemcpyDeviceToHost, stream, false);
}
HIPSIM_API hipError_t hipMemcpyDtoDAsync(void* dst, void* src, std::size_t bytes,
                                         hipStream_t stream) {
  return copy("hipMemcpyDtoDAsync", dst, src, bytes, hipMemcpyDeviceToDevice, stream, false);
}
HIPSIM_API hipError_t hipMemcpyPeer(void* dst, int, const void* src, int, std::size_t bytes) {
  return copy("hipMemcpyPeer", dst, src, bytes, hipMemcpyDeviceToDevice, nullptr, true);
}
HIPSIM_API hipError_t hipMemcpyPeerAsync(void* dst, int, const void* src, int, std::size_t bytes,
                                         hipStream_t stream) {
  return copy("hipMemcpyPeerAsync", dst, src, bytes, hipMemcpyDeviceToDevice, stream, false);
}
HIPSIM_API hipError_t hipMemcpy2D(void* dst, std::size_t dpitch, const void* src,
                                  std::size_t spitch, std::size_t width, std::size_t height,
                                  hipMemcpyKind kind) {
  return copy("hipMemcpy2D", dst, src, Rows{width, height, dpitch, spitch}, kind, nullptr, true);
}
HIPSIM_API hipError_t hipMemcpy2DAsync(void* dst, std::size_t dpitch, const void* src,
                                       std::size_t spitch, std::size_t width, std::size_t height,
                                       hipMemcpyKind kind, hipStream_t stream) {
  return copy("hipMemcpy2DAsync", dst, src, Rows{width, height, dpitch, spitch}, kind, stream,
              false);
}
HIPSIM_API hipError_t hipMemset(void* dst, int value, std::size_t bytes) {
  return fill("hipMemset", dst, bytes, static_cast<unsigned>(value), 1, bytes, 1, nullptr, true);
}
HIPSIM_API hipError_t hipMemsetAsync(void* dst, int value, std::size_t bytes, hipStream_t stream) {
  return fill("hipMemsetAsync", dst, bytes, static_cast<unsigned>(value), 1, bytes, 1, stream,
              false);
}
HIPSIM_API hipError_t hipMemsetD8(void* dst, unsigned char value, std::size_t count) {
  return fill("hipMemsetD8", dst, count, value, 1, count, 1, nullptr, true);
}
HIPSIM_API hipError_t hipMemsetD8Async(void* dst, unsigned char value, std::size_t count,
                                       hipStream_t stream) {
  return fill("hipMemsetD8Async", dst, count, value, 1, count, 1, stream, false);
}
HIPSIM_API hipError_t hipMemsetD16(void* dst, unsigned short value, std::size_t count) {
  return fill("hipMemsetD16", dst, count * 2, value, 2, count, 1, nullptr, true);
}
HIPSIM_API hipError_t hipMemsetD16Async(void* dst, unsigned short value, std::size_t count,
                                        hipStream_t stream) {
  return fill("hipMemsetD16Async", dst, count * 2, value, 2, count, 1, stream, false);
}
HIPSIM_API hipError_t hipMemsetD32(void* dst, int value, std::size_t count) {
  return fill("hipMemsetD32", dst, count * 4, static_cast<unsigned>(value), 4, count, 1, nullptr,
              true);
}
HIPSIM_API hipError_t hipMemsetD32Async(void* dst, int value, std::size_t count,
                                        hipStream_t stream) {
  return fill("hipMemsetD32Async", dst, count * 4, static_cast<unsigned>(value), 4, count, 1,
              stream, false);
}
HIPSIM_API hipError_t hipMemset2D(void* dst, std::size_t pitch, int value, std::size_t width,
                                  std::size_t height) {
  return fill("hipMemset2D", dst, pitch, static_cast<unsigned>(value), 1, width, height, nullptr,
              true);
}
HIPSIM_API hipError_t hipMemset2DAsync(void* dst, std::size_t pitch, int value, std::size_t width,
                                       std::size_t height, hipStream_t stream) {
  return fill("hipMemset2DAsync", dst, pitch, static_cast<unsigned>(value), 1, width, height,
              stream, false);
}
