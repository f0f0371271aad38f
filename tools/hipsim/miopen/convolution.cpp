// Convolutions: the immediate mode, whose caller chooses a solution, and the find mode, which tries
// them all.
#include <algorithm>
#include <cstdlib>

#include "solvers.h"

namespace hipsim {

namespace {
// By what the descriptor says, else the environment; without either all are tried.
bool finds_fast(const miopenConvolutionDescriptor& convolution) {
  if (convolution.find_mode) return convolution.find_mode == miopenConvolutionFindModeFast;
  const char* mode = std::getenv("MIOPEN_FIND_MODE");
  return mode && (std::string(mode) == "FAST" || std::string(mode) == "2");
}

std::string found_key(const Problem& problem, miopenConvFwdAlgorithm_t algorithm) {
  return std::to_string(algorithm) + ' ' + problem.key;
}

// A number in the place that the caller gave for it.
template <class T>
void tell(T* place, T value) {
  require(place, "the result's place is null");
  *place = value;
}
}  // namespace
}  // namespace hipsim

using namespace hipsim;

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolutionCount(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    std::size_t* count) {
  return answer("miopenConvolutionForwardGetSolutionCount", handle,
                [&] { tell(count, solvers_for(problem_of(x, w, convolution, y)).size()); });
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolution(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::size_t most, std::size_t* count, miopenConvSolution_t* solutions) {
  return answer("miopenConvolutionForwardGetSolution", handle, [&] {
    require(solutions, "the solutions' place is null");
    const Problem problem = problem_of(x, w, convolution, y);
    std::size_t given = 0;
    for (const Solver* solver : solvers_for(problem)) {
      if (given == most) break;
      solutions[given++] = {solver->time, workspace_of(*solver, problem), solver->id,
                            static_cast<miopenConvAlgorithm_t>(solver->algorithm)};
    }
    tell(count, given);
  });
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetSolutionWorkspaceSize(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::uint64_t solution, std::size_t* bytes) {
  return answer("miopenConvolutionForwardGetSolutionWorkspaceSize", handle, [&] {
    const Problem problem = problem_of(x, w, convolution, y);
    tell(bytes, workspace_of(solver_for(problem, solution), problem));
  });
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardCompileSolution(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    const std::uint64_t solution) {
  return answer("miopenConvolutionForwardCompileSolution", handle, [&] {
    const Problem problem = problem_of(x, w, convolution, y);
    compile(*handle, solver_for(problem, solution), problem);
  });
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardImmediate(
    miopenHandle_t handle, const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenTensorDescriptor_t x_tensor, const void* x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y_tensor,
    void* y, void* workspace, std::size_t workspace_bytes, const std::uint64_t solution) {
  return answer("miopenConvolutionForwardImmediate", handle, [&] {
    occur(miopen_faults().convolution);
    const Problem problem = problem_of(x_tensor, w_tensor, convolution, y_tensor);
    run(*handle, solver_for(problem, solution), problem, {y, x, w, workspace, workspace_bytes});
  });
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardGetWorkSpaceSize(
    miopenHandle_t handle, const miopenTensorDescriptor_t w, const miopenTensorDescriptor_t x,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y,
    std::size_t* bytes) {
  return answer("miopenConvolutionForwardGetWorkSpaceSize", handle, [&] {
    const Problem problem = problem_of(x, w, convolution, y);
    std::size_t most = 0;
    for (const Solver* solver : solvers_for(problem))
      most = std::max(most, workspace_of(*solver, problem));
    tell(bytes, most);
  });
}

// y is overwritten, as by the benchmarks of the real one.
HIPSIM_API miopenStatus_t miopenFindConvolutionForwardAlgorithm(
    miopenHandle_t handle, const miopenTensorDescriptor_t x_tensor, const void* x,
    const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenConvolutionDescriptor_t convolution, const miopenTensorDescriptor_t y_tensor,
    void* y, const int most, int* count, miopenConvAlgoPerf_t* found, void* workspace,
    std::size_t workspace_bytes, bool) {
  return answer("miopenFindConvolutionForwardAlgorithm", handle, [&] {
    require(count && found, "a result's place is null");
    require(most >= 1, "at least 1 algorithm is asked for");
    occur(miopen_faults().find);
    const Problem problem = problem_of(x_tensor, w_tensor, convolution, y_tensor);
    require(!is_capturing(*handle), "its stream captures", miopenStatusInternalError);
    const bool fast = finds_fast(hipsim::convolution(convolution));
    if (!fast) take_time("HIPSIM_MIOPEN_FIND_MS");
    int given = 0;
    for (const Solver* solver : solvers_for(problem)) {
      const std::size_t wanted = workspace_of(*solver, problem);
      if (given == most || (fast && given)) break;
      if (wanted && (!workspace || workspace_bytes < wanted)) continue;
      run(*handle, *solver, problem, {y, x, w, workspace, workspace_bytes});
      handle->found.insert(found_key(problem, solver->algorithm));
      found[given++] = {solver->algorithm, solver->time > 0 ? solver->time : 1.0f, wanted};
    }
    require(given, "no algorithm suits the problem and the workspace", miopenStatusUnknownError);
    *count = given;
  });
}

HIPSIM_API miopenStatus_t miopenConvolutionForward(
    miopenHandle_t handle, const void* alpha, const miopenTensorDescriptor_t x_tensor,
    const void* x, const miopenTensorDescriptor_t w_tensor, const void* w,
    const miopenConvolutionDescriptor_t convolution, miopenConvFwdAlgorithm_t algorithm,
    const void* beta, const miopenTensorDescriptor_t y_tensor, void* y, void* workspace,
    std::size_t workspace_bytes) {
  return answer("miopenConvolutionForward", handle, [&] {
    occur(miopen_faults().convolution);
    const Problem problem = problem_of(x_tensor, w_tensor, convolution, y_tensor);
    require_plain(alpha, beta, problem.type, miopenStatusNotImplemented);
    require(handle->found.count(found_key(problem, algorithm)),
            "miopenFindConvolutionForwardAlgorithm has not found this algorithm for the problem",
            miopenStatusUnknownError);
    for (const Solver* solver : solvers_for(problem))
      if (solver->algorithm == algorithm)
        run(*handle, *solver, problem, {y, x, w, workspace, workspace_bytes});
  });
}

HIPSIM_API miopenStatus_t miopenConvolutionForwardBias(
    miopenHandle_t handle, const void* alpha, const miopenTensorDescriptor_t b_tensor,
    const void* b, const void* beta, const miopenTensorDescriptor_t y_tensor, void* y) {
  return answer("miopenConvolutionForwardBias", handle, [&] {
    const auto& bias = tensor("bDesc", b_tensor);
    const auto& of = tensor("yDesc", y_tensor);
    require(bias.type == of.type, "b and y are of different types");
    require(of.type != miopenBFloat16, "biases of bfloat16 are not added",
            miopenStatusNotImplemented);
    require_plain(alpha, beta, of.type, miopenStatusUnknownError);
    require(b && y, "b or y is null");
    require(of.sizes.size() == 4 || of.sizes.size() == 5, "y is of rank 4 or 5");
    Sizes wanted(of.sizes.size(), 1);
    wanted[1] = of.sizes[1];
    require(bias.sizes == wanted, "b is " + text_of(bias.sizes) + ", not " + text_of(wanted));
    require(launch(*handle, ("bias_" + suffix_of(of.type)).c_str(), elements_of(of), y, b,
                   bias_of(of)));
  });
}
