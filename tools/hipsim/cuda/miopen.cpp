// The convolutions of libMIOpen over cuDNN: the same functions and numbers, at the speed of the card.
//
// cuDNN's algorithms stand for MIOpen's solutions: number 200 and on, so that none is MIOpen's naive
// one. Transposed convolutions are cuDNN's gradient of the input. Pointwise ones can be a product by
// cuBLAS, as MIOpen's can be one by rocBLAS.
#include "../miopen/miopen_api.h"

#include <cublas_v2.h>
#include <cudnn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// libamdhip64.so has them.
HIPSIM_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags);
HIPSIM_API hipError_t hipEventDestroy(hipEvent_t event);
HIPSIM_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
HIPSIM_API hipError_t hipEventSynchronize(hipEvent_t event);
HIPSIM_API hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop);

namespace {
constexpr std::uint64_t kForward = 200, kTransposed = 220;
constexpr std::uint64_t kGemm = 91;
constexpr int kMost = 8;

miopenStatus_t status_of(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return miopenStatusSuccess;
  if (status == CUDNN_STATUS_ALLOC_FAILED) return miopenStatusAllocFailed;
  if (status == CUDNN_STATUS_NOT_SUPPORTED) return miopenStatusUnsupportedOp;
  if (status == CUDNN_STATUS_BAD_PARAM) return miopenStatusBadParm;
  return miopenStatusInternalError;
}

bool type_of(miopenDataType_t type, cudnnDataType_t* found) {
  switch (type) {
    case miopenHalf: *found = CUDNN_DATA_HALF; return true;
    case miopenFloat: *found = CUDNN_DATA_FLOAT; return true;
    case miopenBFloat16: *found = CUDNN_DATA_BFLOAT16; return true;
    default: return false;
  }
}

miopenConvAlgorithm_t kind_of(std::uint64_t solution) {
  if (solution == kGemm) return miopenConvolutionAlgoGEMM;
  if (solution >= kTransposed) {
    switch (solution - kTransposed) {
      case CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT:
      case CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING:
        return static_cast<miopenConvAlgorithm_t>(miopenConvolutionFwdAlgoFFT);
      case CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD:
      case CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED:
        return miopenConvolutionAlgoWinograd;
      default: return miopenConvolutionAlgoImplicitGEMM;
    }
  }
  switch (solution - kForward) {
    case CUDNN_CONVOLUTION_FWD_ALGO_FFT:
    case CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING:
      return static_cast<miopenConvAlgorithm_t>(miopenConvolutionFwdAlgoFFT);
    case CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD:
    case CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED:
      return miopenConvolutionAlgoWinograd;
    case CUDNN_CONVOLUTION_FWD_ALGO_DIRECT: return miopenConvolutionAlgoDirect;
    default: return miopenConvolutionAlgoImplicitGEMM;
  }
}
}  // namespace

struct miopenHandle {
  cudnnHandle_t handle = nullptr;
  cublasHandle_t blas = nullptr;
  hipStream_t stream = nullptr;
  std::mutex mutex;
  std::map<std::vector<int>, std::vector<miopenConvSolution_t>> measured;
};

struct miopenTensorDescriptor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int> sizes, strides;
};

namespace {
class Problem;
}

struct miopenConvolutionDescriptor {
  std::vector<int> pads, strides, dilations;
  int groups = 1;
  bool transposed = false, deterministic = false;
  // What it was used for last: its caller keeps one for each shape.
  std::shared_ptr<Problem> known;
  const void* known_for[3] = {};
};

