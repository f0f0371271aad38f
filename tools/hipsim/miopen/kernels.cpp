// The kernels of the simulated MIOpen. Reference arithmetic: one thread an element (a tile of four
// in Winograd's way), its sum in f32 (f64 for doubles), rounded once.
#include "../common/library_kernels.h"
#include "problem.h"

using namespace hipsim;

namespace {
struct Point {
  std::int64_t at[3];
};

// Take the last digits of a number, of these sizes.
Point split(std::int64_t& number, const std::int64_t sizes[3]) {
  Point point;
  for (int i = 2; i >= 0; --i) {
    point.at[i] = number % sizes[i];
    number /= sizes[i];
  }
  return point;
}

std::int64_t take(std::int64_t& number, std::int64_t size) {
  const std::int64_t digit = number % size;
  number /= size;
  return digit;
}

std::int64_t offset(const Point& point, const std::int64_t strides[3]) {
  return point.at[0] * strides[0] + point.at[1] * strides[1] + point.at[2] * strides[2];
}

// Where an output position finds the input for a tap; false where that is padding.
bool source(const Window& window, bool transposed, const Point& out, const Point& tap, Point& in) {
  for (int i = 0; i < 3; ++i) {
    const std::int64_t reach = tap.at[i] * window.dilation[i];
    if (transposed) {
      in.at[i] = out.at[i] + window.pad[i] - reach;
      if (in.at[i] < 0 || in.at[i] % window.stride[i]) return false;
      in.at[i] /= window.stride[i];
    } else {
      in.at[i] = out.at[i] * window.stride[i] - window.pad[i] + reach;
    }
    if (in.at[i] < 0 || in.at[i] >= window.in[i]) return false;
  }
  return true;
}

template <class Each>
void for_taps(const Window& window, Each each) {
  Point tap;
  for (tap.at[0] = 0; tap.at[0] < window.size[0]; ++tap.at[0])
    for (tap.at[1] = 0; tap.at[1] < window.size[1]; ++tap.at[1])
      for (tap.at[2] = 0; tap.at[2] < window.size[2]; ++tap.at[2]) each(tap);
}

template <class T, class Sum>
void direct(T* y, const T* x, const T* w, Convolution c) {
  std::int64_t rest = thread_number();
  if (rest >= c.images * c.groups * c.outputs * c.positions()) return;
  const Point out = split(rest, c.window.out);
  const std::int64_t output = take(rest, c.outputs), group = take(rest, c.groups), image = rest;
  x += image * c.x.image + group * c.inputs * c.x.channel;
  w += group * c.w.group + output * c.w.output;
  Sum sum = 0;
  for_taps(c.window, [&](const Point& tap) {
    Point in;
    if (!source(c.window, c.transposed, out, tap, in)) return;
    const T* from = x + offset(in, c.x.axes);
    const T* by = w + offset(tap, c.w.axes);
    for (std::int64_t i = 0; i < c.inputs; ++i)
      sum += static_cast<Sum>(from[i * c.x.channel]) * static_cast<Sum>(by[i * c.w.input]);
  });
  y[image * c.y.image + (group * c.outputs + output) * c.y.channel + offset(out, c.y.axes)] =
      static_cast<T>(sum);
}

// One image as columns (group, input, tap) x position, with zeros for the padding.
template <class T>
void im2col(T* columns, const T* x, Convolution c, std::int64_t image) {
  std::int64_t rest = thread_number();
  if (rest >= c.columns()) return;
  T& to = columns[rest];
  const Point out = split(rest, c.window.out), tap = split(rest, c.window.size);
  Point in;
  to = source(c.window, c.transposed, out, tap, in)
           ? x[image * c.x.image + rest * c.x.channel + offset(in, c.x.axes)]
           : T(0.0f);
}

// The product of the weights and the columns of one image.
template <class T>
void product(T* y, const T* columns, const T* w, Convolution c, std::int64_t image) {
  const std::int64_t positions = c.positions();
  std::int64_t rest = thread_number();
  if (rest >= c.groups * c.outputs * positions) return;
  const std::int64_t position = rest % positions;
  const Point out = split(rest, c.window.out);
  const std::int64_t output = take(rest, c.outputs), group = rest;
  columns += group * c.inputs * c.taps() * positions + position;
  w += group * c.w.group + output * c.w.output;
  float sum = 0;
  for (std::int64_t i = 0; i < c.inputs; ++i)
    for_taps(c.window, [&](const Point& tap) {
      Point in;  // a transposed one adds columns to the output: padding meets no weight
      if (!c.transposed || source(c.window, true, out, tap, in))
        sum += static_cast<float>(*columns) *
               static_cast<float>(w[i * c.w.input + offset(tap, c.w.axes)]);
      columns += positions;
    });
  y[image * c.y.image + (group * c.outputs + output) * c.y.channel + offset(out, c.y.axes)] =
      static_cast<T>(sum);
}

// The weights in the order of `to`.
template <class T>
void repack(T* packed, const T* w, Convolution c, Taps to) {
  std::int64_t rest = thread_number();
  if (rest >= c.weights()) return;
  const Point tap = split(rest, c.window.size);
  const std::int64_t input = take(rest, c.inputs), output = take(rest, c.outputs), group = rest;
  const auto place = [&](const Taps& taps) {
    return group * taps.group + output * taps.output + input * taps.input + offset(tap, taps.axes);
  };
  packed[place(to)] = w[place(c.w)];
}

// One dimension of Winograd's F(2, 3): input, weights and output are transformed alike in both.
struct Four {
  float at[4];
};
Four of_input(float a, float b, float c, float d) { return {{a - c, b + c, c - b, b - d}}; }
Four of_weights(float a, float b, float c) {
  return {{a, 0.5f * (a + b + c), 0.5f * (a - b + c), c}};
}

// A thread makes 2 x 2 elements of one plane.
template <class T>
void winograd(T* y, const T* x, const T* w, Convolution c) {
  const std::int64_t rows = (c.window.out[1] + 1) / 2, columns = (c.window.out[2] + 1) / 2;
  std::int64_t rest = thread_number();
  if (rest >= c.images * c.outputs * rows * columns) return;
  const std::int64_t left = take(rest, columns) * 2, top = take(rest, rows) * 2;
  const std::int64_t output = take(rest, c.outputs), image = rest;
  x += image * c.x.image;
  w += output * c.w.output;
  float sums[4][4] = {};
  for (std::int64_t i = 0; i < c.inputs; ++i, x += c.x.channel, w += c.w.input) {
    const auto in = [&](std::int64_t row, std::int64_t column) {
      row += top - c.window.pad[1];
      column += left - c.window.pad[2];
      const bool inside =
          row >= 0 && row < c.window.in[1] && column >= 0 && column < c.window.in[2];
      return inside ? static_cast<float>(x[row * c.x.axes[1] + column * c.x.axes[2]]) : 0.0f;
    };
    const auto tap = [&](int row, int column) {
      return static_cast<float>(w[row * c.w.axes[1] + column * c.w.axes[2]]);
    };
    Four data[4], taps[3];
    for (int r = 0; r < 4; ++r) data[r] = of_input(in(r, 0), in(r, 1), in(r, 2), in(r, 3));
    for (int r = 0; r < 3; ++r) taps[r] = of_weights(tap(r, 0), tap(r, 1), tap(r, 2));
    for (int k = 0; k < 4; ++k) {
      const Four d = of_input(data[0].at[k], data[1].at[k], data[2].at[k], data[3].at[k]);
      const Four t = of_weights(taps[0].at[k], taps[1].at[k], taps[2].at[k]);
      for (int r = 0; r < 4; ++r) sums[r][k] += d.at[r] * t.at[r];
    }
  }
  y += image * c.y.image + output * c.y.channel;
  for (int r = 0; r < 2; ++r) {
    float row[4];
    for (int k = 0; k < 4; ++k)
      row[k] = r ? sums[1][k] - sums[2][k] - sums[3][k] : sums[0][k] + sums[1][k] + sums[2][k];
    for (int k = 0; k < 2; ++k)
      if (top + r < c.window.out[1] && left + k < c.window.out[2])
        y[(top + r) * c.y.axes[1] + (left + k) * c.y.axes[2]] =
            static_cast<T>(k ? row[1] - row[2] - row[3] : row[0] + row[1] + row[2]);
  }
}

template <class T, class Sum>
void bias(T* y, const T* b, Bias p) {
  std::int64_t rest = thread_number();
  if (rest >= p.images * p.channels * p.sizes[0] * p.sizes[1] * p.sizes[2]) return;
  const Point at = split(rest, p.sizes);
  const std::int64_t channel = take(rest, p.channels), image = rest;
  T& to = y[image * p.y.image + channel * p.y.channel + offset(at, p.y.axes)];
  to = static_cast<T>(static_cast<Sum>(to) + static_cast<Sum>(b[channel]));
}

// As MIOpen has it: a maximum begins at the least finite number and never takes a NaN.
template <class T>
void pool(T* y, const T* x, Pooling p, float least) {
  std::int64_t rest = thread_number();
  const std::int64_t* sizes = p.window.out;
  if (rest >= p.images * p.channels * sizes[0] * sizes[1] * sizes[2]) return;
  const Point out = split(rest, sizes);
  const std::int64_t channel = take(rest, p.channels), image = rest;
  x += image * p.x.image + channel * p.x.channel;
  float best = least, sum = 0;
  std::int64_t seen = 0;
  for_taps(p.window, [&](const Point& tap) {
    Point in;
    if (!source(p.window, false, out, tap, in)) return;
    const auto value = static_cast<float>(x[offset(in, p.x.axes)]);
    if (value > best) best = value;
    sum += value;
    ++seen;
  });
  if (p.mode == 2) seen = p.window.size[0] * p.window.size[1] * p.window.size[2];
  y[image * p.y.image + channel * p.y.channel + offset(out, p.y.axes)] =
      static_cast<T>(p.mode == 0 ? best : sum / static_cast<float>(seen ? seen : 1));
}

#define OF(T, name)                                             \
  hipsim_register<&im2col<T>>("im2col_" name, true),            \
      hipsim_register<&product<T>>("product_" name, true),      \
      hipsim_register<&repack<T>>("repack_" name, true),        \
      hipsim_register<&direct<T, float>>("direct_" name, true), \
      hipsim_register<&bias<T, float>>("bias_" name, true)
const bool registered[] = {
    OF(Half, "f16"),
    OF(float, "f32"),
    OF(Brain, "bf16"),
    hipsim_register<&direct<double, double>>("direct_f64", true),
    hipsim_register<&bias<double, double>>("bias_f64", true),
    hipsim_register<&winograd<Half>>("winograd_f16", true),
    hipsim_register<&winograd<float>>("winograd_f32", true),
    hipsim_register<&pool<Half>>("pool_f16", true),
    hipsim_register<&pool<float>>("pool_f32", true),
    hipsim_register<&scribble>("scribble", true),
};
}  // namespace
