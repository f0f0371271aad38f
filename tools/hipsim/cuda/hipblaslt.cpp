// libhipblaslt over cuBLASLt: the same functions, at the speed of the card.  Its descriptors are passed
// on; of algorithms, which are larger than hipBLASLt's structure, that one has the number.
#include "../hipblaslt/hipblaslt_api.h"

#include <cublasLt.h>

#include <cstring>
#include <deque>
#include <mutex>

namespace {
hipblasStatus_t status_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return HIPBLAS_STATUS_SUCCESS;
    case CUBLAS_STATUS_NOT_INITIALIZED: return HIPBLAS_STATUS_NOT_INITIALIZED;
    case CUBLAS_STATUS_ALLOC_FAILED: return HIPBLAS_STATUS_ALLOC_FAILED;
    case CUBLAS_STATUS_INVALID_VALUE: return HIPBLAS_STATUS_INVALID_VALUE;
    case CUBLAS_STATUS_ARCH_MISMATCH: return HIPBLAS_STATUS_ARCH_MISMATCH;
    case CUBLAS_STATUS_EXECUTION_FAILED: return HIPBLAS_STATUS_EXECUTION_FAILED;
    case CUBLAS_STATUS_NOT_SUPPORTED: return HIPBLAS_STATUS_NOT_SUPPORTED;
    default: return HIPBLAS_STATUS_INTERNAL_ERROR;
  }
}

bool type_of(hipDataType type, cudaDataType_t* found) {
  switch (type) {
    case HIP_R_32F: *found = CUDA_R_32F; return true;
    case HIP_R_64F: *found = CUDA_R_64F; return true;
    case HIP_R_16F: *found = CUDA_R_16F; return true;
    case HIP_R_16BF: *found = CUDA_R_16BF; return true;
  }
  return false;
}

template <class To, class From>
To as(From given) {
  return reinterpret_cast<To>(given);
}

// An algorithm for these operands wherever they lie: others want multiples of 16 bytes and more, of
// which hipBLASLt asks nothing.
bool found_for_any_address(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                           cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                           cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, std::size_t workspace,
                           cublasLtMatmulAlgo_t* algo) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (cublasLtMatmulPreferenceCreate(&preference)) return false;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return !cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
  };
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const std::uint32_t least = 2;  // of f16 and bf16
  const bool found =
      set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace}) &&
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, least) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, least) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, least) &&
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, least) &&
      !cublasLtMatmulAlgoGetHeuristic(handle, description, a, b, c, d, preference, 1, &best,
                                      &count) &&
      count == 1;
  cublasLtMatmulPreferenceDestroy(preference);
  if (found) *algo = best.algo;
  return found;
}

// Those that were found, for ever: a process meets few.
class Algorithms {
 public:
  std::uint64_t keep(const cublasLtMatmulAlgo_t& found) {
    const std::lock_guard guard(lock_);
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (!std::memcmp(&all_[i], &found, sizeof found)) return i + 1;
    all_.push_back(found);
    return all_.size();
  }
  const cublasLtMatmulAlgo_t* at(std::uint64_t number) {
    const std::lock_guard guard(lock_);
    return number && number <= all_.size() ? &all_[number - 1] : nullptr;
  }

 private:
  std::mutex lock_;
  std::deque<cublasLtMatmulAlgo_t> all_;  // whose elements stay where they are
};

Algorithms& algorithms() {
  static auto* instance = new Algorithms;  // never destroyed: exit handlers may still ask
  return *instance;
}
}  // namespace

HIPSIM_API hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle) {
  return status_of(cublasLtCreate(as<cublasLtHandle_t*>(handle)));
}

HIPSIM_API hipblasStatus_t hipblasLtDestroy(hipblasLtHandle_t handle) {
  return status_of(cublasLtDestroy(as<cublasLtHandle_t>(handle)));
}

HIPSIM_API hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t, int* version) {
  if (!version) return HIPBLAS_STATUS_INVALID_VALUE;
  int hip = 0;
  hipRuntimeGetVersion(&hip);
  *version = (hip / 10'000'000 - 6) * 100'000 + hip / 100'000 % 100 * 100;
  return HIPBLAS_STATUS_SUCCESS;
}

HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* layout,
                                                       hipDataType type, std::uint64_t rows,
                                                       std::uint64_t columns,
                                                       std::int64_t leading) {
  cudaDataType_t found;
  if (!type_of(type, &found)) return HIPBLAS_STATUS_NOT_SUPPORTED;
  return status_of(
      cublasLtMatrixLayoutCreate(as<cublasLtMatrixLayout_t*>(layout), found, rows, columns, leading));
}

HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutDestroy(hipblasLtMatrixLayout_t layout) {
  return status_of(cublasLtMatrixLayoutDestroy(as<cublasLtMatrixLayout_t>(layout)));
}

HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutSetAttribute(
    hipblasLtMatrixLayout_t layout, hipblasLtMatrixLayoutAttribute_t attribute, const void* value,
    std::size_t bytes) {
  const auto meant = attribute == HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT
                         ? CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
                         : CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
  return status_of(cublasLtMatrixLayoutSetAttribute(as<cublasLtMatrixLayout_t>(layout), meant, value,
                                                    bytes));
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* description,
                                                     hipblasComputeType_t compute,
                                                     hipDataType scale) {
  cudaDataType_t found;
  if (!type_of(scale, &found)) return HIPBLAS_STATUS_NOT_SUPPORTED;
  return status_of(cublasLtMatmulDescCreate(
      as<cublasLtMatmulDesc_t*>(description),
      compute == HIPBLAS_COMPUTE_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, found));
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulDescDestroy(hipblasLtMatmulDesc_t description) {
  return status_of(cublasLtMatmulDescDestroy(as<cublasLtMatmulDesc_t>(description)));
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulDescSetAttribute(
    hipblasLtMatmulDesc_t description, hipblasLtMatmulDescAttributes_t attribute,
    const void* value, std::size_t bytes) {
  if (bytes != sizeof(std::int32_t) || !value) return HIPBLAS_STATUS_INVALID_VALUE;
  const auto meant = attribute == HIPBLASLT_MATMUL_DESC_TRANSA ? CUBLASLT_MATMUL_DESC_TRANSA
                                                               : CUBLASLT_MATMUL_DESC_TRANSB;
  std::int32_t given = 0;
  std::memcpy(&given, value, bytes);
  const std::int32_t operation = given == HIPBLAS_OP_N ? CUBLAS_OP_N : CUBLAS_OP_T;
  return status_of(cublasLtMatmulDescSetAttribute(as<cublasLtMatmulDesc_t>(description), meant,
                                                  &operation, sizeof operation));
}

HIPSIM_API hipblasStatus_t
hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* preference) {
  auto* to = as<cublasLtMatmulPreference_t*>(preference);
  if (const auto status = cublasLtMatmulPreferenceCreate(to)) return status_of(status);
  // Sums are not rounded to 16 bits on the way, as hipBLASLt's are not.
  const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  return status_of(cublasLtMatmulPreferenceSetAttribute(
      *to, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
}

HIPSIM_API hipblasStatus_t
hipblasLtMatmulPreferenceDestroy(hipblasLtMatmulPreference_t preference) {
  return status_of(cublasLtMatmulPreferenceDestroy(as<cublasLtMatmulPreference_t>(preference)));
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(
    hipblasLtMatmulPreference_t preference, hipblasLtMatmulPreferenceAttributes_t,
    const void* value, std::size_t bytes) {
  return status_of(cublasLtMatmulPreferenceSetAttribute(as<cublasLtMatmulPreference_t>(preference),
                                                        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        value, bytes));
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(
    hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description, hipblasLtMatrixLayout_t a,
    hipblasLtMatrixLayout_t b, hipblasLtMatrixLayout_t c, hipblasLtMatrixLayout_t d,
    hipblasLtMatmulPreference_t preference, int wanted, hipblasLtMatmulHeuristicResult_t* results,
    int* found) {
  if (wanted < 1 || !results || !found) return HIPBLAS_STATUS_INVALID_VALUE;
  cublasLtMatmulHeuristicResult_t best{};
  const auto status = cublasLtMatmulAlgoGetHeuristic(
      as<cublasLtHandle_t>(handle), as<cublasLtMatmulDesc_t>(description),
      as<cublasLtMatrixLayout_t>(a), as<cublasLtMatrixLayout_t>(b), as<cublasLtMatrixLayout_t>(c),
      as<cublasLtMatrixLayout_t>(d), as<cublasLtMatmulPreference_t>(preference), 1, &best, found);
  if (status || !*found) return status_of(status);
  *results = {};
  const std::uint64_t number = algorithms().keep(best.algo);
  std::memcpy(results->algo.data, &number, sizeof number);
  results->algo.max_workspace_bytes = results->workspaceSize = best.workspaceSize;
  results->state = status_of(best.state);
  results->wavesCount = best.wavesCount;
  return HIPBLAS_STATUS_SUCCESS;
}

HIPSIM_API hipblasStatus_t hipblasLtMatmul(
    hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description, const void* alpha, const void* a,
    hipblasLtMatrixLayout_t a_layout, const void* b, hipblasLtMatrixLayout_t b_layout,
    const void* beta, const void* c, hipblasLtMatrixLayout_t c_layout, void* d,
    hipblasLtMatrixLayout_t d_layout, const hipblasLtMatmulAlgo_t* algo, void* workspace,
    std::size_t workspace_bytes, hipStream_t stream) {
  if (!algo) return HIPBLAS_STATUS_NOT_SUPPORTED;
  std::uint64_t number = 0;
  std::memcpy(&number, algo->data, sizeof number);
  const auto* chosen = algorithms().at(number);
  if (!chosen) return HIPBLAS_STATUS_INVALID_VALUE;
  auto* lt = as<cublasLtHandle_t>(handle);
  auto* what = as<cublasLtMatmulDesc_t>(description);
  auto* of_a = as<cublasLtMatrixLayout_t>(a_layout);
  auto* of_b = as<cublasLtMatrixLayout_t>(b_layout);
  auto* of_c = as<cublasLtMatrixLayout_t>(c_layout);
  auto* of_d = as<cublasLtMatrixLayout_t>(d_layout);
  const auto multiply = [&](const cublasLtMatmulAlgo_t* by) {
    return cublasLtMatmul(lt, what, alpha, a, of_a, b, of_b, beta, c ? c : d, of_c, d, of_d, by,
                          workspace, workspace_bytes, as<cudaStream_t>(stream));
  };
  cublasStatus_t status = multiply(chosen);
  cublasLtMatmulAlgo_t other;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED &&
      found_for_any_address(lt, what, of_a, of_b, of_c, of_d, workspace_bytes, &other))
    status = multiply(&other);
  return status_of(status);
}
