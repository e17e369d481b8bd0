// One instantiation of a suite for each transport, named by its scheme.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lib/base/error.h"
#include "tests/contract/transfer/world.h"

#define LORRY_FOR_EVERY_TRANSPORT(Suite)                                           \
  INSTANTIATE_TEST_SUITE_P(Every, Suite, testing::Values("memory", "grpc", "ucx"), \
                           [](const auto& info) { return std::string(info.param); })

namespace lorry::transfer {

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
