"""`lastiterate features`, `schema` and `check`: records in files."""

from __future__ import annotations

import math
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastiterate import interrupts
from lastiterate.atomic_files import SHARED, is_taken, whole_file, write_file
from lastiterate.cli.app import (
    FILES,
    Header,
    Out,
    UnpackedLimit,
    app,
    console,
    emit,
    reports_errors,
)
from lastiterate.cli.flag_bundles import ReadFile, bundle_flags
from lastiterate.errors import InputError

if TYPE_CHECKING:
    import numpy as np


# ``lastiterate features``: images to features with a public backbone.


OWN = ("scattering", "patches")
"""Maps of this package; others are networks."""


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
            help="the .npz or .npy file to write, with its schema",
        ),
    ],
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone",
            help="patches, torchvision:N, timm:N, FILE",
        ),
    ] = OWN[0],
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="local weights of torchvision's or timm's network"),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", help="bytes it may take: 1GB; default: a quarter of free"),
    ] = None,
    unpacked_limit: UnpackedLimit = None,
) -> None:
    """Turn images into features with a public backbone.

    Every image is mapped on its own, so the features suit train. Images are read, and rows
    written, in pieces.
    """
    from lastiterate.cli import run_flags
    from lastiterate.data.binary_files import read_images
    from lastiterate.data.file_stream import FileSnapshot
    from lastiterate.data.schema_template import array_template
    from lastiterate.data.table import FormatFacts
    from lastiterate.release.data_file import MemoryBound

    _check_target(out)
    if weights is not None and not backbone.startswith(("torchvision:", "timm:")):
        raise InputError(
            "weights", "are for a backbone of torchvision or timm", str(weights), "leave it out"
        )
    bound = MemoryBound(None if memory is None else run_flags.parse_bytes("--memory", memory))
    sets, run = (
        read_images(images),
        partial(_map_images, backbone)
        if backbone in OWN
        else _extract_with_torch(backbone, weights),
    )
    if out.suffix == ".npy" and len(sets) > 1:
        raise InputError(
            "out",
            f"must end in .npz where a file holds {len(sets)} sets of images",
            out.name,
            "only .npz holds several arrays",
        )
    found = FileSnapshot.of(images)
    for each in sets:
        for _ in each.pieces(_count_at_once(each.shape, bound.most)):  # refuses what is no pixel
            interrupts.check()
    facts = FormatFacts(-1, 1, f"rows of the map {backbone}, of norm 1 by construction", norm=1.0)
    schema, said = array_template(facts if backbone in OWN else None), list[str]()

    def write_rows(write: Write) -> None:
        for each in sets:
            tail = f"_{each.part}" if len(sets) > 1 else ""
            mapped = map(run, each.pieces(_count_at_once(each.shape, bound.most)))
            width, norm = write(f"x{tail}" if tail else "X", len(each), mapped)
            if each.labels is not None:
                write(f"y{tail}", len(each), iter([each.labels]))
            said.append(
                f"{each.part or 'images'}: {len(each)} of {width} features, largest norm {norm:.3g}"
                + (
                    " by construction"
                    if backbone in OWN
                    else ": measured on these images, choose --row-norm without looking"
                )
            )
        found.check()

    _write(out, write_rows, schema)
    for line in said:
        console.print(line, highlight=False)
    console.print(
        f'{out.with_suffix(".toml")}: the schema that train reads; facts marked "?" are left '
        "to fill in",
        highlight=False,
    )


Write = Callable[[str, int, "Iterator[np.ndarray]"], tuple[int, float]]
"""Writes an array of a name, so many records in pieces; the numbers of one, and the largest norm."""
PIECE, MOST, TOGETHER = 2**25, 1024, 64
"""Bytes of pixels that are mapped at once, and images, at most; images in multiples of so many,
where several fit."""
COPIES = 16
"""Parts of the memory for records of which one may be pixels: others are their copies, and rows."""


