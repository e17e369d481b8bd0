#include "services/engine_proxy/door/restore.h"

#include <algorithm>
#include <array>
#include <utility>

namespace lorry::door {
namespace {

// Longer keys are none of those that matter.
constexpr size_t kKeyBytes = 16;
constexpr std::string_view kData = "data:";

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// The rest of what stands between strings, numbers and words, means nothing here.
constexpr std::array<bool, 256> Structure() {
  std::array<bool, 256> is = {};
  for (const char c : std::string_view("\",{}[]\n")) is[static_cast<unsigned char>(c)] = true;
  return is;
}
constexpr std::array<bool, 256> kIsStructure = Structure();
bool IsStructure(char c) { return kIsStructure[static_cast<unsigned char>(c)]; }

}  // namespace

void FieldRestorer::Feed(std::string_view text, std::string* out) {
  size_t copied = 0;  // text[copied, at) waits to be copied
  for (size_t at = 0; at < text.size();) {
    switch (state_) {
      case State::kLine:
        at = InLine(text, at);
        break;
      case State::kJson:
        at = InJson(text, at, out, &copied);
        break;
      case State::kKey:
      case State::kId:
      case State::kString:
        at = InString(text, at);
        break;
      case State::kValue:
        at = InString(text, at);
        copied = at;
        break;
      case State::kRest: {
        const size_t end = is_stream_ ? text.find('\n', at) : std::string_view::npos;
        at = end == std::string_view::npos ? text.size() : end + 1;
        if (end != std::string_view::npos) state_ = State::kLine;
        break;
      }
    }
  }
  out->append(text.substr(copied));
}

size_t FieldRestorer::InLine(std::string_view text, size_t at) {
  const char c = text[at];
  if (key_.empty() && (c == '{' || (c == '[' && place_.in_lists && !is_stream_))) {
    BeginDocument(c);
  } else if (key_.size() < kData.size() && c == kData[key_.size()]) {
    key_ += c;
    if (key_ == kData) {  // a document follows
      is_stream_ = true;
      key_.clear();
    }
  } else if (!key_.empty() || !IsSpace(c)) {
    key_.clear();
    is_stream_ = true;
    if (c != '\n') state_ = State::kRest;
  }
  return at + 1;
}

size_t FieldRestorer::InJson(std::string_view text, size_t at, std::string* out, size_t* copied) {
  while (!IsStructure(text[at])) {
    if (++at == text.size()) return at;
  }
  const char c = text[at];
  if (c == '\n' && is_stream_) {
    state_ = State::kLine;  // no event goes on behind its line
    key_.clear();
  } else if (c == '{' || c == '[') {
    Open(c);
  } else if (c == '}' || c == ']') {
    Close();
  } else if (c == ',') {
    expects_key_ = AtKeys();
    key_.clear();
  } else if (c == '"') {
    state_ = StringBegins(text.substr(*copied, at - *copied), out);
    if (state_ == State::kValue) *copied = at + 1;
  }
  return at + 1;
}

void FieldRestorer::BeginDocument(char bracket) {
  depth_ = 0;
  outermost_ = bracket == '[' ? 2 : 1;
  in_parent_ = false;
  id_.clear();
  Open(bracket);
  state_ = State::kJson;
}

// `before`: what was not copied yet.
FieldRestorer::State FieldRestorer::StringBegins(std::string_view before, std::string* out) {
  if (expects_key_) return State::kKey;
  if (!AtKeys() || !AtField()) return State::kString;
  if (!place_.id.empty() && key_ == place_.id) return State::kId;
  if (key_ != place_.field) return State::kString;
  const std::string_view value = ValueFor(id_);
  if (value.empty()) return State::kString;
  out->append(before).append(value);
  return State::kValue;
}

void FieldRestorer::Open(char bracket) {
  ++depth_;
  const bool object = bracket == '{';
  if (depth_ == outermost_) id_.clear();
  if (depth_ == outermost_ + 1) {
    in_parent_ =
        object && !key_.empty() && (key_ == place_.parents[0] || key_ == place_.parents[1]);
  }
  expects_key_ = object && AtKeys();
  if (AtKeys()) key_.clear();
}

void FieldRestorer::Close() {
  --depth_;
  expects_key_ = false;
  if (depth_ == outermost_) in_parent_ = false;
  key_.clear();
  if (depth_ == 0) state_ = State::kRest;
}

size_t FieldRestorer::InString(std::string_view text, size_t at) {
  while (at < text.size()) {
    const size_t first = at;
    if (std::exchange(escaped_, false)) ++at;
    while (at < text.size() && text[at] != '"' && text[at] != '\\') ++at;
    escaped_ = at < text.size() && text[at] == '\\';
    if (escaped_) ++at;
    if (state_ == State::kKey && key_.size() < kKeyBytes) {
      key_ += text.substr(first, std::min(at - first, kKeyBytes - key_.size()));
    } else if (state_ == State::kId && id_.size() <= IdSeries::kBytes) {
      id_ += text.substr(first, std::min(at - first, IdSeries::kBytes + 1 - id_.size()));
    }
    if (at == text.size() || escaped_) continue;
    EndString();
    return at + 1;
  }
  return at;
}

void FieldRestorer::EndString() {
  expects_key_ = false;
  // A list has more of them.
  state_ = state_ == State::kValue && outermost_ == 1 ? State::kRest : State::kJson;
  if (state_ == State::kRest) key_.clear();
}

std::string_view WeightVersions::ValueFor(std::string_view id) const {
  if (values_.size() == 1) return values_.front();
  const std::optional<uint32_t> number = engine_.Find(id);
  return number ? std::string_view(values_[*number % values_.size()]) : std::string_view();
}

void ReplyRestorer::Feed(std::string_view piece, bool end, std::string* out) {
  std::string versioned, named, numbered;
  if (versions) {
    std::string* const to = model || ids || note ? &versioned : out;
    versions->Feed(piece, to);
    piece = versioned;
  }
  if (model) {
    std::string* const to = ids || note ? &named : out;
    model->Feed(piece, to);
    piece = named;
  }
  if (ids) {
    std::string* const to = note ? &numbered : out;
    ids->Feed(piece, end, to);
    piece = numbered;
  }
  if (note) note->Feed(piece, end, out);
}

}  // namespace lorry::door
