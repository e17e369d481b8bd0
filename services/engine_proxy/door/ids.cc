#include "services/engine_proxy/door/ids.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

constexpr int kHex = 16;

std::optional<uint32_t> Number(std::string_view digits, int base) {
  uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

// As it stands inside of a JSON string.
std::string Escaped(const std::string& text) {
  const std::string quoted = QuoteJson(text);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

IdSeries::IdSeries(std::string first, uint32_t size)
    : first_(std::move(first)),
      low_(Number(std::string_view(first_).substr(kSharedBytes), kHex).value_or(0)),
      size_(size) {}

std::string IdSeries::At(uint32_t number) const {
  char low[kBytes - kSharedBytes + 1];
  std::snprintf(low, sizeof(low), "%08x", low_ + number);
  return std::string(shared()) + low;
}

std::optional<uint32_t> IdSeries::Find(std::string_view id) const {
  if (id.size() != kBytes || id.substr(0, kSharedBytes) != shared()) return std::nullopt;
  const auto low = Number(id.substr(kSharedBytes), kHex);
  if (!low || *low - low_ >= size_) return std::nullopt;
  return *low - low_;
}

std::string ClientIds::At(uint32_t prompt) const {
  if (numbered) return given.front() + "_" + std::to_string(prompt);
  return given[std::min<size_t>(prompt, given.size() - 1)];
}

void IdRestorer::Feed(std::string_view piece, bool end, std::string* out) {
  kept_ += piece;
  size_t at = 0;
  for (;;) {
    const size_t found = kept_.find(engine_.shared(), at);
    if (found == std::string::npos || found + IdSeries::kBytes > kept_.size()) break;
    const auto number = engine_.Find(std::string_view(kept_).substr(found, IdSeries::kBytes));
    out->append(kept_, at, found - at);
    at = found + (number ? IdSeries::kBytes : 1);
    *out += number ? Escaped(client_.At(*number % prompts_)) : kept_.substr(found, 1);
  }
  const size_t kept = end ? kept_.size() : KeptFrom(at);
  out->append(kept_, at, kept - at);
  kept_.erase(0, kept);
}

// Where behind `at` an id may begin whose end has not come.
size_t IdRestorer::KeptFrom(size_t at) const {
  const std::string_view shared = engine_.shared();
  const size_t whole = IdSeries::kBytes - 1;
  size_t from = std::max(at, kept_.size() - std::min(kept_.size(), whole));
  for (; from < kept_.size(); ++from) {
    const size_t size = std::min(kept_.size() - from, shared.size());
    if (kept_.compare(from, size, shared.substr(0, size)) == 0) break;
  }
  return from;
}

std::vector<std::string> LiveRequest::Answered(std::span<const uint32_t> numbers) {
  std::vector<std::string> due;
  MutexLock lock(mutex_);
  for (const uint32_t number : numbers) {
    if (number >= states_.size() || std::exchange(states_[number].answered, true)) continue;
    if (states_[number].unwanted) due.push_back(ids_.At(number));
  }
  return due;
}

std::vector<std::string> LiveRequest::WantAbort(std::optional<uint32_t> prompt) {
  std::vector<std::string> due;
  MutexLock lock(mutex_);
  const uint32_t step = prompt ? prompts_ : 1;
  for (uint32_t number = prompt.value_or(0); number < states_.size(); number += step) {
    if (std::exchange(states_[number].unwanted, true)) continue;
    if (states_[number].answered) due.push_back(ids_.At(number));
  }
  return due;
}

std::vector<std::string> LiveRequest::ClientAborts(std::optional<uint32_t> prompt) {
  std::vector<std::string> due = WantAbort(prompt);
  MutexLock lock(mutex_);
  const bool all = std::ranges::all_of(states_, &State::unwanted);
  if (all && !client_aborted_.exchange(true) && told_) told_();
  return due;
}

void LiveRequest::OnClientAborted(std::function<void()> told) {
  MutexLock lock(mutex_);
  told_ = std::move(told);
}

AnswerWatch::AnswerWatch(std::shared_ptr<LiveRequest> live, uint32_t sample)
    : live_(std::move(live)), sample_(sample), waited_for_(live_->prompts()) {}

std::vector<std::string> AnswerWatch::Heard(std::string_view piece) {
  if (waited_for_ == 0 || piece.empty()) return {};
  return live_->Answered(AnsweredBy(piece));
}

std::vector<uint32_t> AnswerWatch::AnsweredBy(std::string_view piece) {
  const uint32_t prompts = live_->prompts();
  if (prompts == 1) {
    waited_for_ = 0;
    return {sample_};
  }
  answered_.resize(prompts);
  std::vector<uint32_t> fresh;
  tail_ += piece;
  const std::string_view text = tail_;
  for (size_t at = 0; (at = text.find(live_->ids().shared(), at)) != text.npos; ++at) {
    const auto number = live_->ids().Find(text.substr(at, IdSeries::kBytes));
    if (!number || *number / prompts != sample_ || answered_[*number % prompts]) continue;
    answered_[*number % prompts] = true;
    --waited_for_;
    fresh.push_back(*number);
  }
  tail_.erase(0, tail_.size() - std::min(tail_.size(), IdSeries::kBytes - 1));
  return fresh;
}

void LiveIds::Add(const ClientIds& ids, const std::shared_ptr<LiveRequest>& request) {
  MutexLock lock(mutex_);
  const bool one = ids.given.size() == 1;
  for (size_t i = 0; i < ids.given.size(); ++i) {
    const auto prompt = one ? std::optional<uint32_t>() : static_cast<uint32_t>(i);
    live_.emplace(ids.given[i], Entry{{request, prompt}, ids.numbered});
  }
}

void LiveIds::Remove(const ClientIds& ids, const LiveRequest* request) {
  MutexLock lock(mutex_);
  for (const std::string& id : ids.given) {
    auto [it, end] = live_.equal_range(id);
    while (it != end) {
      it = it->second.target.request.get() == request ? live_.erase(it) : std::next(it);
    }
  }
}

std::vector<LiveIds::Target> LiveIds::Find(std::string_view id) {
  std::vector<Target> found;
  MutexLock lock(mutex_);
  const auto [begin, end] = live_.equal_range(std::string(id));
  for (auto it = begin; it != end; ++it) found.push_back(it->second.target);
  const size_t cut = id.rfind('_');
  if (cut == std::string_view::npos) return found;
  const auto prompt = Number(id.substr(cut + 1), 10);
  if (!prompt) return found;
  const auto [first, last] = live_.equal_range(std::string(id.substr(0, cut)));
  for (auto it = first; it != last; ++it) {
    const auto& request = it->second.target.request;
    if (it->second.numbered && *prompt < request->prompts()) found.push_back({request, prompt});
  }
  return found;
}

size_t LiveIds::size() {
  MutexLock lock(mutex_);
  return live_.size();
}

}  // namespace lorry::door
