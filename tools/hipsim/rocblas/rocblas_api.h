// The part of rocBLAS's C ABI that the simulator exports, written down from its documented facts:
// names, parameter types and enum values. tests/rocm_blas compares the signatures with those of
// rocBLAS's own headers, in letters.
#pragma once
#include "../common/hip_calls.h"

using rocblas_int = std::int32_t;
using rocblas_stride = std::int64_t;
using rocblas_handle = struct _rocblas_handle*;

enum rocblas_status : int {
  rocblas_status_success = 0,
  rocblas_status_invalid_handle = 1,
  rocblas_status_not_implemented = 2,
  rocblas_status_invalid_pointer = 3,
  rocblas_status_invalid_size = 4,
  rocblas_status_memory_error = 5,
  rocblas_status_internal_error = 6,
  rocblas_status_perf_degraded = 7,
  rocblas_status_size_query_mismatch = 8,
  rocblas_status_size_increased = 9,
  rocblas_status_size_unchanged = 10,
  rocblas_status_invalid_value = 11,
  rocblas_status_continue = 12,
  rocblas_status_check_numerics_fail = 13,
  rocblas_status_excluded_from_build = 14,
  rocblas_status_arch_mismatch = 15,
};

enum rocblas_operation : int {
  rocblas_operation_none = 111,
  rocblas_operation_transpose = 112,
  rocblas_operation_conjugate_transpose = 113,
};

enum rocblas_pointer_mode : int { rocblas_pointer_mode_host = 0, rocblas_pointer_mode_device = 1 };
enum rocblas_atomics_mode : int { rocblas_atomics_not_allowed = 0, rocblas_atomics_allowed = 1 };
enum rocblas_math_mode : int { rocblas_default_math = 0, rocblas_xf32_xdl_math_op = 1 };
enum rocblas_gemm_algo : int {
  rocblas_gemm_algo_standard = 0,
  rocblas_gemm_algo_solution_index = 1,
};

enum rocblas_datatype : int {
  rocblas_datatype_f16_r = 150,
  rocblas_datatype_f32_r = 151,
  rocblas_datatype_f64_r = 152,
  rocblas_datatype_i8_r = 160,
  rocblas_datatype_i32_r = 162,
  rocblas_datatype_bf16_r = 168,
};

HIPSIM_API rocblas_status rocblas_create_handle(rocblas_handle* handle);
HIPSIM_API rocblas_status rocblas_destroy_handle(rocblas_handle handle);
HIPSIM_API rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream);
HIPSIM_API rocblas_status rocblas_get_stream(rocblas_handle handle, hipStream_t* stream);
HIPSIM_API rocblas_status rocblas_set_pointer_mode(rocblas_handle handle,
                                                   rocblas_pointer_mode mode);
HIPSIM_API rocblas_status rocblas_set_atomics_mode(rocblas_handle handle,
                                                   rocblas_atomics_mode mode);
HIPSIM_API rocblas_status rocblas_set_math_mode(rocblas_handle handle, rocblas_math_mode mode);
HIPSIM_API rocblas_status rocblas_set_workspace(rocblas_handle handle, void* memory,
                                                std::size_t bytes);
HIPSIM_API void rocblas_initialize();
HIPSIM_API const char* rocblas_status_to_string(rocblas_status status);
HIPSIM_API rocblas_status rocblas_get_version_string(char* text, std::size_t bytes);
HIPSIM_API rocblas_status rocblas_get_version_string_size(std::size_t* bytes);
HIPSIM_API rocblas_status rocblas_gemm_ex(
    rocblas_handle handle, rocblas_operation trans_a, rocblas_operation trans_b, rocblas_int m,
    rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
    rocblas_int lda, const void* b, rocblas_datatype b_type, rocblas_int ldb, const void* beta,
    const void* c, rocblas_datatype c_type, rocblas_int ldc, void* d, rocblas_datatype d_type,
    rocblas_int ldd, rocblas_datatype compute_type, rocblas_gemm_algo algo,
    std::int32_t solution_index, std::uint32_t flags);
HIPSIM_API rocblas_status rocblas_gemm_strided_batched_ex(
    rocblas_handle handle, rocblas_operation trans_a, rocblas_operation trans_b, rocblas_int m,
    rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
    rocblas_int lda, rocblas_stride stride_a, const void* b, rocblas_datatype b_type,
    rocblas_int ldb, rocblas_stride stride_b, const void* beta, const void* c,
    rocblas_datatype c_type, rocblas_int ldc, rocblas_stride stride_c, void* d,
    rocblas_datatype d_type, rocblas_int ldd, rocblas_stride stride_d, rocblas_int batch_count,
    rocblas_datatype compute_type, rocblas_gemm_algo algo, std::int32_t solution_index,
    std::uint32_t flags);

// For tests; no part of rocBLAS's interface.
HIPSIM_API int hipsim_rocblas_inject(const char* what, const char* when);
HIPSIM_API long long hipsim_rocblas_count(const char* what);
