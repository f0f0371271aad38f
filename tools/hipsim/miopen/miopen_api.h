// The part of MIOpen's C ABI that the simulator exports, written down from its documented facts:
// names, parameter types, enum values and struct layouts. tests/hipsim compares the signatures with
// those of MIOpen's own headers, in letters.
#pragma once
#include "../common/hip_calls.h"

using miopenHandle_t = struct miopenHandle*;
using miopenTensorDescriptor_t = struct miopenTensorDescriptor*;
using miopenConvolutionDescriptor_t = struct miopenConvolutionDescriptor*;
using miopenPoolingDescriptor_t = struct miopenPoolingDescriptor*;

enum miopenStatus_t : int {
  miopenStatusSuccess = 0,
  miopenStatusNotInitialized = 1,
  miopenStatusInvalidValue = 2,
  miopenStatusBadParm = 3,
  miopenStatusAllocFailed = 4,
  miopenStatusInternalError = 5,
  miopenStatusNotImplemented = 6,
  miopenStatusUnknownError = 7,
  miopenStatusUnsupportedOp = 8,
  miopenStatusGpuOperationsSkipped = 9,
  miopenStatusVersionMismatch = 10,
};

enum miopenDataType_t : int {
  miopenHalf = 0,
  miopenFloat = 1,
  miopenInt32 = 2,
  miopenInt8 = 3,
  miopenBFloat16 = 5,
  miopenDouble = 6,
  miopenInt64 = 9,
};

enum miopenConvolutionMode_t : int { miopenConvolution = 0, miopenTranspose = 1 };

enum miopenConvolutionFindMode_t : int {
  miopenConvolutionFindModeNormal = 1,
  miopenConvolutionFindModeFast = 2,
  miopenConvolutionFindModeHybrid = 3,
  miopenConvolutionFindModeDynamicHybrid = 5,
  miopenConvolutionFindModeTrustVerify = 6,  // since 3.5
  miopenConvolutionFindModeTrustVerifyFull = 7,
};

enum miopenConvolutionAttrib_t : int {
  MIOPEN_CONVOLUTION_ATTRIB_FP16_ALT_IMPL = 0,
  MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC = 1,
  MIOPEN_CONVOLUTION_ATTRIB_FP8_ROUNDING_MODE = 2,
  MIOPEN_CONVOLUTION_ATTRIB_MATH_TYPE = 3,  // since 3.5
};

enum miopenConvFwdAlgorithm_t : int {
  miopenConvolutionFwdAlgoGEMM = 0,
  miopenConvolutionFwdAlgoDirect = 1,
  miopenConvolutionFwdAlgoFFT = 2,
  miopenConvolutionFwdAlgoWinograd = 3,
  miopenConvolutionFwdAlgoImplicitGEMM = 5,
};

enum miopenConvAlgorithm_t : int {
  miopenConvolutionAlgoGEMM = 0,
  miopenConvolutionAlgoDirect = 1,
  miopenConvolutionAlgoWinograd = 3,
  miopenConvolutionAlgoImplicitGEMM = 5,
};

enum miopenPoolingMode_t : int {
  miopenPoolingMax = 0,
  miopenPoolingAverage = 1,
  miopenPoolingAverageInclusive = 2,
};

enum miopenIndexType_t : int {
  miopenIndexUint8 = 0,
  miopenIndexUint16 = 1,
  miopenIndexUint32 = 2,
  miopenIndexUint64 = 3,
};

struct miopenConvAlgoPerf_t {
  miopenConvFwdAlgorithm_t fwd_algo;
  float time;
  std::size_t memory;
};
static_assert(sizeof(miopenConvAlgoPerf_t) == 16);

struct miopenConvSolution_t {
  float time;
  std::size_t workspace_size;
  std::uint64_t solution_id;
  miopenConvAlgorithm_t algorithm;
};
static_assert(sizeof(miopenConvSolution_t) == 32);

HIPSIM_API miopenStatus_t miopenCreate(miopenHandle_t* handle);
HIPSIM_API miopenStatus_t miopenCreateWithStream(miopenHandle_t* handle, hipStream_t stream);
HIPSIM_API miopenStatus_t miopenSetStream(miopenHandle_t handle, hipStream_t stream);
HIPSIM_API miopenStatus_t miopenGetStream(miopenHandle_t handle, hipStream_t* stream);
HIPSIM_API miopenStatus_t miopenDestroy(miopenHandle_t handle);
HIPSIM_API miopenStatus_t miopenGetVersion(std::size_t* major, std::size_t* minor,
                                           std::size_t* patch);
HIPSIM_API const char* miopenGetErrorString(miopenStatus_t error);

HIPSIM_API miopenStatus_t miopenCreateTensorDescriptor(miopenTensorDescriptor_t* tensor);
HIPSIM_API miopenStatus_t miopenSet4dTensorDescriptor(miopenTensorDescriptor_t tensor,
                                                      miopenDataType_t type, int n, int c, int h,
                                                      int w);
HIPSIM_API miopenStatus_t miopenSet4dTensorDescriptorEx(miopenTensorDescriptor_t tensor,
                                                        miopenDataType_t type, int n, int c, int h,
                                                        int w, int n_stride, int c_stride,
                                                        int h_stride, int w_stride);
HIPSIM_API miopenStatus_t miopenSetTensorDescriptor(miopenTensorDescriptor_t tensor,
                                                    miopenDataType_t type, int rank,
                                                    const int* sizes, const int* strides);
HIPSIM_API miopenStatus_t miopenGetTensorNumBytes(miopenTensorDescriptor_t tensor,
                                                  std::size_t* bytes);
HIPSIM_API miopenStatus_t miopenDestroyTensorDescriptor(miopenTensorDescriptor_t tensor);

