"""Commands that start a service, as Markdown shows them, can be copied: they have the flags without which it does not start, and no unknown one.

A line of a code block counts, and so does a command within a sentence, between backticks, that gives a flag a value.
"""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = {"adapter-store": "services/adapter_store", "sync-orchestrator": "services/sync_orchestrator", "engine-proxy": "services/engine_proxy"}
# "--FLAG is missing" of lib/program/program.cc, services/*/main.cc and services/engine_proxy/follow.cc.
REQUIRED = {
    "adapter-store": {"data-dir"},
    "sync-orchestrator": {"data-dir", "store"},
    "engine-proxy": {"data-dir", "engine", "store", "orchestrator", "member"},
    "engine-proxy --follow": {"store", "member"},
}
COMMAND = rf"(?:\w+=\S* )*({'|'.join(SOURCES)})((?: .*)?)"


def commands(page: str) -> list[tuple[str, set[str]]]:
    """(program, its flags' names) of every complete command."""
    page = re.sub(r"\\\n\s*", " ", page)
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^ *```[^\n]*\n.*?^ *```", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"^(?:    |\t)(.*)$", prose, re.MULTILINE)
    spans = [span for span in re.findall(r"`([^`\n]+)`", prose) if re.search(r" --[\w-]+=", span)]
    found = []
    for text in lines + spans:
        told = re.fullmatch(COMMAND, text.partition(" #")[0].strip())
        if told is not None and (text in spans or "--" in told[2]):
            found.append((told[1], set(re.findall(r" --([\w-]+)", told[2]))))
    return found


def missing(program: str, flags: set[str]) -> set[str]:
    return REQUIRED[f"{program} --follow" if "follow" in flags else program] - flags


def known(program: str) -> set[str]:
    sources = [*(ROOT / SOURCES[program]).rglob("*.cc"), *(ROOT / "lib").rglob("*.cc")]
    return {name.replace("_", "-") for path in sources for name in re.findall(r"ABSL_FLAG\(\s*[^,]+?(?:<[^>]*>)?,\s*(\w+)", path.read_text())}


class Commands(unittest.TestCase):
    def test_in_markdown_start_their_program(self):
        pages = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        seen = set()
        for name in filter(None, pages):
            if not (ROOT / name).is_file():
                continue  # deleted, and not committed yet
            for program, flags in commands((ROOT / name).read_text()):
                seen.add(program)
                with self.subTest(f"{name}: {program}"):
                    self.assertEqual(missing(program, flags), set(), "flags without which it does not start")
                    self.assertEqual(flags - known(program), set(), "flags that it does not have")
        self.assertEqual(seen, set(SOURCES), "a program of which none is found: does this test still read commands?")

    def test_are_found_wherever_they_stand(self):
        page = "```sh\nA=1 engine-proxy --engine=$E --store=$S \\\n  --member=m   # beside it\nengine-proxy\n```\nof `engine-proxy --follow`, " \
               "`engine-proxy --follow --member=NAME`\n\n    adapter-store --data-dir=d # any\n"
        self.assertEqual(commands(page), [("engine-proxy", {"engine", "store", "member"}), ("adapter-store", {"data-dir"}), ("engine-proxy", {"follow", "member"})])

    def test_that_lack_a_flag_are_told(self):
        self.assertEqual(missing("engine-proxy", {"engine", "store", "member"}), {"data-dir", "orchestrator"})
        self.assertEqual(missing("engine-proxy", {"follow", "member"}), {"store"})

    def test_needs_what_the_programs_need(self):
        for program, flags in REQUIRED.items():
            sources = [ROOT / "lib/program/program.cc", *(ROOT / SOURCES[program.split()[0]]).glob("*.cc")]
            text = "".join(path.read_text() for path in sources)
            for flag in flags:
                with self.subTest(f"{program} --{flag}"):
                    self.assertRegex(text, rf'"--{flag}(?:"| is missing)')


if __name__ == "__main__":
    unittest.main()
