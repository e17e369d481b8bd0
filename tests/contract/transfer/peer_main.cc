// The other side of a transfer, for tests that kill it:
//   transfer_peer serve KIND BYTES SEED       serves object "image"; prints its address; runs until
//   killed transfer_peer fetch|push ADDRESS BYTES SEED   moves object "image" once, in 1 MiB
//   ranges; prints the outcome
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "tests/contract/transfer/world.h"

namespace lorry::transfer {
namespace {

int Main(const std::string& verb, const std::string& where, uint64_t bytes, uint64_t seed) {
  const auto keys = TestKeys();
  if (verb == "serve") {
    TestHandler handler;
    handler.Serve("image", MakeImage(bytes, seed));
    handler.Expect("image", bytes);
    const auto server = StartServer(where, {}, *keys, handler);
    std::printf("%s\n", server->address().c_str());
    std::fflush(stdout);
    pause();
    return 0;
  }
  const auto transport = CreateTransport(SchemeOf(where));
  const TransferOptions options{.range_bytes = kMiB, .in_flight = 4};
  Outcome outcome;
  Bytes image = verb == "push" ? MakeImage(bytes, seed) : Bytes(bytes);
  if (verb == "push") {
    outcome = PushAndWait(*transport, {.address = where,
                                       .ticket = TicketFor(*keys, Direction::kPut, "image", bytes),
                                       .source = image,
                                       .options = options});
  } else {
    outcome = FetchAndWait(*transport, {.address = where,
                                        .ticket = TicketFor(*keys, Direction::kGet, "image", bytes),
                                        .destination = image,
                                        .options = options});
  }
  std::printf("%s\n", outcome.status.ToString().c_str());
  return outcome.status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lorry::transfer

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives its test
  return lorry::transfer::Main(argv[1], argv[2], std::stoull(argv[3]), std::stoull(argv[4]));
}
