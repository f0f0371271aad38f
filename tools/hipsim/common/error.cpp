// Names of errors, and the last error of a thread.
#include "hipsim_api.h"

namespace hipsim {
namespace {
struct Name {
  hipError_t code;
  const char* name;
  const char* text;
};

constexpr Name kNames[] = {
    {hipSuccess, "hipSuccess", "no error"},
    {hipErrorInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {hipErrorOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {hipErrorNotInitialized, "hipErrorNotInitialized", "not initialized in this process"},
    {hipErrorDeinitialized, "hipErrorDeinitialized", "the runtime is shut down"},
    {hipErrorInvalidConfiguration, "hipErrorInvalidConfiguration",
     "invalid grid or block of a launch"},
    {hipErrorInvalidPitchValue, "hipErrorInvalidPitchValue", "invalid pitch"},
    {hipErrorInvalidSymbol, "hipErrorInvalidSymbol", "invalid device symbol"},
    {hipErrorInvalidDevicePointer, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {hipErrorInvalidMemcpyDirection, "hipErrorInvalidMemcpyDirection", "invalid copy direction"},
    {hipErrorInsufficientDriver, "hipErrorInsufficientDriver", "the driver is too old"},
    {hipErrorInvalidDeviceFunction, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {hipErrorNoDevice, "hipErrorNoDevice", "no device"},
    {hipErrorInvalidDevice, "hipErrorInvalidDevice", "invalid device number"},
    {hipErrorInvalidImage, "hipErrorInvalidImage", "invalid code object"},
    {hipErrorInvalidContext, "hipErrorInvalidContext", "invalid context"},
    {hipErrorMapFailed, "hipErrorMapFailed", "mapping failed"},
    {hipErrorNoBinaryForGpu, "hipErrorNoBinaryForGpu", "no code object for this device"},
    {hipErrorECCNotCorrectable, "hipErrorECCNotCorrectable", "uncorrectable memory error"},
    {hipErrorUnsupportedLimit, "hipErrorUnsupportedLimit", "unsupported limit"},
    {hipErrorPeerAccessUnsupported, "hipErrorPeerAccessUnsupported",
     "peer access is not supported"},
    {hipErrorInvalidKernelFile, "hipErrorInvalidKernelFile", "invalid kernel file"},
    {hipErrorInvalidSource, "hipErrorInvalidSource", "invalid kernel source"},
    {hipErrorFileNotFound, "hipErrorFileNotFound", "file not found"},
    {hipErrorSharedObjectSymbolNotFound, "hipErrorSharedObjectSymbolNotFound", "symbol not found"},
    {hipErrorSharedObjectInitFailed, "hipErrorSharedObjectInitFailed",
     "the code object cannot be loaded"},
    {hipErrorOperatingSystem, "hipErrorOperatingSystem", "an operating system call failed"},
    {hipErrorInvalidHandle, "hipErrorInvalidHandle", "invalid handle"},
    {hipErrorIllegalState, "hipErrorIllegalState", "not possible in this state"},
    {hipErrorNotFound, "hipErrorNotFound", "named symbol not found"},
    {hipErrorNotReady, "hipErrorNotReady", "not ready"},
    {hipErrorIllegalAddress, "hipErrorIllegalAddress", "a kernel accessed an illegal address"},
    {hipErrorLaunchOutOfResources, "hipErrorLaunchOutOfResources", "out of resources for a launch"},
    {hipErrorLaunchTimeOut, "hipErrorLaunchTimeOut", "a kernel took too long"},
    {hipErrorPeerAccessAlreadyEnabled, "hipErrorPeerAccessAlreadyEnabled",
     "peer access is enabled already"},
    {hipErrorPeerAccessNotEnabled, "hipErrorPeerAccessNotEnabled", "peer access is not enabled"},
    {hipErrorSetOnActiveProcess, "hipErrorSetOnActiveProcess", "too late to set"},
    {hipErrorContextIsDestroyed, "hipErrorContextIsDestroyed", "the context is destroyed"},
    {hipErrorAssert, "hipErrorAssert", "a kernel's assert failed"},
    {hipErrorHostMemoryAlreadyRegistered, "hipErrorHostMemoryAlreadyRegistered",
     "host memory is registered already"},
    {hipErrorHostMemoryNotRegistered, "hipErrorHostMemoryNotRegistered",
     "host memory is not registered"},
    {hipErrorLaunchFailure, "hipErrorLaunchFailure", "a kernel failed, or the device is lost"},
    {hipErrorCooperativeLaunchTooLarge, "hipErrorCooperativeLaunchTooLarge",
     "too many blocks for a cooperative launch"},
    {hipErrorNotSupported, "hipErrorNotSupported", "not supported"},
    {hipErrorStreamCaptureUnsupported, "hipErrorStreamCaptureUnsupported",
     "not permitted while a stream captures"},
    {hipErrorStreamCaptureInvalidated, "hipErrorStreamCaptureInvalidated",
     "an earlier error has made the capture invalid"},
    {hipErrorStreamCaptureMerge, "hipErrorStreamCaptureMerge", "two captures cannot be merged"},
    {hipErrorStreamCaptureUnmatched, "hipErrorStreamCaptureUnmatched",
     "the capture began in another stream"},
    {hipErrorStreamCaptureUnjoined, "hipErrorStreamCaptureUnjoined",
     "a captured stream has not joined the one that began"},
    {hipErrorStreamCaptureIsolation, "hipErrorStreamCaptureIsolation",
     "a capture cannot depend on work outside of it"},
    {hipErrorStreamCaptureImplicit, "hipErrorStreamCaptureImplicit",
     "the null stream cannot be used while a blocking stream captures"},
    {hipErrorCapturedEvent, "hipErrorCapturedEvent", "the event was recorded in a capture"},
    {hipErrorStreamCaptureWrongThread, "hipErrorStreamCaptureWrongThread",
     "the capture began in another thread"},
    {hipErrorGraphExecUpdateFailure, "hipErrorGraphExecUpdateFailure",
     "the graph cannot be updated"},
    {hipErrorUnknown, "hipErrorUnknown", "unknown error"},
};

const Name& name_of(hipError_t error) {
  for (const Name& name : kNames)
    if (name.code == error) return name;
  static constexpr Name none{hipErrorUnknown, "hipErrorUnknown", "no such error"};
  return none;
}

thread_local hipError_t last_error = hipSuccess;
}  // namespace

// "Not ready" is an answer, not an error to be found later.
hipError_t remember_error(hipError_t error) {
  if (error != hipSuccess && error != hipErrorNotReady) last_error = error;
  return error;
}
}  // namespace hipsim

using namespace hipsim;

HIPSIM_API const char* hipGetErrorName(hipError_t error) { return name_of(error).name; }
HIPSIM_API const char* hipGetErrorString(hipError_t error) { return name_of(error).text; }

HIPSIM_API hipError_t hipDrvGetErrorName(hipError_t error, const char** name) {
  if (!name) return remember_error(hipErrorInvalidValue);
  *name = name_of(error).name;
  return hipSuccess;
}

HIPSIM_API hipError_t hipDrvGetErrorString(hipError_t error, const char** text) {
  if (!text) return remember_error(hipErrorInvalidValue);
  *text = name_of(error).text;
  return hipSuccess;
}

HIPSIM_API hipError_t hipGetLastError() {
  const hipError_t error = last_error;
  last_error = hipSuccess;
  return error;
}

HIPSIM_API hipError_t hipExtGetLastError() { return hipGetLastError(); }
HIPSIM_API hipError_t hipPeekAtLastError() { return last_error; }
