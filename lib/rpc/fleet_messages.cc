#include "lib/rpc/fleet_messages.h"

#include <algorithm>
#include <utility>

#include "lib/base/error.h"
#include "lib/fleet/engine_name.h"
#include "lib/rpc/fleet_parts.h"

namespace lorry::rpc {
namespace {

namespace pb = lorry::sync::v1;
namespace cm = lorry::common::v1;

// More adapters, versions or aliases than any engine was seen to hold; beyond it a document is an
// attack or a bug.
constexpr int kEntriesMax = 10'000;

constexpr std::array kPauses{std::pair{fleet::PauseKind::kNone, pb::PAUSE_KIND_UNSPECIFIED},
                             std::pair{fleet::PauseKind::kAbort, pb::PAUSE_KIND_ABORT},
                             std::pair{fleet::PauseKind::kRetract, pb::PAUSE_KIND_RETRACT},
                             std::pair{fleet::PauseKind::kInPlace, pb::PAUSE_KIND_IN_PLACE},
                             std::pair{fleet::PauseKind::kWait, pb::PAUSE_KIND_WAIT},
                             std::pair{fleet::PauseKind::kKeep, pb::PAUSE_KIND_KEEP},
                             std::pair{fleet::PauseKind::kDrain, pb::PAUSE_KIND_DRAIN}};

}  // namespace

absl::Status BadMessage(std::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID", what);
}

absl::StatusOr<AdapterName> AdapterOf(const std::string& name) {
  LORRY_RETURN_IF_ERROR(CheckAdapterName(name));
  return AdapterName(name);
}

absl::StatusOr<EngineName> EngineOf(const std::string& name, bool may_be_empty) {
  if (name.empty() ? !may_be_empty : name.size() > 128)
    return BadMessage("an engine name is missing or too long");
  // It becomes a directory's name and a part of records' keys.
  if (!name.empty() && !fleet::KeyOfEngineName(EngineName(name)).has_value())
    return BadMessage("an engine name is not {adapter}-v{number}-{12 hex digits}");
  return EngineName(name);
}

absl::Status CheckCount(int count, std::string_view what) {
  if (count <= kEntriesMax) return absl::OkStatus();
  return BadMessage(
      absl::StrCat(count, " ", ToAbsl(what), " in one document, the limit is ", kEntriesMax));
}

pb::Pause PauseToProto(const fleet::DesiredPause& pause) {
  pb::Pause out;
  out.set_kind(ToWire(kPauses, pause.kind));
  out.set_deadline_ms(pause.deadline_ms);
  out.set_flush(pause.flush);
  return out;
}

absl::StatusOr<fleet::DesiredPause> PauseFromProto(const pb::Pause& pause) {
  fleet::DesiredPause out;
  LORRY_ASSIGN_OR_RETURN(out.kind, ToPlain(kPauses, pause.kind(), "Pause.kind"));
  out.deadline_ms = pause.deadline_ms();
  out.flush = pause.flush();
  return out;
}

cm::VersionRef ToProto(const VersionKey& key) {
  cm::VersionRef out;
  out.set_adapter(key.adapter.value);
  out.set_run(key.run.value);
  out.set_number(key.number.value);
  return out;
}

absl::StatusOr<VersionKey> FromProto(const cm::VersionRef& ref) {
  LORRY_ASSIGN_OR_RETURN(AdapterName adapter, AdapterOf(ref.adapter()));
  return VersionKey{std::move(adapter), RunId(ref.run()), VersionNumber(ref.number())};
}

cm::VersionTraits ToProto(const fleet::VersionTraits& traits) {
  cm::VersionTraits out;
  out.set_rank_max(traits.rank_max);
  out.set_rslora(traits.rslora);
  out.set_rank_or_alpha_pattern(traits.rank_or_alpha_pattern);
  out.set_partial_groups(traits.partial_groups);
  out.set_all_b_zero(traits.all_b_zero);
  out.set_relative_norm_ppm(traits.relative_norm_ppm);
  for (const std::string& module : traits.modules) out.add_modules(module);
  return out;
}

absl::StatusOr<fleet::VersionTraits> FromProto(const cm::VersionTraits& traits) {
  LORRY_RETURN_IF_ERROR(CheckCount(traits.modules_size(), "modules"));
  fleet::VersionTraits out;
  out.rank_max = traits.rank_max();
  out.rslora = traits.rslora();
  out.rank_or_alpha_pattern = traits.rank_or_alpha_pattern();
  out.partial_groups = traits.partial_groups();
  out.all_b_zero = traits.all_b_zero();
  out.relative_norm_ppm = traits.relative_norm_ppm();
  out.modules.assign(traits.modules().begin(), traits.modules().end());
  std::sort(out.modules.begin(), out.modules.end());
  return out;
}

pb::Term ToProto(const Term& term) {
  pb::Term out;
  out.set_incarnation(term.incarnation);
  out.set_term(term.term);
  return out;
}

Term FromProto(const pb::Term& term) { return Term{term.incarnation(), term.term()}; }

pb::EngineKind ToProto(fleet::EngineKind kind) { return ToWire(kKinds, kind); }

}  // namespace lorry::rpc
