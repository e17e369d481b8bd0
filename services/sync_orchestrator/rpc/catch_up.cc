#include "services/sync_orchestrator/rpc/catch_up.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/status.h"

namespace lorry::sync {

CatchUp::CatchUp(rpc::FreshChannel& store, std::function<bool(const Mark&)> has)
    : store_(store), has_(std::move(has)) {}

CatchUp::~CatchUp() { Stop(); }

void CatchUp::Stop() {
  loop_.Stop();
  EndIf([](const Waiter&) { return absl::UnavailableError("the orchestrator is stopping"); });
}

void CatchUp::Ask(Done done) {
  absl::Status joined = absl::ResourceExhaustedError(
      absl::StrCat(kWaitersMax, " callers wait for the store already"));
  if (waiting_.fetch_add(1) < kWaitersMax) {
    joined = loop_.Post([this, waiter = Waiter{clock_.Now() + kWaitMaxMs, {}, done}]() mutable {
      Join(std::move(waiter));
    });
  }
  if (joined.ok()) return;
  --waiting_;
  done(joined);
}

void CatchUp::OnHeard() {
  if (waiting_ > 0) loop_.PostAnswer([this] { Settle(); });
}

void CatchUp::Join(Waiter waiter) {
  loop_.After(waiter.until - clock_.Now(), [this] { Settle(); });
  waiters_.push_back(std::move(waiter));
  // Behind all who wait to join: one look is for them, too.
  loop_.PostAnswer([this] { Advance(); });
}

void CatchUp::Advance() {
  Settle();  // a look before this one may have outlasted somebody
  Tick until = 0;
  for (const Waiter& waiter : waiters_) {
    if (!waiter.mark.has_value()) until = std::max(until, waiter.until);
  }
  if (until != 0) LookFor(until);
}

void CatchUp::LookFor(Tick until) {
  grpc::ClientContext context;
  rpc::SetDeadlineAt(context, until);
  Mark mark;
  const auto stub = store::v1::StoreService::NewStub(store_.Get());
  const absl::Status looked = rpc::FromGrpc(stub->GetRevision(&context, {}, &mark));
  for (Waiter& waiter : waiters_) {
    if (looked.ok() && !waiter.mark.has_value()) waiter.mark = mark;
  }
  EndIf([&](const Waiter& waiter) -> std::optional<absl::Status> {
    if (waiter.mark.has_value()) return std::nullopt;
    return Annotate(looked, "the store could not be asked");
  });
  Settle();
}

void CatchUp::Settle() {
  const Tick now = clock_.Now();
  EndIf([&](const Waiter& waiter) -> std::optional<absl::Status> {
    if (waiter.mark.has_value() && has_(*waiter.mark)) return absl::OkStatus();
    if (now < waiter.until) return std::nullopt;
    return absl::DeadlineExceededError(waiter.mark.has_value()
                                           ? "what the store has told is more than a second behind"
                                           : "the store could not be asked within a second");
  });
}

void CatchUp::EndIf(const std::function<std::optional<absl::Status>(const Waiter&)>& end) {
  std::erase_if(waiters_, [&](const Waiter& waiter) {
    const std::optional<absl::Status> status = end(waiter);
    if (!status.has_value()) return false;
    --waiting_;
    waiter.done(*status);
    return true;
  });
}

std::string InDoubt(const std::string& text, const absl::Status& why) {
  return absl::StrCat(text, "; or it is so new that it was not heard of yet: ", why.message());
}

absl::Status InDoubt(const absl::Status& status, const absl::Status& why) {
  return Error(status.code(), ReasonOf(status), InDoubt(std::string(status.message()), why));
}

}  // namespace lorry::sync
