#include "services/engine_proxy/door/exchange.h"

#include <chrono>
#include <utility>

#include "services/engine_proxy/door/in_flight.h"
#include "services/engine_proxy/door/resume_plan.h"

namespace lorry::door {
namespace {

// What `lorry why` shows of a path or an id that a client chose.
constexpr size_t kRecordedBytes = 128;

int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Exchange::Exchange(Shard& its_shard, Client& its_client, RequestReader& its_reader,
                   RequestHead its_head)
    : shard(its_shard),
      client(its_client),
      reader(its_reader),
      head(std::move(its_head)),
      lease(shard.shared),
      began_ms(NowMs()) {
  record.began_unix_ms = UnixMs();
  record.request_id = shard.NewId();
  record.path = std::string(head.path.substr(0, kRecordedBytes));
  record.client_id = std::string(head.Get("x-request-id").substr(0, kRecordedBytes));
  client.BeginRequest();
}

Exchange::~Exchange() {
  client.EndRequest();
  flip.reset();
  record.reply_bytes = client.written();
  if (DoorObserver* observer = shard.shared.options.observer; observer && admission.held()) {
    observer->OnServed(resolved.front().label(), record.reply_bytes);
    const proxy::DoorTable& table = shard.Table();
    const proxy::DoorRoute* route = table.FindRoute(resolved.back().name);
    const bool known = route != nullptr && table.lag_known && route->lag != fleet::kLagNone;
    observer->OnReplied(resolved.back().label(),
                        known ? std::optional<uint32_t>(route->lag) : std::nullopt);
  }
  admission.Release();
  if (live) shard.shared.live_ids.Remove(client_ids, live.get());
  record.done_ms = NowMs() - began_ms;
  if (client.left() && record.status == 0) record.status = 499;
  if (client.left() && record.reason.empty()) record.reason = "CLIENT_GONE";
  if (DoorObserver* observer = shard.shared.options.observer) {
    observer->OnDone(record.status, static_cast<double>(record.done_ms) / 1000.0,
                     record.reply_bytes);
  }
  record.asked = std::move(asks.adapters);
  record.resolved = std::move(resolved);
  shard.shared.explained.Put(std::move(record));
}

void Exchange::ForgetBody() {
  spliced.reset();
  padded.reset();
  body = {};
  reader.ForgetBody();
  lease.Resize(0);
}

void Exchange::OnBytes(bool engine_spoke) {
  if (engine_spoke && admission.held())
    shard.shared.pieces_heard.fetch_add(1, std::memory_order_relaxed);
  if (record.first_byte_ms >= 0) return;
  record.first_byte_ms = NowMs() - began_ms;
  if (DoorObserver* observer = shard.shared.options.observer) {
    observer->OnFirstByte(static_cast<double>(record.first_byte_ms));
  }
}

}  // namespace lorry::door
