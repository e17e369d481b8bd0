#include "tests/fuzz/store/store_world.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/digest.h"
#include "tests/fuzz/script.h"

namespace lorry::store::fuzz {
namespace {

constexpr int64_t kTicketLifeMs = 600'000;
// Whoever waits behind silent streams waits for this long: an input that has some should not cost what
// a hundred others cost.
constexpr Tick kTicketDeadlineMs = 100;
constexpr int kReceiveBytesMax = 17 << 20;
constexpr int kLooks = 20;
constexpr std::chrono::milliseconds kLook(1);

template <typename T>
T Must(absl::StatusOr<T> value) {
  LORRY_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace

StoreWorld::StoreWorld() {
  const auto now = [this] { return unix_ms_.load(); };
  keys_ = Must(RotatingKeys::Open({}));
  catalog_ = Must(Catalog::Open(*kv_, {.ticket_life_ms = kTicketLifeMs, .now_unix_ms = now}));
  uploads_.emplace(*catalog_, disk_.store(), clock_,
                   UploadsOptions{.idle_deadline_ms = kTicketLifeMs,
                                  .ledger_every_bytes = 1,
                                  .on_opened = [this](const Upload& upload) {
                                    if (upload_hub_.has_value()) upload_hub_->OnOpened(upload);
                                  }});
  transfers_.emplace(*catalog_, disk_.store(), *uploads_, *keys_, clock_,
                     Transfers::Options{.ticket_life_ms = kTicketLifeMs});
  collector_.emplace(*catalog_, disk_.store(), now);
  hub_.emplace(*catalog_);
  upload_hub_.emplace(*transfers_, UploadHub::Width{.readers = 2, .relays = 1});
  catalog_->SetObserver(this);
  access_ = Must(rpc::Access::Open("", /*certificates=*/false));
  gate_.emplace(*access_);
  service_.emplace(StoreService::Parts{.gate = *gate_,
                                       .catalog = *catalog_,
                                       .uploads = *uploads_,
                                       .transfers = *transfers_,
                                       .hub = *hub_,
                                       .upload_hub = *upload_hub_,
                                       .upload_idle_deadline_ms = kTicketLifeMs});
  service_->SetAddresses({"grpc://127.0.0.1:1"});
  transfer_service_ = transfer::CreateGrpcTransferService(
      {.sessions_max = kSessionsMax, .ticket_deadline_ms = kTicketDeadlineMs}, *gate_,
      keys_->keys(), *transfers_);
  server_ = Must(rpc::Server::Start(
      {.receive_max_bytes = kReceiveBytesMax, .shutdown_max_ms = lorry::fuzz::kPatienceMs}, *gate_,
      {&*service_, transfer_service_->service()}));
}

StoreWorld::~StoreWorld() {
  disk_.Heal();
  transfer_service_->Close();
  LORRY_CHECK(server_->Shutdown().ok());  // no handler is stuck
  transfers_->Stop();
  uploads_->Stop();
}

void StoreWorld::Sweep(int64_t ms) {
  clock_.Advance(ms);
  unix_ms_ += ms;
  uploads_->Sweep();
  (void)collector_->Run();
  (void)catalog_->Tidy();
}

std::string StoreWorld::FindUpload(const std::string& known) {
  for (int look = 0; look < kLooks; ++look) {
    const auto open = catalog_->ListOpenUploads();
    LORRY_CHECK(open.ok());
    for (const Upload& upload : *open) {
      if (upload.id.value != known) return upload.id.value;
    }
    std::this_thread::sleep_for(kLook);  // tidy: allow sleep: a bounded poll of the catalogue
  }
  return "";
}

absl::StatusOr<StoreWorld::Begun> StoreWorld::Begin(const std::string& adapter,
                                                    const TestAdapter& image) {
  LORRY_ASSIGN_OR_RETURN(const Run run, catalog_->OpenRun({.adapter = AdapterName(adapter)}));
  LORRY_ASSIGN_OR_RETURN(
      const BeginReply begun,
      uploads_->Begin({.key = {AdapterName(adapter), run.number, VersionNumber(1)},
                       .attempt = 1,
                       .header = image.header(),
                       .config_json = image.config,
                       .image_bytes = image.image.size()}));
  LORRY_ASSIGN_OR_RETURN(std::string ticket, transfers_->PutTicket(begun.upload, "fuzzer"));
  return Begun{begun.upload.id.value, std::move(ticket)};
}

absl::StatusOr<std::string> StoreWorld::Publish(const std::string& adapter,
                                                const TestAdapter& image,
                                                const CheckOutcome& checked) {
  LORRY_ASSIGN_OR_RETURN(const Run run, catalog_->OpenRun({.adapter = AdapterName(adapter)}));
  const VersionKey key{AdapterName(adapter), run.number, VersionNumber(1)};
  LORRY_ASSIGN_OR_RETURN(
      const BegunUpload begun,
      catalog_->BeginUpload({.key = key,
                             .attempt = 1,
                             .image_bytes = image.image.size(),
                             .header_bytes = image.header_bytes,
                             .header_sha256 = ToHex(HashSha256(image.header())),
                             .config_json = image.config,
                             .canonical_config = checked.image.canonical_config}));
  if (!begun.stored.has_value()) {
    const absl::Status stored = Store(begun.upload, image, checked);
    if (!stored.ok()) {
      LORRY_RETURN_IF_ERROR(catalog_->EndUpload(begun.upload.id, stored));
      return stored;
    }
  }
  LORRY_ASSIGN_OR_RETURN(Manifest manifest, transfers_->OpenFetch(key, "fuzzer"));
  return std::move(manifest.ticket);
}

absl::StatusOr<std::string> StoreWorld::Publish(const std::string& adapter,
                                                const TestAdapter& image) {
  LORRY_ASSIGN_OR_RETURN(const CheckOutcome checked,
                         CheckImage(image.bytes(), image.config, /*max_tensor_norm=*/0));
  return Publish(adapter, image, checked);
}

absl::Status StoreWorld::Store(const Upload& upload, const TestAdapter& image,
                               const CheckOutcome& checked) {
  LORRY_ASSIGN_OR_RETURN(const auto staging,
                         disk_.store().Create(upload.blob.value, image.image.size()));
  std::memcpy(staging->bytes().data(), image.image.data(), image.image.size());
  LORRY_RETURN_IF_ERROR(staging->Seal());
  LORRY_RETURN_IF_ERROR(catalog_->PutLeaves(upload.blob, checked.leaves));
  return catalog_->StoreVersion(upload.id, checked.image).status();
}

}  // namespace lorry::store::fuzz
