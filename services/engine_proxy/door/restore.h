// Gives a reply back the names that its client used: byte for byte otherwise, as it passes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "services/engine_proxy/door/body_note.h"
#include "services/engine_proxy/door/ids.h"

namespace lorry::door {

// Replaces the model's name in one JSON reply or in each event of a stream: the value of `model` in
// the outermost object, and in its `response` (the events of /v1/responses) and `message` (those of
// /v1/messages). Reads only as far into each document as that, which is its first 200 bytes: both
// engines write `model` before what they generated.
class ModelRestorer {
 public:
  // `model` is JSON text.
  explicit ModelRestorer(std::string model) : model_(std::move(model)) {}
  void Feed(std::string_view piece, std::string* out);

 private:
  enum class State {
    kLine,    // between documents; what is no JSON is passed on to the end of its line
    kJson,    // in a document, between its strings
    kKey,     // in a key that may matter
    kString,  // in any other string
    kName,    // in the name that is being replaced
    kRest,    // of a line or of a document whose name was found
  };
  // Each handles what begins at text[at], and gives the first byte that is left to look at.
  size_t InLine(std::string_view text, size_t at);
  size_t InJson(std::string_view text, size_t at, std::string* out, size_t* copied);
  size_t InString(std::string_view text, size_t at);
  void Open(char bracket);
  void Close();
  void EndString();
  bool AtKeys() const { return depth_ == 1 || (depth_ == 2 && in_parent_); }

  std::string model_;
  State state_ = State::kLine;
  std::string key_;
  int depth_ = 0;
  bool is_stream_ = false;    // of events, a line each; otherwise there is one document
  bool in_parent_ = false;    // the second level is that of `response` or `message`
  bool expects_key_ = false;  // the next string is a key that may matter
  bool escaped_ = false;      // the next byte of the string stands for itself
};

// Behind each other: the client's names, and the note of what made the reply.
class ReplyRestorer {
 public:
  std::optional<IdRestorer> ids;
  std::optional<ModelRestorer> model;
  std::optional<BodyNote> note;
  void Feed(std::string_view piece, bool end, std::string* out);
};

}  // namespace lorry::door
