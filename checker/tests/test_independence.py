"""The checker is a program of its own: it shares no line with what it checks, and stays small."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "lastiterate_check"
OTHER = Path(__file__).parents[2] / "src"
FILES = sorted(ROOT.rglob("*.py"))
BLOCK = 6
AUTOMATIC = (
    "run.py",
    "curves.py",
    "losses.py",
    "sampling.py",
    "shifts.py",
    "theorems.py",
    "subjects.py",
)
"""What certifies the automatic plans: composition, random allocation, Poisson, shifted
interpolation, correlated noise, groups, preparation."""


def imported(path):
    """Names of the packages that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def code_lines(path):
    """Lines of code: no comments, no docstrings, no blank lines."""
    text = path.read_text()
    told = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for entry in body:
                if isinstance(entry, ast.Expr) and isinstance(entry.value, ast.Constant):
                    told |= set(range(entry.lineno, entry.end_lineno + 1))
    return [
        line.strip()
        for number, line in enumerate(text.splitlines(), 1)
        if number not in told and line.strip() and not line.strip().startswith("#")
    ]


def test_imports_nothing_but_the_standard_library_numpy_scipy_and_flint():
    allowed = {*sys.stdlib_module_names, "numpy", "scipy", "flint", "lastiterate_check"}
    assert {name for path in FILES for name in imported(path)} <= allowed


def test_nothing_of_lastiterate_imports_the_checker():
    assert FILES
    users = [path for path in OTHER.rglob("*.py") if "lastiterate_check" in path.read_text()]
    assert not users


def test_running_it_loads_no_lastiterate_and_no_jax():
    code = (
        "import sys, lastiterate_check.__main__\n"
        "print(sorted({'lastiterate', 'jax', 'torch'} & {n.split('.')[0] for n in sys.modules}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT.parent), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "[]"


def test_no_block_of_six_lines_occurs_in_both():
    def blocks(paths):
        for path in paths:
            lines = code_lines(path)
            yield from (
                "\n".join(lines[at : at + BLOCK])
                for at in range(len(lines) - BLOCK + 1)
                if not all(
                    line.startswith(("import", "from", ")")) for line in lines[at : at + BLOCK]
                )
            )

    assert not set(blocks(FILES)) & set(blocks(OTHER.rglob("*.py")))


def test_it_is_short():
    """Lines that are neither blank nor comment nor docstring, as ruff format lays them."""
    lines = {path.name: len(code_lines(path)) for path in FILES}
    assert len(FILES) <= 13
    # 2,037 for the bounds, the unit, the schemas and the words on what is not compared
    assert sum(lines.values()) - lines["exports.py"] <= 2037
    # and what reads releases in files of other programs, with protobuf's, zip's and pickle's forms
    assert lines["exports.py"] <= 112
    assert sum(lines[name] for name in AUTOMATIC) <= 1200


def test_the_page_tells_these_lines():
    """The checker's own exactly; what others write to within a tenth."""
    sys.path.insert(0, str(ROOT.parents[1]))
    from count import layers

    page = (OTHER.parent / "docs" / "explanation" / "trust.md").read_text()
    for name, count in layers().items():
        told = re.search(rf"([\d,]+) (?:lines: |(?:of them: )?){name}(?=[ ;(|])", page)
        assert told, name
        figure = int(told.group(1).replace(",", ""))
        assert abs(figure - count) <= (0 if "checker" in name else count / 10), (name, count)
