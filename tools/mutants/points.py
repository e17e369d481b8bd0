"""Where a C++ source can be mutated, found in its syntax tree: every statement with an effect, and what its expressions hold.

One mutant is on at a time, so that what a mutant runs instead of the original needs no switches of its own: it is the
source's own text.
"""

import re

from clang.cindex import Cursor, CursorKind, TranslationUnit, TypeKind

from expressions import NAMESPACE, Expressions, peel
from source import Point, Source, Span, blanked, without_comments

_FUNCTIONS = {CursorKind.FUNCTION_DECL, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR,
              CursorKind.FUNCTION_TEMPLATE, CursorKind.CONVERSION_FUNCTION}
_SCOPES = {CursorKind.NAMESPACE, CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.CLASS_TEMPLATE, CursorKind.LINKAGE_SPEC,
           CursorKind.UNEXPOSED_DECL}


def find(source: Source, unit: TranslationUnit) -> list[Point]:
    """In the order of the source, an outer place before the places inside it."""
    finder = _Finder(source)
    for cursor in unit.cursor.get_children():
        finder.declaration(cursor)
    unique = {(point.span, point.mutants): point for point in reversed(finder.points)}  # a macro may use an argument twice
    order = sorted(enumerate(reversed(unique.values())), key=lambda item: (item[1].span[0], -item[1].span[1], item[0]))
    return [point for _, point in order]