namespace {
// cuDNN's descriptions of one convolution. Of a transposed one, x is what cuDNN calls dy.
class Problem {
 public:
  Problem(const miopenTensorDescriptor& x, const miopenTensorDescriptor& w,
          const miopenTensorDescriptor& y, const miopenConvolutionDescriptor& conv)
      : transposed(conv.transposed), deterministic(conv.deterministic) {
    cudnnCreateTensorDescriptor(&this->x);
    cudnnCreateTensorDescriptor(&this->y);
    cudnnCreateFilterDescriptor(&this->w);
    cudnnCreateConvolutionDescriptor(&this->conv);
    const auto rank = static_cast<int>(x.sizes.size());
    keep(cudnnSetTensorNdDescriptor(this->x, x.type, rank, x.sizes.data(), x.strides.data()));
    keep(cudnnSetTensorNdDescriptor(this->y, y.type, rank, y.sizes.data(), y.strides.data()));
    keep(cudnnSetFilterNdDescriptor(this->w, w.type, CUDNN_TENSOR_NCHW, rank, w.sizes.data()));
    keep(cudnnSetConvolutionNdDescriptor(this->conv, rank - 2, conv.pads.data(),
                                         conv.strides.data(), conv.dilations.data(),
                                         CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    keep(cudnnSetConvolutionGroupCount(this->conv, conv.groups));
    // f32 is f32: no TF32, which MIOpen has not.
    keep(cudnnSetConvolutionMathType(
        this->conv, x.type == CUDNN_DATA_FLOAT ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
  }
  Problem(const Problem&) = delete;
  ~Problem() {
    cudnnDestroyTensorDescriptor(x);
    cudnnDestroyTensorDescriptor(y);
    cudnnDestroyFilterDescriptor(w);
    cudnnDestroyConvolutionDescriptor(conv);
  }

  std::size_t workspace(cudnnHandle_t handle, std::uint64_t solution) {
    std::size_t bytes = 0;
    keep(transposed ? cudnnGetConvolutionBackwardDataWorkspaceSize(handle, w, x, conv, y,
                                                                   backward(solution), &bytes)
                    : cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, conv, y,
                                                              forward(solution), &bytes));
    return bytes;
  }

  std::vector<miopenConvSolution_t> expected(cudnnHandle_t handle) {
    int count = 0;
    if (transposed) {
      cudnnConvolutionBwdDataAlgoPerf_t rows[kMost];
      keep(cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w, x, conv, y, kMost, &count, rows));
      return listed(rows, count, kTransposed);
    }
    cudnnConvolutionFwdAlgoPerf_t rows[kMost];
    keep(cudnnGetConvolutionForwardAlgorithm_v7(handle, x, w, conv, y, kMost, &count, rows));
    return listed(rows, count, kForward);
  }

  // The least of several searches: one measures each algorithm once, and now and then a slow one
  // comes first.
  std::vector<miopenConvSolution_t> measured(cudnnHandle_t handle, const void* x_at,
                                             const void* w_at, void* y_at, void* workspace,
                                             std::size_t bytes) {
    constexpr int kSearches = 4;
    std::vector<miopenConvSolution_t> least;
    for (int i = 0; i < kSearches; ++i) {
      for (const auto& row : searched(handle, x_at, w_at, y_at, workspace, bytes)) {
        const auto known = std::find_if(least.begin(), least.end(), [&](const auto& other) {
          return other.solution_id == row.solution_id;
        });
        if (known == least.end())
          least.push_back(row);
        else
          known->time = std::min(known->time, row.time);
      }
    }
    std::stable_sort(least.begin(), least.end(),
                     [](const auto& a, const auto& b) { return a.time < b.time; });
    return least;
  }

  cudnnStatus_t run(cudnnHandle_t handle, const void* x_at, const void* w_at, void* y_at,
                    void* workspace, std::size_t bytes, std::uint64_t solution) const {
    const float one = 1, zero = 0;
    if (transposed)
      return cudnnConvolutionBackwardData(handle, &one, w, w_at, x, x_at, conv, backward(solution),
                                          workspace, bytes, &zero, y, y_at);
    return cudnnConvolutionForward(handle, &one, x, x_at, w, w_at, conv, forward(solution),
                                   workspace, bytes, &zero, y, y_at);
  }

  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;  // the first that was none

 private:
  std::vector<miopenConvSolution_t> searched(cudnnHandle_t handle, const void* x_at,
                                             const void* w_at, void* y_at, void* workspace,
                                             std::size_t bytes) {
    int count = 0;
    if (transposed) {
      cudnnConvolutionBwdDataAlgoPerf_t rows[kMost];
      keep(cudnnFindConvolutionBackwardDataAlgorithmEx(handle, w, w_at, x, x_at, conv, y, y_at,
                                                       kMost, &count, rows, workspace, bytes));
      return listed(rows, count, kTransposed);
    }
    cudnnConvolutionFwdAlgoPerf_t rows[kMost];
    keep(cudnnFindConvolutionForwardAlgorithmEx(handle, x, x_at, w, w_at, conv, y, y_at, kMost,
                                                &count, rows, workspace, bytes));
    return listed(rows, count, kForward);
  }

  void keep(cudnnStatus_t found) {
    if (status == CUDNN_STATUS_SUCCESS) status = found;
  }
  static cudnnConvolutionFwdAlgo_t forward(std::uint64_t solution) {
    return static_cast<cudnnConvolutionFwdAlgo_t>(solution - kForward);
  }
  static cudnnConvolutionBwdDataAlgo_t backward(std::uint64_t solution) {
    return static_cast<cudnnConvolutionBwdDataAlgo_t>(solution - kTransposed);
  }

  template <class Row>
  std::vector<miopenConvSolution_t> listed(const Row* rows, int count, std::uint64_t first) const {
    std::vector<miopenConvSolution_t> found;
    if (status != CUDNN_STATUS_SUCCESS) return found;
    for (const Row* row = rows; row < rows + count; ++row) {
      if (row->status != CUDNN_STATUS_SUCCESS) continue;
      if (deterministic && row->determinism != CUDNN_DETERMINISTIC) continue;
      const std::uint64_t solution = first + static_cast<std::uint64_t>(row->algo);
      const auto same = [&](const auto& known) { return known.solution_id == solution; };
      if (std::any_of(found.begin(), found.end(), same)) continue;
      found.push_back({row->time, row->memory, solution, kind_of(solution)});
    }
    return found;
  }

  bool transposed, deterministic;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;
};

bool is_pointwise(const miopenTensorDescriptor& w, const miopenConvolutionDescriptor& conv) {
  bool plain = w.sizes.size() == 4 && !conv.transposed && conv.groups == 1;
  for (std::size_t i = 0; plain && i < 2; ++i)
    plain = w.sizes[i + 2] == 1 && conv.pads[i] == 0 && conv.strides[i] == 1;
  return plain;
}

// y = w x of each image; images and weights lie by rows, which are cuBLAS's columns.
cublasStatus_t multiply(const miopenHandle& handle, const miopenTensorDescriptor& x,
                        const miopenTensorDescriptor& w, const void* x_at, const void* w_at,
                        void* y_at) {
  const cudaDataType_t type = x.type == CUDNN_DATA_HALF       ? CUDA_R_16F
                              : x.type == CUDNN_DATA_BFLOAT16 ? CUDA_R_16BF
                                                              : CUDA_R_32F;
  const int places = x.sizes[2] * x.sizes[3], inputs = x.sizes[1], outputs = w.sizes[0];
  const float one = 1, zero = 0;
  return cublasGemmStridedBatchedEx(
      handle.blas, CUBLAS_OP_N, CUBLAS_OP_N, places, outputs, inputs, &one, x_at, type, places,
      std::int64_t{places} * inputs, w_at, type, inputs, 0, &zero, y_at, type, places,
      std::int64_t{places} * outputs, x.sizes[0], CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

// Milliseconds that one takes.
float time_of_multiply(const miopenHandle& handle, const miopenTensorDescriptor& x,
                       const miopenTensorDescriptor& w, const void* x_at, const void* w_at,
                       void* y_at) {
  constexpr int kTimes = 10;
  hipEvent_t begun, ended;
  hipEventCreateWithFlags(&begun, 0);
  hipEventCreateWithFlags(&ended, 0);
  multiply(handle, x, w, x_at, w_at, y_at);
  hipEventRecord(begun, handle.stream);
  for (int i = 0; i < kTimes; ++i) multiply(handle, x, w, x_at, w_at, y_at);
  hipEventRecord(ended, handle.stream);
  hipEventSynchronize(ended);
  float took = 0;
  hipEventElapsedTime(&took, begun, ended);
  hipEventDestroy(begun);
  hipEventDestroy(ended);
  return took / kTimes;
}

Problem& problem_of(miopenConvolutionDescriptor& conv, const miopenTensorDescriptor_t x,
                    const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t y) {
  if (!conv.known || conv.known_for[0] != x || conv.known_for[1] != w || conv.known_for[2] != y) {
    conv.known = std::make_shared<Problem>(*x, *w, *y, conv);
    conv.known_for[0] = x, conv.known_for[1] = w, conv.known_for[2] = y;
  }
  return *conv.known;
}

std::vector<int> key_of(const miopenTensorDescriptor& x, const miopenTensorDescriptor& w,
                        const miopenTensorDescriptor& y, const miopenConvolutionDescriptor& conv) {
  std::vector<int> key{static_cast<int>(x.type), conv.groups, conv.transposed, conv.deterministic};
  for (const auto* part :
       {&x.sizes, &w.sizes, &y.sizes, &conv.pads, &conv.strides, &conv.dilations})
    key.insert(key.end(), part->begin(), part->end());
  return key;
}
}  // namespace

HIPSIM_API miopenStatus_t miopenCreateWithStream(miopenHandle_t* handle, hipStream_t stream) {
  if (!handle) return miopenStatusBadParm;
  auto* made = new miopenHandle;
  made->stream = stream;
  cudnnStatus_t status = cudnnCreate(&made->handle);
  if (status == CUDNN_STATUS_SUCCESS)
    status = cudnnSetStream(made->handle, reinterpret_cast<cudaStream_t>(stream));
  if (status == CUDNN_STATUS_SUCCESS &&
      (cublasCreate(&made->blas) != CUBLAS_STATUS_SUCCESS ||
       cublasSetStream(made->blas, reinterpret_cast<cudaStream_t>(stream)) !=
           CUBLAS_STATUS_SUCCESS))
    status = CUDNN_STATUS_INTERNAL_ERROR;
  if (status != CUDNN_STATUS_SUCCESS) {
    delete made;
    return status_of(status);
  }
  *handle = made;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenDestroy(miopenHandle_t handle) {
  if (!handle) return miopenStatusBadParm;
  cublasDestroy(handle->blas);
  const miopenStatus_t status = status_of(cudnnDestroy(handle->handle));
  delete handle;
  return status;
}

HIPSIM_API miopenStatus_t miopenGetVersion(std::size_t* major, std::size_t* minor,
                                           std::size_t* patch) {
  *major = 3, *minor = 5, *patch = 0;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenCreateTensorDescriptor(miopenTensorDescriptor_t* tensor) {
  *tensor = new miopenTensorDescriptor;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenSetTensorDescriptor(miopenTensorDescriptor_t tensor,
                                                    miopenDataType_t type, int rank,
                                                    const int* sizes, const int* strides) {
  if (!tensor || rank < 4 || !sizes || !strides) return miopenStatusBadParm;
  if (!type_of(type, &tensor->type)) return miopenStatusNotImplemented;
  tensor->sizes.assign(sizes, sizes + rank);
  tensor->strides.assign(strides, strides + rank);
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenDestroyTensorDescriptor(miopenTensorDescriptor_t tensor) {
  delete tensor;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t
miopenCreateConvolutionDescriptor(miopenConvolutionDescriptor_t* convolution) {
  *convolution = new miopenConvolutionDescriptor;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenInitConvolutionNdDescriptor(
    miopenConvolutionDescriptor_t convolution, int spatial, const int* pads, const int* strides,
    const int* dilations, miopenConvolutionMode_t mode) {
  if (!convolution || spatial < 2 || !pads || !strides || !dilations) return miopenStatusBadParm;
  convolution->pads.assign(pads, pads + spatial);
  convolution->strides.assign(strides, strides + spatial);
  convolution->dilations.assign(dilations, dilations + spatial);
  convolution->transposed = mode == miopenTranspose;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t
miopenSetConvolutionGroupCount(miopenConvolutionDescriptor_t convolution, int groups) {
  convolution->groups = groups;
  return miopenStatusSuccess;
}

// The output's size says it all to cuDNN.
HIPSIM_API miopenStatus_t miopenSetTransposeConvOutputPadding(miopenConvolutionDescriptor_t, int,
                                                              int) {
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t
miopenSetConvolutionAttribute(miopenConvolutionDescriptor_t convolution,
                              const miopenConvolutionAttrib_t attribute, int value) {
  if (attribute == MIOPEN_CONVOLUTION_ATTRIB_DETERMINISTIC) convolution->deterministic = value != 0;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenSetConvolutionFindMode(miopenConvolutionDescriptor_t,
                                                       miopenConvolutionFindMode_t) {
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t
miopenDestroyConvolutionDescriptor(miopenConvolutionDescriptor_t convolution) {
  delete convolution;
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolution(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::size_t most, std::size_t* count, miopenConvSolution_t* solutions) {
  const std::lock_guard lock(handle->mutex);
  const auto known = handle->measured.find(key_of(*x, *w, *y, *convolution));
  std::vector<miopenConvSolution_t> found;
  if (known != handle->measured.end()) {
    found = known->second;
  } else {
    Problem problem(*x, *w, *y, *convolution);
    found = problem.expected(handle->handle);
    if (problem.status != CUDNN_STATUS_SUCCESS) return status_of(problem.status);
    if (is_pointwise(*w, *convolution))
      found.insert(found.begin(), {-1, 0, kGemm, miopenConvolutionAlgoGEMM});
  }
  *count = std::min(most, found.size());
  std::copy_n(found.begin(), *count, solutions);
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolutionCount(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    std::size_t* count) {
  miopenConvSolution_t rows[2 * kMost];
  return miopenConvolutionForwardGetSolution(handle, w, x, convolution, y, 2 * kMost, count, rows);
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolutionWorkspaceSize(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::uint64_t solution, std::size_t* bytes) {
  *bytes = 0;
  if (solution == kGemm) return miopenStatusSuccess;
  Problem problem(*x, *w, *y, *convolution);
  *bytes = problem.workspace(handle->handle, solution);
  return status_of(problem.status);
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardCompileSolution(
    miopenHandle_t, const miopenTensorDescriptor_t, const miopenTensorDescriptor_t,
    const miopenConvolutionDescriptor_t, const miopenTensorDescriptor_t, const std::uint64_t) {
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardImmediate(
    miopenHandle_t handle, const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenTensorDescriptor_t x_tensor, const void* x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y_tensor,
    void* y, void* workspace, std::size_t bytes, const std::uint64_t solution) {
  if (solution == kGemm)
    return multiply(*handle, *x_tensor, *w_tensor, x, w, y) == CUBLAS_STATUS_SUCCESS
               ? miopenStatusSuccess
               : miopenStatusInternalError;
  const Problem& problem = problem_of(*convolution, x_tensor, w_tensor, y_tensor);
  if (problem.status != CUDNN_STATUS_SUCCESS) return status_of(problem.status);
  return status_of(problem.run(handle->handle, x, w, y, workspace, bytes, solution));
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetWorkSpaceSize(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    std::size_t* bytes) {
  Problem problem(*x, *w, *y, *convolution);
  *bytes = 0;
  for (const auto& each : problem.expected(handle->handle))
    *bytes = std::max(*bytes, each.workspace_size);
  return status_of(problem.status);
}

HIPSIM_API miopenStatus_t miopenFindConvolutionForwardAlgorithm(
    miopenHandle_t handle, const miopenTensorDescriptor_t x_tensor, const void* x,
    const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y_tensor,
    void* y, const int most, int* count, miopenConvAlgoPerf_t* found, void* workspace,
    std::size_t bytes, bool) {
  Problem problem(*x_tensor, *w_tensor, *y_tensor, *convolution);
  auto rows = problem.measured(handle->handle, x, w, y, workspace, bytes);
  if (problem.status != CUDNN_STATUS_SUCCESS) return status_of(problem.status);
  if (is_pointwise(*w_tensor, *convolution)) {
    rows.push_back({time_of_multiply(*handle, *x_tensor, *w_tensor, x, w, y), 0, kGemm,
                    miopenConvolutionAlgoGEMM});
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.time < b.time; });
  }
  const std::lock_guard lock(handle->mutex);
  handle->measured[key_of(*x_tensor, *w_tensor, *y_tensor, *convolution)] = rows;
  *count = std::min(most, static_cast<int>(rows.size()));
  for (int i = 0; i < *count; ++i)
    found[i] = {static_cast<miopenConvFwdAlgorithm_t>(rows[i].algorithm), rows[i].time,
                rows[i].workspace_size};
  return miopenStatusSuccess;
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardBias(
    miopenHandle_t handle, const void* alpha, const miopenTensorDescriptor_t b_tensor,
    const void* b, const void*, const miopenTensorDescriptor_t y_tensor, void* y) {
  cudnnTensorDescriptor_t bias, out;
  cudnnCreateTensorDescriptor(&bias);
  cudnnCreateTensorDescriptor(&out);
  const auto rank = static_cast<int>(b_tensor->sizes.size());
  cudnnSetTensorNdDescriptor(bias, b_tensor->type, rank, b_tensor->sizes.data(),
                             b_tensor->strides.data());
  cudnnSetTensorNdDescriptor(out, y_tensor->type, rank, y_tensor->sizes.data(),
                             y_tensor->strides.data());
  const float one = 1;
  const cudnnStatus_t status = cudnnAddTensor(handle->handle, alpha, bias, b, &one, out, y);
  cudnnDestroyTensorDescriptor(bias);
  cudnnDestroyTensorDescriptor(out);
  return status_of(status);
}
