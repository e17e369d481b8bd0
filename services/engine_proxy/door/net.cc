#include "services/engine_proxy/door/net.h"

#include <vector>

#include "services/engine_proxy/door/tcp.h"

namespace lorry::door {

void Sweeper::Sweep() {
  const int64_t now = NowMs();
  std::vector<TimedSocket*> hung_up;
  for (TimedSocket* timed : sockets_) {
    if (timed->on_hang_up_ && timed->socket_.is_open() &&
        HasHungUp(timed->socket_.native_handle())) {
      hung_up.push_back(timed);
    }
    if (timed->deadline_ > now) continue;
    timed->deadline_ = TimedSocket::kNever;
    timed->expired_ = true;
    ErrorCode ignored;
    timed->socket_.cancel(ignored);  // completions run later, from the io_context
  }
  for (TimedSocket* timed : hung_up) std::exchange(timed->on_hang_up_, nullptr)();
}

Task<ErrorCode> TimedSocket::Write(std::span<asio::const_buffer> left, int64_t idle_ms,
                                   uint64_t* written) {
  for (;;) {
    while (!left.empty() && left.front().size() == 0) left = left.subspan(1);
    if (left.empty()) co_return ErrorCode();
    ErrorCode error;
    size_t n = socket_.write_some(left, error);
    *written += n;
    for (; n > 0; left = left.front().size() == 0 ? left.subspan(1) : left) {
      const size_t here = std::min(n, left.front().size());
      left.front() += here;
      n -= here;
    }
    if (!error) continue;
    if (error != asio::error::would_block && error != asio::error::try_again) co_return error;
    ExpireIn(idle_ms);
    auto [failed] = co_await socket_.async_wait(Socket::wait_write, kAwait);
    NeverExpire();
    if (failed) co_return failed;
  }
}

}  // namespace lorry::door
