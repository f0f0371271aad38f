// A handle of the simulated rocBLAS, and how every call that takes one begins.
#pragma once
#include "../common/library.h"
#include "../common/settings.h"
#include "rocblas_api.h"

struct _rocblas_handle : hipsim::LibraryHandle {
  rocblas_pointer_mode pointer_mode = rocblas_pointer_mode_host;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  bool owns_workspace = false;
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

// As rocBLAS answers for a handle that may not be used.
class Entered : InUse {
 public:
  Entered(rocblas_handle handle, const char* call);
  rocblas_status status = rocblas_status_success;
};

// Load the kernels of the handle's architecture; abort()s, as rocBLAS does, where it has none.
hipError_t load_kernels(_rocblas_handle& handle);

}  // namespace hipsim
