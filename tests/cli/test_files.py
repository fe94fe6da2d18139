"""schema, train, predict and verify on every kind of file, through the command line."""

import csv
import gzip
import io
import shutil
import struct
import sys
import tomllib

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from lastiterate.data import load_bundled
from support import call

DIGITS = load_bundled("digits")[0]
IMAGES, LABELS = (DIGITS.array * 15).astype(np.uint8), DIGITS.answers.astype(np.uint8)


def write_idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), 1))
    return path


@pytest.fixture(scope="module")
def idx(tmp_path_factory):
    """The digits as IDX files of 8 x 8 images, a train and a test pair, and a model trained on
    them."""
    folder = tmp_path_factory.mktemp("idx")
    for name, rows in (("train", slice(1400)), ("t10k", slice(1400, None))):
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", IMAGES[rows].reshape(-1, 8, 8))
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", LABELS[rows])
    train, test = folder / "train-images-idx3-ubyte.gz", folder / "t10k-images-idx3-ubyte.gz"
    assert call("schema", train, "--out", folder / "s.toml")[0] == 0
    text = (folder / "s.toml").read_text()
    assert "low = 0\nhigh = 255\n" in text and 'classes = ["?"]' in text
    (folder / "s.toml").write_text(text.replace('["?"]', str([str(i) for i in range(10)])))
    args = [
        "train",
        train,
        "--schema",
        folder / "s.toml",
        "--epsilon",
        "4",
        "--features",
        "plain",
        "--test",
        test,
        "--test-is-public",
    ]
    code, out, _ = call(*args, "--out", folder / "model")
    assert code == 0 and "test accuracy" in out
    return folder


def predictions(model, path):
    code, out, err = call("predict", model, path)
    assert code == 0, err
    return [row["prediction"] for row in csv.DictReader(io.StringIO(out))]


def test_images_without_labels_are_predicted(idx, tmp_path):
    shutil.copy(idx / "t10k-images-idx3-ubyte.gz", tmp_path)
    found = predictions(idx / "model", tmp_path / "t10k-images-idx3-ubyte.gz")
    assert (
        np.mean([label == str(truth) for label, truth in zip(found, LABELS[1400:], strict=True)])
        > 0.75
    )
    assert call("verify", idx / "model")[0] == 0
    np.save(tmp_path / "same.npy", IMAGES[1400:])
    np.savez(tmp_path / "same.npz", X=IMAGES[1400:])
    assert predictions(idx / "model", tmp_path / "same.npy") == found
    assert predictions(idx / "model", tmp_path / "same.npz") == found


def test_wrong_width_is_told_before_anything_is_spent(idx, tmp_path):
    np.save(tmp_path / "narrow.npy", IMAGES[:, :60])
    np.save(tmp_path / "narrow.labels.npy", LABELS)
    code, _, err = call("predict", idx / "model", tmp_path / "narrow.npy")
    assert code == 2 and "64 features" in err
    train = [
        "train",
        idx / "train-images-idx3-ubyte.gz",
        "--schema",
        idx / "s.toml",
        "--epsilon",
        "4",
    ]
    code, _, err = call(
        *train, "--test", tmp_path / "narrow.npy", "--test-is-public", "--out", tmp_path / "m"
    )
    assert code == 2 and "64 features" in err and not (tmp_path / "m").exists()
    np.save(tmp_path / "one.npy", IMAGES[:1])
    np.save(tmp_path / "one.labels.npy", LABELS[:1])
    code, _, err = call("train", tmp_path / "one.npy", *train[2:], "--out", tmp_path / "m")
    assert code == 2 and "two records" in err
    code, _, err = call("train", tmp_path / "unlabelled.npy", *train[2:], "--out", tmp_path / "m")
    assert code == 2 and "existing" in err
    np.save(tmp_path / "unlabelled.npy", IMAGES)
    code, _, err = call("train", tmp_path / "unlabelled.npy", *train[2:], "--out", tmp_path / "m")
    assert code == 2 and "unlabelled.labels.npy" in err


