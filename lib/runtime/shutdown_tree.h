// The order in which a process stops, as a structure: what depends on a node is its child and stops
// before it.
//
//   ShutdownTree tree("adapter-store");
//   auto& kv = tree.Add("kv", [&] { store.reset(); });
//   auto& driver = kv.Add("driver", [&] { driver_.Stop(); });
//   driver.Add("rpc", [&] { server->Shutdown(); });
//   tree.Stop();                                       // rpc, driver, kv
//
// Built and stopped by main's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lorry::runtime {

class ShutdownTree {
 public:
  explicit ShutdownTree(
      std::string name, std::function<void()> stop = [] {});
  ShutdownTree(const ShutdownTree&) = delete;
  ~ShutdownTree() { Stop(); }

  // A dependant of this node. Siblings stop in the reverse order of their adding.
  ShutdownTree& Add(std::string name, std::function<void()> stop);
  // Children first, then this; once. Logs each node that takes longer than a second.
  void Stop();

 private:
  const std::string name_;
  std::function<void()> stop_;
  std::vector<std::unique_ptr<ShutdownTree>> children_;
};

}  // namespace lorry::runtime
