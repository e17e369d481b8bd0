// A buffer to read into, with what is known of the socket: it saves system calls that find nothing.
//
// For each read Asio calls recv at once, and waits for epoll only if that finds nothing: one call
// in vain for each side of each request. It leaves that recv out if the last read was "exhausted"
// and epoll has reported nothing since; but its own reads from a TCP stream say so only at the
// stream's end. Reads into a ReadRoom also say so earlier: the class below, which Asio derives its
// read operations from, is specialized for this type of buffer. All else in them is Asio's.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace lorry::door {

struct ReadRoom : boost::asio::mutable_buffer {
  enum class Known {
    kNothing,
    // The caller has just seen that there is nothing to read: the first recv is skipped. Not on a
    // socket with kShortIsAll reads: there the first recv may follow epoll's one report of bytes.
    kIsQuiet,
    // A read that does not fill the buffer has taken all, so that the next one waits for epoll. If
    // the peer closed with its last bytes, no read notices: the caller has to look (Client::Look).
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
