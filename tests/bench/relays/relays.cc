// How long an image takes to reach the last of many hosts, by the store's own plan (FanOut), beside a
// star, where all read from the store, and a chain. A model, not a measurement: links of one rate,
// shared evenly by whoever reads over them, and chunks that are passed on as they come.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/transport_set.h"
#include "services/adapter_store/images/fan_out.h"

namespace lorry::store {
namespace {

constexpr double kLinkBytesPerS = 10e9 / 8;  // each host's, and the store's, in either direction
constexpr double kImageBytes = 200e6;
constexpr double kChunkBytes = transfer::kLeafBytes;
constexpr int kChunks = static_cast<int>(kImageBytes / kChunkBytes);
// A relay looks every 10 ms whether what its readers wait for has come; a round trip is little beside.
constexpr double kHopS = 0.010;
constexpr double kStoppedS = transfer::kTrialIdleMs / 1e3;  // before a silent relay is left
constexpr int kStore = -1;

// By whom each host is read from, in the order in which it would try them.
std::vector<std::vector<int>> Plan(int hosts, int width) {
  const ManualClock clock(1);
  FanOut fan_out(clock, {.width = width});
  std::vector<std::vector<int>> sources(static_cast<size_t>(hosts));
  for (int host = 0; host < hosts; ++host) {
    for (const OfferedRelay& relay :
         fan_out.Join(Digest{"image"}, {.address = absl::StrCat(host), .key = {}}))
      sources[static_cast<size_t>(host)].push_back(std::stoi(relay.address));
    sources[static_cast<size_t>(host)].push_back(kStore);
  }
  return sources;
}

struct Arrival {
  double last_s = 0;           // when the last live host has the image
  double images_of_store = 0;  // that the store sent
};

// Every `stopped_every`-th host is stopped before it passes anything on; 0: none.
Arrival Model(const std::vector<std::vector<int>>& sources, int stopped_every) {
  const auto is_stopped = [&](int host) {
    return host != kStore && stopped_every > 0 && host % stopped_every == stopped_every - 1;
  };
  std::vector<int> from;
  std::vector<double> begins;
  std::map<int, int> readers;
  for (const std::vector<int>& tried : sources) {
    size_t at = 0;
    while (is_stopped(tried[at])) ++at;
    from.push_back(tried[at]);
    begins.push_back(static_cast<double>(at) * kStoppedS);
    ++readers[tried[at]];
  }
  Arrival out;
  out.images_of_store = readers[kStore];
  // Hosts read from earlier ones alone, so one pass in their order is enough.
  std::vector<std::vector<float>> at(sources.size());
  for (size_t host = 0; host < sources.size(); ++host) {
    const double chunk_s = kChunkBytes / (kLinkBytesPerS / readers[from[host]]);
    double now = begins[host];
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const double there =
          from[host] == kStore
              ? 0
              : at[static_cast<size_t>(from[host])][static_cast<size_t>(chunk)] + kHopS;
      now = std::max(now, there) + chunk_s;
      at[host].push_back(static_cast<float>(now));
    }
    if (!is_stopped(static_cast<int>(host))) out.last_s = std::max(out.last_s, now);
  }
  return out;
}

void Print(const char* name, int stopped_every, const std::vector<int>& widths) {
  std::printf("\n%s\n%-8s", name, "hosts");
  for (const int width : widths)
    std::printf("%12s", width == 0   ? "star"
                        : width == 1 ? "chain"
                                     : absl::StrCat("tree of ", width).c_str());
  std::printf("%14s\n", "store sends");
  for (const int hosts : {8, 64, 512, 4096}) {
    std::printf("%-8d", hosts);
    double sent = 0;
    for (const int width : widths) {
      const Arrival arrival = Model(Plan(hosts, width), stopped_every);
      std::printf("%10.2f s", arrival.last_s);
      if (width == FanOutOptions().width) sent = arrival.images_of_store;
    }
    std::printf("%7.0f images\n", sent);
  }
}

}  // namespace
}  // namespace lorry::store

int main() {
  std::printf(
      "200 MB to the last of so many hosts, links of 10 Gbit/s; a model of the store's plan\n");
  const std::vector<int> widths = {0, 1, 2, 3, 4};
  lorry::store::Print("all relays pass on what they have", 0, widths);
  lorry::store::Print("every tenth is stopped", 10, widths);
}
