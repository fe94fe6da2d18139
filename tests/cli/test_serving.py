"""Predictions of a linear model where it is used: few imports, blocks of a file, forms of output."""

import csv
import gzip
import io
import json
import subprocess
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest

import lastiterate as li
from lastiterate import accounting, certificate_statement
from lastiterate.accounting.certificate import LATE, SUBJECTS
from lastiterate.cli.app import format_csv
from lastiterate.data import blocks, encode_features, read_table
from lastiterate.data.table import Table
from lastiterate.release.prediction import predict_blocks
from support import call

HEAVY = {"jax", "scipy", "sklearn", "cryptography"}
ROOMS = ("accounting", "curves", "theorems", "analysis", "planning", "ledger", "bayes")

SCHEMA = """
target = "y"
classes = ["no", "yes"]
[columns.who]
kind = "id"
[columns.age]
kind = "number"
low = 0
high = 90
missing = 30
[columns.dose]
kind = "number"
low = -1
high = 1
missing = "indicator"
[columns.town]
kind = "category"
values = ["Ulm", "Bonn", "1", "Köln, West"]
outside = "zero"
missing = "indicator"
[columns.seen]
kind = "date"
first = "2020-01-01"
last = "2024-12-31"
missing = "indicator"
"""


def records(n, seed=0):
    """Columns of ``n`` synthetic records as text cells, missing marks among them."""
    random = np.random.default_rng(seed)

    def mark(cells, marks):
        return [str(random.choice(marks)) if random.random() < 0.1 else str(cell) for cell in cells]

    days = np.datetime64("2019-06-01") + random.integers(0, 2500, n).astype("timedelta64[D]")
    towns = ["Ulm", "Bonn", "1", "1.0", "Köln, West", "Oslo"]
    return {
        "who": [f"p{i}" for i in range(n)],
        "age": mark(np.round(random.normal(45, 30, n), 1), ["", "NA", "n/a"]),
        "dose": mark(random.normal(size=n), ["", "null", "NaN"]),
        "town": mark(random.choice(towns, n), ["", "?"]),
        "seen": mark(days, ["", "None"]),
        "y": [str(label) for label in random.choice(["no", "yes"], n)],
    }


