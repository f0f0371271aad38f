#include "descriptors.h"

#include "../common/living.h"

namespace hipsim {

namespace {
Living<miopenTensorDescriptor> tensors;
Living<miopenConvolutionDescriptor> convolutions;
Living<miopenPoolingDescriptor> poolings;

template <class T>
miopenStatus_t create(const char* call, Living<T>& living, T** descriptor) {
  return answer(call, [&] {
    require(descriptor, "the descriptor's place is null");
    *descriptor = living.make();
  });
}

template <class T>
miopenStatus_t destroy(const char* call, Living<T>& living, T* descriptor) {
  return answer(call, [&] {
    require(living.destroy(descriptor), "no descriptor, or one that was destroyed");
  });
}

template <class T>
T& known(Living<T>& living, T* descriptor, const std::string& name) {
  require(living.has(descriptor), name + " is no descriptor, or one that was destroyed");
  return *descriptor;
}

Sizes packed(const Sizes& sizes, bool channels_last) {
  Sizes strides(sizes.size());
  std::int64_t step = 1;
  const auto axis = [&](std::size_t i) {
    strides[i] = step;
    step *= sizes[i];
  };
  if (channels_last) axis(1);
  for (std::size_t i = sizes.size(); i-- > 0;)
    if (i != 1 || !channels_last) axis(i);
  return strides;
}

void set_tensor(miopenTensorDescriptor_t descriptor, miopenDataType_t type, Sizes sizes,
                Sizes strides) {
  auto& tensor = known(tensors, descriptor, "tensorDesc");
  require(bytes_of(type), "no such data type");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    require(sizes[i] >= 1, "sizes " + text_of(sizes) + ": each is at least 1");
    require(strides.empty() || strides[i] >= 1, "strides are at least 1");
  }
  tensor.type = type;
  tensor.strides = strides.empty() ? packed(sizes, false) : std::move(strides);
  tensor.sizes = std::move(sizes);
}

// Of a plane or of space, the last axis last.
Axes axes_of(const Sizes& sizes, const Sizes& pads, const Sizes& strides, const Sizes& dilations) {
  Axes made;
  made.count = static_cast<int>(pads.size());
  require(made.count == 2 || made.count == 3, "2 and 3 axes in space are supported");
  for (int i = 0; i < made.count; ++i) {
    const int at = i + 3 - made.count;
    made.size[at] = sizes.empty() ? 1 : sizes[i];
    made.pad[at] = pads[i];
    made.stride[at] = strides[i];
    made.dilation[at] = dilations.empty() ? 1 : dilations[i];
    require(made.size[at] >= 1, "a window is at least 1");
    require(made.pad[at] >= 0, "a pad is negative");
    require(made.stride[at] >= 1, "a stride is at least 1");
    require(made.dilation[at] >= 1, "a dilation is at least 1");
  }
  return made;
}

Sizes list(const int* values, int count) {
  require(values, "a list of numbers is null");
  require(count >= 1 && count <= 5, "1 to 5 axes are supported");
  return {values, values + count};
}

void set_convolution(miopenConvolutionDescriptor_t descriptor, miopenConvolutionMode_t mode,
                     const Sizes& pads, const Sizes& strides, const Sizes& dilations) {
  auto& found = known(convolutions, descriptor, "convDesc");
  require(mode == miopenConvolution || mode == miopenTranspose, "no such mode");
  miopenConvolutionDescriptor made;
  made.axes = axes_of({}, pads, strides, dilations);
  made.mode = mode;
  found = made;
}

void set_extra(miopenConvolutionDescriptor_t descriptor, const Sizes& extra) {
  auto& found = convolution(descriptor);
  require(found.axes.count == static_cast<int>(extra.size()), "of another number of axes");
  for (std::size_t i = 0; i < extra.size(); ++i) {
    require(extra[i] >= 0, "output padding is negative");
    found.extra[i + 3 - extra.size()] = extra[i];
  }
}

void set_pooling(miopenPoolingDescriptor_t descriptor, miopenPoolingMode_t mode,
                 const Sizes& windows, const Sizes& pads, const Sizes& strides) {
  auto& found = known(poolings, descriptor, "poolDesc");
  require(mode >= miopenPoolingMax && mode <= miopenPoolingAverageInclusive, "no such mode");
  const Axes axes = axes_of(windows, pads, strides, {});
  for (int i = 0; i < 3; ++i)
    require(axes.pad[i] < axes.size[i], "a pad is smaller than its window");
  found.axes = axes;
  found.mode = mode;
}

}  // namespace

const miopenTensorDescriptor& tensor(const char* name, miopenTensorDescriptor_t descriptor) {
  const auto& found = known(tensors, descriptor, name);
  require(!found.sizes.empty(), std::string(name) + " has not been set");
  return found;
}

