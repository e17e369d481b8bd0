#include "services/engine_proxy/driver/fetcher.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/clock.h"
#include "lib/base/error.h"
#include "lib/peft/config.h"
#include "lib/peft/digest.h"
#include "lib/peft/validate.h"
#include "lib/runtime/fault_point.h"

namespace lorry::proxy {
namespace {

// Progress is for people: twenty steps are enough for a bar.
constexpr uint64_t kProgressSteps = 20;

// Two hash and place. Two more, as many as the machine fetches at a time, may wait for fetches of
// other proxies.
constexpr int kThreads = 4;

// The whole of a fetch: a minute to find somebody who sends, and what a source at a megabyte a second
// needs. Slower ones would hold their places for hours; what stops sending is noticed much sooner,
// by the idle deadline.
Tick DeadlineOf(uint64_t bytes) { return static_cast<Tick>(60'000 + bytes / 1'000); }

bool IsPermanent(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// Says nothing of this member. A ticket that ends before its fetch does is taken anew by the next try,
// which goes on with what is missing.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || transfer::IsFull(status) ||
         ReasonOf(status) == "TICKET_EXPIRED";
}

// What the manifest's own parts hash to must be what was asked for.
absl::Status Prove(const Manifest& manifest, const Digest& wanted) {
  LORRY_ASSIGN_OR_RETURN(const peft::Config config, peft::ParseConfig(manifest.config_json));
  LORRY_ASSIGN_OR_RETURN(const std::string canonical, peft::CanonicalConfig(config));
  LORRY_ASSIGN_OR_RETURN(const Digest digest,
                         peft::DigestOf(manifest.image_bytes, manifest.leaves, canonical));
  if (digest == wanted) return absl::OkStatus();
  return Error(
      absl::StatusCode::kDataLoss, "DIGEST_MISMATCH",
      absl::StrCat("the store's manifest hashes to ", digest.value, " and not to ", wanted.value));
}

}  // namespace

struct Fetcher::Job {
  Job(Fetch f, const ImageShelf& shelf)
      : fetch(std::move(f)),
        placement({fetch.name,
                   shelf.PathOf(fetch.name),
                   {fetch.key, fetch.digest, fetch.traits, fetch.render}}) {}
  const Fetch fetch;
  const Placement placement;
  const Tick began = SteadyClock().Now();
  std::atomic<bool> cancelled{false};
  std::atomic<uint64_t> bytes_done{0};
  std::atomic<uint64_t> steps_said{0};
  // Written by the executor before the transfer starts, read after it ended.
  Manifest manifest;
  std::unique_ptr<transfer::ImageFile> image;
  transfer::RangeSet here;                       // what of it is proven to be the image's
  std::unique_ptr<HostCache::Claim> claim;       // other proxies of the host wait for this fetch
  std::shared_ptr<transfer::Arrivals> arrivals;  // and other hosts' for its bytes; null: none do
  Mutex mutex;
  std::shared_ptr<transfer::Transfer> transfer LORRY_GUARDED_BY(mutex);
};

Fetcher::Fetcher(ImageShelf& shelf, transfer::TransportSet& transports, ManifestSource source,
                 Followers& followers, Relay* relay, ReadAhead* ahead, EventSink sink,
                 OnFetched on_fetched, LastImages* last)
    : shelf_(shelf),
      transports_(transports),
      source_(std::move(source)),
      followers_(followers),
      relay_(relay),
      ahead_(ahead),
      last_(last),
      sink_(std::move(sink)),
      on_fetched_(std::move(on_fetched)),
      executor_({.name = "fetch", .threads = kThreads}) {}

Fetcher::~Fetcher() {
  std::vector<OpId> running;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& [op, job] : jobs_) running.push_back(op);
  }
  for (const OpId op : running) Cancel(op);
  {
    MutexLock lock(mutex_);
    while (!jobs_.empty()) idle_.wait(mutex_);
  }
  executor_.Stop();
}

void Fetcher::Start(const Fetch& fetch) {
  auto job = std::make_shared<Job>(fetch, shelf_);
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    jobs_.emplace(fetch.op, job);
  }
  executor_.SubmitOwn([this, job] { Run(job); });
}

