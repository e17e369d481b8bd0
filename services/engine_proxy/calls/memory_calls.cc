#include "services/engine_proxy/calls/memory_calls.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/strings.h"
#include "services/engine_proxy/calls/query.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::calls {
namespace {

using door::Refused;
using fleet::EngineKind;
using proxy::FrameworkCall;
using proxy::MemoryTags;
using proxy::ReleaseCall;
using proxy::WakeCall;
using proxy::WeightsCall;
using Read = std::variant<FrameworkCall, Refused>;
using Tags = std::variant<MemoryTags, Refused>;

// Three names with their quotes and commas fit many times over.
constexpr size_t kTagsBytes = 256;

Refused Invalid(std::string message) { return {400, "REQUEST_INVALID", std::move(message)}; }

const MemoryTags& TagsOf(EngineKind engine) {
  static const auto* const kSglang = new MemoryTags{"cuda_graph", "kv_cache", "weights"};
  static const auto* const kVllm = new MemoryTags{"kv_cache", "scheduling", "weights"};
  return engine == EngineKind::kSglang ? *kSglang : *kVllm;
}

// All of the engine's where none is named. A tag that nobody here knows might be of memory that
// what is loaded stands in.
Tags Checked(EngineKind engine, MemoryTags tags) {
  const MemoryTags& known = TagsOf(engine);
  for (const std::string& tag : tags) {
    if (!known.contains(tag))
      return Invalid("tags must be among kv_cache, weights and " +
                     std::string(engine == EngineKind::kSglang ? "cuda_graph" : "scheduling"));
  }
  return tags.empty() ? known : tags;
}

// {"tags": null | [...]}
Tags ReadSglangTags(const door::EngineCall& call) {
  if (call.body.empty()) return Checked(call.engine, {});
  const door::PaddedBody body{std::string(call.body)};
  const auto fields = ObjectFields(body);
  if (!fields.ok()) return Invalid(std::string(ToStd(fields.status().message())));
  const door::JsonField* field = door::FindField(*fields, "tags");
  if (field == nullptr) return Checked(call.engine, {});
  const std::string_view text = body.Text(field->value);
  const Refused not_names = Invalid("tags must be null or a list of names");
  if (text.size() > kTagsBytes) return not_names;
  const auto tags = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (tags.is_null()) return Checked(call.engine, {});
  if (!tags.is_array()) return not_names;
  MemoryTags names;
  for (const auto& tag : tags) {
    if (!tag.is_string()) return not_names;
    names.insert(tag.get<std::string>());
  }
  return Checked(call.engine, std::move(names));
}

template <typename Call>
Read With(Tags tags) {
  if (auto* refused = std::get_if<Refused>(&tags)) return std::move(*refused);
  return FrameworkCall(Call{std::get<MemoryTags>(std::move(tags))});
}

Read ReadRelease(const door::EngineCall& call) { return With<ReleaseCall>(ReadSglangTags(call)); }
Read ReadResume(const door::EngineCall& call) { return With<WakeCall>(ReadSglangTags(call)); }

// ?level=1, which is also what it means without. Level 0 releases nothing.
Read ReadSleep(const door::EngineCall& call) {
  const std::string_view level = FindInQuery(QueryFields(call.query), "level").value_or("1");
  if (level == "1" || level == "2") return FrameworkCall(ReleaseCall{{"kv_cache", "weights"}});
  return Invalid("level must be 1 or 2; an engine that is only to pause is sent /pause");
}

// ?tags=weights&tags=kv_cache
Read ReadWakeUp(const door::EngineCall& call) {
  MemoryTags tags;
  for (const QueryField& field : QueryFields(call.query)) {
    if (field.name == "tags") tags.emplace(field.value);
  }
  return With<WakeCall>(Checked(call.engine, std::move(tags)));
}

Read ReadWeights(const door::EngineCall&) { return FrameworkCall(WeightsCall{}); }

struct Spelling {
  EngineKind engine;
  std::string_view path;
  Read (*read)(const door::EngineCall&);
};
constexpr Spelling kSpellings[] = {
    {EngineKind::kSglang, "/release_memory_occupation", ReadRelease},
    {EngineKind::kSglang, "/resume_memory_occupation", ReadResume},
    {EngineKind::kSglang, "/update_weights_from_disk", ReadWeights},
    {EngineKind::kSglang, "/update_weights_from_tensor", ReadWeights},
    {EngineKind::kSglang, "/update_weights_from_distributed", ReadWeights},
    {EngineKind::kSglang, "/update_weights_from_ipc", ReadWeights},
    {EngineKind::kVllm, "/sleep", ReadSleep},
    {EngineKind::kVllm, "/wake_up", ReadWakeUp},
    {EngineKind::kVllm, "/start_weight_update", ReadWeights},
    {EngineKind::kVllm, "/update_weights", ReadWeights},
    {EngineKind::kVllm, "/finish_weight_update", ReadWeights},
    {EngineKind::kVllm, "/areal_update_weights", ReadWeights},
    {EngineKind::kVllm, "/areal_update_weights_xccl", ReadWeights},
    // Its method may be anything that a worker can do.
    {EngineKind::kVllm, "/collective_rpc", ReadWeights},
};

}  // namespace

std::optional<Read> ReadMemoryCall(const door::EngineCall& call) {
  for (const Spelling& spelling : kSpellings) {
    if (spelling.engine == call.engine && spelling.path == call.path) return spelling.read(call);
  }
  return std::nullopt;
}

}  // namespace lorry::calls
