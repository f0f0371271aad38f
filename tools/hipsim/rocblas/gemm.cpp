// Products: what rocBLAS refuses is refused here, and the rest is queued as a kernel.
#include <cstring>

#include "handle.h"
#include "product.h"

namespace hipsim {

namespace {
constexpr std::size_t kOwnWorkspace = std::size_t{32} << 20;

struct Matrix {
  const void* at;
  rocblas_datatype type;
  rocblas_int leading;
  rocblas_stride stride;
};

struct Request {
  const char* call;
  rocblas_operation trans_a, trans_b;
  rocblas_int m, n, k;
  const void *alpha, *beta;
  Matrix a, b, c, d;
  rocblas_int batches;
  rocblas_datatype compute;
  rocblas_gemm_algo algo;
};

// The kernel for a combination of types; null for those that the simulator, or rocBLAS, lacks.
const char* kernel_for(const Request& r) {
  if (r.a.type != r.b.type || r.c.type != r.d.type) return nullptr;
  const struct {
    rocblas_datatype in, out, compute;
    const char* name;
  } known[] = {
      {rocblas_datatype_f64_r, rocblas_datatype_f64_r, rocblas_datatype_f64_r, "gemm_f64_f64"},
      {rocblas_datatype_f32_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r, "gemm_f32_f32"},
      {rocblas_datatype_f16_r, rocblas_datatype_f16_r, rocblas_datatype_f32_r, "gemm_f16_f16"},
      {rocblas_datatype_f16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r, "gemm_f16_f32"},
      {rocblas_datatype_bf16_r, rocblas_datatype_bf16_r, rocblas_datatype_f32_r, "gemm_bf16_bf16"},
      {rocblas_datatype_bf16_r, rocblas_datatype_f32_r, rocblas_datatype_f32_r, "gemm_bf16_f32"},
  };
  for (const auto& each : known)
    if (each.in == r.a.type && each.out == r.d.type && each.compute == r.compute) return each.name;
  return nullptr;
}

bool is_operation(rocblas_operation operation) {
  return operation >= rocblas_operation_none &&
         operation <= rocblas_operation_conjugate_transpose;
}

// alpha and beta have the compute type, and lie where the pointer mode says: on the host here.
double scalar(const Request& r, const void* at) {
  if (r.compute == rocblas_datatype_f64_r) return *static_cast<const double*>(at);
  return *static_cast<const float*>(at);
}

rocblas_status check(const _rocblas_handle& handle, const Request& r) {
  const auto no = [&](rocblas_status status, const std::string& why) {
    return refuse(status, r.call, why);
  };
  if (!is_operation(r.trans_a) || !is_operation(r.trans_b))
    return no(rocblas_status_invalid_value, "no such operation");
  if (r.m < 0 || r.n < 0 || r.k < 0 || r.batches < 0)
    return no(rocblas_status_invalid_size, "a negative size");
  const bool a_plain = r.trans_a == rocblas_operation_none;
  const bool b_plain = r.trans_b == rocblas_operation_none;
  const struct {
    const char* name;
    rocblas_int leading, least;
  } leadings[] = {{"lda", r.a.leading, a_plain ? r.m : r.k},
                  {"ldb", r.b.leading, b_plain ? r.k : r.n},
                  {"ldc", r.c.leading, r.m},
                  {"ldd", r.d.leading, r.m}};
  for (const auto& [name, leading, least] : leadings)
    if (leading < 1 || leading < least)
      return no(rocblas_status_invalid_size, std::string(name) + " is " + std::to_string(leading) +
                                                 ", at least " +
                                                 std::to_string(least > 1 ? least : 1) +
                                                 " is needed");
  if (r.m == 0 || r.n == 0 || r.batches == 0) return rocblas_status_success;
  if (!r.alpha || !r.beta) return no(rocblas_status_invalid_pointer, "alpha or beta is null");
  if (handle.pointer_mode != rocblas_pointer_mode_host)
    return no(rocblas_status_not_implemented, "scalars in device memory are not simulated");
  if (!kernel_for(r)) return no(rocblas_status_not_implemented, "this combination of types");
  if (r.algo != rocblas_gemm_algo_standard)
    return no(rocblas_status_not_implemented, "solution indices are not simulated");
  if (!r.d.at || (!r.c.at && scalar(r, r.beta) != 0))
    return no(rocblas_status_invalid_pointer, "c or d is null");
  if (r.k && scalar(r, r.alpha) != 0 && (!r.a.at || !r.b.at))
    return no(rocblas_status_invalid_pointer, "a or b is null");
  if (r.c.at == r.d.at && (r.c.leading != r.d.leading || r.c.stride != r.d.stride))
    return no(rocblas_status_invalid_value, "c is d, with another leading dimension or stride");
  // rocBLAS lets it pass, and batches overwrite each other.
  if (r.batches > 1 && r.d.stride < std::int64_t{r.d.leading} * (r.n - 1) + r.m)
    return no(rocblas_status_invalid_value, "batches of d overlap");
  return rocblas_status_success;
}

// Who sets no workspace gets rocBLAS's own, allocated at the first product.
rocblas_status use_workspace(_rocblas_handle& handle) {
  if (!handle.workspace) {
    if (hipMalloc(&handle.workspace, kOwnWorkspace) != hipSuccess)
      return rocblas_status_memory_error;
    handle.workspace_bytes = kOwnWorkspace;
    handle.owns_workspace = true;
  }
  return scribble(handle, handle.workspace, handle.workspace_bytes) == hipSuccess
             ? rocblas_status_success
             : rocblas_status_internal_error;
}

rocblas_status run(rocblas_handle handle, const Request& r) {
  const Entered entered(handle, r.call);
  if (entered.status) return entered.status;
  if (const int status = rocblas_faults().gemm.next())
    return refuse(static_cast<rocblas_status>(status), r.call, "injected");
  if (const rocblas_status status = check(*handle, r)) return status;
  if (r.m == 0 || r.n == 0 || r.batches == 0) return rocblas_status_success;
  if (load_kernels(*handle) != hipSuccess) return rocblas_status_internal_error;
  if (const rocblas_status status = use_workspace(*handle)) return status;
  const auto operand = [](const Matrix& matrix, rocblas_operation operation) {
    return Operand{matrix.leading, matrix.stride, operation != rocblas_operation_none};
  };
  const Product product{r.m,
                        r.n,
                        r.k,
                        r.batches,
                        operand(r.a, r.trans_a),
                        operand(r.b, r.trans_b),
                        operand(r.c, rocblas_operation_none),
                        operand(r.d, rocblas_operation_none),
                        scalar(r, r.alpha),
                        scalar(r, r.beta)};
  const hipError_t error = launch(*handle, kernel_for(r), std::int64_t{r.m} * r.n * r.batches,
                                  r.d.at, r.c.at, r.a.at, r.b.at, product);
  return error == hipSuccess ? rocblas_status_success : rocblas_status_internal_error;
}
}  // namespace
}  // namespace hipsim

