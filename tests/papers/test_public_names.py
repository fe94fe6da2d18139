"""The papers are written as anybody could write them: with public names of the library alone."""

import ast
from pathlib import Path

import pytest

import lastiterate
import lastiterate_papers
from support import load_script

ROOT, HOME = Path(__file__).parents[2], Path(lastiterate_papers.__file__).parent


REFERENCE = load_script(ROOT / "docs" / "generate_api.py")
NAMES = {*REFERENCE.public_names(), "lastiterate.__version__", "lastiterate.__file__"}
MODULES = {
    "lastiterate",
    *REFERENCE.PACKAGES,
    *(place.replace(".run.", ".") for place in REFERENCE.MODULES),
}


def used(tree):
    """Dotted names of the library that a file imports, or reaches from one that it imported."""
    found, meant = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            here = [(each.name, each.asname or each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = [(f"{node.module}.{each.name}", each.asname or each.name) for each in node.names]
        else:
            continue
        ours = [(name, local) for name, local in here if name.split(".")[0] == "lastiterate"]
        found += [(name, node.lineno) for name, _ in ours]
        meant |= {local: name for name, local in ours}
    for node in ast.walk(tree):
        chain, inner = [], node
        while isinstance(inner, ast.Attribute):
            chain, inner = [inner.attr, *chain], inner.value
        if chain and isinstance(inner, ast.Name) and inner.id in meant:
            found.append((".".join((meant[inner.id], *chain)), node.lineno))
    return found


def private(text):
    """What a file uses that is not public, with its line; what a public name holds is public."""
    return [
        (name, line)
        for name, line in used(ast.parse(text))
        if name not in MODULES
        and not any(name == each or name.startswith(f"{each}.") for each in NAMES)
    ]


def test_private_names_are_seen():
    text = """
import lastiterate as li
from lastiterate.run.run import Run
from lastiterate.engine import loop, Trainer
from lastiterate import audit
def later():
    from lastiterate.bayes import linear
    li.release.training.train(li.Run.from_json(""), li.domains.Ball(1.0), li.lazy, Trainer(1).fit,
        audit.exact_distribution)
"""
    assert [name for name, _ in private(text)] == [
        "lastiterate.run.run.Run",
        "lastiterate.engine.loop",
        "lastiterate.bayes.linear",
        "lastiterate.release.training.train",
        "lastiterate.lazy",
        "lastiterate.audit.exact_distribution",
        "lastiterate.release.training",
        "lastiterate.release",
    ]


@pytest.mark.parametrize("file", sorted(HOME.rglob("*.py")), ids=lambda path: path.stem)
def test_the_papers_use_public_names_only(file):
    assert private(file.read_text(encoding="utf-8")) == []


def test_the_library_imports_the_papers_in_one_place():
    home = Path(lastiterate.__file__).parent
    places = [
        path.relative_to(home).as_posix()
        for path in sorted(home.rglob("*.py"))
        if any(
            (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").startswith("lastiterate_papers")
            )
            or (
                isinstance(node, ast.Import)
                and any(each.name.startswith("lastiterate_papers") for each in node.names)
            )
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert places == ["cli/papers.py"]
