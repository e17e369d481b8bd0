// The fields of each record's text (lib/fleet/json.h).
#include "lib/fleet/json.h"
#include "services/engine_proxy/machine/records.h"

namespace lorry::proxy {
namespace {

using fleet::Field;
using fleet::Json;
using fleet::Text;

Json Fields(const JournalRecord& r) {
  return {{"kind", "journal"}, {"member", r.member.value}, {"journal", r.journal.value}};
}
RecordValue JournalFrom(const Json& j) {
  return JournalRecord{MemberId(Text(j, "member")), JournalId(Text(j, "journal"))};
}

Json Fields(const TermRecord& r) {
  return {{"kind", "term"}, {"incarnation", r.term.incarnation}, {"term", r.term.term}};
}
RecordValue TermFrom(const Json& j) {
  return TermRecord{Term{Field<uint64_t>(j, "incarnation"), Field<uint64_t>(j, "term")}};
}

Json Fields(const RowRecord& r) {
  return {{"kind", "row"},
          {"incarnation", r.incarnation},
          {"open", r.open},
          {"epoch", r.epoch.value},
          {"target", r.target.value},
          {"locked", r.locked.value},
          {"pool", r.pool.value},
          {"waits", r.waits}};
}
RecordValue RowFrom(const Json& j) {
  return RowRecord{Field<uint64_t>(j, "incarnation"),
                   Field<bool>(j, "open"),
                   Epoch(Field<uint64_t>(j, "epoch")),
                   EngineName(Text(j, "target")),
                   Epoch(Field<uint64_t>(j, "locked")),
                   PoolName(Text(j, "pool")),
                   Field<bool>(j, "waits")};
}

Json Fields(const BootRecord& r) { return {{"kind", "boot"}, {"boot", r.boot.value}}; }
RecordValue BootFrom(const Json& j) { return BootRecord{BootId(Text(j, "boot"))}; }

Json Fields(const NameRecord& r) {
  Json json = {{"kind", "name"},
               {"adapter", r.key.adapter.value},
               {"run", r.key.run.value},
               {"number", r.key.number.value},
               {"digest", r.digest.value},
               {"render", static_cast<int>(r.render)},
               {"path", r.path},
               {"loaded_on", r.loaded_on.value},
               {"tried_on", r.tried_on.value},
               {"trial", r.trial},
               {"asked", r.asked},
               {"leased", r.leased},
               {"probe", static_cast<int>(r.probe)},
               {"probe_gap_ppm", r.probe_gap_ppm},
               {"apart_ppm", r.apart_ppm},
               {"slept_on", r.slept_on.value}};
  fleet::AddTraits(json, r.traits);
  return json;
}
RecordValue NameFrom(const Json& j) {
  NameRecord r;
  r.key = {AdapterName(Text(j, "adapter")), RunId(Field<uint64_t>(j, "run")),
           VersionNumber(Field<uint64_t>(j, "number"))};
  r.digest = Digest{Text(j, "digest")};
  r.render = Field<int>(j, "render") == 0 ? fleet::Render::kPlain : fleet::Render::kRsloraFolded;
  r.path = Text(j, "path");
  r.loaded_on = BootId(Text(j, "loaded_on"));
  r.tried_on = BootId(Text(j, "tried_on"));
  r.trial = Field<uint64_t>(j, "trial");
  r.asked = Field<bool>(j, "asked", true);
  r.leased = Field<bool>(j, "leased");
  r.traits = fleet::TraitsFrom(j);
  r.probe = static_cast<fleet::ProbeMode>(Field<int>(j, "probe"));
  r.probe_gap_ppm = Field<uint32_t>(j, "probe_gap_ppm", fleet::kProbeGapPpmDefault);
  r.apart_ppm = Field<uint32_t>(j, "apart_ppm");
  r.slept_on = BootId(Field<std::string>(j, "slept_on"));
  return r;
}

Json Fields(const PausedRecord& r) {
  return {{"kind", "paused"},
          {"boot", r.boot.value},
          {"pause", static_cast<int>(r.kind)},
          {"framework_until", r.framework_until}};
}
RecordValue PausedFrom(const Json& j) {
  return PausedRecord{BootId(Text(j, "boot")),
                      static_cast<fleet::PauseKind>(Field<int>(j, "pause")),
                      Field<Tick>(j, "framework_until")};
}

Json Fields(const WedgedRecord& r) {
  return {{"kind", "wedged"}, {"boot", r.boot.value}, {"name", r.name.value}};
}
RecordValue WedgedFrom(const Json& j) {
  return WedgedRecord{BootId(Text(j, "boot")), EngineName(Text(j, "name"))};
}

Json Fields(const KillerRecord& r) { return {{"kind", "killer"}, {"deaths", r.deaths}}; }
RecordValue KillerFrom(const Json& j) { return KillerRecord{Field<uint32_t>(j, "deaths")}; }

Json Fields(const AsleepRecord& r) {
  return {{"kind", "asleep"}, {"boot", r.boot.value}, {"tags", r.tags}, {"doubted", r.doubted}};
}
RecordValue AsleepFrom(const Json& j) {
  return AsleepRecord{BootId(Text(j, "boot")), Field<std::set<std::string>>(j, "tags"),
                      Field<std::set<std::string>>(j, "doubted")};
}

Json Fields(const UnloadingRecord& r) {
  return {{"kind", "unloading"},
          {"boot", r.boot.value},
          {"name", r.name.value},
          {"until_tick", r.until_tick}};
}
RecordValue UnloadingFrom(const Json& j) {
  return UnloadingRecord{BootId(Text(j, "boot")), EngineName(Text(j, "name")),
                         Field<Tick>(j, "until_tick")};
}

Json Fields(const BindingRecord& r) {
  Json json = {{"kind", "binding"},        {"name", r.name.value},
               {"digest", r.digest.value}, {"render", static_cast<int>(r.render)},
               {"path", r.path},           {"order", r.order}};
  fleet::AddTraits(json, r.traits);
  return json;
}
RecordValue BindingFrom(const Json& j) {
  return BindingRecord{
      EngineName(Text(j, "name")),
      Digest{Text(j, "digest")},
      fleet::TraitsFrom(j),
      Field<int>(j, "render") == 0 ? fleet::Render::kPlain : fleet::Render::kRsloraFolded,
      Text(j, "path"),
      Field<uint64_t>(j, "order")};
}

}  // namespace

std::string Encode(const RecordValue& value) {
  return std::visit([](const auto& record) { return Fields(record).dump(); }, value);
}

absl::StatusOr<RecordValue> Decode(std::string_view text) {
  static const auto* const kReaders = new fleet::RecordReaders<RecordValue>{
      {"journal", &JournalFrom}, {"term", &TermFrom},     {"row", &RowFrom},
      {"boot", &BootFrom},       {"name", &NameFrom},     {"paused", &PausedFrom},
      {"wedged", &WedgedFrom},   {"killer", &KillerFrom}, {"unloading", &UnloadingFrom},
      {"binding", &BindingFrom}, {"asleep", &AsleepFrom}};
  return fleet::DecodeRecord(text, *kReaders);
}

}  // namespace lorry::proxy
