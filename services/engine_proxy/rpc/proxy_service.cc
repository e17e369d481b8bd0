#include "services/engine_proxy/rpc/proxy_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/rpc/fleet_messages.h"

namespace lorry::proxy {
namespace {

// Of a call's deadline, for the way back of its answer.
constexpr int64_t kAnswerMarginMs = 500;

}  // namespace

grpc::Status ProxyService::GetStatus(grpc::ServerContext* context,
                                     const engine::v1::GetStatusRequest*,
                                     engine::v1::GetStatusResponse* response) {
  return gate_.Serve(
      *context, "GetStatus", rpc::Role::kReader, [&](const rpc::Call& call) -> absl::Status {
        LORRY_ASSIGN_OR_RETURN(const Proxy::View view, proxy_.GetView(call.deadline));
        response->set_member(self_.member);
        response->set_pool(self_.pool);
        response->set_engine_address(self_.engine_address);
        response->set_door_address(self_.door_address);
        response->set_attached(attach_.attached());
        *response->mutable_desired() = rpc::ToProto(attach_.desired());
        *response->mutable_observed() = rpc::ToProto(view.observed);
        for (const auto& [transport, bytes] : fetcher_.fetched_bytes())
          (*response->mutable_fetched_bytes())[transport] = bytes;
        response->set_live_requests(door_.Snapshot().live);
        return absl::OkStatus();
      });
}

grpc::Status ProxyService::Explain(grpc::ServerContext* context,
                                   const engine::v1::ExplainRequest* request,
                                   engine::v1::ExplainResponse* response) {
  return gate_.Serve(
      *context, "Explain", rpc::Role::kReader, [&](const rpc::Call&) -> absl::Status {
        const std::optional<door::Explained> found = door_.Explain(request->request_id());
        if (!found.has_value()) {
          return Error(absl::StatusCode::kNotFound, "UNKNOWN_REQUEST",
                       absl::StrCat("this door has not seen the request ", request->request_id(),
                                    ", or forgot it; the id is in the reply's X-Lorry-Request-Id"));
        }
        response->set_request_id(found->request_id);
        response->set_route(found->path);
        response->set_selector(absl::StrJoin(found->asked, ","));
        if (!found->resolved.empty()) {
          const door::Resolved& first = found->resolved.front();
          response->set_engine_name(first.name.value);
          response->set_epoch(first.epoch.value);
          if (first.lag.has_value()) response->set_lag(*first.lag);
        }
        response->set_status(static_cast<uint32_t>(std::max(0, found->status)));
        response->set_reason(found->reason);
        response->set_received_at_ms(found->began_unix_ms);
        response->set_first_byte_ms(std::max<int64_t>(0, found->first_byte_ms));
        response->set_total_ms(std::max<int64_t>(0, found->done_ms));
        response->set_held_ms(found->held_ms);
        return absl::OkStatus();
      });
}

grpc::Status ProxyService::Drain(grpc::ServerContext* context, const engine::v1::DrainRequest*,
                                 engine::v1::DrainResponse*) {
  const auto serve = [&](const rpc::Call& call) -> absl::Status {
    const int64_t left_ms = call.deadline - SteadyClock().Now() - kAnswerMarginMs;
    if (door_.Quiesce(std::max<int64_t>(0, left_ms))) return absl::OkStatus();
    return Error(absl::StatusCode::kDeadlineExceeded, "DRAINING",
                 absl::StrCat("the door of ", self_.member, " admits nothing any more, and ",
                              door_.Snapshot().live,
                              " requests still run; ask again to go on waiting, or stop the proxy, "
                              "which ends them after --drain-grace-ms"));
  };
  return gate_.Serve(*context, "Drain", rpc::Role::kOperator, serve,
                     {.effort = rpc::Effort::kWaits});
}

}  // namespace lorry::proxy
