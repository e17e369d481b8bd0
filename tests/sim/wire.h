// Documents and records as bytes: everything that a simulated network carries was written to bytes
// and is read from them again, and so are records when a process starts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/arena.h"
#include "lib/rpc/fleet_messages.h"
#include "tests/sim/oracle.h"

namespace lorry::sim {

// One document after the other to, or from, the same member. What cannot be read is the codec's
// mistake.
//
// Most documents differ from the one before in a few numbers, and the codec takes each part by itself.
// So a part that the one before had, too, and that came out as it went in, is not written again.
template <typename Document>
class Wire {
 public:
  using Shared = std::shared_ptr<const Document>;

  // What comes out at the other end.
  Shared Carry(Oracle& oracle, const Document& document) {
    if (last_ != nullptr) {
      const Document fresh = Without(document, *last_);
      if (Travel(oracle, fresh) == fresh) return last_ = std::make_shared<const Document>(document);
    }
    auto out = std::make_shared<const Document>(Travel(oracle, document));
    last_ = *out == document ? out : nullptr;
    return out;
  }

 private:
  static Document Travel(Oracle& oracle, const Document& document) {
    auto sent = rpc::ToProto(document);
    google::protobuf::Arena arena;  // its many small parts are freed together
    auto& message = *google::protobuf::Arena::CreateMessage<decltype(sent)>(&arena);
    const bool parses = message.ParseFromString(sent.SerializeAsString());
    absl::StatusOr<Document> read = rpc::FromProto(message);
    if (parses && read.ok()) return *std::move(read);
    oracle.Violate(0, "a document cannot be read: " + std::string(read.status().message()));
    return {};
  }

  // Both are sorted by `name`.
  template <typename Part, typename Name>
  static std::vector<Part> Without(const std::vector<Part>& parts, const std::vector<Part>& known,
                                   Name Part::*name) {
    std::vector<Part> fresh;
    auto it = known.begin();
    for (const Part& part : parts) {
      while (it != known.end() && (*it).*name < part.*name) ++it;
      if (it == known.end() || *it != part) fresh.push_back(part);
    }
    return fresh;
  }
  static fleet::Observed Without(const fleet::Observed& document, const fleet::Observed& known) {
    fleet::Observed fresh = HeadOf(document);
    if (document.health_detail != known.health_detail) fresh.health_detail = document.health_detail;
    if (document.limits != known.limits) fresh.limits = document.limits;
    if (document.engine_version != known.engine_version)
      fresh.engine_version = document.engine_version;
    if (document.base_model != known.base_model) fresh.base_model = document.base_model;
    fresh.rows = Without(document.rows, known.rows, &fleet::ObservedRow::adapter);
    fresh.residencies =
        Without(document.residencies, known.residencies, &fleet::ObservedResidency::name);
    fresh.killers = document.killers;
    return fresh;
  }
  static fleet::Desired Without(const fleet::Desired& document, const fleet::Desired& known) {
    fleet::Desired fresh;
    fresh.term = document.term;
    fresh.revision = document.revision;
    fresh.journal = document.journal;
    fresh.boot = document.boot;
    fresh.rows = Without(document.rows, known.rows, &fleet::DesiredRow::adapter);
    fresh.wanted = Without(document.wanted, known.wanted, &fleet::WantedVersion::name);
    fresh.aliases = document.aliases;
    fresh.rules = Without(document.rules, known.rules, &fleet::DoorRules::adapter);
    return fresh;
  }
  // All but its lists and what an engine hardly ever changes.
  static fleet::Observed HeadOf(const fleet::Observed& document) {
    return {.journal = document.journal,
            .sequence = document.sequence,
            .boot = document.boot,
            .term = document.term,
            .revision = document.revision,
            .health = document.health,
            .health_detail = {},
            .limits = {},
            .engine_version = {},
            .base_model = {},
            .rows = {},
            .residencies = {},
            .paused = document.paused,
            .killers = {},
            .leaves = document.leaves};
  }

  Shared last_;  // came out as it went in
};

// What a process that starts finds of the records that were written. They become text only then:
// most are written many times before anybody reads them. `same` has those that were read before, and
// were what was written: they are not made text again.
template <typename Value, typename Decoder>
absl::StatusOr<std::map<std::string, Value>> ReadBack(const std::map<std::string, Value>& written,
                                                      std::map<std::string, Value>& same,
                                                      const Decoder& decode) {
  std::map<std::string, Value> read;
  for (const auto& [key, value] : written) {
    const auto before = same.find(key);
    if (before != same.end() && before->second == value) {
      read.emplace_hint(read.end(), key, value);
      continue;
    }
    absl::StatusOr<Value> again = decode(Encode(value));
    if (!again.ok()) return again.status();
    if (*again == value) same.insert_or_assign(key, value);
    read.emplace_hint(read.end(), key, *std::move(again));
  }
  return read;
}

}  // namespace lorry::sim
