// Bytes of tickets and of UCX headers: integers little-endian at a fixed width, texts behind a
// 16-bit length. One encoding of one value, so what is signed has no second spelling. No state
// beyond the object's own; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace lorry::transfer {

class ByteWriter {
 public:
  void Number(uint64_t value, size_t width) {
    for (size_t i = 0; i < width; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  // Cut at `max`, which is below 64 KiB.
  void Text(std::string_view text, size_t max) {
    text = text.substr(0, max);
    Number(text.size(), 2);
    Bytes(text);
  }
  void Bytes(std::string_view bytes) { out_.append(bytes); }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Over hostile bytes: after a short read, or a text above its limit, everything reads as zero and
// `ok` stays false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view in) : in_(in) {}

  uint64_t Number(size_t width) {
    uint64_t value = 0;
    const std::string_view bytes = Bytes(width);
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    return value;
  }
  std::string_view Text(size_t max) {
    const uint64_t length = Number(2);
    if (length > max) ok_ = false;
    return Bytes(length);
  }
  std::string_view Bytes(size_t count) {
    if (!ok_ || count > in_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = in_.substr(0, count);
    in_.remove_prefix(count);
    return taken;
  }

  bool ok() const { return ok_; }
  // All was read, and nothing is left over.
  bool whole() const { return ok_ && in_.empty(); }

 private:
  std::string_view in_;
  bool ok_ = true;
};

}  // namespace lorry::transfer