void Fetcher::Cancel(OpId op) {
  std::shared_ptr<Job> job;
  {
    MutexLock lock(mutex_);
    const auto it = jobs_.find(op);
    if (it == jobs_.end()) return;
    job = it->second;
  }
  job->cancelled = true;
  MutexLock lock(job->mutex);
  if (job->transfer != nullptr) job->transfer->Cancel();
}

void Fetcher::Run(const std::shared_ptr<Job>& job) {
  if (absl::Status status = Begin(job); !status.ok()) Fail(job, status);
}

absl::Status Fetcher::Begin(const std::shared_ptr<Job>& job) {
  absl::StatusOr<Manifest> manifest = source_(job->fetch.key);
  if (!manifest.ok()) {
    Fail(job, manifest.status(), Whose::kPeers);
    return absl::OkStatus();
  }
  job->manifest = *std::move(manifest);
  LORRY_FAULT_POINT("proxy.fetch.opened");
  LORRY_RETURN_IF_ERROR(Prove(job->manifest, job->fetch.digest));
  if (job->cancelled) return absl::CancelledError("no longer wanted");
  if (absl::Status begun = followers_.Begin(job->placement); !begun.ok()) {
    Fail(job, begun, Whose::kPeers);
    return absl::OkStatus();
  }
  LORRY_ASSIGN_OR_RETURN(const bool complete, Obtain(*job));
  if (complete) {
    Finish(job, &Sources::host);
    return absl::OkStatus();
  }
  const std::vector<transfer::Source> sources = SourcesOf(*job);
  transfer::FetchRequest request;
  request.ranges = job->here.Missing({0, job->manifest.image_bytes});
  if (request.ranges.empty()) {
    Arrived(job);
    return absl::OkStatus();
  }
  request.destination = job->image->writable();
  request.leaves = job->manifest.leaves;
  request.options.deadline_ms = DeadlineOf(job->manifest.image_bytes);
  if (last_ != nullptr)
    request.base = last_->BaseOf(job->fetch.key.adapter, job->manifest.image_bytes);
  auto started = transports_.Fetch(
      sources, std::move(request),
      [this, job](const transfer::Range& range, std::span<const transfer::Checksum>) {
        OnRange(*job, range);
      },
      [this, job](transfer::Outcome outcome) { OnDone(job, std::move(outcome)); });
  MutexLock lock(job->mutex);
  job->transfer = std::move(started);
  if (job->cancelled) job->transfer->Cancel();
  return absl::OkStatus();
}

// A file to fetch into, with what came ahead of the fetch, or of one that failed, in it; true: the
// whole image.
absl::StatusOr<bool> Fetcher::Obtain(Job& job) {
  const Manifest& manifest = job.manifest;
  if (ahead_ != nullptr) {
    if (auto draft = ahead_->Take(job.fetch.key, manifest.image_bytes, manifest.leaves)) {
      shelf_.Forget(job.fetch.digest);
      job.image = std::move(draft->file);
      job.here = std::move(draft->proven);
      job.bytes_done = job.here.bytes();
      Count("ahead", job.here.bytes(), draft->spared);
      return false;
    }
  }
  LORRY_ASSIGN_OR_RETURN(
      ImageShelf::Start start,
      shelf_.Obtain(
          {.digest = job.fetch.digest, .bytes = manifest.image_bytes, .leaves = manifest.leaves},
          [&job] { return job.cancelled.load(); }));
  job.image = std::move(start.file);
  job.here = std::move(start.proven);
  job.bytes_done = job.here.bytes();
  job.claim = std::move(start.claim);
  return start.complete;
}

// Relays first: that is what spares the store. A transport that does without either is tried before
// both.
std::vector<transfer::Source> Fetcher::SourcesOf(Job& job) {
  std::vector<transfer::Source> sources;
  if (relay_ != nullptr) {
    absl::StatusOr<std::shared_ptr<transfer::Arrivals>> arrivals =
        relay_->Serve(job.fetch.name, job.fetch.digest, *job.image, job.manifest.leaves);
    if (arrivals.ok()) {
      job.arrivals = *std::move(arrivals);
      for (const transfer::Range& range : job.here.Ranges()) job.arrivals->Add(range);
      sources = relay_->Sources(job.fetch.key);
    } else {
      spdlog::warn("passed on to nobody: {}", std::string(arrivals.status().message()));
    }
  }
  for (const std::string& address : job.manifest.addresses)
    sources.push_back({address, job.manifest.ticket});
  return sources;
}