def write_csv(path, columns):
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        out.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table, its schema, and models of different maps."""
    place = tmp_path_factory.mktemp("serving")
    write_csv(place / "d.csv", records(300))
    (place / "d.toml").write_text(SCHEMA)
    train = ["train", place / "d.csv", "--epsilon", "2", "--features"]
    for features in ("plain", "curves", "bins", "curves,gated", "fourier"):
        quick = () if features == "fourier" else ("--algorithm", "noisy-gd")  # planned at once
        code, _, err = call(*train, features, *quick, "--out", place / features)
        assert code == 0, err
    return place


@pytest.fixture(scope="module")
def more(folder):
    """Models of text, of a selection, and one that forgot a record."""
    notes = {**records(300), "note": [f"a short text {i % 7}" for i in range(300)]}
    write_csv(folder / "t.csv", notes)
    (folder / "t.toml").write_text(SCHEMA + '[columns.note]\nkind = "text"\n')
    (folder / "gone.txt").write_text("p3\n")
    tune = ("tune", folder / "d.csv", "--row-norms", "1,2", "--mean-runs", "2")
    history = ("--algorithm", "forgetting-sgd", "--features", "plain")
    text = ("train", folder / "t.csv", "--algorithm", "noisy-gd", "--features", "words,gated")
    for command in (
        (*text, "--out", folder / "words"),
        (*tune, "--algorithms", "noisy-gd", "--features", "curves", "--out", folder / "tuned"),
        ("train", folder / "d.csv", *history, "--out", folder / "before"),
    ):
        code, _, err = call(*command, "--epsilon", "2")
        assert code == 0, err
    forget = (
        "--remove",
        folder / "gone.txt",
        "--ids",
        "who",
        "--epsilon",
        "1",
        "--out",
        folder / "forgot",
    )
    code, _, err = call("forget", folder / "before", folder / "d.csv", *forget)
    assert code == 0, err
    return folder


def test_predictions_import_neither_jax_nor_scipy_nor_the_accounting(folder):
    names = ("plain", "curves", "bins", "curves,gated", "fourier")
    predict_with([(folder / name, folder / "d.csv") for name in names], ROOMS)


def test_all_linear_models_predict_without_jax_and_scipy(more):
    tables = {"words": "t.csv", "tuned": "d.csv", "forgot": "d.csv"}
    predict_with([(more / name, more / table) for name, table in tables.items()])


def predict_with(asked, rooms=()):
    """Predict in a new process, one model after another, and refuse what the first of them to do so
    imported."""
    code = (
        "import sys\nfrom lastiterate.__main__ import main\n"
        f"for model, data in {[tuple(map(str, one)) for one in asked]!r}:\n"
        "    sys.argv = ['lastiterate', 'predict', model, data]\n"
        "    try:\n        main()\n    except SystemExit as left:\n        assert not left.code\n"
        f"    heavy = {HEAVY!r} & sys.modules.keys()\n"
        f"    heavy |= {{one for one in sys.modules if one.startswith(tuple('lastiterate.' + r for r in {rooms!r}))}}\n"
        "    assert not heavy, (model, sorted(heavy))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("who,prediction,probability_no,probability_yes\np0,") == len(asked)


def test_loading_in_python_is_as_light(folder):
    code = (
        "import sys, numpy as np, lastiterate as li\n"
        f"model = li.load({str(folder / 'plain')!r})\n"
        "assert len(model.predict(np.zeros((3, 29), np.float32))) == 3\n"
        f"sys.exit(', '.join({HEAVY!r} & sys.modules.keys()) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_every_subject_of_a_certificate_has_its_entry():
    assert set(certificate_statement.ENTRIES) == {*SUBJECTS, *LATE}
    assert accounting.certificate.entry_of is certificate_statement.entry_of


def whole_answers(model, path, ids):
    """Header and rows of a table that is read whole, cell by cell, and encoded at once."""
    table = read_table(path, model.schema)
    scores = model.scores(encode_features(table, model.schema))
    answers = model.answers
    rows = [
        [str(one), str(label), *(f"{chance:.6g}" for chance in chances)]
        for one, label, chances in zip(
            table.cells[ids], answers.of(scores), answers.probabilities(scores), strict=True
        )
    ]
    names = [f"probability_{name}" for name in getattr(answers, "values", ())]
    return [ids, "prediction", *names], rows, answers.probabilities(scores)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of some records, and Arrow for all of them but the first."""
    monkeypatch.setattr(blocks, "BLOCK", 3000)
    monkeypatch.setattr(blocks, "RECORDS", 50)
    for module in (blocks, blocks):
        monkeypatch.setattr(module, "SMALL", 0)


def to_text(columns, separator, quoting, end):
    text = io.StringIO(newline="")
    out = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end)
    out.writerow(columns)
    out.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


@pytest.mark.parametrize("features", ["plain", "curves", "bins", "curves,gated"])
@pytest.mark.parametrize(
    ("separator", "quoting", "end"),
    [
        (",", csv.QUOTE_MINIMAL, "\n"),
        (";", csv.QUOTE_ALL, "\r\n"),
        ("\t", csv.QUOTE_MINIMAL, "\r"),
        (",", csv.QUOTE_NONNUMERIC, "\n"),
    ],
)
def test_blocks_of_csv_give_the_answers_of_the_whole_table(
    folder, tmp_path, small_blocks, features, separator, quoting, end
):
    columns = records(1000, seed=5)
    columns["town"][500] = 'a "quoted"\nend of line'
    columns["age"][700], columns["age"][800] = "+41", "inf"
    (tmp_path / "new.csv").write_bytes(to_text(columns, separator, quoting, end).encode())
    model = li.load(folder / features)
    titles, rows, chances = whole_answers(model, tmp_path / "new.csv", "who")
    found = list(predict_blocks(model, str(tmp_path / "new.csv")))
    assert len(found) > 10 and sum(len(one.picked) for one in found) == 1000
    assert [row for one in found for row in one.rows()] == rows and found[0].titles == titles
    assert np.abs(np.concatenate([one.chances for one in found]) - chances).max() <= 1e-12
    assert call("predict", folder / features, tmp_path / "new.csv").out == format_csv(titles, rows)


