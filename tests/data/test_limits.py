"""Files whose few bytes stand for much memory or time are refused before they are parsed; honest
ones are read."""

import gzip
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import limits
from lastiterate.certificate_statement import read_statement
from lastiterate.cli import app
from lastiterate.cli.run_flags import step_size
from lastiterate.data import Schema, read_table
from lastiterate.data.readers import schema_template
from lastiterate.data.record_source import open_stream
from lastiterate.release import folder as manifest
from lastiterate.release.signatures import sign_folder, signature_problems
from lastiterate.run import serialization


def refused(act, *words):
    with pytest.raises(li.InputError) as caught:
        act()
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert len(said) < 500 and "\n" not in said
    return said


def test_the_guide_lists_every_limit():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "data.md").read_text(encoding="utf-8")
    stated = {
        name: int(number.replace(",", ""))
        for number, name in re.findall(r"\| ([\d,]+)(?: bytes)? \| `([A-Z]+)` \|", guide)
    }
    assert stated == {
        name: value for name, value in vars(limits).items() if name.isupper() and name != "LEAST"
    }


PEAK = """
import resource, sys
from lastiterate.run import serialization
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
serialization.loads('{"a": "' + sys.argv[1] * 10_000_000 + '"}', "certificate")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("unit", ["x", "\\n"], ids=["plain", "escaped"])
def test_a_long_text_needs_a_few_times_its_own_memory(unit):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, unit], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 12 * len(unit) * 10_000, (
        "KiB; an engine that can come back keeps 100 bytes a character"
    )


def test_json_has_a_limit_of_bytes_values_depth_and_digits(monkeypatch):
    monkeypatch.setattr(limits, "VALUES", 100)
    assert serialization.loads(json.dumps(list(range(99))), "run") == list(range(99))
    assert (
        serialization.loads(json.dumps("," * 1000 + "[" * 1000), "run") == "," * 1000 + "[" * 1000
    )
    for text in (
        "[" + "0," * 100 + "0]",
        "[" + "[]," * 60 + "0]",
        "[" + '{"":0},' * 60 + "0]",
        '""' * 300,
    ):
        refused(lambda text=text: serialization.loads(text, "run"), "at most 100 values")
    refused(lambda: serialization.loads("]" * 1000, "run"), "complete JSON")
    monkeypatch.setattr(limits, "TEXT", 1000)
    refused(
        lambda: serialization.loads('"' + "x" * 1000 + '"', "run"), "at most 1,000 bytes of text"
    )
    refused(lambda: li.Run.from_json(" " * 1001), "at most 1,000 bytes of text")
    monkeypatch.undo()
    refused(
        lambda: serialization.loads("[0." + "1" * 2000 + "]", "run"), "at most 1,100 characters"
    )
    assert serialization.loads(f"[{2**-1074:.1074f}]", "run") == [2**-1074], (
        "every double can be written out"
    )


def test_keys_are_looked_at_once():
    many = [f'"k{number}": 0' for number in range(60_000)]
    refused(
        lambda: serialization.loads("{" + ", ".join([*many, '"k59999": 1']) + "}", "run"),
        "once",
        "k59999",
    )


def test_a_run_with_a_step_size_for_each_step_is_read():
    run = li.Run(
        n=100,
        steps=50_000,
        step_size=li.StepSchedule(tuple(np.linspace(0.1, 0.2, 50_000).tolist())),
        noise=li.NoiseMultiplier(5.0),
        loss=li.Logistic(ridge=0.1),
    )
    assert li.Run.from_json(run.to_json()) == run


@pytest.mark.parametrize(
    "text, word",
    [
        ("a = " + "[" * 20_000, "deeper than 64"),
        ("a = " + "{a=" * 20_000, "deeper than 64"),
        (".".join("a" * 20_000) + " = 1", "deeper than 64"),
        ("[" + ".".join("a" * 20_000) + "]", "deeper than 64"),
        ('"a" . ' * 100 + "b = 1", "deeper than 64"),
        ("a = " + "9" * 5000, "valid TOML"),
        ("a = 0x" + "f" * 1000, "2^63"),
        ("b = [[1, {c = 0x1_0000_0000_0000_0000}]]", "2^63"),
        ("a = '''" + "x" * 10, "TOML"),
        ('a = """' + '\\"""' * 10, "TOML"),
        ('a = "x', "TOML"),
    ],
    ids=range(11),
)
def test_toml_that_breaks_a_reader_is_refused(text, word, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(text)
    refused(lambda: serialization.read_toml(path, "schema"), "schema ", word)
    refused(lambda: read_statement(path), "statement ", word)
    refused(lambda: Schema.read(path), "schema ", word)
    code = CliRunner().invoke(app, ["schema", str(path), "--like", str(path)])
    assert code.exit_code == 2 and isinstance(code.exception, SystemExit)


def test_what_stands_in_texts_and_comments_nests_nothing(tmp_path):
    path = tmp_path / "s.toml"
    deep = "[" * 100 + "{" * 100 + "." * 100
    text = f'a = "{deep}"  # {deep}\nb = \'{deep}\'\nc = """\n{deep}"" \\""" """\nd = \'\'\'{deep}\'\'\'\n'
    path.write_text(text + "e = [" + "1.5, " * 200 + "]\nf = " + "[" * 60 + "]" * 60 + "\r\n")
    read = serialization.read_toml(path, "schema")
    assert (
        read["a"] == read["b"] == read["d"] == deep and read["e"] == [1.5] * 200 and len(read) == 6
    )


