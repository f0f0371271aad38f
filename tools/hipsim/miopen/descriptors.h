// MIOpen's descriptors, and what they say together: the problems that kernels solve.
#pragma once
#include <string>
#include <vector>

#include "handle.h"
#include "problem.h"

namespace hipsim {
// Of three axes in space, the last two where it is a plane's.
struct Axes {
  int count = 0;  // 0 until it is set
  std::int64_t size[3] = {1, 1, 1}, pad[3] = {}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1};
};
}  // namespace hipsim

struct miopenTensorDescriptor {
  miopenDataType_t type = miopenFloat;
  std::vector<std::int64_t> sizes, strides;  // empty until it is set
};

struct miopenConvolutionDescriptor {
  hipsim::Axes axes;
  miopenConvolutionMode_t mode = miopenConvolution;
  std::int64_t groups = 1;
  std::int64_t extra[3] = {};  // output padding
  int find_mode = 0;           // 0: as the environment says
};

struct miopenPoolingDescriptor {
  hipsim::Axes axes;
  miopenPoolingMode_t mode = miopenPoolingMax;
  miopenIndexType_t index = miopenIndexUint8;
};

namespace hipsim {

using Sizes = std::vector<std::int64_t>;
std::string text_of(const Sizes& sizes);
// With the channels first or last; an axis of one element may have any stride.
bool is_packed(const miopenTensorDescriptor& tensor, bool channels_last);

struct Problem {
  miopenDataType_t type;
  Convolution convolution;
  std::string key;  // says all of it
};

// Each throws a Refusal where a descriptor is none, was destroyed or says nothing yet, or where
// they disagree.
const miopenTensorDescriptor& tensor(const char* name, miopenTensorDescriptor_t descriptor);
miopenConvolutionDescriptor& convolution(miopenConvolutionDescriptor_t descriptor);
miopenPoolingDescriptor& pooling(miopenPoolingDescriptor_t descriptor);
Problem problem_of(miopenTensorDescriptor_t x, miopenTensorDescriptor_t w,
                   miopenConvolutionDescriptor_t convolution, miopenTensorDescriptor_t y);
Pooling pooling_of(miopenPoolingDescriptor_t pooling, miopenTensorDescriptor_t x,
                   miopenTensorDescriptor_t y);
Bias bias_of(const miopenTensorDescriptor& y);

// "f16", "f32", "bf16" or "f64", as kernels are named; throws for other types.
std::string suffix_of(miopenDataType_t type);
std::size_t bytes_of(miopenDataType_t type);
std::int64_t elements_of(const miopenTensorDescriptor& tensor);

// Throws unless alpha is 1 and beta is 0: doubles for double, else floats.
void require_plain(const void* alpha, const void* beta, miopenDataType_t type,
                   miopenStatus_t otherwise);

}  // namespace hipsim
