// mover: sends a trainer's images for the Python client, in a process of its own. What moves bytes
// there neither holds the interpreter's lock nor can end the trainer, and shares no UCX with it.
//
// Stdin holds a push a line, stdout what becomes of it; both are JSON (clients/python/src/lorry/mover.py):
//   {"image": "/proc/7/fd/9", "ticket": base64, "addresses": ["grpc://host:port"], "ranges": [[0, 4096]],
//    "deadline_ms": 60000, "leaves": base64, "token": "…", "ca_file": "…", "cert_file": "…", "key_file": "…"}
//   (leaves: the 16 bytes of each leaf's checksum, where the client knows them)
//   {"moved": 4096}  any number of times, of this push, in bytes
//   {"code": "OK", "reason": "", "message": "", "transport": "ucx-shm"}  once, last
// It ends with its stdin, and so with the process that started it; and where it does not understand
// a line or cannot read the image, which is no word of the store's: the client sends it by itself.
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/context.h"
#include "clients/cli/verbs.h"
#include "clients/cpp/image_mover.h"
#include "lib/base/error.h"
#include "lib/transfer/image_file.h"

namespace lorry::cli {
namespace {

using nlohmann::json;

struct Push {
  std::string image;
  std::vector<std::string> addresses;
  transfer::PushRequest request;
  rpc::ChannelOptions channel;
};

absl::Status NotAPush(const std::string& why) {
  return Error(absl::StatusCode::kInvalidArgument, "ARGUMENT_INVALID",
               absl::StrCat("not a push: ", why));
}

absl::StatusOr<Push> Read(const std::string& line) {
  Push push;
  try {
    const json said = json::parse(line);
    push.image = said.at("image");
    push.addresses = said.at("addresses");
    const std::string ticket = said.at("ticket");
    if (!absl::Base64Unescape(ticket, &push.request.ticket)) return NotAPush("the ticket's base64");
    push.request.options.deadline_ms = said.at("deadline_ms");
    std::string leaves;
    if (!absl::Base64Unescape(said.value("leaves", ""), &leaves))
      return NotAPush("the leaves' base64");
    push.request.leaves.resize(leaves.size() / sizeof(transfer::Checksum::bytes));
    for (size_t i = 0; i < push.request.leaves.size(); ++i)
      leaves.copy(reinterpret_cast<char*>(push.request.leaves[i].bytes.data()), 16, 16 * i);
    for (const json& range : said.at("ranges"))
      push.request.ranges.push_back({.offset = range.at(0), .length = range.at(1)});
    push.channel.token = said.value("token", "");
    push.channel.tls = {.ca = said.value("ca_file", ""),
                        .cert = said.value("cert_file", ""),
                        .key = said.value("key_file", "")};
  } catch (const json::exception& error) {
    return NotAPush(error.what());
  }
  return push;
}

void Say(const json& line) {
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  // One write, so that what two threads say never mixes; nobody reads it: the parent has gone, and
  // so will stdin.
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
}

// Keeps the connections of a push for the next one, as long as both show the same credentials.
class Mover {
 public:
  absl::StatusOr<transfer::Outcome> Run(Push push) {
    LORRY_ASSIGN_OR_RETURN(const auto file, transfer::ImageFile::Open(push.image));
    push.request.source = file->bytes();
    const std::vector<std::string> shown = {push.channel.token, push.channel.tls.ca,
                                            push.channel.tls.cert, push.channel.tls.key};
    if (mover_ == nullptr || shown != shown_) {
      mover_ = std::make_unique<client::ImageMover>(
          client::ImageMover::Options{.channel = push.channel});
      shown_ = shown;
    }
    uint64_t moving = 0;
    for (const transfer::Range& range : push.request.ranges) moving += range.length;
    // What the progress counts as done already.
    const uint64_t before = push.request.source.size() - moving;
    return mover_->Push(std::move(push.addresses), std::move(push.request),
                        [before](uint64_t done, uint64_t) {
                          Say({{"moved", done - before}});
                        });
  }

 private:
  std::unique_ptr<client::ImageMover> mover_;
  std::vector<std::string> shown_;
};

absl::StatusOr<int> Move(Context&, const Arguments&) {
  Mover mover;
  for (std::string line; std::getline(std::cin, line);) {
    LORRY_ASSIGN_OR_RETURN(Push push, Read(line));
    LORRY_ASSIGN_OR_RETURN(const transfer::Outcome outcome, mover.Run(std::move(push)));
    Say({{"code", absl::StatusCodeToString(outcome.status.code())},
         {"reason", ReasonOf(outcome.status)},
         {"message", std::string(outcome.status.message())},
         {"transport", outcome.transport}});
  }
  return kOk;
}

}  // namespace

std::vector<Verb> MoverVerbs() {
  return {{.name = "mover",
           .summary = "Sends images for the Python client, which starts it",
           .details = "Not for people: it reads pushes from stdin, a line of JSON each, and ends "
                      "when stdin does.",
           .run = Move}};
}

}  // namespace lorry::cli