def test_a_cifar_folder_needs_nothing_filled_in(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        labels, images = random.integers(10, size=(30, 1)), random.integers(256, size=(30, 3072))
        np.concatenate([labels, images], axis=1).astype("u1").tofile(folder / name)
    assert call("schema", folder, "--out", tmp_path / "s.toml")[0] == 0
    args = ["--schema", tmp_path / "s.toml", "--epsilon", "8", "--out", tmp_path / "m"]
    code, out, err = call(
        "train", folder, *args, "--test", folder / "test_batch.bin", "--test-is-public"
    )
    assert code == 0 and "test accuracy" in out, err
    assert "on 60 records" in out
    assert set(predictions(tmp_path / "m", folder / "test_batch.bin")) <= set("0123456789")


def test_the_column_to_predict_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("sick,age,town\nyes,3,Ulm\n")
    kinds = ["--columns", "age:number,town:category"]
    schema = tomllib.loads(call("schema", tmp_path / "t.csv", *kinds, "--target", "sick")[1])
    assert schema["target"] == "sick" and set(schema["columns"]) == {"age", "town"}
    assert tomllib.loads(call("schema", tmp_path / "t.csv", *kinds)[1])["target"] == "town"
    (tmp_path / "old.toml").write_text(
        'target = "town"\nclasses = ["Ulm", "Bonn"]\n[columns.age]\nkind = "number"\n'
        "low = 0\nhigh = 9\n"
    )
    taken = tomllib.loads(
        call("schema", tmp_path / "t.csv", "--like", tmp_path / "old.toml", "--target", "sick")[1]
    )
    assert taken["classes"] == ["?"] and taken["columns"]["age"]["high"] == 9
    assert taken["columns"]["town"]["kind"] == "?"
    for name, remedy in (("sik", "header with that name"), ("age", "another kind")):
        code, _, err = call(
            "schema", tmp_path / "t.csv", "--columns", "age:ignore", "--target", name
        )
        assert code == 2 and "--target must be a column of the file" in err and remedy in err
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    assert (
        "--target is a column of a table" in call("schema", tmp_path / "x.npy", "--target", "y")[2]
    )


def test_parquet_is_csv(tmp_path):
    names = [f"c{i}" for i in range(4)]
    table, schema = load_bundled("iris")
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [
            [*row, f"kind {answer}"] for row, answer in zip(table.array, table.answers, strict=True)
        ]
        csv.writer(file).writerows([[*names, "kind"], *rows])
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(tmp_path / "t.csv"), tmp_path / "t.parquet")
    kinds = ",".join(f"{name}:number" for name in names)
    assert (
        call("schema", tmp_path / "t.parquet")[1]
        == call("schema", tmp_path / "t.csv", "--columns", kinds)[1]
    )
    text = 'target = "kind"\nclasses = ["kind 0", "kind 1", "kind 2"]\n'
    for name, column in zip(names, schema.columns, strict=True):
        text += f'[columns.{name}]\nkind = "number"\nlow = {column.low}\nhigh = {column.high}\n'
    (tmp_path / "s.toml").write_text(text)
    train = [
        "train",
        tmp_path / "t.parquet",
        "--schema",
        tmp_path / "s.toml",
        "--epsilon",
        "5",
        "--algorithm",
        "noisy-gd",
    ]
    assert call(*train, "--out", tmp_path / "m")[0] == 0
    found = predictions(tmp_path / "m", tmp_path / "t.parquet")
    assert len(found) == 150 and found == predictions(tmp_path / "m", tmp_path / "t.csv")


