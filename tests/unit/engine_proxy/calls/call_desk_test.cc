// Which ticket gets which answer, and what becomes of those whose clients leave.
#include "services/engine_proxy/calls/call_desk.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/error.h"

namespace lorry::calls {
namespace {

using door::CallSlot;
using proxy::Outcome;

class CallDeskTest : public ::testing::Test {
 protected:
  // A client that waits for its answer.
  std::shared_ptr<CallSlot> Ask(std::string path, std::string body = "",
                                fleet::EngineKind engine = fleet::EngineKind::kSglang) {
    auto slot = std::make_shared<CallSlot>([this] { ++woken_; });
    desk_.Take({.engine = engine, .path = std::move(path), .body = std::move(body)},
               door::CallTicket(slot));
    return slot;
  }
  static std::string ReasonOf(CallSlot& slot) {
    const auto answer = slot.Take();
    if (!answer.has_value()) return "none";
    const auto* refused = std::get_if<door::Refused>(&*answer);
    return refused == nullptr ? "ok" : refused->reason;
  }
  uint64_t TicketOf(size_t event) { return std::get<proxy::CallMade>(posted_.at(event)).ticket; }

  absl::Status accepts_;
  std::vector<proxy::Event> posted_;
  int woken_ = 0;
  CallDesk desk_{{.try_post =
                      [this](proxy::Event event) {
                        if (accepts_.ok()) posted_.push_back(std::move(event));
                        return accepts_;
                      },
                  .post = [this](proxy::Event event) { posted_.push_back(std::move(event)); }}};
};

TEST_F(CallDeskTest, EachIsAnsweredByItsOwnNumber) {
  const auto pause = Ask("/pause_generation", "{}");
  const auto resume = Ask("/continue_generation");
  ASSERT_EQ(posted_.size(), 2u);
  EXPECT_NE(TicketOf(0), TicketOf(1));
  desk_.Answer({TicketOf(1), Outcome::kOk});
  EXPECT_EQ(ReasonOf(*resume), "ok");
  EXPECT_FALSE(pause->HasAnswer());
  desk_.Answer({TicketOf(0), Outcome::kRefused, "PAUSE_CONFLICT", "why"});
  EXPECT_EQ(ReasonOf(*pause), "PAUSE_CONFLICT");
  EXPECT_EQ(woken_, 2);
  desk_.Answer({TicketOf(0), Outcome::kOk});
  desk_.Answer({99, Outcome::kOk});
  EXPECT_EQ(woken_, 2);
}

TEST_F(CallDeskTest, WhatCannotBeReadTheMachineNeverHears) {
  EXPECT_EQ(ReasonOf(*Ask("/pause_generation", "[")), "REQUEST_INVALID");
  EXPECT_EQ(ReasonOf(*Ask("/nobodys")), "ROUTE_REFUSED");
  EXPECT_TRUE(posted_.empty());
}

TEST_F(CallDeskTest, WhatIsKnownHereTheMachineNeedNotHear) {
  EXPECT_EQ(ReasonOf(*Ask("/art/capabilities", "", fleet::EngineKind::kVllm)), "ok");
  EXPECT_TRUE(posted_.empty());
}

TEST_F(CallDeskTest, OneThatTheMachineCannotTakeIsRefused) {
  accepts_ = Error(absl::StatusCode::kResourceExhausted, "MAILBOX_FULL", "full");
  EXPECT_EQ(ReasonOf(*Ask("/continue_generation")), "DOOR_FULL");
}

TEST_F(CallDeskTest, TheMachineHearsThatNobodyWaits) {
  const auto pause = Ask("/pause_generation", "{}");
  pause->Leave();
  ASSERT_EQ(posted_.size(), 2u);
  EXPECT_EQ(std::get<proxy::CallLeft>(posted_[1]).ticket, TicketOf(0));
  desk_.Answer({TicketOf(0), Outcome::kOk});
  EXPECT_EQ(woken_, 0);
}

TEST_F(CallDeskTest, NotOfOneThatWasAnswered) {
  const auto pause = Ask("/pause_generation", "{}");
  desk_.Answer({TicketOf(0), Outcome::kOk});
  pause->Leave();
  EXPECT_EQ(posted_.size(), 1u);
}

TEST_F(CallDeskTest, WhatThePassedOnesEngineAnsweredIsTheirAnswer) {
  const auto release = Ask("/release_memory_occupation", R"({"tags":["weights"]})");
  ASSERT_EQ(posted_.size(), 1u);
  const auto text = desk_.TextOf(TicketOf(0));
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(text->method, "POST");
  EXPECT_EQ(text->path, "/release_memory_occupation");
  EXPECT_EQ(text->body, R"({"tags":["weights"]})");
  desk_.ReplyTo(TicketOf(0))({418, "tea"});
  EXPECT_FALSE(release->HasAnswer()) << "not before the machine has written it down";
  desk_.Answer({TicketOf(0), Outcome::kFailed, "ENGINE_REFUSED", ""});
  const auto answer = release->Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(std::get<door::CallReply>(*answer).status, 418);
  EXPECT_EQ(std::get<door::CallReply>(*answer).body, "tea");
}

TEST_F(CallDeskTest, WhatAnAdapterIsReadOutOfIsThereOnce) {
  const std::string body = R"({"lora_name":"a","serialized_tensors":"gAR9Lg=="})";
  const auto load = Ask("/load_lora_adapter_from_tensors", body);
  ASSERT_EQ(posted_.size(), 1u);
  const auto ticket = std::get<proxy::BindAsked>(posted_[0]).ticket;
  EXPECT_EQ(desk_.BodyOf(ticket), body);
  EXPECT_EQ(desk_.BodyOf(ticket), "");
  load->Leave();
  EXPECT_EQ(desk_.BodyOf(ticket), std::nullopt);
}

TEST_F(CallDeskTest, OneThatTheEngineDidNotAnswerIsRefused) {
  const auto weights = Ask("/update_weights_from_disk", "{}");
  desk_.Answer({TicketOf(0), Outcome::kBroken, "ENGINE_CONNECTION_BROKEN", ""});
  EXPECT_EQ(ReasonOf(*weights), "ENGINE_CONNECTION_BROKEN");
}

TEST_F(CallDeskTest, NothingIsPassedForWhoeverHasLeft) {
  const auto weights = Ask("/update_weights_from_disk", "{}");
  const auto reply = desk_.ReplyTo(TicketOf(0));
  weights->Leave();
  EXPECT_FALSE(desk_.TextOf(TicketOf(0)).has_value());
  reply({200, ""});
  EXPECT_EQ(posted_.size(), 2u);
}

TEST_F(CallDeskTest, TheMethodAndTheQueryGoWithIt) {
  auto slot = std::make_shared<CallSlot>([] {});
  desk_.Take(
      {.engine = fleet::EngineKind::kVllm, .method = "GET", .path = "/sleep", .query = "?level=2"},
      door::CallTicket(slot));
  const auto text = desk_.TextOf(TicketOf(0));
  EXPECT_EQ(text->method, "GET");
  EXPECT_EQ(text->path, "/sleep?level=2");
}

}  // namespace
}  // namespace lorry::calls
