#include "services/engine_proxy/door/body_note.h"

#include <charconv>
#include <utility>

#include "services/engine_proxy/door/body_facts.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

constexpr std::string_view kEventEnd = "\n\n";
constexpr std::string_view kData = "data:";
// Of a batch: each of its prompts has as many sequences as there are samples.
constexpr size_t kMaxSequences = kMaxBatch * kMaxSplit;

using Fields = std::vector<JsonField>;

std::optional<uint64_t> Number(const PaddedBody& body, const Fields& fields, std::string_view key) {
  const JsonField* field = FindField(fields, key);
  if (field == nullptr || field->value.kind != JsonKind::kNumber) return std::nullopt;
  const std::string_view text = body.Text(field->value);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Fields Inner(const PaddedBody& body, const Fields& fields, std::string_view key) {
  const JsonField* field = FindField(fields, key);
  if (field == nullptr || field->value.kind != JsonKind::kObject) return {};
  return ObjectFields(body, field->value).value_or(Fields());
}

// None where the reply does not list choices.
std::optional<std::vector<Fields>> Choices(const PaddedBody& body, const Fields& fields) {
  const JsonField* list = FindField(fields, "choices");
  if (list == nullptr || list->value.kind != JsonKind::kArray) return std::nullopt;
  std::vector<Fields> out;
  const auto items = ArrayElements(body, list->value, kMaxSequences);
  if (!items.ok()) return out;
  for (const JsonRange& item : *items) {
    if (item.kind == JsonKind::kObject) out.push_back(ObjectFields(body, item).value_or(Fields()));
  }
  return out;
}

bool HasValue(const Fields& fields, std::string_view key) {
  const JsonField* field = FindField(fields, key);
  return field != nullptr && field->value.kind != JsonKind::kNull;
}

// How many tokens one sequence has: SGLang says it of each, OpenAI's shape of all together.
std::optional<uint64_t> Tokens(const PaddedBody& body, const Fields& fields) {
  if (const auto own = Number(body, Inner(body, fields, "meta_info"), "completion_tokens"))
    return own;
  const auto choices = Choices(body, fields);
  if (!choices || choices->size() != 1) return std::nullopt;
  return Number(body, Inner(body, fields, "usage"), "completion_tokens");
}

std::string WithField(const PaddedBody& body, bool is_empty, const std::string& value) {
  const size_t open = body.view().find('{');
  const JsonRange object{open, body.view().size() - open, JsonKind::kObject};
  return ApplyEdits(body.view(), {InsertField(object, is_empty, "lorry", value)});
}

}  // namespace

std::string LorryObject(const Resolved& resolved, bool lag_known, std::span<const Span> spans) {
  if (resolved.name.empty()) return R"({"adapter":"@base"})";
  const auto number = [](uint64_t value) { return std::to_string(value); };
  std::string out = R"({"adapter":)" + QuoteJson(resolved.key.adapter.value);
  out += R"(,"version":)" + number(resolved.key.number.value);
  out += R"(,"run":)" + number(resolved.key.run.value);
  out += R"(,"epoch":)" + number(resolved.epoch.value);
  out += R"(,"digest":)" + QuoteJson(resolved.digest.value);
  out += R"(,"lag":)";
  if (!lag_known) {
    out += R"("unknown")";
  } else {
    out += resolved.lag ? number(*resolved.lag) : R"("none")";
  }
  if (spans.empty()) return out + "}";
  std::string_view before = R"(,"spans":[)";
  for (const Span& span : spans) {
    out += std::exchange(before, ",");
    out += R"({"start":)" + number(span.start) + R"(,"end":)" + number(span.end);
    out += R"(,"version":)" + number(span.key.number.value);
    out += R"(,"run":)" + number(span.key.run.value) + "}";
  }
  return out + "]}";
}

std::string WithLorry(std::string json, const std::string& value) {
  const PaddedBody body(std::move(json));
  const auto fields = ObjectFields(body);
  return fields.ok() ? WithField(body, fields->empty(), value) : std::string(body.view());
}

