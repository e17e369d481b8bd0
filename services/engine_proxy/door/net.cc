#include "services/engine_proxy/door/net.h"

#include "services/engine_proxy/door/tcp.h"

namespace lorry::door {

void Sweeper::Sweep() {
  const int64_t now = NowMs();
  for (TimedSocket* timed : sockets_) {
    // The kernel reports the end anew to whoever waits.
    if (std::exchange(timed->look_due_, false) && HasEnded(timed->socket_.native_handle())) {
      ErrorCode ignored;
      timed->socket_.shutdown(Socket::shutdown_receive, ignored);
    }
    if (timed->deadline_ > now) continue;
    timed->expired_ = true;
    ErrorCode ignored;
    timed->socket_.cancel(ignored);  // completions run later, from the io_context
  }
}

ErrorCode TimedSocket::WriteNow(std::span<asio::const_buffer>* left, uint64_t* written) {
  for (;;) {
    while (!left->empty() && left->front().size() == 0) *left = left->subspan(1);
    if (left->empty()) return ErrorCode();
    ErrorCode error;
    size_t n = socket_.write_some(*left, error);
    *written += n;
    for (; n > 0; *left = left->front().size() == 0 ? left->subspan(1) : *left) {
      const size_t here = std::min(n, left->front().size());
      left->front() += here;
      n -= here;
    }
    if (error == asio::error::would_block || error == asio::error::try_again) return ErrorCode();
    if (error) return error;
  }
}

Task<ErrorCode> TimedSocket::WriteRest(std::span<asio::const_buffer> left, int64_t idle_ms,
                                       uint64_t* written) {
  while (!left.empty()) {
    ExpireIn(idle_ms);
    auto [failed] = co_await socket_.async_wait(Socket::wait_write, kAwait);
    NeverExpire();
    if (failed) co_return failed;
    const ErrorCode error = WriteNow(&left, written);
    if (error) co_return error;
  }
  co_return ErrorCode();
}

}  // namespace lorry::door
