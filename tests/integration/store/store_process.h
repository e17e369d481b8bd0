// adapter-store as a child process: started on free ports, killed at will.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

namespace lorry::store {

class StoreProcess {
 public:
  // `fault`: LORRY_FAULT of lib/runtime/fault_point.h; its stderr goes to `log`.
  StoreProcess(const std::string& data_dir, const std::string& fault, const std::string& log) {
    int out[2];
    if (::pipe(out) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      ::close(out[0]);
      ::close(out[1]);
      if (std::freopen(log.c_str(), "a", stderr) == nullptr) ::_exit(1);
      ::signal(SIGXFSZ, SIG_IGN);  // a write beyond LimitFiles fails
      ::setenv("LORRY_FAULT", fault.c_str(), 1);
      const std::string data = "--data-dir=" + data_dir;
      ::execl(LORRY_STORE_BINARY, "adapter-store", data.c_str(), "--listen=127.0.0.1:0",
              "--admin-listen=127.0.0.1:0", "--ticket-life-ms=60000", "--sweep-interval-ms=10",
              "--store-keep=0", nullptr);
      ::_exit(127);
    }
    ::close(out[1]);
    out_ = ::fdopen(out[0], "r");
    ReadReady();
  }
  ~StoreProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      (void)Wait();
    }
    std::fclose(out_);
  }
  StoreProcess(const StoreProcess&) = delete;

  bool ready() const { return !grpc_.empty(); }
  const std::string& grpc() const { return grpc_; }
  int admin_port() const { return admin_port_; }
  void Kill(int signal) { ::kill(pid_, signal); }
  // No file may grow beyond it from now on.
  void LimitFiles(uint64_t bytes) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    if (::prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr) != 0) std::abort();
  }
  // The status of waitpid, once it has ended.
  int Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  bool died() {
    if (pid_ < 0) return true;
    if (::waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
    pid_ = -1;
    return true;
  }

 private:
  // Blocks until it serves or has ended.
  void ReadReady() {
    char line[4096];
    while (std::fgets(line, sizeof(line), out_) != nullptr) {
      const std::string text = line;
      if (text.rfind("READY ", 0) != 0) continue;
      const auto ready = nlohmann::json::parse(text.substr(6));
      grpc_ = ready.at("grpc");
      const std::string admin = ready.at("admin");
      admin_port_ = std::stoi(admin.substr(admin.rfind(':') + 1));
      return;
    }
  }

  pid_t pid_ = -1;
  FILE* out_ = nullptr;
  std::string grpc_;
  int admin_port_ = 0;
};

}  // namespace lorry::store