def test_a_toml_file_without_an_end_is_refused(tmp_path):
    path = tmp_path / "s.toml"
    path.touch()
    os.truncate(path, limits.TOML + 1)
    refused(lambda: Schema.read(path), "at most 8 MiB")
    refused(lambda: Schema.read("/dev/zero"), "at most 8 MiB")
    refused(
        lambda: step_size("@" + str(_sparse(tmp_path / "steps", limits.TEXT + 1))),
        "at most 128 MiB",
    )


def _sparse(path, size):
    path.touch()
    os.truncate(path, size)
    return path


def test_a_schema_of_ten_thousand_columns_is_read(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(",".join([f"c{number}" for number in range(10_000)] + ["y"]) + "\n")
    template = schema_template(
        path, columns=",".join(f"c{number}:number" for number in range(10_000))
    )
    filled = (
        template.replace('low = "?"', "low = 0")
        .replace('high = "?"', "high = 1")
        .replace('["?"]', '["0", "1"]')
    )
    assert len(filled) < limits.TOML / 3
    names = [f"c{number}" for number in range(10_000)]
    schema = Schema(
        tuple(li.data.Numeric(name, 0, 1) for name in names),
        classes=("0", "1"),
        header=(*names, "y"),
    )
    assert len(schema.header) == 10_001
    refused(lambda: Schema(schema.columns * 2, classes=("0", "1")), "a column twice")


def test_a_table_has_a_limit_of_columns_and_of_a_record(tmp_path, monkeypatch):
    path = tmp_path / "d.csv"
    path.write_text(
        ",".join(f"c{number}" for number in range(50_000)) + "\n" + ",".join("0" * 50_000) + "\n"
    )
    assert len(read_table(path).names) == 50_000
    monkeypatch.setattr(limits, "COLUMNS", 49_999)
    refused(lambda: read_table(path), "at most 49,999 columns")
    refused(lambda: schema_template(path), "at most 49,999 columns")
    monkeypatch.setattr(limits, "RECORD", 1000)
    for content in (
        b"x" * 5000,
        b"a,b\n" + b"x" * 5000,
        b"a,b\n" + b"," * 5000,
        b'a,b\n"' + b"\n" * 5000,
        b"a,b\n" + b'"\n",' * 1000,
    ):
        path.write_bytes(content)
        packed = tmp_path / "e.csv.gz"
        packed.write_bytes(gzip.compress(content))
        for file in (path, packed):
            refused(lambda file=file: read_table(file), "at most 1,000 characters in a record")
            refused(lambda file=file: open_stream(file), "at most 1,000 characters in a record")
    path.write_text("a,b\n" + ('"' + "x\n" * 400 + '",1\n') * 5)
    assert len(read_table(path)) == 5, "each record by itself is short enough"


def test_millions_of_empty_cells_are_refused_by_the_memory_there_is(tmp_path, monkeypatch):
    path = tmp_path / "d.csv"
    path.write_text("a,b\n" + ",\n" * 1000)
    assert len(read_table(path, header=True)) == 1000
    monkeypatch.setattr(limits, "memory", lambda: 50_000.0)
    refused(lambda: read_table(path, header=True), "must fit into this machine's memory")
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"a": [1] * 10_000, "b": [1] * 10_000}), tmp_path / "d.parquet")
    refused(lambda: read_table(tmp_path / "d.parquet"), "must fit into this machine's memory")


