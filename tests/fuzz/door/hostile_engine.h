// An engine behind the door that answers whatever the input says, driven by the fuzzer's thread.
//
// It reads requests as an engine would, and CHECKs each: the door re-frames everything, so what
// arrives has exactly one Content-Length, and what generates names one of the adapters that the
// tables route to.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/door/sockets.h"

namespace lorry::door::fuzz {

struct PlannedReply {
  // How `bytes` become a reply: as they are, as a JSON body, as one chunk of an event stream.
  enum class Form { kRaw, kJson, kEvents };
  Form form = Form::kRaw;
  std::string bytes;     // 0x02 stands for the request's own id
  bool close = false;    // after the last byte
  bool reset = false;    // the same with a reset
  bool trickle = false;  // byte by byte
  bool hang = false;     // after the first half, until the input has ended
  bool early = false;    // before the body was read; then it closes
};

class HostileEngine {
 public:
  explicit HostileEngine(std::set<std::string> adapters);
  uint16_t port() const { return port_; }

  // Replies to the next requests, in order; those after them get a plain good one.
  void Plan(PlannedReply reply) { planned_.push_back(std::move(reply)); }
  // Accepts, reads, writes whatever does not block; true when something moved.
  bool Move();
  void AddTo(std::vector<pollfd>* polled) const;
  // The input has ended: nothing hangs any more, and connections with planned replies are closed.
  void LetGo() { letting_go_ = true; }
  // Resets all connections and forgets all plans: ready for the next input.
  void Clear();

 private:
  struct Connection {
    Link link;
    std::string in;
    PlannedReply reply;
    size_t sent = 0;
    bool answering = false;
    bool planned = false;  // `reply` came from the input
  };
  bool TakeRequest(Connection& connection);
  bool Write(Connection& connection);
  bool End(Connection& connection);
  void Check(std::string_view head, std::string_view body) const;

  const std::set<std::string> adapters_;
  int listener_;
  uint16_t port_;
  bool letting_go_ = false;
  std::deque<PlannedReply> planned_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

}  // namespace lorry::door::fuzz
