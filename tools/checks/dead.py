"""Files that nothing builds or includes."""

import pathlib
import re

from checks.includes import _INCLUDE
from checks.tree import Finding, Tree


def check(tree: Tree) -> list[Finding]:
    return _sources(tree) + _headers(tree)


def _sources(tree: Tree) -> list[Finding]:
    """Each .cc, .cu and .proto is named by a CMakeLists.txt of its folder or of one above it."""
    lists = {path: tree.text(path) for path in tree.paths if path.endswith("CMakeLists.txt")}
    findings = []
    for path in tree.ending(".cc", ".cu", ".proto"):
        source = pathlib.PurePosixPath(path)
        if not any(_names(lists.get(str(folder / "CMakeLists.txt"), ""), source, folder) for folder in source.parents):
            findings.append(Finding(path, 1, "dead-file", "no CMakeLists.txt builds it: name it there, or delete it"))
    return findings


def _names(cmake: str, source: pathlib.PurePosixPath, folder: pathlib.PurePosixPath) -> bool:
    relative = re.escape(str(source.relative_to(folder)))
    stem = re.escape(str(source.relative_to(folder).with_suffix("")))
    in_words = rf"(?:^|[\s(\"/]){relative}(?:$|[\s)\"])"
    # lists like foreach(name a b) … ${name}_test.cc name the stem, or the stem without its ending
    in_loop = rf"(?:^|[\s(]){stem.removesuffix('_test')}(?:$|[\s)])"
    globs = re.findall(r"[\w./*]*\*[\w./*]*", " ".join(re.findall(r"file\(GLOB[^)]*\)", cmake)))
    if any(source.relative_to(folder).match(pattern) for pattern in globs):
        return True
    return bool(re.search(in_words, cmake, re.MULTILINE)) or ("${" in cmake and bool(re.search(in_loop, cmake, re.MULTILINE)))


def _headers(tree: Tree) -> list[Finding]:
    """Each header is included somewhere."""
    included = set()
    for path in tree.cpp():
        included.update(_INCLUDE.findall(tree.text(path)))
    return [
        Finding(path, 1, "dead-file", "nothing includes it: use it, or delete it")
        for path in tree.ending(".h", ".cuh")
        if path not in included
    ]
