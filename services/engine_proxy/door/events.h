// Event streams as both engines write them: each event is "data: " and JSON, and ends with an empty
// line.
//
// Pure, one thread's.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace lorry::door {

// What the last event of a stream says.
inline constexpr std::string_view kDoneData = "[DONE]";

// Takes a stream, which comes in pieces, apart into its events.
class EventReader {
 public:
  void Add(std::string_view piece) { text_ += piece; }
  // The next whole event, without the empty line at its end; it may be read until the next call.
  // None: its end has not come.
  std::optional<std::string_view> Next();
  // Bytes of events that Next has not told.
  size_t held_bytes() const { return text_.size() - told_; }
  // The event whose end has not come, which the reader forgets.
  std::string TakeRest();

 private:
  std::string text_;
  size_t told_ = 0;
  size_t searched_ = 0;  // no event that was not told ends before this
};

// What an event says behind "data:". None: it is a comment, or has another field first.
std::optional<std::string_view> DataOf(std::string_view event);

// `event`, as EventReader tells it, with its end.
void AppendEvent(std::string_view event, std::string* out);
// An event that says `data`.
void AppendData(std::string_view data, std::string* out);

}  // namespace lorry::door
