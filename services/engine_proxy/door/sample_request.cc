#include "services/engine_proxy/door/sample_request.h"

#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/rewrite.h"

namespace lorry::door {
namespace {

std::vector<Edit> EditsOf(const Exchange& x, const BodyFacts& facts, size_t sample) {
  std::vector<std::string> ids;
  for (size_t prompt = 0; prompt < facts.prompts(); ++prompt) {
    ids.push_back(x.ids.At(static_cast<uint32_t>(sample * facts.prompts() + prompt)));
  }
  return RewriteEdits(x.kind, x.route.shape, *x.facts, facts, x.resolved, ids);
}

}  // namespace

SampleRequest::SampleRequest(const Exchange& x, const BodyFacts& facts, size_t sample)
    : body_(x.padded->view(), EditsOf(x, facts, sample)) {
  size_t size = 0;
  for (const std::string_view piece : body_.pieces()) size += piece.size();
  head_ = EngineHead(x, size);
  pieces_.push_back(asio::buffer(head_));
  for (const std::string_view piece : body_.pieces()) {
    pieces_.emplace_back(piece.data(), piece.size());
  }
}

}  // namespace lorry::door
