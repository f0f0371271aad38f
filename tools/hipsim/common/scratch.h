// What both flavours' hipRTC need around a compiler: a place for its files, and running it.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "rtc_program.h"

namespace hipsim {

using Words = std::vector<std::string>;

// A private directory for one compilation, gone with the object.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string read(const std::filesystem::path& path);
void write(const std::filesystem::path& path, const std::string& text);

// Write a program's source there, and its headers below `headers`.
void write_program(const Program& program, const std::filesystem::path& source,
                   const std::filesystem::path& headers);

// Run a compiler with its output in a file; its exit status. `setting` is the variable that names
// another compiler. Throws std::runtime_error when it cannot be run.
int run(const Words& words, const std::filesystem::path& output, const char* setting);

// A text with the user's names of files, not with where they lay for a moment; and a log so.
std::string without(std::string text, const std::vector<std::filesystem::path>& directories);
std::string readable_log(const std::filesystem::path& log,
                         const std::vector<std::filesystem::path>& directories);

inline bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

}  // namespace hipsim
