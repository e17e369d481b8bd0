// One client of the door: sends what the input says, and holds the door to an answer for each
// request that it sent whole.
#pragma once

#include <deque>
#include <string>
#include <string_view>

#include "tests/fuzz/door/sockets.h"

namespace lorry::door::fuzz {

class Client {
 public:
  explicit Client(uint16_t door_port) : link_(Link::Connect(door_port)) {}

  // Any bytes: nothing is owed for them, nor for anything later on this connection.
  void SendRaw(std::string bytes);
  // A head without framing, an empty line and a body; Content-Length is added. Owed an answer.
  void SendRequest(std::string_view text);
  void StopReading(bool stopped) { reading_ = !stopped; }
  void HalfClose();
  void Close() { link_.Close(); }
  void Reset() { link_.Reset(); }

  // Sends and receives what does not block; true when something moved.
  bool Move();
  bool open() const { return link_.open(); }
  bool owed() const { return open() && !excused_ && !owed_.empty(); }
  bool wants_to_send() const { return !out_.empty(); }
  int fd() const { return link_.fd(); }
  // The door is being drained: connections may end without an answer.
  void Forgive() { excused_ = true; }

 private:
  void ReadReplies();
  void CheckEnd() const;

  Link link_;
  std::string out_;
  std::string in_;
  std::deque<bool> owed_;  // one a request without its answer; true: it was a HEAD
  bool excused_ = false;
  bool reading_ = true;
  bool last_said_close_ = false;
};

}  // namespace lorry::door::fuzz
