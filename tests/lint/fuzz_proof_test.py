"""`tools/fuzz_proof` proves the search and not the corpus. Its fuzzer is a script here."""

import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Fails on any seed that begins with "bad", and else where the search's own seed is one of `FOUND`.
FUZZER = """#!{python}
import pathlib, sys
options = dict(word[1:].split("=", 1) for word in sys.argv[1:] if word.startswith("-"))
for path in sorted(pathlib.Path(sys.argv[-1]).iterdir()):
    if path.read_text().startswith("bad"):
        pathlib.Path(options["artifact_prefix"] + "crash-1").write_text(path.read_text())
        sys.exit("SUMMARY: an input of the corpus")
if options["seed"] in {found}:
    pathlib.Path(options["artifact_prefix"] + "crash-2").write_text("made by the search")
    sys.exit("SUMMARY: by the search")
"""


def load():
    loader = importlib.machinery.SourceFileLoader("fuzz_proof", str(ROOT / "tools/fuzz_proof"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fuzz_proof", loader))
    loader.exec_module(module)
    return module


class FuzzProof(unittest.TestCase):
    def prove(self, found: str, header: str, seeds: dict[str, str]) -> tuple[bool, str]:
        fuzz_proof = load()
        with tempfile.TemporaryDirectory(prefix="lorry-fuzz-proof-") as folder:
            fuzz_proof.ROOT = fuzz_proof.BUILD = pathlib.Path(folder)
            corpus = fuzz_proof.ROOT / "tests/fuzz/corpus/sample"
            corpus.mkdir(parents=True)
            for name, text in seeds.items():
                (corpus / name).write_text(text)
            fuzzer = fuzz_proof.BUILD / "bin/fuzz_sample"
            fuzzer.parent.mkdir()
            fuzzer.write_text(FUZZER.format(python=sys.executable, found=set(found)))
            fuzzer.chmod(0o755)
            patch = pathlib.Path(folder, "fault.patch")
            patch.write_text(f"A fault.\nfuzzer: sample\n{header}\ndiff --git a b\n")
            with contextlib.redirect_stdout(io.StringIO()) as said:
                return fuzz_proof.prove(patch, seconds=1, seeds=3), said.getvalue()

    def test_an_input_that_fails_as_it_is_counts_for_nothing(self):
        proven, said = self.prove("", "search: must", {"good": "good", "bad": "bad"})
        self.assertFalse(proven)
        self.assertIn("NOT FOUND", said)
        self.assertIn("without bad)", said)

    def test_what_is_found_from_every_seed_is_found_by_search(self):
        proven, said = self.prove("123", "search: must", {"good": "good", "bad": "bad", "bad_too": "bad too"})
        self.assertTrue(proven)
        self.assertIn("found by search", said)
        self.assertIn("without bad bad_too)", said)

    def test_one_seed_that_finds_nothing_is_enough_to_fail(self):
        proven, said = self.prove("13", "search: must", {"good": "good", "bad": "bad"})
        self.assertFalse(proven)
        self.assertIn("NOT FOUND from every seed", said)

    def test_without_the_line_inputs_of_the_corpus_will_do_and_it_is_said(self):
        proven, said = self.prove("", "without: bad", {"good": "good", "bad": "bad"})
        self.assertTrue(proven)
        self.assertIn("by its inputs of the corpus", said)


if __name__ == "__main__":
    unittest.main()
