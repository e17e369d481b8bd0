#include "services/engine_proxy/door/reply.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/error.h"
#include "services/engine_proxy/door/events.h"
#include "services/engine_proxy/door/framing.h"
#include "services/engine_proxy/machine/binding_name.h"

namespace lorry::door {
namespace {

using Json = nlohmann::ordered_json;

// Of a mixed batch. A digest has 80 bytes; clients take heads of 8 KiB to 64 KiB.
constexpr size_t kListedVersions = 32;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status NotJson() {
  return Error(absl::StatusCode::kInternal, "ENGINE_REPLY_INVALID",
               "the engine's reply is not the JSON that this route answers with");
}

// dump() and Redact() walk a document recursively; no reply of the engines' nests deeper than 20.
constexpr int kMaxReplyDepth = 64;
// Longer names are no file's and no model's; each card repeats its base model's.
constexpr size_t kMaxModelName = 4096;

// An object of bounded depth; discarded otherwise.
Json ParseReply(const std::string& text) {
  bool too_deep = false;
  const Json::parser_callback_t check = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxReplyDepth;
    return !too_deep;
  };
  Json reply = Json::parse(text, check, /*allow_exceptions=*/false);
  return too_deep || !reply.is_object() ? Json(Json::value_t::discarded) : reply;
}

Json Card(const std::string& id, const std::string& root, const Json& parent) {
  return {{"id", id},     {"object", "model"}, {"created", 0}, {"owned_by", "lorry"},
          {"root", root}, {"parent", parent}};
}

bool IsSecret(std::string key) {
  std::transform(key.begin(), key.end(), key.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::string_view kWords[] = {"api_key", "password", "secret", "auth_token", "hf_token"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return key.find(word) != std::string::npos; });
}

void Redact(Json& json) {
  if (json.is_object()) {
    for (auto& [key, value] : json.items()) {
      if (IsSecret(key) && !value.is_null()) {
        value = "***";
      } else {
        Redact(value);
      }
    }
  } else if (json.is_array()) {
    for (Json& item : json) Redact(item);
  }
}

}  // namespace

std::string ErrorBody(fleet::EngineKind kind, std::string_view path, const Refused& refused) {
  Json inner = {{"message", refused.message},
                {"type", refused.reason},
                {"param", nullptr},
                {"code", refused.status}};
  if (path == "/v1/messages") {  // Anthropic's
    return Dump({{"type", "error"}, {"error", inner}});
  }
  const bool native = path == "/generate" || path == "/encode" || path == "/classify";
  const bool flat = kind == fleet::EngineKind::kSglang && !native;
  if (!flat) return Dump({{"error", inner}});
  Json outer = {{"object", "error"}};
  outer.update(inner);
  return Dump(outer);
}

std::string AbortedBody(const std::vector<std::string>& ids, bool is_list, bool stream) {
  Json all = Json::array();
  std::string events;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Json reason = {{"type", "abort"}, {"message", "Abort in waiting queue"}};
    Json one = {
        {"text", ""},
        {"output_ids", Json::array()},
        {"meta_info", {{"id", ids[i]}, {"finish_reason", reason}, {"completion_tokens", 0}}}};
    if (is_list && stream) one["index"] = i;
    if (stream) AppendData(Dump(one), &events);
    all.push_back(std::move(one));
  }
  if (!stream) return Dump(is_list ? all : all.front());
  AppendData(kDoneData, &events);
  return events;
}

namespace {

// What the headers list: one for each of a batch, but a batch that uses one version throughout says
// so once, and one that is too long for a header each of its versions once.
std::vector<const Resolved*> Listed(const std::vector<Resolved>& resolved) {
  const bool mixed = std::any_of(resolved.begin(), resolved.end(),
                                 [&](const Resolved& one) { return one != resolved.front(); });
  std::vector<const Resolved*> listed;
  for (const Resolved& one : resolved) {
    const bool every = mixed && resolved.size() <= kListedVersions;
    const bool known = !every && std::any_of(listed.begin(), listed.end(),
                                             [&](const Resolved* other) { return *other == one; });
    if (!known) listed.push_back(&one);
  }
  return listed;
}

// `text` of each, one after the other; what the base model has not is "-".
template <typename F>
void AppendOfEach(std::string_view name, std::span<const Resolved* const> resolved, F text,
                  std::string* head) {
  head->append(name);
  std::string_view before = ": ";
  for (const Resolved* one : resolved) {
    head->append(std::exchange(before, ", "));
    if (one->name.empty()) {
      head->push_back('-');
    } else {
      absl::StrAppend(head, text(*one));
    }
  }
  head->append("\r\n");
}

}  // namespace

