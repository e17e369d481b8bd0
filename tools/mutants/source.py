"""The text of one C++ source, where its tree says that things stand in it, and what is written there for a mutant."""

import dataclasses
import re
from ctypes import POINTER, byref, c_uint

from clang.cindex import Cursor, CursorKind, File, SourceLocation, TranslationUnit, c_object_p, conf

_COMMENTS = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)

# The bindings have no word for this function of libclang.
conf.lib.clang_getFileLocation.argtypes = [SourceLocation, POINTER(c_object_p), POINTER(c_uint), POINTER(c_uint), POINTER(c_uint)]

Span = tuple[int, int]  # bytes of the source, the end excluded


@dataclasses.dataclass(frozen=True)
class Point:
    """One place with its mutants, and what is written around it; `{}` in that is the number of the first mutant."""

    span: Span
    mutants: tuple[str, ...]  # what each does, for people: "a < b -> a <= b"
    function: str
    before: str
    after: str
    between: tuple[Span, str] | None = None  # what else is replaced, inside


# What is written in the arguments of these is code like any other. Other macros are left alone: LORRY_CHECK above all,
# which stays silent while a program is right.
_TRANSPARENT = re.compile(r"LORRY_(RETURN_IF_ERROR|ASSIGN_OR_RETURN)\b")


class Source:
    """The text of one source, and which parts of it a macro wrote."""

    def __init__(self, path: str, unit: TranslationUnit, text: bytes):
        self.path, self.text = path, text
        macros = [self._written(cursor) for cursor in unit.cursor.get_children() if cursor.kind == CursorKind.MACRO_INSTANTIATION]
        self.macros = sorted({macro for macro in macros if macro is not None})

    def span(self, cursor: Cursor) -> Span | None:
        """Where the cursor is written; None when that is elsewhere, or what a macro makes."""
        span = self._written(cursor)
        return None if span is None or self._is_made(span) else span

    def start(self, cursor: Cursor) -> int:
        return _place(cursor.extent.start)[1]

    def place(self, cursor: Cursor) -> int:
        """Of a declaration, where its name stands."""
        return _place(cursor.location)[1]

    def macro_of(self, cursor: Cursor) -> Span | None:
        """The use of a macro that makes the cursor out of arguments that can be looked into."""
        file, begin = _place(cursor.extent.start)  # the end is that of the outermost macro, which is of no use
        around = [macro for macro in self.macros if file == self.path and macro[0] == begin]
        return around[0] if around and _TRANSPARENT.match(self.read(around[0])) else None

    def _is_made(self, span: Span) -> bool:
        """By a macro, or as an argument of one that is left alone. An argument touches neither end of its macro."""
        return any(first <= span[0] and span[1] <= last and
                   (first == span[0] or span[1] == last or not _TRANSPARENT.match(self.read((first, last))))
                   for first, last in self.macros)

    def read(self, span: Span) -> str:
        return self.text[span[0]:span[1]].decode()

    def flat(self, span: Span) -> str:
        """The text on one line, without comments: what can be repeated elsewhere on the line."""
        return " ".join(without_comments(self.read(span)).split())

    def _written(self, cursor: Cursor) -> Span | None:
        begin, end = _place(cursor.extent.start), _place(cursor.extent.end)
        if begin[0] != self.path or end[0] != self.path or begin[1] >= end[1]:
            return None
        return begin[1], end[1]


def _place(location: SourceLocation) -> tuple[str | None, int]:
    """File and byte where it is written: of a macro's argument there, of what the macro adds where it is used."""
    file, line, column, offset = c_object_p(), c_uint(), c_uint(), c_uint()
    conf.lib.clang_getFileLocation(location, byref(file), byref(line), byref(column), byref(offset))
    return (File(file).name if file else None), offset.value


def without_comments(text: str) -> str:
    return _COMMENTS.sub(lambda match: " " if match.group().startswith("/") else match.group(), text)


def blanked(text: str) -> bytes:
    """Every byte where it was, those of comments and literals as spaces."""
    return _COMMENTS.sub(lambda match: " " * len(match.group().encode()), text).encode()
