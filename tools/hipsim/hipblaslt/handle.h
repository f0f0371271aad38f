// The handle and the descriptors of the simulated hipBLASLt, and how calls answer: they throw a
// Refusal inside, which becomes a status and a line on stderr.
#pragma once
#include "../common/library.h"
#include "../common/living.h"
#include "../common/settings.h"
#include "hipblaslt_api.h"

struct MatrixLayout {
  hipDataType type;
  std::uint64_t rows, columns;
  std::int64_t leading;
  std::int32_t batches = 1;
  std::int64_t step = 0;
};
struct MatmulDesc {
  hipblasComputeType_t compute;
  hipDataType scale;
  hipblasOperation_t trans_a = HIPBLAS_OP_N, trans_b = HIPBLAS_OP_N;
};
struct MatmulPreference {
  std::uint64_t workspace = 0;
};

namespace hipsim {

struct LtHandle : LibraryHandle {};

Fault& matmul_fault();
Fault& algorithm_fault();

struct Refusal {
  hipblasStatus_t status;
  std::string why;
};

inline void require(bool holds, const std::string& why,
                    hipblasStatus_t status = HIPBLAS_STATUS_INVALID_VALUE) {
  if (!holds) throw Refusal{status, why};
}

hipblasStatus_t refuse(hipblasStatus_t status, const char* call, const std::string& why);

template <class Call>
hipblasStatus_t answer(const char* name, Call call) {
  try {
    call();
    return HIPBLAS_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    return refuse(refusal.status, name, refusal.why);
  }
}

template <class Call>
hipblasStatus_t answer(const char* name, hipblasLtHandle_t given, Call call) {
  auto* handle = static_cast<LtHandle*>(given);
  const InUse used(handle);
  if (used.refusal)
    return refuse(used.unknown ? HIPBLAS_STATUS_NOT_INITIALIZED : HIPBLAS_STATUS_INTERNAL_ERROR,
                  name, used.refusal);
  return answer(name, [&] { call(*handle); });
}

// One that lives; else INVALID_VALUE.
const MatrixLayout& known(hipblasLtMatrixLayout_t layout, const char* name);
const MatmulDesc& known(hipblasLtMatmulDesc_t description);
const MatmulPreference& known(hipblasLtMatmulPreference_t preference);

// Whether there are kernels for the handle's architecture, loaded from now on.
bool load_kernels(LtHandle& handle);

}  // namespace hipsim
