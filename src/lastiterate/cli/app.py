"""The application, its console and errors, and the names of flags for Python's arguments."""

from __future__ import annotations

import csv
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from typer.models import ArgumentInfo

from lastiterate import __version__, interrupts, plugins
from lastiterate.atomic_files import SHARED, is_taken, write_file
from lastiterate.cli.help import OrderedCommands
from lastiterate.cli.run_flags import (
    BATCHES,
    NUMBERS,
    UPDATES,
    WORDS,
    form,
    list_batches,
    list_penalties,
)
from lastiterate.errors import (
    NAME_UNITS,
    InputError,
    NotCertified,
    name_missing_library,
    refuse_missing_library,
)
from lastiterate.limits import limit_unpacking

# The one table between names in Python, which all messages of the library use, and flags, which the
# terminal shows.

ARGUMENTS = {
    "folder": "out",
    "batching": "batch",
    "batch size": "batch",
    "rate of poisson batches": "batch",
    "start std": "start",
    "optimizer": "momentum",
    "noise std": "noise_std",
    "weight of l1": "prox",
    "mean number of runs": "mean_runs",
    "Run.release": "release",
    "Run.adjacency": "adjacency",
    "strong of inverse-decay": "step_size",
}
"""Arguments whose flag has another name; all others have a flag of their own name, or none."""

VALUES = {
    "min_evidence=Evidence.ASSUMED": "--trust-constants",
    "secure_noise=True": "--secure-noise",
    "start=FixedStart()": "--start fixed",
    "start=GaussianStart(STD)": "--start gaussian:STD",
    "domain=Ball(RADIUS)": "--radius RADIUS",
    "noise=Langevin(SIGMA)": "--sigma SIGMA",
    "noise=GradientNoise(STD)": "--noise-std STD",
    "noise=NoiseMultiplier(Z)": "--noise-multiplier Z",
    "noise=Correlated(Z, BAND)": "--noise-multiplier Z --correlated BAND",
    "filter=GaussianFilter(MU, FAILURE)": "--filter gaussian --failure FAILURE",
    "schema_template(file, header=False, columns=NAME:KIND,...)": "lastiterate schema FILE "
    "--header no --columns "
    "NAME:KIND,...",
    NAME_UNITS: "train --unit COLUMN",
    "account(run).why_not()": "lastiterate account --all",
    "header=True": "--header yes",
    "header=False": "--header no",
    "unpacked_limit(BYTES)": "--unpacked-limit BYTES",
    "memory=BYTES": "--memory BYTES",
    "lastiterate.allow_plugins()": "--allow-plugins",
} | {
    f"{name}={kind.__name__}({','.join(written.split(':')[1:])})": f"{flag} {written}"
    for name, flag, kinds in (
        ("batching", "--batch", BATCHES),
        ("optimizer", "--momentum", UPDATES),
    )
    for kind in kinds.values()
    for written in [form(kind)]
}
"""Forms that the command line writes in another way; words in capitals represent any value."""


def _pattern(written: str) -> re.Pattern[str]:
    """What matches an entry of ``VALUES``, with a named group for each word in capitals."""
    head, opening, rest = written.partition("(")
    return re.compile(
        r"(?<!\w)"
        + re.escape(head + opening)
        + re.sub(r"[A-Z]+", lambda word: f"(?P<{word[0]}>[^(),]+)", re.escape(rest))
        + r"(?!\w)"
    )


_PATTERNS = [(_pattern(written), flag) for written, flag in VALUES.items()]


def _fill_flag(written: str, match: re.Match[str]) -> str:
    """A flag with the values that were found for its words in capitals."""
    values = match.groupdict()
    return re.sub(r"\b[A-Z]+\b", lambda word: values.get(word[0]) or word[0], written)


def translate_to_flags(text: str, given: Collection[str] = ()) -> str:
    """Words for Python callers in those of the command line: ``clip=1.0`` is ``--clip 1.0``.

    ``given``: the parameters of the command that writes the text, which have flags in addition to
    those that describe a run.
    """
    for pattern, written in _PATTERNS:
        text = pattern.sub(partial(_fill_flag, written), text)
    flags = {*given, *WORDS, *NUMBERS}

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in flags:
            return match[0]
        return f"--{name.replace('_', '-')}" + ("" if value in ("", "True") else f" {value}")

    text = re.sub(r"\b([a-z_]+)=(?!=)([^\s,;)]*)", flag, text)
    if "algorithm" in given:  # a named algorithm has its batches, and the automatic plan its own
        text = text.replace("--batch full", "--algorithm noisy-gd")
    return text


def flag_of(argument: str, given: Collection[str]) -> str:
    """The flag that gives an argument, where the command has one; ``given``: the names of the
    command's parameters.
    """
    name = ARGUMENTS.get(argument, argument)
    flag = next(
        (known for known in (name, f"{name}s") if known in given), None
    )  # or one that lists several
    return argument if flag is None else f"--{flag.replace('_', '-')}"


# Text on a terminal: whatever files and arguments hold, no character of it steers the terminal or
# turns its text.


