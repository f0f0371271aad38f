// Where the library's kernels come from: a folder of files by architecture, as Tensile's are.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "handle.h"

namespace hipsim {

namespace {
namespace fs = std::filesystem;

fs::path folder() {
  const char* chosen = std::getenv("ROCBLAS_TENSILE_LIBPATH");
  if (chosen && *chosen) return chosen;
  return fs::path(folder_of(&rocblas_initialize)) / "rocblas" / "library";
}

std::string lazy(const std::string& arch) { return "TensileLibrary_lazy_" + arch + ".dat"; }

[[noreturn]] void give_up(const fs::path& from, const std::string& arch) {
  std::fprintf(stderr,
               "\nrocBLAS error: Cannot read %s: No such file or directory for GPU arch : %s\n "
               "List of available TensileLibrary Files : \n",
               (from / "TensileLibrary.dat").c_str(), arch.c_str());
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(from, ignored))
    if (entry.path().extension() == ".dat")
      std::fprintf(stderr, "\"%s\"\n", entry.path().c_str());
  std::abort();
}
}  // namespace

hipError_t load_kernels(_rocblas_handle& handle) {
  if (handle.module) return hipSuccess;
  const fs::path from = folder();
  if (!fs::exists(from / lazy(handle.arch))) give_up(from, handle.arch);
  const fs::path object = from / ("Kernels.so-000-" + handle.arch + ".hsaco");
  return hipModuleLoad(&handle.module, object.c_str());
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API void rocblas_initialize() {
  rocblas_handle handle;
  if (rocblas_create_handle(&handle) != rocblas_status_success) std::abort();
  load_kernels(*handle);
  rocblas_destroy_handle(handle);
}
