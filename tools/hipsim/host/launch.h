// Kernel launches and what the simulator counts about them.
#pragma once
#include "../common/hipsim_api.h"

namespace hipsim {

// Count a launch. Throws the error that HIPSIM_FAIL_LAUNCH injects; gives the one by which
// HIPSIM_DEVICE_LOST ends the device when the launch runs, or success.
hipError_t count_launch();

}  // namespace hipsim
