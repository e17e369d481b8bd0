// Runs: who may publish.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

absl::StatusOr<std::optional<Run>> RunOfRequest(Draft& draft, const OpenRunArgs& args) {
  if (args.request_id.empty()) return std::optional<Run>();
  LORRY_ASSIGN_OR_RETURN(const uint64_t number,
                         draft.GetNumber(keys::OfRequest(args.adapter, args.request_id)));
  if (number == 0) return std::optional<Run>();
  LORRY_ASSIGN_OR_RETURN(const std::optional<Run> run,
                         draft.Get<Run>(keys::OfRun(args.adapter, RunId(number))));
  const bool same =
      run.has_value() && run->resumed_from.has_value() == args.resume_from.has_value() &&
      (!args.resume_from.has_value() || run->resumed_from->number == args.resume_from->number);
  if (!same) {
    return Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                 "this request_id opened a run with another resume_from; choose a fresh one");
  }
  if (!args.principal.Owns(run->owner)) {
    return NotOwner("the run that this request_id opened", args.principal);
  }
  return run;
}

}  // namespace

absl::Status NotOwner(std::string_view what, const Principal& who) {
  return Error(absl::StatusCode::kPermissionDenied, "NOT_OWNER",
               absl::StrCat(ToAbsl(what), " belongs to somebody else than ", who.name,
                            "; use the token or certificate that began it"));
}

absl::StatusOr<Run> Catalog::OpenRun(const OpenRunArgs& args) {
  if (args.request_id.size() > kRequestIdBytesMax) {
    return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID",
                 "request_id is longer than 64 bytes");
  }
  Run run;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
    // First: the current run, from which a resume_from may count, is the one that it opened.
    LORRY_ASSIGN_OR_RETURN(const std::optional<Run> before, RunOfRequest(draft, args));
    if (before.has_value()) {
      run = *before;
      return absl::OkStatus();
    }
    LORRY_ASSIGN_OR_RETURN(Adapter adapter, FindOrNew(draft, args.adapter));
    LORRY_RETURN_IF_ERROR(CheckInService(adapter));
    adapter.generation = std::max<uint64_t>(adapter.generation, 1);
    if (args.expected_run.has_value() && *args.expected_run != adapter.current_run.value) {
      return Error(absl::StatusCode::kAborted, "RUN_CONFLICT",
                   absl::StrCat("run ", adapter.current_run.value, " of ", args.adapter.value,
                                " is current, not ", *args.expected_run,
                                ": another process has taken over"));
    }
    std::optional<VersionKey> resumed = args.resume_from;
    if (resumed.has_value()) {
      if (resumed->run.value == 0) resumed->run = adapter.current_run;
      LORRY_ASSIGN_OR_RETURN(const auto stored, draft.GetText(keys::OfVersion(*resumed)));
      if (!stored.has_value()) return NoSuchVersion(*resumed);
    }
    adapter.last_run = RunId(adapter.last_run.value + 1);
    run = Run{.number = adapter.last_run,
              .resumed_from = resumed,
              .newest = std::nullopt,
              .request_id = args.request_id,
              .owner = args.principal.name,
              .opened_at_ms = options_.now_unix_ms()};
    adapter.current_run = run.number;
    draft.Put(keys::OfAdapter(args.adapter), adapter);
    draft.Put(keys::OfRun(args.adapter, run.number), run);
    if (!args.request_id.empty()) {
      draft.PutNumber(keys::OfRequest(args.adapter, args.request_id), run.number.value);
    }
    news.changes.push_back({.kind = Change::Kind::kAdapterSet,
                            .key = VersionKey{.adapter = args.adapter, .run = {}, .number = {}},
                            .alias = {}});
    return FenceRun(draft, news, args.adapter, run.number);
  }));
  return run;
}

// Marks of attempts in earlier runs are Tidy's: a run leaves more of them than one transaction takes.
absl::Status Catalog::FenceRun(Draft& draft, News& news, const AdapterName& adapter, RunId opened) {
  return EndUploadsOf(draft, news, adapter,
                      Error(absl::StatusCode::kFailedPrecondition, "RUN_FENCED",
                            absl::StrCat("run ", opened.value, " of ", adapter.value,
                                         " has been opened; this process publishes no longer")));
}

absl::StatusOr<std::vector<Run>> Catalog::ListRuns(const AdapterName& name) {
  LORRY_ASSIGN_OR_RETURN(
      const std::vector<kv::Entry> entries,
      store_.List({.prefix = keys::RunsOf(name), .start = "", .limit = kRunsListed}));
  std::vector<Run> runs;
  for (const kv::Entry& entry : entries) {
    LORRY_ASSIGN_OR_RETURN(Run run, Decode<Run>(entry.value));
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace lorry::store
