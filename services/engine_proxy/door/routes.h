// What the door does with each path of each engine's API.
//
// A constant table, any thread. Paths are matched exactly: an escaped, doubled or dotted path is no
// route, because the engine's own server would decode it into one. Only a path that ends in `{id}`
// stands for many; the door answers those itself and never sends their path on.
#pragma once

#include <string>
#include <string_view>

#include "lib/fleet/engine_name.h"

namespace lorry::door {

enum class RouteAction {
  kPass,     // as it is; reads nothing of the adapters
  kRewrite,  // names an adapter: resolved, counted, rewritten
  kModels,   // /v1/models under the clients' names
  kModel,    // one card of /v1/models
  kHealth,   // answered by the door: an engine's own /health generates a token and fails during a
             // pause
  kServerInfo,  // passed with secrets redacted
  kAbort,       // a client's own request id, translated to the engine's
  // Calls of frameworks, which change the engine for everybody; refused where they are not allowed.
  kCall,      // handed to whoever answers for the engine
  kPassCall,  // passed as it is
  kLabel,     // SGLang's label for what it serves; passed, and ends nobody's requests by default
  kRefuse,
};

// Where a rewritten body keeps its prompts, its `n` and its adapter. vLLM reads the adapter from
// `model` on every route and may be sent any `n`: its bodies differ in where their prompts are.
enum class BodyShape {
  kNone,
  kGenerate,    // SGLang /generate: text | input_ids, sampling_params.n, lora_path
  kEncode,      // SGLang /encode, /classify: text | input_ids, lora_path
  kCompletion,  // OpenAI: prompt, n, model
  kChat,        // OpenAI: one conversation, n, model
  kChatBatch,   // vLLM: as kChat, of a list of conversations
  kEmbedding,   // OpenAI: input, model
  kPooling,     // vLLM: input, of texts or conversations | messages, model
  kInputs,      // vLLM /v2/embed: texts | images | inputs
  kScore,       // vLLM: pairs of texts, or one text and many
  kMessages,    // SGLang /v1/messages: reads an adapter from `model` alone
  kBaseOnly,    // SGLang routes that hand no adapter on
  kResponses,   // vLLM /v1/responses: a stream of it begins before the engine has seen the request
  kTokens,      // vLLM: the reply names no model
};

struct Route {
  std::string_view methods;  // comma list
  std::string_view path;
  RouteAction action = RouteAction::kRefuse;
  BodyShape shape = BodyShape::kNone;
  std::string_view remedy = {};  // kRefuse: what to do instead
};

struct RouteChoice {
  RouteAction action = RouteAction::kRefuse;
  BodyShape shape = BodyShape::kNone;
  int status = 403;     // of the refusal
  std::string message;  // of the refusal
};

struct RoutesAllowed {
  bool unknown = false;  // paths that no table names are passed; they may reach the base model
  bool calls = false;    // of frameworks
};

// A body of such a call carries an adapter, and is as large.
bool CarriesTensors(std::string_view method, std::string_view path);

RouteChoice ChooseRoute(fleet::EngineKind kind, std::string_view method, std::string_view path,
                        RoutesAllowed allowed);

}  // namespace lorry::door
