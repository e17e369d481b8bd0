"""Each fault of tests/fuzz/faults can still be planted. `tools/fuzz_proof` plants them, and takes too long for a test of every change."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAULTS = sorted((ROOT / "tests/fuzz/faults").glob("*.patch"))


def header(patch: pathlib.Path, key: str) -> list[str]:
    found = re.search(rf"^{key}: (.*)$", patch.read_text().split("\ndiff ")[0], re.MULTILINE)
    return found[1].split() if found else []


class Faults(unittest.TestCase):
    def test_each_applies_to_the_tree(self):
        self.assertTrue(FAULTS)
        for patch in FAULTS:
            done = subprocess.run(["patch", "--dry-run", "--batch", "--forward", "-p0", "-i", str(patch)], cwd=ROOT, capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{patch.name}: change the code again, and `git diff --no-prefix`\n{done.stdout}{done.stderr}")

    def test_each_names_its_fuzzer_and_inputs_that_are_there(self):
        for patch in FAULTS:
            (fuzzer,) = header(patch, "fuzzer")
            (corpus,) = (ROOT / "tests/fuzz").glob(f"**/corpus/{fuzzer}")
            missing = [name for name in header(patch, "without") if not (corpus / name).is_file()]
            self.assertEqual(missing, [], f"{patch.name}: what was renamed would be searched from")


if __name__ == "__main__":
    unittest.main()
