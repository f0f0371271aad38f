// What is multiplied, how it lies, and how much memory it may take: structures that live until
// they are destroyed.
#include <cstring>

#include "handle.h"

namespace hipsim {

namespace {
Living<MatrixLayout> layouts;
Living<MatmulDesc> descriptions;
Living<MatmulPreference> preferences;

template <class T>
T* make(Living<T>& living, T** to) {
  require(to, "nowhere to put it");
  return *to = living.make();
}

template <class T>
void destroy(Living<T>& living, T* descriptor) {
  require(living.destroy(descriptor), "no descriptor, or one that was destroyed");
}

// The real one takes more bytes than it needs; we take those that are right.
template <class T>
void set(T& attribute, const void* value, std::size_t bytes) {
  require(value && bytes == sizeof(T), "a value of " + std::to_string(bytes) + " bytes");
  std::memcpy(&attribute, value, bytes);
}

bool is_type(hipDataType type) {
  return type == HIP_R_32F || type == HIP_R_64F || type == HIP_R_16F || type == HIP_R_16BF;
}
}  // namespace

const MatrixLayout& known(hipblasLtMatrixLayout_t layout, const char* name) {
  require(layouts.has(layout), std::string(name) + " has no layout, or one that was destroyed");
  return *layout;
}

const MatmulDesc& known(hipblasLtMatmulDesc_t description) {
  require(descriptions.has(description), "no description, or one that was destroyed");
  return *description;
}

const MatmulPreference& known(hipblasLtMatmulPreference_t preference) {
  require(preferences.has(preference), "no preference, or one that was destroyed");
  return *preference;
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* layout,
                                                       hipDataType type, std::uint64_t rows,
                                                       std::uint64_t columns,
                                                       std::int64_t leading) {
  return answer("hipblasLtMatrixLayoutCreate", [&] {
    require(is_type(type), "this type is not simulated", HIPBLAS_STATUS_NOT_SUPPORTED);
    require(rows && columns, "a size of 0");
    require(leading >= static_cast<std::int64_t>(rows),
            "the leading dimension is " + std::to_string(leading) + ", at least " +
                std::to_string(rows) + " is needed");
    *make(layouts, layout) = {type, rows, columns, leading};
  });
}

HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutDestroy(hipblasLtMatrixLayout_t layout) {
  return answer("hipblasLtMatrixLayoutDestroy", [&] { destroy(layouts, layout); });
}

HIPSIM_API hipblasStatus_t hipblasLtMatrixLayoutSetAttribute(
    hipblasLtMatrixLayout_t layout, hipblasLtMatrixLayoutAttribute_t attribute, const void* value,
    std::size_t bytes) {
  return answer("hipblasLtMatrixLayoutSetAttribute", [&] {
    known(layout, "it");
    if (attribute == HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
      set(layout->batches, value, bytes);
    else if (attribute == HIPBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
      set(layout->step, value, bytes);
    else
      require(false, "attribute " + std::to_string(attribute) + " is not simulated");
  });
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* description,
                                                     hipblasComputeType_t compute,
                                                     hipDataType scale) {
  return answer("hipblasLtMatmulDescCreate",
                [&] { *make(descriptions, description) = {compute, scale}; });
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulDescDestroy(hipblasLtMatmulDesc_t description) {
  return answer("hipblasLtMatmulDescDestroy", [&] { destroy(descriptions, description); });
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulDescSetAttribute(
    hipblasLtMatmulDesc_t description, hipblasLtMatmulDescAttributes_t attribute,
    const void* value, std::size_t bytes) {
  return answer("hipblasLtMatmulDescSetAttribute", [&] {
    known(description);
    std::int32_t operation = 0;
    set(operation, value, bytes);
    require(operation >= HIPBLAS_OP_N && operation <= HIPBLAS_OP_C, "no such operation");
    if (attribute == HIPBLASLT_MATMUL_DESC_TRANSA)
      description->trans_a = static_cast<hipblasOperation_t>(operation);
    else if (attribute == HIPBLASLT_MATMUL_DESC_TRANSB)
      description->trans_b = static_cast<hipblasOperation_t>(operation);
    else
      require(false, "attribute " + std::to_string(attribute) + " is not simulated");
  });
}

HIPSIM_API hipblasStatus_t
hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* preference) {
  return answer("hipblasLtMatmulPreferenceCreate", [&] { make(preferences, preference); });
}

HIPSIM_API hipblasStatus_t
hipblasLtMatmulPreferenceDestroy(hipblasLtMatmulPreference_t preference) {
  return answer("hipblasLtMatmulPreferenceDestroy", [&] { destroy(preferences, preference); });
}

HIPSIM_API hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(
    hipblasLtMatmulPreference_t preference, hipblasLtMatmulPreferenceAttributes_t attribute,
    const void* value, std::size_t bytes) {
  return answer("hipblasLtMatmulPreferenceSetAttribute", [&] {
    known(preference);
    require(attribute == HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            "attribute " + std::to_string(attribute) + " is not simulated");
    set(preference->workspace, value, bytes);
  });
}
