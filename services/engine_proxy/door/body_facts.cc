#include "services/engine_proxy/door/body_facts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "lib/base/error.h"
#include "services/engine_proxy/door/framing.h"

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

// What `model` says of an adapter. "base:policy" is SGLang's own form: it looks for the whole name
// of its base model, which may have colons itself, and splits at the first colon otherwise
// (serving_base.py, _parse_model_parameter). On vLLM all of it is a name.
std::string ReferenceInModel(EngineKind kind, const EngineFacts& engine, const std::string& model,
                             bool* names_base) {
  *names_base =
      model.empty() || IsBase(engine, model) || (kind == EngineKind::kSglang && model == "default");
  if (*names_base) return "";
  if (kind != EngineKind::kSglang) return model;
  size_t colon = model.find(':');
  size_t longest = 0;
  for (const std::string& base : engine.base_models) {
    if (base.size() < longest || model.size() <= base.size() || model[base.size()] != ':' ||
        model.compare(0, base.size(), base) != 0) {
      continue;
    }
    colon = longest = base.size();
  }
  return colon == std::string::npos ? model : model.substr(colon + 1);
}

absl::StatusOr<std::string> Reference(std::string reference) {
  if (reference.size() <= kMaxReferenceBytes) return reference;
  return Invalid("an adapter is named by at most " + std::to_string(kMaxReferenceBytes) + " bytes");
}

absl::StatusOr<uint64_t> CountValue(const PaddedBody& body, const JsonRange& range) {
  const std::optional<uint64_t> value = WholeNumber(body, range);
  if (!value) return Invalid("n must be a whole number");
  if (*value == 0) return Invalid("n must be at least 1");
  return *value;
}

absl::Status ReadAdapter(EngineKind kind, const EngineFacts& engine, const PaddedBody& body,
                         const Fields& fields, BodyFacts* facts) {
  std::string in_model;
  facts->model_names_base = true;
  if (const JsonField* field = FindField(fields, "model")) {
    facts->model = field->value;
    if (field->value.kind == JsonKind::kString) {
      LORRY_ASSIGN_OR_RETURN(const std::string model, StringValue(body, field->value));
      if (!model.empty()) facts->asked_model = body.Text(field->value);
      facts->model_has_colon = model.find(':') != std::string::npos;
      if (IsBase(engine, model)) facts->base_model = model;
      LORRY_ASSIGN_OR_RETURN(
          in_model, Reference(ReferenceInModel(kind, engine, model, &facts->model_names_base)));
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
    LORRY_ASSIGN_OR_RETURN(std::string text, StringValue(body, field->value));
    LORRY_ASSIGN_OR_RETURN(std::string path, Reference(std::move(text)));
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
  if (items.empty()) return Invalid("lora_path is an empty list");
  for (const JsonRange& item : items) {
    if (item.kind == JsonKind::kNull) {
      // Beside others that name adapters this asks for the base model, as it does at the engine.
      facts->adapters.emplace_back("@base");
      continue;
    }
    if (item.kind != JsonKind::kString) return Invalid("lora_path must list strings and nulls");
    LORRY_ASSIGN_OR_RETURN(std::string text, StringValue(body, item));
    LORRY_ASSIGN_OR_RETURN(std::string path, Reference(std::move(text)));
    facts->adapters.push_back(std::move(path));
  }
  return absl::OkStatus();
}

// A list of texts or of token lists is a batch; a list of tokens is one prompt.
absl::Status ReadBatch(const PaddedBody& body, const Fields& fields, const ShapeRules& rules,
                       BodyFacts* facts) {
  for (const std::string_view key : rules.prompts) {
    const JsonField* field = key.empty() ? nullptr : FindField(fields, key);
    if (field == nullptr || field->value.kind != JsonKind::kArray) continue;
    // One array of tokens may be far longer than any batch: its first byte tells them apart.
    const std::string_view text = body.Text(field->value);
    const size_t at = text.find_first_not_of(" \t\r\n", 1);
    char first = text[at];
    // SGLang answers 400 for one of these and 500 or nothing for others.
    if (first == ']') return Invalid(std::string(key) + " is an empty list");
    // A token is a list of numbers there, and a prompt a list of them.
    if (key == "input_embeds") first = text[text.find_first_not_of(" \t\r\n", at + 1)];
    const bool nested = first == '[' || first == '"' || first == '{';
    if (!nested) continue;
    LORRY_ASSIGN_OR_RETURN(const std::vector<JsonRange> items,
                           ArrayElements(body, field->value, kMaxBatch));
    if (first == '{' && rules.has_conversations) continue;  // of one, whose messages these are
    // An embedding of one text with its image is no batch (serving_embedding.py).
    if (first == '{' && items.size() == 1) continue;
    facts->batch = std::max(facts->batch, items.size());
  }
  if (facts->adapter_is_list && facts->adapters.size() != facts->batch) {
    return Invalid("lora_path lists " + std::to_string(facts->adapters.size()) +
                   " adapters for a batch of " + std::to_string(facts->batch));
  }
  return absl::OkStatus();
}

// The objects that may have an `n`.
absl::StatusOr<std::vector<JsonRange>> SamplingParams(const PaddedBody& body,
                                                      const Fields& fields) {
  const JsonField* params = FindField(fields, "sampling_params");
  if (params == nullptr || params->value.kind == JsonKind::kNull) return std::vector<JsonRange>();
  if (params->value.kind == JsonKind::kObject) return std::vector<JsonRange>{params->value};
  if (params->value.kind == JsonKind::kArray) {
    return ArrayElements(body, params->value, kMaxBatch);
  }
  return Invalid("sampling_params must be objects");
}

absl::Status ReadOneN(const PaddedBody& body, const Fields& fields, uint64_t* n, BodyFacts* facts) {
  const JsonField* field = FindField(fields, "n");
  *n = 1;
  if (field == nullptr || field->value.kind == JsonKind::kNull) return absl::OkStatus();
  LORRY_ASSIGN_OR_RETURN(*n, CountValue(body, field->value));
  facts->n_values.push_back(field->value);
  return absl::OkStatus();
}

absl::Status ReadN(const PaddedBody& body, const Fields& fields, CountPlace place,
                   BodyFacts* facts) {
  if (place == CountPlace::kNowhere) return absl::OkStatus();
  if (place == CountPlace::kBody) return ReadOneN(body, fields, &facts->n, facts);
  LORRY_ASSIGN_OR_RETURN(const std::vector<JsonRange> objects, SamplingParams(body, fields));
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i].kind != JsonKind::kObject) return Invalid("sampling_params must be objects");
    LORRY_ASSIGN_OR_RETURN(const Fields inner, ObjectFields(body, objects[i]));
    uint64_t n = 1;
    LORRY_RETURN_IF_ERROR(ReadOneN(body, inner, &n, facts));
    // SGLang refuses this too (io_struct.py, _handle_parallel_sampling).
    if (i > 0 && n != facts->n) return Invalid("n must be the same in all sampling_params");
    facts->n = n;
  }
  return absl::OkStatus();
}

