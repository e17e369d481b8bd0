#include "services/engine_proxy/door/reply.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <nlohmann/json.hpp>
#include <span>

#include "lib/base/error.h"
#include "services/engine_proxy/door/framing.h"

namespace lorry::door {
namespace {

using Json = nlohmann::ordered_json;

// The fields of one version fit at once.
constexpr size_t kFieldsRoom = 512;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status NotJson() {
  return Error(absl::StatusCode::kInternal, "ENGINE_REPLY_INVALID",
               "the engine's reply is not the JSON that this route answers with");
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

template <typename F>
std::string Joined(std::span<const Resolved> resolved, F text) {
  std::string out;
  for (const Resolved& one : resolved) {
    out += (out.empty() ? "" : ", ") + (one.name.empty() ? std::string("-") : text(one));
  }
  return out;
}

}  // namespace

std::string ErrorBody(fleet::EngineKind kind, std::string_view path, const Refused& refused) {
  Json inner = {{"message", refused.message},
                {"type", refused.reason},
                {"param", nullptr},
                {"code", refused.status}};
  const bool flat = kind == fleet::EngineKind::kSglang && path != "/generate";
  if (!flat) return Dump({{"error", inner}});
  Json outer = {{"object", "error"}};
  outer.update(inner);
  return Dump(outer);
}

std::string LorryHeaders(const std::vector<Resolved>& resolved, bool lag_known,
                         std::string_view request_id) {
  std::string out;
  out.reserve(kFieldsRoom);
  AppendField("X-Lorry-Request-Id", request_id, &out);
  if (resolved.empty()) return out;
  // A batch that uses one version throughout says so once.
  const bool mixed = std::any_of(resolved.begin(), resolved.end(),
                                 [&](const Resolved& one) { return one != resolved.front(); });
  const std::span<const Resolved> distinct(resolved.data(), mixed ? resolved.size() : 1);
  const auto number = [](uint64_t value) { return std::to_string(value); };
  std::string adapters;
  for (const Resolved& one : distinct) {
    adapters +=
        (adapters.empty() ? "" : ", ") + (one.name.empty() ? "@base" : one.key.adapter.value);
  }
  AppendField("X-Lorry-Adapter", adapters, &out);
  AppendField("X-Lorry-Version",
              Joined(distinct, [&](const Resolved& one) { return number(one.key.number.value); }),
              &out);
  AppendField("X-Lorry-Run",
              Joined(distinct, [&](const Resolved& one) { return number(one.key.run.value); }),
              &out);
  AppendField("X-Lorry-Epoch",
              Joined(distinct, [&](const Resolved& one) { return number(one.epoch.value); }), &out);
  AppendField("X-Lorry-Digest",
              Joined(distinct, [](const Resolved& one) { return one.digest.value; }), &out);
  AppendField("X-Lorry-Lag",
              Joined(distinct,
                     [&](const Resolved& one) -> std::string {
                       if (!lag_known) return "unknown";
                       return one.lag ? number(*one.lag) : "none";
                     }),
              &out);
  return out;
}

std::string StatusLine(int status) {
  const auto phrase = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(status)));
  return "HTTP/1.1 " + std::to_string(status) + " " + std::string(phrase.data(), phrase.size()) +
         "\r\n";
}

absl::StatusOr<std::string> ModelsBody(const std::string& engine_reply,
                                       const proxy::DoorTable& table) {
  const Json reply = Json::parse(engine_reply, nullptr, /*allow_exceptions=*/false);
  if (!reply.is_object() || !reply.contains("data") || !reply["data"].is_array()) return NotJson();
  Json cards = Json::array();
  Json base = nullptr;
  for (const Json& card : reply["data"]) {
    if (!card.is_object() || !card.contains("id")) return NotJson();
    if (card.contains("parent") && !card["parent"].is_null()) continue;
    if (base.is_null()) base = card["id"];
    cards.push_back(card);
  }
  for (const proxy::DoorRow& row : table.rows) {
    if (row.mode == fleet::RowMode::kOpen) {
      cards.push_back(Card(row.adapter.value, row.target.value, base));
    }
  }
  for (const proxy::DoorRoute& route : table.routes) {
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
  return Dump({{"object", "list"}, {"data", cards}});
}

absl::StatusOr<std::string> RedactedInfo(const std::string& engine_reply) {
  Json reply = Json::parse(engine_reply, nullptr, /*allow_exceptions=*/false);
  if (!reply.is_object()) return NotJson();
  Redact(reply);
  return Dump(reply);
}

}  // namespace lorry::door
