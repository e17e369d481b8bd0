#include "lib/transfer/ucx/endpoint.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/strings.h"
#include "lib/transfer/ucx/loop.h"

namespace lorry::transfer::ucx {
namespace {

constexpr unsigned kMessageId = 1;

}  // namespace

absl::Status FromUcx(ucs_status_t status, std::string_view verb) {
  return absl::UnavailableError(
      absl::StrCat("UCX cannot ", ToAbsl(verb), ": ", ucs_status_string(status)));
}

// What a request in UCX's hands refers to.
struct Endpoint::Operation {
  Endpoint* endpoint;
  std::string header;
  Done done;
};

absl::Status Endpoint::Init(ucp_context_h context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  ucs_status_t status = ucp_worker_create(context, &params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return FromUcx(status, "create a worker");
  }
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return FromUcx(status, "sleep on its events");
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = HandleMessage;
  handler.arg = this;
  status = ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return FromUcx(status, "take messages");
  ucp_address_t* address = nullptr;
  size_t length = 0;
  status = ucp_worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) return FromUcx(status, "tell its address");
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

Endpoint::~Endpoint() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  // Not before: until its worker was gone UCX could still use the memory of these operations.
  for (Operation* operation : outstanding_) {
    const std::unique_ptr<Operation> abandoned(operation);
    loop_.Defer([done = std::move(abandoned->done)] { done(UCS_ERR_CANCELED); });
  }
}

absl::Status Endpoint::Connect(const std::string& address) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = HandleError, .arg = this};
  const ucs_status_t status = ucp_ep_create(worker_, &params, &ep_);
  if (status == UCS_OK) return absl::OkStatus();
  ep_ = nullptr;
  return FromUcx(status, "reach the peer");
}

void Endpoint::Started(ucs_status_ptr_t request, Operation* operation) {
  if (UCS_PTR_IS_PTR(request)) return;  // UCX calls back
  Finished(operation, UCS_PTR_STATUS(request));
}

void Endpoint::Finished(Operation* operation, ucs_status_t status) {
  const std::unique_ptr<Operation> ended(operation);
  outstanding_.erase(operation);
  // Deferred, because callers do not expect the callback before Send or Receive has returned.
  loop_.Defer([done = std::move(ended->done), status] { done(status); });
  MaybeEnded();
}

void Endpoint::HandleSent(void* request, ucs_status_t status, void* operation) {
  ucp_request_free(request);
  auto* ended = static_cast<Operation*>(operation);
  ended->endpoint->Finished(ended, status);
}

void Endpoint::HandleReceived(void* request, ucs_status_t status, size_t, void* operation) {
  HandleSent(request, status, operation);
}

void Endpoint::Send(std::string header, std::span<const std::byte> payload, Done done) {
  LORRY_CHECK(!closing_ && ep_ != nullptr);
  auto* operation = new Operation{this, std::move(header), std::move(done)};
  outstanding_.insert(operation);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
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
  outstanding_.insert(operation);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.recv_am = HandleReceived;
  param.user_data = operation;
  Started(ucp_am_recv_data_nbx(worker_, announced, destination.data(), destination.size(), &param),
          operation);
}

void Endpoint::Flush(Done done) {
  LORRY_CHECK(!closing_ && ep_ != nullptr);
  auto* operation = new Operation{this, {}, std::move(done)};
  outstanding_.insert(operation);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = HandleSent;
  param.user_data = operation;
  Started(ucp_ep_flush_nbx(ep_, &param), operation);
}

void Endpoint::Close(std::function<void()> closed) {
  LORRY_CHECK(!closing_);
  closing_ = true;
  closing_since_ = loop_.Now();
  closed_ = std::move(closed);
  ucs_status_ptr_t request = nullptr;
  if (ep_ != nullptr) {
    ucp_request_param_t param{};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    param.cb.send = HandleClosed;
    param.user_data = this;
    request = ucp_ep_close_nbx(ep_, &param);
  }
  if (UCS_PTR_IS_PTR(request)) return;
  closed_by_ucx_ = true;
  MaybeEnded();
}

void Endpoint::HandleClosed(void* request, ucs_status_t, void* endpoint) {
  ucp_request_free(request);
  auto* self = static_cast<Endpoint*>(endpoint);
  self->closed_by_ucx_ = true;
  self->MaybeEnded();
}

void Endpoint::MaybeEnded() {
  if (closed_by_ucx_ && outstanding_.empty()) End();
}

void Endpoint::End() {
  if (std::exchange(ended_, true)) return;
  loop_.Defer([this] { loop_.Remove(this); });
}

void Endpoint::HandleError(void* endpoint, ucp_ep_h, ucs_status_t status) {
  auto* self = static_cast<Endpoint*>(endpoint);
  self->loop_.Defer([&loop = self->loop_, self, status] {
    if (loop.Has(self) && !self->closing_) self->hooks_.on_error(status);
  });
}

ucs_status_t Endpoint::HandleMessage(void* endpoint, const void* header, size_t header_length,
                                     void* data, size_t length, const ucp_am_recv_param_t* param) {
  auto* self = static_cast<Endpoint*>(endpoint);
  if (self->closing_) return UCS_OK;
  Incoming incoming;
  incoming.header = {static_cast<const char*>(header), header_length};
  incoming.length = length;
  if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
    incoming.announced = data;
  } else {
    incoming.eager = {static_cast<const std::byte*>(data), length};
  }
  const bool kept = self->hooks_.on_message(incoming);
  // Returning OK for an announcement that is not kept tells its sender that it was refused.
  return kept && incoming.announced != nullptr ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace lorry::transfer::ucx
