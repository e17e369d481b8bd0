// The answers that the door writes itself. Each says whether the connection may carry another
// request.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/upstream.h"

namespace lorry::door {

Task<bool> Answer(Exchange& x, int status, std::string_view content_type, std::string body,
                  std::string extra_headers = {});
// `refused` is a named variable of the caller: g++ 12 copies an aggregate built inside a co_await
// expression byte by byte into the frame, and then destroys it twice.
Task<bool> Refuse(Exchange& x, Refused refused);
// A request whose words cannot be understood.
Task<bool> RefuseInvalid(Exchange& x, absl::Status why);
// A whole reply of the engine's, or why it is not passed on.
Task<bool> PassOn(Exchange& x, int status, std::string_view content_type, std::string body);
// Whether the engine says with this reply that it does not know the name that it was given: it was
// started again, and the proxy has not loaded it there yet. The client asked for the right thing.
bool MayHaveLostName(const Exchange& x, int status);
bool HasLostName(const Exchange& x, int status, std::string_view body);
Refused NameLost();
// Why there is no reply of the engine to pass on; `problem` is UpstreamCall's.
Task<bool> RefuseCall(Exchange& x, CallResult result, std::string problem = {});
Refused WhyNoReply(CallResult result, std::string_view problem = {});
// A reply that is generated for nothing: it is larger than `limit`, or the door holds too much of
// others.
Refused ReplyTooLarge(size_t limit);
Refused NoRoomForReply();
Refused NoEngine();
// The proxy calls the engine with its own key: whoever lets it must know that key, too, or have
// begun with `other` what the call ends.
std::optional<Refused> LacksKey(const Exchange& x, const std::string* other = nullptr);
// Where its route is refused.
Refused NotRouted(const Exchange& x);
// A request that is not read to its end: nobody knows what the bytes behind it are, so the
// connection ends.
Task<bool> Reject(Exchange& x, Refused why);

}  // namespace lorry::door
