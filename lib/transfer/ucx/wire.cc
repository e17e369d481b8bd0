#include "lib/transfer/ucx/wire.h"

#include <cstring>

#include "lib/base/error.h"
#include "lib/transfer/byte_codec.h"

namespace lorry::transfer::ucx {
namespace {

// Every header: format, kind, request; then the kind's own fields.
constexpr uint8_t kFormat = 2;

void EncodePieces(ByteWriter& out, const Message& message) {
  out.Number(message.pieces.size(), 1);
  for (const Checksum& sum : message.pieces) {
    out.Bytes({reinterpret_cast<const char*>(sum.bytes.data()), sum.bytes.size()});
  }
}

absl::Status DecodePieces(ByteReader& in, Message& message) {
  const uint64_t count = in.Number(1);
  if (count > kPiecesMax || count != PieceCount(message.range)) {
    return ProtocolViolation("a range with the wrong number of checksums");
  }
  for (uint64_t i = 0; i < count; ++i) {
    const std::string_view bytes = in.Bytes(sizeof(Checksum::bytes));
    if (!in.ok()) break;
    std::memcpy(message.pieces.emplace_back().bytes.data(), bytes.data(), bytes.size());
  }
  return absl::OkStatus();
}

absl::Status DecodeRange(ByteReader& in, Message& message) {
  message.range.offset = in.Number(8);
  message.range.length = in.Number(8);
  if (!in.ok()) return ProtocolViolation("a header cut short");
  if (message.range.length > kRangeBytesMax) return ProtocolViolation("a range above 8 MiB");
  return CheckRange(message.range, kImageBytesMax);
}

absl::Status DecodeFields(ByteReader& in, Message& message) {
  switch (message.kind) {
    case Kind::kGet:
      return DecodeRange(in, message);
    case Kind::kData:
    case Kind::kPut:
      LORRY_RETURN_IF_ERROR(DecodeRange(in, message));
      return DecodePieces(in, message);
    case Kind::kDone:
      return absl::OkStatus();
  }
  return ProtocolViolation("an unknown kind of message");
}

}  // namespace

std::string Encode(const Message& message) {
  ByteWriter out;
  out.Number(kFormat, 1);
  out.Number(static_cast<uint8_t>(message.kind), 1);
  out.Number(message.request, 4);
  if (message.kind != Kind::kDone) {
    out.Number(message.range.offset, 8);
    out.Number(message.range.length, 8);
    if (message.kind != Kind::kGet) EncodePieces(out, message);
  }
  return out.Take();
}

absl::StatusOr<Message> Decode(std::string_view header) {
  if (header.size() > kHeaderBytesMax) return ProtocolViolation("a header too long");
  ByteReader in(header);
  Message message;
  if (in.Number(1) != kFormat) return ProtocolViolation("an unknown header format");
  message.kind = static_cast<Kind>(in.Number(1));
  message.request = static_cast<uint32_t>(in.Number(4));
  LORRY_RETURN_IF_ERROR(DecodeFields(in, message));
  if (!in.whole()) return ProtocolViolation("a header of the wrong length");
  return message;
}

}  // namespace lorry::transfer::ucx
