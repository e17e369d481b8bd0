#include "tests/fuzz/proxy/owed.h"

#include <filesystem>

namespace lorry::proxy::fuzz {

std::string Owed::PathOf(const engine::v1::FollowRequest& order) const {
  return versions_ + "/" + order.journal() + "/" + order.place().engine_name();
}

void Owed::Heard(const engine::v1::FollowRequest& order) {
  const bool is_late = ordered_ && order.journal() == journal_ && order.life() == life_ &&
                       order.revision() < revision_;
  if (is_late) return;
  ordered_ = true;
  member_ = order.member();
  journal_ = order.journal();
  life_ = order.life();
  revision_ = order.revision();
  paths_ = {order.paths().begin(), order.paths().end()};
  std::erase_if(placed_, [this](const std::string& path) { return !MayStay(path); });
}

engine::v1::FollowRequest Owed::Latest() const {
  engine::v1::FollowRequest order;
  order.set_member(member_);
  order.set_journal(journal_);
  order.set_life(life_);
  order.set_revision(revision_);
  for (const std::string& path : paths_) order.add_paths(path);
  return order;
}

bool Owed::MayStay(const std::string& path) const {
  if (!ordered_ || paths_.contains(path)) return true;
  // Another journal's stay as long as any of them is listed: an engine may have them open.
  const std::string folder = std::filesystem::path(path).parent_path().string() + "/";
  if (folder == versions_ + "/" + journal_ + "/") return false;
  const auto listed = paths_.lower_bound(folder);
  return listed != paths_.end() && listed->starts_with(folder);
}

}  // namespace lorry::proxy::fuzz
