// Writes into a reply which version made it, for clients that do not see its headers and ask with
// `X-Lorry-Body: 1`: a field `lorry` in the JSON object, or in the last event of each sequence of a
// stream. Every other byte stays.
//
// Pure; belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "services/engine_proxy/door/events.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// Tokens [start, end) of those that were generated, and what generated them.
struct Span {
  uint64_t start = 0;
  uint64_t end = 0;
  VersionKey key;
};

// The value of `lorry`: what the headers say, as JSON; with its field `spans` where there are any.
std::string LorryObject(const Resolved& resolved, bool lag_known, std::span<const Span> spans);

// What `weight_version` says in SGLang's reply, as JSON: the version's number. Empty, so that the
// reply stays as it is, for the base model and for what a framework bound, as frameworks label
// their engine.
std::string WeightVersion(const Resolved& resolved);

// `json`, an object, with the field `lorry`.
std::string WithLorry(std::string json, const std::string& value);

class BodyNote {
 public:
  // A JSON reply that is larger than this is not held until its end, and gets no spans.
  static constexpr size_t kHeldBytes = 1u << 20;

  // `resolved`: one for the whole request, or one for each prompt. Each prompt has `samples`
  // samples.
  BodyNote(std::vector<Resolved> resolved, bool lag_known, size_t samples)
      : resolved_(std::move(resolved)), lag_known_(lag_known), samples_(samples) {}
  void Feed(std::string_view piece, bool end, std::string* out);

 private:
  struct Blank {};  // not enough has come to tell a JSON document from a stream
  struct Json {
    std::string held;  // up to its end
  };
  struct Passing {};  // the rest passes as it is
  // What is held is passed on; `end`: it is the whole document.
  void PassJson(std::string json, bool end, std::string* out);
  void PassEvent(std::string_view event, std::string* out) const;
  std::string ObjectNoted(std::string json, std::optional<size_t> number) const;
  std::string WholeNoted(std::string json) const;
  // Of the sequence with this number: with its spans where the number of its tokens is known.
  std::string ObjectOf(std::optional<size_t> number, std::optional<uint64_t> tokens) const;
  std::string AllOf(std::optional<uint64_t> tokens) const;

  const std::vector<Resolved> resolved_;
  const bool lag_known_;
  const size_t samples_;
  std::variant<Blank, Json, EventReader, Passing> state_;
};

}  // namespace lorry::door
