"""Each folder says what it is for."""

import pathlib
import re

from checks.tree import Finding, Tree

LINES_MAX = 40  # what one reads before the headers
CODE = (".h", ".cc", ".cu", ".py", ".proto", ".sh", ".cmake")
# Folders that the README above them describes.
COVERED = re.compile(
    r"tests/unit/.+|proto/lorry/.*|helm/lorry/(templates|ci|files|tests)(/.*)?|deploy/.+|clients/python/.+|tools/.+|"
    r".*/(testdata|corpus|third_party|data)(/.*)?|\..*"
)


def check(tree: Tree) -> list[Finding]:
    folders = {str(pathlib.PurePosixPath(path).parent) for path in tree.ending(*CODE)} - {"."}
    findings = []
    for folder in sorted(folders):
        readme = f"{folder}/README.md"
        if readme not in tree.paths and not COVERED.fullmatch(folder):
            findings.append(Finding(readme, 1, "readme", "say what the folder is for, its pieces and how they meet"))
    for path in tree.ending("/README.md"):
        count = len(tree.lines(path))
        if count > LINES_MAX and not path.startswith(("docs/", "examples/", "clients/python/", "helm/")):
            findings.append(Finding(path, 1, "readme", f"{count} lines, at most {LINES_MAX}: move the detail to docs/ or a header"))
    return findings
