// What the library and its kernels agree on: a convolution or a pooling as sizes and strides in
// elements. There are always three axes in space; a plane has one plane in depth.
#pragma once
#include <cstdint>

namespace hipsim {

struct Places {
  std::int64_t image, channel, axes[3];  // strides
};

struct Taps {
  std::int64_t group, output, input, axes[3];  // strides of a convolution's weights
};

struct Window {
  std::int64_t in[3], out[3], size[3], stride[3], pad[3], dilation[3];
};

struct Convolution {
  std::int64_t images, groups, inputs, outputs;  // channels of one group
  std::int64_t transposed;                       // 0 or 1
  Window window;
  Places x, y;
  Taps w;

  std::int64_t taps() const { return window.size[0] * window.size[1] * window.size[2]; }
  std::int64_t positions() const { return window.out[0] * window.out[1] * window.out[2]; }
  std::int64_t columns() const { return groups * inputs * taps() * positions(); }
  std::int64_t weights() const { return groups * outputs * inputs * taps(); }
};

struct Pooling {
  std::int64_t images, channels;
  std::int64_t mode;  // a miopenPoolingMode_t
  Window window;
  Places x, y;
};

struct Bias {
  std::int64_t images, channels, sizes[3];
  Places y;
};

}  // namespace hipsim
