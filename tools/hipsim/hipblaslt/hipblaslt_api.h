// The part of hipBLASLt's C ABI that the simulator exports, written down from its documented facts:
// names, parameter types, enum values and the sizes of its structures. tests/rocm_blas compares the
// signatures with those of hipBLASLt's own headers, in letters.
#pragma once
#include "../common/hip_calls.h"

using hipblasLtHandle_t = void*;
using hipblasLtMatmulDesc_t = struct MatmulDesc*;
using hipblasLtMatrixLayout_t = struct MatrixLayout*;
using hipblasLtMatmulPreference_t = struct MatmulPreference*;

enum hipblasStatus_t : int {
  HIPBLAS_STATUS_SUCCESS = 0,
  HIPBLAS_STATUS_NOT_INITIALIZED = 1,
  HIPBLAS_STATUS_ALLOC_FAILED = 2,
  HIPBLAS_STATUS_INVALID_VALUE = 3,
  HIPBLAS_STATUS_MAPPING_ERROR = 4,
  HIPBLAS_STATUS_EXECUTION_FAILED = 5,
  HIPBLAS_STATUS_INTERNAL_ERROR = 6,
  HIPBLAS_STATUS_NOT_SUPPORTED = 7,
  HIPBLAS_STATUS_ARCH_MISMATCH = 8,
  HIPBLAS_STATUS_HANDLE_IS_NULLPTR = 9,
  HIPBLAS_STATUS_INVALID_ENUM = 10,
  HIPBLAS_STATUS_UNKNOWN = 11,
};

enum hipblasOperation_t : int { HIPBLAS_OP_N = 111, HIPBLAS_OP_T = 112, HIPBLAS_OP_C = 113 };
enum hipblasComputeType_t : int { HIPBLAS_COMPUTE_32F = 2, HIPBLAS_COMPUTE_64F = 7 };
enum hipDataType : int { HIP_R_32F = 0, HIP_R_64F = 1, HIP_R_16F = 2, HIP_R_16BF = 14 };

enum hipblasLtMatrixLayoutAttribute_t : int {
  HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 0,
  HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 1,
};
enum hipblasLtMatmulDescAttributes_t : int {
  HIPBLASLT_MATMUL_DESC_TRANSA = 0,
  HIPBLASLT_MATMUL_DESC_TRANSB = 1,
};
enum hipblasLtMatmulPreferenceAttributes_t : int { HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 };

struct hipblasLtMatmulAlgo_t {
  std::uint8_t data[16];
  std::size_t max_workspace_bytes;
};
struct hipblasLtMatmulHeuristicResult_t {
  hipblasLtMatmulAlgo_t algo;
  std::size_t workspaceSize;
  hipblasStatus_t state;
  float wavesCount;
  int reserved[4];
};

HIPSIM_API hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle);
HIPSIM_API hipblasStatus_t hipblasLtDestroy(hipblasLtHandle_t handle);
HIPSIM_API hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t handle, int* version);
HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* layout,
                                                       hipDataType type, std::uint64_t rows,
                                                       std::uint64_t columns,
                                                       std::int64_t leading);
HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutDestroy(hipblasLtMatrixLayout_t layout);
HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutSetAttribute(
    hipblasLtMatrixLayout_t layout, hipblasLtMatrixLayoutAttribute_t attribute, const void* value,
    std::size_t bytes);
HIPSIM_API hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* description,
                                                     hipblasComputeType_t compute,
                                                     hipDataType scale);
HIPSIM_API hipblasStatus_t hipblasLtMatmulDescDestroy(hipblasLtMatmulDesc_t description);
HIPSIM_API hipblasStatus_t hipblasLtMatmulDescSetAttribute(
    hipblasLtMatmulDesc_t description, hipblasLtMatmulDescAttributes_t attribute,
    const void* value, std::size_t bytes);
HIPSIM_API hipblasStatus_t hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* preference);
HIPSIM_API hipblasStatus_t hipblasLtMatmulPreferenceDestroy(hipblasLtMatmulPreference_t preference);
HIPSIM_API hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(
    hipblasLtMatmulPreference_t preference, hipblasLtMatmulPreferenceAttributes_t attribute,
    const void* value, std::size_t bytes);
HIPSIM_API hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(
    hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description, hipblasLtMatrixLayout_t a,
    hipblasLtMatrixLayout_t b, hipblasLtMatrixLayout_t c, hipblasLtMatrixLayout_t d,
    hipblasLtMatmulPreference_t preference, int wanted, hipblasLtMatmulHeuristicResult_t* results,
    int* found);
HIPSIM_API hipblasStatus_t hipblasLtMatmul(
    hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description, const void* alpha, const void* a,
    hipblasLtMatrixLayout_t a_layout, const void* b, hipblasLtMatrixLayout_t b_layout,
    const void* beta, const void* c, hipblasLtMatrixLayout_t c_layout, void* d,
    hipblasLtMatrixLayout_t d_layout, const hipblasLtMatmulAlgo_t* algo, void* workspace,
    std::size_t workspace_bytes, hipStream_t stream);

// For tests; no part of hipBLASLt's interface.
HIPSIM_API int hipsim_hipblaslt_inject(const char* what, const char* when);
HIPSIM_API long long hipsim_hipblaslt_count(const char* what);
