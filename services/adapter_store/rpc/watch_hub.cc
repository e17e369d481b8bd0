#include "services/adapter_store/rpc/watch_hub.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/rpc/fleet_messages.h"
#include "services/adapter_store/rpc/messages.h"

namespace lorry::store {
namespace {

// Revisions read at a time, so that one watcher far behind does not hold up the others for long.
constexpr size_t kRevisionsAtATime = 256;
// A quarter of what gRPC takes as one message.
constexpr size_t kPictureMessageBytes = 1 << 20;

// Cuts the picture into messages.
class PictureWriter {
 public:
  PictureWriter(WatchSession& session, uint64_t revision) : session_(session) {
    message_.set_revision(revision);
  }
  void Add(v1::Change change) {
    const size_t bytes = change.ByteSizeLong();
    if (message_bytes_ + bytes > kPictureMessageBytes) Flush();
    message_bytes_ += bytes;
    *message_.add_changes() = std::move(change);
  }
  void Finish(const std::string& store, const std::optional<HolderMark>& remembered) {
    message_.set_synced(true);
    message_.set_store(store);
    if (remembered.has_value()) {
      message_.mutable_remembered()->set_incarnation(remembered->incarnation);
      message_.mutable_remembered()->set_revision(remembered->revision);
    }
    Flush();
  }

 private:
  void Flush() {
    (void)session_.Send(message_);  // fails once the session has ended; it then leaves by itself
    message_.clear_changes();
    message_bytes_ = 0;
  }

