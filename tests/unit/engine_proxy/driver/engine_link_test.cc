// The engine as the machine is told of it, over looks that fail. The engine is a few pages over
// HTTP, in this process.
#include "services/engine_proxy/driver/engine_link.h"

#include <gmock/gmock.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "lib/base/mutex.h"

namespace lorry::proxy {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using net::ip::tcp;

// Answers each path with what it was given for that.
class Pages {
 public:
  struct Page {
    unsigned status = 200;
    std::string body;
    bool is_held = false;  // whoever asks waits until it is given anew
  };

  Pages()
      : acceptor_(io_, tcp::endpoint(net::ip::make_address("127.0.0.1"), 0)),
        port_(acceptor_.local_endpoint().port()),
        thread_([this] { Accept(); }) {}
  ~Pages() {
    {
      MutexLock lock(mutex_);
      stops_ = true;
      changed_.notify_all();
    }
    net::io_context io;
    boost::system::error_code ignored;
    tcp::socket(io).connect({net::ip::make_address("127.0.0.1"), port_}, ignored);  // wakes it
    thread_.join();
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  void Set(const std::string& path, Page page) {
    MutexLock lock(mutex_);
    pages_[path] = std::move(page);
    changed_.notify_all();
  }
  // The next one who asks gets this, and everybody else what was given before.
  void SetOnce(const std::string& path, Page page) {
    MutexLock lock(mutex_);
    once_[path] = std::move(page);
  }
  // Until somebody waits for a page that is held.
  void AwaitAskedFor(const std::string& path) {
    MutexLock lock(mutex_);
    while (!waited_for_.contains(path)) changed_.wait(mutex_);
  }

 private:
  void Accept() {
    std::vector<std::thread> answering;
    for (;;) {
      auto peer = std::make_shared<tcp::socket>(acceptor_.accept());
      {
        MutexLock lock(mutex_);
        if (stops_) break;
      }
      answering.emplace_back([this, peer] { Answer(*peer); });
    }
    for (std::thread& thread : answering) thread.join();
  }
  void Answer(tcp::socket& peer) {
    boost::system::error_code error;
    boost::beast::flat_buffer buffer;
    http::request<http::string_body> request;
    http::read(peer, buffer, request, error);
    if (error) return;
    const Page page = PageAt(std::string(request.target()));
    http::response<http::string_body> response(static_cast<http::status>(page.status), 11);
    response.keep_alive(false);
    response.body() = page.body;
    response.prepare_payload();
    http::write(peer, response, error);
  }
  Page PageAt(const std::string& path) {
    MutexLock lock(mutex_);
    if (auto once = once_.extract(path)) return once.mapped();
    for (; pages_[path].is_held && !stops_; changed_.wait(mutex_)) {
      waited_for_.insert(path);
      changed_.notify_all();
    }
    return pages_[path];
  }

  net::io_context io_;
  tcp::acceptor acceptor_;
  const uint16_t port_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Page> pages_, once_ LORRY_GUARDED_BY(mutex_);
  std::set<std::string> waited_for_ LORRY_GUARDED_BY(mutex_);
  bool stops_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Pages::Page InfoOf(const std::string& life) {
  return {200, R"({"enable_lora":true,"version":"0.5.23","served_model_name":"base",
                   "startup_time":{"load_weight":)" +
                   life + "}}"};
}

class EngineLinkTest : public ::testing::Test {
 protected:
  EngineLinkTest() {
    pages_.Set("/v1/models", {200, R"({"data":[{"id":"base","owned_by":"sglang","root":"m"}]})"});
    pages_.Set("/server_info", InfoOf("1"));
    pages_.Set("/update", {200, "{}"});
  }
  ~EngineLinkTest() override { link_.reset(); }

  // The boot that is seen first.
  BootId Connect(int64_t probe_deadline_ms = 60'000, int64_t busy_probe_deadline_ms = 60'000) {
    link_.emplace(
        EngineLink::Options{
            .engine = {.url = pages_.url(), .shed_for = shed_for_},
            .find_base_model = [](const auto&) { return FoundBaseModel{.unchecked = true}; },
            .look_every_ms = 1,
            .look_deadline_ms = 60'000,
            .probe_deadline_ms = probe_deadline_ms,
            .busy_probe_deadline_ms = busy_probe_deadline_ms},
        [this](Event event) { Hear(std::move(event)); },
        EngineLink::Listeners{.on_facts = [this](const auto&) { ++lives_; },
                              .others = [] { return EngineLink::Others(); }});
    link_->Start();
    return Next<EngineSeen>().boot;
  }
  ProbeDone AnswerToProbe(const BootId& boot) {
    link_->Run(Probe{.op = 1,
                     .boot = boot,
                     .name = EngineName("math-v1"),
                     .question = {.kind = fleet::ProbeKind::kToken}});
    return Next<ProbeDone>();
  }

  // Waits for the next event of this kind that comes after the last one that was waited for.
  template <typename Kind>
  Kind Next() {
    MutexLock lock(mutex_);
    for (;; changed_.wait(mutex_)) {
      while (told_ < events_.size()) {
        if (const auto* event = std::get_if<Kind>(&events_[told_++])) return *event;
      }
    }
  }
  // SGLang at work in its scheduler answers its own page with an error, or too late.
  void Stall() { pages_.Set("/server_info", {503, "busy"}); }

  Pages pages_;
  engines::Engine::Millis shed_for_{60'000};
  int lives_ = 0;  // of the link's thread, told by its events
  std::optional<EngineLink> link_;

 private:
  void Hear(Event event) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<Event> events_ LORRY_GUARDED_BY(mutex_);
  size_t told_ LORRY_GUARDED_BY(mutex_) = 0;
};

TEST_F(EngineLinkTest, ALifeThatIsLostFromSightAndSeenAgainIsCountedOnce) {
  const BootId boot = Connect();
  Stall();
  EXPECT_FALSE(Next<EngineLost>().ended);
  pages_.Set("/server_info", InfoOf("1"));
  EXPECT_EQ(Next<EngineSeen>().boot, boot);
  EXPECT_EQ(lives_, 1);
  Stall();
  Next<EngineLost>();
  pages_.Set("/server_info", InfoOf("2"));
  EXPECT_NE(Next<EngineSeen>().boot, boot);
  EXPECT_EQ(lives_, 2);
}

// A name may stand for nothing, or for another machine, between the two: no look is refused.
TEST_F(EngineLinkTest, AnEngineOfAnotherKindIsRecognisedThoughNoLookWasRefused) {
  Connect();
  pages_.Set("/server_info", {404, "{}"});
  pages_.Set("/get_server_info", {404, "{}"});
  pages_.Set("/v1/models", {200, R"({"data":[{"id":"base","owned_by":"vllm","root":"m"}]})"});
  pages_.Set("/version", {200, R"({"version":"0.32.0"})"});
  pages_.Set("/metrics", {200,
                          "process_start_time_seconds 1.5e+09\nvllm:num_requests_running 0\n"
                          "vllm:num_requests_waiting 0\n"});
  Next<EngineLost>();
  EXPECT_EQ(Next<EngineSeen>().limits.kind, fleet::EngineKind::kVllm);
}

TEST_F(EngineLinkTest, WhoHasAnsweredACallIsAskedForTheNextOneThoughLooksHaveFailed) {
  const BootId boot = Connect();
  const auto update = [&](OpId op) {
    link_->Run(PassCall{op, boot, /*ticket=*/1, /*deadline_ms=*/60'000},
               engines::RawCall{"POST", "/update", "{}"}, [](const engines::RawReply&) {});
  };
  pages_.Set("/update", {.is_held = true});
  update(1);
  pages_.AwaitAskedFor("/update");
  Stall();
  Next<EngineLost>();
  pages_.Set("/server_info", {.is_held = true});
  pages_.AwaitAskedFor("/server_info");
  pages_.Set("/update", {200, "{}"});
  EXPECT_EQ(Next<PassDone>().outcome, Outcome::kOk);
  update(2);
  EXPECT_EQ(Next<PassDone>().outcome, Outcome::kOk);
}

constexpr char kFull[] = R"({"error":{"message":"The request queue is full."}})";
constexpr char kAborted[] = R"({"output_ids":[],"meta_info":{"finish_reason":{"type":"abort"}}})";
constexpr char kToken[] = R"({"output_ids":[164],"meta_info":{"finish_reason":{"type":"length"}}})";

TEST_F(EngineLinkTest, AProbeThatIsAbortedForOthersSakeIsAskedAgain) {
  pages_.Set("/generate", {200, kToken});
  pages_.SetOnce("/generate", {200, kAborted});
  const ProbeDone done = AnswerToProbe(Connect());
  EXPECT_EQ(done.outcome, Outcome::kOk) << done.detail;
}

// Well before its deadline: calls of a framework wait meanwhile, one that empties the queue too.
TEST_F(EngineLinkTest, OneThatIsShedForLongWaitedBehindOthers) {
  shed_for_ = engines::Engine::Millis(1);
  pages_.Set("/generate", {503, kFull});
  const ProbeDone done = AnswerToProbe(Connect(/*probe_deadline_ms=*/600'000));
  EXPECT_EQ(done.outcome, Outcome::kUnknown);
  EXPECT_TRUE(done.others_heard) << done.detail;
}

Pages::Page LoadsOf(int running, int waiting, double at) {
  return {200, absl::StrFormat(
                   R"({"loads":[{"num_running_reqs":%d,"num_waiting_reqs":%d,"timestamp":%f}]})",
                   running, waiting, at)};
}

struct BehindCase {
  const char* name;
  Pages::Page before, after;
  bool others_heard;
};
class EngineLinkBehindTest : public EngineLinkTest,
                             public ::testing::WithParamInterface<BehindCase> {};

// The door sees nothing of clients that call the engine directly. By its own account it is busy, and
// so the probe gets the time of a busy engine.
TEST_P(EngineLinkBehindTest, AProbeThatIsNotAnswered) {
  pages_.Set("/generate", {.is_held = true});
  pages_.Set("/v1/loads", GetParam().after);
  pages_.SetOnce("/v1/loads", GetParam().before);
  const ProbeDone done = AnswerToProbe(Connect(/*probe_deadline_ms=*/600'000,
                                               /*busy_probe_deadline_ms=*/200));
  EXPECT_EQ(done.outcome, Outcome::kUnknown);
  EXPECT_EQ(done.others_heard, GetParam().others_heard) << done.detail;
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineLinkBehindTest,
    ::testing::Values(
        BehindCase{"WaitedWhereTheEngineGoesOn", LoadsOf(8, 3, 1), LoadsOf(8, 4, 2), true},
        BehindCase{"StallsWhatStandsStill", LoadsOf(8, 3, 1), LoadsOf(8, 4, 1), false},
        BehindCase{"StallsWhatWorksForItAlone", LoadsOf(1, 0, 1), LoadsOf(0, 1, 2), false},
        BehindCase{"StallsWhatDoesNotSay", LoadsOf(8, 3, 1), {404, ""}, false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lorry::proxy
