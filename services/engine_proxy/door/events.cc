#include "services/engine_proxy/door/events.h"

#include <algorithm>
#include <utility>

namespace lorry::door {
namespace {

constexpr std::string_view kEventEnd = "\n\n";
constexpr std::string_view kData = "data:";

}  // namespace

std::optional<std::string_view> EventReader::Next() {
  const size_t end = text_.find(kEventEnd, searched_);
  if (end == std::string::npos) {
    text_.erase(0, std::exchange(told_, 0));
    searched_ = text_.empty() ? 0 : text_.size() - 1;  // an end may lie across two pieces
    return std::nullopt;
  }
  const std::string_view event = std::string_view(text_).substr(told_, end - told_);
  told_ = searched_ = end + kEventEnd.size();
  return event;
}

std::string EventReader::TakeRest() {
  std::string rest = text_.substr(std::exchange(told_, 0));
  text_.clear();
  searched_ = 0;
  return rest;
}

std::optional<std::string_view> DataOf(std::string_view event) {
  if (!event.starts_with(kData)) return std::nullopt;
  event.remove_prefix(kData.size());
  event.remove_prefix(std::min(event.find_first_not_of(' '), event.size()));
  return event;
}

void AppendEvent(std::string_view event, std::string* out) { out->append(event).append(kEventEnd); }

void AppendData(std::string_view data, std::string* out) {
  out->append(kData).append(" ");
  AppendEvent(data, out);
}

}  // namespace lorry::door
