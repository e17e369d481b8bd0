#include "services/engine_proxy/door/session.h"

#include <utility>

#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/routes.h"

namespace lorry::door {

Session::Session(Shard& shard, Client& client)
    : shard_(shard), client_(client), reader_(shard, client) {}

Task<void> Session::Run() {
  bool keep = true;
  while (keep && !client_.left()) {
    reader_.Begin();
    std::optional<std::variant<RequestHead, HeadProblem>> head = reader_.TakeHead();
    bool connected = true;
    while (!head && connected) {
      const Transferred read = co_await reader_.ReadMore();
      connected = reader_.Took(read);
      if (connected) head = reader_.TakeHead();
    }
    if (!connected) break;
    if (HeadProblem* problem = std::get_if<HeadProblem>(&*head)) {
      Exchange x(shard_, client_, reader_, RequestHead{});
      Refused why{problem->status, "REQUEST_INVALID", std::move(problem->message)};
      keep = co_await Reject(x, std::move(why));
    } else {
      Exchange x(shard_, client_, reader_, std::get<RequestHead>(*std::move(head)));
      std::optional<Refused> unread;
      if (!reader_.TakeBody(x.head, &x.body, &x.lease)) {
        if (CarriesTensors(x.head.method, x.head.path)) {
          keep = co_await ServeTensors(x);
          continue;
        }
        unread = co_await reader_.ReadBody(x.head, &x.body, &x.lease);
      }
      if (!unread) {
        keep = co_await Serve(x);
      } else {
        keep = unread->status != 0 && co_await Reject(x, *std::move(unread));
      }
    }
  }
  client_.Close();
}

Task<void> ServeConnection(Shard& shard, std::shared_ptr<Client> client) {
  Session session(shard, *client);
  co_await session.Run();
}

}  // namespace lorry::door
