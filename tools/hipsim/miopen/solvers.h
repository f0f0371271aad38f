// The ways to compute a convolution: which of them suit a problem, what workspace they want, and
// their compilation, which takes time once.
#pragma once
#include <vector>

#include "descriptors.h"

namespace hipsim {

struct Solver {
  std::uint64_t id;
  miopenConvFwdAlgorithm_t algorithm;
  const char* name;
  const char* variable;  // 0 in it: never offered
  float time;            // that it is said to take; not positive: unknown
  bool (*suits)(const Problem&);
  std::int64_t (*elements)(const Convolution&);  // of its workspace
  void (*run)(miopenHandle&, const Problem&, void* y, const void* x, const void* w,
              void* workspace);
};

struct Operands {
  void* y;
  const void *x, *w;
  void* workspace;
  std::size_t workspace_bytes;
};

// The best first; empty where the environment leaves none.
std::vector<const Solver*> solvers_for(const Problem& problem);
// Throws where there is no such solution, or none for the problem.
const Solver& solver_for(const Problem& problem, std::uint64_t id);
std::size_t workspace_of(const Solver& solver, const Problem& problem);
// Throws while the handle's stream captures, except where it was compiled in this process.
void compile(const miopenHandle& handle, const Solver& solver, const Problem& problem);
// Queue it, compiled before if need be.
void run(miopenHandle& handle, const Solver& solver, const Problem& problem,
         const Operands& operands);

}  // namespace hipsim
