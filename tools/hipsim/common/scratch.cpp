#include "scratch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

extern char** environ;

namespace hipsim {
namespace fs = std::filesystem;

Scratch::Scratch() {
  std::string pattern = (fs::temp_directory_path() / "hipsim-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error(pattern + ": " + std::strerror(errno));
  path_ = pattern;
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

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

void write_program(const Program& program, const fs::path& source, const fs::path& headers) {
  fs::create_directories(headers);
  for (const auto& [header, text] : program.headers) {
    const fs::path relative = fs::path(header).lexically_normal();
    if (relative.is_absolute() || starts_with(relative.string(), ".."))
      throw std::runtime_error("header name outside of the program: " + header);
    write(headers / relative, text);
  }
  write(source, program.source + "\n");
}

int run(const Words& words, const fs::path& output, const char* setting) {
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
    throw std::runtime_error("cannot run the compiler " + words[0] + " (" + setting +
                             "): " + std::strerror(error));
  int status;
  while (waitpid(process, &status, 0) < 0)
    if (errno != EINTR) throw std::runtime_error(std::string("waitpid: ") + std::strerror(errno));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string without(std::string text, const std::vector<fs::path>& directories) {
  for (const fs::path& directory : directories) {
    const std::string prefix = directory.string() + "/";
    for (std::size_t at = 0; (at = text.find(prefix, at)) != std::string::npos;)
      text.erase(at, prefix.size());
  }
  return text;
}

std::string readable_log(const fs::path& log, const std::vector<fs::path>& directories) {
  return without(read(log), directories);
}

}  // namespace hipsim
