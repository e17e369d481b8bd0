// What services that say what a script says have in common: a server that lets everybody in, and
// words that are said in their order to whoever listens by then.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/mutex.h"
#include "lib/rpc/server.h"
#include "tests/fuzz/script.h"

namespace lorry::fuzz {

// Serves anybody on a free port of the loopback while it lives.
class OpenServer {
 public:
  explicit OpenServer(const std::vector<grpc::Service*>& services) {
    auto access = rpc::Access::Open("", /*certificates=*/false);
    LORRY_CHECK(access.ok());
    access_ = *std::move(access);
    gate_.emplace(*access_);
    auto server = rpc::Server::Start({.shutdown_max_ms = kPatienceMs}, *gate_, services);
    LORRY_CHECK(server.ok());
    server_ = *std::move(server);
  }
  ~OpenServer() { LORRY_CHECK(server_->Shutdown().ok()); }
  OpenServer(const OpenServer&) = delete;
  OpenServer& operator=(const OpenServer&) = delete;
  std::string address() const { return server_->address(); }

 private:
  std::unique_ptr<rpc::Access> access_;
  std::optional<rpc::Gate> gate_;
  std::unique_ptr<rpc::Server> server_;
};

// Thread-safe.
template <typename Word>
class ScriptedWords {
 public:
  void Say(Word word) {
    {
      MutexLock lock(mutex_);
      words_.push_back(std::move(word));
    }
    changed_.notify_all();
  }
  // Waits for the next one. None: the call has ended, or nothing more will be said.
  std::optional<Word> Next(const grpc::ServerContext& context) {
    // How soon it is noticed that the call has ended.
    constexpr std::chrono::milliseconds kLook(20);
    MutexLock lock(mutex_);
    while (words_.empty() && !stopped_ && !context.IsCancelled()) changed_.wait_for(mutex_, kLook);
    if (stopped_ || context.IsCancelled()) return std::nullopt;
    Word word = std::move(words_.front());
    words_.pop_front();
    return word;
  }
  // Everything was said.
  bool empty() {
    MutexLock lock(mutex_);
    return words_.empty();
  }
  void Clear() {
    MutexLock lock(mutex_);
    words_.clear();
  }
  void Stop() {
    {
      MutexLock lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ LORRY_GUARDED_BY(mutex_) = false;
  std::deque<Word> words_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::fuzz
