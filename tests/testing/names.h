// Names that stand for what a test says: a program that links names.cc has a getaddrinfo of its own.
#pragma once

#include <string>
#include <vector>

namespace lorry {

// Numeric addresses, in the order in which they are answered. While there are none, whoever asks
// waits, as for a name server that does not answer.
void SetName(const std::string& name, std::vector<std::string> addresses);
// The name server answers that there is no such name, and is heard out.
void LoseName(const std::string& name);
// How often it was asked for the name, since it was lost where it was.
int LookupsOf(const std::string& name);

}  // namespace lorry
