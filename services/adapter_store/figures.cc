#include "services/adapter_store/figures.h"

#include <chrono>
#include <utility>

namespace lorry::store {
namespace {

// As long as the orchestrator's scrape waits for its machine; probes are given some seconds.
constexpr std::chrono::seconds kPatience(1);

}  // namespace

Figures::Figures(metrics::Registry& registry, std::function<void()> read) : read_(std::move(read)) {
  registry.OnScrape([this] { Refresh(); });
}

void Figures::Refresh() {
  MutexLock lock(mutex_);
  if (!reading_) {
    reading_ = true;
    loop_.PostAnswer([this] {
      read_();
      MutexLock done(mutex_);
      reading_ = false;
      changed_.notify_all();
    });
  }
  changed_.wait_until(mutex_, std::chrono::steady_clock::now() + kPatience,
                      [this]() LORRY_REQUIRES(mutex_) { return !reading_; });
}

}  // namespace lorry::store
