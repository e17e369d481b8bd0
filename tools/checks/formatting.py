"""clang-format, where it is installed."""

import re
import shutil
import subprocess

from checks.tree import Finding, Tree

TOOL = "clang-format-16"
BATCH = 40  # files a process


def check(tree: Tree) -> list[Finding]:
    if not shutil.which(TOOL) or not (tree.root / ".clang-format").is_file():
        return []
    paths = tree.cpp()
    batches = [paths[i:i + BATCH] for i in range(0, len(paths), BATCH)]
    running = [
        subprocess.Popen([TOOL, "--dry-run", "--ferror-limit=1", *batch], cwd=tree.root, stderr=subprocess.PIPE, text=True)
        for batch in batches
    ]
    reports = "".join(process.communicate()[1] for process in running)
    first = {}
    for match in re.finditer(r"^([^\s:]+):(\d+):\d+: (?:warning|error): code should be clang-formatted", reports, re.MULTILINE):
        first.setdefault(match.group(1), int(match.group(2)))
    return [Finding(path, line, "format", "not as clang-format writes it: run `make format`") for path, line in first.items()]