void AppendLorryHeaders(const std::vector<Resolved>& resolved, bool lag_known,
                        std::string_view request_id, std::string* head) {
  AppendField("X-Lorry-Request-Id", request_id, head);
  if (resolved.empty()) return;
  const Resolved* const only = &resolved.front();
  std::vector<const Resolved*> several;
  if (resolved.size() > 1) several = Listed(resolved);
  const std::span<const Resolved* const> listed =
      several.empty() ? std::span(&only, 1) : std::span<const Resolved* const>(several);
  std::string adapters;
  for (const Resolved* one : listed) {
    if (!adapters.empty()) adapters += ", ";
    adapters += one->name.empty() ? "@base" : one->key.adapter.value;
  }
  AppendField("X-Lorry-Adapter", adapters, head);
  const auto each = [&](std::string_view name, auto text) {
    AppendOfEach(name, listed, text, head);
  };
  each("X-Lorry-Version", [](const Resolved& r) { return r.key.number.value; });
  each("X-Lorry-Run", [](const Resolved& r) { return r.key.run.value; });
  each("X-Lorry-Epoch", [](const Resolved& r) { return r.epoch.value; });
  each("X-Lorry-Digest", [](const Resolved& r) -> const std::string& { return r.digest.value; });
  if (!lag_known) return each("X-Lorry-Lag", [](const Resolved&) { return "unknown"; });
  each("X-Lorry-Lag",
       [](const Resolved& r) { return r.lag ? std::to_string(*r.lag) : std::string("none"); });
}

std::string RefusalFields(const Refused& refused) {
  std::string out;
  AppendField("X-Lorry-Reason", refused.reason, &out);
  if (refused.retry_after_s > 0) {
    AppendField("Retry-After", std::to_string(refused.retry_after_s), &out);
  } else if (refused.status == 409) {
    // OpenAI's clients try a 409 again, taking it for a lock; this one stays what it is.
    AppendField("x-should-retry", "false", &out);
  }
  return out;
}

void AppendStatusLine(int status, std::string* head) {
  if (status == 200) {
    head->append("HTTP/1.1 200 OK\r\n");
    return;
  }
  const auto phrase = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(status)));
  head->append("HTTP/1.1 ").append(std::to_string(status)).append(" ");
  head->append(phrase.data(), phrase.size()).append("\r\n");
}

namespace {

// The engine's cards of base models; those of adapters have names that only the door may use.
absl::StatusOr<std::vector<Json>> BaseCards(const std::string& engine_reply) {
  const Json reply = ParseReply(engine_reply);
  if (reply.is_discarded() || !reply.contains("data") || !reply["data"].is_array()) {
    return NotJson();
  }
  std::vector<Json> cards;
  for (const Json& card : reply["data"]) {
    if (!card.is_object() || !card.contains("id") || !card["id"].is_string() ||
        card["id"].get_ref<const std::string&>().size() > kMaxModelName) {
      return NotJson();
    }
    if (!card.contains("parent") || card["parent"].is_null()) cards.push_back(card);
  }
  return cards;
}

// What this door routes comes first: clients that take the first model of the list (TRL) mean the
// one that is trained.
absl::StatusOr<std::vector<Json>> Cards(const std::string& engine_reply,
                                        const proxy::DoorTable& table) {
  LORRY_ASSIGN_OR_RETURN(std::vector<Json> base_cards, BaseCards(engine_reply));
  const Json base = base_cards.empty() ? Json(nullptr) : base_cards.front()["id"];
  std::vector<Json> cards;
  for (const proxy::DoorBinding& binding : table.bindings) {
    cards.push_back(Card(binding.name, binding.target.value, base));
  }
  for (const proxy::DoorRow& row : table.rows) {
    if (row.mode == fleet::RowMode::kOpen) {
      cards.push_back(Card(row.adapter.value, row.target.value, base));
    }
  }
  for (const proxy::DoorRoute& route : table.routes) {
    if (route.key == proxy::BindingKey()) continue;  // has its client's name
    // A version of an older run has no name that a client could ask by but the engine's own.
    const bool current = table.FindVersion(route.key.adapter, route.key.number) == &route;
    cards.push_back(
        Card(current ? route.key.adapter.value + "@" + std::to_string(route.key.number.value)
                     : route.name.value,
             route.name.value, base));
  }
  for (const fleet::AliasRoute& alias : table.aliases) {
    if (table.FindRoute(alias.target) != nullptr) {
      cards.push_back(
          Card(alias.adapter.value + "@" + alias.alias.value, alias.target.value, base));
    }
  }
  std::move(base_cards.begin(), base_cards.end(), std::back_inserter(cards));
  return cards;
}

// "policy%40eval" is "policy@eval"; what is no escape stays as it is.
std::string Unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* const hex = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(hex, hex + 2, byte, 16).ptr == hex + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> ModelsBody(const std::string& engine_reply,
                                       const proxy::DoorTable& table) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Json> cards, Cards(engine_reply, table));
  return Dump({{"object", "list"}, {"data", cards}});
}

absl::StatusOr<std::string> ModelBody(const std::string& engine_reply,
                                      const proxy::DoorTable& table, std::string_view path) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Json> cards, Cards(engine_reply, table));
  const std::string id = Unescaped(path.substr(kModelsPath.size() + 1));
  std::vector<std::string> known;
  for (const Json& card : cards) {
    known.push_back(card["id"].get<std::string>());
    if (known.back() == id) return Dump(card);
  }
  return Error(
      absl::StatusCode::kNotFound, "UNKNOWN_ADAPTER",
      "no model is called '" + id.substr(0, 128) + "' at this engine" + DidYouMean(id, known));
}

absl::StatusOr<std::string> RedactedInfo(const std::string& engine_reply) {
  Json reply = ParseReply(engine_reply);
  if (reply.is_discarded()) return NotJson();
  Redact(reply);
  return Dump(reply);
}

}  // namespace lorry::door
