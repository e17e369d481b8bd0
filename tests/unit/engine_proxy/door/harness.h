// A door between a scripted engine and clients that write raw bytes: for tests that speak HTTP by
// hand.
//
// Blocking sockets with a limit of ten seconds on every read; each connection to the engine has a
// thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "services/engine_proxy/door/door.h"

namespace lorry::door::testing {

// One connected socket, closed with the object.
class Wire {
 public:
  explicit Wire(int fd) : fd_(fd) {}
  Wire(Wire&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}
  ~Wire() { Close(); }
  static Wire Connect(uint16_t port, int receive_buffer = 0);

  bool Send(std::string_view bytes);
  void HalfClose();
  void Close();
  // With a reset instead of a FIN.
  void Reset();
  // Up to and with `end`; what came when the connection ended without it.
  std::string ReadUntil(std::string_view end);
  std::string ReadExactly(size_t size);
  std::string ReadAll();
  // True when the peer closed without another byte.
  bool AtEnd();
  int fd() const { return fd_; }

 private:
  bool Fill();
  int fd_;
  std::string buffer_;
};

struct Message {
  std::string head;  // with its empty line
  std::string body;  // decoded where chunked
  std::string Get(const std::string& name) const;
  int status() const {
    return head.size() > 12 ? static_cast<int>(std::strtol(head.c_str() + 9, nullptr, 10)) : 0;
  }
  std::string path() const;
};

// One message off the wire, request or reply; empty head at the end of the connection.
Message ReadMessage(Wire& wire, bool reply_to_head = false, bool keep_body = true);

std::string JsonReply(std::string_view body, int status = 200);
// The head of a chunked event stream, and one chunk of it; an empty chunk ends it.
std::string StreamHead();
std::string Chunk(std::string_view data);

// A one-shot gate between the test and a script.
class Gate {
 public:
  void Open();
  bool Wait();  // false after ten seconds

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

class ScriptedEngine {
 public:
  // Answers one request on `wire`; false closes the connection.
  using Script = std::function<bool(const Message& request, Wire& wire)>;
  // Without `keep_bodies` a request's body is read and forgotten.
  explicit ScriptedEngine(Script script, bool keep_bodies = true);
  ~ScriptedEngine();
  uint16_t port() const { return port_; }
  int connections() const { return connections_; }  // ever
  size_t open_connections() const;
  std::vector<Message> requests() const;

 private:
  void Accept();
  Script script_;
  const bool keep_bodies_;
  int listener_;
  uint16_t port_ = 0;
  std::atomic<int> connections_{0};
  mutable std::mutex mutex_;
  std::vector<Message> requests_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

// True as soon as `condition` holds, false after ten seconds.
bool Eventually(const std::function<bool()>& condition);

}  // namespace lorry::door::testing
