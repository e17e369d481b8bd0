#include "services/engine_proxy/door/rewrite.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::door {
namespace {

using fleet::EngineKind;
using Fields = std::vector<JsonField>;

absl::Status Invalid(std::string_view message) {
  return Error(absl::StatusCode::kInvalidArgument, "REQUEST_INVALID", message);
}

bool IsBase(const EngineFacts& engine, std::string_view model) {
  return std::find(engine.base_models.begin(), engine.base_models.end(), model) !=
         engine.base_models.end();
}

// What `model` says of an adapter. "base:policy" is SGLang's own form, split at the first colon.
std::string ReferenceInModel(EngineKind kind, const EngineFacts& engine, const std::string& model,
                             bool* names_base) {
  *names_base =
      model.empty() || IsBase(engine, model) || (kind == EngineKind::kSglang && model == "default");
  if (*names_base) return "";
  const size_t colon = model.find(':');
  if (colon != std::string::npos &&
      (kind == EngineKind::kSglang || IsBase(engine, model.substr(0, colon)))) {
    return model.substr(colon + 1);
  }
  return model;
}

absl::StatusOr<uint64_t> CountValue(const PaddedBody& body, const JsonRange& range) {
  const std::string_view text = body.Text(range);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (range.kind != JsonKind::kNumber || error != std::errc() || end != text.data() + text.size()) {
    return Invalid("n must be a whole number");
  }
  return value;
}

absl::Status ReadAdapter(EngineKind kind, const EngineFacts& engine, const PaddedBody& body,
                         const Fields& fields, BodyFacts* facts) {
  std::string in_model;
  facts->model_names_base = true;
  if (const JsonField* field = FindField(fields, "model")) {
    facts->model = field->value;
    if (field->value.kind == JsonKind::kString) {
      LORRY_ASSIGN_OR_RETURN(const std::string model, StringValue(body, field->value));
      in_model = ReferenceInModel(kind, engine, model, &facts->model_names_base);
    } else if (field->value.kind != JsonKind::kNull) {
      return Invalid("model must be a string");
    }
  }
  const JsonField* field = FindField(fields, "lora_path");
  if (field == nullptr) {
    facts->adapters = {in_model};
    return absl::OkStatus();
  }
  facts->lora_path = field->value;
  if (field->value.kind == JsonKind::kNull) {
    facts->adapters = {in_model};
    return absl::OkStatus();
  }
  if (field->value.kind == JsonKind::kString) {
    LORRY_ASSIGN_OR_RETURN(std::string path, StringValue(body, field->value));
    if (!in_model.empty() && !path.empty() && path != in_model) {
      return Invalid("model and lora_path name different adapters");
    }
    facts->adapters = {path.empty() ? in_model : std::move(path)};
    return absl::OkStatus();
  }
  if (field->value.kind != JsonKind::kArray || kind != EngineKind::kSglang) {
    return Invalid("lora_path must be a string");
  }
  if (!in_model.empty()) return Invalid("model and a list in lora_path exclude each other");
  facts->adapter_is_list = true;
  LORRY_ASSIGN_OR_RETURN(const std::vector<JsonRange> items,
                         ArrayElements(body, field->value, kMaxBatch));
  for (const JsonRange& item : items) {
    if (item.kind == JsonKind::kNull) {
      facts->adapters.emplace_back();
      continue;
    }
    if (item.kind != JsonKind::kString) return Invalid("lora_path must list strings and nulls");
    LORRY_ASSIGN_OR_RETURN(std::string path, StringValue(body, item));
    facts->adapters.push_back(std::move(path));
  }
  return absl::OkStatus();
}

// A list of texts or of token lists is a batch; a list of tokens is one prompt.
absl::Status ReadBatch(const PaddedBody& body, const Fields& fields, BodyShape shape,
                       BodyFacts* facts) {
  for (const std::string_view key : {"text", "input_ids", "input_embeds", "prompt"}) {
    const bool of_generate = key != "prompt";
    if (of_generate != (shape == BodyShape::kGenerate)) continue;
    const JsonField* field = FindField(fields, key);
    if (field == nullptr || field->value.kind != JsonKind::kArray) continue;
    // One array of tokens may be far longer than any batch: its first byte tells them apart.
    const std::string_view text = body.Text(field->value);
    const size_t first = text.find_first_not_of(" \t\r\n", 1);
    const bool nested = text[first] == '[' || text[first] == '"';
    if (!nested || key == "input_embeds") continue;
    LORRY_ASSIGN_OR_RETURN(const std::vector<JsonRange> items,
                           ArrayElements(body, field->value, kMaxBatch));
    facts->batch = std::max(facts->batch, items.size());
  }
  if (facts->adapter_is_list && facts->adapters.size() != facts->batch) {
    return Invalid("lora_path lists " + std::to_string(facts->adapters.size()) +
                   " adapters for a batch of " + std::to_string(facts->batch));
  }
  return absl::OkStatus();
}

absl::Status ReadN(const PaddedBody& body, const Fields& fields, BodyShape shape,
                   BodyFacts* facts) {
  std::vector<JsonRange> objects = {facts->object};
  if (shape == BodyShape::kGenerate) {
    objects.clear();
    const JsonField* params = FindField(fields, "sampling_params");
    if (params != nullptr && params->value.kind == JsonKind::kObject) {
      objects.push_back(params->value);
    } else if (params != nullptr && params->value.kind == JsonKind::kArray) {
      LORRY_ASSIGN_OR_RETURN(objects, ArrayElements(body, params->value, kMaxBatch));
    }
  }
  for (const JsonRange& object : objects) {
    if (object.kind != JsonKind::kObject) return Invalid("sampling_params must be objects");
    Fields inner;
    if (shape == BodyShape::kGenerate) {
      LORRY_ASSIGN_OR_RETURN(inner, ObjectFields(body, object));
    }
    const JsonField* field = FindField(shape == BodyShape::kGenerate ? inner : fields, "n");
    if (field == nullptr || field->value.kind == JsonKind::kNull) continue;
    LORRY_ASSIGN_OR_RETURN(const uint64_t n, CountValue(body, field->value));
    facts->n = std::max(facts->n, n);
    facts->n_value = field->value;
  }
  return absl::OkStatus();
}

absl::Status ReadIds(const PaddedBody& body, const Fields& fields, BodyFacts* facts) {
  const JsonField* field = FindField(fields, "rid");
  if (field == nullptr) return absl::OkStatus();
  facts->rid = field->value;
  std::vector<JsonRange> items;
  if (field->value.kind == JsonKind::kNull) return absl::OkStatus();
  if (field->value.kind == JsonKind::kArray) {
    LORRY_ASSIGN_OR_RETURN(items, ArrayElements(body, field->value, kMaxBatch));
    if (items.size() != facts->batch) return Invalid("rid must list one id for each of the batch");
  } else {
    items.push_back(field->value);
  }
  for (const JsonRange& item : items) {
    if (item.kind != JsonKind::kString) return Invalid("rid must be a string");
    LORRY_ASSIGN_OR_RETURN(std::string id, StringValue(body, item));
    facts->client_ids.push_back(std::move(id));
  }
  return absl::OkStatus();
}

std::string JsonName(const Resolved& resolved) {
  return resolved.name.empty() ? "null" : QuoteJson(resolved.name.value);
}

template <typename T, typename F>
std::string JsonList(const std::vector<T>& items, F text) {
  std::string out = "[";
  for (size_t i = 0; i < items.size(); ++i) out += (i == 0 ? "" : ",") + text(items[i]);
  return out + "]";
}

class Writer {
 public:
  explicit Writer(const BodyFacts& facts) : facts_(facts), empty_(facts.object_is_empty) {}
  // Replaces the value at `at`, or adds the field.
  void Set(std::string_view key, const JsonRange& at, const std::string& json_value) {
    if (at.length > 0) {
      edits.push_back({at.offset, at.length, json_value});
    } else {
      edits.push_back(InsertField(facts_.object, empty_, key, json_value));
      empty_ = false;  // later insertions come behind this one, at the same place
      if (facts_.object_is_empty) SwapCommas();
    }
  }
  std::vector<Edit> edits;

