#include "services/engine_proxy/driver/host_cache_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lorry::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CachedImage Unused(const char* name, uint64_t bytes, int64_t since) {
  return {.name = name, .bytes = bytes, .used = false, .idle_since = since};
}
CachedImage Used(const char* name, uint64_t bytes) {
  return {.name = name, .bytes = bytes, .used = true};
}

TEST(HostCachePlanTest, TheLongestUnusedFileThatFitsIsWrittenAnew) {
  const std::vector<CachedImage> images = {Used("used", 1600), Unused("young", 1600, 9),
                                           Unused("old", 1600, 5), Unused("small", 1500, 1),
                                           Unused("huge", 3200, 1)};
  EXPECT_EQ(ImageToRewrite(images, 1590), "old");
  EXPECT_EQ(ImageToRewrite(images, 5000), "");
  EXPECT_EQ(ImageToRewrite({Used("used", 1600)}, 1600), "");
}

TEST(HostCachePlanTest, WhatIsBeyondTheLimitsGoesLongestUnusedFirst) {
  const std::vector<CachedImage> images = {Unused("c", 10, 3), Used("used", 1000),
                                           Unused("a", 10, 1), Unused("b", 10, 2)};
  EXPECT_THAT(ImagesToRemove(images, {.idle_bytes_max = 30, .idle_images_max = 3}), IsEmpty());
  EXPECT_THAT(ImagesToRemove(images, {.idle_bytes_max = 29, .idle_images_max = 3}),
              ElementsAre("a"));
  EXPECT_THAT(ImagesToRemove(images, {.idle_bytes_max = 30, .idle_images_max = 1}),
              ElementsAre("a", "b"));
  EXPECT_THAT(ImagesToRemove(images, {.idle_bytes_max = 0, .idle_images_max = 0}),
              ElementsAre("a", "b", "c"));
}

TEST(HostCachePlanTest, AFetchIsWorthWaitingForAsLongAsItMoves) {
  FetchWatch silent(0);
  EXPECT_TRUE(silent.IsWorthIt(FetchWatch::kSilentMs - 1, 0));
  EXPECT_FALSE(silent.IsWorthIt(FetchWatch::kSilentMs, 0));
  FetchWatch moves(0);
  for (Tick now = 0; now < 3'600'000; now += FetchWatch::kSilentMs - 1)
    ASSERT_TRUE(moves.IsWorthIt(now, /*mark=*/now + 1)) << now;
}

}  // namespace
}  // namespace lorry::proxy
