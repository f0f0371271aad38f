#include "engine.h"

#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../common/packets.h"
#include "../common/settings.h"
#include "arena.h"

extern char** environ;

namespace hipsim {

namespace {
// The program lies beside the library: <tree>/lib/libamdhip64.so and <tree>/bin/hipsim-device.
std::string program_path() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&program_path), &info) || !info.dli_fname)
    throw EngineError("cannot tell where the simulator's library lies");
  char resolved[4096];
  if (!realpath(info.dli_fname, resolved))
    throw EngineError(std::string(info.dli_fname) + ": " + std::strerror(errno));
  std::string path = resolved;
  path.erase(path.rfind('/'));
  path.erase(path.rfind('/'));
  return path + "/bin/hipsim-device";
}
}  // namespace

void Engine::start(const std::vector<Arena*>& arenas) {
  {
    std::lock_guard lock(mutex_);
    if (running()) return;
    const std::string program = program_path();
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
      throw EngineError(std::string("socketpair: ") + std::strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (pair[1] == kControlDescriptor) {  // dup2 to itself would keep close-on-exec
      const int moved = dup(pair[1]);
      close(pair[1]);
      pair[1] = moved;
    }
    posix_spawn_file_actions_adddup2(&actions, pair[1], kControlDescriptor);
    const std::string threads = std::to_string(settings().threads);
    const char* arguments[] = {program.c_str(), threads.c_str(), nullptr};
    const int error = posix_spawn(&process_, program.c_str(), &actions, nullptr,
                                  const_cast<char**>(arguments), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    if (error) {
      close(pair[0]);
      process_ = -1;
      throw EngineError("cannot start " + program + ": " + std::strerror(error));
    }
    control_ = pair[0];
  }
  for (const Arena* arena : arenas) map(*arena);
}

void Engine::dead(const char* doing) {
  std::string text = std::string("the device process died while it was to ") + doing;
  int status = 0;
  if (process_ > 0 && waitpid(process_, &status, WNOHANG) == process_) {
    reaped_ = true;
    if (WIFSIGNALED(status)) text += std::string(" (") + strsignal(WTERMSIG(status)) + ")";
    if (WIFEXITED(status)) text += " (exit status " + std::to_string(WEXITSTATUS(status)) + ")";
  }
  throw EngineError(text);
}

template <class R>
Reply Engine::ask(const R& request, int descriptor) {
  Reply reply;
  if (!send_packet(control_, &request, sizeof request, descriptor) ||
      receive_packet(control_, &reply, sizeof reply) != sizeof reply)
    dead("change its memory or modules");
  return reply;
}

void Engine::map(const Arena& arena) {
  std::lock_guard lock(mutex_);
  if (std::find(mapped_.begin(), mapped_.end(), &arena) == mapped_.end()) {
    MapRequest request;
    request.base = arena.base();
    request.bytes = arena.bytes();
    const Reply reply = ask(request, arena.descriptor());
    if (reply.outcome != Outcome::ok) throw EngineError(reply.text);
    mapped_.push_back(&arena);
  }
  for (const Allocation& allocation : arena.live()) {
    ProtectRequest open;
    open.accessible = 1;
    open.base = allocation.span_begin;
    open.bytes = allocation.span_end - allocation.span_begin;
    ask(open);
  }
}

void Engine::hide(const Arena& arena) { protect(arena.base(), arena.bytes(), false); }

void Engine::protect(std::uintptr_t base, std::size_t bytes, bool accessible) {
  std::lock_guard lock(mutex_);
  if (!running()) return;  // start() tells it of everything
  ProtectRequest request;
  request.accessible = accessible;
  request.base = base;
  request.bytes = bytes;
  const Reply reply = ask(request);
  if (reply.outcome != Outcome::ok) throw EngineError(reply.text);
}

ModuleDescription Engine::load(int descriptor, std::string& error) {
  std::lock_guard lock(mutex_);
  const Reply reply = ask(LoadRequest{}, descriptor);
  if (reply.outcome != Outcome::ok) {
    error = reply.text;
    return {};
  }
  std::string bytes;
  while (bytes.size() < reply.more) {
    char packet[kPacketBytes];
    const ssize_t received = receive_packet(control_, packet, sizeof packet);
    if (received <= 0) dead("describe a module");
    bytes.append(packet, static_cast<std::size_t>(received));
  }
  const char* at = bytes.data();
  const auto take = [&at](auto& record) {
    std::memcpy(&record, at, sizeof record);
    at += sizeof record;
  };
  ModuleRecord module;
  take(module);
  ModuleDescription description{module.module, {}};
  for (std::uint32_t i = 0; i < module.kernel_count; ++i) {
    KernelRecord kernel;
    take(kernel);
    KernelDescription& made = description.kernels.emplace_back();
    made.kernel = kernel.kernel;
    made.shared_bytes = kernel.shared_bytes;
    made.parameters.resize(kernel.parameter_count);
    for (ParameterRecord& parameter : made.parameters) take(parameter);
    made.name.assign(at, kernel.name_bytes);
    at += kernel.name_bytes;
  }
  return description;
}

void Engine::unload(std::uint64_t module) {
  std::lock_guard lock(mutex_);
  UnloadRequest request;
  request.module = module;
  ask(request);
}

int Engine::connect() {
  std::lock_guard lock(mutex_);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    throw EngineError(std::string("socketpair: ") + std::strerror(errno));
  if (const int seconds = settings().timeout_s) {
    const timeval limit{seconds, 0};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ask(AttachRequest{}, pair[1]);
  close(pair[1]);
  return pair[0];
}

Reply Engine::launch(int connection, const LaunchRequest& request) {
  Reply reply;
  const std::size_t bytes = offsetof(LaunchRequest, parameters) + request.parameter_bytes;
  if (!send_packet(connection, &request, bytes)) dead("run a kernel");
  const ssize_t received = receive_packet(connection, &reply, sizeof reply);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    EngineError late("a kernel has not ended after " + std::to_string(settings().timeout_s) +
                     " s (HIPSIM_TIMEOUT)");
    late.timed_out = true;
    throw late;
  }
  if (received != sizeof reply) dead("run a kernel");
  return reply;
}

void Engine::stop() {
  std::lock_guard lock(mutex_);
  if (!running()) return;
  if (!reaped_) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  close(control_);
  process_ = -1;
  control_ = -1;
}

}  // namespace hipsim