 private:
  // In an empty object only the last inserted field has no comma.
  void SwapCommas() {
    for (size_t i = 0; i < edits.size(); ++i) {
      std::string& text = edits[i].text;
      if (text.back() == ',') text.pop_back();
      if (i + 1 < edits.size()) text += ',';
    }
  }
  const BodyFacts& facts_;
  bool empty_;
};

}  // namespace

absl::StatusOr<BodyFacts> ReadBody(EngineKind kind, BodyShape shape, const EngineFacts& engine,
                                   const PaddedBody& body) {
  LORRY_ASSIGN_OR_RETURN(const Fields fields, ObjectFields(body));
  BodyFacts facts;
  const size_t open = body.view().find('{');
  facts.object = {open, body.view().size() - open, JsonKind::kObject};
  facts.object_is_empty = fields.empty();
  if (const JsonField* stream = FindField(fields, "stream")) {
    facts.stream = body.Text(stream->value) == "true";
  }
  LORRY_RETURN_IF_ERROR(ReadAdapter(kind, engine, body, fields, &facts));
  if (kind != EngineKind::kSglang) return facts;
  LORRY_RETURN_IF_ERROR(ReadBatch(body, fields, shape, &facts));
  LORRY_RETURN_IF_ERROR(ReadN(body, fields, shape, &facts));
  LORRY_RETURN_IF_ERROR(ReadIds(body, fields, &facts));
  return facts;
}

std::string RewriteBody(EngineKind kind, BodyShape shape, const EngineFacts& engine,
                        const PaddedBody& body, const BodyFacts& facts,
                        const std::vector<Resolved>& resolved, const std::vector<std::string>& ids,
                        bool split_n) {
  LORRY_CHECK(!resolved.empty());
  Writer writer(facts);
  if (kind == EngineKind::kVllm) {
    const std::string base = engine.base_models.empty() ? "" : engine.base_models.front();
    writer.Set("model", facts.model,
               QuoteJson(resolved[0].name.empty() ? base : resolved[0].name.value));
    // vLLM ignores it; the rewritten body names one adapter in one place all the same.
    if (facts.lora_path.length > 0) writer.Set("lora_path", facts.lora_path, "null");
    return ApplyEdits(body.view(), std::move(writer.edits));
  }
  LORRY_CHECK(!ids.empty());
  // A name alone in `model` would silently mean the base model, and one with a colon would beat
  // lora_path.
  const bool needs_model = shape != BodyShape::kGenerate && facts.model.length == 0;
  if (!facts.model_names_base || needs_model) {
    const std::string base = engine.base_models.empty() ? "default" : engine.base_models.front();
    writer.Set("model", facts.model, QuoteJson(base));
  }
  writer.Set("lora_path", facts.lora_path,
             facts.adapter_is_list ? JsonList(resolved, JsonName) : JsonName(resolved[0]));
  writer.Set("rid", facts.rid, facts.batch > 0 ? JsonList(ids, QuoteJson) : QuoteJson(ids[0]));
  if (split_n) writer.edits.push_back({facts.n_value.offset, facts.n_value.length, "1"});
  return ApplyEdits(body.view(), std::move(writer.edits));
}

}  // namespace lorry::door
