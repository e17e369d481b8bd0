// What a simulated proxy can know, and tell, of what its engine died of.
#include "tests/sim/sim_proxy.h"

namespace lorry::sim {

// Of a journal that is lost nobody can tell that it did not, whether it was told of its leave or not.
void SimProxy::MayTry(const VersionKey& key, const JournalId& journal) {
  const auto own = journal_.find("journal");
  const bool is_there =
      own != journal_.end() && std::get<proxy::JournalRecord>(own->second).journal == journal;
  is_there ? (void)may_try_.insert(key) : sim_.lives.DiedTrying(key, BootId());
}

// What it has written down it may have asked for, also where it died before it did.
void SimProxy::NoteTrial(const proxy::NameRecord& record) {
  if (!record.tried_on.empty() && record.tried_on == engine_.boot())
    engine_.MayBeAsked(EngineName(record.path.substr(record.path.rfind('/') + 1)), record.key);
}

// What it asks of an engine that is gone is blamed where it dies, or sees the next engine, before it
// hears that nobody took it.
void SimProxy::AskNobody(proxy::OpId op, const BootId& boot, const std::string& path) {
  if (const auto directory = disk_.find(path); directory != disk_.end())
    unsent_[op] = {directory->second.key, boot};
}

void SimProxy::NoteUnsent(const proxy::Event& event) {
  const auto* load = std::get_if<proxy::LoadDone>(&event);
  const auto known = load != nullptr ? unsent_.find(load->op) : unsent_.end();
  if (known != unsent_.end()) known->second.is_known = true;
  const auto* seen = std::get_if<proxy::EngineSeen>(&event);
  if (seen == nullptr) return;
  std::erase_if(unsent_, [&](const auto& asked) {
    const Unsent& unsent = asked.second;
    if (unsent.is_known || unsent.boot == seen->boot) return false;
    sim_.lives.DiedTrying(unsent.key, unsent.boot);
    return true;
  });
}

void SimProxy::EngineDied() {
  dead_ = engine_.boot();
  sees_end_ = stepped_judged_ = judged_ = false;
}

// With the end of its engine in sight the machine waits for the answer to a load, at the latest until
// it sees the next engine. Before that its reports say that none is there, and nothing of what the
// last one died of.
void SimProxy::NoteJudged(const proxy::Event& event) {
  if (const auto* load = std::get_if<proxy::LoadDone>(&event)) unanswered_.erase(load->op);
  if (const auto* lost = std::get_if<proxy::EngineLost>(&event))
    sees_end_ = sees_end_ || lost->ended;
  const auto* seen = std::get_if<proxy::EngineSeen>(&event);
  const bool is_next = seen != nullptr && seen->boot != dead_;
  if (is_next || (sees_end_ && unanswered_.empty())) stepped_judged_ = true;
}

}  // namespace lorry::sim
