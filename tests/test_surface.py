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
from golden import make_public_names
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


@pytest.mark.parametrize(
    "words, unneeded",
    [
        ("--help", {"numpy", "typer", "rich", "lastiterate.cli"}),
        ("verify --help", {"lastiterate.cli.train", "lastiterate.cli.account"}),
        ("account --help", {"lastiterate.cli.train", "lastiterate.cli.plan"}),
    ],
)
def test_a_command_imports_no_other(words, unneeded):
    run(
        f"import sys\nsys.argv = ['lastiterate', *{words.split()}]\n"
        "from lastiterate.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code\n"
        f"assert not {HEAVY | unneeded} & set(sys.modules)"
    )


def test_a_second_command_of_one_process_finds_its_module():
    """``report`` is in a module of another name; the first command imported its own alone."""
    run(
        "import sys\nfrom lastiterate.cli import main\n"
        "for words in ['verify', '-h'], ['report', '-h']:\n"
        "    sys.argv = ['lastiterate', *words]\n    try:\n        main()\n"
        "    except SystemExit as left:\n        assert not left.code, words"
    )


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
        if file.name == "distributed.py":
            continue  # its ``train`` is the same, in several processes
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined[node.name] += 1
            elif isinstance(node, ast.Assign):
                defined.update(target.id for target in node.targets if isinstance(target, ast.Name))
    modules = {name for name in li.__all__ if hasattr(getattr(li, name), "__path__")}
    assert not {name: defined[name] for name in set(li.__all__) - modules if defined[name] > 1}


def test_no_public_name_or_signature_changes_unannounced():
    """The checked-in list is what callers were told; sections of libraries that are absent here are
    left out."""
    written = make_public_names.read_sections(make_public_names.FILE.read_text("utf-8"))
    found = make_public_names.describe_surface()
    changed = [
        f"{sign} {line}"
        for heading in found
        for sign, one, other in (
            ("-", written.get(heading, []), found[heading]),
            ("+", found[heading], written.get(heading, [])),
        )
        for line in one
        if line not in other
    ]
    assert not changed, "\n".join(
        [
            "Public names or signatures changed:",
            *changed,
            "Keep the old name for one minor version (`# renamed:` in the stub, accept_old_names),",
            "write a fragment in changelog.d, then: python tests/golden/make_public_names.py",
        ]
    )


def test_the_list_of_names_sees_what_callers_see(monkeypatch):
    """A default, a parameter, an option and a name that is gone each change a line of it."""
    before = set(make_public_names.describe_package(""))
    monkeypatch.setattr(li, "account", lambda run, *, min_evidence=None: None)
    monkeypatch.setattr(li.Poisson, "__init__", lambda self, rate, size=1: None)
    lines = set(make_public_names.describe_package(""))
    assert "lastiterate.account(run, *, min_evidence=None)" in lines - before
    assert "lastiterate.Poisson(rate, size=1)" in lines
    monkeypatch.setattr(make_public_names, "list_names", lambda module: ["Run"])
    assert not [line for line in make_public_names.describe_package("") if "Poisson" in line]
    commands = "\n".join(make_public_names.describe_commands())
    assert "lastiterate ledger make: " in commands and " --epsilon " in commands


def test_the_page_on_stability_says_it_of_every_package():
    page = (SOURCE.parents[1] / "docs" / "reference" / "stability.md").read_text("utf-8")
    rows = {
        f"lastiterate{package}": promise for package, promise in make_public_names.PACKAGES.items()
    }
    for name, promise in rows.items():
        (said,) = [line for line in page.splitlines() if f"| `{name}` |" in line]
        assert f"| {promise} |" in said
    public = {f"lastiterate.{stub.parent.name}" for stub in SOURCE.glob("*/__init__.py*")}
    private = {name for name in public if f"`{name.removeprefix('lastiterate.')}`" in page}
    assert public <= {*rows, *private}, "every package is stable, provisional or private"
