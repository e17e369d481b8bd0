// What a scripted store says, and waiting for what comes of it.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "lorry/store/v1/store.pb.h"
#include "tests/testing/eventually.h"

namespace lorry::sync {

inline constexpr int64_t kPatienceMs = 30'000;

inline bool Eventually(const std::function<bool()>& condition) {
  return lorry::Eventually(condition, std::chrono::milliseconds(kPatienceMs));
}

inline store::v1::WatchResponse At(uint64_t revision, bool synced = false) {
  store::v1::WatchResponse message;
  message.set_revision(revision);
  message.set_synced(synced);
  if (synced) message.set_store("s1");
  return message;
}

inline void AddAdapter(store::v1::WatchResponse& message, const std::string& name) {
  store::v1::Adapter* adapter = message.add_changes()->mutable_adapter_set();
  adapter->set_name(name);
  adapter->set_current_run(1);
}

inline void AddVersion(store::v1::WatchResponse& message, const std::string& adapter,
                       uint64_t number) {
  common::v1::Version* version = message.add_changes()->mutable_version_stored();
  version->mutable_ref()->set_adapter(adapter);
  version->mutable_ref()->set_run(1);
  version->mutable_ref()->set_number(number);
  version->set_digest("d");
}

}  // namespace lorry::sync
