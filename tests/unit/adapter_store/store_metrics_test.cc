// What a scrape says of the catalogue, adapter by adapter.
#include "services/adapter_store/store_metrics.h"

#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class StoreMetricsTest : public CatalogTest {
 protected:
  // One version of 1,000 bytes, its number above those before.
  void Store(const std::string& adapter, uint64_t number) {
    if (number == 1) OpenRun(std::nullopt, adapter);
    BeginUploadArgs args = Args(number);
    args.key = Key(number, 0, adapter);
    const auto begun = catalog_->BeginUpload(args);
    ASSERT_THAT(begun, IsOk());
    ASSERT_THAT(catalog_->StoreVersion(begun->upload.id, Image(absl::StrCat(adapter, ".", number))),
                IsOk());
  }
  void Delete(const std::string& adapter) {
    ASSERT_THAT(catalog_->DeleteAdapter(AdapterName(adapter), /*with_versions=*/true), IsOk());
  }
  std::string Scrape() {
    metrics_.Refresh(*catalog_);
    return registry_.Scrape();
  }
  static std::string Said(const std::string& adapter, uint64_t bytes) {
    return absl::StrCat("lorry_store_adapter_bytes{adapter=\"", adapter, "\"} ", bytes, "\n");
  }
  metrics::Registry registry_{{.service = "test", .version = "0"}};
  StoreMetrics metrics_{registry_};
};

TEST_F(StoreMetricsTest, SaysWhatEachAdapterTakes) {
  Store("policy", 1);
  Store("policy", 2);
  Store("critic", 1);
  EXPECT_THAT(Scrape(), AllOf(HasSubstr(Said("policy", 2000)), HasSubstr(Said("critic", 1000))));
  Delete("critic");
  EXPECT_THAT(Scrape(), AllOf(HasSubstr(Said("policy", 2000)), Not(HasSubstr("critic"))));
}

// A disk that keeps the first read would look like a full one, and set off its alert.
TEST_F(StoreMetricsTest, SaysNothingOfWhatItHasNotReadYet) {
  EXPECT_THAT(registry_.Scrape(),
              Not(AnyOf(HasSubstr("lorry_store_disk_free_bytes"), HasSubstr("lorry_store_versions"),
                        HasSubstr("lorry_store_blob_bytes"), HasSubstr("lorry_store_uploads_open"),
                        HasSubstr("lorry_store_last_stored"))));
  metrics_.Refresh(::testing::TempDir());
  EXPECT_THAT(Scrape(),
              AllOf(HasSubstr("lorry_store_disk_free_bytes "), HasSubstr("lorry_store_versions 0"),
                    HasSubstr("lorry_store_blob_bytes 0"), HasSubstr("lorry_store_uploads_open 0"),
                    Not(HasSubstr("lorry_store_last_stored"))));
  metrics_.UploadStored(7);
  EXPECT_THAT(registry_.Scrape(), HasSubstr("lorry_store_last_stored_timestamp_seconds "));
}

// What a series begins with, Prometheus takes for no increase.
TEST_F(StoreMetricsTest, FailedTransfersAreCountedFromNone) {
  const auto said = [](int failed) {
    return absl::StrCat("lorry_transfer_errors_total{reason=\"RANGE_CORRUPT\",transport=\"grpc\"} ",
                        failed);
  };
  metrics_.Refresh("grpc", transfer::TransportStats());
  EXPECT_THAT(registry_.Scrape(), HasSubstr(said(0)));
  metrics_.TransferFailed({.transport = "grpc",
                           .peer = "",
                           .object = "",
                           .why = Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT", "")});
  EXPECT_THAT(registry_.Scrape(), HasSubstr(said(1)));
}

TEST_F(StoreMetricsTest, DeadUploadsAreCountedFromNone) {
  const auto said = [](const char* reason, int dead) {
    return absl::StrCat("lorry_store_uploads_total{reason=\"", reason, "\",result=\"dead\"} ", dead,
                        "\n");
  };
  EXPECT_THAT(registry_.Scrape(),
              AllOf(HasSubstr(said("UPLOAD_DEAD", 0)), HasSubstr(said("TENSOR_NOT_FINITE", 0)),
                    HasSubstr(said("DISK_FULL", 0))));
  metrics_.UploadEnded("dead", "UPLOAD_DEAD");
  EXPECT_THAT(registry_.Scrape(), HasSubstr(said("UPLOAD_DEAD", 1)));
}

TEST_F(StoreMetricsTest, AddsUpThoseBeyondTheCap) {
  for (size_t i = 0; i < metrics::kAdaptersMax; ++i)
    ASSERT_THAT(catalog_->SetAdapter(AdapterName(absl::StrCat("a", i)), {}, std::nullopt), IsOk());
  Store("z1", 1);
  Store("z2", 1);
  Store("z2", 2);
  EXPECT_THAT(Scrape(), AllOf(HasSubstr(Said("a999", 0)), HasSubstr(Said("other", 3000)),
                              Not(HasSubstr("\"z1\""))));
  for (const char* gone : {"a1", "a2", "a3"}) Delete(gone);  // `other` has a place, too
  EXPECT_THAT(Scrape(), AllOf(HasSubstr(Said("z1", 1000)), HasSubstr(Said("z2", 2000)),
                              HasSubstr(Said("other", 0))))
      << "they have room of their own now, and are counted once";
}

}  // namespace
}  // namespace lorry::store
