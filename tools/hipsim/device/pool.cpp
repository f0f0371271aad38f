#include "pool.h"

#include <condition_variable>
#include <deque>
#include <thread>

namespace hipsim {

namespace {
std::mutex pool_mutex;
std::condition_variable work_offered, helper_done;
std::deque<Launch*> offered;
int helper_count = 0;

void help() {
  install_fault_handlers();
  std::unique_lock lock(pool_mutex);
  for (;;) {
    work_offered.wait(lock, [] { return !offered.empty(); });
    Launch* launch = offered.front();
    ++launch->helpers;
    lock.unlock();
    run_blocks(*launch);
    lock.lock();
    // Its blocks are all taken: nobody else needs to look at it.
    std::erase(offered, launch);
    if (--launch->helpers == 0) helper_done.notify_all();
  }
}
}  // namespace

void start_pool(int threads) {
  helper_count = threads - 1;
  for (int i = 0; i < helper_count; ++i) std::thread(help).detach();
}

void run_launch(Launch& launch) {
  launch.blocks =
      std::uint64_t{launch.request.grid.x} * launch.request.grid.y * launch.request.grid.z;
  launch.chunk = launch.blocks / (8 * (static_cast<std::uint64_t>(helper_count) + 1));
  if (launch.chunk == 0) launch.chunk = 1;
  const bool share = helper_count > 0 && launch.blocks > 1;
  if (share) {
    std::lock_guard lock(pool_mutex);
    offered.push_back(&launch);
    work_offered.notify_all();
  }
  run_blocks(launch);
  if (share) {
    std::unique_lock lock(pool_mutex);
    std::erase(offered, &launch);
    helper_done.wait(lock, [&] { return launch.helpers == 0; });
  }
}

}  // namespace hipsim
