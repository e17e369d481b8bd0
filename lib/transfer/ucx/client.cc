#include "lib/transfer/ucx/client.h"

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::transfer {
namespace ucx {

absl::Status UcxClient::Init(const UcxDevices& devices) {
  hasher_ = std::make_unique<runtime::Loop>("transfer-hash");
  LORRY_ASSIGN_OR_RETURN(loop_, Loop::Start({lane_}, devices,
                                            {.busy = [this] { return !transfers_.empty(); },
                                             .on_tick = [this](Tick now) { HandleTick(now); }}));
  return absl::OkStatus();
}

UcxClient::~UcxClient() {
  if (loop_ != nullptr) {
    loop_->PostAndWait([this] {
      stopping_ = true;
      for (const auto& transfer : std::vector(transfers_.begin(), transfers_.end())) {
        transfer->End(Cancelled());
      }
    });
    MutexLock lock(mutex_);
    while (live_ > 0) ended_.wait(mutex_);
  }
  hasher_.reset();
  loop_.reset();
}

std::shared_ptr<Transfer> UcxClient::Begin(Job job) {
  auto transfer = std::make_shared<UcxTransfer>(*this, std::move(job));
  {
    MutexLock lock(mutex_);
    ++live_;
  }
  loop_->Post([this, transfer] {
    transfers_.insert(transfer);
    transfer->Start();
    if (stopping_) transfer->End(Cancelled());
  });
  return transfer;
}

void UcxClient::Forget(const std::shared_ptr<UcxTransfer>& transfer) {
  transfers_.erase(transfer);
  MutexLock lock(mutex_);
  --live_;
  ended_.notify_all();  // under the lock: the destructor may run as soon as it is let go
}

void UcxClient::HandleTick(Tick now) {
  // A copy: HandleTick may end and forget them.
  for (const auto& transfer : std::vector(transfers_.begin(), transfers_.end())) {
    transfer->HandleTick(now);
  }
}

}  // namespace ucx

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(UcxLane lane,
                                                              std::shared_ptr<Channels> channels,
                                                              UcxDevices devices) {
  auto client = std::make_unique<ucx::UcxClient>(lane, std::move(channels));
  LORRY_RETURN_IF_ERROR(client->Init(devices));
  return client;
}

std::string_view NameOf(UcxLane lane) {
  return lane == UcxLane::kSharedMemory ? "ucx-shm" : "ucx-net";
}

std::string UcxVersion() { return absl::StrCat("UCX ", ucp_get_version_string()); }

}  // namespace lorry::transfer
