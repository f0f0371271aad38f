// Algorithms and products: what hipBLASLt refuses is refused here, and the rest is queued as a
// kernel, one of those of the simulated rocBLAS.
#include <cstring>

#include "../rocblas/product.h"
#include "handle.h"

namespace hipsim {

namespace {
constexpr std::size_t kWorkspace = 1 << 16;  // that the algorithm takes, where it may

struct Problem {
  const MatmulDesc& with;
  const MatrixLayout &a, &b, &c, &d;
};

struct Sizes {
  std::int64_t m, n, k, batches;
};

// The kernel for a combination of types; null for those that the simulator, or hipBLASLt, lacks.
const char* kernel_for(const Problem& p) {
  const bool f64 = p.a.type == HIP_R_64F;
  if (p.a.type != p.b.type || p.c.type != p.d.type ||
      p.with.compute != (f64 ? HIPBLAS_COMPUTE_64F : HIPBLAS_COMPUTE_32F) ||
      p.with.scale != (f64 ? HIP_R_64F : HIP_R_32F))
    return nullptr;
  const struct {
    hipDataType in, out;
    const char* name;
  } all[] = {
      {HIP_R_64F, HIP_R_64F, "gemm_f64_f64"},    {HIP_R_32F, HIP_R_32F, "gemm_f32_f32"},
      {HIP_R_16F, HIP_R_16F, "gemm_f16_f16"},    {HIP_R_16F, HIP_R_32F, "gemm_f16_f32"},
      {HIP_R_16BF, HIP_R_16BF, "gemm_bf16_bf16"}, {HIP_R_16BF, HIP_R_32F, "gemm_bf16_f32"},
  };
  for (const auto& each : all)
    if (each.in == p.a.type && each.out == p.d.type) return each.name;
  return nullptr;
}

bool same(const MatrixLayout& x, const MatrixLayout& y) {
  return x.type == y.type && x.rows == y.rows && x.columns == y.columns &&
         x.leading == y.leading && x.batches == y.batches && x.step == y.step;
}

Sizes check(const Problem& p) {
  const bool a_plain = p.with.trans_a == HIPBLAS_OP_N, b_plain = p.with.trans_b == HIPBLAS_OP_N;
  const std::uint64_t m = p.d.rows, n = p.d.columns, k = a_plain ? p.a.columns : p.a.rows;
  require((a_plain ? p.a.rows : p.a.columns) == m, "the rows of a and d differ");
  require((b_plain ? p.b.rows : p.b.columns) == k, "what is summed over differs in a and b");
  require((b_plain ? p.b.columns : p.b.rows) == n, "the columns of b and d differ");
  require(p.c.rows == m && p.c.columns == n, "c has another shape than d");
  for (const MatrixLayout* each : {&p.a, &p.b, &p.c})
    require(each->batches == p.d.batches, "the numbers of batches differ");
  require(p.d.batches >= 1, "no batches");
  require(p.d.batches == 1 ||
              p.d.step >= p.d.leading * static_cast<std::int64_t>(n - 1) +
                              static_cast<std::int64_t>(m),
          "batches of d overlap");
  require(kernel_for(p), "this combination of types", HIPBLAS_STATUS_NOT_SUPPORTED);
  return {static_cast<std::int64_t>(m), static_cast<std::int64_t>(n),
          static_cast<std::int64_t>(k), p.d.batches};
}

// What an algorithm is good for: the problem that it was found for, and no other.
std::uint64_t mark(const Problem& p, const Sizes& s) {
  std::uint64_t hash = 1469598103934665603u;
  for (const std::int64_t each :
       {s.m, s.n, s.k, s.batches, p.a.leading, p.b.leading, p.d.leading, p.a.step, p.b.step,
        p.d.step, std::int64_t{p.a.type}, std::int64_t{p.d.type}, std::int64_t{p.with.trans_a},
        std::int64_t{p.with.trans_b}})
    hash = (hash ^ static_cast<std::uint64_t>(each)) * 1099511628211u;
  return hash;
}

double scalar(const MatmulDesc& with, const void* at) {
  return with.scale == HIP_R_64F ? *static_cast<const double*>(at) : *static_cast<const float*>(at);
}

Operand operand(const MatrixLayout& layout, hipblasOperation_t operation = HIPBLAS_OP_N) {
  return {layout.leading, layout.step, operation != HIPBLAS_OP_N};
}
}  // namespace
}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(
    hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description, hipblasLtMatrixLayout_t a,
    hipblasLtMatrixLayout_t b, hipblasLtMatrixLayout_t c, hipblasLtMatrixLayout_t d,
    hipblasLtMatmulPreference_t preference, int wanted, hipblasLtMatmulHeuristicResult_t* results,
    int* found) {
  return answer("hipblasLtMatmulAlgoGetHeuristic", handle, [&](LtHandle& known_handle) {
    require(wanted > 0 && results && found, "nowhere to put an algorithm");
    *found = 0;
    const Problem problem{known(description), known(a, "a"), known(b, "b"), known(c, "c"),
                          known(d, "d")};
    const std::size_t allowed = known(preference).workspace;
    const Sizes sizes = check(problem);
    require(load_kernels(known_handle), "no algorithm");  // the real one's status, too
    if (algorithm_fault().next()) return;
    *results = {};
    const std::uint64_t good_for = mark(problem, sizes);
    std::memcpy(results->algo.data, &good_for, sizeof good_for);
    results->algo.max_workspace_bytes = allowed;
    results->workspaceSize = allowed >= kWorkspace ? kWorkspace : 0;
    std::memcpy(results->algo.data + 8, &results->workspaceSize, 8);
    results->state = HIPBLAS_STATUS_SUCCESS;
    results->wavesCount = 1;
    *found = 1;
  });
}

