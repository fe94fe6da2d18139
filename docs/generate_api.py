"""The reference pages, made when the documentation is built (an mkdocs hook): every public name,
every command and every error message.

Names come from ``__all__`` of the packages, texts from their docstrings (mkdocstrings) and from the
commands' own help; error messages come from the calls of ``InputError`` in the sources.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "src" / "lastiterate"
ROOMS = {
    "data": "Data files and schemas",
    "features": "Public maps",
    "cli": "Command line",
    "run": "Describing a run",
    "accounting": "Accounting",
    "theorems": "Theorems",
    "curves": "Curves",
    "planning": "Plans",
    "release": "Training, model folders, units, forgetting",
    "engine": "Losses, optimisers, execution",
    "torch": "PyTorch modules",
    "jax": "Loops around JAX",
    "estimators": "Estimators",
    "ledger": "Ledgers",
    "audit": "Audits",
    "report": "Reports and exports",
    "bayes": "Posterior samples",
}
"""Folders of the sources with the titles of their error messages."""

PAGES = {
    "run": (
        "Describing a run",
        "Everything a `Run` is made of. Descriptions are immutable, know no data and no JAX.",
        ("lastiterate.run",),
    ),
    "losses": (
        "Losses, facts and evidence",
        "What is known about the loss, and how well it is known.",
        ("lastiterate.run.losses", "lastiterate.run.facts", "lastiterate.run.facts"),
    ),
    "constraints": (
        "Domains and penalties",
        "Reached as `li.domains.Ball`, `li.penalties.L1`, ...",
        ("lastiterate.run.domains", "lastiterate.run.penalties"),
    ),
    "accounting": (
        "Accounting and calibration",
        "From a run to its certificate, from a budget to a run.",
        (
            "lastiterate.accounting",
            "lastiterate.planning",
            "lastiterate.theorems",
            "lastiterate.analysis",
            "lastiterate.errors",
        ),
    ),
    "curves": (
        "Curves",
        "What a privacy guarantee looks like. Every number is an upper bound.",
        ("lastiterate.curves",),
    ),
    "training": (
        "Training and released models",
        "Execute a run; save, load, predict with and verify what it releases.",
        (
            "lastiterate.release",
            "lastiterate.engine",
            "lastiterate.estimators",
            "lastiterate.jax",
            "lastiterate.torch",
        ),
    ),
    "audit": ("Audits", "Attack a trainer: lower bounds on epsilon.", ("lastiterate.audit",)),
    "posterior": (
        "Posterior samples",
        "One sample of a posterior, and why an iterate of SGLD is none.",
        ("lastiterate.bayes",),
    ),
    "report": (
        "Pictures",
        "One style for every picture: what a line means decides how it looks.",
        ("lastiterate.report",),
    ),
    "long-work": (
        "Long work",
        "What a loop of long work calls, so that Ctrl-C stops it in order.",
        ("lastiterate.interrupts",),
    ),
    "data": (
        "Data and schemas",
        "Readers of files, public schemas, bundled public sets.",
        ("lastiterate.data",),
    ),
    "ledger": ("Ledger", "Several releases about one data set.", ("lastiterate.ledger",)),
    "plug-ins": (
        "Plug-ins",
        "Let theorems, batchings, feature maps and readers of other packages take part.",
        ("lastiterate.plugins", "lastiterate.testing"),
    ),
}
"""Page: title, first sentence, and the packages or modules whose names it holds; the longest prefix
wins."""
TORCH = ("lastiterate.torch",) if find_spec("torch") and find_spec("opacus") else ()
"""Its names can be looked up only where torch and Opacus are installed."""
PACKAGES = (
    "lastiterate.analysis",
    "lastiterate.audit",
    "lastiterate.bayes",
    "lastiterate.curves",
    "lastiterate.data",
    "lastiterate.engine",
    "lastiterate.estimators",
    "lastiterate.interrupts",
    "lastiterate.jax",
    "lastiterate.ledger",
    "lastiterate.report",
    "lastiterate.testing",
    "lastiterate.theorems",
    *TORCH,
)
"""Packages with public names of their own, in addition to the top."""
MODULES = (
    "lastiterate.run.domains",
    "lastiterate.run.penalties",
    "lastiterate.errors",
    "lastiterate.release.distributed",
)
"""Public modules: every class in them, or what they list."""


def public_names() -> dict[str, Any]:
    """Public dotted names, as a user writes them, with their objects."""
    found: dict[str, Any] = {}
    for package in ("lastiterate", *PACKAGES):
        module = import_module(package)
        found |= {f"{package}.{name}": getattr(module, name) for name in module.__all__}
    for place in MODULES:
        short, module = place.replace(".run.", ".").replace(".release.", "."), import_module(place)
        found |= {
            f"{short}.{name}": value
            for name, value in vars(module).items()
            if (
                name in module.__all__
                if hasattr(module, "__all__")
                else inspect.isclass(value)
                and value.__module__ == place
                and not name.startswith("_")
            )
        }
    return {name: value for name, value in found.items() if not inspect.ismodule(value)}


def home(name: str, value: Any) -> str:
    """The dotted path where a public name is defined: constants are looked for where their package
    finds them."""
    module = getattr(value, "__module__", None)
    if (
        isinstance(module, str)
        and module.startswith("lastiterate")
        and hasattr(value, "__qualname__")
    ):
        return f"{module}.{value.__qualname__}"
    return name


def page_of(path: str) -> str:
    """The page whose packages hold ``path``."""
    fits = [
        (len(prefix), page)
        for page, (_, _, prefixes) in PAGES.items()
        for prefix in prefixes
        if path == prefix or path.startswith(prefix + ".")
    ]
    if not fits:
        raise ValueError(
            f"no reference page takes {path}: add its package to PAGES in docs/generate_api.py"
        )
    return max(fits)[1]


def pages() -> dict[str, str]:
    """Markdown of every reference page, by its path."""
    blocks: dict[str, dict[str, str]] = {page: {} for page in PAGES}
    for name, value in public_names().items():
        path = home(name, value)
        public = f"li.{name.removeprefix('lastiterate.')}" if name.count(".") == 1 else name
        blocks[page_of(path)].setdefault(path, public)  # the first, shortest name counts
    made = {
        "reference/index.md": index(blocks),
        "reference/command-line.md": command_line(),
        "reference/errors.md": error_messages(),
    }
    for page, (title, about, _) in PAGES.items():
        parts = [f"# {title}", about]
        # names of one module stand together, the run itself first
        ordered = sorted(
            blocks[page].items(), key=lambda item: (item[0] != "lastiterate.run.run.Run", item[0])
        )
        parts += [f"::: {path}\n    options:\n      heading: {public}" for path, public in ordered]
        if blocks[page]:
            made[f"reference/{page}.md"] = "\n\n".join(parts) + "\n"
    return made


def index(blocks: dict[str, dict[str, str]]) -> str:
    """All reference pages, and every public name with the page that describes it."""
    lines = [
        "# Reference",
        "Every public name and every command, from their own docstrings and help.",
        "\n".join(
            [
                "- [Command line](command-line.md): every command with its options",
                "- [Error messages](errors.md): every rule with its remedy",
                *(
                    f"- [{title}]({page}.md): {about}"
                    for page, (title, about, _) in PAGES.items()
                    if blocks[page]
                ),
            ]
        ),
        "## Every name",
        "| name | page |\n|---|---|\n"
        + "\n".join(
            f"| [`{public}`]({page}.md#{path}) | {PAGES[page][0]} |"
            for page, names in blocks.items()
            for path, public in sorted(names.items(), key=lambda item: item[1].lower())
        ),
    ]
    return "\n\n".join(lines) + "\n"


def command_line() -> str:
    """Every command with its arguments and options, from the commands themselves."""
    import typer

    from lastiterate.cli import app

    group: Any = typer.main.get_command(app)
    parts = [
        "# Command line",
        "`lastiterate COMMAND --help` prints the same. [Exit codes and environment "
        "variables](environment.md) are the same for all commands. A constant that you give by an "
        "option is an `ASSUMED` fact ([glossary](../glossary.md)).",
    ]
    commands = [
        (name, command)
        for name, command in group.commands.items()
        if not hasattr(command, "commands")
    ]
    commands += [
        (f"{name} {part}", command)
        for name, inner in group.commands.items()
        for part, command in getattr(inner, "commands", {}).items()
    ]
    for name, command in commands:
        rows = [
            f"| `{' '.join([*option.opts, *option.secondary_opts])}` | {kind_of(option)} | "
            f"{default_of(option)} | {cell(getattr(option, 'help', '') or '')} |"
            for option in command.params
            if not getattr(option, "hidden", False)
        ]
        parts += [
            f"## lastiterate {name}",
            cell(command.help or ""),
            "\n".join(
                ["| argument or option | type | default | meaning |", "|---|---|---|---|", *rows]
            ),
        ]
    return "\n\n".join(parts) + "\n"


def kind_of(option: Any) -> str:
    """Return the type of an argument or option in a word."""
    if getattr(option, "is_flag", False):
        return "switch"
    kind = getattr(option, "type_descriptor", None)
    kind = option.type if kind is None else kind.annotation
    return str(kind.__name__ if isinstance(kind, type) else getattr(kind, "name", kind)).lower()


def default_of(option: Any) -> str:
    """Return the default of an argument or option, as a cell."""
    if option.required:
        return "required"
    value = option.default
    if value is None or value is False or callable(value) or "Sentinel" in type(value).__name__:
        return ""
    return f"`{cell(str(value))}`"


def read_text(node: ast.expr) -> str:
    """Return the text of an expression, with ... for all that is computed."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(read_text(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return read_text(left) + read_text(right)
        case _:
            return "..."