bool HasValue(const Fields& fields, std::string_view key) {
  const JsonField* field = FindField(fields, key);
  return field != nullptr && field->value.kind != JsonKind::kNull;
}

// Where /inference/v1/generate of vLLM has what others have in the body.
Fields VllmSamplingParams(const PaddedBody& body, const Fields& fields) {
  const JsonField* params = FindField(fields, "sampling_params");
  if (params == nullptr || params->value.kind != JsonKind::kObject) return {};
  return ObjectFields(body, params->value).value_or(Fields());
}

// As vLLM reads them (to_sampling_params of its requests, 0.32): by name, and by `echo`, in a chat
// whether or not it asks for log-probabilities besides.
bool WantsPromptLogprobs(const PaddedBody& body, const Fields& fields, BodyShape shape) {
  if (HasValue(fields, "prompt_logprobs")) return true;
  const JsonField* echo = FindField(fields, "echo");
  if (echo != nullptr && BoolValue(body, echo->value).value_or(false) &&
      (shape == BodyShape::kChat || shape == BodyShape::kChatBatch || HasValue(fields, "logprobs")))
    return true;
  return HasValue(VllmSamplingParams(body, fields), "prompt_logprobs");
}

// vLLM makes n requests of each prompt, and judges both fields itself: what it will refuse counts as
// one.
uint32_t VllmRequests(const PaddedBody& body, const Fields& fields, const ShapeRules& rules) {
  uint64_t requests = 1;
  const Fields params = VllmSamplingParams(body, fields);
  for (const Fields* place : {&fields, &params}) {
    const JsonField* n = rules.n == CountPlace::kBody ? FindField(*place, "n") : nullptr;
    if (n != nullptr) requests = std::max(requests, CountValue(body, n->value).value_or(1));
  }
  BodyFacts batch;
  if (ReadBatch(body, fields, rules, &batch).ok())
    requests = std::min(requests, kMaxEngineRequests) * batch.prompts();
  return static_cast<uint32_t>(std::min(requests, kMaxEngineRequests));
}

absl::StatusOr<std::string> IdValue(const PaddedBody& body, const JsonRange& at) {
  if (at.kind != JsonKind::kString) return Invalid("rid must be a string");
  LORRY_ASSIGN_OR_RETURN(std::string id, StringValue(body, at));
  if (id.size() <= kMaxIdBytes) return id;
  return Invalid("a rid has at most " + std::to_string(kMaxIdBytes) + " bytes");
}

