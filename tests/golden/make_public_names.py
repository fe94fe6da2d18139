"""Write `public_names.txt`: `python tests/golden/make_public_names.py`.

The list of all that callers may write: public names with their parameters and defaults, methods of
the classes that have some, commands with their options, names of theorems. tests/test_surface.py
compares the library with it.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).with_name("public_names.txt")
STABLE = ("", ".curves", ".domains", ".penalties", ".data", ".errors", ".estimators", ".ledger")
PROVISIONAL = (".audit", ".bayes", ".distributed", ".features", ".jax", ".testing", ".torch")
PACKAGES = {
    **dict.fromkeys(STABLE, "stable"),
    **dict.fromkeys(PROVISIONAL, "provisional"),
}
"""Public packages and what docs/reference/stability.md promises of them."""
WITH_METHODS = {
    *("Run", "Certificate", "FittedLinear", "FittedNetwork", "Ledger", "Total", "Schema", "Table"),
    *("DPLogisticRegression", "DPHuberRidge", "DPSearchCV", "DPNetClassifier", "PrivateLoop"),
    *("Gdp", "AuditReport", "OneRunReport", "OpacusAccountant", "PrivatePair"),
}
"""Classes whose methods callers use; of the others they write the constructor alone."""
MODELS = (
    ("lastiterate.release.fitted_linear", "FittedLinear"),
    ("lastiterate.release.network_model", "FittedNetwork"),
)
"""Classes that `train` and `load` return, which nobody imports."""


def list_packages() -> list[str]:
    """Return the packages that can be imported here: torch is optional."""
    return [name for name in PACKAGES if name != ".torch" or find_spec("torch")]


def find_module(package: str) -> ModuleType:
    """Return a public package; distributed, domains and penalties are found through the library."""
    if package in (".distributed", ".domains", ".penalties"):
        return getattr(import_module("lastiterate"), package[1:])
    return import_module(f"lastiterate{package}")


def list_names(module: ModuleType) -> list[str]:
    """Return what a package exports: its ``__all__``, or the public classes and functions that it
    defines."""
    listed = getattr(module, "__all__", None)
    return sorted(
        listed
        if listed is not None
        else (
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        )
    )


def format_parameters(value: object) -> str:
    """Return parameters with their defaults, without annotations and without addresses."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    written = str(inspect.Signature(plain))
    return re.sub(r"<(function|class|module) '?([\w.]+)[^>]*>| at 0x[0-9a-f]+", r"\2", written)


def describe_class(name: str, kind: type) -> Iterator[str]:
    """Yield a class with its parameters; of ``WITH_METHODS`` the public methods and properties that
    have a docstring, too."""
    yield name + format_parameters(kind)
    if name.rpartition(".")[2] not in WITH_METHODS:
        return
    held = {
        attribute: value
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("lastiterate")
        for attribute, value in vars(base).items()
        if not attribute.startswith("_")
    }
    for attribute, value in sorted(held.items()):
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not getattr(function, "__doc__", None):
            continue
        if inspect.isfunction(function):
            yield f"{name}.{attribute}{format_parameters(function)}"
        elif isinstance(value, property | cached_property):
            yield f"{name}.{attribute}"


def describe_package(package: str) -> Iterator[str]:
    """Yield the lines of one package."""
    module = find_module(package)
    for name in list_names(module):
        value, full = getattr(module, name), f"lastiterate{package}.{name}"
        if isinstance(value, type):
            yield from describe_class(full, value)
        else:
            yield full + (format_parameters(value) if callable(value) else "")


def describe_commands() -> Iterator[str]:
    """Yield every command with its arguments and options."""
    import typer

    from lastiterate.cli import app

    pending = [("lastiterate", typer.main.get_command(app))]
    while pending:
        words, command = pending.pop()
        pending += [
            (f"{words} {name}", one) for name, one in getattr(command, "commands", {}).items()
        ]
        flags = [
            "/".join([*parameter.opts, *parameter.secondary_opts])
            if parameter.param_type_name == "option"
            else parameter.name.upper()
            for parameter in command.params
            if parameter.name not in ("install_completion", "show_completion")
        ]
        yield f"{words}: {' '.join(sorted(flags))}"


def describe_surface() -> dict[str, list[str]]:
    """Return the lines of every section, by its heading."""
    from lastiterate.theorems import TABLE

    packages = {
        f"# lastiterate{package} ({PACKAGES[package]})": list(describe_package(package))
        for package in list_packages()
    }
    models = [
        line
        for module, name in MODELS
        for line in describe_class(name, getattr(import_module(module), name))
    ]
    return packages | {
        "# models that train and load return (stable)": models,
        "# commands (stable)": sorted(describe_commands()),
        "# theorems (stable)": sorted(TABLE),
    }


def read_sections(text: str) -> dict[str, list[str]]:
    """Return the lines of every section of the file, by its heading."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            sections[line] = []
        elif line:
            sections[next(reversed(sections))].append(line)
    return sections


def main() -> None:
    found = describe_surface()
    if not find_spec("torch"):
        sys.exit("torch: must be installed to write its names; make test installs it")
    text = "\n\n".join("\n".join([heading, *lines]) for heading, lines in found.items())
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
