"""Tables in a store, by address: fsspec's own store in memory, which has the interface of s3:// and
gs://."""

import gzip
import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import interrupts, limits, remote_files
from lastiterate.cli import app
from lastiterate.data.file_stream import FileSnapshot
from lastiterate.data.readers import find_format, read_table, schema_template
from lastiterate.data.record_source import open_stream
from lastiterate.errors import InputError
from lastiterate.release.data_file import schema_for
from lastiterate.release.file_training import find_free_folder, fit_file
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.prediction import prediction_rows
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("upath")
N = 400
SCHEMA = {
    "target": "y",
    "classes": ["no", "yes"],
    "columns": {name: {"kind": "number", "low": 0.0, "high": 1.0} for name in "ab"},
}


def draw_table():
    x = np.random.default_rng(0).uniform(size=(N, 2)).round(6)
    return pa.table({"a": x[:, 0], "b": x[:, 1], "y": np.where(x[:, 0] > 0.5, "yes", "no")})


def write_forms():
    """The bytes of a table in every form, by name."""
    table = draw_table()
    rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    text = "a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in rows)
    parquet, arrow = io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet, row_group_size=64)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table, max_chunksize=64)
    files = {
        "t.csv": text.encode(),
        "t.csv.gz": gzip.compress(text.encode()),
        "t.parquet": parquet.getvalue(),
        "t.arrow": arrow.getvalue(),
    }
    for k in range(10):
        part = io.BytesIO()
        pq.write_table(table.slice(40 * k, 40), part)
        files[f"parts/p{k}.parquet"] = part.getvalue()
    return files


@pytest.fixture
def store():
    """The store with every file, under ``memory://bucket``."""
    found = fsspec.filesystem("memory")
    found.store.clear()
    found.pseudo_dirs[:] = [""]
    for name, content in write_forms().items():
        found.pipe(f"/bucket/{name}", content)
    yield found
    found.store.clear()


FORMS = ("t.csv", "t.csv.gz", "t.parquet", "t.arrow", "parts")


def cells_of(table):
    return {name: [str(cell) for cell in cells] for name, cells in table.cells.items()}


def write_locally(folder, name):
    for each, content in write_forms().items():
        if each.startswith(name):
            (folder / each).parent.mkdir(exist_ok=True)
            (folder / each).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("name", FORMS)
def test_a_table_in_a_store_is_the_table_of_its_file(store, name, tmp_path):
    local, address = write_locally(tmp_path, name), f"memory://bucket/{name}"
    assert cells_of(read_table(address)) == cells_of(read_table(local))
    whole = np.concatenate([rows for rows, _ in li.data.stream(local, SCHEMA).pieces(50)])
    source = li.data.stream(address, SCHEMA)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in source.pieces(50)]), whole)
    np.testing.assert_array_equal(next(iter(source.pieces(50, 130)))[0][0], whole[130])
    # what Path makes of an address has one slash
    assert len(open_stream(Path(address), li.data.Schema.from_dict(SCHEMA))) == N
    assert schema_template(address).partition("\n")[2] == schema_template(local).partition("\n")[2]


