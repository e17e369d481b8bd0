"""How long a file and a function may be."""

import ast
import re

from checks.tree import Finding, Tree, line_of

FILE_LINES_MAX = 500  # where a file has become two
FILE_LINES_WARN = 300
FUNCTION_LINES_MAX = 70  # what fits on a screen

SOURCES = (".h", ".cc", ".cu", ".cuh", ".py", ".proto", ".sh", ".cmake", "CMakeLists.txt")
_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()]*$|\bextern\b\s*\"\"\s*$")


def check(tree: Tree) -> list[Finding]:
    findings = []
    for path in tree.paths:
        if path.endswith(SOURCES) or tree.is_script(path, "sh") or tree.is_script(path, "python"):
            findings += _file(tree, path)
    for path in tree.cpp():
        findings += [_long(path, *found) for found in cpp_functions(tree.code(path))]
    for path in tree.python():
        findings += [_long(path, *found) for found in python_functions(tree.text(path), path)]
    return [finding for finding in findings if finding]


def _file(tree: Tree, path: str) -> list[Finding]:
    count = len(tree.lines(path))
    if count > FILE_LINES_MAX:
        return [Finding(path, 1, "file-size", f"{count} lines, at most {FILE_LINES_MAX}: split it by what each half is for")]
    if count > FILE_LINES_WARN:
        return [Finding(path, 1, "file-size", f"{count} lines: nearing {FILE_LINES_MAX}", is_warning=True)]
    return []


def _long(path: str, name: str, line: int, length: int) -> Finding | None:
    if length <= FUNCTION_LINES_MAX:
        return None
    return Finding(path, line, "function-size",
                   f"{name or 'a function'} has {length} lines, at most {FUNCTION_LINES_MAX}: name its steps and call them")


def cpp_functions(code: str) -> list[tuple[str, int, int]]:
    """(name, first line, lines) of each function in code without comments and literals, judged by its braces."""
    found = []
    scopes: list[tuple[str, str, int]] = []  # kind, name, line of the header
    header_start = 0
    for match in re.finditer(r"[{};]|^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", code, re.MULTILINE):
        token = match.group()
        inside_function = any(kind == "function" for kind, _, _ in scopes)
        if token == "{" and not inside_function:
            header = code[header_start:match.start()]
            start = header_start + len(header) - len(header.lstrip())
            kind = "scope" if _SCOPE.search(header) else "value" if re.search(r"=\s*$", header) else "function"
            name = re.search(r"([\w:~]+)\s*\(", header)
            scopes.append((kind, name.group(1) if name else "", line_of(code, start)))
        elif token == "{":
            scopes.append(("block", "", 0))
        elif token == "}" and scopes:
            kind, name, line = scopes.pop()
            if kind == "function":
                found.append((name, line, line_of(code, match.start()) - line + 1))
        if not any(kind == "function" for kind, _, _ in scopes):
            header_start = match.end()
    return found


def python_functions(text: str, path: str) -> list[tuple[str, int, int]]:
    """(name, first line, lines without the docstring) of each function."""
    try:
        module = ast.parse(text, path)
    except SyntaxError as error:
        return [(f"a syntax error ({error.msg})", error.lineno or 1, FUNCTION_LINES_MAX + 1)]
    found = []
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            docstring = first.end_lineno - first.lineno + 1 if is_docstring else 0
            found.append((node.name, node.lineno, node.end_lineno - node.lineno + 1 - docstring))
    return found
