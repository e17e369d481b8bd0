// The templates of lib/runtime/driver.h.
#pragma once

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/runtime/awaited.h"
#include "lib/runtime/thread_name.h"

namespace lorry::runtime {

template <typename M, typename E>
Driver<M, E>::Driver(M machine, const Clock& clock, Hooks hooks, DriverOptions options)
    : machine_(std::move(machine)),
      clock_(clock),
      hooks_(std::move(hooks)),
      options_(std::move(options)),
      mailbox_(options_.mailbox_max),
      turned_at_(clock_.Now()) {
  LORRY_CHECK(hooks_.tick && hooks_.persist && hooks_.run && (hooks_.reply || !kHasReplies));
}

template <typename M, typename E>
Driver<M, E>::~Driver() {
  Stop();
}

template <typename M, typename E>
void Driver<M, E>::Start() {
  thread_ = std::thread([this] { Run(); });
}

template <typename M, typename E>
template <typename F>
absl::StatusOr<std::invoke_result_t<F, const M&>> Driver<M, E>::Ask(F look, Tick deadline) {
  auto answer = std::make_shared<Awaited<std::invoke_result_t<F, const M&>>>();
  LORRY_RETURN_IF_ERROR(
      Inspect([answer, look = std::move(look)](const M& machine) { answer->Set(look(machine)); }));
  auto taken = answer->Take(deadline - clock_.Now());
  if (taken.has_value()) return *std::move(taken);
  return Error(absl::StatusCode::kDeadlineExceeded, "",
               "the " + options_.name + " is busy; ask again");
}

template <typename M, typename E>
void Driver<M, E>::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_wake_.notify_all();
  mailbox_.Close();
  if (thread_.joinable()) thread_.join();
}

template <typename M, typename E>
void Driver<M, E>::Run() {
  NameThisThread(options_.name);
  // A restored machine may have something to do before anything happens.
  while (Turn(UntilWake())) {
  }
}

template <typename M, typename E>
std::optional<std::chrono::milliseconds> Driver<M, E>::UntilWake() const {
  if (!started_) return std::chrono::milliseconds(0);
  std::optional<int64_t> wait;
  if (wake_at_.has_value()) wait = std::max<Tick>(*wake_at_ + not_counted_ms_ - clock_.Now(), 0);
  if (options_.turn_gap_max_ms.has_value()) {
    const int64_t longest = *options_.turn_gap_max_ms / 2;
    wait = std::min(wait.value_or(longest), longest);
  }
  if (!wait.has_value()) return std::nullopt;
  return std::chrono::milliseconds(*wait);
}

template <typename M, typename E>
Tick Driver<M, E>::TakeTick() {
  const Tick now = clock_.Now();
  const int64_t gap = now - std::exchange(turned_at_, now);
  if (options_.turn_gap_max_ms.has_value())
    not_counted_ms_ += std::max<int64_t>(gap - *options_.turn_gap_max_ms, 0);
  return now - not_counted_ms_.load();
}

template <typename M, typename E>
bool Driver<M, E>::Turn(std::optional<std::chrono::milliseconds> wait) {
  if (ended_ || !mailbox_.Drain(batch_, options_.batch_max, wait)) return false;
  const bool was_started = std::exchange(started_, true);
  const Tick now = TakeTick();
  const bool due = wake_at_.has_value() && now >= *wake_at_;
  if (was_started && !due && batch_.empty()) return true;  // it has but looked at the clock
  const auto step = [&](Event event) {
    ++steps_;
    machine_.Step(now, std::move(event));
  };
  if (due) step(hooks_.tick());
  for (Item& item : batch_) {
    if (Event* event = std::get_if<0>(&item)) step(std::move(*event));
  }
  ended_ = !CarryOut(machine_.TakeReady());
  // Whoever looks sees what is durable and under way.
  for (Item& item : batch_) {
    if (auto* look = std::get_if<1>(&item)) (*look)(machine_);
  }
  batch_.clear();
  return !ended_;
}

template <typename M, typename E>
bool Driver<M, E>::CarryOut(Ready ready) {
  if (!ready.records.empty()) {
    const absl::Status persisted = Persist(ready);
    if (!persisted.ok()) {
      mailbox_.Close();
      if (hooks_.on_fatal) hooks_.on_fatal(persisted);
      return false;
    }
  }
  for (auto& effect : ready.effects) hooks_.run(std::move(effect));
  if constexpr (kHasReplies) {
    for (auto& reply : ready.replies) hooks_.reply(std::move(reply));
  }
  wake_at_ = ready.wake_at;
  return true;
}

template <typename M, typename E>
absl::Status Driver<M, E>::Persist(const Ready& ready) {
  constexpr int kSaidEvery = 120;  // tries: a minute
  for (int tries = 0;; ++tries) {
    absl::Status status = hooks_.persist(ready);
    if (status.code() != absl::StatusCode::kResourceExhausted) return status;
    if (tries % kSaidEvery == 0)
      spdlog::error("the {} cannot write its records, and does nothing else until it can: {}",
                    options_.name, std::string(status.message()));
    MutexLock lock(mutex_);
    if (stopping_) return status;
    stop_wake_.wait_for(mutex_, std::chrono::milliseconds(options_.persist_retry_ms));
    if (stopping_) return status;
  }
}

}  // namespace lorry::runtime
