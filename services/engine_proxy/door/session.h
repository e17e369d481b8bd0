// One client connection: its requests, one after the other, in one coroutine on its shard's thread.
#pragma once

#include <memory>
#include <string>

#include "services/engine_proxy/door/exchange.h"

namespace lorry::door {

class Session {
 public:
  Session(Shard& shard, Client& client);
  // Until the client leaves, the door drains, or a request cannot be read.
  Task<void> Run();

 private:
  // Each answers one request; true when the connection may carry another.
  Task<bool> Serve(Exchange& x);
  Task<bool> ServeTensors(Exchange& x);
  Task<bool> ServeRewritten(Exchange& x);
  Task<bool> ServeHeld(Exchange& x, Held held);
  Task<bool> ServeResolved(Exchange& x, Resolution outcome);
  Task<bool> SendRewritten(Exchange& x);
  Task<bool> ServeFetched(Exchange& x);
  Task<bool> ServeAbort(Exchange& x);
  Task<bool> ServeLabel(Exchange& x);
  Task<bool> ServeCall(Exchange& x);
  Task<bool> HandOver(Exchange& x, std::string body);
  // By its head: who answers it. False: no engine is there.
  bool Choose(Exchange& x);

  Shard& shard_;
  Client& client_;
  RequestReader reader_;
};

// A session of its own for a connection that was accepted.
Task<void> ServeConnection(Shard& shard, std::shared_ptr<Client> client);

}  // namespace lorry::door