miopenConvolutionDescriptor& convolution(miopenConvolutionDescriptor_t descriptor) {
  auto& found = known(convolutions, descriptor, "convDesc");
  require(found.axes.count, "convDesc has not been initialised");
  return found;
}

miopenPoolingDescriptor& pooling(miopenPoolingDescriptor_t descriptor) {
  auto& found = known(poolings, descriptor, "poolDesc");
  require(found.axes.count, "poolDesc has not been set");
  return found;
}

std::string text_of(const Sizes& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

// An axis of one element may have any stride.
bool is_packed(const miopenTensorDescriptor& tensor, bool channels_last) {
  const Sizes wanted = packed(tensor.sizes, channels_last);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (tensor.sizes[i] != 1 && tensor.strides[i] != wanted[i]) return false;
  return true;
}

std::string suffix_of(miopenDataType_t type) {
  switch (type) {
    case miopenHalf: return "f16";
    case miopenFloat: return "f32";
    case miopenBFloat16: return "bf16";
    case miopenDouble: return "f64";
    default: throw Refusal{miopenStatusNotImplemented, "this data type is not simulated"};
  }
}

std::size_t bytes_of(miopenDataType_t type) {
  switch (type) {
    case miopenInt8: return 1;
    case miopenHalf:
    case miopenBFloat16: return 2;
    case miopenFloat:
    case miopenInt32: return 4;
    case miopenDouble:
    case miopenInt64: return 8;
  }
  return 0;
}

std::int64_t elements_of(const miopenTensorDescriptor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.sizes) count *= size;
  return count;
}

