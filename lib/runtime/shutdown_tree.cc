#include "lib/runtime/shutdown_tree.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "lib/base/clock.h"

namespace lorry::runtime {
namespace {
constexpr Tick kSlowMs = 1'000;
}

ShutdownTree::ShutdownTree(std::string name, std::function<void()> stop)
    : name_(std::move(name)), stop_(std::move(stop)) {}

ShutdownTree& ShutdownTree::Add(std::string name, std::function<void()> stop) {
  children_.push_back(std::make_unique<ShutdownTree>(std::move(name), std::move(stop)));
  return *children_.back();
}

void ShutdownTree::Stop() {
  while (!children_.empty()) {
    children_.back()->Stop();
    children_.pop_back();
  }
  if (!stop_) return;
  const SteadyClock clock;
  const Tick began = clock.Now();
  std::exchange(stop_, nullptr)();
  if (clock.Now() - began > kSlowMs) {
    spdlog::warn("stopping {} took {} ms", name_, clock.Now() - began);
  }
}

}  // namespace lorry::runtime
