// The strict reading of a head, a request's or a reply's, before anything else trusts it.
//
// Pure functions, any thread. Beast decodes chunked bodies afterwards; this check exists because
// Beast 1.81 lets through what two HTTP implementations may understand differently (folded lines,
// `Transfer-Encoding: gzip` before a Content-Length): the stuff of request smuggling. The door
// never copies framing, it writes its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lorry::door {

struct HeadLimits {
  // llm-d allows 1 MiB, Envoy 60 KiB, nginx 4 x 8 KiB; headers of tracing and tokens fit in 64 KiB.
  size_t bytes = 64 * 1024;
  size_t fields = 100;  // Envoy's default
};

struct HeaderField {
  std::string_view name;  // as it was written
  std::string_view value;
};

// What the heads of both directions have.
struct Head {
  std::unique_ptr<const char[]> raw;  // what all the texts are parts of
  bool http11 = true;
  bool keep_alive = true;
  bool chunked = false;
  std::optional<uint64_t> content_length;
  std::vector<HeaderField> fields;

  // The first field of that name (any case), empty when absent.
  std::string_view Get(std::string_view name) const;
  // All fields of that name as one list, which is what several of them mean (RFC 9110 §5.3).
  std::string GetAll(std::string_view name) const;
};

struct RequestHead : Head {
  std::string_view method;
  std::string_view path;   // without the query
  std::string_view query;  // with its '?', empty when there is none
  bool expects_continue = false;
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

struct ReplyHead : Head {
  int status = 0;  // 100 to 999
};

struct HeadProblem {
  int status = 400;
  std::string message;
};

// `bytes` are a whole head, with the empty line that ends it.
std::variant<RequestHead, HeadProblem> ReadHead(std::string_view bytes, const HeadLimits& limits);
// The same of a reply. The problem's status is nothing that an engine is told.
std::variant<ReplyHead, HeadProblem> ReadReplyHead(std::string_view bytes,
                                                   const HeadLimits& limits);

// RFC 9110 §7.6.1: fields that speak of one connection, and those that the list in `connection`
// names.
bool IsHopByHop(std::string_view name, std::string_view connection);

inline char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

// A name of RFC 9110 §5.6.2: letters, digits and marks that end no field.
bool IsToken(std::string_view s);

// Here, because a request's two heads take some hundred comparisons, which nearly all differ in
// length.
inline bool EqualsIgnoreCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return Lower(x) == Lower(y); });
}

// Names of fields, in lower case, of which one may be "x-lorry-*": all that begin so. Refers to the
// names. Most fields differ from all of them in their length and first letter.
class FieldNames {
 public:
  explicit constexpr FieldNames(std::span<const std::string_view> names) : names_(names) {
    for (const std::string_view name : names) {
      if (name.ends_with('*')) {
        prefix_ = name.substr(0, name.size() - 1);
      } else {
        seen_ |= Bit(name);
      }
    }
  }
  bool Has(std::string_view name) const {
    if (name.empty()) return false;
    if ((seen_ & Bit(name)) != 0 && IsAmong(name)) return true;
    return !prefix_.empty() && EqualsIgnoreCase(prefix_, name.substr(0, prefix_.size()));
  }

 private:
  static constexpr uint64_t Bit(std::string_view name) {
    return uint64_t{1} << ((name.size() * 5 + (name.front() & 31)) % 64);  // the same in any case
  }
  bool IsAmong(std::string_view name) const;
  std::span<const std::string_view> names_;
  std::string_view prefix_;
  uint64_t seen_ = 0;
};

// "name: value" lines that may be forwarded; `drop` names those that the door writes itself or
// keeps to itself.
void AppendForwardable(std::span<const HeaderField> fields, const FieldNames& drop,
                       std::string* head);

// Both are from a head that was read, or of the door's own making: it does not look for controls.
void AppendField(std::string_view name, std::string_view value, std::string* head);

}  // namespace lorry::door