absl::Status ReadIds(const PaddedBody& body, const Fields& fields, BodyFacts* facts) {
  const JsonField* field = FindField(fields, "rid");
  if (field == nullptr) return absl::OkStatus();
  facts->rid = field->value;
  if (field->value.kind == JsonKind::kNull) return absl::OkStatus();
  if (field->value.kind != JsonKind::kArray) {
    LORRY_ASSIGN_OR_RETURN(std::string id, IdValue(body, field->value));
    if (!id.empty()) facts->client_ids.push_back(std::move(id));  // an empty one names nothing
    return absl::OkStatus();
  }
  LORRY_ASSIGN_OR_RETURN(const std::vector<JsonRange> items,
                         ArrayElements(body, field->value, kMaxBatch));
  if (items.size() != facts->batch) return Invalid("rid must list one id for each of the batch");
  for (const JsonRange& item : items) {
    LORRY_ASSIGN_OR_RETURN(std::string id, IdValue(body, item));
    if (id.empty()) return Invalid("rid lists an empty id");
    facts->client_ids.push_back(std::move(id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> BoolValue(const PaddedBody& body, const JsonRange& at) {
  const std::string_view text = body.Text(at);
  if (at.kind == JsonKind::kBool) return text == "true";
  if (at.kind == JsonKind::kNumber) {
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value == 1;
  }
  if (at.kind != JsonKind::kString) return false;
  LORRY_ASSIGN_OR_RETURN(const std::string word, StringValue(body, at));
  constexpr std::string_view kTrue[] = {"1", "on", "t", "true", "y", "yes"};
  return std::any_of(std::begin(kTrue), std::end(kTrue),
                     [&](std::string_view one) { return EqualsIgnoreCase(one, word); });
}

ShapeRules RulesOf(BodyShape shape) {
  switch (shape) {
    case BodyShape::kGenerate:
      return {.prompts = {"text", "input_ids", "input_embeds"},
              .n = CountPlace::kSamplingParams,
              .has_model = false};
    case BodyShape::kEncode:
      return {.prompts = {"text", "input_ids"}, .has_model = false};
    case BodyShape::kCompletion:
      return {.prompts = {"prompt"}, .n = CountPlace::kBody};
    case BodyShape::kChat:
      return {.n = CountPlace::kBody};
    case BodyShape::kChatBatch:
      return {.prompts = {"messages"}, .n = CountPlace::kBody};
    case BodyShape::kEmbedding:
      return {.prompts = {"input"}};
    case BodyShape::kPooling:
      return {.prompts = {"input", "messages"}, .has_conversations = true};
    case BodyShape::kInputs:
      return {.prompts = {"texts", "images", "inputs"}};
    case BodyShape::kScore:  // at least one a pair: models that embed texts make one of each text
      return {.prompts = {"queries", "documents", "items", "text_1", "text_2", "data_1", "data_2"}};
    case BodyShape::kMessages:
      return {.adapter = AdapterPlace::kModel, .has_ids = false};
    case BodyShape::kResponses:
      return {};
    case BodyShape::kBaseOnly:
    case BodyShape::kTokens:
    case BodyShape::kNone:
      break;
  }
  return {.adapter = AdapterPlace::kNowhere, .has_ids = false};
}

bool CarriesAdapters(EngineKind kind, BodyShape shape) {
  return kind != EngineKind::kSglang || RulesOf(shape).adapter != AdapterPlace::kNowhere;
}

absl::StatusOr<BodyFacts> ReadBody(EngineKind kind, BodyShape shape, const EngineFacts& engine,
                                   const PaddedBody& body) {
  LORRY_ASSIGN_OR_RETURN(const Fields fields, ObjectFields(body));
  BodyFacts facts;
  const size_t open = body.view().find('{');
  facts.object = {open, body.view().size() - open, JsonKind::kObject};
  facts.object_is_empty = fields.empty();
  if (const JsonField* stream = FindField(fields, "stream")) {
    LORRY_ASSIGN_OR_RETURN(facts.stream, BoolValue(body, stream->value));
  }
  LORRY_RETURN_IF_ERROR(ReadAdapter(kind, engine, body, fields, &facts));
  const ShapeRules rules = RulesOf(shape);
  if (kind != EngineKind::kSglang) {
    if (const JsonField* id = FindField(fields, "request_id")) facts.rid = id->value;
    const JsonField* background = FindField(fields, "background");
    if (background != nullptr && shape == BodyShape::kResponses) {
      LORRY_ASSIGN_OR_RETURN(const bool is_asked, BoolValue(body, background->value));
      // It would be answered at once, and generate on an adapter that nobody counts any more.
      if (is_asked) {
        return Invalid(
            "a response in the background cannot be fetched through this door; send it without "
            "background");
      }
    }
    if (const JsonField* beams = FindField(fields, "use_beam_search")) {
      LORRY_ASSIGN_OR_RETURN(facts.searches_beams, BoolValue(body, beams->value));
    }
    facts.engine_requests = VllmRequests(body, fields, rules);
    facts.wants_prompt_logprobs =
        engine.dies_of_prompt_logprobs && WantsPromptLogprobs(body, fields, shape);
    return facts;
  }
  LORRY_RETURN_IF_ERROR(ReadBatch(body, fields, rules, &facts));
  LORRY_RETURN_IF_ERROR(ReadN(body, fields, rules.n, &facts));
  facts.engine_requests = static_cast<uint32_t>(
      std::min(std::min(facts.n, kMaxEngineRequests) * facts.prompts(), kMaxEngineRequests));
  if (rules.has_ids) LORRY_RETURN_IF_ERROR(ReadIds(body, fields, &facts));
  return facts;
}

}  // namespace lorry::door
