#include "clients/cli/policy_text.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "clients/cli/context.h"
#include "clients/cli/verb.h"
#include "lib/base/error.h"
#include "lib/fleet/unknown_pool.h"
#include "lib/rpc/policy_messages.h"

namespace lorry::cli {
namespace {

using common::v1::AdapterPolicy;
using Field = google::protobuf::FieldDescriptor;

absl::Status Bad(const Field& field, const std::string& value, const std::string& would_do) {
  return Usage(absl::StrCat(field.name(), "=", value, " cannot be; write ", would_do));
}

std::optional<uint64_t> ParseBytes(absl::string_view text) {
  static constexpr std::pair<const char*, int> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"", 0}};
  for (const auto& [unit, shift] : kUnits) {
    if (!absl::EndsWith(text, unit)) continue;
    uint64_t number = 0;
    if (!absl::SimpleAtoi(absl::StripSuffix(text, unit), &number)) continue;
    if (number > (~uint64_t{0} >> shift)) return std::nullopt;
    return number << shift;
  }
  return std::nullopt;
}

absl::Status SetEnum(AdapterPolicy& policy, const Field& field, const std::string& value) {
  const auto& type = *field.enum_type();
  std::string word = absl::AsciiStrToUpper(value);
  for (char& c : word) c = c == '-' ? '_' : c;
  std::vector<std::string> words;
  for (int i = 1; i < type.value_count(); ++i) {
    const auto& known = *type.value(i);
    words.push_back(absl::AsciiStrToLower(EnumWord(type, known.number())));
    if (word != EnumWord(type, known.number()) && word != known.name()) continue;
    policy.GetReflection()->SetEnum(&policy, &field, &known);
    return absl::OkStatus();
  }
  return Bad(field, value, absl::StrJoin(words, ", "));
}

absl::Status SetNumber(AdapterPolicy& policy, const Field& field, const std::string& value) {
  const auto& reflection = *policy.GetReflection();
  uint32_t small = 0;
  switch (field.cpp_type()) {
    case Field::CPPTYPE_INT64: {
      // Every signed number of a policy is a span of time in ms.
      int64_t plain = 0;
      const auto ms = absl::SimpleAtoi(value, &plain) ? plain : ParseDuration(value);
      if (!ms.has_value()) return Bad(field, value, "milliseconds, or 30s, 5m");
      reflection.SetInt64(&policy, &field, *ms);
      return absl::OkStatus();
    }
    case Field::CPPTYPE_UINT64: {
      const auto bytes = ParseBytes(value);
      if (!bytes.has_value()) return Bad(field, value, "a whole number, or 10GiB");
      reflection.SetUInt64(&policy, &field, *bytes);
      return absl::OkStatus();
    }
    case Field::CPPTYPE_DOUBLE: {
      double real = 0;
      if (!absl::SimpleAtod(value, &real)) return Bad(field, value, "a number, as 0.05");
      reflection.SetDouble(&policy, &field, real);
      return absl::OkStatus();
    }
    default:
      if (!absl::SimpleAtoi(value, &small)) return Bad(field, value, "a whole number");
      reflection.SetUInt32(&policy, &field, small);
      return absl::OkStatus();
  }
}

absl::Status SetKeep(AdapterPolicy& policy, const Field& field, const std::string& value) {
  uint32_t versions = 0;
  if (value == "all") {
    policy.mutable_keep()->set_all(true);
  } else if (absl::SimpleAtoi(value, &versions)) {
    policy.mutable_keep()->set_versions(versions);
  } else {
    return Bad(field, value, "a number of versions, or all");
  }
  return absl::OkStatus();
}

absl::Status SetMinEngines(AdapterPolicy& policy, const Field& field, const std::string& value) {
  uint32_t number = 0;
  if (!absl::SimpleAtoi(absl::StripSuffix(value, "%"), &number)) {
    return Bad(field, value, "a number of engines, or a share as in 50%");
  }
  if (absl::EndsWith(value, "%")) {
    policy.mutable_min_engines()->set_percent(number);
  } else {
    policy.mutable_min_engines()->set_count(number);
  }
  return absl::OkStatus();
}

absl::Status SetPools(AdapterPolicy& policy, const Field& field, const std::string& value) {
  policy.clear_pools();
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(value, ','))) {
    const std::pair<std::string, std::string> rule = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (rule.first.empty()) return Bad(field, value, "rollout,eval=rollout,canary=@alias");
    auto& added = *policy.add_pools();
    added.set_pool(rule.first);
    if (absl::StartsWith(rule.second, "@")) {
      added.set_alias(rule.second.substr(1));
    } else if (!rule.second.empty()) {
      added.set_other_pool(rule.second);
    }
  }
  return absl::OkStatus();
}

