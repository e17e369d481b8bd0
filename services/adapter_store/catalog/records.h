// What the catalogue knows, as plain values. Every record below is durable; what is only true while
// the process lives (arrived ranges, a check that runs) belongs to images/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/digest.h"
#include "lib/base/ids.h"
#include "lib/fleet/engine_name.h"

namespace lorry::store {

using UploadId = StringId<struct UploadIdTag>;  // "u-<32 hex>", random
using BlobKey = StringId<struct BlobKeyTag>;    // "b-<instance>-<n>"; never given twice

// On whose behalf a call comes.
struct Principal {
  std::string name;
  bool is_operator = false;  // may touch what belongs to others
  // What nobody is known to own is everybody's.
  bool Owns(const std::string& owner) const {
    return is_operator || owner.empty() || owner == name;
  }
};
// PERMISSION_DENIED NOT_OWNER.
absl::Status NotOwner(std::string_view what, const Principal& who);

// An adapter's policy. The catalogue keeps the publisher's words and reads only what it acts on.
struct Policy {
  std::string encoded;                  // lorry.common.v1.AdapterPolicy, as it was set
  uint64_t quota_bytes = 0;             // 0: the store's default
  double max_tensor_norm = 0;           // 0: not checked
  uint32_t quota_versions = 0;          // 0: not bounded
  std::optional<uint32_t> store_keep;   // the newest that stay, 0: all; none: the store's default
  std::vector<std::string> default_of;  // pools in which requests naming no adapter get this one
  bool operator==(const Policy&) const = default;
};

struct Adapter {
  AdapterName name;
  Policy policy;
  uint64_t generation = 0;   // counts changes of the policy
  uint64_t seen_before = 0;  // the generation that the last change was made from; 0: of none
  RunId current_run;         // 0 before the first
  RunId last_run;            // the highest ever given, also to an adapter of this name before
  uint64_t stored_bytes = 0;
  uint32_t versions = 0;  // stored now
  bool archived = false;  // takes no run and no upload
  bool operator==(const Adapter&) const = default;
};

// What remains of a deleted adapter, so that one that takes its name goes on counting.
struct GoneAdapter {
  RunId last_run;
  uint64_t generation = 0;
  bool operator==(const GoneAdapter&) const = default;
};

struct Run {
  RunId number;
  std::optional<VersionKey> resumed_from;
  std::optional<uint64_t> newest;  // the newest number stored in it, even if deleted since
  std::string request_id;          // of the OpenRun that opened it
  std::string owner;               // who opened it, and alone publishes in it
  int64_t opened_at_ms = 0;        // unix time, as all *_ms below
  bool operator==(const Run&) const = default;
};

struct Version {
  VersionKey key;
  Digest digest;
  uint64_t image_bytes = 0;
  std::string config_json;       // as published
  std::string canonical_config;  // part of the digest's preimage
  fleet::VersionTraits traits;
  int64_t stored_at_ms = 0;
  uint64_t revision = 0;
  BlobKey blob;
  bool keep = false;  // published to be kept
  bool operator==(const Version&) const = default;
};

// What remains of a deleted version: its number stays taken.
struct Tombstone {
  Digest digest;
  int64_t deleted_at_ms = 0;
  bool operator==(const Tombstone&) const = default;
};

struct Alias {
  AdapterName adapter;
  AliasName name;
  std::optional<VersionKey> version;  // none: removed; the record stays, so that generations grow
  uint64_t generation = 0;
  uint64_t seen_before = 0;  // as an adapter's
  bool operator==(const Alias&) const = default;
};

enum class UploadState { kOpen, kStored, kDead };

struct Upload {
  UploadId id;
  VersionKey key;
  uint64_t attempt = 0;
  UploadState state = UploadState::kOpen;
  absl::Status why;  // DEAD: what a commit answers from now on
  uint64_t image_bytes = 0;
  uint64_t header_bytes = 0;
  std::string header_sha256;  // hex; the header itself is the front of the staged blob
  std::string config_json;
  Digest expected_digest;
  bool keep = false;  // of the version that it becomes
  std::string owner;  // who began it
  BlobKey blob;
  int64_t begun_at_ms = 0, ended_at_ms = 0;
  bool operator==(const Upload&) const = default;
};

// STAGED: an open upload writes it. LIVE: a version's. DELETING: goes once no ticket can name it.
enum class BlobState { kStaged, kLive, kDeleting };

struct Blob {
  BlobKey key;
  BlobState state = BlobState::kStaged;
  uint64_t bytes = 0;
  int64_t remove_after_ms = 0;  // DELETING: the last ticket for it has expired by then
  bool operator==(const Blob&) const = default;
};

// By what a holder counts its sets: by a number, within one life of its own records.
struct HolderMark {
  uint64_t incarnation = 0;  // of its records; higher when it had to begin them anew
  uint64_t revision = 0;
  auto operator<=>(const HolderMark&) const = default;
};

// The last set of a holder that was accepted, whatever has become of the holder's own memory.
struct HolderSet {
  std::string holder;
  HolderMark mark;
  std::vector<VersionKey> versions;  // sorted
  bool operator==(const HolderSet&) const = default;
};

// One entry of the revision log: what changed, not into what. Readers look the present state up.
struct Change {
  enum class Kind { kVersionStored, kVersionDeleted, kAdapterSet, kAliasSet, kAdapterDeleted };
  Kind kind = Kind::kAdapterSet;
  VersionKey key;   // of versions; of the others only the adapter is set
  AliasName alias;  // kAliasSet
  bool operator==(const Change&) const = default;
};

}  // namespace lorry::store
