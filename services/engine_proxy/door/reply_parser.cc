#include "services/engine_proxy/door/reply_parser.h"

namespace lorry::door {
namespace {

constexpr uint32_t kHeadBytes = 64 * 1024;
// Room for this at once saves growing step by step.
constexpr size_t kUsualText = 512;

}  // namespace

ReplyParser::ReplyParser(bool answers_head) {
  header_limit(kHeadBytes);
  body_limit(boost::none);
  skip(answers_head);
  text_.reserve(kUsualText);
}

std::string_view ReplyParser::Get(std::string_view name) const {
  for (const Place& place : places_) {
    const std::string_view text = text_;
    if (EqualsIgnoreCase(text.substr(place.name_at, place.value_at - place.name_at), name)) {
      return text.substr(place.value_at, place.end - place.value_at);
    }
  }
  return {};
}

ReplyParser::FieldList ReplyParser::Fields() const {
  FieldList fields;
  fields.reserve(places_.size());
  const std::string_view text = text_;
  for (const Place& place : places_) {
    fields.push_back({text.substr(place.name_at, place.value_at - place.name_at),
                      text.substr(place.value_at, place.end - place.value_at)});
  }
  return fields;
}

void ReplyParser::on_response_impl(int code, View, int, ErrorCode&) { status_ = code; }

void ReplyParser::on_field_impl(http::field, View name, View value, ErrorCode&) {
  if (!in_head_) return;
  Place place{};
  place.name_at = text_.size();
  text_.append(name.data(), name.size());
  place.value_at = text_.size();
  text_.append(value.data(), value.size());
  place.end = text_.size();
  places_.push_back(place);
}

size_t ReplyParser::on_body_impl(View body, ErrorCode&) {
  if (!body.empty()) pieces_.emplace_back(body.data(), body.size());
  return body.size();
}

size_t ReplyParser::on_chunk_body_impl(uint64_t, View body, ErrorCode&) {
  if (!body.empty()) pieces_.emplace_back(body.data(), body.size());
  return body.size();
}

}  // namespace lorry::door
