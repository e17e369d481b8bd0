// What the engine gets for one sample of a request with n > 1.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "services/engine_proxy/door/exchange.h"

namespace lorry::door {

// The client's request with ids of its own and n = 1. Of the body it owns only what differs: the
// other bytes are the exchange's, whatever n is.
class SampleRequest {
 public:
  SampleRequest(const Exchange& x, const BodyFacts& facts, size_t sample);
  SampleRequest(const SampleRequest&) = delete;
  SampleRequest& operator=(const SampleRequest&) = delete;
  std::span<const asio::const_buffer> pieces() const { return pieces_; }

 private:
  SplicedBody body_;
  std::string head_;
  std::vector<asio::const_buffer> pieces_;
};

}  // namespace lorry::door
