// Sentences over a catalogue in memory: Published(7), Begun(8).attempt(2), IsError("RUN_FENCED").
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/kv/memory_store.h"
#include "services/adapter_store/catalog/catalog.h"

namespace lorry::store {

MATCHER_P(IsError, reason, absl::StrCat("fails with ", reason)) {
  const absl::Status status = [&] {
    if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, absl::Status>) {
      return arg;
    } else {
      return arg.status();
    }
  }();
  *result_listener << status.ToString();
  return !status.ok() && ReasonOf(status) == reason;
}
MATCHER(IsOk, "is OK") {
  if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, absl::Status>) {
    *result_listener << arg.ToString();
  } else {
    *result_listener << arg.status().ToString();
  }
  return arg.ok();
}

class CatalogTest : public ::testing::Test, public Observer {
 protected:
  CatalogTest() { Restart(); }

  void OnChanged(uint64_t revision) override { announced_ = revision; }
  void OnUploadEnded(const Upload& upload) override { ended_.push_back(upload.id); }
  void OnEvicted(int versions) override { evicted_ += versions; }

  // The process ends; what was durable is read again.
  void Restart() {
    options_.now_unix_ms = [this] { return now_ms_; };
    auto opened = Catalog::Open(*kv_, options_);
    ASSERT_THAT(opened, IsOk());
    catalog_ = *std::move(opened);
    catalog_->SetObserver(this);
  }

  VersionKey Key(uint64_t number, uint64_t run = 0, std::string adapter = "policy") {
    return {.adapter = AdapterName(adapter),
            .run = RunId(run == 0 ? run_ : run),
            .number = VersionNumber(number)};
  }
  RunId OpenRun(std::optional<VersionKey> resume_from = std::nullopt,
                const std::string& adapter = "policy") {
    const auto run = catalog_->OpenRun({.adapter = AdapterName(adapter),
                                        .resume_from = resume_from,
                                        .expected_run = std::nullopt,
                                        .request_id = ""});
    EXPECT_THAT(run, IsOk());
    run_ = run->number.value;
    return run->number;
  }

  BeginUploadArgs Args(uint64_t number, uint64_t attempt = 1) {
    return {.key = Key(number),
            .attempt = attempt,
            .image_bytes = 1000,
            .header_bytes = 100,
            .header_sha256 = "header",
            .config_json = "{}",
            .canonical_config = "{}",
            .expected_digest = {}};
  }
  absl::StatusOr<BegunUpload> Begin(uint64_t number, uint64_t attempt = 1) {
    return catalog_->BeginUpload(Args(number, attempt));
  }
  static CheckedImage Image(const std::string& content) {
    return {.digest = Digest{"sha256-xxh3:" + content}, .canonical_config = "{}", .traits = {}};
  }
  absl::StatusOr<Version> Publish(uint64_t number, const std::string& content = "") {
    const auto begun = Begin(number);
    if (!begun.ok()) return begun.status();
    if (begun->stored.has_value()) return *begun->stored;
    return catalog_->StoreVersion(
        begun->upload.id, Image(content.empty() ? absl::StrCat(run_, ".", number) : content));
  }
  std::vector<uint64_t> Stored() {
    const auto page = catalog_->ListVersions(AdapterName("policy"), RunId(), 1000, "");
    std::vector<uint64_t> numbers;
    if (page.ok()) {
      for (const Version& version : page->versions) numbers.push_back(version.key.number.value);
    }
    return numbers;
  }
  absl::StatusOr<Alias> SetAlias(const std::string& name, std::optional<VersionKey> version,
                                 std::optional<uint64_t> expected = std::nullopt) {
    return catalog_->SetAlias(AdapterName("policy"), AliasName(name), version, expected);
  }
  // "stored policy r1.7", "deleted ...", "adapter policy", "alias eval": everything after `from`.
  std::vector<std::string> LogAfter(uint64_t from) {
    std::vector<std::string> log;
    const auto read = catalog_->ReadLog(from, 1000, [&](uint64_t, const std::vector<Change>& all) {
      for (const Change& change : all) {
        switch (change.kind) {
          case Change::Kind::kVersionStored:
            log.push_back("stored " + ToString(change.key));
            break;
          case Change::Kind::kVersionDeleted:
            log.push_back("deleted " + ToString(change.key));
            break;
          case Change::Kind::kAdapterSet:
            log.push_back("adapter " + change.key.adapter.value);
            break;
          case Change::Kind::kAdapterDeleted:
            log.push_back("gone " + change.key.adapter.value);
            break;
          case Change::Kind::kAliasSet:
            log.push_back("alias " + change.alias.value);
            break;
        }
      }
    });
    if (!read.ok()) log.push_back(ReasonOf(read));
    return log;
  }

  int64_t now_ms_ = 1'000'000;
  CatalogOptions options_;
  std::unique_ptr<kv::Store> kv_ = kv::MakeMemoryStore();
  std::unique_ptr<Catalog> catalog_;
  uint64_t run_ = 0;        // the last one opened
  uint64_t announced_ = 0;  // the last revision that the observer was told
  std::vector<UploadId> ended_;
  int evicted_ = 0;
};

}  // namespace lorry::store
