// A PEFT directory, `adapter_config.json` beside `adapter_model.safetensors`, as an image and back.
// Blocking file work, any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cpp/adapter_image.h"

namespace lorry::client {

inline constexpr char kConfigFile[] = "adapter_config.json";
inline constexpr char kImageFile[] = "adapter_model.safetensors";

struct ReadOptions {
  // config.json of the base model: fused qkv and gate_up projections are split by it, and shapes
  // are checked. Empty: neither.
  std::string base_model_config = {};
  // Which adapter's tensors, where the file has several ("default" of lora_A.default.weight).
  std::string adapter_in_file = {};
};

// Reads the directory, gives every tensor its canonical name and checks the whole as the store
// will. DIRECTORY_INVALID: it is no such directory; DIRECTORY_CHANGED: somebody wrote to it meanwhile;
// the reasons of lib/peft for what is in it. `before_check` is called when all is read, before it is
// looked whether it has changed (tests).
absl::StatusOr<AdapterImage> ReadPeftDirectory(const std::string& directory,
                                               const ReadOptions& options = {},
                                               const std::function<void()>& before_check = {});

// True where both files are, whether or not this user can read them.
bool IsPeftDirectory(const std::string& directory);

}  // namespace lorry::client
