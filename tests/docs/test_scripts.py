"""Benchmarks and tools, most of which no test runs: what they take from the library exists, with
these arguments."""

import ast
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tools").glob("*.py")])


def taken(tree, wrong):
    """What every imported name of the library and of the benchmarks is; what does not exist is
    added to ``wrong``."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {
                one.asname: importlib.import_module(one.name)
                for one in node.names
                if one.name.startswith("lastiterate") and one.asname
            }
        elif (
            isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lastiterate"
        ):
            home = importlib.import_module(node.module)
            for one in node.names:
                try:
                    found[one.asname or one.name] = part(home, one.name)
                except AttributeError:
                    wrong.append(f"{node.lineno}: {node.module} has no {one.name}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            path = ROOT / node.module.replace(".", "/")
            names = (
                set() if not path.with_suffix(".py").is_file() else defined(path.with_suffix(".py"))
            )
            wrong += [
                f"{node.lineno}: {node.module} has no {one.name}"
                for one in node.names
                if one.name not in names and not (path / f"{one.name}.py").is_file()
            ]
    return found


def part(home, name):
    """A name of a module, which may be a module of its own."""
    if isinstance(home, ModuleType) and not hasattr(home, name):
        try:
            return importlib.import_module(f"{home.__name__}.{name}")
        except ModuleNotFoundError:
            raise AttributeError(name) from None
    return getattr(home, name)


def defined(path):
    """Names that a file binds at its top level."""
    return {
        name.id if isinstance(name, ast.Name) else getattr(name, "asname", None) or name.name
        for node in ast.parse(path.read_text()).body
        for name in ast.walk(node)
        if isinstance(name, ast.FunctionDef | ast.ClassDef | ast.alias)
        or (isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store))
    }


def mistaken(tree, found, wrong):
    """Attributes of the library's modules that do not exist, and calls that its functions do not
    take."""

    def meant(node):
        if isinstance(node, ast.Name):
            return found.get(node.id)
        home = meant(node.value) if isinstance(node, ast.Attribute) else None
        return part(home, node.attr) if isinstance(home, ModuleType) else None

    for node in ast.walk(tree):
        try:
            called = meant(node.func) if isinstance(node, ast.Call) else meant(node)
        except AttributeError as error:
            wrong.append(f"{node.lineno}: {error}")
            continue
        if not isinstance(node, ast.Call) or not callable(called):
            continue
        accepts = list(inspect.signature(called).parameters.values())
        kinds = {one.kind for one in accepts}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            wrong += [
                f"{node.lineno}: no argument {one.arg}"
                for one in node.keywords
                if one.arg is not None and one.arg not in {each.name for each in accepts}
            ]
        places = sum(
            one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in accepts
        )
        if (
            inspect.Parameter.VAR_POSITIONAL not in kinds
            and len([one for one in node.args if not isinstance(one, ast.Starred)]) > places
        ):
            wrong.append(f"{node.lineno}: takes {places} arguments")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_takes_from_the_library_exists(path):
    tree, wrong = ast.parse(path.read_text()), []
    if "torch" in path.read_text() and "torch" not in sys.modules:
        pytest.importorskip("torch")
    mistaken(tree, taken(tree, wrong), wrong)
    assert not wrong