HIPSIM_API hipblasStatus_t hipblasLtMatmul(
    hipblasLtHandle_t handle, hipblasLtMatmulDesc_t description, const void* alpha, const void* a,
    hipblasLtMatrixLayout_t a_layout, const void* b, hipblasLtMatrixLayout_t b_layout,
    const void* beta, const void* c, hipblasLtMatrixLayout_t c_layout, void* d,
    hipblasLtMatrixLayout_t d_layout, const hipblasLtMatmulAlgo_t* algo, void* workspace,
    std::size_t workspace_bytes, hipStream_t stream) {
  return answer("hipblasLtMatmul", handle, [&](LtHandle& known_handle) {
    if (const int status = matmul_fault().next())
      throw Refusal{static_cast<hipblasStatus_t>(status), "injected"};
    const Problem problem{known(description), known(a_layout, "a"), known(b_layout, "b"),
                          known(c_layout, "c"), known(d_layout, "d")};
    require(alpha && beta && a && b && d, "alpha, beta, a, b or d is null");
    const double by = scalar(problem.with, alpha), onto = scalar(problem.with, beta);
    require(c || onto == 0, "c is null");
    require(c != d || same(problem.c, problem.d), "c is d, and lies otherwise");
    const Sizes sizes = check(problem);
    require(algo, "no algorithm: the real one would look for one at each call",
            HIPBLAS_STATUS_NOT_SUPPORTED);
    std::uint64_t good_for = 0;
    std::size_t needed = 0;
    std::memcpy(&good_for, algo->data, sizeof good_for);
    std::memcpy(&needed, algo->data + 8, sizeof needed);
    require(good_for == mark(problem, sizes), "the algorithm is another problem's");
    require(workspace_bytes >= needed && (workspace || !needed), "the workspace is too small");
    require(reinterpret_cast<std::uintptr_t>(workspace) % 16 == 0, "the workspace is not aligned");
    require(known_handle.module, "the algorithm is of another process",
            HIPBLAS_STATUS_INTERNAL_ERROR);
    known_handle.stream = stream;
    const Product product{sizes.m, sizes.n, sizes.k, sizes.batches,
                          operand(problem.a, problem.with.trans_a),
                          operand(problem.b, problem.with.trans_b), operand(problem.c),
                          operand(problem.d), by, onto};
    const bool queued =
        (!needed || scribble(known_handle, workspace, needed) == hipSuccess) &&
        launch(known_handle, kernel_for(problem), sizes.m * sizes.n * sizes.batches, d, c, a, b,
               product) == hipSuccess;
    require(queued, "HIP failed", HIPBLAS_STATUS_INTERNAL_ERROR);
  });
}
