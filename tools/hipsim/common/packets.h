// Sending and receiving whole packets over a SOCK_SEQPACKET socket, with one file descriptor
// along where a request needs it. Every call survives signals; a closed peer reads as -1.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace hipsim {

inline bool send_packet(int socket, const void* data, std::size_t bytes, int descriptor = -1) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  ssize_t sent;
  do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

// The packet's bytes, 0 when the peer has closed, -1 on an error (errno EAGAIN: timed out).
inline ssize_t receive_packet(int socket, void* data, std::size_t capacity,
                              int* descriptor = nullptr) {
  iovec part{data, capacity};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t received;
  do received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (received < 0 && errno == EINTR);
  if (descriptor) *descriptor = -1;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); received > 0 && header;
       header = CMSG_NXTHDR(&message, header))
    if (header->cmsg_type == SCM_RIGHTS && descriptor)
      std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
  return received;
}

}  // namespace hipsim
