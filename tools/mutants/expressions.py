"""What can be mutated in an expression: every boolean value, each side of && and ||, every boundary, sum and sign.

Equality is not flipped: wherever it decides, both constants are tried, and whoever notices the one or the other notices that.
"""

import re
from collections.abc import Iterator

from clang.cindex import Cursor, CursorKind, TypeKind

from source import Point, Source, Span, without_comments

NAMESPACE = "::lorry::mutants::"
_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC = {TypeKind.INT, TypeKind.UINT, TypeKind.LONG, TypeKind.ULONG, TypeKind.LONGLONG, TypeKind.ULONGLONG, TypeKind.SHORT,
               TypeKind.USHORT, TypeKind.CHAR_S, TypeKind.SCHAR, TypeKind.UCHAR, TypeKind.DOUBLE, TypeKind.FLOAT}
_LVALUES = {CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR, CursorKind.ARRAY_SUBSCRIPT_EXPR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR}


class Expressions:
    def __init__(self, source: Source):
        self.source = source
        self.points: list[Point] = []
        self.function = ""

    def statement(self, cursor: Cursor) -> None:
        """Those of a lambda are looked at like any other."""
        raise NotImplementedError

    def expression(self, cursor: Cursor) -> None:
        span = self.source.span(cursor)
        if span is None:
            return
        if self._is_boolean_value(cursor):
            return self.boolean(cursor, forced=(True, False))
        core = peel(cursor)
        inner = self.source.span(core)
        if inner is not None and core.kind == CursorKind.BINARY_OPERATOR:
            self._sum(core, inner)
        if inner is not None and core.kind == CursorKind.UNARY_OPERATOR:
            self._sign(core, inner)
        self.inside(core)

    def condition(self, cursor: Cursor, loops: bool) -> None:
        self.boolean(cursor, forced=(False,) if loops else (True, False))

    def _is_boolean_value(self, cursor: Cursor) -> bool:
        """Whether it can be replaced by a constant: what is assigned to, or bound to a reference, can not."""
        if cursor.type.get_canonical().kind != TypeKind.BOOL or cursor.kind in _LVALUES or self._operator(cursor) == "=":
            return False
        if cursor.kind == CursorKind.PAREN_EXPR:
            return all(self._is_boolean_value(child) for child in cursor.get_children())
        if cursor.kind != CursorKind.CALL_EXPR or cursor.referenced is None:
            return True
        return cursor.referenced.result_type.kind not in (TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE)

    def inside(self, cursor: Cursor) -> None:
        if cursor.kind == CursorKind.LAMBDA_EXPR:
            return self._lambda(cursor)
        for index, child in enumerate(cursor.get_children()):
            if cursor.kind == CursorKind.CONDITIONAL_OPERATOR and index == 0:
                self.condition(child, loops=False)
            elif child.kind.is_expression():
                self.expression(child)

    def _lambda(self, cursor: Cursor) -> None:
        children = list(cursor.get_children())
        compares = sum(child.kind == CursorKind.PARM_DECL for child in children) == 2
        for child in children:
            if child.kind != CursorKind.COMPOUND_STMT:
                continue
            statements = list(child.get_children())
            if compares and len(statements) == 1 and statements[0].kind == CursorKind.RETURN_STMT:
                for value in statements[0].get_children():
                    self._order(value)
            else:
                self.statement(child)

    def _order(self, cursor: Cursor) -> None:
        """What a lambda of two says of their order: reversed. A constant would be no order, and sorting by it no defined run."""
        core = peel(cursor)
        parts = self._compared(core)
        if parts is None:
            return self.inside(core)
        left, operator, right, span, _ = parts
        texts = self.source.flat(left), self.source.flat(right)
        mirrored = f"{texts[1]} {operator} {texts[0]}"
        self._instead(span, mirrored)

    def boolean(self, cursor: Cursor, forced: tuple[bool, ...]) -> None:
        span = self.source.span(cursor)
        if span is None:
            return
        core = peel(cursor)
        if core.kind == CursorKind.CXX_BOOL_LITERAL_EXPR:
            opposite = "false" if self.source.flat(span).strip("()") == "true" else "true"
            if len(forced) == 2 or (opposite == "false") in forced:
                self._constant(span, opposite)
            return
        text = self.source.flat(span)
        if len(forced) == 2:
            self.add(span, [f"{text} -> true", f"{text} -> false"], f"{NAMESPACE}Force({{}}, static_cast<bool>(", "))")
        elif forced:
            self._constant(span, str(forced[0]).lower())
        self._judgement(core)

    def _judgement(self, core: Cursor) -> None:
        """What a boolean expression is made of."""
        span = self.source.span(core)
        operator = self._operator(core)
        children = list(core.get_children())
        if span is not None and operator in ("&&", "||"):
            for operand in self._operands(core, operator):
                self._operand(operand, span, operator)
        elif core.kind == CursorKind.UNARY_OPERATOR and span is not None and self.source.read(span).startswith("!"):
            for child in children:
                self.boolean(child, forced=())
        elif core.kind == CursorKind.CONDITIONAL_OPERATOR:
            self.condition(children[0], loops=False)
            for child in children[1:]:
                self.boolean(child, forced=(True, False))
        else:
            parts = self._compared(core)
            if parts is not None:
                self._boundary(*parts)
            self.inside(core)

    def _operands(self, core: Cursor, operator: str) -> Iterator[Cursor]:
        for child in core.get_children():
            peeled = peel(child, parentheses=False)
            if self._operator(peeled) == operator:
                yield from self._operands(peeled, operator)
            else:
                yield child

    def _operand(self, cursor: Cursor, whole: Span, operator: str) -> None:
        span = self.source.span(cursor)
        if span is None:
            return
        neutral = "true" if operator == "&&" else "false"
        self._constant(span, neutral, f", in {self.source.flat(whole)}")
        self.boolean(cursor, forced=())

    def _boundary(self, left: Span, operator: str, right: Span, span: Span, number_type: str | None) -> None:
        other = f"{self.source.flat(left)} {_BOUNDARY[operator]} {self.source.flat(right)}"
        if number_type is None:
            return self._instead(span, other)
        function = {"<": "Less", "<=": "LessEqual", ">": "Greater", ">=": "GreaterEqual"}[operator]
        self.add(span, [f"{self.source.flat(span)} -> {other}"], f"{NAMESPACE}{function}<{number_type}>({{}}, (", "))",
                  ((left[1], right[0]), "), ("))

    def _compared(self, cursor: Cursor) -> tuple[Span, str, Span, Span, str | None] | None:
        """Left, operator, right, all of it, and the type when numbers are compared; None when it is no comparison by order."""
        span = self.source.span(cursor)
        operands = [part for part in map(self.source.span, _operands_of(cursor)) if part is not None]
        if span is None or len(operands) != 2 or operands[0][1] > operands[1][0]:
            return None
        operator = without_comments(self.source.read((operands[0][1], operands[1][0]))).strip()
        return (operands[0], operator, operands[1], span, _number_type(cursor)) if operator in _BOUNDARY else None

    def _sum(self, core: Cursor, span: Span) -> None:
        children = list(core.get_children())
        operator = self._operator(core)
        if operator not in ("+", "-") or core.type.get_canonical().kind not in _ARITHMETIC:
            return
        left = self.source.span(children[0])
        if left is None:
            return
        self._instead(span, self.source.flat(left))

    def _sign(self, core: Cursor, span: Span) -> None:
        text = self.source.flat(span)
        child = self.source.span(next(core.get_children()))
        if not text.startswith(("-", "~")) or text.startswith("--") or child is None:
            return
        operand = self.source.flat(child)
        if not operand[0].isdigit():
            self._instead(span, operand)

    def _operator(self, core: Cursor) -> str | None:
        if core.kind != CursorKind.BINARY_OPERATOR:
            return None
        spans = [self.source.span(child) for child in core.get_children()]
        if len(spans) != 2 or spans[0] is None or spans[1] is None:
            return None
        return without_comments(self.source.read((spans[0][1], spans[1][0]))).strip()

    # --- what is written

    def _instead(self, span: Span, other: str) -> None:
        described = [f"{self.source.flat(span)} -> {other}"]
        self.add(span, described, f"({NAMESPACE}On({{}}) ? ({_escaped(other)}) : (", "))")

    def _constant(self, span: Span, constant: str, where: str = "") -> None:
        described = [f"{self.source.flat(span)} -> {constant}{where}"]
        self.add(span, described, f"{NAMESPACE}Force({{}}, {constant}, static_cast<bool>(", "))")

    def add(self, span: Span, mutants: list[str], before: str, after: str, between: tuple[Span, str] | None = None) -> None:
        if 'R"' not in self.source.read(span):  # the lines of a raw string are its own
            self.points.append(Point(span, tuple(mutants), self.function, before, after, between))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def peel(cursor: Cursor, parentheses: bool = True) -> Cursor:
    """Without the conversions that the compiler writes around it, and without parentheses."""
    wrappers = (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR) if parentheses else (CursorKind.UNEXPOSED_EXPR,)
    while cursor.kind in wrappers:
        children = [child for child in cursor.get_children() if child.kind.is_expression()]
        same = [child for child in children if child.extent == cursor.extent]
        if cursor.kind == CursorKind.PAREN_EXPR and len(children) == 1:
            cursor = children[0]
        elif len(same) == 1:
            cursor = same[0]
        else:
            return _rewritten(cursor) or cursor
    return cursor


def _rewritten(cursor: Cursor) -> Cursor | None:
    """C++20 computes a != b by a == b, and a < b by a <=> b, under nodes that are written nowhere: that call."""
    level = [cursor]
    for _ in range(3):
        level = [child for parent in level for child in parent.get_children()]
        for found in level:
            if found.kind == CursorKind.CALL_EXPR and found.spelling in ("operator==", "operator<=>") and found.extent == cursor.extent:
                return found
    return None


def _number_type(cursor: Cursor) -> str | None:
    """As what two numbers are compared, after the conversions that C++ makes; None when they are no numbers."""
    types = [child.type.get_canonical() for child in cursor.get_children()]
    if cursor.kind != CursorKind.BINARY_OPERATOR or any(one.kind not in _ARITHMETIC or one.kind != types[0].kind for one in types):
        return None
    return re.sub(r"\b(const|volatile) ", "", types[0].spelling)


def _operands_of(cursor: Cursor) -> list[Cursor]:
    return list(cursor.get_arguments() if cursor.kind == CursorKind.CALL_EXPR else cursor.get_children())
