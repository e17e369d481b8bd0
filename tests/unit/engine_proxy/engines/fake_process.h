// A fake engine (tests/fakes) as a child process, ended with it. One thread at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lorry::engines {

// False where .venv/dev is missing; `tools/setup-venvs dev` makes it.
bool CanRunFakes();

// Directory of the tiny model's adapters (tools/engines/tiny_model.py), made on the first call.
std::string TinyAdapters();

class FakeProcess {
 public:
  // Ready when this returns. `kind` is "sglang" or "vllm"; `environment` holds NAME=value.
  FakeProcess(const std::string& kind, std::vector<std::string> arguments = {},
              std::vector<std::string> environment = {});
  ~FakeProcess();
  FakeProcess(const FakeProcess&) = delete;
  FakeProcess& operator=(const FakeProcess&) = delete;

  std::string url() const { return "http://127.0.0.1:" + port_; }
  void Kill();
  void StartAgain();  // a new life on the same port

  void Post(const std::string& path, const std::string& body) const;
  // Flips switches, as JSON.
  void Set(const std::string& switches) const { Post("/_fake/set", switches); }

 private:
  void Start();

  const std::string kind_;
  const std::vector<std::string> arguments_;
  const std::vector<std::string> environment_;
  std::string port_ = "0";
  pid_t pid_ = -1;
};

}  // namespace lorry::engines
