"""`lastiterate verify`: a certificate derived again, and a folder compared with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.cli.app import (
    Json,
    app,
    console,
    reports_errors,
)

if TYPE_CHECKING:
    from lastiterate.accounting.verification import CheckResult


@app.command("verify")
@reports_errors
def verify_command(
    path: Annotated[Path, typer.Argument(help="a model folder, an ONNX file, or a certificate")],
    key: Annotated[
        Path | None,
        typer.Option("--key", help="require the signature of this public key"),
    ] = None,
    chain: Annotated[
        list[Path] | None,
        typer.Option("--chain", help="require a signature below these certificates"),
    ] = None,
    json_: Json = False,
) -> None:
    """Recompute a certificate and check a folder's hashes.

    Exit code 1 if the certificate does not hold.
    """
    from lastiterate.release.folder import PAGE_DIFFERS
    from lastiterate.release.loading import verify

    checked = verify(path, key=key, chain=chain or ())
    page = _compare_page(path, checked)
    if json_:
        print(
            json.dumps(
                {
                    "holds": checked.holds,
                    "problems": list(checked.problems),
                    "epsilon": checked.epsilon,
                    "delta": checked.delta,
                    "adjacency": checked.adjacency,
                    "epsilon_replace_one": checked.epsilon_replace_one,
                    "unit": checked.unit or None,
                    "rows_per_unit": checked.rows,
                    "condition": checked.condition,
                    "uncovered": list(checked.uncovered),
                    "page_checked": page,
                }
                | ({"limit": checked.limit} if checked.limit else {}),
                indent=2,
            )
        )
    elif checked.problems:
        console.print(
            "the folder has no valid signature"
            if checked.problems == checked.unsigned
            else "the page does not belong to the certificate, which holds"
            if checked.problems == (PAGE_DIFFERS,)
            else "the certificate does not hold",
            style="bold red",
        )
        for problem in (*checked.problems, *checked.uncovered):
            console.print(f"- {problem}", highlight=False, markup=False)
    else:
        what = (
            "weights, model and certificate agree"
            if path.is_dir()
            else "graph, weights, model and certificate agree"
            if path.suffix == ".onnx"
            else "the certificate is consistent"
        )
        console.print(f"holds: {claim(checked)}; {what}.", highlight=False, markup=False)
        if checked.limit:
            console.print(
                f"What epsilon is: {checked.limit}.", style="bold", highlight=False, markup=False
            )
        for what in checked.uncovered:
            console.print(
                f"not covered: {what}.", style="bold yellow", highlight=False, markup=False
            )
        if checked.condition:
            console.print(checked.condition, style="bold yellow", highlight=False, markup=False)
        if page is not None:
            console.print(
                "report.html is the page of this certificate: it was made again and is the same."
                if page
                else "report.html was NOT checked: it is another page than this version makes of "
                "these files alone. A quoted ledger or audit, another version, or a forgery differ. "
                f"Make your own: lastiterate report {path} --out mine.html",
                style="dim" if page else "bold yellow",
                highlight=False,
                markup=False,
            )
        if key is not None or chain:
            console.print(
                f"Every file is signed by the holder of {key or 'a certificate below the chain'}.",
                highlight=False,
                markup=False,
            )
        else:
            console.print(
                "No signature was checked (--key): whoever writes all files again passes, too."
                if path.is_dir()
                else "It is not signed: whoever writes all of it again passes, too.",
                style="dim",
                highlight=False,
            )
    if checked.problems:
        raise typer.Exit(1)


def _compare_page(path: Path, checked: CheckResult) -> bool | None:
    """Whether a folder's page is the one that follows from its files; ``None`` where there is no
    page, or the folder does not verify."""
    from lastiterate.release.folder import PAGE
    from lastiterate.report.page import is_page_of

    if not checked.holds or not (path / PAGE).is_file():
        return None
    return is_page_of(path, checked)


def claim(checked: CheckResult) -> str:
    """What a certificate that holds says, of which neighbours and of whom; one may hold and certify
    nothing."""
    if checked.epsilon is None:
        return f"it certifies no epsilon for {checked.protects}"
    other, neighbours = checked.epsilon_replace_one, checked.adjacency
    if neighbours != "replace-one" and other is not None:
        neighbours += f"; replace-one {format_rounded_up(other)}"
    return (
        f"epsilon {format_rounded_up(checked.epsilon)} at delta {checked.delta:g} ({neighbours}), "
        f"for {checked.protects}"
    )
