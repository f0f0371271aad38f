#include "handle.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

namespace hipsim {

namespace {
struct Named {
  const char* name;
  Fault MiopenFaults::*fault;
  const char* variable;
};
constexpr Named kFaults[] = {
    {"convolution", &MiopenFaults::convolution, "HIPSIM_FAIL_CONVOLUTION"},
    {"pooling", &MiopenFaults::pooling, "HIPSIM_FAIL_POOLING"},
    {"compile", &MiopenFaults::compile, "HIPSIM_FAIL_MIOPEN_COMPILE"},
    {"find", &MiopenFaults::find, "HIPSIM_FAIL_FIND"},
};

Fault* fault_named(const char* name) {
  for (const Named& each : kFaults)
    if (name && std::string(name) == each.name) return &(miopen_faults().*each.fault);
  return nullptr;
}
}  // namespace

MiopenFaults::MiopenFaults() {
  for (const Named& each : kFaults)
    if (const char* text = std::getenv(each.variable))
      (this->*each.fault).set(text, miopenStatusInternalError);
}

MiopenFaults& miopen_faults() {
  static auto* instance = new MiopenFaults;  // never destroyed: exit handlers may still ask
  return *instance;
}

void occur(Fault& fault) {
  const auto status = static_cast<miopenStatus_t>(fault.next());
  require(status == miopenStatusSuccess, "injected", status);
}

void require(hipError_t error) {
  require(error == hipSuccess, "HIP's error " + std::to_string(error), miopenStatusInternalError);
}

miopenStatus_t refuse(miopenStatus_t status, const char* call, const std::string& why) {
  std::fprintf(stderr, "hipsim: %s: %s: %s\n", call, miopenGetErrorString(status), why.c_str());
  return status;
}

// That of the ROCm whose HIP we say we are.
int minor_version() {
  int hip = 0;
  hipRuntimeGetVersion(&hip);
  return hip >= 70'000'000 ? 5 : 4;
}

void take_time(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(std::strtol(text, nullptr, 10)));
}

bool is_capturing(const miopenHandle& handle) {
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  hipStreamIsCapturing(handle.stream, &status);
  return status != hipStreamCaptureStatusNone;
}

}  // namespace hipsim

using namespace hipsim;

namespace {
void make(miopenHandle_t* handle, hipStream_t stream) {
  require(handle, "handle is null");
  auto made = std::make_unique<miopenHandle>();
  require(admit(*made) == hipSuccess, "no device", miopenStatusUnknownError);
  const std::string folder = folder_of(reinterpret_cast<void (*)()>(&miopenCreateWithStream));
  const std::string object = folder + "/miopen/" + made->arch + ".hsaco";
  if (hipModuleLoad(&made->module, object.c_str()) != hipSuccess) {
    dismiss(*made);
    throw Refusal{miopenStatusInternalError, "no kernels: " + object};
  }
  made->stream = stream;
  *handle = made.release();
}
}  // namespace

HIPSIM_API miopenStatus_t miopenCreate(miopenHandle_t* handle) {
  return answer("miopenCreate", [&] { make(handle, nullptr); });
}

HIPSIM_API miopenStatus_t miopenCreateWithStream(miopenHandle_t* handle, hipStream_t stream) {
  return answer("miopenCreateWithStream", [&] { make(handle, stream); });
}

HIPSIM_API miopenStatus_t miopenDestroy(miopenHandle_t handle) {
  const miopenStatus_t status = answer("miopenDestroy", handle, [&] { dismiss(*handle); });
  if (status == miopenStatusSuccess) delete handle;
  return status;
}

HIPSIM_API miopenStatus_t miopenSetStream(miopenHandle_t handle, hipStream_t stream) {
  return answer("miopenSetStream", handle, [&] { handle->stream = stream; });
}

HIPSIM_API miopenStatus_t miopenGetStream(miopenHandle_t handle, hipStream_t* stream) {
  return answer("miopenGetStream", handle, [&] {
    require(stream, "stream is null");
    *stream = handle->stream;
  });
}

HIPSIM_API miopenStatus_t miopenGetVersion(std::size_t* major, std::size_t* minor,
                                           std::size_t* patch) {
  if (major) *major = 3;
  if (minor) *minor = static_cast<std::size_t>(minor_version());
  if (patch) *patch = 0;
  return miopenStatusSuccess;
}

HIPSIM_API const char* miopenGetErrorString(miopenStatus_t error) {
  switch (error) {
#define NAME(status)         \
  case miopenStatus##status: \
    return "miopenStatus" #status;
    NAME(Success)
    NAME(NotInitialized)
    NAME(InvalidValue)
    NAME(BadParm)
    NAME(AllocFailed)
    NAME(InternalError)
    NAME(NotImplemented)
    NAME(UnknownError)
    NAME(UnsupportedOp)
    NAME(GpuOperationsSkipped)
    NAME(VersionMismatch)
#undef NAME
  }
  return "Unknown error status";
}

// Inject a fault from now on: "convolution", "pooling", "compile" or "find", and "n", "n+" or
// "n:status".
HIPSIM_API int hipsim_miopen_inject(const char* what, const char* when) {
  Fault* fault = fault_named(what);
  if (!fault || !when) return -1;
  fault->set(when, miopenStatusInternalError);
  return 0;
}

// How often that has happened since the start or the last injection. What is found compiled counts
// as no compilation.
HIPSIM_API long long hipsim_miopen_count(const char* what) {
  const Fault* fault = fault_named(what);
  return fault ? fault->count() : -1;
}
