#include "solvers.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "../rocblas/rocblas_api.h"

namespace hipsim {

namespace {
namespace fs = std::filesystem;

std::int64_t nothing(const Convolution&) { return 0; }

bool in_half_or_float(const Problem& problem) {
  return problem.type == miopenHalf || problem.type == miopenFloat;
}

bool not_double(const Problem& problem) { return problem.type != miopenDouble; }

// One tap, which reads the input as it lies.
bool is_pointwise(const Convolution& c) {
  for (int i = 0; i < 3; ++i)
    if (c.window.size[i] != 1 || c.window.stride[i] != 1 || c.window.pad[i] != 0 ||
        c.window.out[i] != c.window.in[i])
      return false;
  return true;
}

void run_direct(miopenHandle& handle, const Problem& problem, void* y, const void* x, const void* w,
                void*) {
  const Convolution& c = problem.convolution;
  require(launch(handle, ("direct_" + suffix_of(problem.type)).c_str(),
                 c.images * c.groups * c.outputs * c.positions(), y, x, w, c));
}

std::int64_t columns(const Convolution& c) { return is_pointwise(c) ? 0 : c.columns(); }

// An image at a time, so that the workspace holds one.
void run_gemm(miopenHandle& handle, const Problem& problem, void* y, const void* x, const void* w,
              void* workspace) {
  const Convolution& c = problem.convolution;
  if (is_pointwise(c)) return run_direct(handle, problem, y, x, w, workspace);
  const std::string suffix = suffix_of(problem.type);
  for (std::int64_t image = 0; image < c.images; ++image) {
    require(launch(handle, ("im2col_" + suffix).c_str(), c.columns(), workspace, x, c, image));
    require(launch(handle, ("product_" + suffix).c_str(), c.groups * c.outputs * c.positions(), y,
                   workspace, w, c, image));
  }
}

// The weights again, a tap's channels side by side.
void run_implicit_gemm(miopenHandle& handle, const Problem& problem, void* y, const void* x,
                       const void* w, void* workspace) {
  Problem packed = problem;
  Convolution& c = packed.convolution;
  const std::int64_t* size = c.window.size;
  c.w = {c.outputs * c.inputs * c.taps(), c.inputs * c.taps(), 1,
         {size[1] * size[2] * c.inputs, size[2] * c.inputs, c.inputs}};
  require(launch(handle, ("repack_" + suffix_of(problem.type)).c_str(), c.weights(), workspace, w,
                 problem.convolution, c.w));
  run_direct(handle, packed, y, x, workspace, nullptr);
}

bool suits_winograd(const Problem& problem) {
  const Convolution& c = problem.convolution;
  const Window& at = c.window;
  return in_half_or_float(problem) && !c.transposed && c.groups == 1 && at.in[0] == 1 &&
         at.size[0] == 1 && at.pad[0] == 0 && at.size[1] == 3 && at.size[2] == 3 &&
         at.stride[1] == 1 && at.stride[2] == 1 && at.dilation[1] == 1 && at.dilation[2] == 1;
}

void run_winograd(miopenHandle& handle, const Problem& problem, void* y, const void* x,
                  const void* w, void*) {
  const Convolution& c = problem.convolution;
  const std::int64_t tiles = (c.window.out[1] + 1) / 2 * ((c.window.out[2] + 1) / 2);
  require(launch(handle, ("winograd_" + suffix_of(problem.type)).c_str(),
                 c.images * c.outputs * tiles, y, x, w, c));
}

// One id needs more than 32 bits, as an id may.
constexpr Solver kSolvers[] = {
    {0x1'0000'0053, miopenConvolutionFwdAlgoWinograd, "winograd", "MIOPEN_DEBUG_CONV_WINOGRAD",
     0.02f, suits_winograd, nothing, run_winograd},
    {91, miopenConvolutionFwdAlgoGEMM, "gemm", "MIOPEN_DEBUG_CONV_GEMM", 0.5f, not_double, columns,
     run_gemm},
    {138, miopenConvolutionFwdAlgoImplicitGEMM, "implicit_gemm", "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM",
     -1.0f, not_double, [](const Convolution& c) { return c.weights(); }, run_implicit_gemm},
    {85, miopenConvolutionFwdAlgoDirect, "direct_naive", "MIOPEN_DEBUG_CONV_DIRECT", 20.0f,
     [](const Problem&) { return true; }, nothing, run_direct},
};

bool has_value(const char* variable, const char* wanted) {
  const char* value = std::getenv(variable);
  return value && std::strcmp(value, wanted) == 0;
}

bool is_offered(const Solver& solver, const Problem& problem) {
  return !has_value(solver.variable, "0") && solver.suits(problem);
}

// What stands for a compiled solution between processes; empty where nothing does.
fs::path cached(const std::string& key) {
  if (has_value("MIOPEN_DISABLE_CACHE", "1")) return {};
  const std::string version = "3." + std::to_string(minor_version()) + ".0.hipsim";
  const fs::path file = version + "/" + std::to_string(std::hash<std::string>{}(key)) + ".o";
  if (const char* chosen = std::getenv("MIOPEN_CUSTOM_CACHE_DIR"); chosen && *chosen)
    return chosen / file;
  const char* home = std::getenv("HOME");
  return home && *home ? fs::path(home) / ".cache" / "miopen" / file : fs::path{};
}
}  // namespace

std::vector<const Solver*> solvers_for(const Problem& problem) {
  std::vector<const Solver*> found;
  for (const Solver& solver : kSolvers)
    if (is_offered(solver, problem)) found.push_back(&solver);
  return found;
}

const Solver& solver_for(const Problem& problem, std::uint64_t id) {
  for (const Solver* solver : solvers_for(problem))
    if (solver->id == id) return *solver;
  throw Refusal{miopenStatusBadParm,
                "solution " + std::to_string(id) + " is none for this problem"};
}

std::size_t workspace_of(const Solver& solver, const Problem& problem) {
  return static_cast<std::size_t>(solver.elements(problem.convolution)) * bytes_of(problem.type);
}

void compile(const miopenHandle& handle, const Solver& solver, const Problem& problem) {
  static std::mutex mutex;
  static auto* compiled = new std::set<std::string>;
  const std::string key = handle.arch + '-' + solver.name + '-' + problem.key;
  {
    const std::lock_guard lock(mutex);
    if (compiled->count(key)) return;
  }
  require(!is_capturing(handle), "it is not compiled yet, and its stream captures",
          miopenStatusInternalError);
  // Its products are rocBLAS's, which abort()s without code for the device.
  if (solver.algorithm == miopenConvolutionFwdAlgoGEMM) rocblas_initialize();
  const fs::path file = cached(key);
  std::error_code ignored;  // a folder that takes no file is no cache
  if (file.empty() || !fs::exists(file, ignored)) {
    occur(miopen_faults().compile);
    take_time("HIPSIM_MIOPEN_COMPILE_MS");
    fs::create_directories(file.parent_path(), ignored);
    std::ofstream{file};
  }
  const std::lock_guard lock(mutex);
  compiled->insert(key);
}

void run(miopenHandle& handle, const Solver& solver, const Problem& problem,
         const Operands& operands) {
  require(operands.x && operands.w && operands.y, "x, w or y is null");
  const std::size_t wanted = workspace_of(solver, problem);
  require(!wanted || (operands.workspace && operands.workspace_bytes >= wanted),
          std::string(solver.name) + " wants a workspace of " + std::to_string(wanted) + " bytes");
  compile(handle, solver, problem);
  if (operands.workspace)
    require(scribble(handle, operands.workspace, operands.workspace_bytes));
  solver.run(handle, problem, operands.y, operands.x, operands.w, operands.workspace);
}

}  // namespace hipsim
