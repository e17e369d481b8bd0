#include "services/engine_proxy/door/body_note.h"

#include <algorithm>
#include <utility>

#include "services/engine_proxy/door/body_facts.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

// Of a batch: each of its prompts has as many sequences as there are samples.
constexpr size_t kMaxSequences = kMaxBatch * kMaxSplit;

using Fields = std::vector<JsonField>;

Fields Inner(const PaddedBody& body, const Fields& fields, std::string_view key) {
  const JsonField* field = FindField(fields, key);
  if (field == nullptr) return {};
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
    out.push_back(ObjectFields(body, item).value_or(Fields()));
  }
  return out;
}

bool HasValue(const Fields& fields, std::string_view key) {
  const JsonField* field = FindField(fields, key);
  return field != nullptr && field->value.kind != JsonKind::kNull;
}

// How many tokens one sequence has: SGLang says it of each, OpenAI's shape of all together.
std::optional<uint64_t> Tokens(const PaddedBody& body, const Fields& fields) {
  if (const auto own = WholeNumber(body, Inner(body, fields, "meta_info"), "completion_tokens"))
    return own;
  const auto choices = Choices(body, fields);
  if (!choices || choices->size() != 1) return std::nullopt;
  return WholeNumber(body, Inner(body, fields, "usage"), "completion_tokens");
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

std::string WeightVersion(const Resolved& resolved) {
  if (resolved.name.empty() || resolved.is_binding) return "";
  return QuoteJson(std::to_string(resolved.key.number.value));
}

std::string WithLorry(std::string json, const std::string& value) {
  const PaddedBody body(std::move(json));
  const auto fields = ObjectFields(body);
  return fields.ok() ? WithField(body, fields->empty(), value) : std::string(body.view());
}

void BodyNote::Feed(std::string_view piece, bool end, std::string* out) {
  if (std::holds_alternative<Blank>(state_)) {
    const size_t blank = std::min(piece.find_first_not_of(" \t\r\n"), piece.size());
    out->append(piece.substr(0, blank));
    piece.remove_prefix(blank);
    if (piece.empty()) return;
    if (piece.front() == '{' || piece.front() == '[') {
      state_.emplace<Json>();
    } else {
      state_.emplace<EventReader>();
    }
  }
  if (Json* json = std::get_if<Json>(&state_)) {
    json->held += piece;
    if (end || json->held.size() > kHeldBytes) PassJson(std::move(json->held), end, out);
  } else if (EventReader* events = std::get_if<EventReader>(&state_)) {
    events->Add(piece);
    while (const auto event = events->Next()) PassEvent(*event, out);
    if (end || events->held_bytes() > kHeldBytes) {
      out->append(events->TakeRest());
      state_.emplace<Passing>();
    }
  } else {
    out->append(piece);
  }
}

void BodyNote::PassJson(std::string json, bool end, std::string* out) {
  if (end) {
    json = WholeNoted(std::move(json));
  } else if (json.front() == '{') {
    json.insert(1, "\"lorry\":" + AllOf(std::nullopt) + ",");
  }
  out->append(json);
  state_.emplace<Passing>();
}

void BodyNote::PassEvent(std::string_view event, std::string* out) const {
  const PaddedBody body{std::string(DataOf(event).value_or(""))};
  const auto fields = ObjectFields(body);
  if (!fields.ok()) return AppendEvent(event, out);
  const Fields meta = Inner(body, *fields, "meta_info");
  bool is_last = HasValue(meta, "finish_reason");
  std::optional<size_t> number = WholeNumber(body, *fields, "index");
  for (const Fields& choice : Choices(body, *fields).value_or(std::vector<Fields>())) {
    if (!HasValue(choice, "finish_reason")) continue;
    is_last = true;
    number = WholeNumber(body, choice, "index");
  }
  if (!is_last) return AppendEvent(event, out);
  const std::string object = ObjectOf(number.value_or(0), Tokens(body, *fields));
  AppendData(WithField(body, fields->empty(), object), out);
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
  if (json.front() != '[') return ObjectNoted(std::move(json), {});
  const PaddedBody body(std::move(json));
  const auto items = ArrayElements(body, body.whole(), kMaxSequences);
  if (!items.ok()) return std::string(body.view());
  std::vector<Edit> edits;
  for (size_t i = 0; i < items->size(); ++i) {
    const JsonRange& item = (*items)[i];
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
