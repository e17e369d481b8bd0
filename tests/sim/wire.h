// Documents and records as bytes: everything that a simulated network carries was written to bytes
// and is read from them again, and so are records when a process starts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/arena.h"
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
  google::protobuf::Arena arena;  // its many small parts are freed together
  auto& message = *google::protobuf::Arena::CreateMessage<Message>(&arena);
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

// What a process that starts finds of the records that were written. They become text only then:
// most are written many times before anybody reads them.
template <typename Value, typename Decoder>
absl::StatusOr<std::map<std::string, Value>> ReadBack(const std::map<std::string, Value>& written,
                                                      const Decoder& decode) {
  std::map<std::string, Value> read;
  for (const auto& [key, value] : written) {
    absl::StatusOr<Value> again = decode(Encode(value));
    if (!again.ok()) return again.status();
    read.emplace_hint(read.end(), key, *std::move(again));
  }
  return read;
}

}  // namespace lorry::sim
