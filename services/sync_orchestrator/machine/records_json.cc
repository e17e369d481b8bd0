// Records as canonical JSON: {"kind": ..., fields}. nlohmann sorts keys, so equal records are equal
// text.
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/fleet/json.h"
#include "services/sync_orchestrator/machine/records.h"

namespace lorry::sync {
namespace {

using Json = nlohmann::json;

Json ToJson(const VersionKey& key) {
  return {{"adapter", key.adapter.value}, {"run", key.run.value}, {"number", key.number.value}};
}
Json ToJson(const VersionInfo& info) {
  Json json = {{"key", ToJson(info.key)}, {"digest", info.digest.value}};
  fleet::AddTraits(json, info.traits);
  return json;
}
Json ToJson(const std::vector<VersionKey>& keys) {
  Json list = Json::array();
  for (const VersionKey& key : keys) list.push_back(ToJson(key));
  return list;
}
Json ToJson(const std::optional<VersionKey>& key) {
  return key.has_value() ? ToJson(*key) : Json();
}

// Ids are bytes of a caller's choice, and JSON has text alone.
std::string Base64(const std::string& bytes) { return absl::Base64Escape(bytes); }
std::string FromBase64(const std::string& text) {
  std::string bytes;
  absl::Base64Unescape(text, &bytes);
  return bytes;
}

VersionKey KeyFrom(const Json& json) {
  return {AdapterName(json.at("adapter").get<std::string>()), RunId(json.at("run").get<uint64_t>()),
          VersionNumber(json.at("number").get<uint64_t>())};
}
VersionInfo InfoFrom(const Json& json) {
  VersionInfo info;
  info.key = KeyFrom(json.at("key"));
  info.digest = Digest{json.at("digest").get<std::string>()};
  info.traits = fleet::TraitsFrom(json);
  return info;
}
std::vector<VersionKey> KeysFrom(const Json& json) {
  std::vector<VersionKey> keys;
  for (const Json& item : json) keys.push_back(KeyFrom(item));
  return keys;
}
std::optional<VersionKey> MaybeKeyFrom(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(KeyFrom(json));
}

Json ToJson(const std::map<MemberId, uint32_t>& counts) {
  Json object = Json::object();
  for (const auto& [member, count] : counts) object[member.value] = count;
  return object;
}
std::map<MemberId, uint32_t> CountsFrom(const Json& json) {
  std::map<MemberId, uint32_t> counts;
  for (const auto& [member, count] : json.items()) counts[MemberId(member)] = count.get<uint32_t>();
  return counts;
}

// The value up to `last` of that name; `otherwise` where there is none.
template <typename Enum>
Enum FromText(std::string_view text, Enum last, Enum otherwise) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (ToString(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return otherwise;
}

Json Fields(const MetaRecord& r) {
  return {{"kind", "meta"},
          {"incarnation", r.term.incarnation},
          {"term", r.term.term},
          {"settled", r.worth == Worth::kSettled},
          {"lost", r.worth == Worth::kLost},
          {"floor", r.floor.value}};
}
Json Fields(const HoldsRecord& r) {
  return {{"kind", "holds"}, {"sent", r.sent.value}, {"acked", r.acked.value}};
}
Json Fields(const MemberRecord& r) {
  return {{"kind", "member"},
          {"pool", r.pool.value},
          {"journal", r.journal.value},
          {"term", r.attached_term},
          {"excluded", r.excluded},
          {"excluded_why", r.excluded_why},
          {"dead", r.dead},
          {"boot", r.boot.value},
          {"was_ready", r.was_ready},
          {"was_ready_before", r.was_ready_before}};
}
Json Fields(const PoolRecord& r) {
  Json history = Json::array();
  for (const Activation& a : r.history)
    history.push_back({{"epoch", a.epoch.value}, {"version", ToJson(a.version)}});
  return {{"kind", "pool"},
          {"epoch", r.epoch.value},
          {"history", history},
          {"pending", ToJson(r.pending)},
          {"refused", ToJson(r.refused)},
          {"considered", ToJson(r.considered)},
          {"override", ToJson(r.override_to)},
          {"barrier", r.barrier.value},
          {"began", r.began.value}};
}
Json Fields(const SyncRecord& r) {
  Json members = Json::array();
  for (const SyncMember& m : r.members) {
    members.push_back({{"member", m.member.value},
                       {"boot", m.boot.value},
                       {"dropped", ToString(m.dropped)},
                       {"words", m.words}});
  }
  return {{"kind", "sync"},
          {"epoch", r.epoch.value},
          {"version", ToJson(r.version)},
          {"barrier", r.mode == fleet::SyncMode::kBarrier},
          {"overriding", r.overriding},
          {"share_of", r.share_of},
          {"from_pool", r.source.pool.value},  // both empty: what is published
          {"from_alias", r.source.alias.value},
          {"members", members}};
}
Json Fields(const DecisionRecord& r) {
  return {{"kind", "decision"},
          {"epoch", r.epoch.value},
          {"version", ToJson(r.version)},
          {"commit", r.commit},
          {"reason", ToString(r.why)}};
}
Json Fields(const LeaseRecord& r) {
  return {{"kind", "lease"},
          {"version", ToJson(r.version)},
          {"pool", r.pool.value},
          {"holder", r.holder},
          {"ttl_ms", r.ttl_ms}};
}
Json Fields(const VerdictRecord& r) {
  Json groups = Json::object();
  for (const auto& [group, v] : r.groups) {
    Json refusals = Json::object();
    for (const auto& [member, refusal] : v.refusals)
      refusals[member.value] = {{"boot", refusal.boot.value}, {"tries", refusal.tries}};
    Json hung = Json::object();
    Json hung_on = Json::object();
    for (const auto& [member, its] : v.hung) {
      hung[member.value] = its.tries;
      if (!its.boot.empty()) hung_on[member.value] = its.boot.value;
    }
    Json leave = Json::object();
    for (const auto& [member, its] : v.leave) {
      leave[member.value] = {{"boot", its.boot.value},
                             {"journal", its.journal.value},
                             {"lost", its.lost},
                             {"left", its.left}};
    }
    groups[group.value] = {{"verdict", ToString(v.verdict)},
                           {"words", v.words},
                           {"deaths", ToJson(v.deaths)},
                           {"hung", hung},
                           {"hung_on", hung_on},
                           {"refusals", refusals},
                           {"leave", leave}};
  }
  Json reported = Json::object();
  Json journals = Json::object();
  for (const auto& [member, said] : r.reported) {
    reported[member.value] = said.deaths;
    if (!said.journal.empty()) journals[member.value] = said.journal.value;
  }
  return {{"kind", "verdict"},
          {"version", ToJson(r.version)},
          {"groups", groups},
          {"reported", reported},
          {"journals", journals}};
}
Json Fields(const RequestsRecord& r) {
  Json overrides = Json::array();
  for (const OverrideResult& o : r.overrides) {
    overrides.push_back(
        {{"id", Base64(o.request_id)}, {"version", ToJson(o.version)}, {"epoch", o.epoch.value}});
  }
  return {{"kind", "requests"}, {"overrides", overrides}};
}

MetaRecord MetaFrom(const Json& j) {
  const Worth otherwise = j.at("settled").get<bool>() ? Worth::kSettled : Worth::kNew;
  return {Term{j.at("incarnation").get<uint64_t>(), j.at("term").get<uint64_t>()},
          j.value("lost", false) ? Worth::kLost : otherwise, Epoch(j.value("floor", uint64_t{0}))};
}
HoldsRecord HoldsFrom(const Json& j) {
  return {Revision(j.at("sent").get<uint64_t>()), Revision(j.at("acked").get<uint64_t>())};
}
MemberRecord MemberFrom(const Json& j) {
  return {PoolName(j.at("pool").get<std::string>()),
          JournalId(j.at("journal").get<std::string>()),
          j.at("term").get<uint64_t>(),
          j.at("excluded").get<bool>(),
          j.at("excluded_why").get<std::string>(),
          j.at("dead").get<bool>(),
          BootId(j.value("boot", "")),
          j.value("was_ready", false),
          j.value("was_ready_before", false)};
}
PoolRecord PoolFrom(const Json& j) {
  PoolRecord r;
  r.epoch = Epoch(j.at("epoch").get<uint64_t>());
  for (const Json& item : j.at("history")) {
    r.history.push_back({Epoch(item.at("epoch").get<uint64_t>()), InfoFrom(item.at("version"))});
  }
  r.pending = KeysFrom(j.at("pending"));
  r.refused = KeysFrom(j.at("refused"));
  r.considered = MaybeKeyFrom(j.at("considered"));
  r.override_to = MaybeKeyFrom(j.at("override"));
  r.barrier = Epoch(j.value("barrier", uint64_t{0}));
  r.began = Epoch(j.value("began", uint64_t{0}));
  return r;
}
SyncRecord SyncFrom(const Json& j) {
  SyncRecord r;
  r.epoch = Epoch(j.at("epoch").get<uint64_t>());
  r.version = InfoFrom(j.at("version"));
  r.mode = j.at("barrier").get<bool>() ? fleet::SyncMode::kBarrier : fleet::SyncMode::kRolling;
  r.overriding = j.at("overriding").get<bool>();
  for (const Json& item : j.at("members")) {
    // A reason of another version of Lorry is the member's own words.
    const auto dropped = item.at("dropped").get<std::string>();
    const Drop known = FromText(dropped, Drop::kLeft, Drop::kFailed);
    r.members.push_back({MemberId(item.at("member").get<std::string>()),
                         BootId(item.at("boot").get<std::string>()), known,
                         item.value("words", ToString(known) == dropped ? "" : dropped)});
  }
  r.share_of = j.value("share_of", static_cast<uint32_t>(r.members.size()));
  r.source.pool = PoolName(j.value("from_pool", ""));
  r.source.alias = AliasName(j.value("from_alias", ""));
  using Kind = fleet::PoolSource::Kind;
  if (!r.source.pool.empty()) r.source.kind = Kind::kPool;
  if (!r.source.alias.empty()) r.source.kind = Kind::kAlias;
  return r;
}
DecisionRecord DecisionFrom(const Json& j) {
  return {Epoch(j.at("epoch").get<uint64_t>()), KeyFrom(j.at("version")),
          j.at("commit").get<bool>(),
          FromText(j.at("reason").get<std::string>(), Abort::kStalls, Abort::kTooFewEngines)};
}
LeaseRecord LeaseFrom(const Json& j) {
  return {InfoFrom(j.at("version")), PoolName(j.at("pool").get<std::string>()),
          j.at("holder").get<std::string>(), j.at("ttl_ms").get<int64_t>()};
}
std::map<MemberId, VerdictRecord::Reported> ReportedFrom(const Json& deaths, const Json& journals) {
  std::map<MemberId, VerdictRecord::Reported> reported;
  for (const auto& [member, count] : deaths.items())
    reported[MemberId(member)] = {JournalId(journals.value(member, "")), count.get<uint32_t>()};
  return reported;
}
VerdictRecord VerdictFrom(const Json& j) {
  VerdictRecord r;
  r.version = KeyFrom(j.at("version"));
  for (const auto& [group, item] : j.at("groups").items()) {
    GroupVerdict& v = r.groups[EngineGroup(group)];
    v.verdict =
        FromText(item.at("verdict").get<std::string>(), Verdict::kStalls, Verdict::kRefused);
    v.words = item.value("words", "");
    v.deaths = CountsFrom(item.value("deaths", Json::object()));
    const Json hung_on = item.value("hung_on", Json::object());
    for (const auto& [member, tries] : CountsFrom(item.value("hung", Json::object())))
      v.hung[member] = {BootId(hung_on.value(member.value, "")), tries};
    const Json refusals = item.value("refusals", Json::object());
    for (const auto& [member, refusal] : refusals.items()) {
      v.refusals[MemberId(member)] = {BootId(refusal.at("boot").get<std::string>()),
                                      refusal.at("tries").get<uint32_t>()};
    }
    const Json leave = item.value("leave", Json::object());
    for (const auto& [member, its] : leave.items()) {
      v.leave[MemberId(member)] = {BootId(its.at("boot").get<std::string>()),
                                   JournalId(its.at("journal").get<std::string>()),
                                   its.at("lost").get<bool>(), its.value("left", false)};
    }
  }
  r.reported = ReportedFrom(j.at("reported"), j.value("journals", Json::object()));
  return r;
}
// As it was written before verdicts had groups: it says how many deaths were reported, and blames
// no group, so that the version is tried again.
VerdictRecord PoisonFrom(const Json& j) {
  return {KeyFrom(j.at("version")), {}, ReportedFrom(j.at("deaths"), Json::object())};
}
RequestsRecord RequestsFrom(const Json& j) {
  RequestsRecord r;
  for (const Json& item : j.at("overrides")) {
    r.overrides.push_back({FromBase64(item.at("id").get<std::string>()),
                           MaybeKeyFrom(item.at("version")),
                           Epoch(item.at("epoch").get<uint64_t>())});
  }
  return r;
}

// Throws nlohmann's exceptions; Decode keeps them inside.
RecordValue From(const std::string& kind, const Json& json) {
  if (kind == "meta") return MetaFrom(json);
  if (kind == "holds") return HoldsFrom(json);
  if (kind == "member") return MemberFrom(json);
  if (kind == "pool") return PoolFrom(json);
  if (kind == "sync") return SyncFrom(json);
  if (kind == "decision") return DecisionFrom(json);
  if (kind == "lease") return LeaseFrom(json);
  if (kind == "requests") return RequestsFrom(json);
  if (kind == "verdict") return VerdictFrom(json);
  if (kind == "poison") return PoisonFrom(json);
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

}  // namespace lorry::sync
