#include "launch.h"

#include <cstring>

#include "capture.h"
#include "module.h"
#include "stream.h"

namespace hipsim {

namespace {
[[noreturn]] void refuse(const Function& function, hipError_t error, const char* format,
                         auto... values) {
  char text[300];
  std::snprintf(text, sizeof text, format, values...);
  report("launch of %s: %s", function.name.c_str(), text);
  throw Error{error};
}

void check_dimensions(const Function& function, Dim grid, Dim block, unsigned shared_bytes) {
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || !threads)
    refuse(function, hipErrorInvalidConfiguration, "grid (%u,%u,%u) of blocks (%u,%u,%u) is empty",
           grid.x, grid.y, grid.z, block.x, block.y, block.z);
  if (threads > 1024)
    refuse(function, hipErrorInvalidConfiguration,
           "a block of %llu threads; at most 1024 are possible",
           static_cast<unsigned long long>(threads));
  const auto total = [](std::uint64_t blocks, std::uint64_t each) { return blocks * each >> 32; };
  if (total(grid.x, block.x) || total(grid.y, block.y) || total(grid.z, block.z))
    refuse(function, hipErrorInvalidConfiguration,
           "grid (%u,%u,%u) of blocks (%u,%u,%u) has 2^32 threads or more in a dimension", grid.x,
           grid.y, grid.z, block.x, block.y, block.z);
  if (shared_bytes > kMaxSharedBytes - function.shared_bytes)
    refuse(function, hipErrorInvalidValue,
           "%u bytes of dynamic and %u of static shared memory; a block has %llu", shared_bytes,
           function.shared_bytes, static_cast<unsigned long long>(kMaxSharedBytes));
}

// The parameters as one buffer in the kernel's layout.
void pack(const Function& function, void** parameters, void** extra, LaunchRequest& request) {
  const std::size_t wanted = function.parameter_bytes;
  if (wanted > kMaxParameterBytes)
    refuse(function, hipErrorInvalidValue, "%zu bytes of parameters", wanted);
  request.parameter_bytes = static_cast<std::uint32_t>(wanted);
  if (extra) {
    if (parameters) refuse(function, hipErrorInvalidValue, "has both kernelParams and extra");
    const void* buffer = nullptr;
    const std::size_t* bytes = nullptr;
    std::size_t i = 0;
    for (; i < 5 && extra[i] != reinterpret_cast<void*>(kLaunchParamEnd); i += 2) {
      if (extra[i] == reinterpret_cast<void*>(kLaunchParamBufferPointer))
        buffer = extra[i + 1];
      else if (extra[i] == reinterpret_cast<void*>(kLaunchParamBufferSize))
        bytes = static_cast<const std::size_t*>(extra[i + 1]);
      else
        refuse(function, hipErrorInvalidValue, "entry %zu of extra is none of HIP_LAUNCH_PARAM_*",
               i);
    }
    if (!buffer || !bytes)
      refuse(function, hipErrorInvalidValue, "extra lacks the buffer's pointer or size");
    // Padding up to the buffer's alignment is harmless; anything else is another signature.
    if (*bytes < wanted || *bytes > (wanted + 15) / 16 * 16)
      refuse(function, hipErrorInvalidValue,
             "the argument buffer has %zu bytes, the kernel's %zu parameters take %zu", *bytes,
             function.parameters.size(), wanted);
    std::memcpy(request.parameters, buffer, wanted);
    return;
  }
  if (!parameters && wanted)
    refuse(function, hipErrorInvalidValue, "no arguments are given, the kernel has %zu parameters",
           function.parameters.size());
  for (std::size_t i = 0; i < function.parameters.size(); ++i) {
    if (!parameters[i]) refuse(function, hipErrorInvalidValue, "kernelParams[%zu] is null", i);
    std::memcpy(request.parameters + function.parameters[i].offset, parameters[i],
                function.parameters[i].size);
  }
}

std::string where(const Reply& fault) {
  char text[160];
  std::snprintf(text, sizeof text, "block (%u,%u,%u), thread (%u,%u,%u)", fault.block.x,
                fault.block.y, fault.block.z, fault.thread.x, fault.thread.y, fault.thread.z);
  return text;
}

hipError_t report_fault(const Function& function, const Reply& fault) {
  Runtime& runtime = Runtime::instance();
  const char* name = function.name.c_str();
  if (fault.outcome == Outcome::illegal_address) {
    const auto* address = reinterpret_cast<const void*>(fault.address);
    const Device* owner = runtime.owner(address);
    std::string what = "host memory, or no memory at all";
    if (owner) what = owner->memory->describe(fault.address);
    if (owner && owner != function.module->device)
      what += ", which device " + std::to_string(function.module->device->id) +
              " may only touch with peer access";
    if (runtime.pinned->owns(fault.address)) what = runtime.pinned->describe(fault.address);
    report("kernel %s, %s: illegal access of %p: %s", name, where(fault).c_str(), address,
           what.c_str());
    return hipErrorIllegalAddress;
  }
  report("kernel %s, %s: %s", name, where(fault).c_str(), fault.text);
  return fault.outcome == Outcome::shared_overflow ? hipErrorIllegalAddress : hipErrorLaunchFailure;
}

// Look beside the memory that the kernel was given: damage there is most likely its own.
hipError_t check_parameters(const Function& function, const LaunchRequest& request) {
  Runtime& runtime = Runtime::instance();
  for (const ParameterRecord& parameter : function.parameters) {
    if (parameter.size != sizeof(std::uintptr_t)) continue;
    std::uintptr_t address;
    std::memcpy(&address, request.parameters + parameter.offset, sizeof address);
    Device* device = runtime.owner(reinterpret_cast<const void*>(address));
    Arena* arena = device                          ? device->memory.get()
                   : runtime.pinned->owns(address) ? runtime.pinned.get()
                                                   : nullptr;
    if (!arena) continue;
    const auto allocation = arena->find(address);
    if (!allocation) continue;
    const std::string damage = arena->damage(*allocation);
    if (damage.empty()) continue;
    report("kernel %s wrote outside of an allocation: %s", function.name.c_str(), damage.c_str());
    return hipErrorIllegalAddress;
  }
  return hipSuccess;
}

hipError_t run(Stream& stream, const Function& function, const LaunchRequest& request) {
  Engine& engine = stream.device->engine;
  if (function.module->unloaded) {
    report("kernel %s of a module that is unloaded", function.name.c_str());
    return hipErrorInvalidHandle;
  }
  if (stream.connection < 0) stream.connection = engine.connect();
  const Reply reply = engine.launch(stream.connection, request);
  if (reply.outcome != Outcome::ok) return report_fault(function, reply);
  return check_parameters(function, request);
}

hipError_t launch(const char* call, hipFunction_t handle, Dim grid, Dim block,
                  unsigned shared_bytes, hipStream_t stream_handle, void** parameters,
                  void** extra) {
  return api(call, kDevice, [&](Runtime&) {
    static std::atomic<std::uint32_t> number{0};
    const auto function = function_of(handle);
    const auto stream = stream_of(stream_handle);
    require(function->module->device == stream->device, hipErrorInvalidHandle);
    check_dimensions(*function, grid, block, shared_bytes);
    auto request = std::make_shared<LaunchRequest>();
    pack(*function, parameters, extra, *request);
    request->kernel = function->kernel;
    request->grid = grid;
    request->block = block;
    request->shared_bytes = shared_bytes;
    const hipError_t lost = count_launch();
    enqueue(*stream, {hipGraphNodeTypeKernel, [=](Stream& running) {
                        if (lost) return lost;
                        request->number = number++;
                        return run(running, *function, *request);
                      }});
    return hipSuccess;
  });
}
}  // namespace

hipError_t count_launch() {
  if (const int code = settings().fail_launch.next()) throw Error{static_cast<hipError_t>(code)};
  return static_cast<hipError_t>(settings().device_lost.next());
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x,
                                            unsigned grid_y, unsigned grid_z, unsigned block_x,
                                            unsigned block_y, unsigned block_z,
                                            unsigned shared_bytes, hipStream_t stream,
                                            void** parameters, void** extra) {
  return launch("hipModuleLaunchKernel", function, {grid_x, grid_y, grid_z},
                {block_x, block_y, block_z}, shared_bytes, stream, parameters, extra);
}
