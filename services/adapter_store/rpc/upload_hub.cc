#include "services/adapter_store/rpc/upload_hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/rpc/fleet_messages.h"

namespace lorry::store {
namespace {

// Uploads that a follower has not heard of yet: more than it reads ahead at a time.
constexpr size_t kQueuedMax = 16;

}  // namespace

FollowSession::FollowSession(UploadHub& hub, absl::StatusOr<Terms> terms)
    : rpc::WriteStream<v1::FollowUploadsResponse>(kQueuedMax),
      hub_(hub),
      terms_(std::move(terms)) {}

void FollowSession::OnOpen() {
  if (!terms_.ok()) return Close(terms_.status());
  hub_.Add(shared_from_this());
}
void FollowSession::OnClosed(const absl::Status&) { hub_.Remove(this); }

bool FollowSession::Wants(const AdapterName& adapter) const {
  return terms_->adapters.contains(adapter) && caller().MayTouch(adapter.value);
}

void UploadHub::Add(std::shared_ptr<FollowSession> session) {
  {
    MutexLock lock(mutex_);
    if (sessions_.size() < kFollowersMax) {
      sessions_.emplace(next_++, std::move(session));
      return;
    }
  }
  session->Close(Error(absl::StatusCode::kResourceExhausted, "SERVER_BUSY",
                       absl::StrCat(kFollowersMax, " follow uploads already; try again later")));
}

void UploadHub::Remove(const FollowSession* session) {
  std::shared_ptr<FollowSession> last;  // dropped after the lock
  MutexLock lock(mutex_);
  const auto it = std::ranges::find_if(
      sessions_, [session](const auto& entry) { return entry.second.get() == session; });
  if (it == sessions_.end()) return;
  last = std::move(it->second);
  sessions_.erase(it);
}

void UploadHub::OnOpened(const Upload& upload) {
  std::vector<std::shared_ptr<FollowSession>> readers;
  {
    MutexLock lock(mutex_);
    Width left = width_;
    for (const auto& [number, session] : sessions_) {
      if (!session->Wants(upload.key.adapter)) continue;
      int& places = session->terms_->relays ? left.relays : left.readers;
      if (places-- > 0) readers.push_back(session);
    }
  }
  for (const std::shared_ptr<FollowSession>& session : readers) {
    absl::StatusOr<std::string> ticket =
        transfers_.GetTicket(upload.blob, upload.image_bytes, session->caller().name);
    if (!ticket.ok()) continue;  // it reads the version once that is stored
    v1::FollowUploadsResponse told;
    *told.mutable_version() = rpc::ToProto(upload.key);
    told.set_image_bytes(upload.image_bytes);
    told.set_ticket(*std::move(ticket));
    for (const std::string& address : session->terms_->addresses) told.add_addresses(address);
    (void)session->Send(std::move(told));  // one that is full ends
  }
}

absl::StatusOr<std::set<AdapterName>> FollowedAdapters(const v1::FollowUploadsRequest& request) {
  if (request.adapters().empty() || request.adapters_size() > UploadHub::kAdaptersMax) {
    return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID",
                 absl::StrCat("adapters: 1 to ", UploadHub::kAdaptersMax, " names, not ",
                              request.adapters_size()));
  }
  std::set<AdapterName> adapters;
  for (const std::string& name : request.adapters()) {
    LORRY_RETURN_IF_ERROR(CheckAdapterName(name));
    adapters.insert(AdapterName(name));
  }
  return adapters;
}

}  // namespace lorry::store
