#include "lib/transfer/ucx/wire.h"

#include <cstring>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/transfer/session.h"

namespace lorry::transfer::ucx {
namespace {

// Every header: format, kind, session, request; then the kind's own fields. Little-endian.
constexpr uint8_t kFormat = 1;

void PutNumber(std::string& out, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void PutText(std::string& out, std::string_view text, size_t max) {
  text = text.substr(0, max);
  PutNumber(out, text.size(), 2);
  out.append(text);
}

class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  uint64_t Number(int width) {
    uint64_t value = 0;
    const std::string_view bytes = Take(width);
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    return value;
  }
  std::string_view Text(size_t max) {
    const uint64_t length = Number(2);
    if (length > max) ok_ = false;
    return Take(length);
  }
  std::string_view Take(size_t count) {
    if (!ok_ || count > in_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = in_.substr(0, count);
    in_.remove_prefix(count);
    return taken;
  }
  bool whole() const { return ok_ && in_.empty(); }
  bool ok() const { return ok_; }

 private:
  std::string_view in_;
  bool ok_ = true;
};

void EncodePieces(std::string& out, const Message& message) {
  PutNumber(out, message.pieces.size(), 1);
  for (const Checksum& sum : message.pieces) {
    out.append(reinterpret_cast<const char*>(sum.bytes.data()), sum.bytes.size());
  }
}

absl::Status DecodePieces(Reader& in, Message& message) {
  const uint64_t count = in.Number(1);
  if (count > kPiecesMax || count != PieceCount(message.range)) {
    return ProtocolViolation("a range with the wrong number of checksums");
  }
  for (uint64_t i = 0; i < count; ++i) {
    const std::string_view bytes = in.Take(sizeof(Checksum::bytes));
    if (!in.ok()) break;
    std::memcpy(message.pieces.emplace_back().bytes.data(), bytes.data(), bytes.size());
  }
  return absl::OkStatus();
}

absl::Status DecodeRange(Reader& in, Message& message) {
  message.range.offset = in.Number(8);
  message.range.length = in.Number(8);
  if (!in.ok()) return ProtocolViolation("a header cut short");
  if (message.range.length > kRangeBytesMax) return ProtocolViolation("a range above 8 MiB");
  return CheckRange(message.range, kImageBytesMax);
}

absl::Status DecodeFields(Reader& in, Message& message) {
  switch (message.kind) {
    case Kind::kOpen:
      message.direction = static_cast<Direction>(in.Number(1));
      message.ticket = std::string(in.Text(kTicketBytesMax));
      if (message.direction != Direction::kGet && message.direction != Direction::kPut) {
        return ProtocolViolation("an unknown direction");
      }
      return absl::OkStatus();
    case Kind::kOpened:
      message.image_bytes = in.Number(8);
      return absl::OkStatus();
    case Kind::kGet:
      return DecodeRange(in, message);
    case Kind::kData:
    case Kind::kPut:
      LORRY_RETURN_IF_ERROR(DecodeRange(in, message));
      return DecodePieces(in, message);
    case Kind::kDone: {
      const uint64_t code = in.Number(1);
      const std::string_view reason = in.Text(kStatusTextMax);
      const std::string_view text = in.Text(kStatusTextMax);
      if (code > 16) return ProtocolViolation("an unknown status code");
      if (code != 0) message.status = Error(static_cast<absl::StatusCode>(code), reason, text);
      return absl::OkStatus();
    }
  }
  return ProtocolViolation("an unknown kind of message");
}

}  // namespace

std::string Encode(const Message& message) {
  std::string out;
  PutNumber(out, kFormat, 1);
  PutNumber(out, static_cast<uint8_t>(message.kind), 1);
  PutNumber(out, message.session, 8);
  PutNumber(out, message.request, 4);
  switch (message.kind) {
    case Kind::kOpen:
      PutNumber(out, static_cast<uint8_t>(message.direction), 1);
      PutText(out, message.ticket, kTicketBytesMax);
      break;
    case Kind::kOpened:
      PutNumber(out, message.image_bytes, 8);
      break;
    case Kind::kGet:
    case Kind::kData:
    case Kind::kPut:
      PutNumber(out, message.range.offset, 8);
      PutNumber(out, message.range.length, 8);
      if (message.kind != Kind::kGet) EncodePieces(out, message);
      break;
    case Kind::kDone:
      PutNumber(out, static_cast<uint64_t>(message.status.raw_code()), 1);
      PutText(out, ReasonOf(message.status), kStatusTextMax);
      PutText(out, ToStd(message.status.message()), kStatusTextMax);
      break;
  }
  return out;
}

absl::StatusOr<Message> Decode(std::string_view header) {
  if (header.size() > kHeaderBytesMax) return ProtocolViolation("a header too long");
  Reader in(header);
  Message message;
  if (in.Number(1) != kFormat) return ProtocolViolation("an unknown header format");
  message.kind = static_cast<Kind>(in.Number(1));
  message.session = in.Number(8);
  message.request = static_cast<uint32_t>(in.Number(4));
  LORRY_RETURN_IF_ERROR(DecodeFields(in, message));
  if (!in.whole()) return ProtocolViolation("a header of the wrong length");
  return message;
}

}  // namespace lorry::transfer::ucx
