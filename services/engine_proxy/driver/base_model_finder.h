// Finds out which base model an engine serves, so that no adapter of another one reaches it: no
// engine can be trusted to check a shape itself (SGLang dies at the first use of a wrong one, vLLM
// answers nonsense).
//
// Reads small files; keeps nothing but its options. Any thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "lib/peft/base_model.h"
#include "services/engine_proxy/engines/engine.h"

namespace lorry::proxy {

struct FoundBaseModel {
  std::optional<peft::BaseModel> model;
  bool unchecked = false;                   // the operator vouches for every adapter
  std::optional<engines::Problem> problem;  // nothing can be told: no adapter is served
  std::optional<engines::Problem> warning;  // something stays unchecked
};

class BaseModelFinder {
 public:
  struct Options {
    std::string config;  // a config.json, or a directory that has one; empty: the engine's own
    bool unchecked = false;
  };
  // NOT_FOUND or INVALID_ARGUMENT when `config` cannot be used: better now than at the first sync.
  static absl::StatusOr<BaseModelFinder> Make(Options options);

  // In this order: the operator's file, what the engine tells of its model, the config.json where
  // the engine read it (its directory on this host, or this host's cache of the Hugging Face Hub).
  FoundBaseModel Find(const engines::EngineFacts& facts) const;

 private:
  explicit BaseModelFinder(Options options) : options_(std::move(options)) {}
  const Options options_;
  std::optional<peft::BaseModel> given_;
};

}  // namespace lorry::proxy
