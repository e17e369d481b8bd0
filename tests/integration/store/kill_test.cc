// The store is killed at every fault point, and at any moment, and started again: what it has
// acknowledged is whole, and nothing else can be seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "lib/base/prng.h"
#include "tests/integration/store/store_client.h"
#include "tests/integration/store/store_process.h"
#include "tests/testing/temp_dir.h"

namespace lorry::store {
namespace {

using ::testing::HasSubstr;

VersionKey Key(uint64_t run, uint64_t number) {
  return {.adapter = AdapterName("policy"), .run = RunId(run), .number = VersionNumber(number)};
}
// What version (run, number) holds: no two hold the same.
TestAdapter Content(const VersionKey& key) {
  return MakeAdapter(key.run.value * 1000 + key.number.value, /*width=*/8192);  // 1.5 MB
}

class KillTest : public ::testing::Test {
 protected:
  std::string log() const { return root_ / "stderr"; }
  std::string Fresh() { return root_ / ("data" + std::to_string(++directories_)); }
  void Forget() {
    acknowledged_.clear();
    deleted_.clear();
    alias_acknowledged_ = false;
    next_step_ = 0;
  }

  // Steps of a life of a store, each of which may be done again. Stops at the first that fails;
  // true when all are done.
  bool GoOn(StoreClient& client) {
    const std::vector<std::function<absl::Status()>> steps = {
        [&] { return client.OpenRun("policy", "first").status(); },
        [&] { return client.Begin(Key(1, 1), Content(Key(1, 1)), /*attempt=*/1).status(); },
        [&] { return Publish(client, Key(1, 1), /*attempt=*/2); },  // the first is garbage now
        [&] { return Publish(client, Key(1, 2)); },
        [&] { return SetAlias(client, Key(1, 1)); },
        [&] { return Delete(client, Key(1, 2)); },
        [&] { return Publish(client, Key(1, 3)); },
        [&] { return client.OpenRun("policy", "second", Key(1, 1)).status(); },
        [&] { return Publish(client, Key(2, 2)); },
    };
    while (next_step_ < steps.size()) {
      if (const absl::Status done = steps[next_step_](); !done.ok()) {
        // The process died under the call, or before it. Anything else is a defect.
        EXPECT_TRUE(absl::IsUnavailable(done) || absl::IsCancelled(done)) << done;
        return false;
      }
      ++next_step_;
    }
    return true;
  }
  absl::Status Publish(StoreClient& client, const VersionKey& key, uint64_t attempt = 1) {
    LORRY_RETURN_IF_ERROR(client.Publish(key, Content(key), attempt).status());
    acknowledged_.insert(key);
    return absl::OkStatus();
  }
  absl::Status Delete(StoreClient& client, const VersionKey& key) {
    deleted_.insert(key);  // from here on it may be gone
    return client.Delete(key);
  }
  absl::Status SetAlias(StoreClient& client, const VersionKey& key) {
    LORRY_RETURN_IF_ERROR(client.SetAlias(key, "eval"));
    alias_acknowledged_ = true;
    return absl::OkStatus();
  }

  void ExpectWhole(StoreClient& client) {
    std::set<VersionKey> listed;
    const auto versions = client.List("policy");
    if (!versions.ok()) {
      EXPECT_EQ(ReasonOf(versions.status()), "UNKNOWN_ADAPTER") << versions.status();
      EXPECT_TRUE(acknowledged_.empty());
      return;
    }
    for (const common::v1::Version& version : *versions) {
      const VersionKey key = Key(version.ref().run(), version.ref().number());
      listed.insert(key);
      const auto image = client.Fetch(key);
      ASSERT_TRUE(image.ok()) << ToString(key) << ": " << image.status();
      EXPECT_EQ(*image, Content(key).image) << ToString(key);
      EXPECT_EQ(DigestOf(std::as_bytes(std::span(*image)), version.config_json()).value,
                version.digest());
    }
    for (const VersionKey& key : acknowledged_) {
      EXPECT_TRUE(listed.contains(key) || deleted_.contains(key)) << ToString(key) << " is lost";
    }
    if (!alias_acknowledged_) return;
    v1::GetAdapterRequest request;
    request.set_name("policy");
    const auto adapter = client.Call(&v1::StoreService::Stub::GetAdapter, request);
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    ASSERT_EQ(adapter->aliases_size(), 1);
    EXPECT_EQ(adapter->aliases(0).version().number(), 1u);
  }

  // One life that ends at `fault` (or does not meet it), the next one that goes on to the end.
  // Returns whether the fault was met.
  bool LiveTwice(const std::string& fault) {
    SCOPED_TRACE("LORRY_FAULT=" + fault);
    Forget();
    const std::string data = Fresh();
    bool met = false;
    {
      StoreProcess store(data, fault, log());
      if (store.ready()) {
        StoreClient client(store.grpc(), *transport_);
        met = !GoOn(client);
      } else {
        met = true;
      }
      if (met) {
        EXPECT_EQ(WTERMSIG(store.Wait()), SIGKILL);
      }
    }
    StoreProcess store(data, "", log());
    EXPECT_TRUE(store.ready());
    StoreClient client(store.grpc(), *transport_);
    ExpectWhole(client);
    EXPECT_TRUE(GoOn(client));
    ExpectWhole(client);
    std::filesystem::remove_all(data);
    return met;
  }

