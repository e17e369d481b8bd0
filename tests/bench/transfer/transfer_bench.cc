// How fast a stored image reaches one and two receivers, beside memcpy and a peer program,
// interleaved:
//   transfer_bench KIND ROUNDS [PEER_COMMAND [FLEET_COMMAND]]
// KIND is ucx-shm or grpc. PEER_COMMAND is run by sh once a round and prints GB/s (ucx_perftest, by
// ../transfer.sh). FLEET_COMMAND is run by sh once, beside the rounds: end_to_end.py, whose word is
// there. The image lies in a file of the server's; receivers write into image files in /dev/shm;
// every byte is verified. Internally also `serve KIND [BYTES]` and `receive ADDRESS KIND [BYTES]`: processes of their
// own, as in production, of BYTES if that is given; peers/ starts them, too. And `ping`.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "lib/base/check.h"
#include "lib/transfer/arena.h"
#include "lib/transfer/image_file.h"
#include "lib/transfer/ucx/ucx_transport.h"
#include "tests/contract/transfer/child.h"
#include "tests/contract/transfer/world.h"

namespace lorry::transfer {
namespace {

// 450 bf16 tensors of a rank-32 adapter, as in the figures of other transports.
constexpr uint64_t kImageBytes = 200'048'640;
constexpr int kWarmUps = 3;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::unique_ptr<ImageFile> SharedFile(uint64_t bytes = kImageBytes) {
  auto file = *ImageFile::Create("/dev/shm/lorry-bench-" + std::to_string(getpid()), bytes, {});
  LORRY_CHECK(file->Unlink().ok());
  return file;
}

int Serve(const std::string& kind, uint64_t bytes) {
  class Handler final : public TransferHandler {
   public:
    explicit Handler(uint64_t bytes) : file_(SharedFile(bytes)) {
      const Bytes image = MakeImage(bytes);
      std::copy(image.begin(), image.end(), file_->writable().begin());
      leaves_ = LeavesOf(image);
    }
    void OpenGet(const TicketClaims&, GetOpened done) override {
      done(GetSource{file_, file_->bytes(), leaves_});
    }
    void OpenPut(const TicketClaims&, PutOpened done) override {
      done(absl::UnimplementedError(""));
    }

   private:
    const std::shared_ptr<ImageFile> file_;
    std::vector<Checksum> leaves_;
  } handler(bytes);
  const auto keys = TestKeys();
  const auto server = StartServer(kind, {}, *keys, handler);
  std::printf("%s\n", server->address().c_str());
  std::fflush(stdout);
  pause();
  return 0;
}

// Fetches once for each SIGUSR1, and prints the seconds that it took.
int Receive(const std::string& address, const std::string& kind, uint64_t bytes) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const auto keys = TestKeys();
  const auto transport = CreateTransport(kind);
  const auto file = SharedFile(bytes);
  std::printf("ready\n");
  std::fflush(stdout);
  for (int signal = 0; sigwait(&signals, &signal) == 0;) {
    const double start = Seconds();
    const Outcome outcome =
        FetchAndWait(*transport, {.address = address,
                                  .ticket = TicketFor(*keys, Direction::kGet, "image", bytes),
                                  .destination = file->writable()});
    std::printf("%.6f\n", outcome.status.ok() ? Seconds() - start : -1);
    if (!outcome.status.ok()) std::fprintf(stderr, "%s\n", outcome.status.ToString().c_str());
    std::fflush(stdout);
  }
  return 0;
}

// One cache line between two cores: nanoseconds a round trip. Tells in which state a virtual
// machine is.
double PingNs() {
  constexpr int kTrips = 200'000;
  std::atomic<int> ball{0};
  const auto pin = [](int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);
  };
  std::thread other([&] {
    pin(1);
    for (int i = 0; i < kTrips; ++i) {
      while (ball.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      ball.store(2 * i + 2, std::memory_order_release);
    }
  });
  double elapsed = 0;
  std::thread one([&] {
    pin(0);
    const double start = Seconds();
    for (int i = 0; i < kTrips; ++i) {
      ball.store(2 * i + 1, std::memory_order_release);
      while (ball.load(std::memory_order_acquire) != 2 * i + 2) {
      }
    }
    elapsed = Seconds() - start;
  });
  one.join();
  other.join();
  return elapsed / kTrips * 1e9;
}

double PeerGBps(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  double value = 0;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &value) != 1) value = 0;
  if (pipe != nullptr) pclose(pipe);
  return value;
}

// min/median/max.
std::string Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[64];
  std::snprintf(text, sizeof(text), "%6.2f / %6.2f / %6.2f", values.front(),
                values[values.size() / 2], values.back());
  return text;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double FetchGBps(std::vector<std::unique_ptr<Child>>& receivers, size_t count) {
  const double start = Seconds();
  for (size_t i = 0; i < count; ++i) receivers[i]->Signal(SIGUSR1);
  for (size_t i = 0; i < count; ++i) {
    if (std::strtod(receivers[i]->ReadLine().c_str(), nullptr) <= 0) return 0;
  }
  return static_cast<double>(count * kImageBytes) / (Seconds() - start) / 1e9;
}

