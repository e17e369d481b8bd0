#include "lib/transfer/delta.h"

#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/transfer/checksum.h"

namespace lorry::transfer {
namespace {

constexpr size_t kWord = 4;
// Higher levels gain a hundredth.
constexpr int kLevel = 1;

struct Free {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// Calls f(i, j) for each byte i of an image's part, and where it stands among the planes.
template <typename F>
void EachPlace(size_t size, F f) {
  const size_t words = size / kWord;
  for (size_t word = 0; word < words; ++word) {
    for (size_t byte = 0; byte < kWord; ++byte) f(word * kWord + byte, byte * words + word);
  }
  for (size_t i = words * kWord; i < size; ++i) f(i, i);
}

absl::Status Corrupt() {
  return Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT",
               "what has changed since an older image cannot be read");
}

}  // namespace

std::optional<std::string> EncodeDelta(std::span<const std::byte> base,
                                       std::span<const std::byte> bytes) {
  LORRY_CHECK(base.size() == bytes.size() && bytes.size() <= kLeafBytes);
  static thread_local const std::unique_ptr<ZSTD_CCtx, Free> context(ZSTD_createCCtx());
  static thread_local std::vector<std::byte> planes;
  planes.resize(bytes.size());
  EachPlace(bytes.size(), [&](size_t i, size_t place) { planes[place] = base[i] ^ bytes[i]; });
  // No room for more than what is worth it: zstd gives up where it needs more.
  std::string delta(bytes.size() - bytes.size() / 8, '\0');
  const size_t size = ZSTD_compressCCtx(context.get(), delta.data(), delta.size(), planes.data(),
                                        planes.size(), kLevel);
  if (ZSTD_isError(size)) return std::nullopt;
  delta.resize(size);
  return delta;
}

absl::Status DecodeDelta(std::string_view delta, std::span<const std::byte> base,
                         std::span<std::byte> out) {
  LORRY_CHECK(base.size() == out.size() && out.size() <= kLeafBytes);
  static thread_local const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
  static thread_local std::vector<std::byte> planes;
  planes.resize(out.size());
  const size_t size =
      ZSTD_decompressDCtx(context.get(), planes.data(), planes.size(), delta.data(), delta.size());
  if (size != out.size()) return Corrupt();
  EachPlace(out.size(), [&](size_t i, size_t place) { out[i] = base[i] ^ planes[place]; });
  return absl::OkStatus();
}

}  // namespace lorry::transfer