def _count_at_once(shape: tuple[int, ...], memory: float) -> int:
    """Images of ``shape`` (n, height, width, channels) that are mapped at once."""
    size = 4 * math.prod(shape[1:])
    many = max(1, min(MOST, int(min(PIECE, memory / COPIES)) // size))
    return many if many < TOGETHER else many // TOGETHER * TOGETHER


def _map_images(name: str, images: np.ndarray) -> np.ndarray:
    """Rows of a public map, as large as it is for any budget."""
    from lastiterate.features import Patches, Scattering
    from lastiterate.features.record_fields import Grid

    if name == Patches.name:
        return Patches.for_budget((Grid("images", images.shape[1:]),), math.inf).apply(images)
    return Scattering().apply(images)


def _write_array(file: Any, count: int, pieces: Iterator[np.ndarray]) -> tuple[int, float]:
    """Write the ``count`` records of pieces as an array in NumPy's format; the numbers of a record,
    and the largest norm."""
    import numpy as np

    first, norm = next(pieces), 0.0
    head = np.lib.format.header_data_from_array_1_0(first) | {
        "fortran_order": False,
        "shape": (count, *first.shape[1:]),
    }
    np.lib.format.write_array_header_1_0(file, head)
    for part in chain([first], pieces):
        interrupts.check()
        file.write(np.ascontiguousarray(part).tobytes())
        if part.ndim == 2:
            norm = max(norm, float(np.linalg.norm(part, axis=1).max()))
    return math.prod(first.shape[1:]), norm


def _write(out: Path, write_rows: Callable[[Write], None], schema: str) -> None:
    """Write the rows and, next to them, their schema, or nothing; of a .npy file the labels too."""
    try:
        with ExitStack() as stack:  # temporary files, where a Ctrl-C may stop the work
            held = dict[str, Any]()

            def open_file(name: str) -> Any:
                held[name] = stack.enter_context(tempfile.TemporaryFile(dir=out.parent))
                return held[name]

            if out.suffix == ".npy":
                write_rows(lambda name, *given: _write_array(open_file(name), *given))
            else:
                with zipfile.ZipFile(open_file("X"), "w") as archive:

                    def add_array(name: str, *given: Any) -> tuple[int, float]:
                        with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                            return _write_array(file, *given)

                    write_rows(add_array)
            with interrupts.later():
                _name_files(out, schema, held)
    except OSError as error:
        raise OSError(
            error.errno, error.strerror or str(error), error.filename or str(out)
        ) from None


def _name_files(out: Path, schema: str, held: dict[str, Any]) -> None:
    """Copy complete files to their names, all of them or none, that of the rows last."""
    named = _list_targets(out)
    made = [named.pop("schema")]
    write_file(made[0], schema.encode(), new=True, mode=SHARED)
    try:
        for name, content in reversed(held.items()):
            content.seek(0)
            with whole_file(named[name], new=True, mode=SHARED) as file:
                copyfileobj(content, file)
            made.append(named[name])
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


def _list_targets(out: Path) -> dict[str, Path]:
    """Every file that may be written, by what is in it."""
    from lastiterate.data.binary_files import labels_file

    labels = {"y": labels_file(out)} if out.suffix == ".npy" else {}
    return {"X": out, "schema": out.with_suffix(".toml")} | labels


def _check_target(out: Path) -> None:
    """Refuse what cannot be written, before the work."""
    if out.suffix not in (".npz", ".npy"):
        raise InputError("out", "must end in .npz or .npy", out.name)
    for path in _list_targets(out).values():
        if is_taken(path):
            raise InputError(
                "out",
                "must not exist yet, nor the files of its schema and labels next to it",
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
            "backbone", f"other than {' and '.join(OWN)} needs torch", backbone, "pip install torch"
        ) from None
    return partial(torch.features, torch.backbone_of(backbone, weights))


# ``lastiterate schema``, ``check``, ``predict`` and ``verify``: data and models in files.


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
            help="guess kinds from a public file of these columns",
        ),
    ] = None,
    decimal: Annotated[
        str | None, typer.Option("--decimal", help='how the file writes 1.5: "." or ","')
    ] = None,
    dates: Annotated[
        str | None,
        typer.Option("--dates", help="its days: day.month.year or month/day/year"),
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
    from lastiterate.cli import run_flags
    from lastiterate.data import Schema, schema_template
    from lastiterate.run import serialization

    known = (
        serialization.read_toml(like, "schema") if like is not None and Schema.read(like) else None
    )
    stated = False if no_header else run_flags.header(header)
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
    from lastiterate.cli.tables import about_wide_columns, describe_protection
    from lastiterate.data import check_readable
    from lastiterate.release import data_file
    from lastiterate.release.file_training import ABOUT_DATA, find_reading_faults
    from lastiterate.release.units import find_id_columns

    schema, units = asked.read_schema(), asked.units()
    stream = asked.stream or data_file.is_array_too_large(asked.data, data_file.MemoryBound())
    if schema is not None:
        check_readable(asked.data, schema)  # a file that is not there does not fail to fit
    file = None
    try:
        file = data_file.open_file(asked.data, schema, units=units, stream=stream)
        faults = find_reading_faults(file, asked.model)
    except InputError as error:
        if not error.argument.startswith(ABOUT_DATA):
            raise
        faults = [error]
    said = f"{asked.data} does not fit the schema:" if faults else f"{asked.data} fits the schema."
    console.print(
        said,
        highlight=False,
        markup=False,
        style="bold red" if faults else None,
        soft_wrap=True,  # a path is one word
    )
    for fault in faults:
        console.print(f"- {fault}", highlight=False, markup=False, soft_wrap=True)
    if faults:
        console.print("Record 1 is the first one, under the header of a table.", highlight=False)
    if schema is not None and not faults and (wide := about_wide_columns(schema)):
        console.print(f"{wide}.", highlight=False, markup=False)
    kept = None if file is None else file.records.kept
    if units is not None and kept is not None:
        console.print(
            f"{kept.sum()} of {len(kept)} rows are used: the first {units.rows} of each "
            f"{units.column}.",
            highlight=False,
            markup=False,
        )
    if units is None and not faults and (ids := find_id_columns(schema)):
        console.print(
            f"{describe_protection(ids)}; without it, single rows are protected.",
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
