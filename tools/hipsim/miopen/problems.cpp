// What descriptors say together: whether they fit, and the problem that kernels solve.
#include <cstring>

#include "descriptors.h"

namespace hipsim {

namespace {
// In three axes of space.
void spread(const Sizes& from, std::int64_t (&to)[3], std::int64_t missing) {
  const std::size_t count = from.size() - 2;
  for (std::size_t i = 0; i < 3; ++i) to[i] = i + count < 3 ? missing : from[i + count - 1];
}

void require_rank(const miopenTensorDescriptor& tensor, const char* name, int axes) {
  require(static_cast<int>(tensor.sizes.size()) == axes + 2,
          std::string(name) + " is " + text_of(tensor.sizes) + ", of a convolution or pooling of " +
              std::to_string(axes) + " axes in space");
}

Window window_of(const Axes& axes, const std::int64_t (&in)[3], const std::int64_t (&size)[3]) {
  Window window{};
  for (int i = 0; i < 3; ++i) {
    window.in[i] = in[i];
    window.size[i] = size[i];
    window.stride[i] = axes.stride[i];
    window.pad[i] = axes.pad[i];
    window.dilation[i] = axes.dilation[i];
    const std::int64_t reach = axes.dilation[i] * (size[i] - 1) + 1;
    const std::int64_t room = in[i] + 2 * axes.pad[i] - reach;
    window.out[i] = room < 0 ? 0 : room / axes.stride[i] + 1;
  }
  return window;
}

Sizes sizes_of(std::int64_t images, std::int64_t channels, const Window& window, int axes) {
  Sizes sizes{images, channels};
  for (int i = 3 - axes; i < 3; ++i) {
    require(window.out[i] >= 1, "the window is larger than the padded input");
    sizes.push_back(window.out[i]);
  }
  return sizes;
}

// Of a convolution whose operands fit together; the strides are still to come.
Convolution shaped(const miopenConvolutionDescriptor& by, const miopenTensorDescriptor& x,
                   const miopenTensorDescriptor& w) {
  require_rank(x, "x", by.axes.count);
  require_rank(w, "w", by.axes.count);
  Convolution c{};
  c.images = x.sizes[0];
  c.groups = by.groups;
  c.transposed = by.mode == miopenTranspose;
  const std::string told = "x is " + text_of(x.sizes) + ", w is " + text_of(w.sizes) + ", " +
                           std::to_string(by.groups) + " groups: ";
  const std::int64_t in = x.sizes[1];
  require(in % c.groups == 0, told + "x's channels are no multiple of the groups");
  c.inputs = in / c.groups;
  if (c.transposed) {
    require(w.sizes[0] == in, told + "w begins with x's channels");
    c.outputs = w.sizes[1];
  } else {
    require(w.sizes[1] == c.inputs, told + "w's second size is x's channels of one group");
    require(w.sizes[0] % c.groups == 0, told + "w's first size is no multiple of the groups");
    c.outputs = w.sizes[0] / c.groups;
  }
  std::int64_t sizes[3], taps[3];
  spread(x.sizes, sizes, 1);
  spread(w.sizes, taps, 1);
  c.window = window_of(by.axes, sizes, taps);
  if (c.transposed)
    for (int i = 0; i < 3; ++i) {
      const std::int64_t reach = by.axes.dilation[i] * (taps[i] - 1) + 1;
      c.window.out[i] =
          (sizes[i] - 1) * by.axes.stride[i] - 2 * by.axes.pad[i] + reach + by.extra[i];
    }
  return c;
}

Places places_of(const miopenTensorDescriptor& tensor) {
  Places places{tensor.strides[0], tensor.strides[1], {}};
  spread(tensor.strides, places.axes, 0);
  return places;
}

Window pooled(const miopenPoolingDescriptor& by, const miopenTensorDescriptor& x) {
  require_rank(x, "x", by.axes.count);
  std::int64_t sizes[3];
  spread(x.sizes, sizes, 1);
  return window_of(by.axes, sizes, by.axes.size);
}

void give(const Sizes& sizes, std::initializer_list<int*> places) {
  std::size_t i = 0;
  for (int* place : places) {
    require(place, "a size's place is null");
    *place = static_cast<int>(sizes[i++]);
  }
}
}  // namespace

Problem problem_of(miopenTensorDescriptor_t x_of, miopenTensorDescriptor_t w_of,
                   miopenConvolutionDescriptor_t by, miopenTensorDescriptor_t y_of) {
  const auto& described = convolution(by);
  const auto &x = tensor("xDesc", x_of), &w = tensor("wDesc", w_of), &y = tensor("yDesc", y_of);
  require(x.type == w.type && x.type == y.type, "x, w and y are of different types");
  Problem problem{x.type, shaped(described, x, w), suffix_of(x.type)};
  Convolution& c = problem.convolution;
  const Sizes wanted = sizes_of(c.images, c.groups * c.outputs, c.window, described.axes.count);
  require(y.sizes == wanted, "y is " + text_of(y.sizes) + ", the result is " + text_of(wanted));
  const auto all = [&](bool last) {
    return is_packed(x, last) && is_packed(w, last) && is_packed(y, last);
  };
  require(all(false) || all(true),
          "strides: x, w and y are packed, all with channels first or all with channels last");
  c.x = places_of(x);
  c.y = places_of(y);
  spread(w.strides, c.w.axes, 0);
  c.w.input = w.strides[c.transposed ? 0 : 1];
  c.w.output = w.strides[c.transposed ? 1 : 0];
  c.w.group = w.strides[0] * (c.transposed ? c.inputs : c.outputs);
  std::int64_t numbers[sizeof c / sizeof(std::int64_t)];
  std::memcpy(numbers, &c, sizeof c);
  for (const std::int64_t number : numbers) problem.key += '-' + std::to_string(number);
  return problem;
}

Pooling pooling_of(miopenPoolingDescriptor_t by, miopenTensorDescriptor_t x_of,
                   miopenTensorDescriptor_t y_of) {
  const auto& described = pooling(by);
  const auto &x = tensor("xDesc", x_of), &y = tensor("yDesc", y_of);
  require(x.type == y.type, "x and y are of different types");
  Pooling p{x.sizes[0], x.sizes[1], described.mode, pooled(described, x), places_of(x), {}};
  const Sizes wanted = sizes_of(p.images, p.channels, p.window, described.axes.count);
  require(y.sizes == wanted, "y is " + text_of(y.sizes) + ", the result is " + text_of(wanted));
  p.y = places_of(y);
  return p;
}

Bias bias_of(const miopenTensorDescriptor& y) {
  Bias bias{y.sizes[0], y.sizes[1], {}, places_of(y)};
  spread(y.sizes, bias.sizes, 1);
  return bias;
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API miopenStatus_t miopenGetConvolutionForwardOutputDim(
    miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t x,
    const miopenTensorDescriptor_t w, int* n, int* c, int* out_h, int* out_w) {
  return answer("miopenGetConvolutionForwardOutputDim", [&] {
    const auto& by = hipsim::convolution(convolution);
    require(by.axes.count == 2, "of a convolution of 2 axes in space");
    const Convolution shape = shaped(by, tensor("xDesc", x), tensor("wDesc", w));
    give(sizes_of(shape.images, shape.groups * shape.outputs, shape.window, 2),
         {n, c, out_h, out_w});
  });
}

HIPSIM_API miopenStatus_t miopenGetPoolingForwardOutputDim(const miopenPoolingDescriptor_t pooling,
                                                           const miopenTensorDescriptor_t tensor,
                                                           int* n, int* c, int* h, int* w) {
  return answer("miopenGetPoolingForwardOutputDim", [&] {
    const auto& by = hipsim::pooling(pooling);
    const auto& x = hipsim::tensor("tensorDesc", tensor);
    require(by.axes.count == 2, "of a pooling of 2 axes in space");
    give(sizes_of(x.sizes[0], x.sizes[1], pooled(by, x), 2), {n, c, h, w});
  });
}
