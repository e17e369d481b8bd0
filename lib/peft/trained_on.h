// Which base model an adapter was trained on, as its trainer says in the image's metadata. Pure
// functions, any thread. What is read is untrusted.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/peft/base_model.h"

namespace lorry::peft {

// The key in the image's metadata. Its value is JSON, each field may be left out:
//   {"architecture": "llama", "revision": "<40 hex>", "quantization": "bitsandbytes"}
inline constexpr std::string_view kTrainedOnKey = "lorry.base_model";

// As BaseModel's fields of the same names.
struct TrainedOn {
  bool said = false;  // else nothing is known, and nothing differs
  std::string architecture;
  std::string revision;
  std::string quantization;
  bool operator==(const TrainedOn&) const = default;
};

// IMAGE_MALFORMED: not as above.
absl::StatusOr<TrainedOn> ParseTrainedOn(std::string_view json);

// Whether they are certainly two models: an adapter of one means nothing on the other.
bool IsOtherArchitecture(const TrainedOn& trained_on, const BaseModel& base);

// What else differs, for people: the adapter may serve on this base model all the same. Empty:
// nothing that is known on both sides.
std::string Differences(const TrainedOn& trained_on, const BaseModel& base);

}  // namespace lorry::peft
