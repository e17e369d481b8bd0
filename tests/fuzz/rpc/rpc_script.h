// The commands of a script that are RPCs (see script.h and README.md), against any server: a method
// and a message as JSON, so that mutations keep most messages readable.
//
//   C0OpenRun {"adapter":"policy"}   calls, and waits for the end
//   A0OpenRun {...}                  calls without waiting
//   O1Put                            opens stream 1
//   M1{...}                          a message on it
//   H1 X1 w1                         half-closes it, cancels it, waits for a message
//   W0                               waits for the calls that A began
//   o8Put                            2^8 streams that never say anything, until the input ends
//
// "$NAME" in a payload stands for what an answer said: Learn. One thread.
#pragma once

#include <google/protobuf/message.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fuzz/rpc/raw_call.h"
#include "tests/fuzz/script.h"

namespace lorry::fuzz {

class RpcScript {
 public:
  // The services' full names, whose generated code is linked in.
  RpcScript(std::shared_ptr<grpc::Channel> channel, const std::vector<std::string>& services);

  // True for the commands above.
  bool Do(const Command& command);
  void Set(const std::string& name, std::string value) { variables_[name] = std::move(value); }
  // Sends bytes on a stream, for messages that JSON cannot say briefly.
  void SendOn(uint8_t slot, const google::protobuf::Message& message);
  std::string Substitute(std::string_view payload) const;
  // What a payload says as a message of that type; nothing where it is none.
  template <typename Message>
  std::optional<Message> Read(std::string_view json) const {
    Message message;
    return ReadInto(json, message) ? std::optional<Message>(std::move(message)) : std::nullopt;
  }
  grpc::GenericStub& stub() { return stub_; }
  // Cancels what still runs, and CHECKs that it ends.
  void End();

 private:
  static constexpr size_t kSlots = 4;
  static constexpr size_t kCallsMax = 600;
  struct Method {
    std::string path;
    const google::protobuf::Message* request;
    const google::protobuf::Message* response;
    bool streams = false;
  };
  struct Running {
    std::shared_ptr<RawCall> call;
    const Method* method = nullptr;
  };
  const Method* Find(std::string_view name) const;
  bool ReadInto(std::string_view json, google::protobuf::Message& message) const;
  std::string Encode(const Method& method, std::string_view json) const;
  Running Begin(std::string_view payload, bool whole);
  void Finish(const Running& running);
  void Learn(const Method& method, const std::string& bytes);

  grpc::GenericStub stub_;
  std::map<std::string, Method, std::less<>> methods_;
  std::map<std::string, std::string> variables_;
  std::array<Running, kSlots> slots_;
  std::vector<Running> others_;
};

}  // namespace lorry::fuzz
