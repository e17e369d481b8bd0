#include "lib/transfer/ucx/worker.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/transfer/ucx/config.h"
#include "lib/transfer/ucx/log.h"

namespace lorry::transfer::ucx {
namespace {

constexpr unsigned kMessageId = 1;
// With endpoints a missed wake-up costs at most this; without, only Post wakes the thread, which is
// reliable.
constexpr int kSleepMs = 10;
constexpr int kIdleSleepMs = 500;
// Rounds of progress before posted tasks are looked at again.
constexpr int kProgressRounds = 64;

absl::Status FromUcx(ucs_status_t status, const std::string& verb) {
  return absl::UnavailableError(absl::StrCat("UCX cannot ", verb, ": ", ucs_status_string(status)));
}

absl::StatusOr<sockaddr_storage> Resolve(const std::string& host, int port, socklen_t& length) {
  // Addresses are numeric: a name server must not hold up the thread that moves the bytes.
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 ||
      found == nullptr) {
    return absl::UnavailableError(absl::StrCat(host, " is not a numeric address"));
  }
  sockaddr_storage address{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

}  // namespace

// What a request in UCX's hands refers to.
struct Endpoint::Operation {
  Endpoint* endpoint;
  std::string header;
  Done done;
};

void Endpoint::Started(ucs_status_ptr_t request, Operation* operation) {
  if (UCS_PTR_IS_PTR(request)) return;  // UCX calls back
  const std::unique_ptr<Operation> ended(operation);
  --outstanding_;
  // Not from here: callers do not expect an answer before they return.
  worker_.Defer(
      [done = std::move(ended->done), status = UCS_PTR_STATUS(request)] { done(status); });
}

void Endpoint::HandleSent(void* request, ucs_status_t status, void* operation) {
  const std::unique_ptr<Operation> ended(static_cast<Operation*>(operation));
  Endpoint* endpoint = ended->endpoint;
  ucp_request_free(request);
  --endpoint->outstanding_;
  endpoint->worker_.Defer([done = std::move(ended->done), status] { done(status); });
  endpoint->MaybeEnded();
}

void Endpoint::HandleReceived(void* request, ucs_status_t status, size_t, void* operation) {
  HandleSent(request, status, operation);
}

void Endpoint::Send(std::string header, std::span<const std::byte> payload, Done done) {
  LORRY_CHECK(!closing_);
  auto* operation = new Operation{this, std::move(header), std::move(done)};
  ++outstanding_;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = HandleSent;
  param.user_data = operation;
  Started(ucp_am_send_nbx(ep_, kMessageId, operation->header.data(), operation->header.size(),
                          payload.data(), payload.size(), &param),
          operation);
}

void Endpoint::Receive(void* announced, std::span<std::byte> destination, Done done) {
  LORRY_CHECK(!closing_);
  auto* operation = new Operation{this, {}, std::move(done)};
  ++outstanding_;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = HandleReceived;
  param.user_data = operation;
  Started(ucp_am_recv_data_nbx(worker_.worker_, announced, destination.data(), destination.size(),
                               &param),
          operation);
}

void Endpoint::Flush(Done done) {
  LORRY_CHECK(!closing_);
  auto* operation = new Operation{this, {}, std::move(done)};
  ++outstanding_;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = HandleSent;
  param.user_data = operation;
  Started(ucp_ep_flush_nbx(ep_, &param), operation);
}

void Endpoint::Close(std::function<void()> closed) {
  LORRY_CHECK(!closing_);
  closing_ = true;
  closed_ = std::move(closed);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = HandleClosed;
  param.user_data = this;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(ep_, &param);
  if (!UCS_PTR_IS_PTR(request)) {
    closed_by_ucx_ = true;
    MaybeEnded();
  }
}

void Endpoint::HandleClosed(void* request, ucs_status_t, void* endpoint) {
  ucp_request_free(request);
  auto* self = static_cast<Endpoint*>(endpoint);
  self->closed_by_ucx_ = true;
  self->MaybeEnded();
}

void Endpoint::MaybeEnded() {
  if (!closed_by_ucx_ || outstanding_ > 0 || !closed_) return;
  worker_.Defer([worker = &worker_, self = this, closed = std::exchange(closed_, nullptr)] {
    worker->endpoints_.erase(self);
    closed();
  });
}

void Endpoint::HandleError(void* endpoint, ucp_ep_h, ucs_status_t status) {
  auto* self = static_cast<Endpoint*>(endpoint);
  self->worker_.Defer([worker = &self->worker_, self, status] {
    const auto found = worker->endpoints_.find(self);
    if (found != worker->endpoints_.end() && !self->closing_) self->on_error_(status);
  });
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(Hooks hooks) {
  LogToStderr();
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ReadConfig(&config); status != UCS_OK) {
    return FromUcx(status, "read its configuration");
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  ucs_status_t status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) return FromUcx(status, "start");
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  // Made here, used by the worker's thread: serialised.
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker_params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  ucp_worker_h worker = nullptr;
  status = ucp_worker_create(context, &worker_params, &worker);
  if (status != UCS_OK) {
    ucp_cleanup(context);
    return FromUcx(status, "create a worker");
  }
  int event_fd = -1;
  status = ucp_worker_get_efd(worker, &event_fd);
  if (status != UCS_OK) {
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return FromUcx(status, "sleep on its events");
  }
  return std::unique_ptr<Worker>(new Worker(context, worker, event_fd, std::move(hooks)));
}

Worker::Worker(ucp_context_h context, ucp_worker_h worker, int event_fd, Hooks hooks)
    : context_(context), worker_(worker), event_fd_(event_fd), hooks_(std::move(hooks)) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = kMessageId;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = HandleMessage;
  param.arg = this;
  LORRY_CHECK(ucp_worker_set_am_recv_handler(worker_, &param) == UCS_OK);
  thread_ = std::thread([this] { Run(); });
}

Worker::~Worker() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  ucp_worker_signal(worker_);
  thread_.join();
  LORRY_CHECK(endpoints_.empty());
  StopListening();
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

void Worker::Post(std::function<void()> task) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  ucp_worker_signal(worker_);
}