class Terminal(Console):
    """A console whose texts are ``visible``: everything that is printed on it goes through here."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


_VISIBLE = re.compile(r"[ -~\n\t]*")
"""Letters that are printable in ASCII."""


def visible(text: str) -> str:
    """The text with every character that is not printable as an escape, such as ``\\x1b``; line
    breaks and tabs stay.

    Escape sequences, bells and overrides of the direction of text are not printable.
    """
    if _VISIBLE.fullmatch(text):
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1]
        for letter in text
    )


# What every command shares: the application, the console, how errors are shown, the words of flags.


class Application(typer.Typer):
    """An application whose commands are imported when they are first looked at.

    ``modules``: of this package, each of which registers its commands.
    """

    def __init__(self, modules: Sequence[str], **given: Any) -> None:
        self._modules, self._commands, self._groups = list[str](), list[Any](), list[Any]()
        super().__init__(**given)
        self._every = tuple(modules)
        self._modules = list(modules)

    def choose_modules(self, word: str) -> None:
        """Import the commands of the module of that name alone, or of all where there is none."""
        self._modules = [word] if word in NAMESAKES else list(self._every)

    def _load(self) -> None:
        modules, self._modules = self._modules, []
        for module in modules:
            import_module(f"lastiterate.cli.{module}")

    @property
    def registered_commands(self) -> list[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._load()
        return self._commands

    @registered_commands.setter
    def registered_commands(self, commands: list[Any]) -> None:
        self._commands = commands

    @property
    def registered_groups(self) -> list[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._load()
        return self._groups

    @registered_groups.setter
    def registered_groups(self, groups: list[Any]) -> None:
        self._groups = groups


MODULES = (
    "account",
    "audit",
    "data",
    "export",
    "forget",
    "ledger",
    "papers",
    "plan",
    "predict",
    "train",
    "verify",
)
NAMESAKES = frozenset(MODULES) - {"data"}
"""Commands that are in the module of their name."""
app = Application(
    MODULES,
    cls=OrderedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train under differential privacy and release only the final model.",
)
choose_modules = app.choose_modules
console = Terminal()
FILES = "CSV, TSV (.gz), Parquet, NumPy, IDX, CIFAR-10, or -"
FLAG_HELP = {
    "n": "public number of records",
    "steps": "number of steps",
    "step_size": "NUMBER, inverse-decay:BETA,STRONG, relative:C or @FILE",
    "noise_std": "noise std per coordinate of the mean gradient",
    "sigma": "Langevin: noise sqrt(2 step) sigma",
    "noise_multiplier": "noise std in units of clip (or lipschitz) / b",
    "correlated": "BAND[,POWER[,DECAY]]: later steps cancel noise",
    "batch": "full, permuted:B, poisson:Q ...; list shows all",
    "start": "fixed or gaussian:STD",
    "prox": "a penalty: l1:W, l2-squared:W ...; list shows all",
    "momentum": "update rule: none, nesterov, heavy-ball:BETA or adam",
    "release": "last (default) or all iterates",
    "adjacency": "zero-out (default), replace-one or add-remove",
    "sensitivity": "largest change of the gradient sum by a neighbour",
    "lipschitz": "bound on the norm of a record's gradient",
    "smooth": "Lipschitz constant of the gradient of the mean loss",
    "strong": "strong convexity of the mean loss",
    "weak_convexity": "mean loss plus half of this times |theta|^2 is convex",
    "log_sobolev": "log-Sobolev constant of every iterate's distribution",
    "hoelder": "Hoelder constant of a record's gradient",
    "hoelder_exponent": "exponent of --hoelder, between 0 and 1",
    "radius": "project iterates onto the ball of this radius around 0",
    "clip": "norm to which every record's gradient is clipped",
}


def list_on_request(read: Callable[[], dict[str, str]]) -> Callable[[Any], Any]:
    """An option's callback: the word ``list`` prints every value of ``read``, one a line, and ends
    the command.
    """

    def show(given: str | list[str] | None) -> str | list[str] | None:
        if given not in ("list", ["list"]):
            return given
        values = read()
        width = max(map(len, values))
        for name, about in values.items():
            console.print(f"{name:{width}}  {about}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit

    return show


LISTED = {"batch": list_on_request(list_batches), "prox": list_on_request(list_penalties)}
"""Callbacks of the options that describe a run and list their values."""
ALGORITHM_HELP = "a named algorithm; list shows all"


def _version(asked: bool) -> None:
    if asked:
        print(f"lastiterate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    allow_plugins: Annotated[
        bool,
        typer.Option("--allow-plugins", help="let other packages' theorems, readers ... take part"),
    ] = False,
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    """Train under differential privacy and release only the final model."""
    if allow_plugins:
        context.with_resource(plugins.allow_plugins())


def reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Errors are one sentence on standard error and exit code 2; arguments are called by the flags
    that give them.
    """
    own = inspect.signature(command, eval_str=True).parameters
    arguments = {
        name
        for name, parameter in own.items()
        if any(isinstance(part, ArgumentInfo) for part in get_args(parameter.annotation))
    }

    @wraps(command)
    def run_command(*args: object, **kwargs: Any) -> None:
        try:
            with interrupts.listen(), limit_unpacking(kwargs.get("unpacked_limit")):
                _refuse_addresses(kwargs)
                command(*args, **kwargs)
                interrupts.check()
        except KeyboardInterrupt:
            raise _exit_on_interrupt() from None
        except Exception as error:
            if (
                interrupts.is_pending()
            ):  # another library's error, made of the exception that a Ctrl-C raised in it
                raise _exit_on_interrupt() from None
            ending = _exit_for_error(error, kwargs, arguments)
            if ending is error:
                raise
            raise ending from None

    return run_command


