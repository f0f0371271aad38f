#include "handle.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

namespace hipsim {

namespace {
namespace fs = std::filesystem;

void here() {}

fs::path folder() {
  const char* chosen = std::getenv("HIPBLASLT_TENSILE_LIBPATH");
  if (chosen && *chosen) return chosen;
  return fs::path(folder_of(&here)) / "hipblaslt" / "library";
}
}  // namespace

Fault& algorithm_fault() {
  static Fault fault;
  return fault;
}

Fault& matmul_fault() {
  static auto* instance = [] {
    auto* made = new Fault;  // never destroyed: exit handlers may still ask
    if (const char* text = std::getenv("HIPSIM_FAIL_MATMUL"))
      made->set(text, HIPBLAS_STATUS_INTERNAL_ERROR);
    return made;
  }();
  return *instance;
}

hipblasStatus_t refuse(hipblasStatus_t status, const char* call, const std::string& why) {
  std::fprintf(stderr, "hipsim: %s: hipblasStatus_t %d: %s\n", call, status, why.c_str());
  return status;
}

// As the real one: it says that the files are lacking, goes on, and knows no algorithm.
bool load_kernels(LtHandle& handle) {
  if (handle.module) return true;
  const fs::path from = folder(), list = from / ("TensileLibrary_lazy_" + handle.arch + ".dat");
  if (!fs::exists(list)) {
    std::fprintf(stderr, "\nrocblaslt error: Cannot read %s: No such file or directory\n",
                 list.c_str());
    return false;
  }
  const fs::path object = from / ("Kernels.so-000-" + handle.arch + ".hsaco");
  return hipModuleLoad(&handle.module, object.c_str()) == hipSuccess;
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle) {
  return answer("hipblasLtCreate", [&] {
    require(handle, "handle is null");
    auto made = std::make_unique<LtHandle>();
    require(admit(*made) == hipSuccess, "HIP failed", HIPBLAS_STATUS_INTERNAL_ERROR);
    *handle = made.release();
  });
}

HIPSIM_API hipblasStatus_t hipblasLtDestroy(hipblasLtHandle_t handle) {
  const hipblasStatus_t status =
      answer("hipblasLtDestroy", handle, [](LtHandle& known) { dismiss(known); });
  if (!status) delete static_cast<LtHandle*>(handle);
  return status;
}

// 1.1.0 where HIP says it is 7.1, 0.4.0 where it is 6.4.
HIPSIM_API hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t handle, int* version) {
  return answer("hipblasLtGetVersion", handle, [&](LtHandle&) {
    require(version, "version is null");
    int hip = 0;
    hipRuntimeGetVersion(&hip);
    *version = (hip / 10'000'000 - 6) * 100'000 + hip / 100'000 % 100 * 100;
  });
}

// Inject a fault from now on: "matmul", and "n", "n+" or "n:status"; or "algorithm", and "n" or
// "n+": there is none for the n-th that is asked for.
HIPSIM_API int hipsim_hipblaslt_inject(const char* what, const char* when) {
  if (!what || !when) return -1;
  const std::string name = what;
  if (name != "matmul" && name != "algorithm") return -1;
  (name == "matmul" ? matmul_fault() : algorithm_fault()).set(when, HIPBLAS_STATUS_INTERNAL_ERROR);
  return 0;
}

// How many products were asked for, since the start or the last injection.
HIPSIM_API long long hipsim_hipblaslt_count(const char* what) {
  return what && std::string(what) == "matmul" ? matmul_fault().count() : -1;
}
