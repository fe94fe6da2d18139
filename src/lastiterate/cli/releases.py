"""``lastiterate export`` and ``sign``: a release in other people's forms, and under somebody's name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lastiterate import interrupts
from lastiterate.atomic_files import SHARED, is_taken, whole_folder, write_file
from lastiterate.cli.screen import Out, app, console, reports_errors
from lastiterate.cli.terminal import visible
from lastiterate.errors import InputError

FORMS = ("model-card (Hugging Face), registry (OpenDP), scai (in-toto), sacro, bibtex, cyclonedx, spdx; evidence for "
         "guidelines: nist (SP 800-226), edpb (Opinion 28/2024), w3c")
"""What ``report.exports.FORMATS`` holds, in words."""


@app.command("export")
@reports_errors
def export_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="a folder that train wrote")],
    form: Annotated[str, typer.Option("--format", help=FORMS)],
    out: Out = None,
    audit: Annotated[Path | None, typer.Option("--audit", help="what audit --json printed; default: audit.json in the "
                                               "folder")] = None,
    ledger: Annotated[Path | None, typer.Option("--ledger", help="the ledger that the model was charged to")] = None,
) -> None:
    """The release in other people's forms: cards, entries of registries, bills of materials, evidence for guidelines.

    One file goes to standard output, or to --out; sacro writes a folder.
    """
    from lastiterate.report.exports import FORMATS, exported
    from lastiterate.report.subject import read

    if form not in FORMATS:
        raise InputError("--format", "must be one of " + ", ".join(FORMATS), form)
    subject = read(model, audit=audit, ledger=ledger)
    if not subject.checked.holds:
        raise InputError("model", "must verify before it is exported", subject.checked.problems[0],
                         "lastiterate verify lists everything")
    if subject.body["epsilon"] is None:
        raise InputError("model", "must be certified before it is exported", None)
    made = exported(subject, form)
    if len(made) > 1 and out is None:
        raise InputError("out", "is needed: the form has several files", ", ".join(made), "name a folder with --out")
    if out is None:
        sys.stdout.write(visible(next(iter(made.values()))))
        sys.stdout.flush()
        return
    if is_taken(out):
        raise InputError("out", "must not exist yet", str(out), "choose another name")
    with interrupts.later():
        if len(made) > 1:
            with whole_folder(out) as folder:
                for name, text in made.items():
                    write_file(folder / name, text.encode(), new=True, mode=SHARED)
        else:
            write_file(out, next(iter(made.values())).encode(), new=True, mode=SHARED)
        interrupts.say(f"{out} is written")
    console.print(f"{out}: {', '.join(made)}", highlight=False, markup=False)


@app.command("sign")
@reports_errors
def sign_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="a folder that train wrote")],
    key: Annotated[
        Path,
        typer.Option(
            "--key", help="a private key, PEM, elliptic curve; its password, if it has one, in LASTITERATE_KEY_PASSWORD"
        ),
    ],
    certificate: Annotated[Path | None, typer.Option("--certificate", help="a certificate of the key")] = None,
    chain: Annotated[list[Path] | None, typer.Option("--chain", help="certificates that vouch for it")] = None,
) -> None:
    """Sign a folder through model-signing, with a key of your own; verify --key finds any later change."""
    from lastiterate.release.loading import sign

    where = sign(model, key=key, certificate=certificate, chain=chain or [])
    console.print(f"{where}: signs every other file of the folder", highlight=False, markup=False)
