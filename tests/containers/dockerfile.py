"""deploy/Dockerfile, read: its stages, what each copies in, and what the daemon would be sent of the checkout."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORE_FILE = ROOT / "deploy" / "Dockerfile.dockerignore"


@dataclasses.dataclass
class Stage:
    base: str
    # (instruction, its text), in the order in which they are written.
    steps: list[tuple[str, str]]

    def texts(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]

    def packages(self) -> list[str]:
        """What its RUN instructions install from Debian."""
        found: list[str] = []
        for command in self.texts("RUN"):
            for names in re.findall(r"apt-get install -y --no-install-recommends (.*?) &&", command):
                found += names.split()
        return found

    def entrypoint(self) -> list[str]:
        (text,) = self.texts("ENTRYPOINT")
        return json.loads(text)


def stages() -> dict[str, Stage]:
    """name → stage, in the order of the file."""
    found: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(maxsplit=1)
        if instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            base = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], base)
            found[name] = Stage(base, [])
        elif not found:
            key, value = rest.split("=", 1)
            arguments[key] = value
        else:
            list(found.values())[-1].steps.append((instruction, rest))
    return found


def sent_files() -> set[str]:
    """The files of the checkout that the daemon is sent: those that git would commit and .dockerignore lets through."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout
    patterns = [line for line in IGNORE_FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {path for path in listed.split("\0") if path and (ROOT / path).is_file() and not _is_ignored(path, patterns)}


def _is_ignored(path: str, patterns: list[str]) -> bool:
    """The last pattern that matches the path, or a folder above it, decides."""
    above = [path, *(str(parent) for parent in pathlib.PurePosixPath(path).parents if str(parent) != ".")]
    ignored = False
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        options = [plain, plain.removeprefix("**/")] if plain.startswith("**/") else [plain]
        if any(fnmatch.fnmatchcase(part, option) for part in above for option in options) or (
            plain.startswith("**/") and pathlib.PurePosixPath(path).match(plain.removeprefix("**/"))
        ):
            ignored = not pattern.startswith("!")
    return ignored


def copied(stage: Stage) -> dict[str, pathlib.Path]:
    """Path inside the stage's working directory → file of the checkout, by its COPY instructions."""
    sent = sent_files()
    found: dict[str, pathlib.Path] = {}
    for text in stage.texts("COPY"):
        if text.startswith("--from="):
            continue
        *sources, target = text.split()
        for source in sources:
            matching = [path for path in sent if path == source or path.startswith(source + "/")]
            assert matching, f"COPY {source}: the daemon is sent no such file; see {IGNORE_FILE.name}"
            for path in matching:
                # Of a folder COPY takes what is in it; of a file its name, where the target is a folder.
                if path != source:
                    inside = pathlib.PurePosixPath(target, path.removeprefix(source + "/"))
                elif target.endswith("/"):
                    inside = pathlib.PurePosixPath(target, pathlib.PurePosixPath(source).name)
                else:
                    inside = pathlib.PurePosixPath(target)
                found[str(inside)] = ROOT / path
    return found