void BodyNote::Feed(std::string_view piece, bool end, std::string* out) {
  if (state_ == State::kPassing) {
    out->append(piece);
    return;
  }
  held_ += piece;
  if (state_ == State::kStart) {
    const size_t at = held_.find_first_not_of(" \t\r\n");
    if (at != std::string::npos) {
      state_ = held_[at] == '{' || held_[at] == '[' ? State::kJson : State::kStream;
    }
  }
  if (state_ == State::kStream) OnEvents(end, out);
  if (state_ == State::kJson && end) *out += WholeNoted(std::exchange(held_, {}));
  if (end || held_.size() > kHeldBytes) {
    const size_t open = state_ == State::kJson ? held_.find_first_not_of(" \t\r\n") : held_.npos;
    if (open != held_.npos && held_[open] == '{') {
      held_.insert(open + 1, "\"lorry\":" + AllOf(std::nullopt) + ",");
    }
    *out += std::exchange(held_, {});
    state_ = State::kPassing;
  }
}

void BodyNote::OnEvents(bool end, std::string* out) {
  size_t at = 0;
  for (;;) {
    const size_t found = held_.find(kEventEnd, at);
    if (found == std::string::npos) break;
    *out += EventNoted(std::string_view(held_).substr(at, found - at));
    out->append(kEventEnd);
    at = found + kEventEnd.size();
  }
  held_.erase(0, at);
  if (end) out->append(std::exchange(held_, {}));
}

std::string BodyNote::EventNoted(std::string_view event) const {
  std::string_view json = event;
  if (!json.starts_with(kData)) return std::string(event);
  json.remove_prefix(kData.size());
  json.remove_prefix(std::min(json.find_first_not_of(' '), json.size()));
  const PaddedBody body{std::string(json)};
  const auto fields = ObjectFields(body);
  if (!fields.ok()) return std::string(event);
  const Fields meta = Inner(body, *fields, "meta_info");
  bool is_last = HasValue(meta, "finish_reason");
  std::optional<size_t> number = Number(body, *fields, "index");
  for (const Fields& choice : Choices(body, *fields).value_or(std::vector<Fields>())) {
    if (!HasValue(choice, "finish_reason")) continue;
    is_last = true;
    number = Number(body, choice, "index");
  }
  if (!is_last) return std::string(event);
  return "data: " +
         WithField(body, fields->empty(), ObjectOf(number.value_or(0), Tokens(body, *fields)));
}

std::string BodyNote::ObjectNoted(std::string json, std::optional<size_t> number) const {
  const PaddedBody body(std::move(json));
  const auto fields = ObjectFields(body);
  if (!fields.ok()) return std::string(body.view());
  const auto tokens = Tokens(body, *fields);
  return WithField(body, fields->empty(), number ? ObjectOf(number, tokens) : AllOf(tokens));
}

// A list, SGLang's of a batch or of samples, has one in each of its objects.
std::string BodyNote::WholeNoted(std::string json) const {
  if (json[json.find_first_not_of(" \t\r\n")] != '[') return ObjectNoted(std::move(json), {});
  const PaddedBody body(std::move(json));
  const auto items = ArrayElements(body, body.whole(), kMaxSequences);
  if (!items.ok()) return std::string(body.view());
  std::vector<Edit> edits;
  for (size_t i = 0; i < items->size(); ++i) {
    const JsonRange& item = (*items)[i];
    if (item.kind != JsonKind::kObject) continue;
    edits.push_back({item.offset, item.length, ObjectNoted(std::string(body.Text(item)), i)});
  }
  return ApplyEdits(body.view(), std::move(edits));
}

std::string BodyNote::ObjectOf(std::optional<size_t> number, std::optional<uint64_t> tokens) const {
  const size_t prompt = number.value_or(0) / samples_;
  const Resolved& resolved = resolved_[prompt < resolved_.size() ? prompt : 0];
  std::vector<Span> spans;
  if (tokens) spans.push_back({0, *tokens, resolved.key});
  return LorryObject(resolved, lag_known_, spans);
}

std::string BodyNote::AllOf(std::optional<uint64_t> tokens) const {
  if (resolved_.size() == 1) return ObjectOf(0, tokens);
  std::string out;
  for (const Resolved& resolved : resolved_) {
    out += (out.empty() ? "[" : ",") + LorryObject(resolved, lag_known_, {});
  }
  return out + "]";
}

}  // namespace lorry::door
