// Requests that may be resumed, and an engine whose parts a test writes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/flip_fixture.h"

namespace lorry::door::testing {

inline std::string Generation(bool stream, const std::string& more = "") {
  return Post("/generate",
              R"({"lora_path":"policy","input_ids":[1,2],"sampling_params":{"max_new_tokens":5)" +
                  more + R"(},"rid":"mine","stream":)" + (stream ? "true}" : "false}"));
}

inline std::string Said(const std::string& rid, const std::string& ids, int tokens,
                        const std::string& finish) {
  return R"({"text":"t","output_ids":[)" + ids + R"(],"meta_info":{"id":")" + rid +
         R"(","finish_reason":)" + finish +
         R"(,"weight_version":"default","prompt_tokens":2,"completion_tokens":)" +
         std::to_string(tokens) + "}}";
}
inline const char* const kAborted = R"({"type":"abort","message":"Aborted"})";
inline const char* const kLength = R"({"type":"length","length":5})";

inline std::string Event(const std::string& json) { return "data: " + json + "\n\n"; }

class ResumeTest : public FlipTest {
 protected:
  ResumeTest() : FlipTest(fleet::InFlightMode::kResumeOnNew) {}
  // `parts[i]` answers the i-th part; an abort opens the gate that it waits for.
  using Part = std::function<std::string(const std::string& rid)>;
  void Start(std::vector<Part> parts) {
    const auto script = [this, parts](const Message& request, Wire& wire) {
      if (request.path() == "/update_weight_version") {
        return wire.Send(JsonReply("{}", control_status_));
      }
      if (request.path() == "/abort_request") {
        wire.Send(JsonReply("", control_status_));
        const std::lock_guard<std::mutex> lock(mutex_);
        aborted_ids_.push_back(After(request.body, "\"rid\":\""));
        if (!aborted_.empty()) aborted_.back()->Open();
        return true;
      }
      size_t i = 0;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        i = asked_.size();
        asked_.push_back(request.body);
        aborted_.push_back(std::make_unique<Gate>());
        wire_ = &wire;
      }
      if (i >= parts.size()) return false;
      return wire.Send(parts[i](After(request.body, "\"rid\":\"")));
    };
    StartOn(script, {.cumulative_streams = true, .aborts_waiting = true});
  }
  // On which nobody stands for the moment.
  proxy::DoorTable HeldRow() const {
    proxy::DoorTable held = On(11);
    held.rows[0].mode = fleet::RowMode::kHeld;
    held.rows[0].target = EngineName();
    return held;
  }
  void WaitForAbort() {
    Gate* gate = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      gate = aborted_.back().get();
    }
    EXPECT_TRUE(gate->Wait());
  }
  // Flips the row to `version`, and waits until the door has asked for the abort.
  void Flip(uint64_t version) {
    door_->SetTable(On(version));
    WaitForAbort();
  }
  Part FlipThen(uint64_t version, std::function<std::string(const std::string&)> answer) {
    return [this, version, answer](const std::string& rid) {
      Flip(version);
      return answer(rid);
    };
  }
  int control_status_ = 200;  // of what is no generation
  std::mutex mutex_;
  std::vector<std::string> asked_;
  std::vector<std::unique_ptr<Gate>> aborted_;
  std::vector<std::string> aborted_ids_;
  Wire* wire_ = nullptr;  // of the part at work
};

}  // namespace lorry::door::testing
