// Records as canonical JSON: {"kind": ..., fields}. nlohmann sorts keys, so equal records are equal
// text.
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "nlohmann/json.hpp"
#include "services/engine_proxy/machine/records.h"

namespace lorry::proxy {
namespace {

using Json = nlohmann::json;

Json Fields(const JournalRecord& r) {
  return {{"kind", "journal"}, {"member", r.member.value}, {"journal", r.journal.value}};
}
Json Fields(const TermRecord& r) {
  return {{"kind", "term"}, {"incarnation", r.term.incarnation}, {"term", r.term.term}};
}
Json Fields(const RowRecord& r) {
  return {{"kind", "row"},          {"incarnation", r.incarnation}, {"open", r.open},
          {"epoch", r.epoch.value}, {"target", r.target.value},     {"locked", r.locked.value}};
}
Json Fields(const BootRecord& r) { return {{"kind", "boot"}, {"boot", r.boot.value}}; }
Json Fields(const NameRecord& r) {
  return {{"kind", "name"},           {"adapter", r.key.adapter.value},
          {"run", r.key.run.value},   {"number", r.key.number.value},
          {"digest", r.digest.value}, {"render", static_cast<int>(r.render)},
          {"path", r.path},           {"loaded_on", r.loaded_on.value}};
}
Json Fields(const PausedRecord& r) {
  return {{"kind", "paused"}, {"boot", r.boot.value}, {"pause", static_cast<int>(r.kind)}};
}
Json Fields(const WedgedRecord& r) {
  return {{"kind", "wedged"}, {"boot", r.boot.value}, {"name", r.name.value}};
}
Json Fields(const KillerRecord& r) { return {{"kind", "killer"}, {"deaths", r.deaths}}; }

RowRecord RowFrom(const Json& j) {
  return {j.at("incarnation").get<uint64_t>(), j.at("open").get<bool>(),
          Epoch(j.at("epoch").get<uint64_t>()), EngineName(j.at("target").get<std::string>()),
          Epoch(j.at("locked").get<uint64_t>())};
}
NameRecord NameFrom(const Json& j) {
  NameRecord r;
  r.key = {AdapterName(j.at("adapter").get<std::string>()), RunId(j.at("run").get<uint64_t>()),
           VersionNumber(j.at("number").get<uint64_t>())};
  r.digest = Digest{j.at("digest").get<std::string>()};
  r.render = j.at("render").get<int>() == 0 ? fleet::Render::kPlain : fleet::Render::kRsloraFolded;
  r.path = j.at("path").get<std::string>();
  r.loaded_on = BootId(j.at("loaded_on").get<std::string>());
  return r;
}

// Throws nlohmann's exceptions; Decode keeps them inside.
RecordValue From(const std::string& kind, const Json& j) {
  if (kind == "journal") {
    return JournalRecord{MemberId(j.at("member").get<std::string>()),
                         JournalId(j.at("journal").get<std::string>())};
  }
  if (kind == "term")
    return TermRecord{Term{j.at("incarnation").get<uint64_t>(), j.at("term").get<uint64_t>()}};
  if (kind == "row") return RowFrom(j);
  if (kind == "boot") return BootRecord{BootId(j.at("boot").get<std::string>())};
  if (kind == "name") return NameFrom(j);
  if (kind == "paused") {
    return PausedRecord{BootId(j.at("boot").get<std::string>()),
                        static_cast<fleet::PauseKind>(j.at("pause").get<int>())};
  }
  if (kind == "wedged") {
    return WedgedRecord{BootId(j.at("boot").get<std::string>()),
                        EngineName(j.at("name").get<std::string>())};
  }
  if (kind == "killer") return KillerRecord{j.at("deaths").get<uint32_t>()};
  throw Json::other_error::create(501, "unknown kind " + kind, nullptr);
}

}  // namespace

std::string Encode(const RecordValue& value) {
  return std::visit([](const auto& record) { return Fields(record).dump(); }, value);
}

absl::StatusOr<RecordValue> Decode(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    return From(json.at("kind").get<std::string>(), json);
  } catch (const Json::exception& e) {
    return Error(absl::StatusCode::kDataLoss, "RECORDS_INVALID",
                 absl::StrCat("a stored record cannot be read: ", e.what()));
  }
}

}  // namespace lorry::proxy
