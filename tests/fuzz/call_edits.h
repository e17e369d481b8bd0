// Edits of a script's calls (see rpc/README.md): what is asked again, of something else, at another
// moment, or by many at once. Each leaves a script without calls as it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/prng.h"

namespace lorry::fuzz {

using Commands = std::vector<std::string>;

// A script as its commands, and back; empty ones go.
Commands Split(std::string_view script);
std::string Join(const Commands& commands);

// Lets one call, or sometimes all of them, be waited for or not: what was in order becomes a race.
void ChangeWaiting(Commands& commands, Prng& prng);
// Asks what one call asks of the method of one of `others`: methods take much the same fields.
void TakeMethod(Commands& commands, const Commands& others, Prng& prng);
// Lets a call or a message be about what one of `others` is about: another upload, another adapter.
void TakeTarget(Commands& commands, const Commands& others, Prng& prng);
// Makes a call of `others` just after or before one that is there, mostly about the same target.
void AskBeside(Commands& commands, const Commands& others, Prng& prng);
// Repeats a call, a message or the opening of a stream in its place, up to 64 times.
void Repeat(Commands& commands, Prng& prng);
// Opens a stream of the method of one that is there many times, and says nothing on any.
void OpenMany(Commands& commands, Prng& prng);

}  // namespace lorry::fuzz
