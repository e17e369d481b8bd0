// The other side of a transfer, for tests that kill it:
//   transfer_peer serve KIND BYTES SEED
//     serves object "image"; prints its address; runs until it is killed
//   transfer_peer fetch|push KIND BYTES SEED ADDRESS
//     moves object "image" once, in 1 MiB ranges; prints the outcome
//   transfer_peer alone KIND BYTES SEED
//     fetches it from itself in a network namespace of its own; prints the bytes that went over
//     its loopback device, or "none" where it may not have a namespace
// With LORRY_PEER_UID in the environment it becomes that user first.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/contract/transfer/world.h"

namespace lorry::transfer {
namespace {

int Main(const std::string& verb, const std::string& kind, uint64_t bytes, uint64_t seed,
         const std::string& address) {
  const auto keys = TestKeys();
  if (verb == "serve") {
    TestHandler handler;
    handler.Serve("image", MakeImage(bytes, seed));
    handler.Expect("image", bytes);
    const auto server = StartServer(kind, {}, *keys, handler);
    std::printf("%s\n", server->address().c_str());
    std::fflush(stdout);
    pause();
    return 0;
  }
  const auto transport = CreateTransport(kind);
  const TransferOptions options{.range_bytes = kMiB, .in_flight = 4};
  Outcome outcome;
  Bytes image = verb == "push" ? MakeImage(bytes, seed) : Bytes(bytes);
  if (verb == "push") {
    outcome = PushAndWait(*transport, {.address = address,
                                       .ticket = TicketFor(*keys, Direction::kPut, "image", bytes),
                                       .source = image,
                                       .options = options});
  } else {
    outcome = FetchAndWait(*transport, {.address = address,
                                        .ticket = TicketFor(*keys, Direction::kGet, "image", bytes),
                                        .destination = image,
                                        .options = options});
  }
  std::printf("%s\n", outcome.status.ToString().c_str());
  return outcome.status.ok() ? 0 : 1;
}

bool IntoOwnNetwork() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::memcpy(request.ifr_name, "lo", sizeof("lo"));
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool up = ioctl(any, SIOCSIFFLAGS, &request) == 0;
  close(any);
  return up;
}

uint64_t BytesOverLoopback() {
  std::ifstream devices("/proc/thread-self/net/dev");
  for (std::string word; devices >> word;) {
    uint64_t bytes = 0;
    if (word == "lo:" && devices >> bytes) return bytes;
  }
  return 0;
}

int Alone(const std::string& kind, uint64_t bytes, uint64_t seed) {
  World world(kind);
  world.handler.Serve("image", MakeImage(bytes, seed));
  Bytes into(bytes);
  const uint64_t before = BytesOverLoopback();
  const Outcome outcome = FetchAndWait(*world.transport, world.FetchOf("image", into));
  if (!outcome.status.ok()) return 1;
  std::printf("%llu\n", static_cast<unsigned long long>(BytesOverLoopback() - before));
  return 0;
}

}  // namespace
}  // namespace lorry::transfer

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) return 2;
  if (const char* uid = getenv("LORRY_PEER_UID"); uid != nullptr) {
    if (setuid(static_cast<uid_t>(std::stoul(uid))) != 0) return 3;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives its test
  if (argv[1] == std::string("alone")) {
    // Before there are threads: a namespace is a thread's own.
    if (!lorry::transfer::IntoOwnNetwork()) return std::puts("none") < 0;
    return lorry::transfer::Alone(argv[2], std::stoull(argv[3]), std::stoull(argv[4]));
  }
  return lorry::transfer::Main(argv[1], argv[2], std::stoull(argv[3]), std::stoull(argv[4]),
                               argc == 6 ? argv[5] : "");
}
