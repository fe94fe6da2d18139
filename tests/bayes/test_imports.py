"""What the Bayesian part imports, and which names it gives."""

import importlib
import pkgutil
import subprocess
import sys

import lastiterate.bayes as bayes


def test_nothing_heavy_is_imported():
    code = "import sys, lastiterate.bayes, lastiterate.bayes.linear; print(*{m.split('.')[0] for m in sys.modules})"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert (
        not {"jax", "scipy", "sklearn", "matplotlib", "torch"} & set(found)
        and "lastiterate" in found
    )


def test_public_names_do_not_collide():
    before = {name: getattr(bayes, name) for name in bayes.__all__}
    modules = [m.name for m in pkgutil.iter_modules(bayes.__path__)]
    for name in modules:
        importlib.import_module(f"lastiterate.bayes.{name}")
    assert all(getattr(bayes, name) is value for name, value in before.items())
    assert not set(modules) & set(bayes.__all__)
