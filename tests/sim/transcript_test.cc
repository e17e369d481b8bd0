// Each file of testdata/*.txt is played, and must answer as it says. REWRITE=1 writes the answers
// anew.
#include "tests/sim/transcript.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace lorry::sim {
namespace {

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Transcripts, AnswerAsTheySay) {
  int played = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LORRY_SIM_TESTDATA)) {
    if (entry.path().extension() != ".txt" || entry.path().filename() == "seeds.txt") continue;
    const std::string before = Read(entry.path());
    const std::string after = RunTranscript(before);
    if (std::getenv("REWRITE") != nullptr) std::ofstream(entry.path()) << after;
    EXPECT_TRUE(std::getenv("REWRITE") != nullptr || before == after)
        << entry.path().filename() << " now answers:\n"
        << after;
    EXPECT_EQ(after.find("VIOLATED"), std::string::npos) << after;
    ++played;
  }
  EXPECT_GE(played, 10);
}

}  // namespace
}  // namespace lorry::sim
