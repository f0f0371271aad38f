// librocblas over cuBLAS: the same functions and numbers, at the speed of the card.
#include "../rocblas/rocblas_api.h"

#include <cublas_v2.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

struct _rocblas_handle {
  cublasHandle_t handle = nullptr;
};

namespace {
rocblas_status status_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return rocblas_status_success;
    case CUBLAS_STATUS_NOT_INITIALIZED: return rocblas_status_invalid_handle;
    case CUBLAS_STATUS_ALLOC_FAILED: return rocblas_status_memory_error;
    case CUBLAS_STATUS_INVALID_VALUE: return rocblas_status_invalid_value;
    case CUBLAS_STATUS_ARCH_MISMATCH: return rocblas_status_arch_mismatch;
    case CUBLAS_STATUS_NOT_SUPPORTED: return rocblas_status_not_implemented;
    default: return rocblas_status_internal_error;
  }
}

cublasOperation_t operation_of(rocblas_operation operation) {
  return operation == rocblas_operation_none ? CUBLAS_OP_N : CUBLAS_OP_T;
}

bool type_of(rocblas_datatype type, cudaDataType_t* found) {
  switch (type) {
    case rocblas_datatype_f16_r: *found = CUDA_R_16F; return true;
    case rocblas_datatype_bf16_r: *found = CUDA_R_16BF; return true;
    case rocblas_datatype_f32_r: *found = CUDA_R_32F; return true;
    case rocblas_datatype_f64_r: *found = CUDA_R_64F; return true;
    default: return false;
  }
}

rocblas_status multiply(rocblas_handle handle, rocblas_operation trans_a, rocblas_operation trans_b,
                        rocblas_int m, rocblas_int n, rocblas_int k, const void* alpha,
                        const void* a, rocblas_datatype a_type, rocblas_int lda,
                        rocblas_stride stride_a, const void* b, rocblas_datatype b_type,
                        rocblas_int ldb, rocblas_stride stride_b, const void* beta, const void* c,
                        void* d, rocblas_datatype d_type, rocblas_int ldd, rocblas_stride stride_d,
                        rocblas_int batches, rocblas_datatype compute) {
  if (!handle) return rocblas_status_invalid_handle;
  if (c != d) return rocblas_status_not_implemented;  // cuBLAS adds to what it writes over
  cudaDataType_t of_a, of_b, of_d;
  if (!type_of(a_type, &of_a) || !type_of(b_type, &of_b) || !type_of(d_type, &of_d))
    return rocblas_status_not_implemented;
  cublasComputeType_t sums;
  if (compute == rocblas_datatype_f32_r)
    sums = CUBLAS_COMPUTE_32F;
  else if (compute == rocblas_datatype_f64_r)
    sums = CUBLAS_COMPUTE_64F;
  else
    return rocblas_status_not_implemented;
  return status_of(cublasGemmStridedBatchedEx(
      handle->handle, operation_of(trans_a), operation_of(trans_b), m, n, k, alpha, a, of_a, lda,
      stride_a, b, of_b, ldb, stride_b, beta, d, of_d, ldd, stride_d, batches, sums,
      CUBLAS_GEMM_DEFAULT));
}

std::string version() {
  int hip = 0;
  hipRuntimeGetVersion(&hip);
  return (hip >= 70000000 ? "5.2.0" : "4.4.0") + std::string(".hipsim-cublas");
}
}  // namespace

