// A decorator for tests: a blob::Store whose operations fail when told to.
#pragma once

#include <memory>
#include <string>

#include "lib/blob/store.h"

namespace lorry::blob {

enum class BlobOp { kCreate, kResume, kOpen, kLoad, kDelete, kList, kSync, kSeal };

class FailurePlan {
 public:
  virtual ~FailurePlan() = default;
  // OK lets the operation through.
  virtual absl::Status Before(BlobOp op, std::string_view key) = 0;
};

// `inner` and `plan` outlive the store.
std::unique_ptr<Store> MakeFailingStore(Store& inner, FailurePlan& plan);

}  // namespace lorry::blob
