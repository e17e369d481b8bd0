// Answers check_against_safetensors.py line by line: what lib/peft makes of one image and config.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/error.h"
#include "lib/peft/config.h"
#include "lib/peft/digest.h"
#include "lib/peft/image.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string HexOf(std::string_view bytes) {
  return ToHex(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

absl::StatusOr<json> Answer(const json& question) {
  std::vector<TensorSpec> specs;
  for (const json& tensor : question["tensors"]) {
    specs.push_back({tensor["name"], DtypeFromString(tensor["dtype"].get<std::string>()).value(),
                     tensor["shape"]});
  }
  std::optional<Metadata> metadata;
  if (!question["metadata"].is_null()) {
    metadata.emplace();
    for (const auto& [key, value] : question["metadata"].items()) {
      metadata->emplace_back(key, value);
    }
  }
  LORRY_ASSIGN_OR_RETURN(const ImageLayout layout, LayOutImage(std::move(specs), metadata));
  LORRY_ASSIGN_OR_RETURN(const Config config, ParseConfig(question["config"].get<std::string>()));
  LORRY_ASSIGN_OR_RETURN(const std::string canonical, CanonicalConfig(config));
  const std::string image = FromHex(question["image"]);
  LeafHasher hasher;
  hasher.Add(std::as_bytes(std::span(image.data(), image.size())));
  LORRY_ASSIGN_OR_RETURN(const Digest digest, DigestOf(image.size(), hasher.Finish(), canonical));
  return json{{"header", HexOf(layout.header_bytes)},
              {"canonical", canonical},
              {"digest", digest.value},
              {"error", ""}};
}

}  // namespace
}  // namespace lorry::peft

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = lorry::peft::Answer(nlohmann::json::parse(line));
    std::cout << (answer.ok() ? *answer : nlohmann::json{{"error", answer.status().ToString()}})
              << std::endl;
  }
}
