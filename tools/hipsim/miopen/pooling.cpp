// Poolings, in f16 and f32 as MIOpen has them.
#include <cfloat>

#include "descriptors.h"

using namespace hipsim;

HIPSIM_API miopenStatus_t miopenPoolingGetWorkSpaceSizeV2(const miopenPoolingDescriptor_t pooling,
                                                          const miopenTensorDescriptor_t y,
                                                          std::size_t* bytes) {
  return answer("miopenPoolingGetWorkSpaceSizeV2", [&] {
    require(bytes, "the size's place is null");
    const auto& by = hipsim::pooling(pooling);
    const auto elements = static_cast<std::size_t>(elements_of(tensor("yDesc", y)));
    *bytes = by.mode == miopenPoolingMax ? elements << by.index : 0;
  });
}

HIPSIM_API miopenStatus_t miopenPoolingForward(miopenHandle_t handle,
                                               const miopenPoolingDescriptor_t pooling,
                                               const void* alpha,
                                               const miopenTensorDescriptor_t x_tensor,
                                               const void* x, const void* beta,
                                               const miopenTensorDescriptor_t y_tensor, void* y,
                                               bool do_backward, void*, std::size_t) {
  return answer("miopenPoolingForward", handle, [&] {
    occur(miopen_faults().pooling);
    const Pooling p = pooling_of(pooling, x_tensor, y_tensor);
    const miopenDataType_t type = tensor("xDesc", x_tensor).type;
    require(type == miopenHalf || type == miopenFloat, "MIOpen pools in half and float only",
            miopenStatusNotImplemented);
    require_plain(alpha, beta, type, miopenStatusUnknownError);
    require(x && y, "x or y is null");
    require(!do_backward, "the indices for a backward pass are not simulated",
            miopenStatusNotImplemented);
    const std::string kernel = "pool_" + suffix_of(type);
    const std::int64_t elements = elements_of(tensor("yDesc", y_tensor));
    const float least = type == miopenHalf ? -65504.0f : -FLT_MAX;
    require(launch(*handle, kernel.c_str(), elements, y, x, p, least));
  });
}
