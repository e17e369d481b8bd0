#include "lib/transfer/ucx/loop.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/transfer/ucx/config.h"
#include "lib/transfer/ucx/log.h"

namespace lorry::transfer::ucx {
namespace {

// How long the thread sleeps at most. With endpoints: UCX may miss a wake-up, which then costs no
// more than this.
constexpr Tick kSleepMs = 10;
// While sessions are set up, so that their deadlines are looked at. Only Post wakes the thread then.
constexpr Tick kWaitingSleepMs = 50;
// Between two looks at a peer's FIFO that is full: nothing tells when it has room again. Looking
// without a pause takes the core from the peer that makes the room: with this pause a loaded machine
// moved ten times as much, at a third of the CPU time.
constexpr timespec kBusyPause{.tv_sec = 0, .tv_nsec = 50'000};
constexpr Tick kIdleSleepMs = 500;  // with neither
// Rounds of progress on one endpoint before another has its turn.
constexpr int kProgressRounds = 64;

absl::StatusOr<ucp_context_h> MakeContext(UcxLane lane, const UcxDevices& devices) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ReadConfig(lane, devices, &config); status != UCS_OK) {
    return FromUcx(status, "read its configuration");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) return FromUcx(status, absl::StrCat("start ", ToAbsl(NameOf(lane))));
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Loop>> Loop::Start(const std::vector<UcxLane>& lanes,
                                                  const UcxDevices& devices, Hooks hooks) {
  LogToStderr();
  Contexts contexts;
  for (const UcxLane lane : lanes) {
    const absl::StatusOr<ucp_context_h> context = MakeContext(lane, devices);
    if (!context.ok()) {
      for (const auto& [made, other] : contexts) ucp_cleanup(other);
      return context.status();
    }
    contexts[lane] = *context;
  }
  const int epoll_fd = ::epoll_create1(EPOLL_CLOEXEC);
  const int wake_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{.events = EPOLLIN, .data = {.fd = wake_fd}};
  LORRY_CHECK(epoll_fd >= 0 && wake_fd >= 0 &&
              ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) == 0);
  return std::unique_ptr<Loop>(new Loop(std::move(contexts), epoll_fd, wake_fd, std::move(hooks)));
}

Loop::Loop(Contexts contexts, int epoll_fd, int wake_fd, Hooks hooks)
    : contexts_(std::move(contexts)),
      epoll_fd_(epoll_fd),
      wake_fd_(wake_fd),
      hooks_(std::move(hooks)),
      thread_([this] { Run(); }) {}

Loop::~Loop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  Post([] {});
  thread_.join();
  LORRY_CHECK(endpoints_.empty());
  for (const auto& [lane, context] : contexts_) ucp_cleanup(context);
  ::close(epoll_fd_);
  ::close(wake_fd_);
}

void Loop::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  // A write can fail only because the counter is full, and then the thread wakes all the same.
  (void)!::write(wake_fd_, &one, sizeof(one));
}

void Loop::PostAndWait(std::function<void()> task) {
  auto done = std::make_shared<std::promise<void>>();
  Post([&task, done] {
    task();
    done->set_value();
  });
  done->get_future().wait();
}

absl::StatusOr<Endpoint*> Loop::Open(UcxLane lane, Endpoint::Hooks hooks) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(*this, std::move(hooks)));
  LORRY_RETURN_IF_ERROR(endpoint->Init(contexts_.at(lane)));
  epoll_event event{.events = EPOLLIN, .data = {.fd = endpoint->event_fd()}};
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, endpoint->event_fd(), &event) != 0) {
    return absl::UnavailableError("the system has no room for another event descriptor");
  }
  Endpoint* raw = endpoint.get();
  endpoints_.emplace(raw, std::move(endpoint));
  return raw;
}

void Loop::Remove(Endpoint* endpoint) {
  const auto found = endpoints_.find(endpoint);
  (void)::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, endpoint->event_fd(), nullptr);
  const auto closed = std::move(endpoint->closed_);
  endpoints_.erase(found);
  // Last of all: the endpoint's destructor has deferred the callbacks of what it abandoned.
  Defer(closed);
}

void Loop::Run() {
  for (;;) {
    RunTasks();
    const bool moved = ProgressAll();
    if (const Tick now = Now(); now - ticked_at_ >= kTickMs) {
      ticked_at_ = now;
      for (const auto& [raw, endpoint] : endpoints_) {
        if (!endpoint->InTime(now)) endpoint->End();
      }
      hooks_.on_tick(now);
    }
    {
      MutexLock lock(mutex_);
      if (stopping_ && posted_.empty() && deferred_.empty()) return;
      if (!posted_.empty()) continue;
    }
    if (!moved && deferred_.empty()) Sleep();
  }
}

void Loop::RunTasks() {
  std::deque<std::function<void()>> posted;
  {
    MutexLock lock(mutex_);
    posted.swap(posted_);
  }
  for (auto& task : posted) task();
  while (!deferred_.empty()) {
    for (auto& task : std::exchange(deferred_, {})) task();
  }
}

// Only tasks add and remove endpoints, and none runs here, so that the map does not change.
bool Loop::ProgressAll() {
  bool moved = false;
  for (const auto& [raw, endpoint] : endpoints_) {
    for (int round = 0; round < kProgressRounds && endpoint->Progress() != 0; ++round) moved = true;
  }
  return moved;
}

void Loop::Sleep() {
  const Tick longest_ms =
      !endpoints_.empty() ? kSleepMs : (hooks_.busy() ? kWaitingSleepMs : kIdleSleepMs);
  timespec pause{.tv_sec = 0, .tv_nsec = longest_ms * 1'000'000};
  for (const auto& [raw, endpoint] : endpoints_) {
    if (endpoint->Arm()) continue;
    // Something came since the last round, or waits for room in a peer's FIFO.
    pause = kBusyPause;
    break;
  }
  pollfd woken{.fd = epoll_fd_, .events = POLLIN, .revents = 0};
  (void)::ppoll(&woken, 1, &pause, nullptr);
  uint64_t count = 0;
  (void)!::read(wake_fd_, &count, sizeof(count));
}

}  // namespace lorry::transfer::ucx
