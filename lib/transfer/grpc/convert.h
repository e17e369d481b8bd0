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

// The range of a chunk that has a sane shape: 1 byte to 1 MiB, not across the grid.
inline absl::StatusOr<Range> ShapeOf(const pb::Chunk& chunk) {
  const Range range{chunk.offset(), chunk.data().size()};
  if (!CheckRange(range, kImageBytesMax).ok() || PieceCount(range) != 1 ||
      chunk.checksum().size() != sizeof(Checksum::bytes)) {
    return ProtocolViolation(
        "a chunk is 1 byte to 1 MiB within one MiB of the image, with 16 bytes of checksum");
  }
  return range;
}

inline std::span<const std::byte> BytesOf(const pb::Chunk& chunk) {
  return std::as_bytes(std::span(chunk.data().data(), chunk.data().size()));
}

inline Checksum ChecksumIn(const pb::Chunk& chunk) {
  Checksum sum;
  std::memcpy(sum.bytes.data(), chunk.checksum().data(), sizeof(sum.bytes));
  return sum;
}

}  // namespace lorry::transfer
