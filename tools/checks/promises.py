"""Each sentence of docs/SEMANTICS.md has a test, and tests/promises.md says which; what docs/GUARANTEES.md names as proof exists."""

import re

from checks.tree import Finding, Tree, line_of

PAGE = "docs/SEMANTICS.md"
TABLE = "tests/promises.md"
GUARANTEES = "docs/GUARANTEES.md"
# Words are defined in 1; 12 says what is no job of Lorry's.
_WITHOUT_PROMISES = {"1", "12"}
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| ([^|]+) \|$", re.MULTILINE)
_SECTION = re.compile(r"^## (\d+)\..*$", re.MULTILINE)
# A sentence ends at a stop, a colon or a semicolon after which another begins; a list's marks are no part of it.
_END = re.compile(r"(?<=[.:;])\s+(?=[A-Z`*])")
_ITEM = re.compile(r"\n(?=(?:- |\d+\. ))")


def check(tree: Tree) -> list[Finding]:
    if PAGE not in tree.paths:
        return []
    page = tree.text(PAGE)
    sentences = _sentences(page)
    if TABLE not in tree.paths:
        return [Finding(PAGE, 1, "promise", f"{TABLE} is missing: it names the tests of each sentence")]
    table = tree.text(TABLE)
    rows = [(row.group(1), row.group(2), row.group(3), line_of(table, row.start())) for row in _ROW.finditer(table)]
    tests = _tests(tree)
    return _untested(sentences, rows) + _idle(sentences, rows) + _misnamed(TABLE, rows, tests) + _guarantees(tree, tests)


def _sentences(page: str) -> list[tuple[str, str, int]]:
    """(section, sentence, line), without what is planned."""
    found = []
    marks = list(_SECTION.finditer(page))
    for mark, following in zip(marks, marks[1:] + [None]):
        if mark.group(1) in _WITHOUT_PROMISES:
            continue
        body = page[mark.end(): following.start() if following else len(page)]
        for paragraph in re.split(r"\n\s*\n", body):
            for item in _ITEM.split(paragraph.strip()):
                text = " ".join(re.sub(r"^(- |\d+\. )", "", item).split())
                for sentence in _END.split(text):
                    if sentence and not re.search(r"\*\*planned\*\*", sentence, re.IGNORECASE):
                        words = sentence.split()[:3]
                        at = re.search(r"\s+".join(map(re.escape, words)), body)
                        found.append((mark.group(1), sentence, line_of(page, mark.end() + (at.start() if at else 0))))
    return found


def _is_of(row: tuple, sentence: tuple[str, str, int]) -> bool:
    return row[0] == sentence[0] and sentence[1].startswith(row[1])


def _untested(sentences: list, rows: list) -> list[Finding]:
    return [
        Finding(PAGE, line, "promise", f'"{sentence[:60]}" has no test: give it a row in {TABLE}')
        for section, sentence, line in sentences
        if not any(_is_of(row, (section, sentence, line)) for row in rows)
    ]


def _idle(sentences: list, rows: list) -> list[Finding]:
    return [
        Finding(TABLE, row[3], "promise", f'no sentence of {PAGE} §{row[0]} begins with "{row[1]}": follow what it says now, or delete the row')
        for row in rows
        if not any(_is_of(row, sentence) for sentence in sentences)
    ]


def _tests(tree: Tree) -> set[str]:
    names = set()
    for path in tree.paths:
        if not path.startswith(("tests/", "clients/python/tests/")):
            continue
        if path.endswith(".cc"):
            names.update(f"{a}.{b}" for a, b in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", tree.text(path), re.MULTILINE))
        elif path.endswith(".py"):
            names.update(re.findall(r"^def (test_\w+)", tree.text(path), re.MULTILINE))
        elif path.endswith("CMakeLists.txt"):
            names.update(re.findall(r"\bNAME (\w+)", tree.text(path)))
    return names


def _guarantees(tree: Tree, tests: set[str]) -> list[Finding]:
    """The last cell of each row of the page's tables names tests."""
    page = tree.text(GUARANTEES) if GUARANTEES in tree.paths else ""
    rows = [("", "", line.strip().strip("|").split("|")[-1].strip(), number)
            for number, line in enumerate(page.splitlines(), 1)
            if line.startswith("| ") and not line.endswith("| shown by |")]
    return _misnamed(GUARANTEES, rows, tests)


def _misnamed(page: str, rows: list, tests: set[str]) -> list[Finding]:
    return [
        Finding(page, row[3], "promise", f"there is no test {name}: name the one that shows it now")
        for row in rows
        for name in row[2].split(", ")
        if name.strip() not in tests
    ]
