#include "services/engine_proxy/door/framing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace lorry::door {
namespace {

// Room for these at once saves growing step by step.
constexpr size_t kUsualFields = 16;

constexpr std::array<bool, 256> TokenChars() {
  std::array<bool, 256> is = {};
  for (const char c : std::string_view("!#$%&'*+-.^_`|~")) is[static_cast<unsigned char>(c)] = true;
  for (int c = '0'; c <= '9'; ++c) is[c] = true;
  for (int c = 'a'; c <= 'z'; ++c) is[c] = true;
  for (int c = 'A'; c <= 'Z'; ++c) is[c] = true;
  return is;
}

constexpr std::array<bool, 256> kTokenChars = TokenChars();

// Lambdas, as the compiler calls a function that is handed to an algorithm for each byte.
constexpr auto IsTokenChar = [](char c) { return kTokenChars[static_cast<unsigned char>(c)]; };
constexpr auto IsControl = [](char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
};
constexpr auto IsVisible = [](char c) { return c > 0x20 && c < 0x7f; };

std::string_view Trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

// Calls `f` with each trimmed member of a comma list, until it returns true.
template <typename F>
bool AnyListMember(std::string_view list, F f) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (f(Trim(list.substr(0, comma)))) return true;
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return false;
}

using Problem = std::optional<HeadProblem>;

Problem Bad(std::string_view message) { return HeadProblem{400, std::string(message)}; }

struct Bytes {
  bool end_lines_alone = true;  // each CR or LF is one of CR LF, and there is no NUL
  bool has_controls = false;    // others than these and tabs
};

// Of `kSize` bytes, of which each is looked at with the next one. Without an exit, so that the compiler
// makes vectors of a block.
template <size_t kSize>
void Look(const char* bytes, Bytes* seen) {
  uint8_t controls = 0;
  uint8_t stray = 0;
  for (size_t i = 0; i < kSize; ++i) {
    const auto c = static_cast<uint8_t>(bytes[i]);
    const auto next = static_cast<uint8_t>(bytes[i + 1]);
    const bool is_space = (c == '\t') | (c == '\r') | (c == '\n');
    controls |= static_cast<uint8_t>(((c < 0x20) & !is_space) | (c == 0x7f));
    stray |= static_cast<uint8_t>(((c == '\r') ^ (next == '\n')) | (c == 0));
  }
  seen->has_controls |= controls != 0;
  seen->end_lines_alone &= stray == 0;
}

Bytes BytesOf(std::string_view head) {
  constexpr ptrdiff_t kBlock = 32;
  Bytes seen;
  if (head.empty()) return seen;
  const char* const last = head.data() + head.size() - 1;
  const char* at = head.data();
  for (; last - at >= kBlock; at += kBlock) Look<kBlock>(at, &seen);
  if (at < last && last - head.data() >= kBlock) {
    Look<kBlock>(last - kBlock, &seen);  // some of it once more
  } else {
    for (; at < last; ++at) Look<1>(at, &seen);
  }
  if (head.front() == '\n' || *last == '\r' || *last == '\0') {
    seen.end_lines_alone = false;
  }
  return seen;
}

// Cuts the first line off `rest`, where CR stands in CR LF alone.
bool TakeLine(std::string_view* rest, std::string_view* line) {
  const size_t end = rest->find('\r');
  if (end == std::string_view::npos) return false;
  *line = rest->substr(0, end);
  rest->remove_prefix(end + 2);
  return true;
}

Problem ReadRequestLine(std::string_view line, RequestHead* head, std::string* authority) {
  const size_t a = line.find(' ');
  const size_t b = line.rfind(' ');
  if (a == std::string_view::npos || a == b) return Bad("the request line has no three parts");
  const std::string_view method = line.substr(0, a);
  std::string_view target = line.substr(a + 1, b - a - 1);
  const std::string_view version = line.substr(b + 1);
  if (!IsToken(method)) return Bad("the method is not a token");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return HeadProblem{505, "only HTTP/1.1 and HTTP/1.0 are spoken here"};
  }
  constexpr std::string_view kScheme = "http://";
  if (EqualsIgnoreCase(target.substr(0, kScheme.size()), kScheme)) {
    target.remove_prefix(kScheme.size());
    const size_t slash = std::min(target.find('/'), target.size());
    *authority = target.substr(0, slash);
    if (authority->empty()) return Bad("the target names no host");
    target.remove_prefix(slash);
    if (target.empty()) target = "/";
  }
  if (target.empty() || target.front() != '/' ||
      !std::all_of(target.begin(), target.end(), IsVisible) ||
      target.find('#') != std::string_view::npos) {
    return Bad("the target is not a path");
  }
  const size_t question = std::min(target.find('?'), target.size());
  head->method = method;
  head->path = target.substr(0, question);
  head->query = target.substr(question);
  head->http11 = version == "HTTP/1.1";
  return std::nullopt;
}

