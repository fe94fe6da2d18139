"""Places where a line of the sources could be wrong, and what would stand there instead.

Operators, comparisons, constants, conditions, signs and slices, found in the syntax tree; texts,
annotations, the arguments of errors and declarations are left alone. Every change is one replaced
piece of one line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOMS = ("engine", "torch", "release")
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.BitXor: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.MatMult: "*",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Mutant:
    """One change: the characters ``first`` .. ``last`` - 1 of a file become ``text``."""

    file: str
    line: int
    first: int
    last: int
    before: str
    text: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.before!r} -> {self.text!r}"

    def into(self, sources: Path) -> None:
        """Write it into a copy of the sources."""
        path = sources / self.file
        path.write_text(self.applied(path.read_text()))

    def applied(self, whole: str) -> str:
        """The file's text with the change."""
        return whole[: self.first] + self.text + whole[self.last :]


@dataclass(frozen=True)
class _File:
    name: str
    text: str

    def place(self, line: int, column: int) -> int:
        """The character at a line (from 1) and a column in bytes."""
        lines = self.text.splitlines(keepends=True)
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    def ends(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.place(node.lineno, node.col_offset), self.place(
            node.end_lineno, node.end_col_offset
        )

    def changed(self, node: ast.expr, text: str, kind: str) -> Mutant:
        first, last = self.ends(node)
        return Mutant(self.name, node.lineno, first, last, self.text[first:last], text, kind)

    def between(
        self, one: ast.expr, two: ast.expr, old: str, new: str, kind: str
    ) -> Iterator[Mutant]:
        """The operator ``old`` between two expressions, where it is found once."""
        first, last = self.ends(one)[1], self.ends(two)[0]
        piece = self.text[first:last]
        if piece.count(old) == 1:
            at = first + piece.index(old)
            yield Mutant(self.name, one.end_lineno or 0, at, at + len(old), old, new, kind)


SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.MatMult: "@",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}


def mutants(sources: Path, rooms: tuple[str, ...] = ROOMS) -> list[Mutant]:
    """Every change of every file of the rooms, in order."""
    found = list[Mutant]()
    for room in rooms:
        for path in sorted((sources / room).rglob("*.py")):
            text = path.read_text()
            held = _File(str(path.relative_to(sources)), text)
            found += [one for node in _executed(ast.parse(text)) for one in _of(held, node)]
    return found


def halves(every: list[Mutant], seed: int, count: int) -> tuple[list[Mutant], list[Mutant]]:
    """``count`` mutants by a seed, in two halves: the first is to be looked at, the second is a
    measure."""
    order = np.random.default_rng(seed).permutation(len(every))[:count]
    return [every[i] for i in order[: count // 2]], [every[i] for i in order[count // 2 :]]


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that compute something; errors, annotations, decorators and texts are left out."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(
                node, (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
            ):
                continue
            yield node
            yield from _executed(node)


def _of(file: _File, node: ast.AST) -> Iterator[Mutant]:
    match node:
        case ast.BinOp(left, operator, right) if not _text(left) and not _text(right):
            yield from file.between(
                left, right, SYMBOLS[type(operator)], ARITHMETIC[type(operator)], "operator"
            )
        case ast.Compare(left, [operator], [right]):
            yield from file.between(
                left, right, SYMBOLS[type(operator)], COMPARISONS[type(operator)], "comparison"
            )
        case ast.BoolOp(operator, [left, right, *_]):
            old, new = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
            yield from file.between(left, right, old, new, "condition")
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield file.changed(node, f"({ast.unparse(operand)})", "sign")
        case ast.If(test) | ast.IfExp(test) | ast.While(test):
            yield file.changed(test, f"(not ({ast.unparse(test)}))", "condition")
        case ast.Constant(bool(value)):
            yield file.changed(node, str(not value), "constant")
        case ast.Constant(int(value)):
            yield file.changed(node, str(value + 1), "constant")
            if value:
                yield file.changed(node, str(value - 1), "constant")
        case ast.Constant(float(value)):
            yield file.changed(node, f"{value * 2 if value else 1.0!r}", "constant")
            if value:
                yield file.changed(node, f"{value / 2!r}", "constant")
        case ast.Slice(lower, upper):
            for bound in (lower, upper):
                if bound is not None:
                    yield file.changed(bound, "", "slice")
        case _:
            return


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List) or isinstance(
        getattr(node, "value", None), str
    )
