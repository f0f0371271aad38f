#include "modules.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <vector>

#include "../common/hipsim_execution.h"
#include "../common/shared_usage.h"

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

// A kernel is found by its symbol, unless a name expression gave it a name.
std::string name_of(const hipsim_kernel& kernel, const std::string& symbol) {
  return kernel.by_expression || symbol.empty() ? kernel.name : symbol;
}

std::string symbol_of(const hipsim_kernel& kernel) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(kernel.function), &info) && info.dli_sname &&
      info.dli_saddr == reinterpret_cast<void*>(kernel.function))
    return info.dli_sname;
  return {};
}

std::string contents(int descriptor) {
  std::string bytes(static_cast<std::size_t>(lseek(descriptor, 0, SEEK_END)), '\0');
  if (pread(descriptor, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    bytes.clear();
  return bytes;
}

// The __shared__ variables that a kernel uses: all of the module's where its symbol tells none.
std::vector<SharedRange> shared_of(const LoadedModule& module, const std::string& symbol,
                                   const std::map<std::string, std::vector<SharedVariable>>& all) {
  if (symbol.empty()) return {{0, module.tls_bytes}};
  std::vector<SharedRange> ranges;
  if (const auto found = all.find(symbol); found != all.end())
    for (const SharedVariable& variable : found->second)
      ranges.push_back({variable.offset, variable.bytes});
  return ranges;
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
  const auto usage = shared_usage(contents(descriptor));
  std::string records;
  std::uint32_t count = 0;
  for (const hipsim_kernel* kernel = *list; kernel; kernel = kernel->next, ++count) {
    const std::string symbol = symbol_of(*kernel), name = name_of(*kernel, symbol);
    auto loaded = std::make_unique<LoadedKernel>(
        LoadedKernel{&module, kernel->run, shared_of(module, symbol, usage)});
    KernelRecord record{};
    record.kernel = reinterpret_cast<std::uint64_t>(loaded.get());
    record.parameter_count = kernel->parameter_count;
    record.name_bytes = static_cast<std::uint32_t>(name.size());
    for (const SharedRange& range : loaded->shared)
      record.shared_bytes += static_cast<std::uint32_t>(range.bytes);
    append(records, record);
    for (std::uint32_t i = 0; i < kernel->parameter_count; ++i)
      append(records, ParameterRecord{kernel->parameters[i].offset, kernel->parameters[i].size});
    records += name;
    entry->kernels.push_back(std::move(loaded));
  }
  const auto id = reinterpret_cast<std::uint64_t>(entry.get());
  std::string description;
  append(description, ModuleRecord{id, count, 0});
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
