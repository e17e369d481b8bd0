// testdata/torch_pickles.json: what torch writes, and what must be refused.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/escaping.h"
#include "services/engine_proxy/bindings/torch_pickle.h"

namespace lorry::proxy {

inline const nlohmann::json& TorchPickles() {
  static const auto* read =
      new nlohmann::json(nlohmann::json::parse(std::ifstream(LORRY_TORCH_PICKLES)));
  return *read;
}

inline std::string Decoded(const nlohmann::json& base64) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(base64.get<std::string>(), &bytes));
  return bytes;
}

inline const nlohmann::json& Accepted(const std::string& name) {
  for (const nlohmann::json& row : TorchPickles()["accepted"]) {
    if (row["name"] == name) return row;
  }
  ADD_FAILURE() << "no pickle " << name;
  return TorchPickles()["accepted"][0];
}

inline TensorLayout LayoutOf(const nlohmann::json& row) {
  return row["bucket"].get<bool>() ? TensorLayout::kFlatBucket : TensorLayout::kDict;
}

}  // namespace lorry::proxy
