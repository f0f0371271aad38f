#include "module.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "image.h"
#include "stream.h"

namespace hipsim {

namespace {
std::mutex mutex;
std::map<hipModule_t, std::shared_ptr<Module>> modules;
std::map<hipFunction_t, std::shared_ptr<Module>> functions;

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

// The object in a memory file, which the device process can open without a path.
int memory_file(const void* image, std::size_t bytes) {
  const int descriptor = memfd_create("hipsim-module", MFD_CLOEXEC);
  require(descriptor >= 0, hipErrorOperatingSystem);
  const char* at = static_cast<const char*>(image);
  while (bytes) {
    const ssize_t written = write(descriptor, at, bytes);
    if (written <= 0) {
      close(descriptor);
      throw Error{hipErrorOperatingSystem};
    }
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return descriptor;
}

hipError_t load(const char* call, hipModule_t* handle, const void* image) {
  std::size_t bytes = 0;
  std::string reason;
  if (const hipError_t error = inspect_image(image, bytes, reason)) {
    report("%s: %s", call, reason.c_str());
    return error;
  }
  Device& device = Runtime::instance().current();
  device.start();
  const Descriptor file{memory_file(image, bytes)};
  const ModuleDescription description = device.engine.load(file.number, reason);
  if (!description.module) {
    report("%s: %s", call, reason.c_str());
    return hipErrorSharedObjectInitFailed;
  }
  auto module = std::make_shared<Module>();
  module->device = &device;
  module->id = description.module;
  std::lock_guard lock(mutex);
  for (const KernelDescription& kernel : description.kernels) {
    auto function = std::make_unique<Function>();
    function->name = kernel.name;
    function->module = module.get();
    function->kernel = kernel.kernel;
    function->shared_bytes = kernel.shared_bytes;
    function->parameters = kernel.parameters;
    if (!kernel.parameters.empty())
      function->parameter_bytes = kernel.parameters.back().offset + kernel.parameters.back().size;
    functions[function.get()] = module;
    module->functions[kernel.name] = std::move(function);
  }
  *handle = module.get();
  modules[module.get()] = std::move(module);
  return hipSuccess;
}
}  // namespace

std::shared_ptr<Module> module_of(hipModule_t handle) {
  std::lock_guard lock(mutex);
  const auto found = modules.find(handle);
  require(found != modules.end(), hipErrorInvalidHandle);
  return found->second;
}

std::shared_ptr<Function> function_of(hipFunction_t handle) {
  std::lock_guard lock(mutex);
  const auto found = functions.find(handle);
  require(found != functions.end(), hipErrorInvalidHandle);
  return {found->second, handle};  // keeps the module
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return api("hipModuleLoadData", kDevice, [&](Runtime&) {
    require(module && image);
    return load("hipModuleLoadData", module, image);
  });
}

HIPSIM_API hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, void*,
                                          void**) {
  return hipModuleLoadData(module, image);
}

HIPSIM_API hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  return api("hipModuleLoad", kDevice, [&](Runtime&) {
    require(module && path);
    const Descriptor file{open(path, O_RDONLY | O_CLOEXEC)};
    struct stat status;
    require(file.number >= 0 && fstat(file.number, &status) == 0, hipErrorFileNotFound);
    const auto bytes = static_cast<std::size_t>(status.st_size);
    require(bytes >= 64, hipErrorInvalidImage);
    void* image = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.number, 0);
    require(image != MAP_FAILED, hipErrorInvalidImage);
    const hipError_t error = load("hipModuleLoad", module, image);
    munmap(image, bytes);
    return error;
  });
}

HIPSIM_API hipError_t hipModuleUnload(hipModule_t handle) {
  return api("hipModuleUnload", kDevice | kNotCaptured, [&](Runtime&) {
    const auto module = module_of(handle);
    wait_for_device(*module->device);
    std::lock_guard lock(mutex);
    for (const auto& [name, function] : module->functions) functions.erase(function.get());
    modules.erase(handle);
    module->unloaded = true;
    module->device->engine.unload(module->id);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t handle,
                                           const char* name) {
  return api("hipModuleGetFunction", kDevice, [&](Runtime&) {
    require(function && name);
    const auto module = module_of(handle);
    const auto found = module->functions.find(name);
    require(found != module->functions.end(), hipErrorNotFound);
    *function = found->second.get();
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipModuleGetFunctionCount(unsigned* count, hipModule_t handle) {
  return api("hipModuleGetFunctionCount", kDevice, [&](Runtime&) {
    require(count);
    *count = static_cast<unsigned>(module_of(handle)->functions.size());
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipModuleGetGlobal(void** pointer, std::size_t* bytes, hipModule_t handle,
                                         const char* name) {
  return api("hipModuleGetGlobal", kDevice, [&](Runtime&) {
    require((pointer || bytes) && name);
    module_of(handle);
    report(
        "hipModuleGetGlobal(%s): the simulator gives global variables of modules no device address",
        name);
    return hipErrorNotFound;
  });
}
