// A store of one image for tests of who fetches it, in memory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/peft/config.h"
#include "lib/peft/digest.h"
#include "lib/peft/image.h"
#include "lib/transfer/memory/memory_transport.h"
#include "services/engine_proxy/driver/fetcher.h"

namespace lorry::proxy {

inline constexpr char kConfig[] =
    R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj"],"use_rslora":true})";
inline constexpr char kPrefix[] = "base_model.model.model.layers.0.self_attn.q_proj.";

// An image of one module, its digest and its leaves.
struct Stored {
  std::vector<std::byte> bytes;
  std::vector<transfer::Checksum> leaves;
  Digest digest;

  explicit Stored(uint8_t fill) {
    const auto layout =
        peft::LayOutImage({{std::string(kPrefix) + "lora_A.weight", peft::Dtype::kF32, {4, 64}},
                           {std::string(kPrefix) + "lora_B.weight", peft::Dtype::kF32, {64, 4}}},
                          peft::Metadata{{"format", "pt"}});
    bytes.assign(layout->header.image_bytes, std::byte{fill});
    std::memcpy(bytes.data(), layout->header_bytes.data(), layout->header_bytes.size());
    leaves = transfer::LeavesOf(bytes);
    const auto canonical = peft::CanonicalConfig(*peft::ParseConfig(kConfig));
    digest = *peft::DigestOf(bytes.size(), leaves, *canonical);
  }
};

class Store final : public transfer::TransferHandler {
 public:
  explicit Store(const Stored& stored) : stored_(stored) {}
  bool serves = true;
  void OpenGet(const transfer::TicketClaims&, GetOpened done) override {
    if (!serves) return done(absl::NotFoundError("gone"));
    done(transfer::GetSource{.owner = nullptr, .bytes = stored_.bytes, .leaves = {}});
  }
  void OpenPut(const transfer::TicketClaims&, PutOpened done) override {
    done(absl::UnimplementedError(""));
  }

 private:
  const Stored& stored_;
};

// The store, who may be asked for its image, and a folder that goes with it.
class OneImageStore {
 public:
  explicit OneImageStore(const std::string& what)
      : root_(::testing::TempDir() + "/" + what + "-" + std::to_string(::getpid())) {
    std::filesystem::remove_all(root_);
    server_ = transfer::StartMemoryServer({}, *keys_, store_);
    std::vector<std::unique_ptr<transfer::Transport>> one;
    one.push_back(transfer::CreateMemoryTransport());
    transports_ = std::make_unique<transfer::TransportSet>(std::move(one));
  }
  ~OneImageStore() { std::filesystem::remove_all(root_); }

  absl::StatusOr<Manifest> ManifestNow() {
    transfer::TicketClaims claims{
        .ticket_id = "t", .object = "image", .image_bytes = stored_.bytes.size()};
    claims.expires_unix_ms = transfer::NowUnixMs() + 60'000;
    return Manifest{.digest = stored_.digest,
                    .image_bytes = stored_.bytes.size(),
                    .config_json = kConfig,
                    .leaves = stored_.leaves,
                    .ticket = keys_->Mint(claims).value(),
                    .addresses = {server_->address()}};
  }

  const std::string root_;
  const Stored stored_{0};
  Store store_{stored_};
  std::unique_ptr<transfer::TicketKeys> keys_ = transfer::TicketKeys::Generate();
  std::unique_ptr<transfer::TransferServer> server_;
  std::unique_ptr<transfer::TransportSet> transports_;
};

}  // namespace lorry::proxy
