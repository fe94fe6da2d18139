"""`lastiterate schema`, `check`, `predict`, `verify` and `features`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastiterate.accounting.subjects import format_rounded_up
from lastiterate.atomic_files import SHARED, is_taken, whole_file, write_file
from lastiterate.cli.account import format_csv
from lastiterate.cli.app import (
    FILES,
    Header,
    Json,
    Out,
    Threshold,
    UnpackedLimit,
    app,
    console,
    emit,
    reports_errors,
)
from lastiterate.cli.train import ReadFile, bundle_flags
from lastiterate.errors import InputError

# ``lastiterate features``: images to features with a public backbone.

if TYPE_CHECKING:
    import numpy as np

OWN = "scattering"


@app.command("features")
@reports_errors
def features_command(
    images: Annotated[
        Path, typer.Argument(metavar="IMAGES", help="a .npz, .npy or IDX file of images")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            help="the .npz file to write, with its schema",
        ),
    ],
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone",
            help="scattering, torchvision:NAME, timm:NAME or a file",
        ),
    ] = OWN,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="local weights of torchvision's or timm's network"),
    ] = None,
) -> None:
    """Turn images into features with a public backbone.

    Every image is mapped on its own, so the features suit train.
    """
    import numpy as np

    from lastiterate.data.numpy_files import read_images
    from lastiterate.data.schema_template import array_template
    from lastiterate.data.table import FormatFacts
    from lastiterate.features import Scattering

    _check_target(out)
    if weights is not None and not backbone.startswith(("torchvision:", "timm:")):
        raise InputError(
            "weights", "are for a backbone of torchvision or timm", str(weights), "leave it out"
        )
    sets, run = (
        read_images(images),
        Scattering().apply if backbone == OWN else _extract_with_torch(backbone, weights),
    )

    arrays: dict[str, np.ndarray] = {}
    for each in sets:
        tail = f"_{each.part}" if len(sets) > 1 else ""
        arrays[f"x{tail}" if tail else "X"] = rows = run(each.pixels)
        if each.labels is not None:
            arrays[f"y{tail}"] = each.labels
        norm = float(np.linalg.norm(rows, axis=1).max())
        console.print(
            f"{each.part or 'images'}: {len(rows)} of {rows.shape[1]} features, largest norm "
            f"{norm:.3g}"
            + (
                " by construction"
                if backbone == OWN
                else ": measured on these images, choose --row-norm without looking"
            ),
            highlight=False,
        )
    facts = FormatFacts(
        -1, 1, "coefficients of a scattering transform, of norm 1 by construction", norm=1.0
    )
    _write(out, arrays, array_template(facts if backbone == OWN else None))
    console.print(
        f'{out.with_suffix(".toml")}: the schema that train reads; facts marked "?" are left '
        "to fill in",
        highlight=False,
    )


def _write(out: Path, arrays: dict[str, np.ndarray], schema: str) -> None:
    """Write the rows and, next to them, their schema, or nothing."""
    import numpy as np

    facts = out.with_suffix(".toml")
    write_file(facts, schema.encode(), new=True, mode=SHARED)
    try:
        with whole_file(out, new=True, mode=SHARED) as file:
            np.savez(file, allow_pickle=False, **arrays)
    except BaseException:
        facts.unlink(missing_ok=True)
        raise


def _check_target(out: Path) -> None:
    """Refuse what cannot be written, before the work."""
    if out.suffix != ".npz":
        raise InputError("out", "must end in .npz", out.name)
    for path in (out, out.with_suffix(".toml")):
        if is_taken(path):
            raise InputError(
                "out",
                "must not exist yet, nor the schema file next to it",
                str(path),
                "choose another name",
            )
    if not out.parent.is_dir():
        raise InputError("out", "must lie in an existing folder", str(out), "make the folder first")


def _extract_with_torch(backbone: str, weights: Path | None) -> Callable[..., np.ndarray]:
    """The features of a network of torch, which only who asks for it loads."""
    try:
        torch = import_module("lastiterate.torch.backbone")
    except ImportError:
        raise InputError(
            "backbone", f"other than {OWN} needs torch", backbone, "pip install torch"
        ) from None
    return partial(torch.features, torch.backbone_of(backbone, weights))


# ``lastiterate schema``, ``check``, ``predict`` and ``verify``: data and models in files.

if TYPE_CHECKING:
    from lastiterate.accounting.comparison import Checked


@app.command("schema")
@reports_errors
def schema_command(
    file: Annotated[str, typer.Argument(help=FILES)],
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="kinds of columns: age:number,job:category,id:ignore"),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="the column to predict; by default the last")
    ] = None,
    header: Header = None,
    no_header: Annotated[
        bool,
        typer.Option("--no-header", help="the file has no header: --columns names all columns"),
    ] = False,
    like: Annotated[
        Path | None, typer.Option("--like", help="copy entries from this schema")
    ] = None,
    from_public_sample: Annotated[
        str | None,
        typer.Option(
            "--from-public-sample",
            help="guess kinds from a public file with the same columns",
        ),
    ] = None,
    decimal: Annotated[
        str | None, typer.Option("--decimal", help='how the file writes 1.5: "." or ","')
    ] = None,
    dates: Annotated[
        str | None,
        typer.Option("--dates", help="how it writes days: day.month.year or month/day/year"),
    ] = None,
    wizard: Annotated[
        bool, typer.Option("--wizard", help="ask for every public fact (reads no cell)")
    ] = False,
    out: Out = None,
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Write a schema of public facts to fill in.

    It takes the names of columns, and the types that a Parquet file states; it reads no record.
    """
    from lastiterate.cli import flags
    from lastiterate.data import Schema, schema_template
    from lastiterate.run import strict_toml

    known = strict_toml.read(like, "schema") if like is not None and Schema.read(like) else None
    stated = False if no_header else flags.header(header)
    text = schema_template(
        file,
        columns=columns,
        header=stated,
        like=known,
        sample=from_public_sample,
        ask=_ask if wizard else None,
        target=target,
        decimal=decimal,
        dates=dates,
    )
    emit(text, out)
    if out is not None:
        left = sum(line.split("#")[0].count('"?"') for line in text.splitlines())
        console.print(
            f"{out}: " + (f"{left} public facts are left to fill in" if left else "complete"),
            highlight=False,
        )


