#include "services/engine_proxy/door/rewrite.h"

#include <utility>

namespace lorry::door {
namespace {

using fleet::EngineKind;

bool HasColon(std::string_view text) { return text.find(':') != std::string_view::npos; }

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
  void Set(std::string_view key, const JsonRange& at, std::string json_value) {
    if (at.length > 0) {
      edits.push_back({at.offset, at.length, std::move(json_value)});
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

// What `model` becomes at the engine, as JSON; empty where it stays as it is.
std::string EngineModel(EngineKind kind, const ShapeRules& rules, const EngineFacts& engine,
                        const BodyFacts& facts, const EngineName& name) {
  static const std::string kNone;
  const std::string& base = engine.base_models.empty() ? kNone : engine.base_models.front();
  if (kind == EngineKind::kVllm) return QuoteJson(name.empty() ? base : name.value);
  // Before 0.5.19 SGLang splits a name at its first colon, its own base model's too; "default" is
  // the name that its protocol has for a request without one, and is not looked at.
  const std::string plain = base.empty() || HasColon(base) ? "default" : base;
  switch (rules.adapter) {
    case AdapterPlace::kLoraPath:
      // A name alone in `model` would silently mean the base model, and one with a colon would beat
      // lora_path.
      if (facts.model_names_base && !facts.model_has_colon &&
          (facts.model.length > 0 || !rules.has_model)) {
        return "";
      }
      return QuoteJson(plain);
    case AdapterPlace::kModel:
      return QuoteJson(name.empty() ? plain : plain + ":" + name.value);
    case AdapterPlace::kNowhere:
      break;
  }
  return facts.model_names_base ? "" : QuoteJson(base);
}

}  // namespace

std::vector<Edit> RewriteEdits(EngineKind kind, BodyShape shape, const EngineFacts& engine,
                               const BodyFacts& facts, const std::vector<Resolved>& resolved,
                               const std::vector<std::string>& ids) {
  const ShapeRules rules = RulesOf(shape);
  Writer writer(facts);
  std::string model = EngineModel(kind, rules, engine, facts, resolved[0].name);
  if (!model.empty()) writer.Set("model", facts.model, std::move(model));
  if (kind == EngineKind::kSglang && rules.adapter == AdapterPlace::kLoraPath) {
    writer.Set("lora_path", facts.lora_path,
               facts.adapter_is_list ? JsonList(resolved, JsonName) : JsonName(resolved[0]));
  } else if (facts.lora_path.length > 0) {
    // The engine ignores it here; the body names one adapter in one place all the same.
    writer.Set("lora_path", facts.lora_path, "null");
  }
  if (kind == EngineKind::kSglang && rules.has_ids) {
    writer.Set("rid", facts.rid, facts.batch > 0 ? JsonList(ids, QuoteJson) : QuoteJson(ids[0]));
  }
  if (facts.n > 1) {
    for (const JsonRange& n : facts.n_values) writer.edits.push_back({n.offset, n.length, "1"});
  }
  return std::move(writer.edits);
}

std::string ReplyModel(EngineKind kind, BodyShape shape, const EngineFacts& engine,
                       const BodyFacts& facts, const std::vector<Resolved>& resolved) {
  const ShapeRules rules = RulesOf(shape);
  if (shape == BodyShape::kTokens || (kind == EngineKind::kSglang && !rules.has_model)) return "";
  const EngineName& name = resolved[0].name;
  const std::string sent = EngineModel(kind, rules, engine, facts, name);
  if (!facts.asked_model.empty()) {
    return sent.empty() || sent == facts.asked_model ? "" : facts.asked_model;
  }
  if (name.empty()) return "";
  return QuoteJson(facts.adapters[0].empty() ? resolved[0].key.adapter.value : facts.adapters[0]);
}

}  // namespace lorry::door
