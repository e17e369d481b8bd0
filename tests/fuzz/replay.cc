// Runs a fuzz target without libFuzzer, so that `make test` exercises it with any compiler: every
// corpus file as it is, then mutations of it from a fixed seed. A failure names the file and the
// mutation's number.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lib/base/prng.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Only some targets have one.
extern "C" [[gnu::weak]] size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                                        unsigned int seed);

namespace {

// So many that each target takes a second or two in an -O1 build, some ten under ASan.
constexpr size_t kMutationsTotal = LORRY_FUZZ_MUTATIONS;
constexpr size_t kEditsMax = 6;
constexpr size_t kInputBytesMax = 1 << 16;
// Bytes that mean something in JSON, numbers or names.
using std::string_view_literals::operator""sv;
constexpr std::string_view kTelling = "{}[]\",:.-0123456789eE\\ \n\0\xff"sv;

struct Input {
  std::string file;
  std::string bytes;
};

std::vector<Input> ReadCorpus() {
  std::vector<Input> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(LORRY_FUZZ_CORPUS)) {
    std::ifstream in(entry.path(), std::ios::binary);
    corpus.push_back({entry.path().filename(), {std::istreambuf_iterator<char>(in), {}}});
  }
  std::sort(corpus.begin(), corpus.end(), [](auto& a, auto& b) { return a.file < b.file; });
  return corpus;
}

// What is being run, said when a CHECK or a bad access ends the process.
char running[256];

extern "C" void SayWhatWasRunning(int) {
  (void)!write(STDERR_FILENO, running, std::strlen(running));
}

void SayItOnDeath() {
  for (const int signal : {SIGABRT, SIGSEGV}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_DFL) continue;  // a sanitizer's, which says more
    action.sa_handler = SayWhatWasRunning;
    action.sa_flags = SA_RESETHAND;
    sigaction(signal, &action, nullptr);
  }
}

void RunTarget(const std::string& file, size_t mutation, std::string_view bytes) {
  std::snprintf(running, sizeof running, "failed at mutation %zu of %s\n", mutation, file.c_str());
  // A copy of exactly this size, so that ASan sees a read past its end.
  const std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

void Edit(std::string& bytes, std::string_view other, lorry::Prng& prng) {
  const size_t at = prng.Below(bytes.size() + 1);
  const size_t count = std::min<size_t>(prng.Below(16) + 1, bytes.size() - at);
  switch (prng.Below(8)) {
    case 0:  // flip a bit
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << prng.Below(8)));
      break;
    case 1:  // any byte
      if (at < bytes.size()) bytes[at] = static_cast<char>(prng.Below(256));
      break;
    case 2:
      bytes.insert(at, 1, kTelling[prng.Below(kTelling.size())]);
      break;
    case 3:
      bytes.erase(at, count);
      break;
    case 4:  // repeat a piece
      bytes.insert(at, bytes.substr(at, count));
      break;
    case 5:  // cut
      bytes.resize(at);
      break;
    case 6: {  // a piece of another input
      const size_t from = prng.Below(other.size() + 1);
      bytes.insert(at, other.substr(from, prng.Below(64)));
      break;
    }
    case 7:  // an extreme number
      for (size_t i = at; i < std::min(at + 8, bytes.size()); ++i)
        bytes[i] = prng.Chance(500) ? '\xff' : '\x7f';
      break;
  }
}

// The target's own mutations, where it has any.
void MutateAsTheTargetDoes(std::string& bytes, lorry::Prng& prng) {
  if (LLVMFuzzerCustomMutator == nullptr) return;
  const size_t size = bytes.size();
  bytes.resize(std::max(size, kInputBytesMax));
  bytes.resize(LLVMFuzzerCustomMutator(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size(),
                                       static_cast<unsigned int>(prng.Next())));
}

TEST(Replay, CorpusAndItsMutations) {
  const auto corpus = ReadCorpus();
  ASSERT_FALSE(corpus.empty()) << "no files in " << LORRY_FUZZ_CORPUS;
  SayItOnDeath();
  lorry::Prng prng(20261121);
  for (const Input& input : corpus) {
    RunTarget(input.file, 0, input.bytes);
    for (size_t mutation = 1; mutation <= kMutationsTotal / corpus.size(); ++mutation) {
      std::string bytes = input.bytes;
      for (size_t edits = prng.Below(kEditsMax) + 1; edits > 0; --edits) {
        Edit(bytes, corpus[prng.Below(corpus.size())].bytes, prng);
      }
      MutateAsTheTargetDoes(bytes, prng);
      if (bytes.size() > kInputBytesMax) bytes.resize(kInputBytesMax);
      RunTarget(input.file, mutation, bytes);
    }
  }
}

}  // namespace
