// Non-blocking loopback sockets for one thread that plays both sides around the door.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lorry::door::fuzz {

class Link {
 public:
  Link() = default;
  explicit Link(int fd);
  Link(Link&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Link& operator=(Link&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Link() { Reset(); }
  static Link Connect(uint16_t port);  // not open where nobody listens

  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  // Sends a prefix of `bytes` and removes it; true when something moved. Errors close.
  bool Send(std::string_view* bytes);
  // Appends what is there; true when something moved, the end included, which closes.
  bool Receive(std::string* in);
  void HalfClose();
  void Close();
  void Reset();  // with a reset, which leaves no port in TIME_WAIT

 private:
  int fd_ = -1;
};

// A listening socket and its port.
std::pair<int, uint16_t> Listen();

}  // namespace lorry::door::fuzz
