// Where a read puts bytes, and what is known of its socket, so that no read asks the kernel in vain.
//
// Asio tries each read at once and waits for its poller only where nothing is there yet: a system
// call that finds nothing, for each side of each request. The poller tells of a socket's news once,
// and Asio remembers whether it has told of any since a read was "exhausted"; but its reads of
// streams never say that they were. These do: Asio makes its operations on this base, which it has
// one of for each kind of buffer, and all else about them stays its own.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace lorry::door {

struct ReadRoom : boost::asio::mutable_buffer {
  enum class Known {
    kNothing,
    // The caller has just seen that nothing is there, and has not waited since. Not where an
    // earlier read said kShortIsAll: this one skips its first try, which would come too late then.
    kIsQuiet,
    // A read that leaves room took all, so that the next one waits. That the peer ended the
    // connection together with its last bytes is not noticed: whoever says this looks for it later.
    kShortIsAll,
  };
  ReadRoom(boost::asio::mutable_buffer room, Known what)
      : boost::asio::mutable_buffer(room), known(what) {}
  Known known;
};

}  // namespace lorry::door

template <>
class boost::asio::detail::reactive_socket_recv_op_base<lorry::door::ReadRoom> : public reactor_op {
 public:
  reactive_socket_recv_op_base(const boost::system::error_code& success, socket_type socket,
                               socket_ops::state_type, const lorry::door::ReadRoom& room,
                               socket_base::message_flags, func_type when_done)
      : reactor_op(success, &Perform, when_done), socket_(socket), room_(room) {}

 private:
  using Known = lorry::door::ReadRoom::Known;
  static status Perform(reactor_op* base) {
    auto* const op = static_cast<reactive_socket_recv_op_base*>(base);
    if (op->room_.known == Known::kIsQuiet) {
      op->room_.known = Known::kNothing;
      return not_done;
    }
    if (!socket_ops::non_blocking_recv1(op->socket_, op->room_.data(), op->room_.size(),
                                        /*flags=*/0,
                                        /*is_stream=*/true, op->ec_, op->bytes_transferred_)) {
      return not_done;
    }
    const bool all =
        op->room_.known == Known::kShortIsAll && op->bytes_transferred_ < op->room_.size();
    return all || op->bytes_transferred_ == 0 ? done_and_exhausted : done;
  }

  const socket_type socket_;
  lorry::door::ReadRoom room_;
};
