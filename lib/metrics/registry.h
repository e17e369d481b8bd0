// Metrics: prometheus-cpp behind handles that are resolved once, at construction, and cost an
// atomic afterwards.
//
//   metrics::Registry registry({.service = "adapter-store", .version = "0.1.0"});
//   metrics::Counter bytes = registry.AddCounter("lorry_store_uploaded_bytes_total",
//                                                "Bytes received", {{"transport", "ucx"}});
//   bytes.Add(4096);
//
// Names carry base units (_seconds, _bytes, _ratio), counters end in _total. A version is a value,
// never a label; no path, digest or request id is one either. Thread-safe. The registry outlives
// its handles.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace lorry::metrics {

using Labels = std::map<std::string, std::string>;
using Buckets = std::vector<double>;

// From a quick RPC to a sync that waited for its deadline.
Buckets DurationBuckets();  // 1 ms ... 1 h

class Counter {
 public:
  Counter() = default;  // counts nowhere, so that metrics can be left out in tests
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double by = 1);
  double value() const;

 private:
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value);
  void Add(double by);
  double value() const;

 private:
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value);
  // Many at once: how many are in each bucket, the one above all of them last, and what they add up
  // to.
  void ObserveAll(const std::vector<double>& counts, double sum);

 private:
  prometheus::Histogram* histogram_ = nullptr;
};

struct BuildInfo {
  std::string service;  // "adapter-store"
  std::string version;
};

class Registry {
 public:
  // Adds lorry_build_info{service,version} = 1 and the process_... family.
  explicit Registry(const BuildInfo& info);
  ~Registry();

  // The same name and labels again give the same metric. A bad name or other help for a known name
  // is a CHECK failure.
  Counter AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help, const Buckets& buckets,
                         const Labels& labels = {});
  // Whatever its kind; nothing where it is not there. Its handles must not be used any more.
  void Remove(const std::string& name, const Labels& labels);

  // Called before each scrape, on the scraper's thread: sets gauges from state that lives
  // elsewhere.
  void OnScrape(std::function<void()> refresh);
  // The exposition text.
  std::string Scrape();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lorry::metrics
