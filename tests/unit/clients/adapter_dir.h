// PEFT directories for tests: tensors by name, filled with recognisable bytes. Each in a fresh
// folder that goes with the object.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/temp_dir.h"

namespace lorry::client {

class AdapterDir {
 public:
  // A float32 tensor of rows × columns; element i has the value first + i.
  AdapterDir& With(const std::string& name, uint64_t rows, uint64_t columns, float first = 0);
  // adapter_config.json; the default names r 2 and q_proj.
  AdapterDir& Config(const std::string& json);
  AdapterDir& File(const std::string& name, const std::string& text);
  // Writes adapter_model.safetensors and adapter_config.json.
  const std::string& Write();
  const std::string& path() const { return dir_.path(); }

 private:
  struct Tensor {
    std::string name;
    uint64_t rows, columns;
    float first;
  };
  TempDir dir_;
  std::vector<Tensor> tensors_;
  std::string config_ =
      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})";
};

}  // namespace lorry::client