// Of a reply: "HTTP/1.1 200 OK". What stands behind the number is for people.
Problem ReadStatusLine(std::string_view line, ReplyHead* head) {
  constexpr std::string_view kVersion = "HTTP/1.";
  constexpr size_t kNumberAt = kVersion.size() + 2;
  constexpr size_t kNumberEnd = kNumberAt + 3;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (line.size() < kNumberEnd || !line.starts_with(kVersion) || line[kNumberAt - 1] != ' ' ||
      (line[kNumberAt - 2] != '0' && line[kNumberAt - 2] != '1') || line[kNumberAt] == '0' ||
      !std::all_of(line.begin() + kNumberAt, line.begin() + kNumberEnd, is_digit) ||
      (line.size() > kNumberEnd && line[kNumberEnd] != ' ')) {
    return Bad("the status line is not HTTP/1.1");
  }
  head->http11 = line[kNumberAt - 2] == '1';
  std::from_chars(line.data() + kNumberAt, line.data() + kNumberEnd, head->status);
  return std::nullopt;
}

Problem ReadField(std::string_view line, const Bytes& seen, Head* head) {
  if (line.front() == ' ' || line.front() == '\t') return Bad("a header line is folded");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return Bad("a header line has no colon");
  const std::string_view name = line.substr(0, colon);
  if (!IsToken(name)) return Bad("a header name is not a token");
  const std::string_view value = Trim(line.substr(colon + 1));
  if (seen.has_controls && std::any_of(value.begin(), value.end(), IsControl)) {
    return Bad("a header value has a control character");
  }
  head->fields.push_back({name, value});
  return std::nullopt;
}

Problem ReadContentLength(std::string_view value, Head* head) {
  if (head->content_length) return Bad("Content-Length is given twice");
  uint64_t length = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
  if (value.empty() || error != std::errc() || end != value.data() + value.size()) {
    return Bad("Content-Length is not a number");
  }
  head->content_length = length;
  return std::nullopt;
}

// What each field says of the framing and of the connection.
class FramingReader {
 public:
  explicit FramingReader(Head* head) : head_(*head) { head_.keep_alive = head_.http11; }

  Problem Read(const HeaderField& field) {
    if (EqualsIgnoreCase(field.name, "content-length"))
      return ReadContentLength(field.value, &head_);
    if (EqualsIgnoreCase(field.name, "transfer-encoding")) {
      if (std::exchange(head_.chunked, true)) return Bad("Transfer-Encoding is given twice");
      if (!EqualsIgnoreCase(field.value, "chunked")) {
        return HeadProblem{501, "the only Transfer-Encoding understood here is chunked"};
      }
    } else if (EqualsIgnoreCase(field.name, "connection")) {
      AnyListMember(field.value, [&](std::string_view token) {
        if (EqualsIgnoreCase(token, "close")) head_.keep_alive = false;
        if (EqualsIgnoreCase(token, "keep-alive") && !head_.http11) head_.keep_alive = true;
        return false;
      });
    }
    return std::nullopt;
  }
  // After all fields.
  Problem Check() const {
    if (head_.chunked && head_.content_length) {
      return Bad("Content-Length and Transfer-Encoding exclude each other");
    }
    if (head_.chunked && !head_.http11) return Bad("HTTP/1.0 has no Transfer-Encoding");
    return std::nullopt;
  }

 private:
  Head& head_;
};

Problem ReadFraming(std::string_view authority, RequestHead* head) {
  int hosts = 0;
  FramingReader framing(head);
  for (const HeaderField& field : head->fields) {
    if (Problem problem = framing.Read(field)) return problem;
    if (EqualsIgnoreCase(field.name, "host")) {
      if (++hosts > 1 || field.value.empty()) return Bad("there must be one Host with a value");
      if (!authority.empty() && !EqualsIgnoreCase(authority, field.value)) {
        return Bad("Host and the target's host differ");
      }
    } else if (EqualsIgnoreCase(field.name, "expect")) {
      if (!EqualsIgnoreCase(field.value, "100-continue")) {
        return HeadProblem{417, "the only expectation understood here is 100-continue"};
      }
      head->expects_continue = head->http11;
    }
  }
  if (head->http11 && hosts == 0) return Bad("HTTP/1.1 needs a Host");
  return framing.Check();
}

