// What every verb works with: where the services are, how to print, one client. Owned by main, used
// on its thread.
#pragma once

#include <google/protobuf/message.h>

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "clients/cli/output.h"
#include "clients/cli/verb.h"
#include "clients/cpp/client.h"
#include "lib/fleet/selector.h"

namespace lorry::cli {

// Exit statuses, as docs/CLI.md lists them.
inline constexpr int kOk = 0, kFailed = 1, kUsage = 2, kUnreachable = 3;

// Where `lorry up` says what it runs: $XDG_STATE_HOME/lorry/up.json or
// ~/.local/state/lorry/up.json, also where $HOME is not set.
std::string StateDir();
std::string UpFile();
// What it says of the fleet that runs; an empty object where none does: one that was killed leaves
// its file behind. As Python's up_file.py reads it.
nlohmann::json RunningUp();
// The text of a field; empty where there is none, as in a file that another version wrote.
std::string TextIn(const nlohmann::json& object, const char* key);
// This program's file. Beside it are the services, where builds and packages put them.
std::string OwnProgram();

using JsonValue = std::variant<std::string, uint64_t>;

class Context {
 public:
  Context(const std::vector<Verb>& verbs, const Arguments& arguments);

  // Addresses from flags, else environment, else what `lorry up` wrote.
  absl::StatusOr<client::Client*> Client();
  // The same, for a program that is to be told.
  client::ConnectOptions Reached() const;
  std::string store() const { return store_; }
  std::string orchestrator() const { return orchestrator_; }
  // The URLs of the engines behind the doors of what `lorry up` runs, by member; empty where that is
  // not the fleet this command talks to.
  const std::map<std::string, std::string>& EngineUrls() const { return engine_urls_; }
  // --timeout, or `fallback_ms` where it is not given.
  int64_t TimeoutOr(int64_t fallback_ms) const { return timeout_ms_.value_or(fallback_ms); }

  bool json() const { return json_; }
  bool colour() const { return colour_; }
  bool terminal() const { return terminal_; }
  bool bars() const { return bars_; }
  const std::vector<Verb>& verbs() const { return verbs_; }

  std::string Painted(const std::string& text, Colour colour) const {
    return Paint(text, colour, colour_);
  }
  void Print(const std::string& text) const { std::fputs(text.c_str(), stdout); }
  void Print(const Table& table) const { Print(table.Render(colour_)); }
  // One line of JSON; a message's has the field names of the .proto files.
  void PrintJson(const google::protobuf::Message& message) const;
  void PrintJson(std::initializer_list<std::pair<const char*, JsonValue>> object) const;
  // Columns of the terminal; elsewhere what a wide one has.
  size_t columns() const { return columns_; }

  // `named`, else the pool of `adapter` that is meant without a name (OnlyPool).
  absl::StatusOr<std::string> Pool(const std::string& adapter, const std::string& named);
  // The stored version that is meant: aliases and `newest` are asked of the store, `latest` of the
  // orchestrator, in the pool that Pool() finds. The adapter counts of `adapter`.
  absl::StatusOr<common::v1::VersionRef> Resolve(const std::string& adapter,
                                                 const fleet::Selector& version,
                                                 const std::string& pool);

  // `status`, or why a service that it says is away will stay away.
  absl::Status Explain(const absl::Status& status) const;

 private:
  void FindAddresses();
  rpc::ClientTls Tls() const;
  const std::vector<Verb>& verbs_;
  const Arguments& arguments_;
  std::string store_, orchestrator_;
  std::string up_token_file_;  // of the `lorry up` whose fleet it is
  std::map<std::string, std::string> engine_urls_;
  std::optional<int64_t> timeout_ms_;
  size_t columns_ = 0;
  bool json_ = false, colour_ = false, terminal_ = false, bars_ = false;
  bool is_other_than_up_ = false;  // a fleet is named, and `lorry up` runs another one
  std::unique_ptr<client::Client> client_;
};

// The picture of one pool and one adapter, or of all where a name is empty. NOT_FOUND UNKNOWN_POOL: no
// engine and no policy names the pool; UNKNOWN_ADAPTER: no engine has it, and the store knows none.
absl::StatusOr<lorry::sync::v1::GetStatusResponse> StatusOf(client::Client& client,
                                                            const std::string& pool,
                                                            const std::string& adapter = "");

// "r2.81"
std::string ToText(const common::v1::VersionRef& ref);
std::string ToJson(const google::protobuf::Message& message);
// "BARRIER" of SYNC_MODE_BARRIER: what an enumerator says beyond its type's name.
std::string EnumWord(const google::protobuf::EnumDescriptor& type, int value);

// Prints one line and its remedy on stderr; returns the exit status. `verb`: the one that was typed;
// null: none was recognised.
int Report(const absl::Status& status, const Verb* verb, bool json, bool colour);

}  // namespace lorry::cli