def test_standard_input_has_an_end(tmp_path, monkeypatch):
    from lastiterate.limits import limit_unpacking

    class Endless:
        buffer = io.BytesIO(b"a,b\n" + b"1,2\n" * 1000)

    monkeypatch.setattr(sys, "stdin", Endless)
    with limit_unpacking(500):
        refused(lambda: read_table("-"), "must not unpack to more than 500 bytes")


def test_an_array_has_a_limit_of_numbers_in_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FEATURES", 99)
    wide = np.zeros((2, 100), np.uint8)
    np.save(tmp_path / "d.npy", wide)
    np.savez_compressed(tmp_path / "d.npz", X=wide)
    (tmp_path / "a-images-idx2-ubyte").write_bytes(
        struct.pack(">BBBB2I", 0, 0, 8, 2, 2, 100) + wide.tobytes()
    )
    for name in ("d.npy", "d.npz", "a-images-idx2-ubyte"):
        refused(lambda name=name: read_table(tmp_path / name), "at most 99 numbers in a record")
    for name in ("d.npy", "a-images-idx2-ubyte"):
        refused(lambda name=name: open_stream(tmp_path / name), "at most 99 numbers in a record")


@pytest.mark.parametrize(
    "sizes", [(1, 2**32 - 1, 2**32 - 1), (2**32 - 1,) * 8, (1,) * 200, (0, 4), (2, 0)], ids=str
)
@pytest.mark.parametrize("packed", [False, True])
def test_sizes_that_a_header_invents_are_refused(sizes, packed, tmp_path):
    content = struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + bytes(1)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(gzip.compress(content) if packed else content)
    refused(lambda: read_table(path), "IDX header")
    refused(lambda: open_stream(path), "IDX header")


def test_an_archive_that_claims_more_than_it_has_is_refused(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("X.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 10**6)}
        )
        file.write(bytes(1000))
    refused(lambda: read_table(tmp_path / "d.npz"), "complete .npz archive")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    run = li.Run(
        n=60, steps=5, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
    )
    model = li.train(run, (rng.normal(size=(60, 2)), rng.integers(0, 2, 60)), delta=1e-5)
    return model.save(tmp_path_factory.mktemp("m") / "model")


def test_a_sparse_file_of_a_terabyte_is_not_hashed(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "c")
    _sparse(copy / "page.bin", 2**40)
    assert li.verify(copy).holds and "page.bin was added" in li.verify(copy).uncovered[0], (
        "nobody listed it"
    )
    listed = json.loads((copy / "manifest.json").read_text())["sha256"] | {"page.bin": "0" * 64}
    (copy / "manifest.json").write_bytes(manifest._form(listed))
    found = li.verify(copy)
    assert len(found.problems) == 1
    assert "page.bin has 1,099,511,627,776 bytes, and was not compared" in found.problems[0]
    (copy / "model.sig").write_text("{}")
    said = signature_problems(copy, key=copy / "none.pem", chain=())
    assert len(said) == 1 and "the signature was not checked" in said[0]
    with pytest.raises(li.InputError, match="that can be signed"):
        (copy / "model.sig").unlink()
        sign_folder(copy, key=copy / "none.pem")


def test_weights_larger_than_memory_are_refused_before_they_are_read(folder, tmp_path, monkeypatch):
    copy = shutil.copytree(folder, tmp_path / "c")
    _sparse(copy / "weights.safetensors", 2**40)
    for act in (li.verify, li.load):
        refused(
            lambda act=act: act(copy),
            "weights.safetensors must take at most half of this machine's memory",
        )
    shutil.copy(folder / "weights.safetensors", copy)
    assert li.verify(copy).holds
    size = (copy / "weights.safetensors").stat().st_size
    monkeypatch.setattr(limits, "memory", lambda: 2.0 * size)
    assert li.verify(copy).holds
    monkeypatch.setattr(limits, "memory", lambda: 2.0 * size - 1)
    refused(lambda: li.verify(copy), "half of this machine's memory")
