// Transcripts: scenarios as text. A line is a verb with its arguments; what the world answers
// follows, indented. Run with REWRITE=1 to write the answers anew, and commit them only if you
// understand what changed them.
//
//   adapter math min=2 keep=2        the adapter's policy: min, keep, staleness, deadline (ms),
//   skip=never member e1 sglang slots=4         a proxy and its engine start leader up | kill |
//   lose          the orchestrator; `lose`: its records are gone engine e1 kill | start | slow
//   (slow: loads take a minute from now on) proxy e1 kill | start | lose     (lose: it dies with
//   its journal) publish math [number] [kills]    the store has a new version, and it is watched
//   run math                         the trainer opens a new run
//   alias math eval 3 | lease math 3 ttl | override math 1 | override math none
//   request e1 math ms               a request for `latest` that lasts so long
//   tick ms                          time passes
//   state                            one line a pool, a member, a proxy
#pragma once

#include <string>

namespace lorry::sim {

// The whole text again, with the world's answers in it.
std::string RunTranscript(const std::string& text);

}  // namespace lorry::sim
