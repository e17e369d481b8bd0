#include "services/engine_proxy/driver/base_model_finder.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "lib/base/error.h"
#include "services/engine_proxy/driver/small_file.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

// The Hub's, and only a whole one: branches move.
bool IsCommit(absl::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

// The Hub's cache keeps each commit in a directory of that name.
absl::StatusOr<peft::BaseModel> ReadConfig(fs::path path) {
  std::error_code error;
  if (fs::is_directory(path, error)) path /= "config.json";
  LORRY_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path.string()));
  LORRY_ASSIGN_OR_RETURN(peft::BaseModel model, peft::ParseBaseModel(text));
  const std::string folder = path.parent_path().filename().string();
  if (IsCommit(folder)) model.revision = folder;
  return model;
}

// Where transformers, SGLang and vLLM keep what they download, by the variables that they ask.
fs::path HubCache() {
  const auto set = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  if (const fs::path cache = set("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = set("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path xdg = set("XDG_CACHE_HOME"); !xdg.empty()) return xdg / "huggingface" / "hub";
  return set("HOME") / ".cache" / "huggingface" / "hub";
}

// "Qwen/Qwen3-8B" as this host's cache has it: refs/<revision> names a commit, snapshots/<commit>
// has the files.
absl::StatusOr<peft::BaseModel> ReadFromHubCache(const std::string& name,
                                                 const std::string& revision) {
  const fs::path model =
      HubCache() / absl::StrCat("models--", absl::StrReplaceAll(name, {{"/", "--"}}));
  const std::string wanted = revision.empty() ? "main" : revision;
  const absl::StatusOr<std::string> commit = ReadSmallFile((model / "refs" / wanted).string());
  const std::string snapshot(
      absl::StripAsciiWhitespace(absl::string_view(commit.ok() ? *commit : wanted)));
  return ReadConfig(model / "snapshots" / snapshot / "config.json");
}

absl::StatusOr<peft::BaseModel> ReadWhereTheEngineDid(const engines::EngineFacts& facts) {
  const fs::path path(facts.model_path);
  if (path.is_absolute()) return ReadConfig(path);
  if (path.empty()) return absl::NotFoundError("the engine does not say where its model lies");
  return ReadFromHubCache(facts.model_path, facts.model_revision);
}

absl::StatusOr<peft::BaseModel> Learn(const engines::EngineFacts& facts) {
  if (!facts.model_config.empty()) {
    auto told = peft::ParseBaseModel(facts.model_config);
    if (told.ok()) return told;
  }
  return ReadWhereTheEngineDid(facts);
}

}  // namespace

absl::StatusOr<BaseModelFinder> BaseModelFinder::Make(Options options) {
  BaseModelFinder finder(std::move(options));
  if (!finder.options_.config.empty()) {
    LORRY_ASSIGN_OR_RETURN(finder.given_, ReadConfig(finder.options_.config));
  }
  return finder;
}

FoundBaseModel BaseModelFinder::Find(const engines::EngineFacts& facts) const {
  FoundBaseModel found;
  if (options_.unchecked) {
    found.unchecked = true;
    found.warning = {"BASE_MODEL_UNCHECKED",
                     "start the proxy without --base-model-unchecked: nothing compares adapters "
                     "with the base model, and engines do not"};
    return found;
  }
  if (given_.has_value()) {
    found.model = given_;
  } else if (auto learnt = Learn(facts); learnt.ok()) {
    found.model = *std::move(learnt);
    if (IsCommit(facts.model_revision)) found.model->revision = facts.model_revision;
    // An engine calls by names of its own what the config names.
    if (found.model->quantization.empty()) found.model->quantization = facts.quantization;
  } else {
    found.problem = {
        "BASE_MODEL_UNKNOWN",
        absl::StrCat("give the proxy --base-model-config with the config.json of ",
                     facts.model_path.empty() ? "the engine's model" : facts.model_path,
                     ", or mount the model's directory where the engine has it, or say "
                     "--base-model-unchecked; until then no adapter is served, as its shapes "
                     "cannot be checked (",
                     std::string(learnt.status().message()), ")")};
    return found;
  }
  if (!found.model->complete) {
    found.warning = {"BASE_MODEL_UNCHECKED",
                     absl::StrCat("the base model is of an architecture that is not known here (",
                                  ToString(*found.model),
                                  "): only what its hidden size sets is checked; compare the other "
                                  "sizes yourself")};
  }
  return found;
}

}  // namespace lorry::proxy
