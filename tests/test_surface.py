"""What `import lastiterate` offers: one list of about sixty names, nothing heavy, and no name that
means two things."""

import ast
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import lastiterate as li
from lastiterate import lazy
from lastiterate.run.run import DESCRIPTIONS

SOURCE = Path(li.__file__).parent
HEAVY = {"jax", "torch", "sklearn", "matplotlib", "pandas", "scipy", "dp_accounting", "equinox"}


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_import_is_light():
    run(
        f"import sys, lastiterate, lastiterate.jax\n"
        f"assert not {HEAVY | {'numpy', 'typer', 'rich'}} & set(sys.modules)"
    )


def test_accounting_and_planning_load_nothing_heavy():
    run(
        "import sys, lastiterate as li\n"
        "import lastiterate.accounting.certificate, lastiterate.planning.planner\n"
        "li.account, li.calibrate, li.curves.compose, li.curves.Gdp, li.domains.Ball, li.train\n"
        f"assert not {HEAVY - {'scipy'}} & set(sys.modules)"
    )


def test_the_command_line_loads_no_engine_before_a_command_needs_it():
    run(f"import sys, lastiterate.cli\nassert not {HEAVY | {'cryptography'}} & set(sys.modules)")


@pytest.mark.parametrize("package", ["", "curves"])
def test_every_public_name_is_found_where_the_stub_says(package):
    found = getattr(li, package) if package else li
    for name in found.__all__:
        value = getattr(found, name)
        assert value is not None and name in dir(found)
        stated = getattr(
            value, "__module__", value.__name__ if hasattr(value, "__path__") else "lastiterate"
        )
        assert stated.startswith("lastiterate"), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = found.nonsense
    assert 35 <= len(li.__all__) <= 70, "most are the parts of a run, which are all public"


def test_whatever_a_run_may_hold_is_public():
    """A run that is read from JSON or planned can be written in Python, from public names alone."""
    public = [getattr(part, name) for part in (li, li.domains, li.penalties) for name in dir(part)]
    hidden = {
        kind.__name__
        for kinds in DESCRIPTIONS.values()
        for kind in kinds
        if kind is not type(None) and kind not in public
    }
    assert len({kind for kinds in DESCRIPTIONS.values() for kind in kinds}) > 30 and not hidden


def test_the_stub_is_the_only_list():
    """Every import of the stub is one that `lazy` understands, so that type checkers and Python see
    the same names."""
    for stub in SOURCE.rglob("__init__.pyi"):
        seen = {
            a.name
            for n in ast.parse(stub.read_text()).body
            if isinstance(n, ast.ImportFrom)
            for a in n.names
        }
        assert set(lazy.attach("lastiterate", str(stub.with_suffix(".py")))[2]) == seen


def test_no_file_hides_a_public_name():
    """Importing a file of that name, anywhere in the process, would put the module in the place of
    what it defines."""
    for stub in SOURCE.rglob("__init__.pyi"):
        files = {path.stem if path.suffix == ".py" else path.name for path in stub.parent.iterdir()}
        found = import_module(".".join(stub.parent.relative_to(SOURCE.parent).parts))
        for name in files & set(found.__all__):
            assert isinstance(getattr(found, name), ModuleType), name


def test_a_public_name_means_one_thing():
    """No other module defines a function or class of that name."""
    defined = Counter()
    for file in SOURCE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined[node.name] += 1
            elif isinstance(node, ast.Assign):
                defined.update(target.id for target in node.targets if isinstance(target, ast.Name))
    modules = {name for name in li.__all__ if hasattr(getattr(li, name), "__path__")}
    assert not {name: defined[name] for name in set(li.__all__) - modules if defined[name] > 1}
