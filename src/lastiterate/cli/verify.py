"""`lastiterate verify`: a certificate derived again, and a folder compared with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.cli.app import Json, app, console, reports_errors
from lastiterate.errors import InputError

if TYPE_CHECKING:
    from lastiterate.accounting.certificate_json import CheckResult


@app.command("verify")
@reports_errors
def verify_command(
    path: Annotated[Path, typer.Argument(help="model folder, an export of it, or a certificate")],
    key: Annotated[
        Path | None,
        typer.Option("--key", help="require the signature of this public key"),
    ] = None,
    chain: Annotated[
        list[Path] | None,
        typer.Option("--chain", help="require a signature below these certificates"),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="the ledger that the folder's page quotes"),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option("--audit", help="the audit that the folder's page shows"),
    ] = None,
    json_: Json = False,
) -> None:
    """Recompute a certificate and check a folder's hashes.

    Exit code 1 if the certificate or the ledger does not hold, or the page was changed.
    """
    from lastiterate.release.folder import describe_failure
    from lastiterate.release.verification import CARRIERS, verify

    checked = verify(path, key=key, chain=chain or ())
    page = _compare_page(path, checked, ledger, audit)
    damaged = _find_damage(ledger)
    changed = page is False and not damaged and _is_changed(path, ledger, audit)
    if damaged and not json_:
        _show_damage(ledger, damaged)
    if json_:
        print(
            json.dumps(
                {
                    "holds": checked.holds and not damaged,
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
                    "page_changed": changed,
                }
                | ({"ledger_problems": damaged} if ledger is not None else {})
                | ({"limit": checked.limit} if checked.limit else {})
                | ({"plugins": list(checked.plugins)} if checked.plugins else {}),
                indent=2,
            )
        )
    elif checked.problems:
        console.print(
            describe_failure(checked.problems, checked.unsigned),
            style="bold red",
            highlight=False,
            markup=False,
        )
        for problem in checked.problems:
            console.print(f"- {problem}", highlight=False, markup=False)
        for what in checked.uncovered:
            console.print(f"not covered: {what}.", highlight=False, markup=False)
    else:
        what = (
            "graph, weights, model and certificate agree"
            if path.suffix == ".onnx" and not any("graph" in part for part in checked.uncovered)
            else "weights, model and certificate agree"
            if path.is_dir() or path.suffix in CARRIERS
            else "the certificate is consistent"
        )
        console.print(f"holds: {claim(checked)}; {what}.", highlight=False, markup=False)
        if checked.limit:
            console.print(
                f"What epsilon is: {checked.limit}{_describe_others(path, checked)}.",
                style="bold",
                highlight=False,
                markup=False,
            )
        for what in checked.uncovered:
            console.print(
                f"not covered: {what}.", style="bold yellow", highlight=False, markup=False
            )
        for part in checked.plugins:
            console.print(
                f"from outside: {part}.", style="bold yellow", highlight=False, markup=False
            )
        if checked.condition:
            console.print(checked.condition, style="bold yellow", highlight=False, markup=False)
        if page is not None:
            console.print(
                _describe_page(path, checked, None if damaged else ledger, audit)
                if page
                else UNCHECKED.format(_advise_own_page(path, None, audit))
                if damaged
                else CHANGED.format(_advise_own_page(path, ledger, audit))
                if changed
                else _explain_other_page(path, ledger, audit),
                style="dim" if page else "bold red" if changed else "bold yellow",
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
    if checked.problems or damaged or changed:
        raise typer.Exit(1)


UNCHECKED = (
    "report.html was NOT checked: the ledger that it may quote does not hold. Verify again with the "
    "restored ledger, or make your own page without one: {}"
)
CHANGED = (
    "report.html DIFFERS: this version makes another page of these files, and the page names no "
    "others. Do not rely on it. Make your own: {}"
)


def _show_damage(ledger: Path | None, problems: list[str]) -> None:
    """Say first that a ledger does not hold: nothing that follows from it counts."""
    console.print(f"{ledger} does not hold", style="bold red", highlight=False, markup=False)
    for problem in problems:
        console.print(f"- {problem}", highlight=False, markup=False)
    console.print(
        "Nothing that it says of other releases counts, and it is not charged: restore it from a "
        "copy.",
        highlight=False,
    )


def _is_changed(path: Path, ledger: Path | None, audit: Path | None) -> bool:
    """Whether a page that could not be made again names nothing that was missing for it."""
    from lastiterate.report.page import has_all_sources

    return has_all_sources(path, ledger=ledger, audit=audit)


def _find_damage(ledger: Path | None) -> list[str]:
    """What does not hold in a ledger that is named; nothing without one."""
    from lastiterate.ledger import Ledger

    return [] if ledger is None else list(Ledger(ledger).verify())


def _compare_page(
    path: Path, checked: CheckResult, ledger: Path | None, audit: Path | None
) -> bool | None:
    """Whether a folder's page is the one that follows from its files, and from the ledger and the
    audit that are named; ``None`` where there is no page, or the folder does not verify."""
    from lastiterate.release.folder import PAGE
    from lastiterate.report.page import is_page_of

    if not (path / PAGE).is_file():
        for name, given in (("ledger", ledger), ("audit", audit)):
            if given is not None:
                raise InputError(
                    name,
                    f"is compared with the page of a folder, and there is no {PAGE}",
                    str(given),
                    f"write the page, lastiterate report {path} --{name} {given}, or leave it out"
                    if path.is_dir()
                    else "leave it out",
                )
        return None
    return is_page_of(path, checked, ledger=ledger, audit=audit) if checked.holds else None


def _describe_page(
    path: Path, checked: CheckResult, ledger: Path | None, audit: Path | None
) -> str:
    """Say that a page is the right one, and what its quote of a ledger does not count."""
    from lastiterate.release.folder import SIGNATURE
    from lastiterate.report.page import count_later_releases

    said = "report.html is the page of this certificate: it was made again and is the same."
    later = 0 if ledger is None else count_later_releases(path, checked, ledger)
    if later == 0:
        return said
    more = "1 more release" if later == 1 else f"{later} more releases"
    said = f"{said} {ledger} has {more} now, which the page does not count: "
    if not (path / SIGNATURE).exists():
        return f"{said}{_report_words(path, ledger, audit)} --force"
    return (
        f"{said}{_advise_own_page(path, ledger, audit)}. The folder is signed: for a new page in it, "
        f"remove {SIGNATURE}, make the page with --force and sign again"
    )


def _explain_other_page(path: Path, ledger: Path | None, audit: Path | None) -> str:
    """Say why a page could not be compared or differs, and what to do."""
    from lastiterate.report.page import count_quoted_releases

    own = _advise_own_page(path, ledger, audit)
    if ledger is None and count_quoted_releases(path) is not None:
        return (
            "report.html was NOT checked: it quotes a ledger, which is not in the folder. Name it: "
            f"lastiterate verify {path} --ledger FILE. Or make your own: {own}"
        )
    if ledger is not None:
        return (
            f"report.html was NOT checked: it is another page than this version makes of these "
            f"files and {ledger}. It may show an audit (--audit FILE), the ledger or the version "
            f"may have changed since, or somebody changed the page. Make your own: {own}"
        )
    return (
        "report.html was NOT checked: it is another page than this version makes of these files "
        "alone. It may show an audit (--audit FILE), be of another version, or have been changed. "
        f"Make your own: {own}"
    )


def _describe_others(path: Path, checked: CheckResult) -> str:
    """What holds for the records that stay in a model that forgot others, as the end of a clause."""
    from lastiterate.accounting.unlearning import ADJACENCY, Unlearning
    from lastiterate.planning.unlearning_plans import describe_others
    from lastiterate.report.subject import read_verified

    if checked.adjacency != ADJACENCY or not path.is_dir():
        return ""
    source = read_verified(path, checked)[0]
    assert isinstance(source.certified.subject, Unlearning)
    return f"; for them: {describe_others(source.certified.subject, source.delta)}"


def _advise_own_page(path: Path, ledger: Path | None, audit: Path | None) -> str:
    """The command that writes a page outside the folder, of the same sources."""
    return f"{_report_words(path, ledger, audit)} --out mine.html"


def _report_words(path: Path, ledger: Path | None, audit: Path | None) -> str:
    """The command that makes a page of what was named."""
    named = (("--ledger", ledger), ("--audit", audit))
    return " ".join(
        [f"lastiterate report {path}", *(f"{flag} {at}" for flag, at in named if at is not None)]
    )


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
