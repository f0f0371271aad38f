#include "handle.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace hipsim {

RocblasFaults::RocblasFaults() {
  if (const char* text = std::getenv("HIPSIM_FAIL_GEMM"))
    gemm.set(text, rocblas_status_internal_error);
  if (const char* text = std::getenv("HIPSIM_FAIL_WORKSPACE"))
    workspace.set(text, rocblas_status_memory_error);
}

RocblasFaults& rocblas_faults() {
  static auto* instance = new RocblasFaults;  // never destroyed: exit handlers may still ask
  return *instance;
}

rocblas_status refuse(rocblas_status status, const char* call, const std::string& why) {
  std::fprintf(stderr, "hipsim: %s: %s: %s\n", call, rocblas_status_to_string(status), why.c_str());
  return status;
}

Entered::Entered(rocblas_handle handle, const char* call) : InUse(handle) {
  if (refusal)
    status = refuse(unknown ? rocblas_status_invalid_handle : rocblas_status_internal_error, call,
                    refusal);
}
}  // namespace hipsim

using namespace hipsim;

HIPSIM_API rocblas_status rocblas_create_handle(rocblas_handle* handle) {
  if (!handle) return rocblas_status_invalid_handle;
  auto made = std::make_unique<_rocblas_handle>();
  if (admit(*made) != hipSuccess) return rocblas_status_internal_error;
  *handle = made.release();
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_destroy_handle(rocblas_handle handle) {
  {
    const Entered entered(handle, "rocblas_destroy_handle");
    if (entered.status) return entered.status;
    if (handle->owns_workspace) hipFree(handle->workspace);
    dismiss(*handle);
  }
  delete handle;
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream) {
  const Entered entered(handle, "rocblas_set_stream");
  if (!entered.status) handle->stream = stream;
  return entered.status;
}

HIPSIM_API rocblas_status rocblas_get_stream(rocblas_handle handle, hipStream_t* stream) {
  const Entered entered(handle, "rocblas_get_stream");
  if (entered.status) return entered.status;
  if (!stream) return rocblas_status_invalid_pointer;
  *stream = handle->stream;
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_set_pointer_mode(rocblas_handle handle,
                                                   rocblas_pointer_mode mode) {
  const Entered entered(handle, "rocblas_set_pointer_mode");
  if (entered.status) return entered.status;
  if (mode != rocblas_pointer_mode_host && mode != rocblas_pointer_mode_device)
    return rocblas_status_invalid_value;
  handle->pointer_mode = mode;
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_set_atomics_mode(rocblas_handle handle,
                                                   rocblas_atomics_mode mode) {
  const Entered entered(handle, "rocblas_set_atomics_mode");
  if (entered.status) return entered.status;
  return mode == rocblas_atomics_not_allowed || mode == rocblas_atomics_allowed
             ? rocblas_status_success
             : rocblas_status_invalid_value;
}

HIPSIM_API rocblas_status rocblas_set_math_mode(rocblas_handle handle, rocblas_math_mode mode) {
  const Entered entered(handle, "rocblas_set_math_mode");
  if (entered.status) return entered.status;
  return mode == rocblas_default_math || mode == rocblas_xf32_xdl_math_op
             ? rocblas_status_success
             : rocblas_status_invalid_value;
}

HIPSIM_API rocblas_status rocblas_set_workspace(rocblas_handle handle, void* memory,
                                                std::size_t bytes) {
  const Entered entered(handle, "rocblas_set_workspace");
  if (entered.status) return entered.status;
  if (const int status = rocblas_faults().workspace.next())
    return refuse(static_cast<rocblas_status>(status), "rocblas_set_workspace", "injected");
  if (handle->owns_workspace) hipFree(handle->workspace);
  handle->owns_workspace = false;
  handle->workspace = memory;
  handle->workspace_bytes = memory ? bytes : 0;
  return rocblas_status_success;
}

HIPSIM_API const char* rocblas_status_to_string(rocblas_status status) {
  switch (status) {
#define NAME(status)           \
  case rocblas_status_##status: \
    return "rocblas_status_" #status;
    NAME(success)
    NAME(invalid_handle)
    NAME(not_implemented)
    NAME(invalid_pointer)
    NAME(invalid_size)
    NAME(memory_error)
    NAME(internal_error)
    NAME(perf_degraded)
    NAME(size_query_mismatch)
    NAME(size_increased)
    NAME(size_unchanged)
    NAME(invalid_value)
    NAME(continue)
    NAME(check_numerics_fail)
    NAME(excluded_from_build)
    NAME(arch_mismatch)
#undef NAME
  }
  return "<undefined rocblas_status value>";
}

namespace {
// That of the ROCm whose HIP we say we are: rocBLAS counts its major version two lower.
const std::string& version() {
  static const std::string text = [] {
    int hip = 0;
    hipRuntimeGetVersion(&hip);
    return std::to_string(hip / 10'000'000 - 2) + "." + std::to_string(hip / 100'000 % 100) +
           ".0.hipsim";
  }();
  return text;
}
}  // namespace

HIPSIM_API rocblas_status rocblas_get_version_string_size(std::size_t* bytes) {
  if (!bytes) return rocblas_status_invalid_pointer;
  *bytes = version().size() + 1;
  return rocblas_status_success;
}

HIPSIM_API rocblas_status rocblas_get_version_string(char* text, std::size_t bytes) {
  if (!text) return rocblas_status_invalid_pointer;
  if (bytes < version().size() + 1) return rocblas_status_invalid_size;
  std::memcpy(text, version().c_str(), version().size() + 1);
  return rocblas_status_success;
}

// Inject a fault from now on: "gemm" or "workspace", and "n", "n+" or "n:status".
HIPSIM_API int hipsim_rocblas_inject(const char* what, const char* when) {
  const std::string name = what ? what : "";
  RocblasFaults& faults = rocblas_faults();
  if (!when) return -1;
  if (name == "gemm") return faults.gemm.set(when, rocblas_status_internal_error), 0;
  if (name == "workspace") return faults.workspace.set(when, rocblas_status_memory_error), 0;
  return -1;
}

// How many products were asked for, or workspaces set, since the start or the last injection.
HIPSIM_API long long hipsim_rocblas_count(const char* what) {
  const std::string name = what ? what : "";
  if (name == "gemm") return rocblas_faults().gemm.count();
  return name == "workspace" ? rocblas_faults().workspace.count() : -1;
}