void Worker::PostAndWait(std::function<void()> task) {
  auto done = std::make_shared<std::promise<void>>();
  Post([&task, done] {
    task();
    done->set_value();
  });
  done->get_future().wait();
}

void Worker::Run() {
  for (;;) {
    RunTasks();
    for (int round = 0; round < kProgressRounds && ucp_worker_progress(worker_) != 0; ++round) {
      if (!deferred_.empty()) break;
    }
    if (const Tick now = Now(); !endpoints_.empty() && now - ticked_at_ >= kTickMs) {
      ticked_at_ = now;
      hooks_.on_tick(now);
    }
    {
      MutexLock lock(mutex_);
      if (stopping_ && posted_.empty() && deferred_.empty()) return;
      if (!posted_.empty()) continue;
    }
    if (deferred_.empty()) Sleep();
  }
}

void Worker::RunTasks() {
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

void Worker::Sleep() {
  // BUSY: something came since the last round. A signal sent before this moment is such a thing
  // too.
  if (ucp_worker_arm(worker_) != UCS_OK) return;
  pollfd waited{.fd = event_fd_, .events = POLLIN, .revents = 0};
  poll(&waited, 1, endpoints_.empty() ? kIdleSleepMs : kSleepMs);
}

absl::StatusOr<int> Worker::Listen(const std::string& host, int port) {
  socklen_t length = 0;
  auto address = Resolve(host, port, length);
  if (!address.ok()) return address.status();
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {.addr = reinterpret_cast<const sockaddr*>(&*address), .addrlen = length};
  params.conn_handler = {.cb = HandleConnect, .arg = this};
  if (const ucs_status_t status = ucp_listener_create(worker_, &params, &listener_);
      status != UCS_OK) {
    listener_ = nullptr;
    return FromUcx(status, absl::StrCat("listen on ", host, ":", port));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const ucs_status_t status = ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    return FromUcx(status, "tell its port");
  }
  const auto* bound = &attributes.sockaddr;
  return ntohs(bound->ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(bound)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(bound)->sin_port);
}

void Worker::StopListening() {
  if (listener_ != nullptr) ucp_listener_destroy(std::exchange(listener_, nullptr));
}

absl::StatusOr<Endpoint*> Worker::Create(ucp_ep_params_t params,
                                         std::function<void(ucs_status_t)> on_error) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(*this, std::move(on_error)));
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = Endpoint::HandleError, .arg = endpoint.get()};
  if (const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint->ep_);
      status != UCS_OK) {
    return FromUcx(status, "create an endpoint");
  }
  Endpoint* raw = endpoint.get();
  endpoints_.emplace(raw, std::move(endpoint));
  return raw;
}

absl::StatusOr<Endpoint*> Worker::Connect(const std::string& host, int port,
                                          std::function<void(ucs_status_t)> on_error) {
  socklen_t length = 0;
  auto address = Resolve(host, port, length);
  if (!address.ok()) return address.status();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {.addr = reinterpret_cast<const sockaddr*>(&*address), .addrlen = length};
  return Create(params, std::move(on_error));
}

absl::StatusOr<Endpoint*> Worker::Accept(ucp_conn_request_h request,
                                         std::function<void(ucs_status_t)> on_error) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  return Create(params, std::move(on_error));
}

void Worker::Reject(ucp_conn_request_h request) {
  if (listener_ != nullptr) ucp_listener_reject(listener_, request);
}

void Worker::HandleConnect(ucp_conn_request_h request, void* worker) {
  auto* self = static_cast<Worker*>(worker);
  self->Defer([self, request] { self->hooks_.on_connect(request); });
}

ucs_status_t Worker::HandleMessage(void* worker, const void* header, size_t header_length,
                                   void* data, size_t length, const ucp_am_recv_param_t* param) {
  Incoming incoming;
  if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) incoming.endpoint = param->reply_ep;
  incoming.header = {static_cast<const char*>(header), header_length};
  incoming.length = length;
  if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
    incoming.announced = data;
  } else {
    incoming.eager = {static_cast<const std::byte*>(data), length};
  }
  const bool kept = static_cast<Worker*>(worker)->hooks_.on_message(incoming);
  // Returning OK for an announcement that is not kept tells its sender that it was refused.
  return kept && incoming.announced != nullptr ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace lorry::transfer::ucx