def test_every_form_of_a_table_gives_the_same_answers(folder, tmp_path, small_blocks):
    columns = records(700, seed=8)
    del columns["y"]
    new = write_csv(tmp_path / "new.csv", columns)
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress(new.read_bytes()))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "new.parquet")
    keys = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    lines = "".join(json.dumps(one) + "\n" for one in keys)
    (tmp_path / "new.jsonl").write_text(lines)
    model = folder / "curves"
    plain = call("predict", model, new).out
    assert plain.count("\n") == 701
    for name in ("new.csv.gz", "new.parquet", "new.jsonl"):
        assert call("predict", model, tmp_path / name).out == plain, name
    assert call("predict", model, "-", text=new.read_text()).out == plain
    told = call("predict", model, "-", "--format", "jsonl", text=lines).out
    asked = json.loads(call("predict", model, new, "--json").out)
    assert [json.loads(line) for line in told.splitlines()] == asked
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        assert call("predict", model, new, "--out", tmp_path / name)[0] == 0
    assert (tmp_path / "out.jsonl").read_text() == told
    assert (tmp_path / "out.csv").read_text() == plain
    written = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [
        {k: v if isinstance(v, str) else float(f"{v:.6g}") for k, v in one.items()}
        for one in written
    ] == asked


def test_python_and_arrow_read_the_same_cells(folder, tmp_path, monkeypatch):
    """Numbers, missing marks and texts that one of them could read in another way."""
    columns = records(400, seed=3)
    odd = ["", "NA", "+4", " 6", "1_0", "inf", "-inf", "nan", "1e400", "0x1", "007", "5.", ".5"]
    odd += ["\u0661", "9007199254740993", "5e-324", "true", "FALSE", "\u00a05", "1.#IND", "nan(1)"]
    schema = li.load(folder / "plain").schema
    for cell in odd:
        columns["age"][300:310] = [cell] * 10
        columns["town"][300:310] = [cell] * 10
        new, seen = write_csv(tmp_path / "new.csv", columns), []
        for size in (0, 10**9):
            monkeypatch.setattr(blocks, "SMALL", size)
            try:
                tables = list(blocks.read_blocks(new, schema))
                rows = np.concatenate([encode_features(one, schema) for one in tables])
                seen.append(rows.tobytes())
            except li.InputError as error:
                seen.append(str(error))
        assert seen[0] == seen[1], cell


@pytest.mark.parametrize(
    ("column", "cell", "words"),
    [
        ("age", "old", "column 'age' must hold numbers, and holds other text in record 650"),
        ("seen", "31.01.2020", "column 'seen' must hold days such as 2026-01-31"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_refused_record_is_named_and_nothing_is_written(
    folder, tmp_path, small_blocks, form, column, cell, words
):
    columns = records(700, seed=8)
    columns[column][649] = cell
    new = tmp_path / f"new.{form}"
    if form == "csv":
        write_csv(new, columns)
    elif form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), new)
    else:
        keys = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        new.write_text("".join(json.dumps(one) + "\n" for one in keys))
    before = sorted(tmp_path.iterdir())
    for out in ((), ("--out", tmp_path / "out.csv")):
        code, told, err = call("predict", folder / "plain", new, *out)
        assert (code, told) == (2, "") and words in err and "record 650" in err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("column", "cell"), [("age", "old"), ("seen", "31.01.2020")])
def test_a_block_names_the_record_of_the_file(folder, tmp_path, small_blocks, column, cell):
    """Also where nobody reads the whole file again to say it."""
    columns, schema = records(700, seed=8), li.load(folder / "plain").schema
    columns[column][649] = cell
    new = write_csv(tmp_path / "new.csv", columns)
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "new.parquet")
    for path in (new, tmp_path / "new.parquet"):
        with pytest.raises(li.InputError, match="in record 650"):
            for table in blocks.read_blocks(path, schema):
                encode_features(table, schema)


@pytest.mark.parametrize("cell", ['"Ulm"x', '"Ulm', 'Ulm"'])
def test_quotation_marks_mean_what_python_reads(folder, tmp_path, small_blocks, cell):
    lines = write_csv(tmp_path / "new.csv", records(700, seed=8)).read_text().splitlines()
    lines[650] = f"p,30,0.5,{cell},2020-01-31,no"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    schema, told = li.load(folder / "plain").schema, []
    for read in (
        lambda path: [read_table(path, schema)],
        lambda path: blocks.read_blocks(path, schema, copied=["who"]),
    ):
        try:
            told.append(
                [one for table in read(tmp_path / "new.csv") for one in table.cells["town"]]
            )
        except li.InputError as error:
            told.append(str(error))
    assert told[0] == told[1]


