"""tools/mutants over a source of its own: each place is found, the copy does what the source does until a mutant is on, and
each mutant is noticed exactly where its effect shows.

usage: mutants_test.py C++-COMPILER
"""

import dataclasses
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "mutants"
COMPILER = "c++"
sys.path.insert(0, str(TOOL))

import judges  # noqa: E402  (after the path is set)
import mutants  # noqa: E402
import report  # noqa: E402

SOURCE = """\
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

constexpr int Twice(int x) { return x + x; }
static_assert(Twice(2) > 3);
#define CHECK(condition) do { if (!(condition)) throw 1; } while (false)
#define LORRY_RETURN_IF_ERROR(expr) do { if (const int error = (expr); error != 0) return error; } while (false)

struct Pair { int left = 0, right = 0; auto operator<=>(const Pair&) const = default; };
int calls = 0;
bool Count(bool value) { ++calls; return value; }

bool Both(bool a, bool b) {
  return Count(a) && Count(b);
}

int Clamp(int x, int limit) {
  if (x >= limit)  // at the limit both say the same
    return limit;
  return x;
}

const int* Find(const std::vector<int>& values, int value) {
  for (const int& one : values) {
    if (one == value) return &one;
  }
  return nullptr;
}

int Sum(const std::vector<int>& values) {
  int sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += values[i];
  CHECK(sum >= 0 && Twice(1) == 2);
  return sum;
}

int Known(const std::vector<int>& values, int value) {
  std::array<int, Twice(2) + 1> unused = {};
  if (const int* found = Find(values, value)) return *found;
  return static_cast<int>(unused.size()) - 5;
}

std::vector<Pair> Ordered(std::vector<Pair> pairs) {
  std::sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a < b; });
  return pairs;
}

void Reset(std::unique_ptr<int>& value, std::string& text) {
  if (value != nullptr) value.reset(); else text = "empty";
  text += R"(
)";
}

int Never(bool asked) {
  if (asked) return 1;
  return 0;
}

int Check(int x) { return x > 2 ? x : 0; }

int CheckAll(const std::vector<int>& values) {
  for (const int value : values) LORRY_RETURN_IF_ERROR(Check(value + 1));
  return 0;
}

int main() {
  bool right = !Both(true, false) && calls == 2 && !Both(false, true) && calls == 3 && Both(true, true);
  right = right && Clamp(5, 3) == 3 && Clamp(3, 3) == 3 && Clamp(1, 3) == 1;
  right = right && Sum({1, 2}) == 3 && Sum({}) == 0 && Known({7}, 7) == 7 && Known({7}, 8) == 0 && Never(false) == 0;
  right = right && Ordered({{2, 1}, {1, 2}})[0].left == 1;
  right = right && CheckAll({0, 1}) == 0 && CheckAll({0, 2}) == 3 && Check(2) == 0;
  std::unique_ptr<int> value = std::make_unique<int>(1);
  std::string text;
  Reset(value, text);
  Reset(value, text);
  return right && value == nullptr && text == "empty\\n" ? 0 : 3;
}
"""

# What main() cannot notice: at the limit both answers are the same, and nobody asks.
UNNOTICED = {
    "x >= limit -> x > limit": mutants.SURVIVED,
    "asked -> false": mutants.NOT_REACHED,
}


