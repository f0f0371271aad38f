// What the simulator says when the process ends.
#pragma once

namespace hipsim {

void report_at_exit();

}  // namespace hipsim
