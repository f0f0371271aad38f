// hipRTC of the host flavour: the C++ compiler of this machine makes a shared object.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "../common/protocol.h"
#include "../common/rtc_program.h"
#include "../common/shared_usage.h"
#include "rtc_scan.h"

extern char** environ;

namespace hipsim {

namespace {
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// A private directory for one compilation.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "hipsim-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error(pattern + ": " + std::strerror(errno));
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  if (!(out << text) || !out.flush()) throw std::runtime_error("cannot write " + path.string());
}

// Run a program with its output in a file; its exit status.
int run(const Words& words, const fs::path& output) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t process;
  const int error =
      posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error)
    throw std::runtime_error("cannot run the C++ compiler " + words[0] +
                             " (HIPSIM_CXX): " + std::strerror(error));
  int status;
  while (waitpid(process, &status, 0) < 0)
    if (errno != EINTR) throw std::runtime_error(std::string("waitpid: ") + std::strerror(errno));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

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
    if (run(ask, scratch / "version") != 0)
      throw std::runtime_error(made.command[0] + " --version fails (HIPSIM_CXX)");
    made.version = read(scratch / "version");
    made.clang = made.version.find("clang") != std::string::npos;
    return made;
  }();
  return found;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

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
    } else if (starts_with(option, "-O") || starts_with(option, "-D") ||
               starts_with(option, "-U") || starts_with(option, "-I") ||
               starts_with(option, "-std=") || starts_with(option, "--std=") ||
               starts_with(option, "-W") || starts_with(option, "-w") ||
               starts_with(option, "-g") || starts_with(option, "-ffp-contract=")) {
      made.push_back(option);
      if ((option == "-D" || option == "-U" || option == "-I") && i + 1 < options.size())
        made.push_back(options[++i]);
    } else if (starts_with(option, "-m") || option == "-fno-gpu-rdc" ||
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
  Words flags{"-fPIC",           "-fno-semantic-interposition", "-fno-exceptions", "-fno-rtti",
              "-fno-math-errno", "-fstack-clash-protection"};
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

// The text with the user's own names for files, not where they lay for a moment.
std::string without(std::string text, const std::vector<fs::path>& directories) {
  for (const fs::path& directory : directories) {
    const std::string prefix = directory.string() + "/";
    for (std::size_t at = 0; (at = text.find(prefix, at)) != std::string::npos;)
      text.erase(at, prefix.size());
  }
  return text;
}

}  // namespace

hiprtcResult compile(Program& program, const Words& options) {
  const Scratch scratch;
  Words common = compiler().command;
  try {
    append(common, {"-x", "c++", "-std=gnu++20", "-O2", "-DHIPSIM_HOST=1", "-D__HIPCC_RTC__=1"});
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
  for (const auto& [header, text] : program.headers) {
    const fs::path relative = fs::path(header).lexically_normal();
    if (relative.is_absolute() || starts_with(relative.string(), ".."))
      throw std::runtime_error("header name outside of the program: " + header);
    write(headers / relative, text);
  }
  write(source, program.source + "\n");
  const std::vector<fs::path> directories{source.parent_path(), headers, scratch.path()};
  Words preprocess = common;
  append(preprocess, {"-E", "-I", headers.string(), "-I", header_directory().string(), "-include",
                      "hipsim_device.h", source.string(), "-o", expanded.string()});
  int status = run(preprocess, log);
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
    status = run(build, log);
  }
  program.log = read(log);
  program.log = without(program.log, directories);
  if (status != 0) return HIPRTC_ERROR_COMPILATION;
  program.code = read(object);
  for (const auto& [function, variables] : shared_usage(program.code)) {
    std::uint64_t bytes = 0;
    for (const SharedVariable& variable : variables) bytes += variable.bytes;
    if (bytes <= kMaxSharedBytes || starts_with(function, "_ZN12hipsim_entry")) continue;
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
