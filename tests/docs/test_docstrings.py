"""Docstrings of public names follow numpydoc, and their examples run."""

import doctest
import enum
import functools
import importlib
import importlib.util
import inspect
import tomllib
import warnings
from pathlib import Path

import pytest
from numpydoc.validate import ERROR_MSGS, validate

import lastiterate as li
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.features import SchemaTransformer
from lastiterate.ledger import Ledger

LIMITS = tomllib.loads(Path(__file__).with_name("style_counts.toml").read_text("utf-8"))
PACKAGES = ("", ".audit", ".bayes", ".estimators", ".features", ".jax", ".ledger", ".testing")
PACKAGES += (".torch",)
CODES = {code for code in ERROR_MSGS if code[:2] in ("GL", "SS", "PR", "RT", "EX")}
CODES -= {"GL01", "GL02"}  # summaries begin on the line of the quotes, and may end there
METHODS_OF = (
    li.Run,
    li.Certificate,
    DPLogisticRegression,
    DPHuberRidge,
    DPSearchCV,
    SchemaTransformer,
    Ledger,
)
"""Classes whose public methods are described with all sections, examples aside."""


@functools.cache
def public_values():
    """Return every public function and class by its full name, of installed libraries only."""
    libraries = all(map(importlib.util.find_spec, ("torch", "opacus")))
    packages = [name for name in PACKAGES if name != ".torch" or libraries]
    modules = [importlib.import_module(f"lastiterate{name}") for name in packages]
    values = {f"{m.__name__}.{name}": getattr(m, name) for m in modules for name in m.__all__}
    for m in (li.domains, li.penalties):
        own = [
            value for value in vars(m).values() if getattr(value, "__module__", "") == m.__name__
        ]
        values |= {
            f"{m.__name__}.{value.__name__}": value for value in own if isinstance(value, type)
        }
    return {name: value for name, value in values.items() if callable(value)}


@functools.cache
def public_methods():
    """Return the names of public methods that the library defines for ``METHODS_OF``."""
    found = []
    for kind in METHODS_OF:
        where = next(name for name, value in public_values().items() if value is kind)
        for name, member in inspect.getmembers(kind):
            own = getattr(inspect.unwrap(member), "__module__", None) if callable(member) else ""
            if not name.startswith("_") and str(own).startswith("lastiterate"):
                found.append(f"{where}.{name}")
    return found


def faults(name, codes):
    """List the rules of numpydoc that a docstring breaks, in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown sections are faults as well
        errors = validate(name)["errors"]
    if isinstance(public_values().get(name), enum.EnumMeta):
        codes = codes - {"PR01", "PR02"}  # the signature is that of the metaclass
    return [f"{name}: {code} {text}" for code, text in errors if code in codes]


@functools.cache
def examples():
    """Return the example of every public name that has one."""
    finder, found = doctest.DocTestFinder(), {}
    for name, value in public_values().items():
        for test in finder.find(value, name, globs={}):
            found.setdefault((test.filename, test.lineno), test)
    return [test for test in found.values() if test.examples]


def test_docstrings_follow_numpydoc():
    bad = [fault for name in public_values() for fault in faults(name, CODES)]
    bad += [fault for name in public_methods() for fault in faults(name, CODES - {"EX01"})]
    names = {fault.split(":")[0] for fault in bad}
    listing = "\n".join(bad)
    assert len(names) <= LIMITS["invalid_docstrings"], f"{len(names)} names\n{listing}"


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example_runs(example):
    report = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)


def test_a_broken_docstring_is_found():
    """Check that a parameter without a description and a wrong output are reported."""
    assert not faults("lastiterate.Run", CODES)
    assert any("PR01" in fault for fault in faults("lastiterate.errors.format_value", CODES))
    parser, report = doctest.DocTestParser(), []
    wrong = parser.get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    doctest.DocTestRunner(verbose=False).run(wrong, out=report.append)
    assert report
