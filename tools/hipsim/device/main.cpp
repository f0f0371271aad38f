// The device process: it alone can touch device memory, and it can touch nothing of the
// process that uses it. It ends when that process does, which is when its socket closes.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "../common/packets.h"
#include "../common/protocol.h"
#include "modules.h"
#include "pool.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace hipsim {

namespace {
Reply failed(const std::string& text) {
  Reply reply;
  reply.outcome = Outcome::failed;
  std::snprintf(reply.text, sizeof reply.text, "%s", text.c_str());
  return reply;
}

Reply map_memory(const MapRequest& request, int descriptor) {
  void* base = reinterpret_cast<void*>(request.base);
  void* mapped = mmap(base, request.bytes, PROT_NONE,
                      MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, descriptor, 0);
  close(descriptor);
  if (mapped == base) return {};
  return failed(std::string("cannot map device memory at its address: ") + std::strerror(errno));
}

Reply protect_memory(const ProtectRequest& request) {
  const int protection = request.accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (mprotect(reinterpret_cast<void*>(request.base), request.bytes, protection) == 0) return {};
  return failed(std::string("mprotect: ") + std::strerror(errno));
}

void serve_stream(int socket) {
  install_fault_handlers();
  auto launch_request = std::make_unique<LaunchRequest>();
  for (;;) {
    const ssize_t received = receive_packet(socket, launch_request.get(), sizeof(LaunchRequest));
    if (received <= 0) break;
    Launch launch;
    launch.request = *launch_request;
    launch.kernel = reinterpret_cast<const LoadedKernel*>(launch.request.kernel);
    run_launch(launch);
    std::fflush(stdout);  // what the kernel has printed
    if (!send_packet(socket, &launch.reply, sizeof(Reply))) break;
  }
  close(socket);
}

void send_description(const std::string& description) {
  Reply reply;
  reply.more = static_cast<std::uint32_t>(description.size());
  send_packet(kControlDescriptor, &reply, sizeof reply);
  for (std::size_t sent = 0; sent < description.size(); sent += kPacketBytes)
    send_packet(kControlDescriptor, description.data() + sent,
                std::min(kPacketBytes, description.size() - sent));
}

template <class T>
T request_of(const char* packet) {
  T request;
  std::memcpy(&request, packet, sizeof request);
  return request;
}

bool serve_control() {
  char packet[256] = {};
  int descriptor = -1;
  if (receive_packet(kControlDescriptor, packet, sizeof packet, &descriptor) <= 0) return false;
  Reply reply;
  std::string error;
  switch (request_of<Request>(packet)) {
    case Request::map: reply = map_memory(request_of<MapRequest>(packet), descriptor); break;
    case Request::protect: reply = protect_memory(request_of<ProtectRequest>(packet)); break;
    case Request::attach: std::thread(serve_stream, descriptor).detach(); break;
    case Request::load: {
      const std::string description = load_module(descriptor, error);
      if (!description.empty()) {
        send_description(description);
        return true;
      }
      reply = failed(error);
      break;
    }
    case Request::unload: unload_module(request_of<UnloadRequest>(packet).module); break;
    case Request::launch: reply = failed("launches come over a stream's own connection"); break;
  }
  return send_packet(kControlDescriptor, &reply, sizeof reply);
}
}  // namespace

}  // namespace hipsim

int main(int argc, char** argv) {
  hipsim::start_pool(argc > 1 ? std::atoi(argv[1]) : 1);
  while (hipsim::serve_control()) {
  }
  std::fflush(stdout);
  _exit(0);  // threads of the pool still wait; there is nothing to tidy
}