void Fetcher::OnRange(Job& job, const transfer::Range& range) {
  if (job.arrivals != nullptr) job.arrivals->Add(range);
  const uint64_t total = job.manifest.image_bytes;
  const uint64_t done = job.bytes_done += range.length;
  if (job.claim != nullptr) job.claim->TellProgress();
  const uint64_t step = done * kProgressSteps / std::max<uint64_t>(total, 1);
  uint64_t said = job.steps_said;
  while (step > said) {
    if (job.steps_said.compare_exchange_weak(said, step)) {
      sink_(FetchProgress{job.fetch.op, done, total});
      return;
    }
  }
}

void Fetcher::OnDone(const std::shared_ptr<Job>& job, transfer::Outcome outcome) {
  Count(outcome.transport, outcome.bytes, outcome.spared);
  // A set that is full leaves out what is then read again.
  for (const transfer::Range& range : outcome.done.Ranges()) job->here.Add(range).IgnoreError();
  if (!outcome.status.ok()) return Fail(job, outcome.status, Whose::kPeers);
  TellOfCarrier(*job, outcome.transport);
  if (ahead_ != nullptr)
    ahead_->OnFetched(job->fetch.key.adapter, job->manifest.image_bytes, outcome.transport);
  on_fetched_(outcome.transport, static_cast<double>(SteadyClock().Now() - job->began) / 1e3);
  spdlog::debug("fetched name={} bytes={} spared={} transport={}", job->fetch.name.value,
                outcome.bytes, outcome.spared, outcome.transport);
  Arrived(job);
}

void Fetcher::Arrived(const std::shared_ptr<Job>& job) {
  if (job->arrivals != nullptr) job->arrivals->End(absl::OkStatus());
  LORRY_FAULT_POINT("proxy.fetch.arrived");
  // Maybe on a transport's thread: writing and syncing files belongs elsewhere.
  executor_.SubmitOwn([this, job] { Finish(job, &Sources::store); });
}

void Fetcher::Count(const std::string& transport, uint64_t bytes, uint64_t spared) {
  spared = std::min(spared, bytes);
  MutexLock lock(mutex_);
  fetched_bytes_[transport] += bytes - spared;
  if (spared > 0) fetched_bytes_["delta"] += spared;
}

void Fetcher::TellOfCarrier(const Job& job, const std::string& transport) {
  std::string before;
  {
    MutexLock lock(mutex_);
    if (carrier_ == transport) return;
    before = std::exchange(carrier_, transport);
  }
  spdlog::info("images come by {} from {}{}", transport, absl::StrJoin(job.manifest.addresses, " "),
               before.empty() ? "" : absl::StrCat(", by ", before, " before"));
}

void Fetcher::Finish(const std::shared_ptr<Job>& job, uint64_t Sources::*source) {
  const Fetch& fetch = job->fetch;
  if (source == &Sources::store) {
    shelf_.Share(fetch.digest, *job->image);
    if (shelf_.IsShared()) job->here = {};  // it is found there again, and not kept beside it
    job->claim.reset();
  }
  const uint64_t bytes = job->manifest.image_bytes;
  const absl::Status everywhere = followers_.Await(
      job->placement, [&job] { return job->cancelled.load(); },
      [&](const std::string& whom) {
        sink_(FetchProgress{fetch.op, bytes, bytes, whom});
      });
  if (!everywhere.ok()) return Fail(job, everywhere, Whose::kPeers);
  if (job->cancelled) return Fail(job, absl::CancelledError("no longer wanted"));
  absl::StatusOr<std::string> path = shelf_.Place(
      fetch.name, std::move(job->image), job->manifest.config_json, fetch.traits, fetch.render);
  if (!path.ok()) return Fail(job, path.status());
  LORRY_FAULT_POINT("proxy.fetch.placed");
  if (last_ != nullptr) last_->Placed(fetch);
  {
    MutexLock lock(mutex_);
    ++(sources_.*source);
  }
  End(job, FetchDone{fetch.op, *std::move(path)});
}

