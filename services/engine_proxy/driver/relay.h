// Passes on what this proxy fetches, while it fetches it and for as long as it has it, to other
// proxies, so that the store need not send an image to each of them.
//
// The store says who reads from whom (services/adapter_store/images/fan_out.h), and makes tickets
// with a key that this object made: it opens images here and nothing else. What is passed on was
// verified here, and is verified again by whoever reads it. A reader that lags behind what is here
// is sent elsewhere. Thread-safe; outlives the server of relays and the fetcher.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/fleet/engine_name.h"
#include "lib/transfer/arrivals.h"
#include "lib/transfer/image_file.h"
#include "lib/transfer/server.h"
#include "lib/transfer/transport_set.h"
#include "services/engine_proxy/machine/effects.h"

namespace lorry::proxy {

class Relay final : public transfer::TransferHandler {
 public:
  // The store's JoinFanOut. Blocks within a deadline of its own.
  using Join = std::function<absl::StatusOr<std::vector<transfer::Source>>(
      const VersionKey& version, const std::string& address,
      const transfer::TicketKeys::Secret& key)>;
  // `clock` outlives whatever is read here.
  Relay(Join join, const Clock& clock);

  // What others dial; before the first fetch, once the server listens.
  void SetAddress(std::string address) { address_ = std::move(address); }
  const transfer::TicketKeys& keys() const { return keys_; }

  // From now on `image`, which is about to be fetched for `name`, is passed on as far as its bytes
  // are in the arrivals. Whoever fetches ends them, well or with a reason.
  absl::StatusOr<std::shared_ptr<transfer::Arrivals>> Serve(const EngineName& name,
                                                            const Digest& digest,
                                                            const transfer::ImageFile& image,
                                                            std::vector<transfer::Checksum> leaves);
  // Where to read it, best first, before the store. On an executor: it asks the store.
  std::vector<transfer::Source> Sources(const VersionKey& version) const;
  // The image of `name` is passed on to nobody new: its fetch failed, or its directory goes.
  void Drop(const EngineName& name);

  void OpenGet(const transfer::TicketClaims& claims, GetOpened done) override;
  void OpenPut(const transfer::TicketClaims& claims, PutOpened done) override;

 private:
  struct Image {
    Digest digest;
    std::shared_ptr<const transfer::ImageFile> mapped;
    transfer::GetSource source;
  };

  const Join join_;
  const Clock& clock_;
  transfer::TicketKeys::Secret key_;
  transfer::TicketKeys keys_;
  std::string address_;  // constant once anything is fetched
  Mutex mutex_;
  std::map<EngineName, Image> images_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::proxy
