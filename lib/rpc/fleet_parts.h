// What the messages of Desired and Observed have in common; for their sources alone. Pure
// functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/fleet/desired.h"
#include "lib/fleet/observed.h"
#include "lib/rpc/enum_table.h"
#include "lorry/sync/v1/fleet.pb.h"

namespace lorry::rpc {

inline constexpr std::array kKinds{
    std::pair{fleet::EngineKind::kUnknown, sync::v1::ENGINE_KIND_UNSPECIFIED},
    std::pair{fleet::EngineKind::kSglang, sync::v1::ENGINE_KIND_SGLANG},
    std::pair{fleet::EngineKind::kVllm, sync::v1::ENGINE_KIND_VLLM}};
inline constexpr std::array kRenders{
    std::pair{fleet::Render::kPlain, sync::v1::RENDER_PLAIN},
    std::pair{fleet::Render::kRsloraFolded, sync::v1::RENDER_RSLORA_FOLDED}};
inline constexpr std::array kRowModes{
    std::pair{fleet::RowMode::kClosed, sync::v1::ROW_MODE_CLOSED},
    std::pair{fleet::RowMode::kOpen, sync::v1::ROW_MODE_OPEN},
    std::pair{fleet::RowMode::kHeld, sync::v1::ROW_MODE_HELD},
    std::pair{fleet::RowMode::kLocked, sync::v1::ROW_MODE_LOCKED}};

// INVALID_ARGUMENT MESSAGE_INVALID.
absl::Status BadMessage(std::string_view what);

template <typename Plain, typename Wire, size_t N>
absl::StatusOr<Plain> ToPlain(const EnumTable<Plain, Wire, N>& table, Wire value,
                              std::string_view what) {
  if (const Plain* plain = FindPlain(table, value)) return *plain;
  return BadMessage(absl::StrCat(ToAbsl(what), " has an unknown value ", static_cast<int>(value)));
}

absl::Status CheckCount(int count, std::string_view what);

// Each message by `read`, in their order; the first that cannot be read ends it. `what`: the
// field's plural, for a refusal of too many.
template <typename Wire, typename Plain>
absl::Status ReadAll(const google::protobuf::RepeatedPtrField<Wire>& messages,
                     std::string_view what, absl::StatusOr<Plain> (*read)(const Wire&),
                     std::vector<Plain>& out) {
  LORRY_RETURN_IF_ERROR(CheckCount(messages.size(), what));
  for (const Wire& message : messages) {
    LORRY_ASSIGN_OR_RETURN(out.emplace_back(), read(message));
  }
  return absl::OkStatus();
}

absl::StatusOr<AdapterName> AdapterOf(const std::string& name);
absl::StatusOr<EngineName> EngineOf(const std::string& name, bool may_be_empty);

sync::v1::Pause PauseToProto(const fleet::DesiredPause& pause);
absl::StatusOr<fleet::DesiredPause> PauseFromProto(const sync::v1::Pause& pause);

}  // namespace lorry::rpc