std::string ValueOf(const AdapterPolicy& policy, const Field& field) {
  const auto& reflection = *policy.GetReflection();
  if (field.name() == "pools") {
    return absl::StrJoin(policy.pools(), ",", [](std::string* out, const auto& rule) {
      absl::StrAppend(out, rule.pool());
      if (!rule.other_pool().empty()) absl::StrAppend(out, "=", rule.other_pool());
      if (!rule.alias().empty()) absl::StrAppend(out, "=@", rule.alias());
    });
  }
  const bool is_stores = (field.name() == "store_keep" && !policy.has_store_keep()) ||
                         (field.name() == "quota_bytes" && policy.quota_bytes() == 0);
  if (is_stores) return "the store's";
  if (field.name() == "keep") {
    return policy.keep().all() ? "all" : absl::StrCat(policy.keep().versions());
  }
  if (field.name() == "min_engines") {
    return policy.min_engines().has_count() ? absl::StrCat(policy.min_engines().count())
                                            : absl::StrCat(policy.min_engines().percent(), "%");
  }
  switch (field.cpp_type()) {
    case Field::CPPTYPE_ENUM:
      return absl::AsciiStrToLower(
          EnumWord(*field.enum_type(), reflection.GetEnumValue(policy, &field)));
    case Field::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(policy, &field));
    case Field::CPPTYPE_UINT64:
      return absl::StrCat(reflection.GetUInt64(policy, &field));
    case Field::CPPTYPE_DOUBLE:
      return absl::StrCat(reflection.GetDouble(policy, &field));
    default:
      return absl::StrCat(reflection.GetUInt32(policy, &field));
  }
}

// What may be chosen.
std::vector<Setting> Rules() {
  return {
      {"pools=POOL[=POOL|=@ALIAS],...",
       "The pools of engines that serve the adapter, and what each follows: what is published, "
       "another pool's decision, or an alias. Default: rollout, which follows what is published."},
      {"mode=rolling|barrier",
       "How doors change to a new version. rolling: one by one, while generation goes on. barrier: "
       "all doors of the pool hold new requests for a moment and change together, so that no "
       "request of the old version begins once one of the new was answered; an engine whose proxy "
       "is away holds it up until it is back or marked dead. Default rolling."},
      {"min_engines=N|N%",
       "How many engines, or which share of those a sync began with, must have a version loaded "
       "before it is decided. Default 50%."},
      {"skip=allowed|never",
       "Whether a version that waits gives way to a newer one. With never a few versions queue, "
       "and more are refused with SYNC_BACKLOG. Default allowed."},
      {"in_flight=finish_on_old|abort|resume_on_new",
       "What happens to requests of the bare adapter name that are running when a door changes: "
       "they finish on the version they began with, are aborted by the engine, or go on under the "
       "new version where that means the same (SGLang's /generate with input_ids). What cannot be "
       "aborted or resumed finishes, and X-Lorry-In-Flight says why. Default finish_on_old."},
      {"max_staleness=N",
       "How many decisions an engine may be behind and still answer for the bare adapter name. "
       "Default 1, at most 63."},
      {"keep=N|all",
       "How many decided versions stay loaded, the newest among them: at most 64. With all it is "
       "the last 64, and idle ones leave when room is needed. Default max_staleness + 1."},
      {"stale=refuse|hold|tag",
       "What a request for the bare adapter name gets where the engine is too far behind: 409 "
       "STALE_VERSION, a wait, or the answer with X-Lorry-Lag. Default refuse."},
      {"no_adapter=refuse|latest|base",
       "What a request that names no adapter gets: 400 NO_ADAPTER, this adapter's latest version, "
       "or the base model. Clients that ask for the first model of /v1/models need latest. Default "
       "refuse."},
      {"quiesce=none|drain|abort|retract|in_place|wait|keep",
       "How an engine comes to rest before its door changes, new requests waiting meanwhile. With "
       "drain the old version's requests end. The rest pause the whole engine: abort (what runs "
       "ends; needs in_flight=abort), retract, in_place (SGLang; freeze), wait (vLLM; lets end), "
       "keep (vLLM; freezes). An engine without it does not serve the adapter. Default none."},
      {"flush=auto|always|never",
       "Whether a paused engine drops its cached prefixes; always needs quiesce=abort, wait or "
       "keep. No version meets another one's, so that auto drops nothing. Default auto."},
      {"probe=auto|token|presence|differs",
       "How an engine proves that it applies a version. differs: its log-probabilities differ from "
       "the base model's. token: it generates one token with the version. presence: its list of "
       "loaded adapters shows the version with the path that Lorry gave. auto: its "
       "log-probabilities must match the trainer's "
       "where the trainer published a reference, and differ from the base model's where the "
       "trainer said that the version changes the model enough to be seen; otherwise a version "
       "that answers as the base model does is served, and shown as UNPROVEN. Default auto."}};
}

