// A hipRTC program, and what a flavour of the simulator must do for it: compile.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "hiprtc_api.h"

namespace hipsim {

struct Program {
  std::string name, source;
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
  std::vector<std::string> expressions;
  bool compiled = false;
  std::string log, code;
};

// Fill in the program's log and, on success, its code.
hiprtcResult compile(Program& program, const std::vector<std::string>& options);

// Two numbers that differ whenever compile() could give different code for the same program.
std::pair<int, int> compiler_version();

}  // namespace hipsim
