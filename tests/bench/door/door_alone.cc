// A door by itself, with the metrics of the proxy, on a fixed table: what the benchmark and the experiment of docs/adr/0002 put
// before an engine.
//
//   door_alone ENGINE_PORT sglang|vllm [THREADS]
// prints its port, serves adapter `policy` (version 12) until a line or the end of standard input
// comes.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "lib/metrics/registry.h"
#include "services/engine_proxy/door/door.h"
#include "services/engine_proxy/rpc/door_metrics.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: door_alone ENGINE_PORT sglang|vllm [THREADS]\n");
    return 2;
  }
  using namespace lorry;
  spdlog::set_default_logger(spdlog::stderr_color_mt("door"));  // stdout is the port's
  const bool sglang = std::string(argv[2]) == "sglang";
  metrics::Registry registry({.service = "door-alone", .version = "bench"});
  proxy::DoorMetrics metrics(registry);
  door::Door door(
      {.engine_port = static_cast<uint16_t>(std::strtoul(argv[1], nullptr, 10)),
       .threads = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 0,
       .observer = &metrics});
  if (const absl::Status started = door.Start(); !started.ok()) {
    std::cerr << started << "\n";
    return 1;
  }
  proxy::DoorTable table;
  const AdapterName adapter("policy");
  const EngineName name("policy-v12-0123456789ab");
  table.revision = Revision(1);
  table.boot = BootId("bench");
  table.lag_known = true;
  table.engine = sglang ? fleet::EngineKind::kSglang : fleet::EngineKind::kVllm;
  table.rows.push_back({adapter, fleet::RowMode::kOpen, Epoch(1), name, false});
  table.routes.push_back(
      {name, {adapter, RunId(1), VersionNumber(12)}, Digest{"none"}, fleet::Render::kPlain, 0});
  table.rules.push_back({.adapter = adapter, .current_run = RunId(1)});
  door.SetEngineFacts({.base_models = {"base"}});
  door.SetTable(table);
  std::printf("%u\n", static_cast<unsigned>(door.port()));
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  door.Drain(1'000);
  const door::Counts counts = door.Snapshot();
  std::printf("live after drain: %u\n", counts.live);
  return counts.live == 0 ? 0 : 1;
}
