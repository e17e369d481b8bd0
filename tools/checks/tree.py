"""The files of a tree as the checks see them."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import subprocess

CPP = (".h", ".cc", ".cu", ".cuh")

# One alternative each: comments, raw strings, strings, characters. A digit before ' is a separator (1'000).
_CPP_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str  # what is wrong, and what to do
    is_warning: bool = False

    def __str__(self) -> str:
        mark = "warning: " if self.is_warning else ""
        return f"{self.path}:{self.line}: {mark}[{self.rule}] {self.message}"


class Tree:
    """A folder and the paths in it that are the project's, relative and in order."""

    def __init__(self, root: pathlib.Path, paths: list[str]):
        self.root = root
        self.paths = sorted(path for path in paths if (root / path).is_file())

    @classmethod
    def of(cls, root: pathlib.Path) -> "Tree":
        """The files that git tracks under `root`; every file where there is no repository."""
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=False
        )
        if listed.returncode == 0 and (root / ".git").exists():
            return cls(root, listed.stdout.split("\0")[:-1])
        skipped = {"build", ".cache", ".venv", ".git", "__pycache__", "node_modules"}
        found = (path.relative_to(root) for path in root.rglob("*"))
        return cls(root, [str(path) for path in found if not skipped & set(path.parts)])

    def ending(self, *suffixes: str) -> list[str]:
        return [path for path in self.paths if path.endswith(suffixes)]

    @functools.lru_cache(maxsize=None)
    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def lines(self, path: str) -> list[str]:
        return self.text(path).splitlines()

    @functools.lru_cache(maxsize=None)
    def code(self, path: str) -> str:
        """C++ with comments removed and literals emptied; every line keeps its number."""
        return _CPP_TOKENS.sub(_blank_all, self.text(path))

    @functools.lru_cache(maxsize=None)
    def code_with_strings(self, path: str) -> str:
        """C++ with comments removed only."""
        return _CPP_TOKENS.sub(_blank_comment, self.text(path))

    @functools.lru_cache(maxsize=None)
    def is_script(self, path: str, interpreter: str) -> bool:
        """A file without a suffix that `interpreter` runs."""
        if pathlib.PurePosixPath(path).suffix:
            return False
        first = self.text(path).split("\n", 1)[0]
        return first.startswith("#!") and interpreter in first

    def python(self) -> list[str]:
        return [path for path in self.paths if path.endswith(".py") or self.is_script(path, "python")]

    def cpp(self) -> list[str]:
        return self.ending(*CPP)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _blank_comment(match: re.Match[str]) -> str:
    token = match.group()
    return "\n" * token.count("\n") if token.startswith(("//", "/*")) else token


def _blank_all(match: re.Match[str]) -> str:
    token = match.group()
    newlines = "\n" * token.count("\n")
    if token.startswith(("//", "/*")):
        return newlines
    return ("''" if token.startswith("'") else '""') + newlines
