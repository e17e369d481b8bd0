#include "lib/blob/failing_store.h"

#include <utility>

#include "lib/base/error.h"

namespace lorry::blob {
namespace {

class FailingStaging final : public Staging {
 public:
  FailingStaging(std::unique_ptr<Staging> inner, FailurePlan& plan, std::string_view key)
      : inner_(std::move(inner)), plan_(plan), key_(key) {}
  std::span<std::byte> bytes() override { return inner_->bytes(); }
  absl::Status Sync() override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kSync, key_));
    return inner_->Sync();
  }
  absl::Status Seal() override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kSeal, key_));
    return inner_->Seal();
  }

 private:
  const std::unique_ptr<Staging> inner_;
  FailurePlan& plan_;
  const std::string key_;
};

class FailingMapping final : public Mapping {
 public:
  FailingMapping(std::shared_ptr<const Mapping> inner, FailurePlan& plan, std::string_view key)
      : inner_(std::move(inner)), plan_(plan), key_(key) {}
  std::span<const std::byte> bytes() const override { return inner_->bytes(); }
  absl::Status Load(uint64_t offset, uint64_t length) const override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kLoad, key_));
    return inner_->Load(offset, length);
  }

 private:
  const std::shared_ptr<const Mapping> inner_;
  FailurePlan& plan_;
  const std::string key_;
};

class FailingStore final : public Store {
 public:
  FailingStore(Store& inner, FailurePlan& plan) : inner_(inner), plan_(plan) {}

  absl::StatusOr<std::unique_ptr<Staging>> Create(std::string_view key, uint64_t bytes) override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kCreate, key));
    LORRY_ASSIGN_OR_RETURN(std::unique_ptr<Staging> staging, inner_.Create(key, bytes));
    return std::make_unique<FailingStaging>(std::move(staging), plan_, key);
  }
  absl::StatusOr<std::unique_ptr<Staging>> Resume(std::string_view key) override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kResume, key));
    LORRY_ASSIGN_OR_RETURN(std::unique_ptr<Staging> staging, inner_.Resume(key));
    return std::make_unique<FailingStaging>(std::move(staging), plan_, key);
  }
  absl::StatusOr<std::shared_ptr<const Mapping>> Open(std::string_view key) override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kOpen, key));
    LORRY_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, inner_.Open(key));
    return std::make_shared<FailingMapping>(std::move(mapping), plan_, key);
  }
  absl::Status Delete(std::string_view key) override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kDelete, key));
    return inner_.Delete(key);
  }
  absl::StatusOr<std::vector<BlobInfo>> List() override {
    LORRY_RETURN_IF_ERROR(plan_.Before(BlobOp::kList, ""));
    return inner_.List();
  }

 private:
  Store& inner_;
  FailurePlan& plan_;
};

}  // namespace

std::unique_ptr<Store> MakeFailingStore(Store& inner, FailurePlan& plan) {
  return std::make_unique<FailingStore>(inner, plan);
}

}  // namespace lorry::blob
