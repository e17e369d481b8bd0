#include "services/engine_proxy/binding_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "lib/base/error.h"

ABSL_FLAG(std::vector<std::string>, bindings_root, {},
          "directories, separated by commas, beneath which frameworks may name an adapter's to "
          "/load_lora_adapter; none: such calls are refused");
ABSL_FLAG(
    uint64_t, bindings_max_bytes, uint64_t{16} << 30,
    "largest adapter_model.safetensors, or tensors in the call itself, that such a call may load");

namespace lorry::proxy {

absl::StatusOr<std::unique_ptr<BindingReader>> MakeBindingReader(bool one_node, ImageShelf& shelf,
                                                                 BindingReader::TakeBody take_body,
                                                                 EventSink sink) {
  LORRY_ASSIGN_OR_RETURN(BindingRoots roots,
                         BindingRoots::Open(absl::GetFlag(FLAGS_bindings_root)));
  return std::make_unique<BindingReader>(std::move(roots), absl::GetFlag(FLAGS_bindings_max_bytes),
                                         one_node, shelf, std::move(take_body), std::move(sink));
}

}  // namespace lorry::proxy