def _ask(question: str, choices: Sequence[str]) -> str:
    """One answer on the terminal; one of ``choices``, if there are any."""
    while True:
        answer = typer.prompt(question, default="", show_default=False, err=True).strip()
        if not choices or answer in choices or (answer == "" and "[" in question):
            return answer
        meant = [choice for choice in choices if choice.casefold() == answer.casefold()]
        if set(choices) == {"yes", "no"}:
            meant = [choice for choice in choices if choice[0] == answer.casefold()] or meant
        if len(meant) == 1:
            return meant[0]
        typer.echo("one of: " + ", ".join(choices), err=True)


@app.command("check")
@reports_errors
@bundle_flags
def check_command(asked: ReadFile) -> None:
    """Check before a charge that train can read a file.

    It reads the file as train does. It trains nothing, charges nothing and writes nothing.

    Exit code 1 if the file does not fit its schema, 2 if it cannot be opened.
    """
    from lastiterate.data import Table, check_readable
    from lastiterate.release import dataset

    schema, units = asked.read_schema(), asked.units()
    stream = asked.stream or dataset.too_large(asked.data) is not None
    if schema is not None:
        check_readable(asked.data)  # a file that is not there does not fail to fit
    used = None
    try:
        file = dataset.open_file(asked.data, schema, units=units, stream=stream)
        used = file.table
        faults = file.map_rows(file.schema, test=None, row_norm=None).find_faults()
    except InputError as error:
        if not error.argument.startswith(("data file", "column", "target")):
            raise
        faults = [error]
    said = f"{asked.data} does not fit the schema:" if faults else f"{asked.data} fits the schema."
    console.print(said, highlight=False, markup=False, style="bold red" if faults else None)
    for fault in faults:
        console.print(f"- {fault}", highlight=False, markup=False, soft_wrap=True)
    if faults:
        console.print("Record 1 is the first one, under the header of a table.", highlight=False)
    if units is not None and isinstance(used, Table) and used.kept is not None:
        console.print(
            f"{len(used)} of {len(used.kept)} rows are used: the first {units.rows} of each "
            f"{units.column}.",
            highlight=False,
            markup=False,
        )
    console.print(
        "This is about the private records: it is for the holder of the data, not to be published.",
        style="bold yellow",
        highlight=False,
    )
    if faults:
        raise typer.Exit(1)


@app.command("predict")
@reports_errors
def predict_command(
    model: Annotated[Path, typer.Argument(help="a folder that train wrote")],
    file: Annotated[str, typer.Argument(help="new records: a file as for train")],
    ids: Annotated[
        str | None,
        typer.Option(
            "--ids",
            help="the column to copy next to each prediction",
        ),
    ] = None,
    threshold: Threshold = None,
    header: Header = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            help="require probabilities; warn if they are not calibrated",
        ),
    ] = False,
    out: Out = None,
    json_: Json = False,
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Write the predictions of a model as CSV.

    A row holds the label (or number) and the probability of each class, which train --calibrated
    calibrates.
    """
    from lastiterate.cli import flags, show
    from lastiterate.cli.flags import threshold as threshold_from
    from lastiterate.release import datafile
    from lastiterate.release.loading import load

    titles, rows = datafile.prediction_rows(
        load(model),
        file,
        ids=ids,
        threshold=threshold_from(threshold),
        probabilities=probabilities,
        header=flags.header(header),
    )
    if json_:
        emit(json.dumps(show.predictions(titles, rows), indent=2) + "\n", out)
        return
    emit(format_csv(titles, rows), out)


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


def _compare_page(path: Path, checked: Checked) -> bool | None:
    """Whether a folder's page is the one that follows from its files; ``None`` where there is no
    page, or the folder does not verify."""
    from lastiterate.release.folder import PAGE
    from lastiterate.report.page import is_page_of

    if not checked.holds or not (path / PAGE).is_file():
        return None
    return is_page_of(path, checked)


def claim(checked: Checked) -> str:
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