def test_of_several_faults_the_one_of_the_whole_table_is_told(folder, tmp_path, small_blocks):
    columns = records(700, seed=8)
    columns["seen"][10], columns["age"][650] = "soon", "old"
    new = write_csv(tmp_path / "new.csv", columns)
    assert "'age'" in call("predict", folder / "plain", new).err


class Endless:
    """Standard input that never ends, and counts what was taken."""

    def __init__(self, head, line):
        self.taken, self._left, self._line = 0, head, line

    def read(self, size=-1):
        assert size > 0, "all of it was asked for"
        text = self._left + self._line * (size // len(self._line) + 1)
        self._left, self.taken = text[size:], self.taken + size
        return text[:size]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_reader_never_holds_more_than_one_block(folder, monkeypatch, form):
    """Of an input without an end: blocks come, no table is kept, and no more is taken than they
    need."""
    monkeypatch.setattr(blocks, "BLOCK", 2**17)
    line = b"30,0.5,Ulm,2020-01-31\n"
    if form == "jsonl":
        line = b'{"age": 30, "dose": 0.5, "town": "Ulm", "seen": "2020-01-31"}\n'
    endless = Endless(b"age,dose,town,seen\n" if form == "csv" else b"", line)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=endless))
    alive, made = weakref.WeakSet(), Table.__init__

    def count(self, *given, **named):
        made(self, *given, **named)
        alive.add(self)

    monkeypatch.setattr(Table, "__init__", count)
    answers = predict_blocks(li.load(folder / "plain"), "-", form=form)
    taken = []
    for number, one in zip(range(12), answers, strict=False):
        assert set(one.picked.tolist()) == set(one.picked[:1].tolist())
        assert len(alive) <= 2, "tables are kept"
        taken.append(endless.taken)
        assert endless.taken <= (number + 2) * blocks.BLOCK
    assert taken[-1] > 8 * blocks.BLOCK


def test_json_lines_that_say_two_things_are_refused(folder, tmp_path):
    whole = '{"age": 30, "dose": 0.5, "town": "Ulm", "seen": "2020-01-31"}\n'

    def refused(text):
        (tmp_path / "new.jsonl").write_text(text)
        code, out, err = call("predict", folder / "plain", tmp_path / "new.jsonl")
        assert (code, out) == (2, "")
        return err

    twice = whole[:-2] + ', "age": 31}\n'
    for size in (1, 400):
        assert f"in record {size + 1}" in refused(whole * size + twice)
    assert "in record 2" in refused(whole + "[1]\n")
    assert "must hold at least one record" in refused("\n")
    assert "'Age'" in refused(whole + whole.replace("age", "Age"))
    assert "column 'age' must hold numbers, text" in refused(whole.replace("30", "[30]"))
    sure = whole.replace('"seen"', '"sean"')
    assert "'sean'" in refused(sure)
    code, out, _ = call("predict", folder / "plain", "-", "--format", "jsonl", text='{"age": 3}\n')
    assert code == 0 and out.startswith('{"prediction": "'), "the others may be missing"
    assert (
        "--format must be csv or jsonl"
        in call("predict", folder / "plain", "-", "--format", "x")[2]
    )


def test_numbers_are_predicted_in_blocks(tmp_path, small_blocks):
    columns = records(300)
    columns["y"] = [str(value) for value in np.random.default_rng(1).normal(size=300)]
    write_csv(tmp_path / "d.csv", columns)
    facts = SCHEMA.replace('classes = ["no", "yes"]', "target_range = [-3, 3]")
    (tmp_path / "d.toml").write_text(facts)
    assert call("train", tmp_path / "d.csv", "--epsilon", "2", "--out", tmp_path / "m")[0] == 0
    model = li.load(tmp_path / "m")
    table = read_table(tmp_path / "d.csv", model.schema)
    numbers = model.predict(encode_features(table, model.schema))
    found = np.concatenate([one.numbers for one in predict_blocks(model, str(tmp_path / "d.csv"))])
    assert np.abs(found - numbers).max() <= 1e-12
    lines = call("predict", tmp_path / "m", tmp_path / "d.csv").out.splitlines()
    assert lines[0] == "who,prediction" and lines[1] == f"p0,{numbers[0]:.6g}"