// Times and sizes.
std::vector<Setting> Limits() {
  return {
      {"stage_deadline_ms=TIME",
       "How long engines may take to load a version before those that have it decide. Default "
       "60s."},
      {"barrier_deadline_ms=TIME",
       "How long a door may be held, and a request there before it is refused. At its end the "
       "door goes on: with the old version where a barrier is broken off, with the new one where "
       "doors change one by one. Default 30s."},
      {"drain_deadline_ms=TIME",
       "How much longer that may be with quiesce=drain or wait. Default 600s."},
      {"max_tensor_norm=N",
       "The largest Frobenius norm that a lora_A or lora_B may have; 0: any. Default 0."},
      {"quota_bytes=SIZE",
       "How many bytes of images the adapter may keep stored; 0: the store's own limit. Default "
       "0."},
      {"quota_versions=N", "How many versions it may keep stored; 0: any number. Default 0."},
      {"store_keep=N",
       "How many of the newest versions stay stored; older ones leave with a publish unless an "
       "alias or a holder names them or they were published to be kept; 0: all stay. Default 32, "
       "the "
       "store's --store-keep."},
      {"probe_gap=NATS",
       "With probe=auto: how far an engine's log-probabilities of the reference that the trainer "
       "published with a version may be from the trainer's in the mean, before it refuses the "
       "version (PROBE_GAP); 0: any distance is accepted. Default 0.1."},
      {"residency=resident|on_demand",
       "Whether the version that is served stays loaded. With on_demand adapters share the slots "
       "of an engine: one that nobody asks for leaves when another needs its slot, and the next "
       "request for it waits at the door, demand_wait_ms at most, while it is loaded again. "
       "Default resident."},
      {"demand_wait_ms=TIME",
       "With residency=on_demand: how long a request waits for its adapter to be loaded, before it "
       "is refused with 503 NOT_RESIDENT. Default 30s."}};
}

}  // namespace

absl::Status SetField(AdapterPolicy& policy, const std::string& assignment) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  const auto& [name, value] = parts;
  const auto& type = *AdapterPolicy::descriptor();
  const Field* field = type.FindFieldByName(name);
  if (field == nullptr) field = type.FindFieldByName(name + "_ms");
  if (field == nullptr) {
    std::vector<std::string> names;
    for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
    return Usage(
        absl::StrCat("a policy has no field \"", name, "\"; it has ", absl::StrJoin(names, ", ")));
  }
  if (value.empty()) return Usage(absl::StrCat("write --set ", field->name(), "=VALUE"));
  if (value == "default") {
    policy.GetReflection()->ClearField(&policy, field);
    return absl::OkStatus();
  }
  if (field->name() == "pools") return SetPools(policy, *field, value);
  if (field->name() == "keep") return SetKeep(policy, *field, value);
  if (field->name() == "min_engines") return SetMinEngines(policy, *field, value);
  if (field->cpp_type() == Field::CPPTYPE_ENUM) return SetEnum(policy, *field, value);
  return SetNumber(policy, *field, value);
}

const std::vector<Setting>& PolicySettings() {
  static const auto& settings = *[] {
    auto* all = new std::vector<Setting>(Rules());
    std::ranges::move(Limits(), std::back_inserter(*all));
    return all;
  }();
  return settings;
}

absl::StatusOr<std::vector<PolicyLine>> DescribePolicy(const AdapterPolicy& policy) {
  LORRY_ASSIGN_OR_RETURN(const fleet::AdapterPolicy complete, rpc::PolicyFromProto(policy));
  AdapterPolicy filled = rpc::PolicyToProto(complete);
  if (!policy.has_keep()) filled.mutable_keep()->set_versions(complete.KeepCount());
  LORRY_ASSIGN_OR_RETURN(const fleet::AdapterPolicy defaults, rpc::PolicyFromProto({}));
  AdapterPolicy plain = rpc::PolicyToProto(defaults);
  plain.mutable_keep()->set_versions(complete.max_staleness + 1);

  std::vector<PolicyLine> lines;
  const auto& type = *AdapterPolicy::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string value = ValueOf(filled, *type.field(i));
    lines.push_back({type.field(i)->name(), value, value == ValueOf(plain, *type.field(i))});
  }
  return lines;
}

absl::StatusOr<std::string> OnlyPool(const std::string& adapter,
                                     const common::v1::AdapterPolicy& policy) {
  LORRY_ASSIGN_OR_RETURN(const fleet::AdapterPolicy read, rpc::PolicyFromProto(policy));
  std::vector<std::string> all, published;
  for (const auto& [name, source] : read.pools) {
    all.push_back(name.value);
    if (source.kind == fleet::PoolSource::Kind::kPublished) published.push_back(name.value);
  }
  const std::vector<std::string>& meant = published.empty() ? all : published;
  if (meant.size() == 1) return meant.front();
  return Usage(absl::StrCat(adapter, " has the pools ", absl::StrJoin(meant, " and "),
                            ": say which one is meant by --pool"));
}

absl::Status CheckPool(const std::string& adapter, const AdapterPolicy& policy,
                       const std::string& pool) {
  LORRY_ASSIGN_OR_RETURN(const fleet::AdapterPolicy read, rpc::PolicyFromProto(policy));
  if (read.pools.contains(PoolName(pool))) return absl::OkStatus();
  return fleet::UnknownPool(AdapterName(adapter), read, PoolName(pool));
}

}  // namespace lorry::cli
