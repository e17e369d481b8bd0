// Between lorry.transfer.v1 and the seam's plain types. Internal to lib/transfer/grpc.
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "lib/transfer/checksum.h"
#include "lib/transfer/session.h"
#include "lorry/transfer/v1/transfer.pb.h"

namespace lorry::transfer {

namespace pb = ::lorry::transfer::v1;

inline void FillChunk(pb::Chunk& chunk, const Range& range, const std::byte* data,
                      const Checksum& sum) {
  chunk.set_offset(range.offset);
  chunk.set_data(data, range.length);
  chunk.set_checksum(sum.bytes.data(), sum.bytes.size());
}

// A range of a sane shape: 1 byte to 1 MiB, not across the grid.
inline absl::StatusOr<Range> ShapeOf(const Range& range, const std::string& checksum) {
  if (!CheckRange(range, kImageBytesMax).ok() || PieceCount(range) != 1 ||
      checksum.size() != sizeof(Checksum::bytes)) {
    return ProtocolViolation(
        "a chunk is 1 byte to 1 MiB within one MiB of the image, with 16 bytes of checksum");
  }
  return range;
}
inline absl::StatusOr<Range> ShapeOf(const pb::Chunk& chunk) {
  return ShapeOf({chunk.offset(), chunk.data().size()}, chunk.checksum());
}
inline absl::StatusOr<Range> ShapeOf(const pb::Delta& delta) {
  return ShapeOf({delta.offset(), delta.length()}, delta.checksum());
}

inline std::span<const std::byte> BytesOf(const pb::Chunk& chunk) {
  return std::as_bytes(std::span(chunk.data().data(), chunk.data().size()));
}

template <typename ChunkOrDelta>
Checksum ChecksumIn(const ChunkOrDelta& chunk) {
  Checksum sum;
  std::memcpy(sum.bytes.data(), chunk.checksum().data(), sizeof(sum.bytes));
  return sum;
}

}  // namespace lorry::transfer