  WatchSession& session_;
  v1::WatchResponse message_;
  size_t message_bytes_ = 0;
};

absl::Status UnlessGone(const absl::Status& unread) {
  return absl::IsNotFound(unread) ? absl::OkStatus() : unread;
}

}  // namespace

WatchSession::WatchSession(WatchHub& hub, const v1::WatchRequest& request)
    : rpc::WriteStream<v1::WatchResponse>(WatchHub::kQueuedMax),
      hub_(hub),
      holder_(request.holder()),
      store_(request.store()) {
  if (request.from_revision() != 0) seen_ = request.from_revision();
}

void WatchSession::OnOpen() { hub_.Add(shared_from_this()); }
void WatchSession::OnClosed(const absl::Status&) { hub_.Remove(this); }

WatchHub::WatchHub(Catalog& catalog) : catalog_(catalog) {}

void WatchHub::OnChanged() {
  if (!will_serve_.exchange(true)) loop_.PostAnswer([this] { ServeAll(); });
}

void WatchHub::Add(std::shared_ptr<WatchSession> session) {
  loop_.PostAnswer([this, session = std::move(session)] {
    if (sessions_.size() >= kWatchersMax) {
      return session->Close(
          Error(absl::StatusCode::kResourceExhausted, "SERVER_BUSY",
                absl::StrCat(kWatchersMax, " watchers are served already; try again later")));
    }
    sessions_.emplace(session.get(), session);
    OnChanged();
  });
}

void WatchHub::Remove(const WatchSession* session) {
  loop_.PostAnswer([this, session] { sessions_.erase(session); });
}

void WatchHub::ServeAll() {
  will_serve_ = false;  // first: what is committed from here on is another pass's
  for (const auto& [key, session] : sessions_) {
    if (absl::Status served = Serve(*session); !served.ok()) session->Close(served);
  }
}

absl::Status WatchHub::Serve(WatchSession& session) {
  if (!session.seen_.has_value()) {
    LORRY_RETURN_IF_ERROR(SendPicture(session));
  } else if (!session.store_.empty() && session.store_ != catalog_.instance()) {
    return Error(absl::StatusCode::kOutOfRange, "REVISION_COMPACTED",
                 absl::StrCat("revision ", *session.seen_, " is of store ", session.store_,
                              ", this is ", catalog_.instance(), "; watch from 0"));
  } else if (!session.greeted_ && !session.holder_.empty()) {
    LORRY_RETURN_IF_ERROR(Greet(session));
  }
  while (true) {
    LORRY_ASSIGN_OR_RETURN(const bool more, SendChanges(session));
    if (!more) return absl::OkStatus();
  }
}

absl::Status WatchHub::SendPicture(WatchSession& session) {
  LORRY_ASSIGN_OR_RETURN(const Picture picture, catalog_.TakePicture(session.holder_));
  PictureWriter writer(session, picture.revision);
  for (const Adapter& adapter : picture.adapters) {
    LORRY_ASSIGN_OR_RETURN(const std::vector<store::Run> runs, catalog_.ListRuns(adapter.name));
    v1::Change change;
    *change.mutable_adapter_set() = ToProto(adapter, runs);
    writer.Add(std::move(change));
  }
  for (const Version& version : picture.versions) {
    v1::Change change;
    *change.mutable_version_stored() = ToProto(version);
    writer.Add(std::move(change));
  }
  for (const Alias& alias : picture.aliases) {
    v1::Change change;
    *change.mutable_alias_set() = ToProto(alias);
    writer.Add(std::move(change));
  }
  writer.Finish(catalog_.instance(), picture.remembered);
  session.seen_ = picture.revision;
  session.greeted_ = true;
  return absl::OkStatus();
}

// To a holder whose watch goes on: what is remembered of it may be another's by now.
absl::Status WatchHub::Greet(WatchSession& session) {
  LORRY_ASSIGN_OR_RETURN(const std::optional<HolderMark> remembered,
                         catalog_.Remembered(session.holder_));
  PictureWriter(session, *session.seen_).Finish(catalog_.instance(), remembered);
  session.greeted_ = true;
  return absl::OkStatus();
}

// Sends the revisions that the session has not seen. True when there may be more of them.
absl::StatusOr<bool> WatchHub::SendChanges(WatchSession& session) {
  size_t sent = 0;
  bool open = true;
  absl::Status described;
  LORRY_RETURN_IF_ERROR(
      catalog_.ReadLog(*session.seen_, kRevisionsAtATime,
                       [&](uint64_t revision, const std::vector<Change>& changes) {
                         if (!open || !described.ok()) return;
                         v1::WatchResponse response;
                         response.set_revision(revision);
                         for (const Change& change : changes) {
                           if (described.ok()) described = Describe(change, response);
                         }
                         if (!described.ok())
                           return;  // whoever watches again gets this revision again
                         open = session.Send(std::move(response));
                         session.seen_ = revision;
                         ++sent;
                       }));
  LORRY_RETURN_IF_ERROR(described);
  return open && sent == kRevisionsAtATime;
}

// The log names what changed; what is sent is its present state. Where that has been deleted since,
// nothing is sent for it: a later entry of the log says so.
absl::Status WatchHub::Describe(const Change& change, v1::WatchResponse& response) {
  switch (change.kind) {
    case Change::Kind::kVersionStored: {
      const auto version = catalog_.GetVersion(change.key);
      if (!version.ok()) return UnlessGone(version.status());
      *response.add_changes()->mutable_version_stored() = ToProto(*version);
      break;
    }
    case Change::Kind::kVersionDeleted:
      *response.add_changes()->mutable_version_deleted() = rpc::ToProto(change.key);
      break;
    case Change::Kind::kAdapterSet: {
      const auto adapter = catalog_.GetAdapter(change.key.adapter);
      if (!adapter.ok()) return UnlessGone(adapter.status());
      LORRY_ASSIGN_OR_RETURN(const std::vector<store::Run> runs,
                             catalog_.ListRuns(change.key.adapter));
      *response.add_changes()->mutable_adapter_set() = ToProto(*adapter, runs);
      break;
    }
    case Change::Kind::kAdapterDeleted:
      response.add_changes()->set_adapter_deleted(change.key.adapter.value);
      break;
    case Change::Kind::kAliasSet: {
      const auto alias = catalog_.GetAlias(change.key.adapter, change.alias);
      if (!alias.ok()) return UnlessGone(alias.status());
      *response.add_changes()->mutable_alias_set() = ToProto(*alias);
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace lorry::store
