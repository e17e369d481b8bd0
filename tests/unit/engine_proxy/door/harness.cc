#include "tests/unit/engine_proxy/door/harness.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "lib/base/check.h"
#include "services/engine_proxy/door/framing.h"
#include "tests/testing/eventually.h"

namespace lorry::door::testing {
namespace {

constexpr int kLimitS = 10;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void Prepare(int fd) {
  const timeval limit{kLimitS, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

Wire Wire::Connect(uint16_t port, int receive_buffer) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  }
  Prepare(fd);
  const sockaddr_in address = Loopback(port);
  LORRY_CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return Wire(fd);
}

bool Wire::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void Wire::HalfClose() { ::shutdown(fd_, SHUT_WR); }

void Wire::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Wire::Reset() {
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

bool Wire::Fill() {
  char bytes[64 * 1024];
  const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string Wire::ReadUntil(std::string_view end) {
  size_t at = buffer_.find(end);
  while (at == std::string::npos) {
    if (!Fill()) return std::exchange(buffer_, {});
    at = buffer_.find(end);
  }
  std::string out = buffer_.substr(0, at + end.size());
  buffer_.erase(0, at + end.size());
  return out;
}

std::string Wire::ReadExactly(size_t size) {
  while (buffer_.size() < size && Fill()) {
  }
  std::string out = buffer_.substr(0, size);
  buffer_.erase(0, out.size());
  return out;
}

std::string Wire::ReadAll() {
  while (Fill()) {
  }
  return std::exchange(buffer_, {});
}

bool Wire::AtEnd() {
  char byte;
  return buffer_.empty() && ::recv(fd_, &byte, 1, 0) == 0;
}

std::string Message::Get(const std::string& name) const {
  size_t at = head.find("\r\n");
  while (at != std::string::npos && at + 2 < head.size()) {
    const size_t colon = head.find(':', at + 2);
    const size_t end = head.find("\r\n", at + 2);
    if (colon == std::string::npos || end == std::string::npos) break;
    if (colon < end && EqualsIgnoreCase(head.substr(at + 2, colon - at - 2), name)) {
      return head.substr(colon + 2, end - colon - 2);
    }
    at = end;
  }
  return "";
}

std::string Message::path() const {
  const size_t from = head.find(' ') + 1;
  return head.substr(from, head.find(' ', from) - from);
}

Message ReadMessage(Wire& wire, bool reply_to_head, bool keep_body) {
  Message message;
  message.head = wire.ReadUntil("\r\n\r\n");
  if (message.head.size() < 4) return {};
  if (reply_to_head) return message;
  if (EqualsIgnoreCase(message.Get("transfer-encoding"), "chunked")) {
    for (;;) {
      const std::string size_line = wire.ReadUntil("\r\n");
      const size_t size = std::strtoul(size_line.c_str(), nullptr, 16);
      message.body += wire.ReadExactly(size);
      wire.ReadExactly(2);
      if (size == 0) return message;
    }
  }
  const std::string length = message.Get("content-length");
  if (!length.empty() && !keep_body) {
    size_t left = std::strtoul(length.c_str(), nullptr, 10);
    while (left > 0) {
      const size_t read = wire.ReadExactly(std::min<size_t>(left, 64 * 1024)).size();
      if (read == 0) break;
      left -= read;
    }
  } else if (!length.empty()) {
    message.body = wire.ReadExactly(std::strtoul(length.c_str(), nullptr, 10));
  } else if (message.head.compare(0, 4, "HTTP") == 0) {
    message.body = wire.ReadAll();
  }
  return message;
}

std::string JsonReply(std::string_view body, int status) {
  return "HTTP/1.1 " + std::to_string(status) +
         " X\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body);
}

std::string StreamHead() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
         "Transfer-Encoding: chunked\r\n\r\n";
}

std::string Chunk(std::string_view data) {
  char size[24];
  std::snprintf(size, sizeof(size), "%zx\r\n", data.size());
  return size + std::string(data) + "\r\n";
}

void Gate::Open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  opened_.notify_all();
}

bool Gate::Wait() {
  std::unique_lock lock(mutex_);
  // By the wall clock: late_answer_test.cc moves the other one, and the limit would be hours away.
  const auto limit = std::chrono::system_clock::now() + std::chrono::seconds(kLimitS);
  return opened_.wait_until(lock, limit, [this] { return open_; });
}

ScriptedEngine::ScriptedEngine(Script script, bool keep_bodies)
    : script_(std::move(script)),
      keep_bodies_(keep_bodies),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = Loopback(0);
  LORRY_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  LORRY_CHECK(::listen(listener_, 512) == 0);
  socklen_t size = sizeof(address);
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

ScriptedEngine::~ScriptedEngine() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  ::close(listener_);
  {
    const std::lock_guard lock(mutex_);
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& thread : threads_) thread.join();
}

void ScriptedEngine::Accept() {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    // A test that takes the process's descriptors away gives them back.
    if (fd < 0 && errno == EMFILE) {
      std::this_thread::yield();
      continue;
    }
    if (fd < 0) return;
    Prepare(fd);
    ++connections_;
    const std::lock_guard lock(mutex_);
    open_.push_back(fd);
    threads_.emplace_back([this, fd] {
      Wire wire(fd);
      for (;;) {
        const Message request = ReadMessage(wire, false, keep_bodies_);
        if (request.head.empty()) break;
        {
          const std::lock_guard requests_lock(mutex_);
          requests_.push_back(request);
        }
        if (!script_(request, wire)) break;
      }
      const std::lock_guard open_lock(mutex_);
      wire.Close();
      std::erase(open_, fd);
    });
  }
}

size_t ScriptedEngine::open_connections() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

std::vector<Message> ScriptedEngine::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

bool Eventually(const std::function<bool()>& condition) {
  return lorry::Eventually(condition, std::chrono::seconds(kLimitS));
}

}  // namespace lorry::door::testing