def _refuse_addresses(given: dict[str, Any]) -> None:
    """Refuse addresses of stores as files and folders of this machine, before anything is done."""
    for name, value in given.items():
        if isinstance(value, Path) and ":/" in value.as_posix():
            from lastiterate.remote_files import refuse_address

            refuse_address(name, value)


def _exit_on_interrupt() -> typer.Exit:
    """The end of a command that its user stopped: one sentence."""
    Terminal(stderr=True).print(
        interrupts.sentence(), highlight=False, markup=False, soft_wrap=True
    )
    return typer.Exit(interrupts.CODE)


def _exit_for_error(error: Exception, given: dict[str, Any], arguments: set[str]) -> Exception:
    """Say an error that users can do something about, and how the command ends; another one as it
    is.
    """
    flags = given.keys() - arguments
    match error:
        # the reader has seen enough, as head does; Python would complain once more at its end
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return typer.Exit(141)
        case OSError():
            where, what = str(error.filename or "output"), error.strerror or str(error)
            said = f"{where} must be writable, got {what}{'; nothing was released' if error.filename else ''}"
        case MemoryError():
            said = f"memory must be enough for this; {interrupts.outcome()}"
        case InputError():
            said = f"{flag_of(error.argument, flags)} {error.rule}"
        case NotCertified():
            said = str(error)
        case ModuleNotFoundError() if (library := name_missing_library(error)) is not None:
            said = str(refuse_missing_library(library))
        case _:
            return error
    sentence = translate_to_flags(said, flags)
    Terminal(stderr=True).print(
        f"[bold red]error:[/bold red] {escape(sentence)}", highlight=False, soft_wrap=True
    )
    ERRORS.append(sentence)
    return typer.Exit(2)


ERRORS: list[str] = []
"""What this command has refused, for the other processes of its job."""


Json = Annotated[bool, typer.Option("--json", help="print JSON")]
UnpackedLimit = Annotated[
    int | None,
    typer.Option("--unpacked-limit", help="most bytes of an unpacked file (default 2 GiB)"),
]
Header = Annotated[
    str | None,
    typer.Option(
        "--header",
        help="yes or no: a CSV file's first row names columns",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="the file or folder to write")]
RunFile = Annotated[
    Path | None, typer.Argument(help="a JSON file of a run; or describe it with options")
]
Trust = Annotated[
    bool, typer.Option("--trust-constants", help="rely on stated constants that nothing enforces")
]
Delta = Annotated[float, typer.Option("--delta", help="state epsilon at this delta")]
Calibrated = Annotated[
    bool,
    typer.Option(
        "--calibrated/--no-calibrated",
        help="spend 5 % of mu^2 on calibrated probabilities",
    ),
]
Threshold = Annotated[
    str | None,
    typer.Option(
        "--threshold",
        help="second class from probability P on, or costs ALARM:MISS",
    ),
]
TimeBudget = Annotated[
    float,
    typer.Option(
        "--time-budget",
        help="seconds that training may take on two cores",
    ),
]


def emit(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(visible(text))
        sys.stdout.flush()  # a full disk is reported here, and not when Python ends
        return
    if is_taken(out):
        raise InputError("folder", "must not exist yet", str(out), "choose another name")
    with interrupts.later():
        write_file(out, text.encode(), new=True, mode=SHARED)
        interrupts.say(f"{out} is written")
    sys.stdout.flush()


# CSV that a spreadsheet shows and does not execute.

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a formula begins with, the wide forms of East Asian keyboards too; spreadsheets skip a tab
or an end of line."""
_PLAIN_NUMBER = re.compile(r"[-+](?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


def format_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A line for the header and for every row; no cell is a formula."""
    return "".join(_line([_inert(cell) for cell in row]) for row in [header, *rows])


def format_cell(cell: object) -> str:
    """A cell as it stands in a line of several."""
    return _line([_inert(cell), ""]).removesuffix(",\n")


def _line(cells: Sequence[object]) -> str:
    """The cells of one line; one with a carriage return in it is quoted, or it would end the line
    for some readers.
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(
        cells
    )  # what is in the terminator is quoted in cells
    return text.getvalue().removesuffix("\r\n") + "\n"


def _inert(cell: object) -> object:
    """A cell that a spreadsheet shows and does not execute: a text that begins like a formula gets
    an apostrophe.
    """
    if isinstance(cell, str) and cell.startswith(_FORMULA) and not _PLAIN_NUMBER.fullmatch(cell):
        return "'" + cell
    return cell