def order_for(data, **more):
    return TrainingRequest(
        data=str(data),
        budget=Budget(2.0),
        schema=li.data.Schema.from_dict(SCHEMA),
        algorithm=Algorithm("noisy-gd"),
        seed=3,
        **more,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_training_from_a_store_releases_the_model_of_the_file(store, tmp_path, stream):
    local = write_locally(tmp_path, "t.parquet")
    one = fit_file(order_for(local, stream=stream)).model
    other = fit_file(order_for("memory://bucket/t.parquet", stream=stream)).model
    assert one.certificate.epsilon(1e-5) == other.certificate.epsilon(1e-5)
    rows = prediction_rows(one, str(local))
    assert rows == prediction_rows(other, "memory://bucket/t.csv")
    assert len(rows[1]) == N


def test_an_object_that_is_replaced_is_refused(store):
    """Of other bytes, of the same size: before the next piece, and behind the last one."""
    address = "memory://bucket/t.csv"
    source = li.data.stream(address, SCHEMA)
    before = source.file_identity
    assert before == li.data.stream(address, SCHEMA).file_identity != ""
    content = store.cat("/bucket/t.csv")
    pieces = source.pieces(50)
    next(pieces)
    store.pipe("/bucket/t.csv", content.replace(b",yes\n", b",no \n", 1))
    with pytest.raises(InputError, match="changed while it was read"):
        list(pieces)
    with pytest.raises(InputError, match="changed while it was read"):
        next(source.pieces(50))
    assert li.data.stream(address, SCHEMA).file_identity != before


def test_every_part_of_a_folder_has_its_version(store, monkeypatch):
    """Many are asked for at once; few one by one."""
    asked = []
    for question in ("ls", "info"):
        real = getattr(type(store), question)

        def ask(self, path, *more, real=real, question=question, **options):
            asked.append(question)
            return real(self, path, *more, **options)

        monkeypatch.setattr(type(store), question, ask)
    found = remote_files.to_path("memory://bucket/parts")
    paths = sorted(found.iterdir())
    asked.clear()
    many = FileSnapshot.of(*paths)
    assert asked.count("info") <= 1 and asked.count("ls") == 1
    few = FileSnapshot.of(*paths[:3])
    assert len(set(many.states)) == len(paths) and len(set(few.states)) == 3
    content = store.cat("/bucket/parts/p4.parquet")
    store.pipe("/bucket/parts/p4.parquet", content)  # the same bytes, at another time
    with pytest.raises(InputError, match=r"changed while it was read, got 'p4.parquet'"):
        many.check()
    few.check()


def test_what_a_store_said_before_is_forgotten(store, monkeypatch):
    """Stores keep their answers, as s3fs and gcsfs do, until they are asked to forget them."""
    kept, kind = {}, type(store)
    for question in ("ls", "info"):
        real = getattr(kind, question)

        def ask(self, path, *more, real=real, question=question, **options):
            asked = (question, path, *more, *sorted(options.items()))
            if asked not in kept:
                kept[asked] = real(self, path, *more, **options)
            return kept[asked]

        monkeypatch.setattr(kind, question, ask)
    monkeypatch.setattr(kind, "invalidate_cache", lambda self, path=None: kept.clear())
    paths = sorted(remote_files.to_path("memory://bucket/parts").iterdir())
    for those in (paths, paths[3:5]):
        before = FileSnapshot.of(*those)
        store.pipe("/bucket/parts/p4.parquet", store.cat("/bucket/parts/p4.parquet"))
        with pytest.raises(InputError, match=r"changed while it was read, got .p4.parquet."):
            before.check()


class Torn:
    """A file of a store whose connection ends after some bytes."""

    def __init__(self, file, most):
        self.file, self.left = file, most

    def read(self, size):
        self.left -= size
        if self.left < 0:
            raise ConnectionResetError("reset by the store\nand a second line")
        return self.file.read(size)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("name", FORMS)
def test_a_store_that_fails_is_named_and_no_file_is_called_damaged(store, monkeypatch, name):
    """Wherever the connection ends, from the first byte to where the table can be read."""
    monkeypatch.setattr(remote_files, "BUFFER", 256)
    real, failures = type(store).open, 0
    for most in (0, 300, 1000, 3000, 10_000, 30_000):
        monkeypatch.setattr(
            type(store), "open", lambda *a, most=most, **k: Torn(real(*a, **k), most)
        )
        try:
            assert len(read_table(f"memory://bucket/{name}")) == N
        except InputError as error:
            assert "must be readable" in error.rule, error
            assert "ConnectionResetError: reset by the store)" in str(error)
            failures += 1
    assert failures >= 2


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "error", [FileNotFoundError("gone"), RuntimeError("no route to the store")]
)
def test_an_object_that_cannot_be_opened_is_not_called_damaged(store, monkeypatch, name, error):
    """From any opening on: a file is opened once to look at it and once to read it."""
    real, failures = type(store).open, 0
    for most in range(0, 60, 3):
        opened = []

        def fail(*given, most=most, opened=opened, **options):
            opened.append(given)
            if len(opened) > most:
                raise error
            return real(*given, **options)

        monkeypatch.setattr(type(store), "open", fail)
        try:
            assert len(read_table(f"memory://bucket/{name}")) == N
        except InputError as refused:
            assert "must be readable" in refused.rule and str(error) in str(refused), refused
            failures += 1
    assert failures >= 1


