// hipRTC of the host flavour: the C++ compiler of this machine makes a shared object.
#include <dlfcn.h>

#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "../common/protocol.h"
#include "../common/rtc_program.h"
#include "../common/scratch.h"
#include "../common/shared_usage.h"
#include "rtc_scan.h"

namespace hipsim {

namespace {
namespace fs = std::filesystem;

// <tree>/include, beside <tree>/lib where this library lies.
fs::path header_directory() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&header_directory), &info))
    throw std::runtime_error("cannot tell where libhiprtc.so lies");
  return fs::canonical(info.dli_fname).parent_path().parent_path() / "include";
}

struct Compiler {
  Words command;
  bool clang = false;
  std::string version;
};

const Compiler& compiler() {
  static const Compiler found = [] {
    Compiler made;
    const char* chosen = std::getenv("HIPSIM_CXX");
    std::istringstream words(chosen && *chosen ? chosen : "c++");
    for (std::string word; words >> word;) made.command.push_back(word);
    const Scratch scratch;
    Words ask = made.command;
    ask.push_back("--version");
    if (run(ask, scratch / "version", "HIPSIM_CXX") != 0)
      throw std::runtime_error(made.command[0] + " --version fails (HIPSIM_CXX)");
    made.version = read(scratch / "version");
    made.clang = made.version.find("clang") != std::string::npos;
    return made;
  }();
  return found;
}

// hipRTC's options as the host's compiler takes them; throws std::invalid_argument.
Words translate(const Words& options) {
  const char* warp_text = std::getenv("HIPSIM_WARP");
  std::string warp = warp_text && *warp_text ? warp_text : "32";
  Words made;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string& option = options[i];
    const auto value = option.find('=');
    if (starts_with(option, "--offload-arch=") || starts_with(option, "--gpu-architecture=")) {
      const std::string arch = option.substr(value + 1);
      if (arch != "hipsim32" && arch != "hipsim64")
        throw std::invalid_argument(
            "the host simulator compiles for hipsim32 and hipsim64, not for " + arch);
      warp = arch.substr(6);
    } else if (starts_with(option, "-D") || starts_with(option, "-U") || starts_with(option, "-I") ||
               starts_with(option, "-std=") || starts_with(option, "--std=") ||
               starts_with(option, "-W") || starts_with(option, "-w") ||
               starts_with(option, "-g") || starts_with(option, "-ffp-contract=")) {
      made.push_back(option);
      if ((option == "-D" || option == "-U" || option == "-I") && i + 1 < options.size())
        made.push_back(options[++i]);
    } else if (starts_with(option, "-m") || starts_with(option, "-O") || option == "-fno-gpu-rdc" ||
               starts_with(option, "-fgpu-") || option.empty()) {
      continue;  // about AMD's code generation
    } else {
      throw std::invalid_argument("the host simulator does not know the option " + option);
    }
  }
  made.push_back("-DPROPOLIS_WARP=" + warp);
  return made;
}

void append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

Words target_flags() {
  // -O1 compiles our kernels in half the time of -O2, and tests' small inputs run as fast.
  Words flags{"-O1", "-fPIC",           "-fno-semantic-interposition", "-fno-exceptions", "-fno-rtti",
              "-fno-math-errno", "-fstack-clash-protection", "-fsanitize=alignment",
              "-fno-sanitize-recover=alignment"};
  if (!compiler().clang)
    flags.push_back("-fno-gnu-unique");  // unique symbols keep modules from being unloaded
  if (const char* bounds = std::getenv("HIPSIM_BOUNDS"); bounds && *bounds == '1')
    append(flags, {"-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"});
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c"))
    flags.push_back("-march=x86-64-v3");
#endif
  return flags;
}

}  // namespace

hiprtcResult compile(Program& program, const Words& options) {
  const Scratch scratch;
  Words common = compiler().command;
  try {
    append(common, {"-x", "c++", "-std=gnu++20", "-DHIPSIM_HOST=1", "-D__HIPCC_RTC__=1"});
    append(common, translate(options));
  } catch (const std::invalid_argument& error) {
    program.log = error.what();
    return HIPRTC_ERROR_INVALID_OPTION;
  }
  append(common, target_flags());
  const std::string name = fs::path(program.name).filename().string();
  const fs::path headers = scratch / "headers", source = scratch / "source" / name,
                 expanded = scratch / "expanded.cpp", object = scratch / "module.so",
                 log = scratch / "log";
  write_program(program, source, headers);
  const std::vector<fs::path> directories{source.parent_path(), headers, scratch.path()};
  Words preprocess = common;
  append(preprocess, {"-E", "-I", headers.string(), "-I", header_directory().string(), "-include",
                      "hipsim_device.h", source.string(), "-o", expanded.string()});
  int status = run(preprocess, log, "HIPSIM_CXX");
  if (status == 0) {
    std::string text = without(register_kernels(read(expanded)), directories);
    for (std::size_t i = 0; i < program.expressions.size(); ++i)
      text += "\nstatic const bool hipsim_expression_" + std::to_string(i) +
              " = ::hipsim_register<&" + program.expressions[i] + ">(\"" + program.expressions[i] +
              "\", true);";
    write(expanded, text);
    Words build = common;
    append(build,
           {"-shared", "-Wl,--emit-relocs", expanded.string(), "-o", object.string(), "-lm"});
    status = run(build, log, "HIPSIM_CXX");
  }
  program.log = readable_log(log, directories);
  if (status != 0) return HIPRTC_ERROR_COMPILATION;
  program.code = read(object);
  for (const auto& [function, variables] : shared_usage(program.code)) {
    std::uint64_t bytes = 0;
    for (const SharedVariable& variable : variables) bytes += variable.bytes;
    const bool made_here = starts_with(function, "_ZN12hipsim_entry") ||
                           starts_with(function, "_GLOBAL__");  // by the registration
    if (bytes <= kMaxSharedBytes || made_here) continue;
    program.log += "error: " + function + " uses " + std::to_string(bytes) +
                   " bytes of shared memory, a block has " + std::to_string(kMaxSharedBytes) + "\n";
    program.code.clear();
  }
  return program.code.empty() ? HIPRTC_ERROR_COMPILATION : HIPRTC_SUCCESS;
}

std::pair<int, int> compiler_version() {
  // FNV-1a over what goes into every module beside the program itself.
  std::uint32_t hash = 2166136261u;
  const auto mix = [&hash](const std::string& text) {
    for (const unsigned char c : text) hash = (hash ^ c) * 16777619u;
  };
  mix(compiler().version);
  for (const std::string& flag : target_flags()) mix(flag);
  for (const char* header : {"hipsim_device.h", "hipsim_execution.h"})
    mix(read(header_directory() / header));
  return {7, static_cast<int>(hash >> 8)};
}

}  // namespace hipsim