void Fetcher::Fail(const std::shared_ptr<Job>& job, const absl::Status& status, Whose whose) {
  if (job->arrivals != nullptr) {
    relay_->Drop(job->fetch.name);
    job->arrivals->End(absl::UnavailableError("the relay's own fetch failed"));
  }
  if (job->image != nullptr && !job->cancelled && !job->here.empty()) {
    shelf_.Keep(job->fetch.digest, std::move(job->image), std::move(job->here));
  } else if (job->image != nullptr) {
    shelf_.GiveBack(std::move(job->image));
  }
  job->claim.reset();  // whoever waits for it tries by itself
  if (job->cancelled) return End(job, FetchCancelled{job->fetch.op});
  const bool away = whose == Whose::kPeers && IsAway(status);
  std::string reason = ReasonOf(status);
  if (reason.empty()) reason = away ? "FETCH_UNANSWERED" : "FETCH_FAILED";
  spdlog::warn("fetch failed name={} reason={} {}", job->fetch.name.value, reason,
               std::string(status.message()));
  End(job, FetchFailed{.op = job->fetch.op,
                       .reason = std::move(reason),
                       .detail = std::string(status.message()),
                       .permanent = IsPermanent(status),
                       .away = away});
}

void Fetcher::End(const std::shared_ptr<Job>& job, Event event) {
  const bool placed = std::holds_alternative<FetchDone>(event);
  sink_(std::move(event));
  followers_.End(job->placement);
  // A follower that has it, or fetches it yet, need not.
  if (!placed && !followers_.empty()) executor_.SubmitOwn([this] { followers_.Tell(); });
  MutexLock lock(mutex_);
  jobs_.erase(job->fetch.op);
  idle_.notify_all();
}

void Fetcher::Hash(const HashDirectory& hash) {
  followers_.Doubt(hash.path);
  executor_.SubmitOwn([this, hash] {
    sink_(DirectoryHashed{hash.op, shelf_.Proves(hash.name, hash.path, hash.digest, hash.render)});
  });
}

void Fetcher::Check(const CheckShapes& check) {
  executor_.SubmitOwn([this, check] {
    const absl::StatusOr<peft::Adapter> adapter = shelf_.Read(check.name, check.path);
    const absl::Status fits =
        adapter.ok() ? peft::CheckFits(*adapter, check.base) : absl::OkStatus();
    if (!fits.ok())
      spdlog::warn("refused name={} {}", check.name.value, std::string(fits.message()));
    const absl::Status& said = adapter.ok() ? fits : adapter.status();
    sink_(ShapesChecked{
        .op = check.op,
        .outcome = adapter.ok() ? Outcome::kOk : Outcome::kFailed,
        .fit = adapter.ok() && fits.ok(),
        .detail = std::string(said.message()),
        .reference =
            check.base.vocab_size > 0 && adapter.ok() ? adapter->reference : peft::Reference(),
        .differences = adapter.ok() ? peft::Differences(adapter->trained_on, check.base) : ""});
  });
}

void Fetcher::Delete(const DeleteDirectory& deletion) {
  executor_.SubmitOwn([this, deletion] {
    if (relay_ != nullptr) relay_->Drop(deletion.name);
    const absl::Status status = shelf_.Delete(deletion.name);
    if (!status.ok()) spdlog::warn("{}", std::string(status.message()));
    sink_(DirectoryDeleted{deletion.op, status.ok() ? Outcome::kOk : Outcome::kFailed});
    followers_.Tell();
  });
}

void Fetcher::Confirm(const Load& load, std::function<void(const Load&)> engine) {
  if (followers_.empty()) return engine(load);
  executor_.SubmitOwn([this, load, engine = std::move(engine)] {
    const absl::Status status = followers_.Confirm({load.name, load.path, load.contents});
    if (status.ok()) return engine(load);
    sink_(LoadDone{.op = load.op,
                   .outcome = Outcome::kUnsent,
                   .reason = ReasonOf(status),
                   .detail = std::string(status.message())});
  });
}

Fetcher::Sources Fetcher::sources() const {
  MutexLock lock(mutex_);
  return sources_;
}

std::map<std::string, uint64_t> Fetcher::fetched_bytes() const {
  MutexLock lock(mutex_);
  return fetched_bytes_;
}

}  // namespace lorry::proxy
