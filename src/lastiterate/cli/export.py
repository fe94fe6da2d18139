"""`lastiterate export`, `sign`, `report` and `explore`."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate import interrupts
from lastiterate.atomic_files import SHARED, is_taken, write_file, write_folder
from lastiterate.cli.app import (
    Delta,
    Out,
    Trust,
    app,
    console,
    list_on_request,
    reports_errors,
    visible,
)
from lastiterate.cli.run_flags import first_words
from lastiterate.errors import InputError
from lastiterate.run.validation import check_choice

if TYPE_CHECKING:
    from lastiterate.report.subject import ReportSource

# ``lastiterate explore``: the accountant behind sliders, on this machine alone.


@app.command("explore")
@reports_errors
def explore_command(
    port: Annotated[int, typer.Option("--port", help="the port; 0 takes a free one")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="open the page in a browser")
    ] = True,
) -> None:
    """Open a local page to explore epsilon with sliders.

    Ctrl-C ends it.
    """
    import webbrowser

    from lastiterate.report.explore import serve, warm

    server = serve(port)
    warm()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    console.print(f"{address} (this machine only; Ctrl-C ends it)", highlight=False, markup=False)
    if browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        interrupts.mark_answered()
        console.print("ended", highlight=False)
    finally:
        server.server_close()


# ``lastiterate export`` and ``sign``: a release in other people's forms, and under somebody's name.


def list_formats() -> dict[str, str]:
    """Formats by name, each with what it is."""
    from lastiterate.report.exports import ALL_FORMATS

    return {name: first_words(form) for name, form in ALL_FORMATS.items()}


def _name_format(form: str) -> str:
    """What a format is, in a few words: an acronym, a standard, or the model."""
    words = re.split(r"[,:;] ", list_formats()[form])[0].rstrip(".")
    first, _, rest = words.partition(" ")
    return f"{first.lower()} {rest}" if first in ("A", "An", "The") else words


@app.command("export")
@reports_errors
def export_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="a folder that train wrote")],
    form: Annotated[
        str,
        typer.Option(
            "--to",
            "--format",
            help="onnx, mlflow, nist ...; list shows all",
            callback=list_on_request(list_formats),
            is_eager=True,
        ),
    ],
    out: Out = None,
    audit: Annotated[
        Path | None,
        typer.Option("--audit", help="output of audit --json (default audit.json)"),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="the ledger that the model was charged to")
    ] = None,
) -> None:
    """Write the release as ONNX, a model card or another form.

    A text goes to standard output, or to --out; onnx, safetensors, skops and sklearn need a file
    there, and mlflow, huggingface and sacro the name of a new folder.
    """
    from lastiterate.release.folder import check_ending
    from lastiterate.report.exports import ALL_FORMATS, ENDINGS, MODEL_FORMATS, export_files
    from lastiterate.report.subject import read

    check_choice("--to", form, ALL_FORMATS)
    subject = read(model, audit=audit, ledger=ledger)
    if not subject.checked.holds:
        raise InputError(
            "model",
            "must verify before it is exported",
            subject.checked.problems[0],
            "lastiterate verify lists everything",
        )
    if subject.ledger is not None and subject.ledger.problems:
        raise InputError(
            "ledger",
            f"must hold before it is quoted: {subject.ledger.problems[0]}",
            str(ledger),
            "restore it from a copy, or leave it out",
        )
    if subject.body["epsilon"] is None:
        raise InputError("model", "must be certified before it is exported", None)
    if out is None and form in MODEL_FORMATS:
        raise InputError("out", "is needed for a model", None, "name a file or folder with --out")
    if out is not None:
        check_ending("out", out, ENDINGS.get(form, ""))
    made = export_files(subject, form, model)
    if len(made) > 1 and out is None:
        raise InputError(
            "out",
            "is needed: the form has several files",
            ", ".join(made),
            "name a folder with --out",
        )
    if out is None:
        sys.stdout.write(visible(next(iter(made.values())).decode()))
        sys.stdout.flush()
        return
    if is_taken(out):
        raise InputError("out", "must not exist yet", str(out), "choose another name")
    with interrupts.later():
        if len(made) > 1:
            write_folder(out, made)
        else:
            write_file(out, next(iter(made.values())), new=True, mode=SHARED)
        interrupts.say(f"{out} is written")
    what = f": {', '.join(made)}" if len(made) > 1 else f" ({_name_format(form)})"
    console.print(f"{out} is written{what}", highlight=False, markup=False, soft_wrap=True)
    if form in ENDINGS:
        from lastiterate.estimators.released_estimators import explain_loading

        console.print(explain_loading(out), highlight=False, markup=False, soft_wrap=True)


@app.command("sign")
@reports_errors
def sign_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="a folder that train wrote")],
    key: Annotated[
        Path,
        typer.Option(
            "--key",
            help="a private key (PEM, elliptic curve)",
        ),
    ],
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="the key's certificate")
    ] = None,
    chain: Annotated[
        list[Path] | None, typer.Option("--chain", help="certificates that vouch for it")
    ] = None,
) -> None:
    """Sign a model folder with your own key.

    verify --key then finds any later change.
    """
    from lastiterate.release.verification import sign

    where = sign(model, key=key, certificate=certificate, chain=chain or [])
    console.print(f"{where}: signs every other file of the folder", highlight=False, markup=False)


# ``lastiterate report``: the release document as one HTML file.


def _write_own_page(folder: Path, subject: ReportSource, *, replacing: bool, quotes: bool) -> bytes:
    """Write the page into its own folder and return it; ``quotes``: whether a ledger was given.

    The list of a folder that does not verify stays as it is, so that the folder does not verify
    afterwards either.
    """
    from lastiterate.release.folder import PAGE, SIGNATURE, add, holds, lists, sha256
    from lastiterate.report import execution_section, page

    where, verified = folder / PAGE, subject.checked.holds and not subject.refuted
    quoted = holds(folder, PAGE) and execution_section.QUOTED.encode() in where.read_bytes()
    if verified and quoted and not quotes:
        raise InputError(
            "ledger",
            "is needed: the page that would be replaced quotes one",
            None,
            "name it with --ledger, or write a page elsewhere with --out"
            + ("" if subject.signed else f", or remove {where} first"),
        )
    text = page.page(replace(subject, signed=False) if verified else subject).encode()
    if verified and subject.signed and not lists(folder, PAGE, sha256(text)):
        raise InputError(
            "model",
            "must not be signed when its page is replaced: the signature would not fit any more",
            str(folder / SIGNATURE),
            "write a page elsewhere with --out, or remove the signature, make the page, sign again",
        )
    if subject.checked.holds:
        add(folder, PAGE, text, replacing=replacing)
    else:  # no page stays that says of a failing release that it is verified
        write_file(where, text, new=not replacing)
    return text


@app.command("report")
@reports_errors
def report_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_DIR|CERT.json|RUN.json",
            help="a model folder, a certificate, or a run",
        ),
    ],
    out: Out = None,
    audit: Annotated[
        Path | None,
        typer.Option("--audit", help="output of audit --json (default audit.json)"),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", help="quote the model's line of this ledger"),
    ] = None,
    delta: Delta = 1e-5,
    trust_constants: Trust = False,
    force: Annotated[bool, typer.Option("--force", help="replace an existing page")] = False,
) -> None:
    """Write one offline HTML page about a release.

    Exit code 1 if the release or its ledger does not verify, or an audit refutes it.

    --delta and --trust-constants are for a run; a certificate has its own.
    """
    from lastiterate.release.folder import PAGE, PAGE_DIFFERS, SIGNATURE, describe_failure
    from lastiterate.report import page
    from lastiterate.report.subject import read
    from lastiterate.run.facts import Evidence

    where = out if out is not None else path / PAGE if path.is_dir() else path.with_suffix(".html")
    own = path / PAGE if path.is_dir() else None
    in_folder = own is not None and where.parent.resolve() / where.name == path.resolve() / PAGE
    taken = is_taken(where) and not (force and where.is_file())
    refusal = InputError(
        "out",
        "must not exist yet",
        str(where),
        "name another file with --out"
        + (
            ""
            if in_folder and (path / SIGNATURE).exists()
            else ", or replace this one with --force"
        ),
    )
    if taken and not (in_folder and where.is_file()):
        raise refusal
    read_subject = partial(
        read,
        path,
        audit=audit,
        delta=delta,
        ledger=ledger,
        min_evidence=Evidence.ASSUMED if trust_constants else Evidence.ENFORCED,
    )
    subject = read_subject()
    changed = in_folder and subject.checked.problems == (PAGE_DIFFERS,)
    if changed:  # everything else is as it was written: the right page can be made at once
        subject = read_subject(page=False)
    fails = subject.refuted or not subject.checked.holds
    if taken and not fails and not changed:
        raise refusal
    if in_folder:
        text = _write_own_page(path, subject, replacing=force or taken, quotes=ledger is not None)
    else:
        text = page.page(subject).encode()
        write_file(where, text, new=not force)
    if changed:
        console.print(
            f"{PAGE_DIFFERS}: it was replaced. The new page quotes "
            + (
                f"{ledger}." if ledger is not None else "no ledger: --ledger FILE --force adds one."
            ),
            highlight=False,
            markup=False,
        )
    console.print(f"{where}: {len(text) / 1000:.0f} kB", highlight=False, markup=False)
    if fails:
        console.print(
            "an audit refutes the certificate"
            if subject.refuted
            else describe_failure(subject.checked.problems, subject.checked.unsigned),
            style="bold red",
            highlight=False,
            markup=False,
        )
        if (
            own is not None
            and not in_folder
            and own.is_file()
            and b'class="banner bad"' not in own.read_bytes()
        ):
            console.print(
                f"{own} is older and may not say so: lastiterate report {path} replaces it",
                highlight=False,
                markup=False,
            )
        raise typer.Exit(1)
    if subject.ledger is not None and subject.ledger.problems:
        console.print(
            f"{ledger} does not hold, and the page says so: lastiterate ledger verify {ledger}",
            style="bold red",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)