@cache
def read_errors() -> dict[str, list[tuple[str, str, str]]]:
    """Return argument, rule and remedy of every ``InputError`` in the sources, by folder."""
    found: dict[str, set[tuple[str, str, str]]] = {room: set() for room in ROOMS}
    for room in ROOMS:
        for file in sorted((SOURCES / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                name = getattr(node, "func", None)
                if not isinstance(node, ast.Call) or getattr(name, "id", "") != "InputError":
                    continue
                parts = [read_text(each) for each in node.args]
                if len(parts) < 2 or "..." in (parts[0].strip(), parts[1].strip()):
                    continue
                found[room].add((parts[0], parts[1], parts[3] if len(parts) > 3 else ""))
    return {room: sorted(rows) for room, rows in found.items()}


def error_messages() -> str:
    """Return the page of every error message that names its argument and rule in the sources."""
    parts = [
        "# Error messages",
        "An error is one sentence: the argument, the rule that it breaks, the value that you gave, "
        "and a remedy. The command line shows the option in place of the argument and ends with "
        "exit code 2. `...` represents a value. [Troubleshooting](../guides/troubleshooting.md) "
        "explains the most frequent ones.",
    ]
    for room, rows in read_errors().items():
        table = [f"| {cell(a)} | {cell(rule)} | {cell(remedy)} |" for a, rule, remedy in rows]
        head = ["| argument | rule | remedy |", "|---|---|---|"]
        parts += [f"## {ROOMS[room]}", "\n".join([*head, *table])] if table else []
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    """One line of text inside a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def on_config(config: Any) -> Any:
    """Put the generated pages into the section Reference, behind the glossary."""
    section = next(part["Reference"] for part in config.nav if "Reference" in part)
    titles = {
        "command-line": "Command line",
        "index": "Python: every name",
        "errors": "Error messages",
    }
    section += [
        {PAGES[page][0] if page in PAGES else titles[page]: f"reference/{page}.md"}
        for page in (path.split("/")[1].removesuffix(".md") for path in pages())
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages; leave this file out of the site."""
    from mkdocs.structure.files import File

    for path, content in pages().items():
        files.append(File.generated(config, path, content=content))
    files.remove(files.get_file_from_path("generate_api.py"))
    return files
