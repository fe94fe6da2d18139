"""What names and types in a file contradict is refused before a ledger is charged."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastiterate.data import Schema
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.data_file import open_file
from lastiterate.release.file_training import fit_file, tune_file
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.training_request import Budget, TrainingRequest
from lastiterate.release.tuning import law_of

N = 400
RNG = np.random.default_rng(0)
AGE = RNG.uniform(0, 100, N)
DAYS = [datetime.date(2020, 1, 1 + i % 28) for i in range(N)]
GOOD = {
    "age": AGE,
    "day": DAYS,
    "job": ["cook", "clerk"] * (N // 2),
    "sick": ["yes" if a > 50 else "no" for a in AGE],
}
ENTRIES = {
    "target": "sick",
    "classes": ["no", "yes"],
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100},
        "day": {"kind": "date", "first": "2020-01-01", "last": "2020-02-01"},
        "job": {"kind": "category", "values": ["cook", "clerk"]},
    },
}
REGRESSION = {"target_range": [0, 1], "classes": []}
BAD = [
    (
        {"age": DAYS},
        {},
        "column 'age' must hold numbers, and by its type in the file it holds days",
    ),
    ({"age": pa.array([datetime.time(1)] * N)}, {}, "column 'age' must hold numbers.*times of day"),
    (
        {"age": pa.array([datetime.datetime(2020, 1, 1)] * N)},
        {},
        "column 'age' must hold numbers.*holds days",
    ),
    ({"age": pa.nulls(N)}, {}, "column 'age' must hold a value in every record"),
    (
        {"day": range(N)},
        {},
        "column 'day' must hold days, and by its type in the file it holds integers",
    ),
    ({"day": AGE}, {}, "column 'day' must hold days.*numbers"),
    ({"day": [True] * N}, {}, "'day'.*true/false"),
    ({"job": range(N)}, {}, "column 'job' must hold one of cook, clerk.*integers"),
    ({"job": [True] * N}, {}, "column 'job' must hold one of.*true/false"),
    ({"job": DAYS}, {}, "'job'.*holds days"),
    ({"job": pa.nulls(N)}, {}, "column 'job' must hold a value in every record"),
    ({"sick": [True, False] * (N // 2)}, {}, "target 'sick' must hold one of no, yes.*true/false"),
    ({"sick": range(N)}, {}, "target 'sick' must hold one of no, yes.*integers"),
    ({"sick": pa.nulls(N)}, {}, "target 'sick' must hold a value in every record"),
    ({"sick": DAYS}, REGRESSION, "target 'sick' must hold numbers.*holds days"),
    (
        {
            "sick": pa.array(["x"] * N).dictionary_encode(),
            "age": pa.array(DAYS).dictionary_encode(),
        },
        {},
        "'age'.*days",
    ),
    ({"sick": None}, {}, "target must be a column of the data file, got 'sick'"),
    (
        {"day": pa.array([0] * N, pa.timestamp("s", tz="Nowhere/Bad"))},
        {},
        "dates and times that can be written",
    ),
]


@pytest.fixture
def book(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    return ledger


def schema_of(changed):
    facts = {key: value for key, value in {**ENTRIES, **changed}.items() if value != []}
    return Schema.from_dict({**facts, "columns": {**facts["columns"], "note": {"kind": "ignore"}}})


def open_form(path, schema, **how):
    return open_file(str(path), schema, **how).map_rows(schema, test=None, row_norm=None)


def fit(path, schema, book, **more):
    return fit_file(
        TrainingRequest(
            data=str(path),
            schema=schema,
            budget=Budget(1.0, 1e-5),
            charging=Charging(ledger=book, dataset="d"),
            **more,
        )
    )


@pytest.mark.parametrize(("columns", "changed", "words"), BAD, ids=[words for *_, words in BAD])
def test_a_footer_that_contradicts_the_schema_costs_nothing(
    tmp_path, book, columns, changed, words
):
    given = {name: column for name, column in {**GOOD, **columns}.items() if column is not None}
    pq.write_table(pa.table(given), tmp_path / "t.parquet")
    for stream in (False, True):
        with pytest.raises(InputError, match=words) as error:
            fit(tmp_path / "t.parquet", schema_of(changed), book, stream=stream)
        assert "ledger" not in str(error.value) and not book.total("d").releases
    with pytest.raises(InputError, match=words):
        open_form(tmp_path / "t.parquet", schema_of(changed))
    if not changed:
        with pytest.raises(InputError, match=words):
            tune_file(
                TrainingRequest(
                    data=str(tmp_path / "t.parquet"),
                    budget=Budget(1.0, 1e-5),
                    schema=schema_of(changed),
                    charging=Charging(ledger=book, dataset="d"),
                ),
                law=law_of(2.0),
            )
        assert not book.total("d").releases


def test_types_that_can_be_what_the_schema_says_are_no_contradiction(tmp_path):
    """Text may hold numbers and days, true is 1, an unknown category may be allowed."""
    for columns, changed in (
        ({}, {}),
        ({"age": list(map(str, AGE)), "day": list(map(str, DAYS))}, {}),
        ({"age": [True] * N}, {}),
        (
            {"job": range(N)},
            {
                "columns": {
                    **ENTRIES["columns"],
                    "job": {"kind": "category", "values": ["cook"], "outside": "zero"},
                }
            },
        ),
        ({"sick": [0.0, 1.0] * (N // 2)}, {"classes": ["0", "1.0"]}),
        ({"sick": [True, False] * (N // 2)}, {"classes": ["True", "False"]}),
        ({"sick": [True, False] * (N // 2)}, REGRESSION),
    ):
        pq.write_table(pa.table({**GOOD, **columns}), tmp_path / "t.parquet")
        for stream in (False, True):
            file = open_form(tmp_path / "t.parquet", schema_of(changed), stream=stream)
            assert (
                len(next(iter(file.table.pieces(N)))[0]) == N if stream else len(file.rows[0]) == N
            )


def test_a_file_without_its_target_costs_nothing(tmp_path, book):
    (tmp_path / "t.csv").write_text(
        "age,job,day\n" + "".join(f"{a:.3f},cook,2020-01-02\n" for a in AGE)
    )
    np.savez(tmp_path / "a.npz", X=np.ones((N, 2)))
    np.save(tmp_path / "b.npy", np.ones((N, 2)))
    np.savez(tmp_path / "c.npz", X=np.ones((N, 2)), y=np.zeros(N, int))
    np.save(tmp_path / "e.npy", np.ones((N, 2)))
    np.save(tmp_path / "e.labels.npy", np.zeros(N, "M8[D]"))
    array = Schema.from_dict({"classes": ["no", "yes"], "array": {"low": 0, "high": 1}})
    for name, schema, words in (
        ("t.csv", schema_of({}), "target must be a column of the data file"),
        ("a.npz", array, "has no labels to learn from"),
        ("b.npy", array, "has no labels"),
        ("c.npz", array, "target 'y' must hold one of no, yes.*holds integers"),
        ("e.npy", array, "needs numbers or text as labels"),
    ):
        for stream in (False, True) if not name.endswith("z") else (False,):
            with pytest.raises(InputError, match=words) as error:
                fit(tmp_path / name, schema, book, stream=stream)
            assert "ledger" not in str(error.value) and not book.total("d").releases


def test_marks_of_missing_cells_cost_no_release(tmp_path, book):
    """A mark where the schema allows missing cells trains a model; another word is refused by its
    record alone."""
    marks = ["N/A", "n/a", "#N/A", "<NA>", "NaN", "NULL"]
    (tmp_path / "t.csv").write_text(
        "age,sick\n"
        + "".join(
            f"{marks[i % 6] if i % 7 == 0 else f'{a:.3f}'},{'yes' if a > 50 else 'no'}\n"
            for i, a in enumerate(AGE)
        )
    )
    schema = Schema.from_dict(
        {
            "target": "sick",
            "classes": ["no", "yes"],
            "columns": {"age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"}},
        }
    )
    assert fit(tmp_path / "t.csv", schema, book).model.run.n == N
    assert len(book.total("d").releases) == 1
