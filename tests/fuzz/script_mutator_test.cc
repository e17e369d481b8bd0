// How often a mutation, or a cross, makes of a script what finds faults of programs that are asked
// twice, about something else, meanwhile, or by many.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/call_edits.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed);
extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data, size_t size, const uint8_t* other,
                                            size_t other_size, uint8_t* out, size_t max_size,
                                            unsigned int seed);

namespace lorry::fuzz {
namespace {

constexpr unsigned int kMutations = 20'000;
constexpr size_t kScriptBytesMax = 1 << 16;

const Commands kBegun = {"C0OpenRun {\"adapter\":\"policy\"}", "A0BeginUpload {\"attempt\":1}",
                         "C0GetUpload {\"upload_id\":\"$found\"}", "W0"};
const Commands kCommitted = {"C0BeginUpload {\"attempt\":1}", "O0Put", "w0",
                             "C0CommitUpload {\"upload_id\":\"$BeginUploadResponse.upload_id\"}"};

using Holds = std::function<bool(const Commands&)>;

const uint8_t* Bytes(const std::string& text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// Of a thousand mutations of a script.
double MutationsPerMille(const Commands& script, const Holds& holds) {
  int held = 0;
  for (unsigned int seed = 0; seed < kMutations; ++seed) {
    std::string bytes = Join(script);
    const size_t size = bytes.size();
    bytes.resize(kScriptBytesMax);
    bytes.resize(LLVMFuzzerCustomMutator(reinterpret_cast<uint8_t*>(bytes.data()), size,
                                         bytes.size(), seed));
    if (holds(Split(bytes))) ++held;
  }
  return 1000.0 * held / kMutations;
}

double CrossesPerMille(const Commands& script, const Commands& other, const Holds& holds) {
  int held = 0;
  const std::string one = Join(script), two = Join(other);
  for (unsigned int seed = 0; seed < kMutations; ++seed) {
    std::string out(kScriptBytesMax, '\0');
    out.resize(LLVMFuzzerCustomCrossOver(Bytes(one), one.size(), Bytes(two), two.size(),
                                         reinterpret_cast<uint8_t*>(out.data()), out.size(), seed));
    if (holds(Split(out))) ++held;
  }
  return 1000.0 * held / kMutations;
}

size_t Count(const Commands& commands, std::string_view what) {
  size_t count = 0;
  for (const std::string& command : commands) {
    if (command.find(what) != std::string::npos) ++count;
  }
  return count;
}

size_t PlaceOf(const Commands& commands, std::string_view what) {
  size_t at = 0;
  while (at < commands.size() && commands[at].find(what) == std::string::npos) ++at;
  return at;
}

TEST(Mutations, AskAgain) {
  EXPECT_GE(MutationsPerMille(kCommitted, [](auto& c) { return Count(c, "CommitUpload {") == 2; }),
            80);
}

TEST(Mutations, AskAgainAndAgain) {
  EXPECT_GE(MutationsPerMille(kCommitted, [](auto& c) { return Count(c, "CommitUpload {") >= 8; }),
            15);
}

TEST(Mutations, OpenMoreStreamsThanAServerHasPlaces) {
  EXPECT_GE(MutationsPerMille(kCommitted,
                              [](auto& c) {
                                return Count(c, "Put") >= 8 ||
                                       Count(c, "o3Put") + Count(c, "o4Put") + Count(c, "o5Put") >
                                           0;
                              }),
            40);
}

TEST(Crosses, AskBetweenTwoOthersAboutTheTargetOfOne) {
  EXPECT_GE(CrossesPerMille(kBegun, kCommitted,
                            [](auto& c) {
                              const size_t at =
                                  PlaceOf(c, "CommitUpload {\"upload_id\":\"$found\"}");
                              return at > PlaceOf(c, "BeginUpload") && at < PlaceOf(c, "W0");
                            }),
            55);
}

TEST(Crosses, TakeTheTargetOfAnother) {
  EXPECT_GE(CrossesPerMille(
                kCommitted, kBegun,
                [](auto& c) { return Count(c, "CommitUpload {\"upload_id\":\"$found\"") > 0; }),
            55);
}

TEST(Edits, LeaveAScriptWithoutCallsAsItIs) {
  const Commands script = {"R0POST /generate", "w0", "E0{\"a\":1}"};
  Prng prng(1);
  for (int tries = 0; tries < 100; ++tries) {
    Commands commands = script;
    ChangeWaiting(commands, prng);
    TakeMethod(commands, kCommitted, prng);
    TakeTarget(commands, kCommitted, prng);
    AskBeside(commands, kCommitted, prng);
    Repeat(commands, prng);
    OpenMany(commands, prng);
    EXPECT_EQ(commands, script);
  }
}

}  // namespace
}  // namespace lorry::fuzz
