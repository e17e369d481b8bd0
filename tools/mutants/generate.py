#!/usr/bin/env python3
"""Writes a copy of a source with a switch at every place that can be mutated, and the list of its mutants beside it.

usage: generate.py --source=FILE --out=FILE --first=NUMBER --block=COUNT --commands=compile_commands.json

The copy keeps the lines of the source. What the compiler would refuse in it is left as it was.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNTIME = pathlib.Path(__file__).resolve().parent / "runtime.h"
CLANG = "clang-16"
ROUNDS_MAX = 10  # refusals come in a few waves: what one hides shows up in the next

try:
    from clang.cindex import Diagnostic, Index, TranslationUnit
except ImportError:
    sys.exit("generate.py: no libclang for this Python; run: tools/setup tools, and use .cache/tools/venv/bin/python")

from points import find  # noqa: E402  (after the check above, which explains itself)
from source import Point, Source  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--first", required=True, type=int, help="the number of the first mutant")
    parser.add_argument("--block", required=True, type=int, help="how many numbers it may use")
    parser.add_argument("--commands", required=True, type=pathlib.Path, help="where the compiler's options for --out stand")
    options = parser.parse_args()

    source = options.source.resolve()
    points = choose(source, flags_of(options.commands, options.out))
    count = sum(len(point.mutants) for point in points)
    if count > options.block:
        sys.exit(f"generate.py: {source} has {count} mutants: raise LORRY_MUTANTS_BLOCK above that, or split the file")
    text, numbers = rewrite(source.read_bytes(), points, options.first)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write(options.out, f'#line 1 "{source}"\n'.encode() + text)
    write(options.out.with_suffix(options.out.suffix + ".json"), json.dumps(describe(source, points, numbers), indent=1).encode())
    return 0


def write(path: pathlib.Path, text: bytes) -> None:
    """What says the same already stays as old as it is, so that nothing is compiled for it."""
    if not path.is_file() or path.read_bytes() != text:
        path.write_bytes(text)


def flags_of(commands: pathlib.Path, out: pathlib.Path) -> list[str]:
    """The options that matter to a parser, of the command that compiles `out`."""
    entries = json.loads(commands.read_text())
    command = next(entry for entry in entries if pathlib.Path(entry["file"]) == out.resolve())
    words = iter(shlex.split(command["command"]))
    flags = []
    for word in words:
        if word in ("-I", "-isystem", "-D"):
            flags += [word, next(words)]
        elif word.startswith(("-I", "-D", "-std=")):
            flags.append(word)
    return flags


def choose(source: pathlib.Path, flags: list[str]) -> list[Point]:
    """Every place that can be mutated so that the copy compiles."""
    headers = subprocess.run([CLANG, "-print-resource-dir"], capture_output=True, text=True, check=True).stdout.strip()
    # An array whose length is no constant any more is one that no standard knows.
    arguments = [*flags, "-include", str(RUNTIME), "-resource-dir", headers, "-w", "-Werror=vla", "-ferror-limit=0"]
    how = (TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD | TranslationUnit.PARSE_PRECOMPILED_PREAMBLE |
           0x100)  # CXTranslationUnit_CreatePreambleOnFirstParse: the headers are read once
    unit = Index.create().parse(str(source), args=arguments, options=how)
    refuse_errors(source, unit)
    original = source.read_bytes()
    points = find(Source(str(source), unit, original), unit)
    for _ in range(ROUNDS_MAX):
        text, _ = rewrite(original, points, 1)
        unit.reparse(unsaved_files=[(str(source), text.decode())], options=how)
        lines = {error.location.line for error in errors_of(unit) if same_file(error, source)}
        if not lines:
            refuse_errors(source, unit)
            return points
        points = [point for point in points if not lines & lines_of(original, point)]
    sys.exit(f"generate.py: {source}: its copy does not compile whatever is left out; first at line {min(lines)}")


def errors_of(unit: TranslationUnit) -> list[Diagnostic]:
    return [found for found in unit.diagnostics if found.severity >= Diagnostic.Error]


def refuse_errors(source: pathlib.Path, unit: TranslationUnit) -> None:
    for error in errors_of(unit):
        sys.exit(f"generate.py: {source}: clang does not compile it: {error}")


def same_file(error: Diagnostic, source: pathlib.Path) -> bool:
    return error.location.file is not None and os.path.samefile(error.location.file.name, source)


def lines_of(text: bytes, point: Point) -> set[int]:
    first = 1 + text.count(b"\n", 0, point.span[0])
    return {first, 1 + text.count(b"\n", 0, point.span[1])} if "On(" not in point.before else {first}


def rewrite(text: bytes, points: list[Point], first: int) -> tuple[bytes, list[int]]:
    """The source with its switches, and the number of each point's first mutant."""
    numbers, number = [], first
    edits: list[tuple[int, int, int, int, bytes]] = []  # offset, suffixes before prefixes, order among those, bytes replaced, text
    for index, point in enumerate(points):
        numbers.append(number)
        begin, end = point.span
        edits.append((begin, 1, index, 0, point.before.format(number).encode()))
        edits.append((end, 0, -index, 0, point.after.format(number).encode()))
        if point.between is not None:
            (left, right), replaced = point.between
            lines = b"\n" * text.count(b"\n", left, right)
            edits.append((left, 0, 1, right - left, replaced.encode() + lines))
        number += len(point.mutants)
    pieces, at = [], 0
    for offset, _, _, length, written in sorted(edits):
        pieces += [text[at:offset], written]
        at = offset + length
    return b"".join([*pieces, text[at:]]), numbers


def describe(source: pathlib.Path, points: list[Point], numbers: list[int]) -> list[dict]:
    path = str(source.relative_to(ROOT)) if source.is_relative_to(ROOT) else source.name
    text = source.read_bytes()
    lines = text.decode().splitlines()
    seen: dict[str, int] = {}
    mutants = []
    for point, number in zip(points, numbers):
        line = 1 + text.count(b"\n", 0, point.span[0])
        for index, mutation in enumerate(point.mutants):
            same = f"{path}\n{point.function}\n{lines[line - 1].strip()}\n{mutation}"
            seen[same] = seen.get(same, 0) + 1
            key = hashlib.sha256(f"{same}\n{seen[same]}".encode()).hexdigest()[:16]
            mutants.append({"number": number + index, "key": key, "file": path, "line": line, "text": lines[line - 1].strip(),
                            "function": point.function, "mutation": mutation})
    return mutants


if __name__ == "__main__":
    sys.exit(main())
