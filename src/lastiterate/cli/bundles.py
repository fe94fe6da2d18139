"""Flags in bundles: a command takes one frozen dataclass, whose fields are its flags; shared ones are declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from lastiterate.cli.screen import FILES, Header, Out, TimeBudget, UnpackedLimit
from lastiterate.features.map_table import TABLE

if TYPE_CHECKING:
    from lastiterate.release.charging import Charging
    from lastiterate.release.linear_plans import Budget


def bundled(command: Callable[[Any], None]) -> Callable[..., None]:
    """The command with a flag for every field of the dataclass that it takes."""
    (bundle,) = inspect.signature(command, eval_str=True).parameters.values()
    hints = get_type_hints(bundle.annotation, include_extras=True)

    def called(**given: object) -> None:
        command(bundle.annotation(**given))

    return flagged(called, command, [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[item.name],
                          default=inspect.Parameter.empty if item.default is MISSING else item.default)
        for item in fields(bundle.annotation)])


def flagged(called: Callable[..., None], command: Callable[..., None], flags: list[inspect.Parameter]
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
    delta: Annotated[str, typer.Option("--delta", help="a number, or auto: at most 1/(10 n)")] = "auto"
    adjacency: Annotated[str, typer.Option("--adjacency", help="zero-out, replace-one, or add-remove for batches of "
                                           "secret sizes")] = "zero-out"
    time_budget: TimeBudget = 60.0
    n: Annotated[int | None, typer.Option("--n", help="add-remove: the public number that stands for how many records "
                                          "there are, which is private")] = None

    @property
    def budget(self) -> Budget:
        """The same, read."""
        from lastiterate.release.linear_plans import Budget, parse_delta

        return Budget(self.epsilon, parse_delta(self.delta), self.adjacency, self.time_budget, self.n)


@dataclass(frozen=True, kw_only=True)
class Charged:
    """Which budget a release is charged to."""

    ledger: Annotated[Path | None, typer.Option("--ledger", help="the ledger file that the release is charged to, "
                                                "once there is one")] = None
    dataset: Annotated[str | None, typer.Option("--dataset", help="the data set's name in the ledger")] = None

    def charging(self, **more: Any) -> Charging:
        """What pays, with settings of the command's own."""
        from lastiterate.release.charging import charging_of

        return charging_of(ledger=self.ledger, dataset=self.dataset, **more)


@dataclass(frozen=True, kw_only=True)
class FromFile(Charged, Budgeted):
    """A file, what is public of it, and where its model goes."""

    data: Annotated[str, typer.Argument(help=f"{FILES}; or digits, breast_cancer, wine, iris, diabetes")]
    schema: Annotated[Path | None, typer.Option("--schema", help="public facts: lastiterate schema FILE; by default "
                                                     "the file's name with .toml")] = None
    features: Annotated[str, typer.Option("--features", help="public maps of single records: auto (by the kinds of "
                                          f"columns, the records and the budget), plain, {', '.join(TABLE)}; or in the "
                                          "run: sqrt (for counts, ReLU features), fourier (random cosines)")] = "auto"
    header: Header = None
    out: Out = None
    unpacked_limit: UnpackedLimit = None

    def folders(self) -> tuple[Path, Path | None]:
        """Where the model goes, and where an earlier process of this command may have put it."""
        from lastiterate.release import datafile

        return datafile.unused_folder(self.data) if self.out is None else (self.out, None)