using namespace hipsim;

HIPSIM_API rocblas_status rocblas_gemm_ex(
    rocblas_handle handle, rocblas_operation trans_a, rocblas_operation trans_b, rocblas_int m,
    rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
    rocblas_int lda, const void* b, rocblas_datatype b_type, rocblas_int ldb, const void* beta,
    const void* c, rocblas_datatype c_type, rocblas_int ldc, void* d, rocblas_datatype d_type,
    rocblas_int ldd, rocblas_datatype compute_type, rocblas_gemm_algo algo, std::int32_t,
    std::uint32_t) {
  return run(handle, {"rocblas_gemm_ex",
                      trans_a,
                      trans_b,
                      m,
                      n,
                      k,
                      alpha,
                      beta,
                      {a, a_type, lda, 0},
                      {b, b_type, ldb, 0},
                      {c, c_type, ldc, 0},
                      {d, d_type, ldd, 0},
                      1,
                      compute_type,
                      algo});
}

HIPSIM_API rocblas_status rocblas_gemm_strided_batched_ex(
    rocblas_handle handle, rocblas_operation trans_a, rocblas_operation trans_b, rocblas_int m,
    rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
    rocblas_int lda, rocblas_stride stride_a, const void* b, rocblas_datatype b_type,
    rocblas_int ldb, rocblas_stride stride_b, const void* beta, const void* c,
    rocblas_datatype c_type, rocblas_int ldc, rocblas_stride stride_c, void* d,
    rocblas_datatype d_type, rocblas_int ldd, rocblas_stride stride_d, rocblas_int batch_count,
    rocblas_datatype compute_type, rocblas_gemm_algo algo, std::int32_t, std::uint32_t) {
  return run(handle, {"rocblas_gemm_strided_batched_ex",
                      trans_a,
                      trans_b,
                      m,
                      n,
                      k,
                      alpha,
                      beta,
                      {a, a_type, lda, stride_a},
                      {b, b_type, ldb, stride_b},
                      {c, c_type, ldc, stride_c},
                      {d, d_type, ldd, stride_d},
                      batch_count,
                      compute_type,
                      algo});
}
