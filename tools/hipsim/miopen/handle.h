// A handle of the simulated MIOpen, and how calls answer: they throw a Refusal inside, which
// becomes a status and a line on stderr.
#pragma once
#include <set>
#include <string>

#include "../common/library.h"
#include "../common/settings.h"
#include "miopen_api.h"

struct miopenHandle : hipsim::LibraryHandle {
  std::set<std::string> found;  // problems with algorithms that miopenFind... has tried
};

namespace hipsim {

// Faults that the environment or a test asks for, of what the library does.
struct MiopenFaults {
  Fault convolution, pooling, compile, find;
  MiopenFaults();
};
MiopenFaults& miopen_faults();
// Count one occurrence; throws where it is to fail.
void occur(Fault& fault);

struct Refusal {
  miopenStatus_t status;
  std::string why;
};

inline void require(bool holds, const std::string& why,
                    miopenStatus_t status = miopenStatusBadParm) {
  if (!holds) throw Refusal{status, why};
}
void require(hipError_t error);  // success, else an internal error

miopenStatus_t refuse(miopenStatus_t status, const char* call, const std::string& why);

template <class Call>
miopenStatus_t answer(const char* name, Call call) {
  try {
    call();
    return miopenStatusSuccess;
  } catch (const Refusal& refusal) {
    return refuse(refusal.status, name, refusal.why);
  }
}

template <class Call>
miopenStatus_t answer(const char* name, miopenHandle_t handle, Call call) {
  const InUse used(handle);
  if (used.refusal)
    return refuse(used.unknown ? miopenStatusBadParm : miopenStatusUnknownError, name,
                  used.refusal);
  return answer(name, call);
}

// MIOpen's own version is 3.<minor>.0.
int minor_version();
// Sleep for as many milliseconds as a variable of the environment says.
void take_time(const char* variable);
bool is_capturing(const miopenHandle& handle);

}  // namespace hipsim
