// Why a connection is away, told once for each new reason until it is there again: whoever dials
// every second would fill a log with one word. Thread-safe.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"

namespace lorry::rpc {

class Outage {
 public:
  // True where this was not told yet, and is to be. What this side has cancelled never is.
  bool IsNews(const absl::Status& why) LORRY_EXCLUDES(mutex_) {
    if (absl::IsCancelled(why)) return false;
    MutexLock lock(mutex_);
    why_ = Words(why);
    return told_.size() < kToldMax && told_.insert(why_).second;
  }
  // It is there. True where it was told that it was not.
  bool End() LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const bool was_told = !told_.empty();
    told_.clear();
    why_.clear();
    return was_told;
  }
  // "UNAVAILABLE: connection refused", of the last try; empty where nothing is known to be wrong.
  std::string why() const LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return why_;
  }

 private:
  // A message may name what differs each time. As many lines show all that an outage is made of.
  static constexpr size_t kToldMax = 8;

  static std::string Words(const absl::Status& why) {
    if (why.ok()) return "the other side has ended it";
    const std::string reason = ReasonOf(why);
    return absl::StrCat(reason.empty() ? absl::StatusCodeToString(why.code()) : reason, ": ",
                        std::string(why.message()));
  }

  mutable Mutex mutex_;
  std::string why_ LORRY_GUARDED_BY(mutex_);
  std::set<std::string> told_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::rpc