class Tool(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.temporary = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.temporary.name)
        source, copy = folder / "sample.cc", folder / "mutated" / "sample.cc"
        source.write_text(SOURCE)
        commands = folder / "compile_commands.json"
        commands.write_text(json.dumps([{"file": str(copy), "command": f"{COMPILER} -std=c++20 -I {ROOT} -c {copy}"}]))
        subprocess.run([sys.executable, "-B", TOOL / "generate.py", f"--source={source}", f"--out={copy}", "--first=1", "--block=1000",
                        f"--commands={commands}"], check=True)
        cls.copy = copy.read_text()
        cls.mutants = [mutants.Mutant(**entry) for entry in json.loads((folder / "mutated" / "sample.cc.json").read_text())]
        cls.program = folder / "sample"
        subprocess.run([COMPILER, "-std=c++20", "-w", "-I", ROOT, "-include", TOOL / "runtime.h", copy, TOOL / "runtime.cc",
                        "-o", cls.program], check=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.temporary.cleanup()

    def run_sample(self, **environment: str) -> int:
        return subprocess.run(["prlimit", "--cpu=2", self.program], env=environment, capture_output=True, check=False).returncode

    def in_function(self, name: str) -> list[str]:
        return [mutant.mutation for mutant in self.mutants if mutant.function == name]

    def test_finds_each_place(self) -> None:
        self.assertEqual(self.in_function("Both"), [
            "Count(a) && Count(b) -> true", "Count(a) && Count(b) -> false",
            "Count(a) -> true, in Count(a) && Count(b)", "a -> true", "a -> false",
            "Count(b) -> true, in Count(a) && Count(b)", "b -> true", "b -> false"])
        self.assertEqual(self.in_function("Clamp"), ["x >= limit -> true", "x >= limit -> false", "x >= limit -> x > limit"])
        self.assertEqual(self.in_function("Find"), ["one == value -> true", "one == value -> false"])
        self.assertEqual(self.in_function("Sum"), ["i < values.size() -> false", "i < values.size() -> i <= values.size()",
                                                   "sum += values[i] -> nothing"])
        self.assertIn("a < b -> b < a", self.in_function("Ordered"))
        self.assertEqual(self.in_function("Known"), [
            "const int* found = Find(values, value) -> true", "const int* found = Find(values, value) -> false",
            "static_cast<int>(unused.size()) - 5 -> static_cast<int>(unused.size())"])
        self.assertEqual(self.in_function("CheckAll"), ["LORRY_RETURN_IF_ERROR(Check(value + 1)) -> nothing", "value + 1 -> value"])
        self.assertEqual(self.in_function("Twice"), [])

    def test_keeps_the_lines(self) -> None:
        self.assertEqual(self.copy.count("\n"), SOURCE.count("\n") + 1)

    def test_does_what_the_source_does_until_a_mutant_is_on(self) -> None:
        self.assertEqual(self.run_sample(), 0)

    def test_each_mutant_shows_where_it_should(self) -> None:
        told = self.program.with_suffix(".reached")
        self.run_sample(LORRY_MUTANTS_REACHED=str(told))
        reached = {int(number) for number in told.read_text().split()}
        for mutant in self.mutants:
            if mutant.function == "main":
                continue
            noticed = self.run_sample(LORRY_MUTANT=str(mutant.number)) != 0
            what = mutants.KILLED if noticed else mutants.SURVIVED if mutant.number in reached else mutants.NOT_REACHED
            with self.subTest(mutant.mutation):
                self.assertEqual(what, UNNOTICED.get(mutant.mutation, mutants.KILLED))
                self.assertTrue(mutant.number in reached or not noticed, "noticed, and yet said to be out of reach")


class Books(unittest.TestCase):
    MUTANT = mutants.Mutant(7, "key", "lib/a.cc", 3, "if (a || b) return;", "F", "a || b -> false")

    def test_a_kill_outlives_its_build_and_a_survival_does_not(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "verdicts.json"
            results = mutants.Results(path)
            results.put(self.MUTANT, mutants.Verdict(mutants.SURVIVED, judged="one"))
            results.save()
            again = mutants.Results(path)
            self.assertEqual(again.of(self.MUTANT, "one").what, mutants.SURVIVED)
            self.assertIsNone(again.of(self.MUTANT, "other"))
            again.put(self.MUTANT, mutants.Verdict(mutants.KILLED, by="seeds", judged="one"))
            self.assertEqual(again.of(self.MUTANT, "other").what, mutants.KILLED)

    def test_notes_know_their_mutants_and_say_which_are_gone(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "notes.txt"
            path.write_text("# why\nlib/a.cc | if (a || b) return; | a || b -> false | a proof\nlib/a.cc | gone | x -> true | another\n"
                            "lib/b.cc | if (a …) return; | a … -> false | a whole kind\n")
            notes = mutants.Notes(path)
            self.assertEqual(notes.on(self.MUTANT), "a proof")
            self.assertEqual(notes.unused({"lib/a.cc"}), ["lib/a.cc: another"])
            self.assertEqual(notes.on(dataclasses.replace(self.MUTANT, file="lib/b.cc")), "a whole kind")
            self.assertEqual(notes.unused({"lib/b.cc"}), [])
            path.write_text("lib/a.cc | two fields\n")
            with self.assertRaises(SystemExit):
                mutants.Notes(path)

    def test_the_table_counts_shares_of_what_could_be_killed(self) -> None:
        verdicts = [mutants.Verdict(mutants.KILLED, by="seeds"), mutants.Verdict(mutants.KILLED, by="unit"),
                    mutants.Verdict(mutants.SURVIVED), mutants.Verdict(mutants.NOT_REACHED), mutants.Verdict(mutants.EQUIVALENT)]
        table = report.tables([(self.MUTANT, verdict) for verdict in verdicts])
        self.assertRegex(table, r"lib/a.cc +5 +2 +1 +1 +1 +1 +50.0 % +25.0 %")
        self.assertIn("lib/a.cc:3: if (a || b) return;", report.unnoticed([(self.MUTANT, verdicts[2])]))

    def test_every_source_has_judges(self) -> None:
        self.assertEqual(mutants.judges_of("lib/peft/names.cc"), ["peft"])
        self.assertIn("seeds", mutants.judges_of("services/engine_proxy/machine/rows.cc"))
        self.assertEqual(mutants.judges_of("lib/base/ids.cc"), [])

    def test_reads_the_names_that_googletest_lists(self) -> None:
        listed = "Suite.\n  One\n  DISABLED_Two\nAll/Typed.  # TypeParam = int\n  Three/0  # GetParam() = 1\n"
        self.assertEqual(judges._case_names(listed), ["Suite.One", "All/Typed.Three/0"])


if __name__ == "__main__":
    if importlib.util.find_spec("clang") is None:
        print("SKIPPED: no libclang in this environment; run: tools/setup tools")
        sys.exit(77)
    if len(sys.argv) > 1 and not re.match("-", sys.argv[1]):
        COMPILER = sys.argv.pop(1)
    unittest.main()