HIPSIM_API rocblas_status rocblas_create_handle(rocblas_handle* handle) {
  if (!handle) return rocblas_status_invalid_handle;
  auto* made = new _rocblas_handle;
  const rocblas_status status = status_of(cublasCreate(&made->handle));
  if (status) {
    delete made;
    return status;
  }
  // f32 is f32, and sums of 16 bits are not rounded on the way, as rocBLAS's are not.
  cublasSetMathMode(made->handle, static_cast<cublasMath_t>(
                                      CUBLAS_DEFAULT_MATH |
                                      CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  *handle = made;
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_destroy_handle(rocblas_handle handle) {
  if (!handle) return rocblas_status_invalid_handle;
  const rocblas_status status = status_of(cublasDestroy(handle->handle));
  delete handle;
  return status;
}

HIPSIM_API rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream) {
  if (!handle) return rocblas_status_invalid_handle;
  return status_of(cublasSetStream(handle->handle, reinterpret_cast<cudaStream_t>(stream)));
}

HIPSIM_API rocblas_status rocblas_get_stream(rocblas_handle handle, hipStream_t* stream) {
  if (!handle) return rocblas_status_invalid_handle;
  if (!stream) return rocblas_status_invalid_pointer;
  return status_of(cublasGetStream(handle->handle, reinterpret_cast<cudaStream_t*>(stream)));
}

HIPSIM_API rocblas_status rocblas_set_pointer_mode(rocblas_handle handle,
                                                   rocblas_pointer_mode mode) {
  if (!handle) return rocblas_status_invalid_handle;
  return status_of(cublasSetPointerMode(handle->handle, static_cast<cublasPointerMode_t>(mode)));
}

HIPSIM_API rocblas_status rocblas_set_atomics_mode(rocblas_handle handle,
                                                   rocblas_atomics_mode mode) {
  if (!handle) return rocblas_status_invalid_handle;
  return status_of(cublasSetAtomicsMode(handle->handle, static_cast<cublasAtomicsMode_t>(mode)));
}

HIPSIM_API rocblas_status rocblas_set_math_mode(rocblas_handle handle, rocblas_math_mode mode) {
  if (!handle) return rocblas_status_invalid_handle;
  return mode == rocblas_default_math ? rocblas_status_success : rocblas_status_not_implemented;
}

HIPSIM_API rocblas_status rocblas_set_workspace(rocblas_handle handle, void* memory,
                                                std::size_t bytes) {
  if (!handle) return rocblas_status_invalid_handle;
  return status_of(cublasSetWorkspace(handle->handle, memory, bytes));
}

HIPSIM_API void rocblas_initialize() {}

HIPSIM_API const char* rocblas_status_to_string(rocblas_status status) {
  static const char* const names[] = {
      "success",           "invalid_handle", "not_implemented", "invalid_pointer",
      "invalid_size",      "memory_error",   "internal_error",  "perf_degraded",
      "size_query_mismatch", "size_increased", "size_unchanged", "invalid_value",
      "continue",          "check_numerics_fail", "excluded_from_build", "arch_mismatch"};
  static thread_local std::string said;
  const auto number = static_cast<unsigned>(status);
  said = std::string("rocblas_status_") + (number < 16 ? names[number] : "unknown");
  return said.c_str();
}

HIPSIM_API rocblas_status rocblas_get_version_string(char* text, std::size_t bytes) {
  const std::string found = version();
  if (!text) return rocblas_status_invalid_pointer;
  if (bytes <= found.size()) return rocblas_status_invalid_size;
  std::memcpy(text, found.c_str(), found.size() + 1);
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_get_version_string_size(std::size_t* bytes) {
  if (!bytes) return rocblas_status_invalid_pointer;
  *bytes = version().size() + 1;
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_gemm_ex(
    rocblas_handle handle, rocblas_operation trans_a, rocblas_operation trans_b, rocblas_int m,
    rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
    rocblas_int lda, const void* b, rocblas_datatype b_type, rocblas_int ldb, const void* beta,
    const void* c, rocblas_datatype, rocblas_int, void* d, rocblas_datatype d_type, rocblas_int ldd,
    rocblas_datatype compute, rocblas_gemm_algo, std::int32_t, std::uint32_t) {
  return multiply(handle, trans_a, trans_b, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0,
                  beta, c, d, d_type, ldd, 0, 1, compute);
}

HIPSIM_API rocblas_status rocblas_gemm_strided_batched_ex(
    rocblas_handle handle, rocblas_operation trans_a, rocblas_operation trans_b, rocblas_int m,
    rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
    rocblas_int lda, rocblas_stride stride_a, const void* b, rocblas_datatype b_type,
    rocblas_int ldb, rocblas_stride stride_b, const void* beta, const void* c, rocblas_datatype,
    rocblas_int, rocblas_stride, void* d, rocblas_datatype d_type, rocblas_int ldd,
    rocblas_stride stride_d, rocblas_int batches, rocblas_datatype compute, rocblas_gemm_algo,
    std::int32_t, std::uint32_t) {
  return multiply(handle, trans_a, trans_b, m, n, k, alpha, a, a_type, lda, stride_a, b, b_type,
                  ldb, stride_b, beta, c, d, d_type, ldd, stride_d, batches, compute);
}
