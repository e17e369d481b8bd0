// What every service's main has in common: flags, logging, credentials, the ready file.
//
//   int main(int argc, char** argv) {
//     return program::Main(argc, argv, "sync-orchestrator", "Decides which engine serves which
//     version.", Run);
//   }
//
// main's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/flags/declare.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/rpc/access.h"
#include "lib/rpc/fresh_channel.h"
#include "lib/rpc/server.h"
#include "lib/runtime/signals.h"

ABSL_DECLARE_FLAG(std::string, listen);
ABSL_DECLARE_FLAG(std::string, admin_listen);
ABSL_DECLARE_FLAG(std::string, data_dir);

namespace lorry::program {

inline constexpr char kVersion[] = LORRY_VERSION;  // from CMakeLists.txt

// Parses flags, sets up logging and signals, calls `run`, and turns what it returns into an exit
// status: 0 after a drain, 1 with the error on stderr. Arguments that are no flags are an error.
int Main(int argc, char** argv, std::string_view name, std::string_view what_for,
         const std::function<absl::Status(runtime::Signals&)>& run);

// A connection takes a descriptor, and service managers start programs with 1,024 of them for the
// sake of select(), which nothing here uses. Main raises the soft limit to the hard one, but not
// beyond this: some containers allow 10^9, and child processes may walk over all of them.
inline constexpr uint64_t kMostDescriptors = 1u << 20;
void RaiseDescriptorLimit();

// From --listen, --tls-cert, --tls-key, --tls-client-ca, --insecure-listen-anywhere.
rpc::ServerOptions ServerFlags();
// From --auth-token-file and --tls-client-ca.
absl::StatusOr<std::unique_ptr<rpc::Access>> AccessFlags();
// --auth-token-file; empty: no token is asked for, and everybody on loopback may call.
std::string TokensFile();
// --tls-ca; empty: other services are dialled in plaintext.
std::string DialledCa();
// A channel to `target` with --token-file and --tls-ca. The rest: as rpc::ChannelOptions.
absl::StatusOr<std::shared_ptr<rpc::FreshChannel>> Dial(
    const std::string& target, std::vector<std::string> idempotent,
    int receive_max_bytes = rpc::ChannelOptions().receive_max_bytes);

// A channel that shows no token, for servers that ask for a ticket alone. `tls_name`: the name in
// the server's certificate; empty: the target's host.
absl::StatusOr<std::shared_ptr<grpc::Channel>> DialByTicket(const std::string& target,
                                                            const std::string& tls_name);

// --data-dir, created with its parents; INVALID_ARGUMENT when it is not named.
absl::StatusOr<std::string> DataDir();

// Says where the program listens: in the log, as `READY {json}` on stdout, and in --ready-file
// where one is named. To be called once everything serves. The file is written under another name
// and renamed, so that nobody reads half of it.
absl::Status Ready(const std::map<std::string, std::string>& addresses);

// For what Server::Shutdown returned, once nothing else runs. Unless it is OK, handlers still run and
// use what the end of main would destroy: this says so, and `fatal` if that is why the program ends,
// and ends the process at once with status 1.
void LeaveUnless(const absl::Status& stopped, const absl::Status& fatal = absl::OkStatus());

// The value of every flag as JSON, for /configz. Of flags that may hold secrets it says only
// whether they are set.
std::string FlagsJson();

}  // namespace lorry::program
