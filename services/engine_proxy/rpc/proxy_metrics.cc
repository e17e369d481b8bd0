#include "services/engine_proxy/rpc/proxy_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace lorry::proxy {
namespace {

// A scrape waits at most this long for the machine; the next one is seconds away.
constexpr int64_t kViewDeadlineMs = 1'000;

constexpr char kGap[] = "lorry_proxy_reference_gap";
constexpr char kGapHelp[] =
    "How far the engine's log-probabilities of the served version's reference are from its "
    "trainer's, in nats; NaN where it carries none";

metrics::PerAdapter<metrics::Gauge> GaugeOfAdapters(metrics::Registry& registry, const char* name,
                                                    const char* help) {
  return {[&registry, name, help](const std::string& adapter) {
            return registry.AddGauge(name, help, {{"adapter", adapter}});
          },
          [&registry, name](const std::string& adapter) {
            registry.Remove(name, {{"adapter", adapter}});
          }};
}

}  // namespace

int64_t WithoutSlot(const fleet::Observed& observed) {
  return std::ranges::count_if(observed.residencies, &fleet::ObservedResidency::no_slot);
}

ProxyMetrics::ProxyMetrics(metrics::Registry& registry)
    : DoorMetrics(registry),
      registry_(registry),
      load_seconds_(registry.AddHistogram("lorry_proxy_load_seconds",
                                          "One load: sent to the engine until answered",
                                          metrics::DurationBuckets())),
      fetches_(registry),
      demand_loads_(
          registry.AddCounter("lorry_proxy_demand_loads_total",
                              "Loads that began because requests waited for the adapter")),
      demand_evictions_(registry.AddCounter(
          "lorry_proxy_demand_evictions_total",
          "Unloads of versions that a row is open on, to make room for another")),
      pauses_overdue_(registry.AddCounter(
          "lorry_proxy_framework_pauses_overdue_total",
          "Pauses of frameworks that the proxy ended because their time was over")),
      pause_seconds_(registry.AddHistogram("lorry_proxy_pause_seconds",
                                           "One pause of the engine: asked for until it goes on",
                                           metrics::DurationBuckets())),
      boots_(registry.AddCounter("lorry_proxy_engine_boots_total",
                                 "Lives of the engine process that this proxy has seen begin")),
      unload_done_(registry.AddCounter("lorry_proxy_unload_total", "Unloads by outcome",
                                       {{"outcome", "done"}})),
      unload_deadline_(registry.AddCounter("lorry_proxy_unload_total", "Unloads by outcome",
                                           {{"outcome", "deadline"}})),
      unload_broken_(registry.AddCounter("lorry_proxy_unload_total", "Unloads by outcome",
                                         {{"outcome", "broken"}})),
      unload_refused_(registry.AddCounter("lorry_proxy_unload_total", "Unloads by outcome",
                                          {{"outcome", "refused"}})),
      observed_(GaugeOfAdapters(registry, "lorry_proxy_observed_version",
                                "Version that this door's row is open on; -1 while it is closed")),
      in_flight_(
          GaugeOfAdapters(registry, "lorry_proxy_in_flight",
                          "Requests in flight at the engine, each sample of each prompt counted")),
      gaps_(
          [&registry](const std::string& adapter) {
            const auto over = [&](const char* what) {
              return registry.AddGauge(kGap, kGapHelp, {{"adapter", adapter}, {"over", what}});
            };
            return Gap{over("mean"), over("max")};
          },
          [&registry](const std::string& adapter) {
            for (const char* over : {"mean", "max"}) {
              registry.Remove(kGap, {{"adapter", adapter}, {"over", over}});
            }
          }),
      loaded_(registry.AddGauge("lorry_proxy_loaded_versions",
                                "Versions loaded in the engine and verified there")),
      retained_(registry.AddGauge("lorry_proxy_retained_versions",
                                  "Loaded versions that no row is open on")),
      slots_(registry.AddGauge("lorry_proxy_slots",
                               "Adapter slots of the engine; 0 when it has no bound")),
      without_slot_(registry.AddGauge(
          "lorry_proxy_versions_without_slot",
          "Versions that are to be loaded, for which nothing may leave the engine")),
      wedged_(
          registry.AddGauge("lorry_proxy_wedged",
                            "1 while the engine must be restarted before it can load or unload")),
      paused_(registry.AddGauge("lorry_proxy_engine_paused",
                                "1 while a pause of the engine that was asked for through Lorry "
                                "holds, or may")),
      framework_paused_(registry.AddGauge("lorry_proxy_framework_pause",
                                          "1 while a framework asks for the engine to be paused")),
      live_(registry.AddGauge("lorry_door_live_requests",
                              "Requests admitted at the door and not finished")),
      held_(registry.AddGauge("lorry_door_held_requests",
                              "Requests that wait at the door, for a sync or for a newer version")),
      attached_gauge_(registry.AddGauge(
          "lorry_proxy_attached", "1 while the proxy has a session with the sync-orchestrator")),
      followers_answering_(registry.AddGauge(
          "lorry_proxy_followers_answering",
          "Followers, on the other nodes of the engine, that answered when they were asked last")) {
}

void ProxyMetrics::Watch(Proxy& proxy, const Fetcher& fetcher, const door::Door& door,
                         const Clock& clock, const Followers& followers,
                         std::function<bool()> attached) {
  attached_ = std::move(attached);
  proxy_ = &proxy;
  fetcher_ = &fetcher;
  followers_ = &followers;
  door_ = &door;
  clock_ = &clock;
  registry_.OnScrape([this] { Refresh(); });
}

