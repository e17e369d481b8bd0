#include "services/adapter_store/images/fan_out.h"

namespace lorry::store {

std::vector<OfferedRelay> FanOut::Join(const Digest& image, const OfferedRelay& relay) {
  if (options_.width <= 0) return {};
  const Tick now = clock_.Now();
  MutexLock lock(mutex_);
  Forget(now);
  if (relays_ >= options_.relays_max) return {};
  Tree& tree = trees_[image];
  tree.joined_at = now;
  if (const auto known = tree.by_address.find(relay.address); known != tree.by_address.end()) {
    tree.nodes[known->second].relay = relay;  // a restarted one has another key
    return {};
  }
  Node node{.relay = relay, .joined_at = now};
  std::vector<OfferedRelay> sources;
  if (tree.readers_of_store < options_.width) {
    ++tree.readers_of_store;
  } else if (Node* parent = FindOpen(tree, now); parent != nullptr) {
    ++parent->readers;
    node.parent = parent;
    sources.push_back(parent->relay);
    // Where the parent dies its own source is the next best.
    if (parent->parent != nullptr) sources.push_back(parent->parent->relay);
  }
  tree.by_address[relay.address] = tree.nodes.size();
  tree.nodes.push_back(std::move(node));
  ++relays_;
  return sources;
}

void FanOut::Forget(Tick now) {
  for (auto it = trees_.begin(); it != trees_.end();) {
    const Tree& tree = it->second;
    if (now - tree.joined_at < options_.life_ms) {
      ++it;
      continue;
    }
    relays_ -= tree.nodes.size();
    it = trees_.erase(it);
  }
}

FanOut::Node* FanOut::FindOpen(Tree& tree, Tick now) const {
  for (; tree.first_open < tree.nodes.size(); ++tree.first_open) {
    Node& node = tree.nodes[tree.first_open];
    if (node.readers < options_.width && now - node.joined_at < options_.life_ms) return &node;
  }
  return nullptr;
}

}  // namespace lorry::store
