// Documents as they are on the wire: everything that a simulated network carries was written to
// bytes and is read from them again.
#pragma once

#include <memory>
#include <string>

#include "lib/rpc/fleet_messages.h"
#include "tests/sim/oracle.h"

namespace lorry::sim {

using Bytes = std::shared_ptr<const std::string>;

inline Bytes Write(const fleet::Desired& desired) {
  return std::make_shared<const std::string>(rpc::ToProto(desired).SerializeAsString());
}
inline Bytes Write(const fleet::Observed& observed) {
  return std::make_shared<const std::string>(rpc::ToProto(observed).SerializeAsString());
}

// What cannot be read, or reads as something else than was written, is the codec's mistake.
template <typename Message>
auto Read(Oracle& oracle, const Bytes& bytes) {
  Message message;
  const bool parses = message.ParseFromString(*bytes);
  auto document = rpc::FromProto(message);
  if (!parses || !document.ok()) {
    oracle.Violate(0, "a document cannot be read: " + std::string(document.status().message()));
    return typename decltype(document)::value_type();
  }
  return *std::move(document);
}
inline fleet::Desired ReadDesired(Oracle& oracle, const Bytes& bytes) {
  return Read<lorry::sync::v1::Desired>(oracle, bytes);
}
inline fleet::Observed ReadObserved(Oracle& oracle, const Bytes& bytes) {
  return Read<lorry::sync::v1::Observed>(oracle, bytes);
}

}  // namespace lorry::sim
