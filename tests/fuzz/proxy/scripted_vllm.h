// A small vLLM: it loads what it is told to and answers a token for whatever it has loaded; what
// the input plans is answered instead, as it is.
//
// Its calls run on the threads of a ScriptedEngine.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "lib/base/mutex.h"
#include "tests/unit/engine_proxy/door/harness.h"

namespace lorry::proxy::fuzz {

class ScriptedVllm {
 public:
  ScriptedVllm();
  uint16_t port() const { return engine_.port(); }
  // Bytes that answer the next call; the connection ends with them.
  void Plan(std::string bytes);
  // Another process with the same address: nothing is loaded.
  void Restart();

 private:
  bool Answer(const door::testing::Message& request, door::testing::Wire& wire);
  std::string Reply(const std::string& path, const door::testing::Message& request);
  std::string Models() LORRY_REQUIRES(mutex_);

  Mutex mutex_;
  std::deque<std::string> planned_ LORRY_GUARDED_BY(mutex_);
  std::map<std::string, std::string> loaded_ LORRY_GUARDED_BY(mutex_);  // name -> path
  int boot_ LORRY_GUARDED_BY(mutex_) = 1;
  door::testing::ScriptedEngine engine_;  // its threads use what stands above
};

}  // namespace lorry::proxy::fuzz
