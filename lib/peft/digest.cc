#include "lib/peft/digest.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // AVX2 or AVX-512 at run time, twice as fast as the baseline
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::peft {
namespace {

Leaf ToLeaf(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Leaf leaf;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), leaf.bytes.begin());
  return leaf;
}

}  // namespace

Leaf LeafHash(std::span<const std::byte> bytes) {
  LORRY_CHECK(bytes.size() <= kLeafBytes);
  return ToLeaf(XXH3_128bits(bytes.data(), bytes.size()));
}

struct LeafHasher::State {
  State() : xxh(XXH3_createState()) { LORRY_CHECK(xxh != nullptr); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* xxh;
  uint64_t filled = 0;  // bytes of the open leaf that xxh has seen
};

LeafHasher::LeafHasher() : state_(std::make_unique<State>()) {}
LeafHasher::~LeafHasher() = default;
LeafHasher::LeafHasher(LeafHasher&&) noexcept = default;
LeafHasher& LeafHasher::operator=(LeafHasher&&) noexcept = default;

void LeafHasher::Add(std::span<const std::byte> bytes) {
  image_bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (state_->filled == 0 && bytes.size() >= kLeafBytes) {
      leaves_.push_back(LeafHash(bytes.first(kLeafBytes)));
      bytes = bytes.subspan(kLeafBytes);
      continue;
    }
    if (state_->filled == 0) XXH3_128bits_reset(state_->xxh);
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kLeafBytes - state_->filled));
    XXH3_128bits_update(state_->xxh, part.data(), part.size());
    state_->filled += part.size();
    bytes = bytes.subspan(part.size());
    if (state_->filled == kLeafBytes) {
      leaves_.push_back(ToLeaf(XXH3_128bits_digest(state_->xxh)));
      state_->filled = 0;
    }
  }
}

std::vector<Leaf> LeafHasher::Finish() {
  if (state_->filled > 0) leaves_.push_back(ToLeaf(XXH3_128bits_digest(state_->xxh)));
  return std::move(leaves_);
}

absl::StatusOr<Digest> DigestOf(uint64_t image_bytes, std::span<const Leaf> leaves,
                                std::string_view canonical_config) {
  if (leaves.size() != LeafCount(image_bytes)) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("an image of ", image_bytes, " bytes has ", LeafCount(image_bytes),
                              " leaves, not ", leaves.size()));
  }
  std::string preimage = "lorry.digest.v1\nxxh3-128\n";
  for (int shift = 0; shift < 64; shift += 8) preimage += static_cast<char>(image_bytes >> shift);
  for (const Leaf& leaf : leaves) preimage.append(leaf.bytes.begin(), leaf.bytes.end());
  preimage += canonical_config;
  return Digest{absl::StrCat("sha256-xxh3:", ToHex(HashSha256(preimage)))};
}

}  // namespace lorry::peft
