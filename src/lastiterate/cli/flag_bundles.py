"""Bundles of flags that several commands share: a command takes one frozen dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from lastiterate.cli.app import Header, Out, TimeBudget, UnpackedLimit
from lastiterate.cli.run_flags import first_words
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from lastiterate.data import Schema
    from lastiterate.release.ledger_charge import Charging
    from lastiterate.release.training_request import Budget
    from lastiterate.release.units import Units


def list_algorithms() -> dict[str, str]:
    """Named algorithms, each with what it is."""
    from lastiterate.planning.presets import ABOUT

    return ABOUT


def list_maps() -> dict[str, str]:
    """Values of ``--features``, each with what it is."""
    from lastiterate.features.map_registry import TABLE, describe_provider, find_plugins

    return {
        "auto": "chosen by kinds of columns, number of records and budget, never by values",
        "plain": "numbers scaled to [-1, 1], a 0 or 1 for each category",
        **{name: first_words(kind) for name, kind in TABLE.items()},
        **{
            name: f"{first_words(kind)} ({describe_provider(kind)})"
            for name, kind in find_plugins().items()
        },
        "sqrt": "roots of the features' sizes, for counts and ReLU features",
        "fourier": "random cosine features next to the rows, for pictures and signals",
    }


def bundle_flags(command: Callable[[Any], None]) -> Callable[..., None]:
    """The command with a flag for every field of the dataclass that it takes."""
    (bundle,) = inspect.signature(command, eval_str=True).parameters.values()
    hints = get_type_hints(bundle.annotation, include_extras=True)

    def run_command(**given: object) -> None:
        command(bundle.annotation(**given))

    return with_flags(
        run_command,
        command,
        [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[item.name],
                default=inspect.Parameter.empty if item.default is MISSING else item.default,
            )
            for item in fields(bundle.annotation)
        ],
    )


def with_flags(
    called: Callable[..., None], command: Callable[..., None], flags: list[inspect.Parameter]
) -> Callable[..., None]:
    """``called`` under the name of ``command``, with these parameters as typer reads them."""
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    cast(Any, called).__signature__ = inspect.Signature(flags)
    called.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return called


@dataclass(frozen=True, kw_only=True)
class Budgeted:
    """What a fit may cost."""

    epsilon: Annotated[float, typer.Option("--epsilon", help="the privacy budget")]
    delta: Annotated[str, typer.Option("--delta", help="a number, or auto: at most 1/(10 n)")] = (
        "auto"
    )
    adjacency: Annotated[
        str,
        typer.Option("--adjacency", help="zero-out, replace-one or add-remove"),
    ] = "zero-out"
    time_budget: TimeBudget = 60.0
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            help="public number of records, for add-remove",
        ),
    ] = None

    @property
    def budget(self) -> Budget:
        """The same, read."""
        from lastiterate.release.training_request import Budget, parse_delta

        return Budget(
            self.epsilon, parse_delta(self.delta), self.adjacency, self.time_budget, self.n
        )


@dataclass(frozen=True, kw_only=True)
class Charged:
    """Which budget a release is charged to."""

    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="the ledger to charge"),
    ] = None
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="the data set's name in the ledger")
    ] = None

    def make_charging(self, **more: Any) -> Charging:
        """What pays, with settings of the command's own."""
        from lastiterate.release.ledger_charge import make_charging

        return make_charging(ledger=self.ledger, dataset=self.dataset, **more)


@dataclass(frozen=True, kw_only=True)
class File:
    """A data file, and what is public of it."""

    data: Annotated[str, typer.Argument(help="a table or array file, or digits, wine, iris, ...")]
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            help="a TOML file of public facts; default: DATA's name.toml",
        ),
    ] = None
    header: Header = None
    unpacked_limit: UnpackedLimit = None


@dataclass(frozen=True, kw_only=True)
class ReadFile(File):
    """How ``train`` reads a file."""

    model: Annotated[
        str | None, typer.Option("--model", help="logistic, huber-ridge or bayes-linear")
    ] = None
    target: Annotated[
        str | None, typer.Option("--target", help="the column to predict, if not the schema's")
    ] = None
    classes: Annotated[
        str | None, typer.Option("--classes", help="public labels a,b,c, if not the schema's")
    ] = None
    unit: Annotated[
        str | None, typer.Option("--unit", help="the column that names the person of a row")
    ] = None
    rows_per_unit: Annotated[
        int,
        typer.Option("--rows-per-unit", help="rows used of each person, at most (public)"),
    ] = 1
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="read the file piece by piece, whatever its size",
        ),
    ] = False

    def read_schema(self) -> Schema | None:
        """The public facts of the file, with the flags that change them."""
        from lastiterate.cli import run_flags as flags
        from lastiterate.release.data_file import schema_for

        return schema_for(
            self.data,
            self.schema,
            target=self.target,
            classes=self.classes,
            model=self.model,
            header=flags.header(self.header),
        )

    def units(self) -> Units | None:
        """Whose a row is, and how many rows of each are used."""
        from lastiterate.release.units import Units

        check_rows_named(self.unit, self.rows_per_unit)
        return None if self.unit is None else Units(self.unit, self.rows_per_unit)


@dataclass(frozen=True, kw_only=True)
class FromFile(File, Charged, Budgeted):
    """A file, and where its model goes."""

    out: Out = None

    def folders(self) -> tuple[Path, Path | None]:
        """Where the model goes, and where an earlier process of this command may have put it."""
        from lastiterate.release import file_training

        return file_training.find_free_folder(self.data) if self.out is None else (self.out, None)


def check_rows_named(unit: str | None, rows: int) -> None:
    """Refuse a number of rows of each person where nothing names the person."""
    if unit is None and rows != 1:
        raise InputError(
            "rows_per_unit", "needs the column that says who a row is of", rows, "name --unit"
        )
