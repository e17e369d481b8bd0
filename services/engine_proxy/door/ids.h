// The ids of one request on SGLang: the engine's, and what the client calls them.
//
// SGLang aborts by prefix and refuses an id that is in use, so the door gives out its own: of one
// length, and unique. One request has one for each sample of each prompt; sample s of prompt p is
// number s * prompts + p.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/base/mutex.h"

namespace lorry::door {

// Numbered ids: 32 hex digits, of which the last eight count up. All of one request can be found in
// a reply by the 24 digits that they share.
class IdSeries {
 public:
  static constexpr size_t kBytes = 32;
  static constexpr size_t kSharedBytes = 24;
  IdSeries() = default;
  // `first` are 32 random hex digits in lower case.
  IdSeries(std::string first, uint32_t size);
  uint32_t size() const { return size_; }
  std::string At(uint32_t number) const;
  std::string_view shared() const { return std::string_view(first_).substr(0, kSharedBytes); }
  // The number of `id`, if it is one of these.
  std::optional<uint32_t> Find(std::string_view id) const;

 private:
  std::string first_;
  uint32_t low_ = 0;  // the last eight digits of the first
  uint32_t size_ = 0;
};

// What the client calls its prompts: nothing, or one id, or one for each of a batch. SGLang makes
// "mine_0", "mine_1" of one id for a batch (io_struct.py, _normalize_rid).
struct ClientIds {
  std::vector<std::string> given;
  bool numbered = false;
  bool empty() const { return given.empty(); }
  std::string At(uint32_t prompt) const;
};

// Replaces the engine's ids by the client's in a byte stream that comes in pieces. The cost does
// not depend on how many there are.
class IdRestorer {
 public:
  IdRestorer(IdSeries engine, uint32_t prompts, ClientIds client)
      : engine_(std::move(engine)), prompts_(prompts), client_(std::move(client)) {}
  // Appends what can be passed on now. A tail that may be the beginning of an id is kept until more
  // is known, except at the end of the stream.
  void Feed(std::string_view piece, bool end, std::string* out);

 private:
  size_t KeptFrom(size_t at) const;
  IdSeries engine_;
  uint32_t prompts_;
  ClientIds client_;
  std::string kept_;
};

// A request while it runs, so that it can be aborted. An abort reaches the engine only after the
// first token, because aborting a queued request leaks its reference (sglang#34205), and the two
// may come in either order. Thread-safe.
class LiveRequest {
 public:
  // No ids: the engine has its own, and nothing can be aborted. `authorization` is what its client
  // showed, where it may abort it by an id of its own.
  LiveRequest(IdSeries ids, uint32_t prompts, std::string authorization = {})
      : ids_(std::move(ids)),
        prompts_(prompts),
        authorization_(std::move(authorization)),
        states_(ids_.size()) {}
  const std::string& authorization() const { return authorization_; }
  uint32_t prompts() const { return prompts_; }
  const IdSeries& ids() const { return ids_; }
  // Both tell which ids are to be aborted now; each of them is told once. Answered costs what
  // `numbers` are, not what the request is: it is called for each piece of a reply.
  std::vector<std::string> Answered(std::span<const uint32_t> numbers) LORRY_EXCLUDES(mutex_);
  std::vector<std::string> WantAbort(std::optional<uint32_t> prompt = {}) LORRY_EXCLUDES(mutex_);
  // The same, by the client's own wish: nothing goes on behind it.
  std::vector<std::string> ClientAborts(std::optional<uint32_t> prompt) LORRY_EXCLUDES(mutex_);
  // Whether its client wants none of it any more.
  bool client_aborted() const { return client_aborted_; }
  // Who is told when that comes true, on the thread that tells it. Null: nobody.
  void OnClientAborted(std::function<void()> told) LORRY_EXCLUDES(mutex_);

 private:
  // Of one id, which is to be aborted once both hold.
  struct State {
    bool answered = false;
    bool unwanted = false;
  };
  const IdSeries ids_;
  const uint32_t prompts_;
  const std::string authorization_;
  std::atomic<bool> client_aborted_{false};
  Mutex mutex_;
  std::vector<State> states_ LORRY_GUARDED_BY(mutex_);
  std::function<void()> told_ LORRY_GUARDED_BY(mutex_);
};

// Learns from the stream of one sample which of its prompts the engine has begun to answer. Of one
// prompt the first byte says so. The prompts of a batch are answered apart from each other: each
// when an event bears its id. One thread's.
class AnswerWatch {
 public:
  AnswerWatch(std::shared_ptr<LiveRequest> live, uint32_t sample);
  // The ids that are to be aborted now that `piece` has come.
  std::vector<std::string> Heard(std::string_view piece);

 private:
  std::vector<uint32_t> AnsweredBy(std::string_view piece);
  const std::shared_ptr<LiveRequest> live_;
  const uint32_t sample_;
  uint32_t waited_for_;  // prompts whose answer has not begun
  std::vector<bool> answered_;
  std::string tail_;  // of the stream: the beginning of an id may be in it
};

// Client ids → running requests. Thread-safe.
class LiveIds {
 public:
  struct Target {
    std::shared_ptr<LiveRequest> request;
    std::optional<uint32_t> prompt;  // all of them
  };
  void Add(const ClientIds& ids, const std::shared_ptr<LiveRequest>& request)
      LORRY_EXCLUDES(mutex_);
  void Remove(const ClientIds& ids, const LiveRequest* request) LORRY_EXCLUDES(mutex_);
  std::vector<Target> Find(std::string_view id) LORRY_EXCLUDES(mutex_);
  size_t size() LORRY_EXCLUDES(mutex_);

 private:
  struct Entry {
    Target target;
    bool numbered = false;
  };
  Mutex mutex_;
  std::unordered_multimap<std::string, Entry> live_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::door
