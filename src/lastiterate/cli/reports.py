"""``lastiterate report``: the release document as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lastiterate.atomic_files import is_taken, write_file
from lastiterate.cli.screen import Delta, Out, Trust, app, console, reports_errors
from lastiterate.errors import InputError


@app.command("report")
@reports_errors
def report_command(
    path: Annotated[Path, typer.Argument(metavar="MODEL_DIR|CERT.json|RUN.json", help="a folder that train wrote, a "
                                         "certificate, or a run")],
    out: Out = None,
    audit: Annotated[Path | None, typer.Option("--audit", help="what audit --json printed; default: audit.json in the "
                                               "folder")] = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="the ledger that the model was charged to: its line "
                                                "is quoted")] = None,
    delta: Delta = 1e-5,
    trust_constants: Trust = False,
    force: Annotated[bool, typer.Option("--force", help="replace a page that is there")] = False,
) -> None:
    """One offline HTML page about a release; exit code 1 when it does not verify, or an audit refutes it.

    --delta and --trust-constants are for a run; a certificate has its own.
    """
    from lastiterate.release.manifest import PAGE, add
    from lastiterate.report import page
    from lastiterate.report.subject import read
    from lastiterate.run.evidence import Evidence

    where = out if out is not None else path / PAGE if path.is_dir() else path.with_suffix(".html")
    if is_taken(where) and not (force and where.is_file()):
        raise InputError("out", "must not exist yet", str(where), "name another file with --out, or replace this one "
                         "with --force")
    subject = read(path, audit=audit, delta=delta, ledger=ledger,
                   at_least=Evidence.ASSUMED if trust_constants else Evidence.ENFORCED)
    text = page.page(subject).encode()
    if path.is_dir() and where.parent.resolve() / where.name == path.resolve() / PAGE:
        add(path, PAGE, text, replacing=force)
    else:
        write_file(where, text, new=not force)
    console.print(f"{where}: {len(text) / 1000:.0f} kB", highlight=False, markup=False)
    if subject.refuted or not subject.checked.holds:
        console.print("[bold red]the certificate does not hold[/bold red]" if not subject.refuted else
                      "[bold red]an audit refutes the certificate[/bold red]")
        raise typer.Exit(1)