void require_plain(const void* alpha, const void* beta, miopenDataType_t type,
                   miopenStatus_t otherwise) {
  require(alpha && beta, "alpha or beta is null");
  const auto value = [&](const void* at) {
    return type == miopenDouble ? *static_cast<const double*>(at) : *static_cast<const float*>(at);
  };
  require(value(alpha) == 1 && value(beta) == 0, "alpha is 1 and beta is 0, or it is not done",
          otherwise);
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API miopenStatus_t miopenCreateTensorDescriptor(miopenTensorDescriptor_t* tensor) {
  return create("miopenCreateTensorDescriptor", tensors, tensor);
}

HIPSIM_API miopenStatus_t miopenDestroyTensorDescriptor(miopenTensorDescriptor_t tensor) {
  return destroy("miopenDestroyTensorDescriptor", tensors, tensor);
}

HIPSIM_API miopenStatus_t miopenSet4dTensorDescriptor(miopenTensorDescriptor_t tensor,
                                                      miopenDataType_t type, int n, int c, int h,
                                                      int w) {
  return answer("miopenSet4dTensorDescriptor", [&] { set_tensor(tensor, type, {n, c, h, w}, {}); });
}

HIPSIM_API miopenStatus_t miopenSet4dTensorDescriptorEx(miopenTensorDescriptor_t tensor,
                                                        miopenDataType_t type, int n, int c, int h,
                                                        int w, int n_stride, int c_stride,
                                                        int h_stride, int w_stride) {
  return answer("miopenSet4dTensorDescriptorEx", [&] {
    set_tensor(tensor, type, {n, c, h, w}, {n_stride, c_stride, h_stride, w_stride});
  });
}

HIPSIM_API miopenStatus_t miopenSetTensorDescriptor(miopenTensorDescriptor_t tensor,
                                                    miopenDataType_t type, int rank,
                                                    const int* sizes, const int* strides) {
  return answer("miopenSetTensorDescriptor", [&] {
    set_tensor(tensor, type, list(sizes, rank), strides ? list(strides, rank) : Sizes{});
  });
}

HIPSIM_API miopenStatus_t miopenGetTensorNumBytes(miopenTensorDescriptor_t tensor,
                                                  std::size_t* bytes) {
  return answer("miopenGetTensorNumBytes", [&] {
    require(bytes, "the size's place is null");
    const auto& of = hipsim::tensor("tensorDesc", tensor);
    std::int64_t last = 0;
    for (std::size_t i = 0; i < of.sizes.size(); ++i) last += (of.sizes[i] - 1) * of.strides[i];
    *bytes = static_cast<std::size_t>(last + 1) * bytes_of(of.type);
  });
}

HIPSIM_API miopenStatus_t
miopenCreateConvolutionDescriptor(miopenConvolutionDescriptor_t* convolution) {
  return create("miopenCreateConvolutionDescriptor", convolutions, convolution);
}

HIPSIM_API miopenStatus_t
miopenDestroyConvolutionDescriptor(miopenConvolutionDescriptor_t convolution) {
  return destroy("miopenDestroyConvolutionDescriptor", convolutions, convolution);
}

HIPSIM_API miopenStatus_t miopenInitConvolutionDescriptor(miopenConvolutionDescriptor_t convolution,
                                                          miopenConvolutionMode_t mode, int pad_h,
                                                          int pad_w, int stride_h, int stride_w,
                                                          int dilation_h, int dilation_w) {
  return answer("miopenInitConvolutionDescriptor", [&] {
    set_convolution(convolution, mode, {pad_h, pad_w}, {stride_h, stride_w},
                    {dilation_h, dilation_w});
  });
}

HIPSIM_API miopenStatus_t miopenInitConvolutionNdDescriptor(
    miopenConvolutionDescriptor_t convolution, int spatial, const int* pads, const int* strides,
    const int* dilations, miopenConvolutionMode_t mode) {
  return answer("miopenInitConvolutionNdDescriptor", [&] {
    set_convolution(convolution, mode, list(pads, spatial), list(strides, spatial),
                    list(dilations, spatial));
  });
}

HIPSIM_API miopenStatus_t
miopenSetConvolutionGroupCount(miopenConvolutionDescriptor_t convolution, int groups) {
  return answer("miopenSetConvolutionGroupCount", [&] {
    require(groups >= 1, "there is at least 1 group");
    hipsim::convolution(convolution).groups = groups;
  });
}

HIPSIM_API miopenStatus_t miopenSetTransposeConvOutputPadding(
    miopenConvolutionDescriptor_t convolution, int padding_h, int padding_w) {
  return answer("miopenSetTransposeConvOutputPadding",
                [&] { set_extra(convolution, {padding_h, padding_w}); });
}

HIPSIM_API miopenStatus_t miopenSetTransposeConvNdOutputPadding(
    miopenConvolutionDescriptor_t convolution, int spatial, const int* paddings) {
  return answer("miopenSetTransposeConvNdOutputPadding",
                [&] { set_extra(convolution, list(paddings, spatial)); });
}

// None of them changes what is computed here.
HIPSIM_API miopenStatus_t
miopenSetConvolutionAttribute(miopenConvolutionDescriptor_t convolution,
                              const miopenConvolutionAttrib_t attribute, int value) {
  return answer("miopenSetConvolutionAttribute", [&] {
    hipsim::convolution(convolution);
    const int newest = minor_version() >= 5 ? MIOPEN_CONVOLUTION_ATTRIB_MATH_TYPE
                                            : MIOPEN_CONVOLUTION_ATTRIB_FP8_ROUNDING_MODE;
    require(attribute >= 0 && attribute <= newest, "no such attribute");
    const int least = attribute == MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL ? -1 : 0;
    require(value >= least && value <= 1, "the attribute has no such value");
  });
}

HIPSIM_API miopenStatus_t miopenSetConvolutionFindMode(miopenConvolutionDescriptor_t convolution,
                                                       miopenConvolutionFindMode_t mode) {
  return answer("miopenSetConvolutionFindMode", [&] {
    const int newest = minor_version() >= 5 ? miopenConvolutionFindModeTrustVerifyFull
                                            : miopenConvolutionFindModeDynamicHybrid;
    require(mode >= miopenConvolutionFindModeNormal && mode != 4 && mode <= newest, "no such mode");
    hipsim::convolution(convolution).find_mode = mode;
  });
}

HIPSIM_API miopenStatus_t miopenCreatePoolingDescriptor(miopenPoolingDescriptor_t* pooling) {
  return create("miopenCreatePoolingDescriptor", poolings, pooling);
}

HIPSIM_API miopenStatus_t miopenDestroyPoolingDescriptor(miopenPoolingDescriptor_t pooling) {
  return destroy("miopenDestroyPoolingDescriptor", poolings, pooling);
}

HIPSIM_API miopenStatus_t miopenSet2dPoolingDescriptor(miopenPoolingDescriptor_t pooling,
                                                       miopenPoolingMode_t mode, int window_h,
                                                       int window_w, int pad_h, int pad_w,
                                                       int stride_h, int stride_w) {
  return answer("miopenSet2dPoolingDescriptor", [&] {
    set_pooling(pooling, mode, {window_h, window_w}, {pad_h, pad_w}, {stride_h, stride_w});
  });
}

HIPSIM_API miopenStatus_t miopenSetNdPoolingDescriptor(miopenPoolingDescriptor_t pooling,
                                                       const miopenPoolingMode_t mode, int spatial,
                                                       const int* windows, const int* pads,
                                                       const int* strides) {
  return answer("miopenSetNdPoolingDescriptor", [&] {
    set_pooling(pooling, mode, list(windows, spatial), list(pads, spatial), list(strides, spatial));
  });
}

HIPSIM_API miopenStatus_t miopenSetPoolingIndexType(miopenPoolingDescriptor_t pooling,
                                                    miopenIndexType_t type) {
  return answer("miopenSetPoolingIndexType", [&] {
    require(type >= miopenIndexUint8 && type <= miopenIndexUint64, "no such index type");
    hipsim::pooling(pooling).index = type;
  });
}
