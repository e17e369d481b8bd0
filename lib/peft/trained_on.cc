#include "lib/peft/trained_on.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/json.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

// Names of architectures and commits; longer ones would only fill status pages.
constexpr size_t kNameBytesMax = 100;

absl::Status Malformed(std::string_view why) {
  return Refuse("IMAGE_MALFORMED",
                absl::StrCat("the image's metadata gives ", ToAbsl(kTrainedOnKey), ", which ",
                             ToAbsl(why), "; leave it out"));
}

absl::Status ReadName(const json& fields, const char* name, std::string& to) {
  const auto field = fields.find(name);
  if (field == fields.end()) return absl::OkStatus();
  if (!field->is_string() || field->get_ref<const std::string&>().size() > kNameBytesMax)
    return Malformed("has a field that is no name");
  to = field->get<std::string>();
  return absl::OkStatus();
}

// Trainers name the text model of one that also sees, "qwen2_5_vl_text", where files from before
// transformers 4.52, which have its sizes beside the others, name the whole: "qwen2_5_vl".
std::string_view WithoutText(std::string_view architecture) {
  constexpr std::string_view kText = "_text";
  if (architecture.ends_with(kText)) architecture.remove_suffix(kText.size());
  return architecture;
}

std::string Quantised(const std::string& how) {
  return how.empty() ? "without quantisation" : absl::StrCat("quantised by ", how);
}

}  // namespace

absl::StatusOr<TrainedOn> ParseTrainedOn(std::string_view text) {
  const absl::StatusOr<json> fields = ParseJsonObject(text, "it");
  if (!fields.ok()) return Malformed("is no JSON object that can be read");
  TrainedOn out{.said = true};
  LORRY_RETURN_IF_ERROR(ReadName(*fields, "architecture", out.architecture));
  LORRY_RETURN_IF_ERROR(ReadName(*fields, "revision", out.revision));
  LORRY_RETURN_IF_ERROR(ReadName(*fields, "quantization", out.quantization));
  return out;
}

bool IsOtherArchitecture(const TrainedOn& trained_on, const BaseModel& base) {
  return !trained_on.architecture.empty() && !base.architecture.empty() &&
         WithoutText(trained_on.architecture) != WithoutText(base.architecture);
}

std::string Differences(const TrainedOn& trained_on, const BaseModel& base) {
  if (!trained_on.said) return "";
  std::vector<std::string> differences;
  const bool both_known = !trained_on.revision.empty() && !base.revision.empty();
  if (both_known && trained_on.revision != base.revision) {
    differences.push_back(absl::StrCat("it was trained on revision ", Quoted(trained_on.revision),
                                       " of its base model, the engine serves ",
                                       Quoted(base.revision)));
  }
  if (trained_on.quantization != base.quantization) {
    differences.push_back(absl::StrCat("it was trained on a base model ",
                                       Quantised(trained_on.quantization),
                                       ", the engine serves one ", Quantised(base.quantization)));
  }
  return absl::StrJoin(differences, "; ");
}

}  // namespace lorry::peft
