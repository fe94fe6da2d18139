"""Forget records of a data file: from a model's folder, the file and a list of ids make a new model."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lastiterate.accounting.certificate_subject import UNNAMED
from lastiterate.data import BUNDLED
from lastiterate.data.file_stream import TEXTS, Stream, Wanted
from lastiterate.data.record_source import EncodedSource
from lastiterate.data.table import Cells, CodedCells, Table, number_text
from lastiterate.errors import InputError
from lastiterate.planning.task import automatic_delta
from lastiterate.planning.unlearning_plans import PASSES, ForgettingPlan, certify_others
from lastiterate.release.data_file import (
    MemoryBound,
    is_array_too_large,
    open_file,
)
from lastiterate.release.folder import to_path
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.model_kinds import UNLEARNED
from lastiterate.release.pipeline import run_release
from lastiterate.release.reduced_data import check_classes, check_classes_of
from lastiterate.release.training_request import Progress
from lastiterate.release.units import Units, canonical_identifiers, plain_identifier, read_texts
from lastiterate.release.unlearning import (
    FittedUnlearned,
    check_forgets,
    find_places,
    make_order,
    plan_forgetting,
    read_training,
)
from lastiterate.release.verification import load

MOST_IDS = 10**7
"""Lines of a list of ids that are read."""


@dataclass(frozen=True, eq=False)
class ForgetResult:
    """The model, how it was planned, what a later request for ``reserve`` more records is predicted
    to take, and what a record that stays has paid by these steps alone (``steps``) and by
    everything (``whole``), at the model's delta; ``unit``: the column of the persons who were
    forgotten, each with one row, or ""."""

    model: FittedUnlearned
    plan: ForgettingPlan
    reserve: int
    later: ForgettingPlan | None
    steps: float | None
    whole: float | None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Request:
    """``remove``: a file with one id a line, of the column ``ids``, or numbers of records from 1
    on; ``unit``: the column that names the person of a row, where training kept one row of each; by
    default the one that the model's certificate names;
    ``reserve``: records that may have to be forgotten later; ``header``: whether the data
    file's first row is a header; ``memory``: bytes that the command may take, else a file is read
    in pieces, with scratch files in the folder ``scratch``; ``notice``: is called with a sentence that says so."""

    model: str | Path
    data: str
    remove: Path
    epsilon: float
    delta: float | None = None
    ids: str | None = None
    unit: str | None = None
    passes: int = PASSES[-1]
    reserve: int = 0
    header: bool | None = None
    memory: int | None = None
    scratch: Path | None = None
    notice: Callable[[str], None] | None = None


def forget_file(
    asked: Request, *, charging: Charging, progress: Progress | None = None
) -> ForgetResult:
    """Forget records of a file. ``charging``: is charged for those who stay; the caller finishes
    it."""
    model = load(asked.model)
    check_forgets(model, delta=asked.delta, data=asked.data)
    before = read_training(model, (), (), None)
    if before.schema is None and asked.data not in BUNDLED:
        raise InputError(
            "model",
            "does not say how the records of a file become rows",
            model.kind,
            "forget in Python, from arrays: lastiterate.forget",
        )
    schema = (
        None
        if asked.data in BUNDLED or before.schema is None
        else before.schema.with_header(asked.header)
    )
    named = model.certificate.unit
    column = (None if named in ("", UNNAMED) else named) if asked.unit is None else asked.unit
    bound = MemoryBound(asked.memory)
    units = None if column is None else Units(column, 1)
    too_large = is_array_too_large(asked.data, bound)
    file = open_file(asked.data, schema, units=units, stream=too_large)
    if column is not None:
        charging.check_unit(column, file.schema)
    file = file.map_rows(file.schema, test=None, row_norm=None)
    in_pieces = isinstance(file.table, EncodedSource) and not bound.covers(file.memory)
    data = file.table if isinstance(file.table, EncodedSource) and in_pieces else file.rows
    count = len(data if isinstance(data, EncodedSource) else data[1])
    gone = find_places(_locate_records(asked, file.records, count, column), count)
    classes = 0 if file.schema.regression else len(file.schema.classes)
    if isinstance(data, EncodedSource):
        check_classes_of(data, gone, classes)
    else:
        check_classes(data[1], gone, classes)
    delta = automatic_delta(before.training.n) if asked.delta is None else asked.delta
    plan = plan_forgetting(before, len(gone), epsilon=asked.epsilon, delta=delta, most=asked.passes)
    if in_pieces and asked.notice is not None:
        needed = f"its rows need about {file.memory / 1e9:.3g} GB of memory"
        asked.notice(f"the file is read piece by piece: {needed}, and {bound.words}")
    later = (
        None
        if not asked.reserve
        else plan_forgetting(
            replace(before, earlier=plan.subject.requests),
            asked.reserve,
            epsilon=asked.epsilon,
            delta=delta,
            most=asked.passes,
        )
    )
    after = run_release(
        UNLEARNED,
        make_order(
            before,
            plan,
            data,
            gone,
            asked.epsilon,
            delta,
            charging,
            progress=progress,
            of_persons=file.who is not None,
            scratch=asked.scratch,
        ),
    )
    assert isinstance(after, FittedUnlearned)
    steps, whole = _paid(plan, delta)
    return ForgetResult(after, plan, asked.reserve, later, steps, whole, column or "")


def _paid(plan: ForgettingPlan, delta: float) -> tuple[float | None, float | None]:
    """Epsilon of a record that stays: by the steps of this request, and together with all before
    it."""
    steps, whole = plan.everybody_else(), certify_others(plan.subject)
    return (None if steps is None else steps.epsilon(delta)), (
        None if whole is None else whole.epsilon(delta)
    )


def _locate_records(
    asked: Request, table: Table | Stream, records: int, unit: str | None
) -> np.ndarray:
    """Return the positions of the records that a list names; every line must name one.

    ``unit``: the column of persons of whom the first rows are used.
    """
    try:
        lines = to_path(asked.remove, "remove").read_text(encoding="utf-8").split("\n", MOST_IDS)
    except (OSError, UnicodeDecodeError):
        raise InputError(
            "remove", "must be a text file with one id a line", asked.remove.name
        ) from None
    kept = [number for number, line in enumerate(lines, 1) if line.strip()]
    wanted = list(
        zip(
            kept,
            canonical_identifiers("remove", (lines[number - 1] for number in kept)),
            strict=True,
        )
    )
    if not wanted:
        raise InputError(
            "remove", "must name at least one record, one id a line", asked.remove.name
        )
    names = {one for _, one in wanted}
    if asked.ids is None:
        used = range(records) if table.kept is None else np.flatnonzero(table.kept).tolist()
        known = {
            str(place + 1): [number] for number, place in enumerate(used) if str(place + 1) in names
        }
    else:
        found = _find_in_column(table, asked.ids, names)
        if found is None:
            raise InputError(
                "ids",
                "must be a column of the data file",
                asked.ids,
                "leave it out for record numbers",
            )
        known = found
    missing = [number for number, one in wanted if one not in known]
    if missing:
        what = (
            "numbers of records, 1 for the first"
            if asked.ids is None
            else f"ids of the column {asked.ids}"
        )
        raise InputError(
            "remove",
            f"must name records of the data, by {what}: {len(missing)} of {len(wanted)} lines "
            f"do not, the first is line {missing[0]}",
            None,
            "is it the data set that was trained on?"
            if table.kept is None
            else f"training used the first row of every {unit} alone: name them with ids={unit}",
        )
    return np.array(sorted({place for _, one in wanted for place in known[one]}))


def _find_in_column(
    table: Table | Stream, ids: str, names: Set[str]
) -> dict[str, list[int]] | None:
    """The positions of every one of some identifiers in a column; of a file block by block. ``None``
    where there is no such column."""
    if isinstance(table, Table):
        column = read_texts(table, ids)
        return None if column is None else _find_names(column, names)
    if table.shape is not None or ids not in table.names:
        return None
    known, at, others = dict[str, list[int]](), 0, set[str]()
    plain = {plain_identifier(name) for name in names}
    for block in table.tables(TEXTS, wanted=Wanted(frozenset([ids]))):
        cells = (block.cells or {})[ids]
        for one, places in _find_names(cells, names, plain, others).items():
            known.setdefault(one, []).extend(at + place for place in places)
        at += len(block)
    canonical_identifiers("ids", [*known, *others])  # 7 in one block is 007 in another
    return known


def _find_names(
    column: Cells, names: Set[str], plain: Set[str] = frozenset(), others: set[str] | None = None
) -> dict[str, list[int]]:
    """The positions of every one of some identifiers in a column, of those that it holds.

    ``others`` gets the identifiers of other forms that are a number in ``plain``.
    """
    coded = column if isinstance(column, CodedCells) else None
    texts = column if coded is None else coded.texts
    texts = map(number_text, texts.tolist()) if isinstance(texts, np.ndarray) else texts
    found = dict[int, str]()
    for place, one in enumerate(canonical_identifiers("ids", texts)):
        if one and one in names:  # nobody is known by a missing identifier
            found[place] = one
        elif others is not None and one and plain_identifier(one) in plain:
            others.add(one)
    known = dict[str, list[int]]()
    if coded is None:
        places = found.items()
    else:
        at = np.flatnonzero(np.isin(coded.codes, list(found)))
        places = ((int(place), found[int(coded.codes[place])]) for place in at)
    for place, one in places:
        known.setdefault(one, []).append(place)
    return known
