// One request while it is served: what is known of it, from its head to its end.
//
// Lives in the frame of its session's coroutine. Its end is where it stops counting and where it is
// put on record.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/door/body_facts.h"
#include "services/engine_proxy/door/client.h"
#include "services/engine_proxy/door/framing.h"
#include "services/engine_proxy/door/intake.h"
#include "services/engine_proxy/door/json_splice.h"
#include "services/engine_proxy/door/restore.h"
#include "services/engine_proxy/door/shard.h"

namespace lorry::door {

class FlipWatch;
struct ResumePlan;

struct Exchange {
  Exchange(Shard& its_shard, Client& its_client, RequestReader& its_reader, RequestHead its_head);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // At each piece of a reply. `engine_spoke`: what came shows that the engine works, and not only
  // the server in front of it.
  void OnBytes(bool engine_spoke);
  // The engine has all of it.
  void ForgetBody();
  bool KeepAlive() const {
    return head.keep_alive && !client.left() && !shard.shared.draining.load();
  }

  Shard& shard;
  Client& client;
  RequestReader& reader;  // has the body
  RequestHead head;
  std::string_view body;
  std::optional<PaddedBody> padded;    // the body, once it is read as JSON
  std::optional<SplicedBody> spliced;  // what the engine gets of it, where that is one request
  BodyLease lease;
  RouteChoice route;
  fleet::EngineKind kind = fleet::EngineKind::kUnknown;
  bool lag_known = false;
  std::shared_ptr<const EngineFacts> facts;
  // What a rewritten request asks for.
  BodyFacts asks;
  std::optional<MinVersion> min_version;
  Explained record;
  int64_t began_ms = 0;
  std::vector<Resolved> resolved;
  Admission admission;
  IdSeries ids;  // SGLang, rewritten: at the engine
  ClientIds client_ids;
  std::shared_ptr<LiveRequest> live;  // SGLang, rewritten
  std::optional<ReplyRestorer> restorer;
  bool aborts_all = false;      // SGLang: the requests of all clients, if the engine takes it
  bool tells_versions = false;  // in `meta_info.weight_version` of the reply
  std::string engine_id;        // vLLM: the X-Request-Id that it gets; empty: the client's own
  // Where policy asks for more than that it finishes: why it finishes all the same.
  std::string in_flight_why;
  std::unique_ptr<ResumePlan> resume;  // null: it is not resumed
  std::unique_ptr<FlipWatch> flip;     // goes first; null: it finishes on the version it began with
};

}  // namespace lorry::door
