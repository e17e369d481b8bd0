// Streams that are taken apart into events, however the network cuts them.
#include "services/engine_proxy/door/events.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lorry::door {
namespace {

TEST(EventReader, TellsTheSameEventsHoweverTheStreamIsCut) {
  const std::string stream = "data: {\"a\":1}\n\n: ping\n\n\n\ndata: [DONE]\n\nrest\n";
  for (size_t size = 1; size <= stream.size(); ++size) {
    EventReader reader;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size(); at += size) {
      reader.Add(std::string_view(stream).substr(at, size));
      while (const auto event = reader.Next()) events.emplace_back(*event);
    }
    EXPECT_EQ(events, (std::vector<std::string>{"data: {\"a\":1}", ": ping", "", "data: [DONE]"}))
        << size;
    EXPECT_EQ(reader.held_bytes(), 5u);
    EXPECT_EQ(reader.TakeRest(), "rest\n");
    EXPECT_EQ(reader.held_bytes(), 0u);
  }
}

TEST(EventReader, CountsWhatItHasNotTold) {
  EventReader reader;
  reader.Add("a\n\nbcd");
  EXPECT_EQ(reader.held_bytes(), 6u);
  EXPECT_EQ(reader.Next(), "a");
  EXPECT_EQ(reader.held_bytes(), 3u);
  EXPECT_EQ(reader.Next(), std::nullopt);
  EXPECT_EQ(reader.held_bytes(), 3u);
}

TEST(DataOf, IsWhatStandsBehindTheFieldsName) {
  EXPECT_EQ(DataOf("data: {}"), "{}");
  EXPECT_EQ(DataOf("data:[DONE]"), kDoneData);
  EXPECT_EQ(DataOf("data:"), "");
  EXPECT_EQ(DataOf(": data: {}"), std::nullopt);
  EXPECT_EQ(DataOf("event: x\ndata: {}"), std::nullopt);
}

TEST(AppendData, IsReadBackAsItWas) {
  std::string stream;
  AppendData("{}", &stream);
  AppendEvent(": ping", &stream);
  EXPECT_EQ(stream, "data: {}\n\n: ping\n\n");
}

}  // namespace
}  // namespace lorry::door
