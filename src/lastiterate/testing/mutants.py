"""Mutants of formulas: one operator, comparison, constant or extremum is changed, and the laws run.

It imports nothing of the library: ``tools/mutants.py`` reads it alone.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastiterate.theorems.theorem import Theorem

TINY = 1e-6
"""Smaller constants are rounding allowances, as are the names below: what only they enter is no
formula. That bounds round to the safe side is tested against 60 digits, not by mutants: twice an
allowance is as safe as one."""
ALLOWANCES = {"UP", "DOWN", "ROUNDING", "allowance", "FLOAT_SLACK"}
GRIDS = {"linspace", "geomspace"}
"""Calls that lay out a search: one point more or less changes nothing that is promised."""

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "floor": "ceil",
    "ceil": "floor",
    "argmin": "argmax",
    "any": "all",
    "all": "any",
}


def change(node: Any) -> bool:
    """Change one node in place; False where there is nothing to change."""
    match node:
        case ast.BinOp(op=ast.BitOr(), left=ast.Name() | ast.Attribute()):
            return False  # a union of types
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            node.op = SWAPS[type(op)]()
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            node.ops = [SWAPS[type(op)]()]
        case ast.UnaryOp(op=ast.USub()):
            node.op = ast.UAdd()
        case ast.UnaryOp(op=ast.Not() | ast.Invert() as op):
            node.operand = ast.UnaryOp(op, node.operand)
        case ast.Constant(value=int() | float() as value) if (
            not isinstance(value, bool) and not 0 < abs(value) <= TINY
        ):
            node.value = value + 1 if isinstance(value, int) else value * 2 if value else 1.0
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            node.func.id = NAMES[name]  # pyright: ignore[reportAttributeAccessIssue]
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            node.func.attr = NAMES[name]  # pyright: ignore[reportAttributeAccessIssue]
        case _:
            return False
    return True


def tiny(node: ast.AST) -> bool:
    """Whether a term only covers rounding: 1e-12, 2.0**-48 * (...), slack."""
    match node:
        case ast.Name(id="slack"):
            return True
        case ast.Constant(value=float() as value):
            return 0 < abs(value) <= TINY
        case ast.BinOp(
            ast.Constant(value=2),
            ast.Pow(),
            ast.UnaryOp(ast.USub(), ast.Constant(value=int() as bits)),
        ):
            return 2.0**-bits <= TINY
        case ast.BinOp(op=ast.Mult(), left=one, right=two):
            return tiny(one) or tiny(two)
        case ast.BinOp(op=ast.Div(), left=one):
            return tiny(one)
        case _:
            return False


def near_one(node: ast.AST) -> bool:
    """Whether a factor only covers rounding: UP, 1 + 1e-9, 1 + allowance(...)."""
    match node:
        case ast.Name(id=name):
            return name in ALLOWANCES
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=ast.Constant(value=1), right=rest):
            return (
                tiny(rest)
                or (isinstance(rest, ast.Call) and getattr(rest.func, "id", "") in ALLOWANCES)
                or (near_one(rest))
            )
        case _:
            return False


def list_excluded(tree: ast.AST) -> set[int]:
    """Nodes that are no formula: annotations, decorators, imports, assertions, error messages,
    allowances, grids."""
    parts: list[ast.AST | None] = []
    alone: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef():
                arguments = [
                    inner.annotation for inner in ast.walk(node.args) if isinstance(inner, ast.arg)
                ]
                parts += [*node.decorator_list, node.returns, *arguments]
            case ast.AnnAssign():
                parts.append(node.annotation)
            case ast.Assign(targets=[ast.Name(id=name)]) if name in ALLOWANCES:
                parts.append(node.value)
            case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
                parts.append(node)
            case ast.Call(func=ast.Attribute(attr=name)) if name in GRIDS:
                parts.append(node)
            case ast.BinOp() if tiny(node):
                parts.append(node)
            case ast.BinOp(left=one, right=two):
                spent = [
                    part
                    for part in (one, two)
                    if (near_one(part) if isinstance(node.op, ast.Mult | ast.Div) else tiny(part))
                ]
                parts += spent
                alone |= {id(node)} if spent else set()
            case _:
                pass
    return alone | {id(inner) for part in parts if part is not None for inner in ast.walk(part)}


# Mutants of a theorem that is in memory.


@dataclass(frozen=True)
class Survivor:
    """A change of a formula that no law noticed: the line in its function, and the code before and
    after."""

    function: str
    line: int
    before: str
    after: str


def find_surviving_mutants(
    theorem: Theorem, check: Callable[[Theorem], object], *functions: Callable[..., Any]
) -> tuple[Survivor, ...]:
    """Change a theorem's formula in every place, and list the changes that ``check`` lets pass.

    Parameters
    ----------
    theorem : Theorem
        Theorem whose laws are tested.
    check : callable
        Laws: called with the changed theorem, it raises where one does not hold.
    *functions : callable
        Functions of the formula, each defined by ``def`` in a module; by default the theorem's
        ``bound``.

    Returns
    -------
    tuple of Survivor
        Changes that nothing noticed. Each is a missing test, or changes nothing that matters, such
        as an allowance for rounding.

    Examples
    --------
    >>> from lastiterate.testing import find_surviving_mutants
    >>> from lastiterate.theorems import TABLE
    >>> from lastiterate.theorems.composition import composition_mu
    >>> known = TABLE["composition-gdp"]
    >>> right = known.bound(known.example)
    >>> def check(theorem):
    ...     assert theorem.bound(theorem.example) == right
    >>> survivors = find_surviving_mutants(known, check, composition_mu)
    >>> {survivor.function for survivor in survivors}  # one example runs one branch alone
    {'composition_mu'}
    """
    check(theorem)  # a law that is broken without a change notices nothing
    found: list[Survivor] = []
    for function in functions or (theorem.bound,):
        plain: Any = inspect.unwrap(function)
        for survivor, changed in _mutants_of_function(plain):
            bound = changed if theorem.bound is function else theorem.bound
            before = plain.__globals__[plain.__name__]
            plain.__globals__[plain.__name__] = changed  # other functions call it by its name
            try:
                check(replace(theorem, bound=bound))
                found.append(survivor)
            except Exception:
                continue  # a law has noticed it
            finally:
                plain.__globals__[plain.__name__] = before
    return tuple(found)


def _mutants_of_function(function: Any) -> Iterator[tuple[Survivor, Callable[..., Any]]]:
    """Every mutant of one function, compiled where the function is defined."""
    if function.__name__ not in function.__globals__:
        raise ValueError(f"functions: must be made by a def of a module, got {function.__name__}")
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    without = list_excluded(tree)
    for index, node in enumerate(ast.walk(tree)):
        if not isinstance(node, ast.expr) or id(node) in without:
            continue
        changed = copy.deepcopy(tree)
        at: Any = list(ast.walk(changed))[index]
        if not change(at):
            continue
        space = dict(function.__globals__)
        exec(compile(ast.fix_missing_locations(changed), "<mutant>", "exec"), space)
        yield (
            Survivor(function.__name__, node.lineno, ast.unparse(node), ast.unparse(at)),
            space[function.__name__],
        )
