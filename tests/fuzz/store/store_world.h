// The store's real parts, wired as its server wires them, over a catalogue and a disk in memory:
// everything behind the socket, on a port of its own.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "lib/kv/memory_store.h"
#include "lib/rpc/server.h"
#include "lib/transfer/grpc/grpc_transport.h"
#include "services/adapter_store/images/check.h"
#include "services/adapter_store/images/collector.h"
#include "services/adapter_store/rpc/store_service.h"
#include "tests/fuzz/store/hostile_disk.h"
#include "tests/unit/adapter_store/test_adapter.h"

namespace lorry::store::fuzz {

// Small, so that an input can fill the server.
inline constexpr int kSessionsMax = 8;

class StoreWorld final : private Observer {
 public:
  StoreWorld();
  ~StoreWorld() override;

  std::string address() const { return server_->address(); }
  HostileDisk& disk() { return disk_; }
  // What the store's housekeeping thread does every second, with `ms` gone by.
  void Sweep(int64_t ms);
  // An open upload other than `known`, which may take a moment to appear; empty where none does.
  std::string FindUpload(const std::string& known);
  // An upload that stays open, and the ticket for it.
  struct Begun {
    std::string upload;
    std::string ticket;
  };
  absl::StatusOr<Begun> Begin(const std::string& adapter, const TestAdapter& image);
  // Stores `image` as version 1 of a new run, and gives the ticket to read it. `checked` is what
  // CheckImage said of it: a search has no time to check the same image for each input.
  absl::StatusOr<std::string> Publish(const std::string& adapter, const TestAdapter& image,
                                      const CheckOutcome& checked);
  absl::StatusOr<std::string> Publish(const std::string& adapter, const TestAdapter& image);

 private:
  absl::Status Store(const Upload& upload, const TestAdapter& image, const CheckOutcome& checked);
  void OnChanged(uint64_t) override { hub_->OnChanged(); }
  void OnUploadEnded(const Upload& upload) override { uploads_->OnUploadEnded(upload); }
  void OnEvicted(int) override {}

  ManualClock clock_{1};
  std::atomic<int64_t> unix_ms_ = 1'000'000;
  std::unique_ptr<RotatingKeys> keys_;
  std::unique_ptr<kv::Store> kv_ = kv::MakeMemoryStore();
  HostileDisk disk_;
  std::unique_ptr<Catalog> catalog_;
  std::optional<Uploads> uploads_;
  std::optional<Transfers> transfers_;
  std::optional<Collector> collector_;
  std::optional<WatchHub> hub_;
  std::optional<UploadHub> upload_hub_;
  std::unique_ptr<rpc::Access> access_;
  std::optional<rpc::Gate> gate_;
  std::optional<StoreService> service_;
  std::unique_ptr<transfer::GrpcTransferService> transfer_service_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace lorry::store::fuzz
