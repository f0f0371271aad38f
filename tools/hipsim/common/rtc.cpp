// hipRTC's interface: programs, their logs and their code.
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>

#include "rtc_program.h"

namespace hipsim {
namespace {
std::mutex mutex;
std::set<hiprtcProgram> programs;

bool known(hiprtcProgram program) {
  std::lock_guard lock(mutex);
  return programs.count(program) == 1;
}

hiprtcResult give(const std::string& text, char* out) {
  if (!out) return HIPRTC_ERROR_INVALID_INPUT;
  std::memcpy(out, text.data(), text.size());
  return HIPRTC_SUCCESS;
}
}  // namespace
}  // namespace hipsim

using namespace hipsim;

HIPSIM_API const char* hiprtcGetErrorString(hiprtcResult result) {
  switch (result) {
    case HIPRTC_SUCCESS: return "HIPRTC_SUCCESS";
    case HIPRTC_ERROR_OUT_OF_MEMORY: return "HIPRTC_ERROR_OUT_OF_MEMORY";
    case HIPRTC_ERROR_PROGRAM_CREATION_FAILURE: return "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case HIPRTC_ERROR_INVALID_INPUT: return "HIPRTC_ERROR_INVALID_INPUT";
    case HIPRTC_ERROR_INVALID_PROGRAM: return "HIPRTC_ERROR_INVALID_PROGRAM";
    case HIPRTC_ERROR_INVALID_OPTION: return "HIPRTC_ERROR_INVALID_OPTION";
    case HIPRTC_ERROR_COMPILATION: return "HIPRTC_ERROR_COMPILATION";
    case HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE: return "HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE";
    case HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION:
      return "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
    case HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION:
      return "HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID: return "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    case HIPRTC_ERROR_INTERNAL_ERROR: return "HIPRTC_ERROR_INTERNAL_ERROR";
    case HIPRTC_ERROR_LINKING: return "HIPRTC_ERROR_LINKING";
  }
  return "HIPRTC_ERROR_UNKNOWN";
}

HIPSIM_API hiprtcResult hiprtcVersion(int* major, int* minor) {
  if (!major || !minor) return HIPRTC_ERROR_INVALID_INPUT;
  std::tie(*major, *minor) = compiler_version();
  return HIPRTC_SUCCESS;
}

HIPSIM_API hiprtcResult hiprtcCreateProgram(hiprtcProgram* program, const char* source,
                                            const char* name, int header_count,
                                            const char* const* headers,
                                            const char* const* header_names) {
  if (!program || !source || header_count < 0 || (header_count > 0 && (!headers || !header_names)))
    return HIPRTC_ERROR_INVALID_INPUT;
  auto made = std::make_unique<Program>();
  made->source = source;
  made->name = name && *name ? name : "program";
  for (int i = 0; i < header_count; ++i) {
    if (!headers[i] || !header_names[i]) return HIPRTC_ERROR_INVALID_INPUT;
    made->headers.emplace_back(header_names[i], headers[i]);
  }
  std::lock_guard lock(mutex);
  *program = made.get();
  programs.insert(made.release());
  return HIPRTC_SUCCESS;
}

HIPSIM_API hiprtcResult hiprtcDestroyProgram(hiprtcProgram* program) {
  if (!program) return HIPRTC_ERROR_INVALID_INPUT;
  std::lock_guard lock(mutex);
  if (programs.erase(*program) != 1) return HIPRTC_ERROR_INVALID_PROGRAM;
  delete *program;
  *program = nullptr;
  return HIPRTC_SUCCESS;
}

HIPSIM_API hiprtcResult hiprtcAddNameExpression(hiprtcProgram program, const char* expression) {
  if (!known(program)) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!expression) return HIPRTC_ERROR_INVALID_INPUT;
  if (program->compiled) return HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
  program->expressions.emplace_back(expression);
  return HIPRTC_SUCCESS;
}

HIPSIM_API hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int option_count,
                                             const char* const* options) {
  if (!known(program)) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (option_count < 0 || (option_count > 0 && !options)) return HIPRTC_ERROR_INVALID_INPUT;
  try {
    program->log.clear();
    program->code.clear();
    const hiprtcResult result = compile(*program, {options, options + option_count});
    program->compiled = result == HIPRTC_SUCCESS;
    return result;
  } catch (const std::bad_alloc&) {
    return HIPRTC_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    program->log += error.what();
    return HIPRTC_ERROR_INTERNAL_ERROR;
  }
}

// A kernel that a name expression names is found under the expression itself.
HIPSIM_API hiprtcResult hiprtcGetLoweredName(hiprtcProgram program, const char* expression,
                                             const char** name) {
  if (!known(program)) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!expression || !name) return HIPRTC_ERROR_INVALID_INPUT;
  if (!program->compiled) return HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
  for (const std::string& each : program->expressions)
    if (each == expression) {
      *name = each.c_str();
      return HIPRTC_SUCCESS;
    }
  return HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}

HIPSIM_API hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, std::size_t* bytes) {
  if (!known(program)) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!bytes) return HIPRTC_ERROR_INVALID_INPUT;
  *bytes = program->log.size() + 1;
  return HIPRTC_SUCCESS;
}

HIPSIM_API hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char* log) {
  if (!known(program)) return HIPRTC_ERROR_INVALID_PROGRAM;
  return give(std::string(program->log.c_str(), program->log.size() + 1), log);
}

HIPSIM_API hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, std::size_t* bytes) {
  if (!known(program) || !program->compiled) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!bytes) return HIPRTC_ERROR_INVALID_INPUT;
  *bytes = program->code.size();
  return HIPRTC_SUCCESS;
}

HIPSIM_API hiprtcResult hiprtcGetCode(hiprtcProgram program, char* code) {
  if (!known(program) || !program->compiled) return HIPRTC_ERROR_INVALID_PROGRAM;
  return give(program->code, code);
}