void ProxyMetrics::OnUnloaded(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return unload_done_.Add();
    case Outcome::kBroken:
      return unload_broken_.Add();
    case Outcome::kUnknown:
      return unload_deadline_.Add();
    case Outcome::kRefused:
    case Outcome::kFailed:
    case Outcome::kUnsent:
      return unload_refused_.Add();
  }
}

void ProxyMetrics::Refresh() {
  const absl::StatusOr<Proxy::View> view = proxy_->GetView(clock_->Now() + kViewDeadlineMs);
  if (!view.ok()) return;
  attached_gauge_.Set(attached_() ? 1 : 0);
  followers_answering_.Set(static_cast<double>(followers_->answering()));
  slots_.Set(view->observed.limits.slots);
  without_slot_.Set(static_cast<double>(WithoutSlot(view->observed)));
  wedged_.Set(view->observed.health == fleet::MemberHealth::kWedged ? 1 : 0);
  paused_.Set(view->table.paused ? 1 : 0);
  held_.Set(door_->held());
  demand_loads_.Add(static_cast<double>(view->demand.loads - demand_counted_.loads));
  demand_evictions_.Add(static_cast<double>(view->demand.evictions - demand_counted_.evictions));
  demand_counted_ = view->demand;
  framework_paused_.Set(view->framework_pauses.holds ? 1 : 0);
  pauses_overdue_.Add(static_cast<double>(view->framework_pauses.overdue - overdue_counted_));
  overdue_counted_ = view->framework_pauses.overdue;
  ShowCounts(*view, door_->Snapshot());
  ShowGaps(*view);
  ShowBindings(*view);
  fetches_.Show(fetcher_->sources(), fetcher_->fetched_bytes());
}

void ProxyMetrics::ShowBindings(const Proxy::View& view) {
  std::map<std::string, double> by_state = {
      {"loaded", 0}, {"loading", 0}, {"failed", 0}, {"away", 0}};
  const auto& residencies = view.observed.residencies;
  for (const DoorBinding& binding : view.table.bindings) {
    using State = fleet::ResidencyState;
    const auto its =
        std::ranges::find(residencies, binding.target, &fleet::ObservedResidency::name);
    const State state = its == residencies.end() ? State::kAbsent : its->state;
    const char* where = "away";
    if (state == State::kFetching || state == State::kLoading) where = "loading";
    if (state == State::kFailed) where = "failed";
    if (view.table.FindRoute(binding.target) != nullptr) where = "loaded";
    ++by_state[where];
  }
  for (const auto& [state, names] : by_state) {
    registry_
        .AddGauge("lorry_proxy_bindings",
                  "Names that frameworks bound at this door, by where their adapter stands",
                  {{"state", state}})
        .Set(names);
  }
}

// Of what each row serves; a version without a reference has none, which is no gap of 0.
void ProxyMetrics::ShowGaps(const Proxy::View& view) {
  for (const DoorRow& row : view.table.rows) {
    const auto& residencies = view.observed.residencies;
    const auto its = std::find_if(residencies.begin(), residencies.end(),
                                  [&](const auto& r) { return r.name == row.target; });
    const bool is_known = its != residencies.end() && its->gap.has_value();
    Gap& gap = gaps_.For(row.adapter.value);
    gap.mean.Set(is_known ? its->gap->mean_ppm / 1e6 : std::nan(""));
    gap.max.Set(is_known ? its->gap->max_ppm / 1e6 : std::nan(""));
  }
}

void ProxyMetrics::ShowCounts(const Proxy::View& view, const door::Counts& counts) {
  live_.Set(counts.live);
  int loaded = 0, routed = 0;
  std::map<std::string, double> by_adapter;
  std::set<std::string, std::less<>> rows;
  std::map<std::string, double> by_lag = {{"0", 0}, {"1", 0}, {"2", 0}, {"3+", 0}};
  for (const DoorRoute& route : view.table.routes) {
    ++loaded;
    const auto in_flight = counts.in_flight.find(route.name);
    const double requests = in_flight == counts.in_flight.end() ? 0 : in_flight->second;
    by_adapter[route.key.adapter.value] += requests;
    if (route.lag != fleet::kLagNone)
      by_lag[route.lag < 3 ? std::to_string(route.lag) : "3+"] += requests;
  }
  for (const DoorRow& row : view.table.rows) {
    const bool is_open = row.mode == fleet::RowMode::kOpen;
    const bool is_routed = is_open && view.table.FindRoute(row.target) != nullptr;
    routed += is_routed;
    // Also while its version, which is loaded on demand, is away from the engine.
    const auto& residencies = view.observed.residencies;
    const auto target = std::ranges::find(residencies, row.target, &fleet::ObservedResidency::name);
    const bool serves = is_routed || (is_open && row.on_demand);
    observed_.For(row.adapter.value)
        .Set(serves && target != residencies.end() ? static_cast<double>(target->key.number.value)
                                                   : -1);
    rows.insert(row.adapter.value);
  }
  loaded_.Set(loaded);
  retained_.Set(loaded - routed);
  std::set<std::string, std::less<>> served = rows;
  for (const auto& [adapter, requests] : by_adapter) {
    in_flight_.For(adapter).Set(requests);
    served.insert(adapter);
  }
  observed_.KeepOnly(rows);
  gaps_.KeepOnly(rows);
  in_flight_.KeepOnly(served);
  KeepOnly(std::move(served));
  for (const auto& [lag, requests] : by_lag) {
    registry_
        .AddGauge("lorry_proxy_in_flight_by_lag", "Requests in flight by the lag of their version",
                  {{"lag", lag}})
        .Set(requests);
  }
}

}  // namespace lorry::proxy
