// Code objects that are loaded, and their kernels.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime.h"

namespace hipsim {

struct Function {
  std::string name;
  Module* module = nullptr;
  std::uint64_t kernel = 0;  // in the device process
  std::vector<ParameterRecord> parameters;
  std::size_t parameter_bytes = 0;  // up to the last parameter's end
  std::uint32_t shared_bytes = 0;   // of its __shared__ variables
};

struct Module {
  Device* device = nullptr;
  std::uint64_t id = 0;  // in the device process
  std::atomic<bool> unloaded{false};
  std::map<std::string, std::unique_ptr<Function>> functions;
};

// The module or function a handle means; throws hipErrorInvalidHandle.
std::shared_ptr<Module> module_of(hipModule_t handle);
std::shared_ptr<Function> function_of(hipFunction_t handle);

}  // namespace hipsim