class _Finder(Expressions):
    # --- declarations

    def declaration(self, cursor: Cursor) -> None:
        span = self.source.span(cursor)
        if span is None:
            return
        if cursor.kind in _FUNCTIONS:
            self._function(cursor, span)
        elif cursor.kind in _SCOPES:
            for child in cursor.get_children():
                self.declaration(child)
        elif cursor.kind == CursorKind.VAR_DECL:
            self._variable(cursor)

    def _function(self, cursor: Cursor, span: Span) -> None:
        children = list(cursor.get_children())
        bodies = [child for child in children if child.kind == CursorKind.COMPOUND_STMT]
        body = self.source.span(bodies[-1]) if bodies else None
        if body is None or not self.source.read(body).startswith("{"):
            return  # none is written: it is declared, or defaulted
        if re.search(r"\bconst(expr|eval)\b", self.source.read((span[0], body[0]))):
            return
        self.function = cursor.spelling
        if cursor.kind == CursorKind.CONSTRUCTOR:
            for child in children:
                if child.kind.is_expression():
                    self.expression(child)
        self.statement(bodies[-1])
        self.function = ""

    def _variable(self, cursor: Cursor) -> None:
        span = self.source.span(cursor)
        name = self.source.place(cursor)
        if span is None or "constexpr" in self.source.read((span[0], max(name, span[0]))):
            return
        for child in cursor.get_children():
            inner = self.source.span(child)
            if inner is not None and inner[0] > name and child.kind.is_expression():
                self.expression(child)

    # --- statements

    def statement(self, cursor: Cursor) -> None:
        span = self.source.span(cursor)
        if span is None:
            return self._macro(cursor)
        if cursor.kind.is_expression():
            return self._effect(cursor, span)
        handlers = {
            CursorKind.IF_STMT: self._branch, CursorKind.WHILE_STMT: self._branch, CursorKind.FOR_STMT: self._branch,
            CursorKind.DO_STMT: self._do, CursorKind.CXX_FOR_RANGE_STMT: self._each, CursorKind.RETURN_STMT: self._return,
            CursorKind.CASE_STMT: self._case, CursorKind.DECL_STMT: self._declarations, CursorKind.SWITCH_STMT: self._switch,
        }
        if cursor.kind in handlers:
            return handlers[cursor.kind](cursor, span)
        for child in cursor.get_children():
            self.statement(child)

    def _macro(self, cursor: Cursor) -> None:
        """What a macro makes of its arguments: those are looked at, and whether the whole may be missing."""
        macro = self.source.macro_of(cursor)
        if macro is not None and cursor.kind == CursorKind.DO_STMT:
            self.add(macro, [f"{self.source.flat(macro)} -> nothing"], f"if ({NAMESPACE}On({{}})) {{{{}}}} else ", "")
        self._arguments(cursor)

    def _arguments(self, cursor: Cursor) -> None:
        for child in cursor.get_children():
            if self.source.span(child) is None:
                self._arguments(child)
            elif child.kind.is_expression():
                self.expression(child)

    def _effect(self, cursor: Cursor, span: Span) -> None:
        """An expression that stands for its effects: a call, an assignment, a count."""
        core = peel(cursor)
        text = self.source.flat(span)
        counts = core.kind == CursorKind.UNARY_OPERATOR and ("++" in text or "--" in text)
        assigns = core.kind in (CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR, CursorKind.CALL_EXPR)
        if counts or assigns or core.kind == CursorKind.CXX_DELETE_EXPR:
            self.add(span, [f"{text} -> nothing"], f"({NAMESPACE}On({{}}) ? void() : static_cast<void>(", "))")
        self.inside(core)

    def _declarations(self, cursor: Cursor, span: Span) -> None:
        for child in cursor.get_children():
            if child.kind == CursorKind.VAR_DECL:
                self._variable(child)
            elif child.kind == CursorKind.UNEXPOSED_DECL:  # a structured binding
                for part in child.get_children():
                    if part.kind.is_expression():
                        self.expression(part)

    def _return(self, cursor: Cursor, span: Span) -> None:
        for child in cursor.get_children():
            inner = self.source.span(child)
            if inner is not None and child.type.get_canonical().kind == TypeKind.VOID:
                self._effect(child, inner)
            else:
                self.expression(child)

    def _switch(self, cursor: Cursor, span: Span) -> None:
        for child in cursor.get_children():
            if child.kind.is_expression():
                self.expression(child)
            else:
                self.statement(child)

    def _case(self, cursor: Cursor, span: Span) -> None:
        for child in list(cursor.get_children())[1:]:  # the first is the constant
            self.statement(child)

    def _each(self, cursor: Cursor, span: Span) -> None:
        children = list(cursor.get_children())
        head = without_comments(self.source.read(span)).split("{")[0]
        if _only(children[-1]) is None:  # else skipping what it does is the mutant that its one statement has already
            self.add(span, [f"{' '.join(head.split())} -> nothing"], f"if ({NAMESPACE}On({{}})) {{{{}}}} else ", "")
        for child in children[:-1]:
            if child.kind.is_expression():
                self.expression(child)
        self.statement(children[-1])

    def _do(self, cursor: Cursor, span: Span) -> None:
        children = list(cursor.get_children())
        self.statement(children[0])
        self.condition(children[-1], loops=True)

    def _branch(self, cursor: Cursor, span: Span) -> None:
        """if, while and for: what stands in the parentheses, then the rest."""
        opening, closing, semicolons = self._head(span)
        if re.match(r"if\s+constexpr\b", self.source.read(span)):
            opening = closing
        begin = opening
        if cursor.kind == CursorKind.FOR_STMT:
            begin, step = semicolons[0], semicolons[1]
        else:
            begin, step = (semicolons[-1] if semicolons else opening), closing
        children = list(cursor.get_children())
        declared = False
        for child in children:
            inner = self.source.span(child) or self.source.macro_of(child)
            if inner is None:
                continue
            if inner[0] > closing:
                bodies = sum(self.source.start(one) > closing for one in children)
                self._body(child, alone=cursor.kind == CursorKind.IF_STMT and bodies == 1)
            elif inner[0] < begin or inner[0] > step:
                if not child.kind.is_expression():
                    self.statement(child)  # the part before the condition; a loop's step stays
            elif child.kind == CursorKind.VAR_DECL:
                declared = True
                self._declared(child, inner, loops=cursor.kind != CursorKind.IF_STMT)
            elif not declared and opening != closing:
                self.condition(child, loops=cursor.kind != CursorKind.IF_STMT)

    def _body(self, cursor: Cursor, alone: bool) -> None:
        """`alone`: without it nothing would happen, so that skipping all of it is the mutant that another place has already."""
        only = _only(cursor)
        if alone and only is not None and only.kind.is_expression():
            self.inside(peel(only))
        else:
            self.statement(cursor)

    def _declared(self, cursor: Cursor, span: Span, loops: bool) -> None:
        """if (T* x = ...) becomes if (T* x = ...; x)."""
        name = cursor.spelling
        text = self.source.flat(span)
        if loops:
            return self._variable(cursor)
        self.add(span, [f"{text} -> true", f"{text} -> false"], "", f"; {NAMESPACE}Force({{}}, static_cast<bool>({name}))")
        self._variable(cursor)

    def _head(self, span: Span) -> tuple[int, int, list[int]]:
        """Of `if (a; b) c`: where the parentheses are, and the semicolons directly inside them."""
        code = blanked(self.source.read(span))
        opening = code.index(b"(")
        depth, semicolons = 0, []
        for at in range(opening, len(code)):
            letter = code[at:at + 1]
            depth += letter in b"([{"
            depth -= letter in b")]}"
            if letter == b";" and depth == 1:
                semicolons.append(span[0] + at)
            if depth == 0:
                return span[0] + opening, span[0] + at, semicolons
        raise ValueError(f"{self.source.path}: no end of the parentheses at byte {span[0]}")


def _only(cursor: Cursor) -> Cursor | None:
    """The statement, where a body has one only."""
    if cursor.kind != CursorKind.COMPOUND_STMT:
        return cursor
    children = list(cursor.get_children())
    return children[0] if len(children) == 1 else None