def test_what_a_store_does_not_let_anybody_read(store, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("Forbidden")

    monkeypatch.setattr(type(store), "info", refuse)
    with pytest.raises(InputError, match=r"must be readable, got 'memory://bucket/t.csv \(Perm"):
        read_table("memory://bucket/t.csv")


@pytest.mark.parametrize(
    "address, rule",
    [
        ("memory://bucket/none.csv", "must be an object, or a folder"),
        ("https://host/t.csv", "must be a file, or an address that begins with s3:// or gs://"),
        ("ftp://host/t.csv", "copy it to a disk of this machine first"),
    ],
)
@pytest.mark.parametrize("read", [read_table, open_stream, remote_files.to_path, schema_template])
def test_addresses_of_nothing_are_refused(store, address, rule, read):
    with pytest.raises(InputError, match=rule):
        read(address)


def test_arrays_are_refused_in_a_store(store):
    out = io.BytesIO()
    np.save(out, np.zeros((3, 2)))
    store.pipe("/bucket/x.npy", out.getvalue())
    for read in (read_table, open_stream):
        with pytest.raises(InputError, match=r"must be a table to be read from a store"):
            read("memory://bucket/x.npy")


@pytest.mark.parametrize("missing, extra", [("upath", "s3"), ("s3fs", "s3"), ("gcsfs", "gcs")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, missing, extra):
    monkeypatch.setitem(sys.modules, missing, None)
    kind = "gs" if extra == "gcs" else "s3"
    with pytest.raises(InputError, match=rf"pip install lastiterate\[{extra}\]"):
        read_table(f"{kind}://bucket/t.csv")


def test_a_file_address_is_a_path_and_windows_drives_are_none(tmp_path):
    path = write_locally(tmp_path, "t.csv")
    assert remote_files.to_path(path.as_uri()) == path
    assert cells_of(read_table(path.as_uri())) == cells_of(read_table(path))
    assert isinstance(remote_files.to_path("C:/data/t.csv"), Path)
    assert not remote_files.is_remote("s3://bucket/t.csv")


def test_names_that_come_from_an_address(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = "memory://bucket/t.csv"
    assert remote_files.schema_beside(address) == Path("t.toml")
    assert remote_files.schema_beside("folder/t.csv") == Path("folder/t.toml")
    with pytest.raises(InputError, match=r"lastiterate schema memory://bucket/t.csv --out t.toml"):
        schema_for(address, None, target=None, classes=None, model=None)
    assert find_free_folder(address)[0] == Path("models/t-1")
    assert find_format(remote_files.to_path(address)).read is not None


def test_the_limit_of_unpacked_bytes_holds_in_a_store(store):
    with limits.limit_unpacking(1000), pytest.raises(InputError, match="must not unpack"):
        read_table("memory://bucket/t.csv.gz")


def test_a_budget_is_charged_once_and_not_before_the_store_was_asked(store, tmp_path):
    book = li.ledger.Ledger(tmp_path / "ledger")
    book.add(
        "survey", unit="record", adjacency="zero-out", filter=li.ledger.GaussianFilter(900.0, 1e-3)
    )
    order = order_for("memory://bucket/t.parquet")
    order = replace(order, charging=Charging(ledger=book, dataset="survey"))
    with pytest.raises(InputError, match="must be an object"):
        fit_file(replace(order, data="memory://bucket/none.parquet"))
    assert not book.total().releases
    fit_file(order)
    assert len(book.total().releases) == 1


@pytest.fixture
def model(store, tmp_path):
    return fit_file(order_for("memory://bucket/t.parquet")).model.save(tmp_path / "model")


def predict(model, *words):
    return CliRunner().invoke(app, ["predict", str(model), "memory://bucket/t.csv", *words])


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.parquet", "p.json"])
def test_predictions_are_written_into_a_store(store, model, tmp_path, name):
    more = ["--json"] if name == "p.json" else []
    for place in (str(tmp_path / name), f"memory://out/folder/{name}"):
        ended = predict(model, "--out", place, *more)
        assert ended.exit_code == 0, ended.output
    assert store.cat(f"/out/folder/{name}") == (tmp_path / name).read_bytes()
    again = predict(model, "--out", f"memory://out/folder/{name}", *more)
    assert again.exit_code == 2 and "--out must not exist yet" in again.output


def test_predictions_that_a_store_does_not_take_are_no_object(store, model, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionResetError("reset by the store")

    monkeypatch.setattr(type(store), "put_file", refuse)
    ended = predict(model, "--out", "memory://out/p.csv")
    assert ended.exit_code == 2 and not store.exists("/out/p.csv")
    assert "memory://out/p.csv must be writable, got ConnectionResetError: reset" in ended.output
    monkeypatch.setattr(type(store), "exists", refuse)
    ended = predict(model, "--out", "memory://out/p.csv")
    assert ended.exit_code == 2 and "--out must be writable, got 'memory://out/p.csv (Con" in (
        ended.output
    )


def test_predictions_of_another_job_are_not_replaced(store, model, monkeypatch):
    """It wrote its own after this one had looked for them."""
    monkeypatch.setattr(
        "lastiterate.cli.predict.to_new_object",
        lambda given, _: remote_files._open_address(given, ""),
    )
    store.pipe("/out/p.csv", b"of another job")
    ended = predict(model, "--out", "memory://out/p.csv")
    assert ended.exit_code == 2 and "--out must not exist yet" in ended.output, ended.output
    assert store.cat("/out/p.csv") == b"of another job"


def test_what_is_written_on_the_way_is_removed_by_an_abrupt_end(store, model, monkeypatch):
    known = []

    def put(*_, **__):
        known.extend(one for one in interrupts.unfinished if (one / "predictions").exists())

    monkeypatch.setattr(type(store), "put_file", put)
    assert predict(model, "--out", "memory://out/p.csv").exit_code == 0
    assert len(known) == 1 and not known[0].exists() and known[0] not in interrupts.unfinished


def test_settings_of_a_store_that_do_not_fit_are_refused(store, model, monkeypatch):
    import upath

    class Unfit:
        @property
        def fs(self):
            raise KeyError("username")

    monkeypatch.setattr(upath, "UPath", lambda address: Unfit())
    with pytest.raises(InputError, match=r"must be readable, got .memory://bucket/t.csv \(KeyErr"):
        read_table("memory://bucket/t.csv")
    ended = CliRunner().invoke(
        app, ["predict", str(model), str(model / "model.json"), "--out", "memory://out/p.csv"]
    )
    assert ended.exit_code == 2 and "--out must be writable" in ended.output


@pytest.mark.parametrize("option", ["--out", "--ledger", "--checkpoint", "--scratch"])
def test_an_address_is_no_folder_of_this_machine(store, tmp_path, monkeypatch, option):
    """``s3://b/m`` as a path is ``s3:/b/m``, a folder ``s3:`` that nobody looks for."""
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["train", "wine", "--epsilon", "1", option, "s3://bucket/name"])
    assert ended.exit_code == 2
    assert f"{option} must be on a disk of this machine" in ended.output.replace("\n", " ")
    with pytest.raises(InputError, match=f"^{option[2:]} must be on a disk of this machine"):
        li.train(
            li.Run(n=9, steps=2, step_size=0.5, loss=li.Logistic()),
            (np.ones((9, 2)), np.ones(9)),
            epsilon=1.0,
            **{option[2:]: "s3://bucket/name"},
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given, words",
    [
        (
            "S3://bucket/name",
            "on a disk of this machine, and this is an address, got 's3://bucket/n",
        ),
        (
            "file:///tmp/name",
            "must be written as a path, got 'file:///tmp/name'; such as /tmp/name",
        ),
    ],
)
def test_other_spellings_of_addresses_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        remote_files.refuse_address("out", given)
