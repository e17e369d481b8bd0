#include "tests/unit/clients/adapter_dir.h"

#include <cstring>
#include <fstream>

#include "lib/base/check.h"
#include "lib/peft/image.h"

namespace lorry::client {

AdapterDir& AdapterDir::With(const std::string& name, uint64_t rows, uint64_t columns,
                             float first) {
  tensors_.push_back({name, rows, columns, first});
  return *this;
}

AdapterDir& AdapterDir::Config(const std::string& json) {
  config_ = json;
  return *this;
}

AdapterDir& AdapterDir::File(const std::string& name, const std::string& text) {
  std::ofstream(dir_ / name, std::ios::binary) << text;
  return *this;
}

const std::string& AdapterDir::Write() {
  std::vector<peft::TensorSpec> specs;
  for (const Tensor& t : tensors_)
    specs.push_back({t.name, peft::Dtype::kF32, {t.rows, t.columns}});
  const auto layout = peft::LayOutImage(specs, peft::Metadata{{"format", "pt"}});
  LORRY_CHECK(layout.ok());
  std::string image = layout->header_bytes;
  image.resize(layout->header.image_bytes);
  for (const peft::Tensor& placed : layout->header.tensors) {
    for (const Tensor& t : tensors_) {
      if (t.name != placed.name) continue;
      for (uint64_t i = 0; i < t.rows * t.columns; ++i) {
        const float value = t.first + static_cast<float>(i);
        std::memcpy(image.data() + placed.begin + i * sizeof(float), &value, sizeof(float));
      }
    }
  }
  File("adapter_model.safetensors", image);
  File("adapter_config.json", config_);
  return path();
}

}  // namespace lorry::client
