// What the door tells whoever counts it. Called on the door's threads: implementations are
// thread-safe and do not block.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/fleet/desired.h"

namespace lorry::door {

class DoorObserver {
 public:
  virtual ~DoorObserver() = default;
  // What the first reference came to; no lag: none is known, or it is the base model.
  virtual void OnAdmitted(const std::string& adapter, std::optional<uint32_t> lag) {
    (void)adapter, (void)lag;
  }
  // The same of an admitted request, when its reply has ended.
  virtual void OnReplied(const std::string& adapter, std::optional<uint32_t> lag) {
    (void)adapter, (void)lag;
  }
  // And what its reply was long, of the adapter that it named first; "@base" is the base model.
  virtual void OnServed(const std::string& adapter, uint64_t reply_bytes) {
    (void)adapter, (void)reply_bytes;
  }
  // A running request's row flipped, and its policy is not to finish.
  virtual void OnFlipped(fleet::InFlightMode rule) { (void)rule; }
  // `reason` is a word of docs/ERRORS.md: bounded, good as a label.
  virtual void OnRefused(std::string_view reason) { (void)reason; }
  // A request waited for an adapter that is loaded on demand; it began, or was refused or left.
  virtual void OnDemandWaited(double seconds) { (void)seconds; }
  // From the request's last byte here to the first byte of the engine's reply.
  virtual void OnFirstByte(double ms) { (void)ms; }
  // `code` as sent; 499 where the client left before a status was sent to it.
  virtual void OnDone(int code, double seconds, uint64_t reply_bytes) {
    (void)code, (void)seconds, (void)reply_bytes;
  }
};

}  // namespace lorry::door
