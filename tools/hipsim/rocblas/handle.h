// A handle of the simulated rocBLAS, and how every call that takes one begins.
#pragma once
#include <atomic>
#include <map>
#include <string>

#include "../common/settings.h"
#include "rocblas_api.h"

struct _rocblas_handle {
  int device = 0;
  std::string arch;
  hipStream_t stream = nullptr;
  rocblas_pointer_mode pointer_mode = rocblas_pointer_mode_host;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  bool owns_workspace = false;
  hipModule_t module = nullptr;
  std::map<std::string, hipFunction_t> functions;
  std::atomic<bool> busy{false};
};

namespace hipsim {

// Faults that the environment asks for: of products, and of workspaces that are set.
struct RocblasFaults {
  Fault gemm, workspace;
  RocblasFaults();
};
RocblasFaults& rocblas_faults();

// Tell the user on stderr what rocBLAS would only give a number for.
rocblas_status refuse(rocblas_status status, const char* call, const std::string& why);

// Keeps a handle for one call: none that is unknown, and none that another thread is in.
class Entered {
 public:
  Entered(rocblas_handle handle, const char* call);
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  rocblas_status status = rocblas_status_success;

 private:
  rocblas_handle handle_ = nullptr;
};

// A kernel of the handle's architecture; abort()s, as rocBLAS does, where there is no code for it.
hipFunction_t kernel(_rocblas_handle& handle, const char* name);

}  // namespace hipsim
