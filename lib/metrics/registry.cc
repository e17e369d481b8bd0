#include "lib/metrics/registry.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/mutex.h"
#include "lib/metrics/process.h"

namespace lorry::metrics {

Buckets DurationBuckets() {
  return {.001, .0025, .005, .01, .025, .05, .1,  .25, .5,   1,
          2.5,  5,     10,   30,  60,   120, 300, 600, 1800, 3600};
}

void Counter::Add(double by) {
  if (counter_ != nullptr) counter_->Increment(by);
}
double Counter::value() const { return counter_ == nullptr ? 0 : counter_->Value(); }

void Gauge::Set(double value) {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::Add(double by) {
  if (gauge_ != nullptr) gauge_->Increment(by);
}
double Gauge::value() const { return gauge_ == nullptr ? 0 : gauge_->Value(); }

void Histogram::Observe(double value) {
  if (histogram_ != nullptr) histogram_->Observe(value);
}
void Histogram::ObserveAll(const std::vector<double>& counts, double sum) {
  if (histogram_ != nullptr) histogram_->ObserveMultiple(counts, sum);
}

namespace {

template <typename Metric>
void RemoveFrom(prometheus::Family<Metric>& family, const Labels& labels) {
  if (!family.Has(labels)) return;
  if constexpr (std::is_same_v<Metric, prometheus::Histogram>) {
    family.Remove(&family.Add(labels, Buckets()));
  } else {
    family.Remove(&family.Add(labels));
  }
}

}  // namespace

// prometheus::Build...().Register() hands out the known family for a known name and throws for one
// of another kind or help: that is a programmer's mistake, so it ends the process here.
struct Registry::Impl {
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  Mutex mutex;
  std::map<std::string, std::function<void(const Labels&)>> removers LORRY_GUARDED_BY(mutex);
  std::vector<std::function<void()>> refreshers LORRY_GUARDED_BY(mutex);

  template <typename Builder>
  auto& FamilyOf(Builder builder, const std::string& name, const std::string& help) {
    decltype(&builder.Register(registry)) family = nullptr;
    try {
      family = &builder.Name(name).Help(help).Register(registry);
    } catch (const std::exception&) {
    }
    LORRY_CHECK(family != nullptr && "a metric's name is bad or known with another kind or help");
    MutexLock lock(mutex);
    removers[name] = [family](const Labels& labels) { RemoveFrom(*family, labels); };
    return *family;
  }
};

Registry::Registry(const BuildInfo& info) : impl_(std::make_unique<Impl>()) {
  AddGauge("lorry_build_info", "1; what runs is in the labels",
           {{"service", info.service}, {"version", info.version}})
      .Set(1);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  AddGauge("process_start_time_seconds", "Unix time at which the program started").Set(now.count());
  Gauge resident = AddGauge("process_resident_memory_bytes", "Memory that is resident");
  Counter cpu = AddCounter("process_cpu_seconds_total", "User and system time of all threads");
  Gauge open_fds = AddGauge("process_open_fds", "File descriptors that are open");
  Gauge max_fds = AddGauge("process_max_fds", "File descriptors that may be open");
  OnScrape([=]() mutable {
    const ProcessFigures now = ReadProcess();
    resident.Set(now.resident_bytes);
    cpu.Add(std::max(0.0, now.cpu_seconds - cpu.value()));
    open_fds.Set(now.open_fds);
    max_fds.Set(now.max_fds);
  });
}

Registry::~Registry() = default;

Counter Registry::AddCounter(const std::string& name, const std::string& help,
                             const Labels& labels) {
  return Counter(&impl_->FamilyOf(prometheus::BuildCounter(), name, help).Add(labels));
}

Gauge Registry::AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
  return Gauge(&impl_->FamilyOf(prometheus::BuildGauge(), name, help).Add(labels));
}

Histogram Registry::AddHistogram(const std::string& name, const std::string& help,
                                 const Buckets& buckets, const Labels& labels) {
  return Histogram(&impl_->FamilyOf(prometheus::BuildHistogram(), name, help).Add(labels, buckets));
}

void Registry::Remove(const std::string& name, const Labels& labels) {
  MutexLock lock(impl_->mutex);
  const auto remover = impl_->removers.find(name);
  if (remover != impl_->removers.end()) remover->second(labels);
}

void Registry::OnScrape(std::function<void()> refresh) {
  MutexLock lock(impl_->mutex);
  impl_->refreshers.push_back(std::move(refresh));
}

std::string Registry::Scrape() {
  std::vector<std::function<void()>> refreshers;
  {
    MutexLock lock(impl_->mutex);
    refreshers = impl_->refreshers;
  }
  for (const auto& refresh : refreshers) refresh();
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace lorry::metrics
