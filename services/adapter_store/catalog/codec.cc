#include "services/adapter_store/catalog/codec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry {

// Found by nlohmann's argument-dependent lookup, which is why they live beside the ids.
template <typename Tag>
void to_json(nlohmann::json& json, const StringId<Tag>& id) {
  json = id.value;
}
template <typename Tag>
void from_json(const nlohmann::json& json, StringId<Tag>& id) {
  json.get_to(id.value);
}
template <typename Tag>
void to_json(nlohmann::json& json, const NumberId<Tag>& id) {
  json = id.value;
}
template <typename Tag>
void from_json(const nlohmann::json& json, NumberId<Tag>& id) {
  json.get_to(id.value);
}
void to_json(nlohmann::json& json, const VersionKey& key) {
  json = {{"adapter", key.adapter}, {"run", key.run}, {"number", key.number}};
}
void from_json(const nlohmann::json& json, VersionKey& key) {
  json.at("adapter").get_to(key.adapter);
  json.at("run").get_to(key.run);
  json.at("number").get_to(key.number);
}

namespace store {
namespace {

using nlohmann::json;

template <typename Value>
void ReadOptional(const json& from, const char* name, std::optional<Value>& to) {
  if (const auto it = from.find(name); it != from.end()) to = it->template get<Value>();
}
// What an older program did not write yet; its default stays.
template <typename Value>
void ReadNewer(const json& from, const char* name, Value& to) {
  if (const auto it = from.find(name); it != from.end()) it->get_to(to);
}
template <typename Value>
void WriteOptional(json& to, const char* name, const std::optional<Value>& value) {
  if (value.has_value()) to[name] = *value;
}

json ToJson(const fleet::VersionTraits& traits) {
  return {{"rank_max", traits.rank_max},
          {"rslora", traits.rslora},
          {"rank_or_alpha_pattern", traits.rank_or_alpha_pattern},
          {"partial_groups", traits.partial_groups},
          {"all_b_zero", traits.all_b_zero},
          {"relative_norm_ppm", traits.relative_norm_ppm},
          {"modules", traits.modules}};
}
void Read(const json& from, fleet::VersionTraits& traits) {
  from.at("rank_max").get_to(traits.rank_max);
  from.at("rslora").get_to(traits.rslora);
  from.at("rank_or_alpha_pattern").get_to(traits.rank_or_alpha_pattern);
  from.at("partial_groups").get_to(traits.partial_groups);
  from.at("all_b_zero").get_to(traits.all_b_zero);
  traits.relative_norm_ppm = from.value("relative_norm_ppm", 0u);
  from.at("modules").get_to(traits.modules);
}

void Read(const json& from, Adapter& adapter) {
  from.at("name").get_to(adapter.name);
  // Serialized protobuf is no UTF-8, which JSON text must be.
  absl::Base64Unescape(from.at("policy").get<std::string>(), &adapter.policy.encoded);
  from.at("quota_bytes").get_to(adapter.policy.quota_bytes);
  from.at("quota_versions").get_to(adapter.policy.quota_versions);
  from.at("max_tensor_norm").get_to(adapter.policy.max_tensor_norm);
  from.at("default_of").get_to(adapter.policy.default_of);
  from.at("generation").get_to(adapter.generation);
  adapter.seen_before = adapter.generation - std::min<uint64_t>(adapter.generation, 1);
  ReadNewer(from, "seen_before", adapter.seen_before);
  ReadOptional(from, "store_keep", adapter.policy.store_keep);
  from.at("current_run").get_to(adapter.current_run);
  adapter.last_run = adapter.current_run;
  ReadNewer(from, "last_run", adapter.last_run);
  from.at("stored_bytes").get_to(adapter.stored_bytes);
  from.at("versions").get_to(adapter.versions);
  ReadNewer(from, "archived", adapter.archived);
}
void Read(const json& from, GoneAdapter& gone) {
  from.at("last_run").get_to(gone.last_run);
  from.at("generation").get_to(gone.generation);
}
void Read(const json& from, Run& run) {
  from.at("number").get_to(run.number);
  ReadOptional(from, "resumed_from", run.resumed_from);
  ReadOptional(from, "newest", run.newest);
  absl::Base64Unescape(from.at("request_id").get<std::string>(), &run.request_id);
  ReadNewer(from, "owner", run.owner);
  from.at("opened_at_ms").get_to(run.opened_at_ms);
}
void Read(const json& from, Version& version) {
  from.at("key").get_to(version.key);
  from.at("digest").get_to(version.digest.value);
  from.at("image_bytes").get_to(version.image_bytes);
  from.at("config_json").get_to(version.config_json);
  from.at("canonical_config").get_to(version.canonical_config);
  Read(from.at("traits"), version.traits);
  from.at("stored_at_ms").get_to(version.stored_at_ms);
  from.at("revision").get_to(version.revision);
  from.at("blob").get_to(version.blob);
  ReadNewer(from, "keep", version.keep);
}
void Read(const json& from, Tombstone& tombstone) {
  from.at("digest").get_to(tombstone.digest.value);
  from.at("deleted_at_ms").get_to(tombstone.deleted_at_ms);
}
void Read(const json& from, Alias& alias) {
  from.at("adapter").get_to(alias.adapter);
  from.at("name").get_to(alias.name);
  ReadOptional(from, "version", alias.version);
  from.at("generation").get_to(alias.generation);
  alias.seen_before = alias.generation - std::min<uint64_t>(alias.generation, 1);
  ReadNewer(from, "seen_before", alias.seen_before);
}
void Read(const json& from, Upload& upload) {
  from.at("id").get_to(upload.id);
  from.at("key").get_to(upload.key);
  from.at("attempt").get_to(upload.attempt);
  upload.state = static_cast<UploadState>(from.at("state").get<int>());
  if (upload.state == UploadState::kDead) {
    upload.why = Error(static_cast<absl::StatusCode>(from.at("code").get<int>()),
                       from.at("reason").get<std::string>(), from.at("message").get<std::string>());
  }
  from.at("image_bytes").get_to(upload.image_bytes);
  from.at("header_bytes").get_to(upload.header_bytes);
  from.at("header_sha256").get_to(upload.header_sha256);
  from.at("config_json").get_to(upload.config_json);
  from.at("expected_digest").get_to(upload.expected_digest.value);
  ReadNewer(from, "keep", upload.keep);
  ReadNewer(from, "owner", upload.owner);
  from.at("blob").get_to(upload.blob);
  from.at("begun_at_ms").get_to(upload.begun_at_ms);
  from.at("ended_at_ms").get_to(upload.ended_at_ms);
}
void Read(const json& from, Blob& blob) {
  from.at("key").get_to(blob.key);
  blob.state = static_cast<BlobState>(from.at("state").get<int>());
  from.at("bytes").get_to(blob.bytes);
  from.at("remove_after_ms").get_to(blob.remove_after_ms);
}
void Read(const json& from, HolderSet& set) {
  from.at("holder").get_to(set.holder);
  ReadNewer(from, "incarnation", set.mark.incarnation);
  from.at("revision").get_to(set.mark.revision);
  from.at("versions").get_to(set.versions);
}
void Read(const json& from, AttemptMark& mark) {
  from.at("attempt").get_to(mark.attempt);
  from.at("upload").get_to(mark.upload);
}
void Read(const json& from, std::vector<Change>& changes) {
  for (const json& each : from) {
    Change& change = changes.emplace_back();
    change.kind = static_cast<Change::Kind>(each.at("kind").get<int>());
    each.at("key").get_to(change.key);
    each.at("alias").get_to(change.alias);
  }
}

}  // namespace

std::string Encode(const Adapter& adapter) {
  json out = {{"name", adapter.name},
              {"policy", absl::Base64Escape(adapter.policy.encoded)},
              {"quota_bytes", adapter.policy.quota_bytes},
              {"quota_versions", adapter.policy.quota_versions},
              {"max_tensor_norm", adapter.policy.max_tensor_norm},
              {"default_of", adapter.policy.default_of},
              {"generation", adapter.generation},
              {"seen_before", adapter.seen_before},
              {"current_run", adapter.current_run},
              {"last_run", adapter.last_run},
              {"stored_bytes", adapter.stored_bytes},
              {"versions", adapter.versions},
              {"archived", adapter.archived}};
  WriteOptional(out, "store_keep", adapter.policy.store_keep);
  return out.dump();
}

std::string Encode(const GoneAdapter& gone) {
  return json{{"last_run", gone.last_run}, {"generation", gone.generation}}.dump();
}

std::string Encode(const Run& run) {
  json out = {{"number", run.number},
              {"request_id", absl::Base64Escape(run.request_id)},
              {"owner", run.owner},
              {"opened_at_ms", run.opened_at_ms}};
  WriteOptional(out, "resumed_from", run.resumed_from);
  WriteOptional(out, "newest", run.newest);
  return out.dump();
}

std::string Encode(const Version& version) {
  return json{{"key", version.key},
              {"digest", version.digest.value},
              {"image_bytes", version.image_bytes},
              {"config_json", version.config_json},
              {"canonical_config", version.canonical_config},
              {"traits", ToJson(version.traits)},
              {"stored_at_ms", version.stored_at_ms},
              {"revision", version.revision},
              {"blob", version.blob},
              {"keep", version.keep}}
      .dump();
}

std::string Encode(const Tombstone& tombstone) {
  return json{{"digest", tombstone.digest.value}, {"deleted_at_ms", tombstone.deleted_at_ms}}
      .dump();
}

std::string Encode(const Alias& alias) {
  json out = {{"adapter", alias.adapter},
              {"name", alias.name},
              {"generation", alias.generation},
              {"seen_before", alias.seen_before}};
  WriteOptional(out, "version", alias.version);
  return out.dump();
}

std::string Encode(const Upload& upload) {
  json out = {{"id", upload.id},
              {"key", upload.key},
              {"attempt", upload.attempt},
              {"state", static_cast<int>(upload.state)},
              {"image_bytes", upload.image_bytes},
              {"header_bytes", upload.header_bytes},
              {"header_sha256", upload.header_sha256},
              {"config_json", upload.config_json},
              {"expected_digest", upload.expected_digest.value},
              {"keep", upload.keep},
              {"owner", upload.owner},
              {"blob", upload.blob},
              {"begun_at_ms", upload.begun_at_ms},
              {"ended_at_ms", upload.ended_at_ms}};
  if (upload.state == UploadState::kDead) {
    out["code"] = static_cast<int>(upload.why.code());
    out["reason"] = ReasonOf(upload.why);
    out["message"] = std::string(ToStd(upload.why.message()));
  }
  // Messages may quote a hostile header.
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Encode(const Blob& blob) {
  return json{{"key", blob.key},
              {"state", static_cast<int>(blob.state)},
              {"bytes", blob.bytes},
              {"remove_after_ms", blob.remove_after_ms}}
      .dump();
}

std::string Encode(const HolderSet& set) {
  return json{{"holder", set.holder},
              {"incarnation", set.mark.incarnation},
              {"revision", set.mark.revision},
              {"versions", set.versions}}
      .dump();
}

std::string Encode(const AttemptMark& mark) {
  return json{{"attempt", mark.attempt}, {"upload", mark.upload}}.dump();
}

std::string Encode(const std::vector<Change>& changes) {
  json out = json::array();
  for (const Change& change : changes) {
    out.push_back(
        {{"kind", static_cast<int>(change.kind)}, {"key", change.key}, {"alias", change.alias}});
  }
  return out.dump();
}

template <typename Record>
absl::StatusOr<Record> Decode(std::string_view text) {
  try {
    Record record;
    Read(json::parse(text), record);
    return record;
  } catch (const json::exception& error) {
    return Error(absl::StatusCode::kDataLoss, "CATALOG_CORRUPT",
                 absl::StrCat("a record of the catalogue cannot be read (", error.what(),
                              "); restore the data directory from a backup"));
  }
}

template absl::StatusOr<Adapter> Decode(std::string_view);
template absl::StatusOr<GoneAdapter> Decode(std::string_view);
template absl::StatusOr<Run> Decode(std::string_view);
template absl::StatusOr<Version> Decode(std::string_view);
template absl::StatusOr<Tombstone> Decode(std::string_view);
template absl::StatusOr<Alias> Decode(std::string_view);
template absl::StatusOr<Upload> Decode(std::string_view);
template absl::StatusOr<Blob> Decode(std::string_view);
template absl::StatusOr<HolderSet> Decode(std::string_view);
template absl::StatusOr<AttemptMark> Decode(std::string_view);
template absl::StatusOr<std::vector<Change>> Decode(std::string_view);

}  // namespace store
}  // namespace lorry
