"""What many tests do in the same way: call the command line, import a script, refuse for nothing."""

import importlib
import importlib.util
import sys
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from lastiterate import plugins
from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger


class Answer(NamedTuple):
    """What a command answers; of the standard error the words alone, as lines are wrapped."""

    code: int
    out: str
    err: str


def call(*words, text=None):
    """Call the command line in this process; an error that no sentence says is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, " ".join(result.stderr.split()))


@contextmanager
def refuse_unpaid(folder, said):
    """Expect that what is charged to the ledger that this gives is refused in one line, and that
    nothing is charged."""
    ledger = Ledger(folder / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(100.0, 1e-3))
    with pytest.raises(InputError, match=said) as caught:
        yield {"ledger": ledger, "dataset": "a"}
    assert ledger.total().releases == () and "\n" not in str(caught.value)


def load_script(path):
    """Import a script that is no part of a package, by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def install_plugin(folder, monkeypatch, package, points, module):
    """Lay a package with entry points on the path, as an installation does: ``points`` by group,
    ``module`` its source, called like the package."""
    name = package.replace("-", "_")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line
        for group, listed in points.items()
        for line in (
            f"[lastiterate.{group}]",
            *(f"{key} = {value}" for key, value in listed.items()),
        )
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(plugins, "_loaded", {})
    plugins.find_installed.cache_clear()
    importlib.invalidate_caches()
