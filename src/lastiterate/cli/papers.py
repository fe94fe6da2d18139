"""``lastiterate papers``: figures and tables that compare published values with ours; the one door
to ``lastiterate_papers``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lastiterate.cli.app import Json, app, console, reports_errors
from lastiterate.cli.run_flags import parse_number
from lastiterate.errors import InputError


@app.command("papers")
@reports_errors
def papers_command(
    item: Annotated[
        str | None, typer.Argument(metavar="ITEM", help="the item; without one, list all")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="the folder for NAME.png and NAME.json")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="reproduce every item that --out lacks")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="use reduced sizes (minutes in all)")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="the random seed")] = 0,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="a folder with the real data sets"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="a setting of the item: NAME=VALUE"),
    ] = None,
    json_: Json = False,
) -> None:
    """Reproduce figures and tables of the papers.

    Shows the published value, ours, their difference and its tolerance.

    Without ITEM all are listed; with one it is made, as in: lastiterate papers chourasia-fig1 --out
    figs
    """
    try:
        from lastiterate_papers.command import papers
        from lastiterate_papers.item import Work
    except ModuleNotFoundError as missing:
        if missing.name != "lastiterate_papers":
            raise
        raise InputError(
            "papers",
            "needs the package lastiterate_papers, which is not there",
            None,
            "install lastiterate again: both come together",
        ) from None
    if not papers(
        console,
        item,
        Work(quick, seed, data_dir),
        _parse_settings(set_ or []),
        out=out,
        every=all_,
        as_json=json_,
    ):
        raise typer.Exit(2)


def _parse_settings(words: list[str]) -> dict[str, float]:
    """NAME=VALUE, several in one word with commas or in several."""
    settings: dict[str, float] = {}
    for part in ",".join(words).split(",") if words else []:
        name, separator, value = part.partition("=")
        if not separator:
            raise InputError("--set", "must be NAME=VALUE", part, "as in --set n=1000")
        settings[name.strip()] = parse_number("--set", value)
    return settings
