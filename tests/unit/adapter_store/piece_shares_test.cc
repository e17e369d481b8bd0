#include "services/adapter_store/images/piece_shares.h"

#include "lib/transfer/transport_set.h"
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kMax = 1200;
constexpr size_t kFree = PieceShares::kFree;

// How many pieces it may have beside those that are free.
size_t Fill(PieceShares::Share& share) {
  size_t pieces = 0;
  while (share.Resize(kFree + pieces + 1).ok()) ++pieces;
  return pieces;
}

TEST(PieceShares, APublisherLeavesAsManyAsItTakes) {
  const auto shares = PieceShares::Create(kMax);
  const auto first = shares->Open("mallory");
  EXPECT_EQ(Fill(*first), kMax / 2);
  EXPECT_EQ(Fill(*shares->Open("mallory")), 0u) << "by another upload as little";
  const auto second = shares->Open("trudy");
  EXPECT_EQ(Fill(*second), kMax / 4);
  EXPECT_EQ(Fill(*shares->Open("alice")), kMax / 8);
}

TEST(PieceShares, WhoSendsInOrderIsNeverRefused) {
  const auto shares = PieceShares::Create(0);
  EXPECT_EQ(Fill(*shares->Open("alice")), 0u);
  EXPECT_THAT(shares->Open("alice")->Resize(kFree), IsOk());
}

TEST(PieceShares, WhatClosesOrEndsMakesRoom) {
  const auto shares = PieceShares::Create(kMax);
  auto first = shares->Open("alice"), second = shares->Open("alice");
  Fill(*first);
  ASSERT_THAT(first->Resize(kFree + 100), IsOk());
  EXPECT_EQ(Fill(*second), kMax / 2 - 100);
  first.reset();
  EXPECT_EQ(Fill(*second), kMax / 2);
}

TEST(PieceShares, ARefusalNamesThePublisher) {
  const auto shares = PieceShares::Create(kMax);
  const auto named = shares->Open("alice"), nameless = shares->Open("");
  const absl::Status refused = named->Resize(kMax + kFree);
  EXPECT_TRUE(transfer::IsFull(refused)) << "others may make room, so that clients try again";
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uploads of alice"));
  EXPECT_THAT(std::string(nameless->Resize(kMax + kFree).message()), Not(HasSubstr(" of ")));
}

}  // namespace
}  // namespace lorry::store