  std::set<std::string> FaultPoints() {
    const std::string data = Fresh();
    {
      StoreProcess store(data, "?", log());
      StoreClient client(store.grpc(), *transport_);
      EXPECT_TRUE(GoOn(client));
      store.Kill(SIGTERM);
      EXPECT_EQ(store.Wait(), 0);
    }
    std::set<std::string> points;
    std::ifstream lines(log());
    const std::string mark = "fault point: ";
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(mark + "store.", 0) == 0) points.insert(line.substr(mark.size()));
    }
    return points;
  }

  TempDir root_;
  int directories_ = 0;
  std::unique_ptr<transfer::Transport> transport_ = transfer::CreateGrpcTransport();
  size_t next_step_ = 0;
  std::set<VersionKey> acknowledged_, deleted_;
  bool alias_acknowledged_ = false;
};

TEST_F(KillTest, AtEveryFaultPoint) {
  const std::set<std::string> points = FaultPoints();
  EXPECT_THAT(points, ::testing::IsSupersetOf(
                          {"store.begin.recorded", "store.begin.allocated", "store.begin.opened",
                           "store.commit.checked", "store.commit.sealed",
                           "store.commit.leaves_kept", "store.commit.published",
                           "store.catalog.before_commit", "store.catalog.after_commit"}));
  int deaths = 0;
  for (const std::string& point : points) {
    // Until a life does not pass the point so often any more.
    for (int pass = 1; LiveTwice(point + ":" + std::to_string(pass)); ++pass) {
      ++deaths;
      ASSERT_LT(pass, 100);
    }
  }
  std::printf("killed at %d passes of %zu fault points\n", deaths, points.size());
  EXPECT_GT(deaths, 40);
}

TEST_F(KillTest, AtAnyMoment) {
  int lives = 25;
  if (const char* text = std::getenv("LORRY_KILL_LIVES")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &lives));
  }
  const uint64_t seed = std::chrono::steady_clock::now().time_since_epoch().count();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string data = Fresh();
  uint64_t number = 0;
  uint64_t attempt = 0;
  for (int life = 0; life < lives; ++life) {
    StoreProcess store(data, "", log());
    ASSERT_TRUE(store.ready());
    StoreClient client(store.grpc(), *transport_);
    ExpectWhole(client);
    // The moment is what is tested; nothing waits for it.
    const auto moment = std::chrono::microseconds(prng.Below(300'000));
    std::thread killer([&] {
      std::this_thread::sleep_for(moment);  // tidy: allow sleep: a random moment, not a wait
      store.Kill(SIGKILL);
    });
    if (client.OpenRun("policy", "only").ok()) {
      // The version that was under way goes on first, by the same or by a new attempt.
      if (prng.Chance(300)) ++attempt;
      while (true) {
        const VersionKey key = Key(1, number + 1);
        if (const auto published = client.Publish(key, Content(key), attempt); !published.ok()) {
          EXPECT_TRUE(absl::IsUnavailable(published.status()) ||
                      absl::IsCancelled(published.status()))
              << published.status();
          break;
        }
        acknowledged_.insert(key);
        ++number;
      }
    }
    killer.join();
    EXPECT_EQ(WTERMSIG(store.Wait()), SIGKILL);
  }
  StoreProcess store(data, "", log());
  StoreClient client(store.grpc(), *transport_);
  ExpectWhole(client);
  EXPECT_EQ(acknowledged_.size(), number);
  std::printf("%d lives, %lu versions acknowledged, all whole\n", lives,
              static_cast<unsigned long>(number));
}

// After a write that failed nobody knows what the database holds, so that it refuses all others: the
// store ends by itself, and the next one reads it again.
TEST_F(KillTest, AWriteThatFailedEndsTheStore) {
  const std::string data = Fresh();
  {
    StoreProcess store(data, "", log());
    StoreClient client(store.grpc(), *transport_);
    ASSERT_TRUE(client.OpenRun("policy", "first").ok());
    ASSERT_TRUE(Publish(client, Key(1, 1)).ok());
    store.LimitFiles(std::filesystem::file_size(data + "/catalog.db-wal"));
    const int status = store.Wait();
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 1);
  }
  std::ifstream said(log());
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(said), {}), HasSubstr("STORE_FAILED"));
  StoreProcess store(data, "", log());
  StoreClient client(store.grpc(), *transport_);
  ExpectWhole(client);
  EXPECT_TRUE(Publish(client, Key(1, 2)).ok());
}

}  // namespace
}  // namespace lorry::store
