// Adapters and runs: who may publish what.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/error.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/catalog/draft.h"
#include "services/adapter_store/catalog/keys.h"

namespace lorry::store {
namespace {

// For a suggestion: enough for people, cheap for a store of any size.
constexpr uint32_t kNamesCompared = 1'000;

Adapter NewAdapter(const AdapterName& name) {
  Adapter adapter;
  adapter.name = name;
  return adapter;
}

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
  return run;
}

}  // namespace

absl::StatusOr<Adapter> Catalog::NeedAdapter(Draft& draft, const AdapterName& name) {
  LORRY_ASSIGN_OR_RETURN(std::optional<Adapter> adapter, draft.Get<Adapter>(keys::OfAdapter(name)));
  if (!adapter.has_value()) return NoSuchAdapter(name);
  return *std::move(adapter);
}

absl::StatusOr<Run> Catalog::OpenRun(const OpenRunArgs& args) {
  if (args.request_id.size() > kRequestIdBytesMax) {
    return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID",
                 "request_id is longer than 64 bytes");
  }
  std::optional<VersionKey> resumed;
  if (args.resume_from.has_value()) {
    LORRY_ASSIGN_OR_RETURN(const Version version, GetVersion(*args.resume_from));
    resumed = version.key;
  }
  Run run;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(const std::optional<Run> before, RunOfRequest(draft, args));
    if (before.has_value()) {
      run = *before;
      return absl::OkStatus();
    }
    LORRY_ASSIGN_OR_RETURN(std::optional<Adapter> found,
                           draft.Get<Adapter>(keys::OfAdapter(args.adapter)));
    Adapter adapter = found.value_or(NewAdapter(args.adapter));
    adapter.generation = std::max<uint64_t>(adapter.generation, 1);
    if (args.expected_run.has_value() && *args.expected_run != adapter.current_run.value) {
      return Error(absl::StatusCode::kAborted, "RUN_CONFLICT",
                   absl::StrCat("run ", adapter.current_run.value, " of ", args.adapter.value,
                                " is current, not ", *args.expected_run,
                                ": another process has taken over"));
    }
    if (resumed.has_value()) {
      // Read again under the transaction: it may have been deleted since.
      LORRY_ASSIGN_OR_RETURN(const auto still, draft.GetText(keys::OfVersion(*resumed)));
      if (!still.has_value()) return NoSuchVersion(*resumed);
    }
    run = Run{.number = RunId(adapter.current_run.value + 1),
              .resumed_from = resumed,
              .newest = std::nullopt,
              .request_id = args.request_id,
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

absl::Status Catalog::FenceRun(Draft& draft, News& news, const AdapterName& adapter, RunId opened) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Upload> open, ListOpenUploads());
  for (const Upload& upload : open) {
    if (upload.key.adapter != adapter) continue;
    LORRY_RETURN_IF_ERROR(
        End(draft, news, upload,
            Error(absl::StatusCode::kFailedPrecondition, "RUN_FENCED",
                  absl::StrCat("run ", opened.value, " of ", adapter.value,
                               " has been opened; this process publishes no longer"))));
  }
  // No attempt can be made in an earlier run any more.
  LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> marks,
                         kv::ListAll(store_, keys::AttemptsOf(adapter)));
  for (const kv::Entry& mark : marks) draft.Delete(mark.key);
  return absl::OkStatus();
}

absl::StatusOr<Adapter> Catalog::SetAdapter(const AdapterName& name, Policy policy,
                                            std::optional<uint64_t> expected_generation) {
  Adapter adapter;
  LORRY_RETURN_IF_ERROR(Transact([&](Draft& draft, News& news) -> absl::Status {
    LORRY_ASSIGN_OR_RETURN(std::optional<Adapter> found, draft.Get<Adapter>(keys::OfAdapter(name)));
    adapter = found.value_or(NewAdapter(name));
    if (expected_generation.has_value() && *expected_generation != adapter.generation) {
      return Error(
          absl::StatusCode::kAborted, "ADAPTER_MOVED",
          absl::StrCat("the policy of ", name.value, " has generation ", adapter.generation,
                       ", not ", *expected_generation, "; read it again and decide again"));
    }
    LORRY_ASSIGN_OR_RETURN(const std::vector<Adapter> all,
                           ListRecords<Adapter>(store_, keys::kAdapters));
    for (const Adapter& other : all) {
      if (other.name == name) continue;
      for (const std::string& pool : policy.default_of) {
        const auto& taken = other.policy.default_of;
        if (std::find(taken.begin(), taken.end(), pool) == taken.end()) continue;
        return Error(absl::StatusCode::kInvalidArgument, "POLICY_INVALID",
                     absl::StrCat("requests of pool ", pool, " that name no adapter get ",
                                  other.name.value, "; set its no_adapter to REFUSE first"));
      }
    }
    adapter.policy = policy;
    ++adapter.generation;
    draft.Put(keys::OfAdapter(name), adapter);
    news.changes.push_back({.kind = Change::Kind::kAdapterSet,
                            .key = VersionKey{.adapter = name, .run = {}, .number = {}},
                            .alias = {}});
    return absl::OkStatus();
  }));
  return adapter;
}

absl::StatusOr<Adapter> Catalog::GetAdapter(const AdapterName& name) {
  Draft draft(store_);
  return NeedAdapter(draft, name);
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

absl::StatusOr<std::vector<Adapter>> Catalog::ListAdapters(std::string_view after, size_t limit) {
  // '\0' sorts before every byte of a name: the first key after that of `after`.
  const std::string start =
      after.empty() ? "" : keys::OfAdapter(AdapterName(std::string(after))) + '\0';
  LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> entries,
                         store_.List({.prefix = keys::kAdapters, .start = start, .limit = limit}));
  std::vector<Adapter> adapters;
  for (const kv::Entry& entry : entries) {
    LORRY_ASSIGN_OR_RETURN(Adapter adapter, Decode<Adapter>(entry.value));
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

absl::Status Catalog::NoSuchAdapter(const AdapterName& name) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Adapter> all, ListAdapters("", kNamesCompared));
  std::vector<std::string> names;
  for (const Adapter& adapter : all) names.push_back(adapter.name.value);
  return Error(absl::StatusCode::kNotFound, "UNKNOWN_ADAPTER",
               absl::StrCat("there is no adapter ", name.value, DidYouMean(name.value, names)));
}

}  // namespace lorry::store