def test_missing_pyarrow_is_told_with_its_remedy(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    code, _, err = call("schema", tmp_path / "t.parquet")
    assert code == 2 and "pip install lastiterate[parquet]" in err, "the brackets are no markup"


def test_unknown_kinds_are_told_what_there_is(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    code, _, err = call("schema", tmp_path / "t.xlsx")
    assert code == 2 and all(
        word in err for word in (".csv", ".parquet", ".npz", ".npy", "IDX", "CIFAR-10")
    )
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, "."):
        code, _, err = call("schema", folder)
        assert code == 2 and "data_batch_1" in err and f"got '{folder}'" in err


PUBLIC = """target = "sick"
classes = ["no", "yes"]
[columns.id]
kind = "id"
[columns.age]
kind = "number"
low = 18
high = 90
"""
NOT_PUBLISHED = "This is about the private records: it is for the holder of the data, not to be"
UNIT = ("--unit", "id", "--rows-per-unit", 2)


@pytest.mark.parametrize(
    ("changed", "flags", "code", "words"),
    [
        ({}, (), 0, ("fits the schema.",)),
        ({}, UNIT, 0, ("fits the schema.", "20 of 30 rows are used: the first 2 of each id.")),
        (
            {"age": {7: "4o", 9: "x"}, "sick": {4: "perhaps"}},
            (),
            1,
            (
                "t.csv does not fit the schema:",
                "- column 'age' must hold numbers, and holds other text in record 8; correct the cell: write 1000",
                "- target 'sick' must hold only the classes no, yes, and has another label in record 5",
            ),
        ),
        ({"age": {8: "4o"}}, UNIT, 0, ("fits the schema.",)),  # the third row of p2 is not used
        ({"age": {9: "4o"}}, UNIT, 1, ("and holds other text in record 10; ",)),
        ({}, ("--classes", "no,maybe", "--target", "sick"), 1, ("another label in record 2",)),
        (
            {"sick": {9: "perhaps"}},
            ("--classes", "no,yes,in record 3;", "--target", "sick", *UNIT),
            1,
            ("the classes no, yes, in record 3;, and has another label in record 10; ",),
        ),
        ({"age": None}, (), 1, ("misses the column 'age' of the schema",)),
        ({}, ("--rows-per-unit", 2), 2, ("--rows-per-unit needs the column",)),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_check_reads_a_file_as_train_does(tmp_path, changed, flags, code, words, ending):
    (tmp_path / "t.toml").write_text(PUBLIC)
    cells = {
        "id": [f"p{i // 3}" for i in range(30)],
        "age": [str(20 + i) for i in range(30)],
        "sick": ["no", "yes"] * 15,
    }
    for name, at in changed.items():
        if at is None:
            del cells[name]
        for record, cell in (at or {}).items():
            cells[name][record] = cell
    file = tmp_path / f"t.{ending}"
    pyarrow.parquet.write_table(pyarrow.table(cells), file)
    if ending == "csv":
        with file.open("w", newline="") as out:
            csv.writer(out).writerows([cells, *zip(*cells.values(), strict=True)])
    train = ("train", file, "--epsilon", 1, "--delta", "1e-3", "--out", tmp_path / "m", *flags)
    for stream in ((), ("--stream",)) if "--unit" not in flags else ((),):
        found, out, err = call("check", file, *flags, *stream)
        said = " ".join((out + err).split())
        assert found == code and all(w.replace("t.csv", file.name) in said for w in words), said
        assert "4o" not in said and "perhaps" not in said
        assert (NOT_PUBLISHED in said) == (code != 2)
        persons = "--unit id protects all rows of one id together; without it, single rows are"
        assert (persons in said) == (code == 0 and "--unit" not in flags)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted({file.name, "t.toml"})
    if code:
        found, _, err = call(*train)
        assert found == 2 and any(w.removeprefix("- ").split("; ")[0] in err for w in words)
        assert not (tmp_path / "m").exists()
    if flags == UNIT and not code:
        assert call(*train, "--algorithm", "noisy-gd")[0] == 0


NOTES = """target = "sick"
classes = ["no", "yes"]
[columns.age]
kind = "number"
low = 18
high = 90
[columns.ward]
kind = "category"
values = ["A", "B"]
[columns.note]
kind = "text"
"""


@pytest.mark.parametrize(
    ("rows", "flags", "faults"),
    [
        (["20,A,well,no", "30,B,cough,yes", "40,A,,no"], (), ()),
        (["20,A,well,no", "30,B,cough,yes"], ("--target", "age", "--model", "huber-ridge"), ()),
        (
            ["20,A,well,no", "30,C,cough,yes", "4o,B,,perhaps", "x,D,,no"],
            (),
            (
                "column 'ward' has an unknown category in record 2; correct the cell",
                "column 'age' must hold numbers, and holds other text in record 3; correct the cell",
                "target 'sick' must hold only the classes no, yes, and has another label in record 3",
            ),
        ),
        (
            ["20,A,well,no", "30,C,cough,yes"],
            ("--target", "age", "--model", "bayes-linear"),
            (
                "column 'note' holds text, which becomes numbers by a map only",
                "column 'ward' has an unknown category in record 2; correct the cell",
            ),
        ),
    ],
)
def test_check_reads_text_with_the_maps_that_train_takes(tmp_path, rows, flags, faults):
    """Every column's first bad record is named, whichever refusal comes first in ``train``."""
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,note,sick", *rows]) + "\n")
    (tmp_path / "t.toml").write_text(NOTES)
    code, out, err = call("check", tmp_path / "t.csv", *flags)
    said = " ".join((out + err).split())
    assert code == bool(faults) and said.count(" - ") == len(faults), said
    assert all(f"- {fault}" in said for fault in faults)
    told = call(
        *("train", tmp_path / "t.csv", "--epsilon", 1, "--delta", "1e-3"),
        *("--out", tmp_path / "m", *flags),
    )
    assert (told[0] == 2 and any(fault in told[2] for fault in faults)) == bool(faults), told[2]


def test_check_reads_text_alone(tmp_path):
    (tmp_path / "t.csv").write_text("note,sick\nwell,no\ncough,yes\nfine,no\n")
    (tmp_path / "t.toml").write_text(
        NOTES.split("[columns.age]")[0] + NOTES[NOTES.index("[columns.note]") :]
    )
    code, out, _ = call("check", tmp_path / "t.csv")
    assert code == 0 and "fits the schema." in " ".join(out.split())


def test_check_takes_arrays_and_names_the_record(tmp_path):
    x, y = np.zeros((9, 2)), np.arange(9) % 2
    x[4, 1] = 7
    for outside, code, words in (
        ("clip", 0, "fits the schema."),
        ("refuse", 1, "column 'x1' has a value outside its public range in record 5; "),
    ):
        (tmp_path / "x.toml").write_text(
            f'classes = ["0", "1"]\n[array]\nlow = 0\nhigh = 1\noutside = "{outside}"\n'
        )
        np.savez(tmp_path / "x.npz", X=x, y=y)
        found, out, _ = call("check", tmp_path / "x.npz")
        assert found == code and words in " ".join(out.split())