// The services themselves, with two proxies: publishes a version for each Publish().
class Fleet {
 public:
  explicit Fleet(const std::string& command) : child_({"/bin/sh", "-c", "exec " + command}) {
    unsigned long long bytes = 0;
    ready_ = std::sscanf(child_.ReadLine().c_str(), "ready %llu", &bytes) == 1;
    image_bytes_ = static_cast<double>(bytes);
  }
  ~Fleet() {  // it ends its services before itself
    child_.Signal(SIGTERM);
    while (!child_.ReadLine().empty()) {
    }
  }
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  bool ready() const { return ready_; }
  // Seconds from stored until both proxies had it; 0 when it failed.
  double Publish() {
    child_.Signal(SIGUSR1);
    return std::max(0.0, std::strtod(child_.ReadLine().c_str(), nullptr));
  }
  double GBps(double seconds) const { return seconds > 0 ? 2 * image_bytes_ / seconds / 1e9 : 0; }

 private:
  Child child_;
  bool ready_ = false;
  double image_bytes_ = 0;
};

// What was measured, a value a round; peer and fleet may be empty.
struct Series {
  std::vector<double> ping, copy, peer, one, two, fleet, fleet_ms;

  void PrintRatio(const char* what, const std::vector<double>& values) const {
    if (values.empty()) return;
    std::printf("  %-32s%10.2f", what, Median(values) / Median(copy));
    if (!peer.empty()) std::printf("%18.2f", Median(values) / Median(peer));
    std::printf("\n");
  }

  void Print() const {
    const auto line = [](const char* what, const std::vector<double>& values, const char* note) {
      if (!values.empty()) std::printf("  %-32s%s%s\n", what, Spread(values).c_str(), note);
    };
    line("core-to-core round trip, ns", ping, "");
    line("memcpy, GB/s", copy, "");
    line("peer program, GB/s", peer, "");
    line("stored -> 1 receiver, GB/s", one, "");
    line("stored -> 2 receivers, GB/s", two, "  (both together)");
    line("stored -> 2 proxies, GB/s", fleet, "  (both together; the programs end to end)");
    line("stored -> 2 proxies, ms", fleet_ms, "");
    std::printf("  %-32s%10s%s\n", "ratio of medians", "to memcpy",
                peer.empty() ? "" : "       to the peer");
    PrintRatio("1 receiver", one);
    PrintRatio("2 receivers", two);
    PrintRatio("2 proxies, end to end", fleet);
  }
};

int Drive(const std::string& self, const std::string& kind, int rounds,
          const std::string& peer_command, const std::string& fleet_command) {
  const auto from = *Arena::Create(kImageBytes);
  const auto to = SharedFile();
  Child server({self, "serve", kind});
  const std::string address = server.ReadLine();
  std::vector<std::unique_ptr<Child>> receivers;
  for (int i = 0; i < 2; ++i)
    receivers.push_back(
        std::make_unique<Child>(std::vector{self, std::string("receive"), address, kind}));
  for (const auto& receiver : receivers) receiver->ReadLine();
  std::optional<Fleet> fleet;
  if (!fleet_command.empty()) fleet.emplace(fleet_command);
  if (fleet.has_value() && !fleet->ready()) {
    std::fprintf(stderr, "the services did not start: %s\n", fleet_command.c_str());
    return 1;
  }
  for (int i = 0; i < kWarmUps; ++i) {
    FetchGBps(receivers, 2);
    if (fleet.has_value()) fleet->Publish();
  }

  Series series;
  for (int round = 0; round < rounds; ++round) {
    series.ping.push_back(PingNs());
    const double start = Seconds();
    std::memcpy(to->writable().data(), from->bytes().data(), kImageBytes);
    series.copy.push_back(kImageBytes / (Seconds() - start) / 1e9);
    if (!peer_command.empty()) series.peer.push_back(PeerGBps(peer_command));
    series.one.push_back(FetchGBps(receivers, 1));
    series.two.push_back(FetchGBps(receivers, 2));
    if (!fleet.has_value()) continue;
    const double seconds = fleet->Publish();
    series.fleet.push_back(fleet->GBps(seconds));
    series.fleet_ms.push_back(seconds * 1e3);
  }
  std::printf("%s, %s, %llu bytes, %d rounds, %u cores; min / median / max\n", address.c_str(),
              UcxVersion().c_str(), static_cast<unsigned long long>(kImageBytes), rounds,
              std::thread::hardware_concurrency());
  series.Print();
  return 0;
}

}  // namespace
}  // namespace lorry::transfer

int main(int argc, char** argv) {
  using namespace lorry::transfer;  // NOLINT(google-build-using-namespace)
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "ping") return std::printf("%.1f\n", PingNs()) > 0 ? 0 : 1;
  if (argc < 3) return 2;
  if (verb == "serve" || verb == "receive") {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int given = verb == "serve" ? 3 : 4;
    uint64_t bytes = kImageBytes;
    if (argc < given || (argc > given && !absl::SimpleAtoi(argv[given], &bytes))) return 2;
    return verb == "serve" ? Serve(argv[2], bytes) : Receive(argv[2], argv[3], bytes);
  }
  int rounds = 0;
  if (!absl::SimpleAtoi(argv[2], &rounds) || rounds < 1) return 2;
  return Drive(argv[0], verb, rounds, argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "");
}