// Copies `bytes` into the head, reads the first line by `read_line`, and the fields.
template <typename F>
Problem ReadLines(std::string_view bytes, const HeadLimits& limits, Head* head, F read_line) {
  if (bytes.size() > limits.bytes) return HeadProblem{431, "the head is too large"};
  auto kept = std::make_unique_for_overwrite<char[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), kept.get());
  std::string_view raw(kept.get(), bytes.size());
  head->raw = std::move(kept);
  head->fields.reserve(kUsualFields);
  constexpr std::string_view kStray = "a line does not end in CR LF alone";
  const Bytes seen = BytesOf(raw);
  std::string_view line;
  if (!seen.end_lines_alone || !TakeLine(&raw, &line)) return Bad(kStray);
  if (Problem problem = read_line(line)) return problem;
  for (;;) {
    if (!TakeLine(&raw, &line)) return Bad(kStray);
    if (line.empty()) break;
    if (head->fields.size() == limits.fields) return HeadProblem{431, "too many header fields"};
    if (Problem problem = ReadField(line, seen, head)) return problem;
  }
  if (!raw.empty()) return Bad("bytes follow the head");
  return std::nullopt;
}

}  // namespace

std::string_view Head::Get(std::string_view name) const {
  for (const HeaderField& field : fields) {
    if (EqualsIgnoreCase(field.name, name)) return field.value;
  }
  return {};
}

std::string Head::GetAll(std::string_view name) const {
  std::string all;
  for (const HeaderField& field : fields) {
    if (field.value.empty() || !EqualsIgnoreCase(field.name, name)) continue;
    if (!all.empty()) all += ", ";
    all += field.value;
  }
  return all;
}

bool IsToken(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), IsTokenChar);
}

std::variant<RequestHead, HeadProblem> ReadHead(std::string_view bytes, const HeadLimits& limits) {
  RequestHead head;
  std::string authority;
  Problem problem = ReadLines(bytes, limits, &head, [&](std::string_view line) {
    return ReadRequestLine(line, &head, &authority);
  });
  if (!problem) problem = ReadFraming(authority, &head);
  if (problem) return *std::move(problem);
  return head;
}

std::variant<ReplyHead, HeadProblem> ReadReplyHead(std::string_view bytes,
                                                   const HeadLimits& limits) {
  ReplyHead head;
  Problem problem = ReadLines(bytes, limits, &head,
                              [&](std::string_view line) { return ReadStatusLine(line, &head); });
  FramingReader framing(&head);
  for (const HeaderField& field : head.fields) {
    if (problem) break;
    problem = framing.Read(field);
  }
  if (!problem) problem = framing.Check();
  if (problem) return *std::move(problem);
  return head;
}

bool FieldNames::IsAmong(std::string_view name) const {
  return std::any_of(names_.begin(), names_.end(),
                     [&](std::string_view one) { return EqualsIgnoreCase(one, name); });
}

bool IsHopByHop(std::string_view name, std::string_view connection) {
  static constexpr std::string_view kNames[] = {"connection",
                                                "keep-alive",
                                                "proxy-connection",
                                                "proxy-authenticate",
                                                "proxy-authorization",
                                                "te",
                                                "trailer",
                                                "transfer-encoding",
                                                "upgrade"};
  static constexpr FieldNames kAlways(kNames);
  if (kAlways.Has(name)) return true;
  return AnyListMember(connection,
                       [&](std::string_view token) { return EqualsIgnoreCase(token, name); });
}

void AppendField(std::string_view name, std::string_view value, std::string* head) {
  // In one step: four appends would look for room four times, and a request has a dozen fields.
  const size_t at = head->size();
  head->resize(at + name.size() + value.size() + 4);
  char* to = head->data() + at;
  to = std::copy(name.begin(), name.end(), to);
  *to++ = ':';
  *to++ = ' ';
  to = std::copy(value.begin(), value.end(), to);
  *to++ = '\r';
  *to = '\n';
}

void AppendForwardable(std::span<const HeaderField> fields, const FieldNames& drop,
                       std::string* head) {
  // Nearly all say one of these two words, which name no field that could be forwarded.
  const auto names_fields = [](std::string_view value) {
    return !EqualsIgnoreCase(value, "keep-alive") && !EqualsIgnoreCase(value, "close");
  };
  std::string connection;
  for (const HeaderField& field : fields) {
    if (EqualsIgnoreCase(field.name, "connection") && names_fields(field.value)) {
      connection.append(field.value).append(",");
    }
  }
  for (const HeaderField& field : fields) {
    if (!drop.Has(field.name) && !IsHopByHop(field.name, connection)) {
      AppendField(field.name, field.value, head);
    }
  }
}

}  // namespace lorry::door
