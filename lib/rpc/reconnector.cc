#include "lib/rpc/reconnector.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace lorry::rpc {

int64_t BackoffMs(const Backoff& backoff, int failures, Prng& prng) {
  // Sixteen doublings reach any sensible maximum, and do not overflow.
  const int64_t doubled = backoff.min_ms << std::clamp(failures, 0, 16);
  const int64_t longest = std::max<int64_t>(std::min(doubled, backoff.max_ms), 1);
  return longest - static_cast<int64_t>(prng.Below(static_cast<uint64_t>(longest) / 2 + 1));
}

Reconnector::Reconnector(Backoff backoff, std::function<std::shared_ptr<Dial>()> dial)
    : backoff_(backoff), dial_(std::move(dial)) {}

Reconnector::~Reconnector() { Stop(); }

void Reconnector::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Reconnector::Redial() {
  MutexLock lock(mutex_);
  if (current_ == nullptr) return;
  redialled_ = true;
  current_->Cancel();
}

void Reconnector::RedialInVain() {
  MutexLock lock(mutex_);
  if (current_ == nullptr) return;
  in_vain_ = true;
  current_->Cancel();
}

void Reconnector::Finish() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void Reconnector::Stop() {
  Finish();
  Redial();
  if (thread_.joinable()) thread_.join();
}

void Reconnector::Run() {
  const uint64_t entropy =
      static_cast<uint64_t>(getpid()) * 0x9e3779b97f4a7c15ull ^
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  Prng prng(backoff_.jitter_seed != 0 ? backoff_.jitter_seed : entropy);
  int failures = 0;
  while (const std::shared_ptr<Dial> dial = Begin()) {
    const auto began = std::chrono::steady_clock::now();
    const bool heard = dial->Wait();
    const bool in_vain = in_vain_.exchange(false);
    // Being admitted is not yet of use: a service may refuse whoever has said hello.
    const bool lasted =
        std::chrono::steady_clock::now() - began > std::chrono::milliseconds(backoff_.max_ms);
    const bool was_of_use = redialled_.exchange(false) || (heard && !in_vain) || lasted;
    failures = was_of_use ? 0 : failures + 1;
    Pause(BackoffMs(backoff_, failures, prng));
  }
}

std::shared_ptr<Dial> Reconnector::Begin() {
  MutexLock lock(mutex_);
  if (!stopping_) current_ = dial_();
  return stopping_ ? nullptr : current_;
}

void Reconnector::Pause(int64_t wait_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  MutexLock lock(mutex_);
  current_.reset();
  while (!stopping_ && wake_.wait_until(mutex_, until) != std::cv_status::timeout) {
  }
}

}  // namespace lorry::rpc
