#include "modules.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

#include "../common/hipsim_execution.h"

namespace hipsim {

namespace {
struct Entry {
  LoadedModule module;
  std::vector<std::unique_ptr<LoadedKernel>> kernels;
};
std::map<std::uint64_t, std::unique_ptr<Entry>> modules;  // of the control thread only

// Where the module keeps its __shared__ variables: its thread-local segment.
void find_shared(LoadedModule& module) {
  struct Search {
    LoadedModule* module;
    ElfW(Addr) base;
  } search{&module, 0};
  link_map* map = nullptr;
  if (dlinfo(module.handle, RTLD_DI_LINKMAP, &map) != 0) return;
  search.base = map->l_addr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto* search = static_cast<Search*>(data);
        if (info->dlpi_addr != search->base) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_TLS) {
            search->module->tls_module = info->dlpi_tls_modid;
            search->module->tls_bytes = info->dlpi_phdr[i].p_memsz;
          }
        return 1;
      },
      &search);
}

template <class T>
void append(std::string& text, const T& record) {
  text.append(reinterpret_cast<const char*>(&record), sizeof record);
}

std::string symbol_name(const hipsim_kernel& kernel) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(kernel.function), &info) && info.dli_sname &&
      info.dli_saddr == reinterpret_cast<void*>(kernel.function))
    return info.dli_sname;
  return kernel.name;
}
}  // namespace

std::string load_module(int descriptor, std::string& error) {
  auto entry = std::make_unique<Entry>();
  LoadedModule& module = entry->module;
  // The descriptor stays open: its number keeps the path unique, by which dlopen knows objects.
  module.descriptor = descriptor;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  module.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module.handle) {
    const char* why = dlerror();
    error = why ? why : "dlopen failed";
    close(descriptor);
    return {};
  }
  const auto* mark = static_cast<const hipsim_mark*>(dlsym(module.handle, "hipsim_module_mark"));
  const auto* list =
      static_cast<const hipsim_kernel* const*>(dlsym(module.handle, "hipsim_kernels"));
  if (!mark || !list) {
    error = "no kernel module of the simulator";
    dlclose(module.handle);
    close(descriptor);
    return {};
  }
  module.warp = mark->warp;
  find_shared(module);
  std::string records;
  std::uint32_t count = 0;
  for (const hipsim_kernel* kernel = *list; kernel; kernel = kernel->next, ++count) {
    entry->kernels.push_back(std::make_unique<LoadedKernel>(LoadedKernel{&module, kernel->run}));
    const std::string name = symbol_name(*kernel);
    append(records, KernelRecord{reinterpret_cast<std::uint64_t>(entry->kernels.back().get()),
                                 kernel->parameter_count, static_cast<std::uint32_t>(name.size())});
    for (std::uint32_t i = 0; i < kernel->parameter_count; ++i)
      append(records, ParameterRecord{kernel->parameters[i].offset, kernel->parameters[i].size});
    records += name;
  }
  const auto id = reinterpret_cast<std::uint64_t>(entry.get());
  std::string description;
  append(description, ModuleRecord{id, count, static_cast<std::uint32_t>(module.tls_bytes)});
  modules[id] = std::move(entry);
  return description + records;
}

void unload_module(std::uint64_t id) {
  const auto found = modules.find(id);
  if (found == modules.end()) return;
  dlclose(found->second->module.handle);
  close(found->second->module.descriptor);
  modules.erase(found);
}

}  // namespace hipsim