HIPSIM_API miopenStatus_t
miopenCreateConvolutionDescriptor(miopenConvolutionDescriptor_t* convolution);
HIPSIM_API miopenStatus_t miopenInitConvolutionDescriptor(miopenConvolutionDescriptor_t convolution,
                                                          miopenConvolutionMode_t mode, int pad_h,
                                                          int pad_w, int stride_h, int stride_w,
                                                          int dilation_h, int dilation_w);
HIPSIM_API miopenStatus_t miopenInitConvolutionNdDescriptor(
    miopenConvolutionDescriptor_t convolution, int spatial, const int* pads, const int* strides,
    const int* dilations, miopenConvolutionMode_t mode);
HIPSIM_API miopenStatus_t
miopenSetConvolutionGroupCount(miopenConvolutionDescriptor_t convolution, int groups);
HIPSIM_API miopenStatus_t miopenSetTransposeConvOutputPadding(
    miopenConvolutionDescriptor_t convolution, int padding_h, int padding_w);
HIPSIM_API miopenStatus_t miopenSetTransposeConvNdOutputPadding(
    miopenConvolutionDescriptor_t convolution, int spatial, const int* paddings);
HIPSIM_API miopenStatus_t
miopenSetConvolutionAttribute(miopenConvolutionDescriptor_t convolution,
                              const miopenConvolutionAttrib_t attribute, int value);
HIPSIM_API miopenStatus_t miopenSetConvolutionFindMode(miopenConvolutionDescriptor_t convolution,
                                                       miopenConvolutionFindMode_t mode);
HIPSIM_API miopenStatus_t miopenGetConvolutionForwardOutputDim(
    miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t x,
    const miopenTensorDescriptor_t w, int* n, int* c, int* out_h, int* out_w);
HIPSIM_API miopenStatus_t
miopenDestroyConvolutionDescriptor(miopenConvolutionDescriptor_t convolution);

// The immediate mode has w before x.
HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolutionCount(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    std::size_t* count);
HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolution(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::size_t most, std::size_t* count, miopenConvSolution_t* solutions);
HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolutionWorkspaceSize(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::uint64_t solution, std::size_t* bytes);
HIPSIM_API miopenStatus_t miopenConvolutionForwardCompileSolution(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::uint64_t solution);
HIPSIM_API miopenStatus_t miopenConvolutionForwardImmediate(
    miopenHandle_t handle, const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenTensorDescriptor_t x_tensor, const void* x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y_tensor,
    void* y, void* workspace, std::size_t workspace_bytes, const std::uint64_t solution);

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetWorkSpaceSize(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    std::size_t* bytes);
HIPSIM_API miopenStatus_t miopenFindConvolutionForwardAlgorithm(
    miopenHandle_t handle, const miopenTensorDescriptor_t x_tensor, const void* x,
    const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y_tensor,
    void* y, const int most, int* count, miopenConvAlgoPerf_t* found, void* workspace,
    std::size_t workspace_bytes, bool exhaustive);
HIPSIM_API miopenStatus_t miopenConvolutionForward(
    miopenHandle_t handle, const void* alpha, const miopenTensorDescriptor_t x_tensor,
    const void* x, const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenConvolutionDescriptor_t convolution, miopenConvFwdAlgorithm_t algorithm,
    const void* beta, const miopenTensorDescriptor_t y_tensor, void* y, void* workspace,
    std::size_t workspace_bytes);
HIPSIM_API miopenStatus_t miopenConvolutionForwardBias(
    miopenHandle_t handle, const void* alpha, const miopenTensorDescriptor_t b_tensor,
    const void* b, const void* beta, const miopenTensorDescriptor_t y_tensor, void* y);

HIPSIM_API miopenStatus_t miopenCreatePoolingDescriptor(miopenPoolingDescriptor_t* pooling);
HIPSIM_API miopenStatus_t miopenSet2dPoolingDescriptor(miopenPoolingDescriptor_t pooling,
                                                       miopenPoolingMode_t mode, int window_h,
                                                       int window_w, int pad_h, int pad_w,
                                                       int stride_h, int stride_w);
HIPSIM_API miopenStatus_t miopenSetNdPoolingDescriptor(miopenPoolingDescriptor_t pooling,
                                                       const miopenPoolingMode_t mode, int spatial,
                                                       const int* windows, const int* pads,
                                                       const int* strides);
HIPSIM_API miopenStatus_t miopenSetPoolingIndexType(miopenPoolingDescriptor_t pooling,
                                                    miopenIndexType_t type);
HIPSIM_API miopenStatus_t miopenGetPoolingForwardOutputDim(const miopenPoolingDescriptor_t pooling,
                                                           const miopenTensorDescriptor_t tensor,
                                                           int* n, int* c, int* h, int* w);
HIPSIM_API miopenStatus_t miopenPoolingGetWorkSpaceSizeV2(const miopenPoolingDescriptor_t pooling,
                                                          const miopenTensorDescriptor_t y,
                                                          std::size_t* bytes);
HIPSIM_API miopenStatus_t miopenPoolingForward(miopenHandle_t handle,
                                               const miopenPoolingDescriptor_t pooling,
                                               const void* alpha,
                                               const miopenTensorDescriptor_t x_tensor,
                                               const void* x, const void* beta,
                                               const miopenTensorDescriptor_t y_tensor, void* y,
                                               bool do_backward, void* workspace,
                                               std::size_t workspace_bytes);
HIPSIM_API miopenStatus_t miopenDestroyPoolingDescriptor(miopenPoolingDescriptor_t pooling);

// For tests; no part of MIOpen's interface.
HIPSIM_API int hipsim_miopen_inject(const char* what, const char* when);
HIPSIM_API long long hipsim_miopen_count(const char* what);
