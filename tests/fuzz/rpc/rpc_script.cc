#include "tests/fuzz/rpc/rpc_script.h"

#include <google/protobuf/util/json_util.h>

#include <chrono>

#include "absl/strings/escaping.h"
#include "lib/base/check.h"

namespace lorry::fuzz {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;

// What a stuck server is given before it counts as stuck.
constexpr std::chrono::milliseconds kPatience(kPatienceMs);
// An input that waits for a message that never comes goes on after this.
constexpr std::chrono::milliseconds kMessageWait(20);
constexpr int kSilentStreamsLog2Max = 9;

const Message* PrototypeOf(const Descriptor* type) {
  return MessageFactory::generated_factory()->GetPrototype(type);
}

}  // namespace

RpcScript::RpcScript(std::shared_ptr<grpc::Channel> channel,
                     const std::vector<std::string>& services)
    : stub_(std::move(channel)) {
  for (const std::string& name : services) {
    const auto* service = DescriptorPool::generated_pool()->FindServiceByName(name);
    LORRY_CHECK(service != nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const auto* method = service->method(i);
      methods_[method->name()] = {.path = "/" + name + "/" + method->name(),
                                  .request = PrototypeOf(method->input_type()),
                                  .response = PrototypeOf(method->output_type()),
                                  .streams = method->server_streaming()};
    }
  }
}

const RpcScript::Method* RpcScript::Find(std::string_view name) const {
  const auto found = methods_.find(name);
  return found == methods_.end() ? nullptr : &found->second;
}

std::string RpcScript::Substitute(std::string_view payload) const {
  std::string text(payload);
  for (const auto& [name, value] : variables_) {
    const std::string key = "$" + name;
    for (size_t at = text.find(key); at != std::string::npos;
         at = text.find(key, at + value.size())) {
      text.replace(at, key.size(), value);
    }
  }
  return text;
}

bool RpcScript::ReadInto(std::string_view json, Message& message) const {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(Substitute(json), &message, options).ok();
}

// What is no message of that type goes out as it is: bytes that a server must refuse.
std::string RpcScript::Encode(const Method& method, std::string_view json) const {
  const std::unique_ptr<Message> message(method.request->New());
  return ReadInto(json, *message) ? message->SerializePartialAsString() : Substitute(json);
}

RpcScript::Running RpcScript::Begin(std::string_view payload, bool whole) {
  const size_t space = std::min(payload.find(' '), payload.size());
  Running running{.call = nullptr, .method = Find(payload.substr(0, space))};
  if (running.method == nullptr || others_.size() >= kCallsMax) return running;
  running.call = RawCall::Start(stub_, running.method->path);
  if (!whole) return running;
  running.call->Send(Encode(*running.method, payload.substr(space)));
  running.call->HalfClose();
  return running;
}

void RpcScript::Finish(const Running& running) {
  if (running.call == nullptr) return;
  const bool ended = running.call->WaitForEnd(kPatience);
  LORRY_CHECK(ended);
  if (const auto message = running.call->WaitForMessage({})) Learn(*running.method, *message);
}

// Keeps what later commands need: upload ids, and tickets by the call that gave them.
void RpcScript::Learn(const Method& method, const std::string& bytes) {
  const std::unique_ptr<Message> message(method.response->New());
  if (!message->ParseFromString(bytes)) return;
  const Descriptor* type = message->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING || field->is_repeated()) continue;
    const std::string value = message->GetReflection()->GetString(*message, field);
    if (value.empty()) continue;
    variables_[type->name() + "." + field->name()] =
        field->type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(value) : value;
  }
}

void RpcScript::SendOn(uint8_t slot, const Message& message) {
  const Running& running = slots_[slot % kSlots];
  if (running.call != nullptr) running.call->Send(message.SerializePartialAsString());
}

bool RpcScript::Do(const Command& command) {
  Running& slot = slots_[command.arg % kSlots];
  switch (command.op) {
    case 'C':
    case 'A': {
      const Running running = Begin(command.payload, /*whole=*/true);
      // A stream of answers need not end before it is cancelled.
      const bool waits = command.op == 'C' && running.method != nullptr && !running.method->streams;
      if (waits) {
        Finish(running);
      } else {
        others_.push_back(running);
      }
      return true;
    }
    case 'O':
      if (slot.call != nullptr) others_.push_back(slot);
      slot = Begin(command.payload, /*whole=*/false);
      return true;
    case 'M':
      if (slot.call != nullptr) slot.call->Send(Encode(*slot.method, command.payload));
      return true;
    case 'H':
      if (slot.call != nullptr) slot.call->HalfClose();
      return true;
    case 'X':
      if (slot.call != nullptr) slot.call->Cancel();
      return true;
    case 'w':
      if (slot.call != nullptr) {
        if (const auto got = slot.call->WaitForMessage(kMessageWait)) Learn(*slot.method, *got);
      }
      return true;
    case 'W':
      for (const Running& running : others_) {
        if (running.call != nullptr && running.call->WaitForEnd(kMessageWait)) Finish(running);
      }
      return true;
    case 'o':
      for (int i = 0; i < 1 << std::min<int>(command.arg, kSilentStreamsLog2Max); ++i) {
        others_.push_back(Begin(command.payload, /*whole=*/false));
      }
      return true;
  }
  return false;
}

void RpcScript::End() {
  for (const Running& running : slots_) others_.push_back(running);
  slots_ = {};
  for (const Running& running : others_) {
    if (running.call != nullptr) running.call->Cancel();
  }
  for (const Running& running : others_) Finish(running);
  others_.clear();
}

}  // namespace lorry::fuzz
