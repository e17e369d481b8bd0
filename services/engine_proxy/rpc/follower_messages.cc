#include "services/engine_proxy/rpc/follower_messages.h"

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/fleet/engine_name.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/fleet_parts.h"

namespace lorry::proxy {
namespace {

// Far more than engines have slots.
constexpr int kPathsLimit = 10'000;
constexpr size_t kWordBytesMax = 128;

absl::StatusOr<Placement> FromProto(const engine::v1::Placement& placement) {
  Placement out;
  LORRY_ASSIGN_OR_RETURN(out.name, rpc::EngineOf(placement.engine_name(), /*may_be_empty=*/false));
  out.path = placement.path();
  LORRY_ASSIGN_OR_RETURN(out.contents.key, rpc::FromProto(placement.version()));
  if (placement.digest().empty() || placement.digest().size() > kWordBytesMax)
    return rpc::BadMessage("a digest is missing or too long");
  out.contents.digest = Digest{placement.digest()};
  LORRY_ASSIGN_OR_RETURN(out.contents.traits, rpc::FromProto(placement.traits()));
  LORRY_ASSIGN_OR_RETURN(out.contents.render, rpc::ToPlain(rpc::kRenders, placement.render(),
                                                           "FollowRequest.place.render"));
  // What is there under a name is taken for what was asked for by it.
  const auto& [key, digest, traits, render] = out.contents;
  if (out.name != fleet::MakeEngineName(key, digest, render))
    return rpc::BadMessage("FollowRequest.place has the engine name of other contents");
  return out;
}

}  // namespace

engine::v1::FollowRequest ToProto(const FollowerOrder& order) {
  engine::v1::FollowRequest out;
  out.set_journal(order.journal.value);
  out.set_life(order.life);
  out.set_revision(order.revision);
  for (const std::string& path : order.paths) out.add_paths(path);
  out.set_doubts(order.doubts);
  if (!order.place.has_value()) return out;
  engine::v1::Placement& place = *out.mutable_place();
  place.set_engine_name(order.place->name.value);
  place.set_path(order.place->path);
  const DirectoryContents& contents = order.place->contents;
  *place.mutable_version() = rpc::ToProto(contents.key);
  place.set_digest(contents.digest.value);
  *place.mutable_traits() = rpc::ToProto(contents.traits);
  place.set_render(rpc::ToWire(rpc::kRenders, contents.render));
  return out;
}

absl::StatusOr<FollowerOrder> FromProto(const engine::v1::FollowRequest& request) {
  FollowerOrder out;
  // It becomes the name of a folder.
  LORRY_RETURN_IF_ERROR(CheckName("FollowRequest.journal", request.journal()));
  out.journal = JournalId(request.journal());
  if (request.life().empty() || request.life().size() > kWordBytesMax)
    return rpc::BadMessage("FollowRequest.life is missing or too long");
  out.life = request.life();
  out.revision = request.revision();
  if (request.paths_size() > kPathsLimit)
    return rpc::BadMessage(absl::StrCat("more than ", kPathsLimit, " FollowRequest.paths"));
  out.paths.insert(request.paths().begin(), request.paths().end());
  out.doubts = request.doubts();
  if (request.has_place()) {
    LORRY_ASSIGN_OR_RETURN(out.place, FromProto(request.place()));
  }
  return out;
}

}  // namespace lorry::proxy
