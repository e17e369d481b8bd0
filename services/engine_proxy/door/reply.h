// The texts that the door writes itself: error bodies in the engine's own shape, and the X-Lorry
// headers.
//
// Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/fleet/engine_name.h"
#include "services/engine_proxy/door/router.h"

namespace lorry::door {

// A JSON error body as a client of that engine and path expects it; the reason stands in `type`.
std::string ErrorBody(fleet::EngineKind kind, std::string_view path, const Refused& refused);

// What SGLang's /generate answers where these requests were aborted in its queue (srt/managers/
// tokenizer_manager.py, _handle_abort_req); `is_list`: they are of a batch, or of n > 1.
std::string AbortedBody(const std::vector<std::string>& ids, bool is_list, bool stream);

// "X-Lorry-Adapter: ..." and so on, one line each; several versions in one request are joined by ",
// " in order.
void AppendLorryHeaders(const std::vector<Resolved>& resolved, bool lag_known,
                        std::string_view request_id, std::string* head);

// "HTTP/1.1 404 Not Found\r\n"
void AppendStatusLine(int status, std::string* head);

// X-Lorry-Reason, and whether and when it is worth asking again.
std::string RefusalFields(const Refused& refused);

inline constexpr std::string_view kModelsPath = "/v1/models";
// GET /v1/models: what this door routes, under the clients' names, then the engine's base cards.
absl::StatusOr<std::string> ModelsBody(const std::string& engine_reply,
                                       const proxy::DoorTable& table);
// GET /v1/models/{id}: that card of the list. NOT_FOUND UNKNOWN_ADAPTER.
absl::StatusOr<std::string> ModelBody(const std::string& engine_reply,
                                      const proxy::DoorTable& table, std::string_view path);

// /server_info with every key, token and password blanked (SGLang shows its own in clear,
// sglang#30166).
absl::StatusOr<std::string> RedactedInfo(const std::string& engine_reply);

}  // namespace lorry::door
