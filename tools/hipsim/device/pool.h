// The threads that run a launch's blocks beside the stream's own: HIPSIM_THREADS in all.
#pragma once
#include "launch.h"

namespace hipsim {

void start_pool(int threads);
// Run the whole launch, with the pool's help where it has more than one block.
void run_launch(Launch& launch);

}  // namespace hipsim
