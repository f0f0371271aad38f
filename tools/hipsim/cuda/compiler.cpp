// hipRTC of the CUDA flavour: nvcc makes a cubin.
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "../common/rtc_program.h"
#include "../common/scratch.h"

namespace hipsim {

namespace {
namespace fs = std::filesystem;

Words nvcc() {
  const char* chosen = std::getenv("HIPSIM_NVCC");
  std::istringstream text(chosen && *chosen ? chosen : "nvcc");
  Words words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

// hipRTC's options as nvcc takes them; throws std::invalid_argument.
Words translate(const Words& options) {
  Words made;
  bool arch = false;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::string& option = options[i];
    if (starts_with(option, "--offload-arch=") || starts_with(option, "--gpu-architecture=")) {
      const std::string wanted = option.substr(option.find('=') + 1);
      if (!starts_with(wanted, "sm_"))
        throw std::invalid_argument("the CUDA simulator compiles for sm_*, not for " + wanted);
      // What Hopper's own instructions (wgmma) ask for.
      made.push_back(wanted == "sm_90" ? "-gencode=arch=compute_90a,code=sm_90a" : "-arch=" + wanted);
      arch = true;
    } else if (starts_with(option, "-O") || starts_with(option, "-D") ||
               starts_with(option, "-U") || starts_with(option, "-I") ||
               starts_with(option, "-std=") || starts_with(option, "--std=")) {
      made.push_back(option);
      if ((option == "-D" || option == "-U" || option == "-I") && i + 1 < options.size())
        made.push_back(options[++i]);
    } else if (option == "-ffp-contract=off") {
      made.push_back("-fmad=false");
    } else if (starts_with(option, "-m") || starts_with(option, "-W") || option == "-w" ||
               starts_with(option, "-g") || starts_with(option, "-f") || option.empty()) {
      continue;  // about AMD's code generation, or clang's warnings
    } else {
      throw std::invalid_argument("the CUDA simulator does not know the option " + option);
    }
  }
  if (!arch) throw std::invalid_argument("the CUDA simulator needs --offload-arch=sm_*");
  return made;
}

std::string version() {
  static const std::string known = [] {
    const Scratch scratch;
    Words words = nvcc();
    words.push_back("--version");
    if (run(words, scratch / "version", "HIPSIM_NVCC") != 0)
      throw std::runtime_error(words[0] + " --version fails (HIPSIM_NVCC)");
    return read(scratch / "version");
  }();
  return known;
}
}  // namespace

hiprtcResult compile(Program& program, const Words& options) {
  const Scratch scratch;
  const fs::path headers = scratch / "headers", source = scratch / "source" / "program.cu",
                 object = scratch / "module.cubin", log = scratch / "log";
  Words words = nvcc();
  try {
    for (const char* word : {"-cubin", "-x", "cu", "-DPROPOLIS_WARP=32", "-w"})
      words.emplace_back(word);
    for (const std::string& word : translate(options)) words.push_back(word);
  } catch (const std::invalid_argument& error) {
    program.log = error.what();
    return HIPRTC_ERROR_INVALID_OPTION;
  }
  write_program(program, source, headers);
  for (const std::string& word : {std::string("-I"), headers.string(), source.string(),
                                  std::string("-o"), object.string()})
    words.push_back(word);
  const int status = run(words, log, "HIPSIM_NVCC");
  program.log = readable_log(log, {source.parent_path(), headers, scratch.path()});
  if (status != 0) return HIPRTC_ERROR_COMPILATION;
  program.code = read(object);
  return HIPRTC_SUCCESS;
}

std::pair<int, int> compiler_version() {
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const unsigned char c : version()) hash = (hash ^ c) * 16777619u;
  return {7, static_cast<int>(hash >> 8)};
}

}  // namespace hipsim
