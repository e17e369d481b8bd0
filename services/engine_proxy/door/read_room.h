// A buffer to read into, of which a read that does not fill it has taken all that was there: this
// saves system calls that find nothing.
//
// For each read Asio calls recv at once, and waits for epoll only if that finds nothing: one call
// in vain for each side of each request, and for each event of a stream. It leaves that recv out if
// the last read was "exhausted" and epoll has reported nothing since; but its own reads from a TCP
// stream say so only at the stream's end. Reads into a ReadRoom also say so when they came short:
// the class below, which Asio derives its read operations from, is specialized for this type of
// buffer. All else in them is Asio's.
//
// A peer that closed with its last bytes has been reported together with them: the next read waits
// for a report that does not come, and Sweeper looks for it (TimedSocket::Read).
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace lorry::door {

struct ReadRoom : boost::asio::mutable_buffer {
  explicit ReadRoom(boost::asio::mutable_buffer room) : boost::asio::mutable_buffer(room) {}
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
  static status Perform(reactor_op* base) {
    auto* const op = static_cast<reactive_socket_recv_op_base*>(base);
    if (!socket_ops::non_blocking_recv1(op->socket_, op->room_.data(), op->room_.size(),
                                        /*flags=*/0,
                                        /*is_stream=*/true, op->ec_, op->bytes_transferred_)) {
      return not_done;
    }
    return op->bytes_transferred_ < op->room_.size() ? done_and_exhausted : done;
  }

  const socket_type socket_;
  lorry::door::ReadRoom room_;
};
