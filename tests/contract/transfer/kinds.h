// One instantiation of a suite for each transport, named by it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "lib/base/error.h"
#include "tests/contract/transfer/world.h"

#define LORRY_FOR_EVERY_TRANSPORT(Suite)                                               \
  INSTANTIATE_TEST_SUITE_P(Every, Suite, testing::Values("memory", "grpc", "ucx-shm"), \
                           [](const auto& info) { return TestName(info.param); })

namespace lorry::transfer {

// gtest takes no hyphen.
inline std::string TestName(std::string kind) {
  std::replace(kind.begin(), kind.end(), '-', '_');
  return kind;
}

class TransportSuite : public testing::TestWithParam<const char*> {};

MATCHER_P2(EndsWithCode, code, reason, "") {
  *result_listener << "which ended " << arg.status.ToString();
  return arg.status.code() == code && ReasonOf(arg.status) == std::string(reason);
}

MATCHER(EndsWell, "") {
  *result_listener << "which ended " << arg.status.ToString();
  return arg.status.ok();
}

}  // namespace lorry::transfer
