// What the door tells whoever counts it. Called on the door's threads: implementations are
// thread-safe and do not block.
#pragma once

#include <cstdint>
#include <string_view>

namespace lorry::door {

class DoorObserver {
 public:
  virtual ~DoorObserver() = default;
  virtual void OnAdmitted() {}
  // `reason` is a word of docs/ERRORS.md: bounded, good as a label.
  virtual void OnRefused(std::string_view reason) { (void)reason; }
  // From the request's last byte here to the first byte of the engine's reply.
  virtual void OnFirstByte(double ms) { (void)ms; }
  // `code` as sent; 499 where the client left before a status was sent to it.
  virtual void OnDone(int code, double seconds, uint64_t reply_bytes) {
    (void)code, (void)seconds, (void)reply_bytes;
  }
};

}  // namespace lorry::door
