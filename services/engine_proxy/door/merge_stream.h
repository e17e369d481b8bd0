// Puts the event streams of n single requests together into the one stream that n > 1 would have
// had: events pass as they come, each with the number of its sample.
//
// Pure; belongs to one thread. Of each stream it holds the event that has not come to its end yet,
// and nothing else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "services/engine_proxy/door/events.h"
#include "services/engine_proxy/door/merge.h"
#include "services/engine_proxy/door/routes.h"
#include "services/engine_proxy/door/usage.h"

namespace lorry::door {

class StreamMerger {
 public:
  StreamMerger(BodyShape shape, Samples of) : shape_(shape), of_(of), events_(of.n) {}

  // A piece of the stream of `sample`; what the client may be sent now is appended to `out`.
  // INTERNAL ENGINE_REPLY_INVALID for what is no event of SGLang's.
  absl::Status Feed(size_t sample, std::string_view piece, std::string* out);
  // All streams have ended: appends what the client is told once for all of them.
  absl::Status End(std::string* out);
  size_t held_bytes() const { return held_bytes_; }

 private:
  absl::Status OnEvent(size_t sample, std::string_view event, std::string* out);
  absl::Status OnGenerated(size_t sample, std::string json, std::string* out);
  absl::Status OnCompleted(size_t sample, std::string json, std::string* out);

  BodyShape shape_;
  Samples of_;
  std::vector<EventReader> events_;  // of each stream
  size_t held_bytes_ = 0;
  Usage usage_;
  std::string usage_event_;  // the last usage event; sent once, with the tokens of all streams
};

}  // namespace lorry::door
