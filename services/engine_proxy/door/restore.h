// Gives a reply back the names that its client used: byte for byte otherwise, as it passes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "services/engine_proxy/door/body_note.h"
#include "services/engine_proxy/door/ids.h"

namespace lorry::door {

// Replaces the value of one field in one JSON reply or in each event of a stream, where it is a
// string. Reads only as far into each document as that, where there is one of the field: both engines
// write what is replaced before most of what they generated.
class FieldRestorer {
 public:
  void Feed(std::string_view piece, std::string* out);

 protected:
  struct Place {
    std::string_view field;
    std::string_view parents[2];  // objects in the outermost one that have the field
    bool is_outermost = false;    // it stands in the outermost object, too
    bool in_lists = false;        // and in each object of a list
    std::string_view id;          // a field beside it, before it, by which the value is chosen
  };
  explicit FieldRestorer(const Place& place) : place_(place) {}  // outlives this
  ~FieldRestorer() = default;

 private:
  enum class State {
    kLine,    // between documents; what is no JSON is passed on to the end of its line
    kJson,    // in a document, between its strings
    kKey,     // in a key that may matter
    kId,      // in the string that chooses the value
    kString,  // in any other string
    kValue,   // in the one that is being replaced
    kRest,    // of a line or of a document whose field was found
  };
  // JSON text; none: it stays.
  virtual std::string_view ValueFor(std::string_view id) const = 0;

  // Each handles what begins at text[at], and gives the first byte that is left to look at.
  size_t InLine(std::string_view text, size_t at);
  size_t InJson(std::string_view text, size_t at, std::string* out, size_t* copied);
  size_t InString(std::string_view text, size_t at);
  void BeginDocument(char bracket);
  State StringBegins(std::string_view before, std::string* out);
  void Open(char bracket);
  void Close();
  void EndString();
  bool AtKeys() const { return depth_ == outermost_ || (depth_ == outermost_ + 1 && in_parent_); }
  bool AtField() const { return in_parent_ || (place_.is_outermost && depth_ == outermost_); }

  const Place& place_;
  State state_ = State::kLine;
  std::string key_;
  std::string id_;
  int depth_ = 0;
  int outermost_ = 1;         // the depth of the outermost object, or of those in a list
  bool is_stream_ = false;    // of events, a line each; otherwise there is one document
  bool in_parent_ = false;    // the level below is that of a parent
  bool expects_key_ = false;  // the next string is a key that may matter
  bool escaped_ = false;      // the next byte of the string stands for itself
};

// The model's name: the value of `model` in the outermost object, and in its `response` (the events
// of /v1/responses) and `message` (those of /v1/messages), within the first 200 bytes.
class ModelRestorer final : public FieldRestorer {
 public:
  // `model` is JSON text.
  explicit ModelRestorer(std::string model) : FieldRestorer(kPlace), model_(std::move(model)) {}

 private:
  static constexpr Place kPlace = {
      .field = "model", .parents = {"response", "message"}, .is_outermost = true};
  std::string_view ValueFor(std::string_view) const override { return model_; }

  std::string model_;
};

// SGLang's label for what the whole server serves, `weight_version` in the `meta_info` of replies of
// /generate: it becomes what made this sequence. Its sequence is found by the engine's id.
class WeightVersions final : public FieldRestorer {
 public:
  // One value, or one for each prompt; JSON text, empty: as the engine says.
  WeightVersions(std::vector<std::string> values, IdSeries engine)
      : FieldRestorer(kPlace), values_(std::move(values)), engine_(std::move(engine)) {}

 private:
  static constexpr Place kPlace = {
      .field = "weight_version", .parents = {"meta_info"}, .in_lists = true, .id = "id"};
  std::string_view ValueFor(std::string_view id) const override;

  std::vector<std::string> values_;
  IdSeries engine_;
};

// Behind each other: the client's names, and the note of what made the reply.
class ReplyRestorer {
 public:
  std::unique_ptr<WeightVersions> versions;  // few replies have it
  std::optional<IdRestorer> ids;
  std::optional<ModelRestorer> model;
  std::optional<BodyNote> note;
  void Feed(std::string_view piece, bool end, std::string* out);
};

}  // namespace lorry::door
