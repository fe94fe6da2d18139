"""Files that are held in memory are read block by block: the same bits, and the same refusals, as of
one table."""

import csv
import gzip
import random
import tomllib
from urllib.parse import quote

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Schema, blocks, encode, encoding, read_table, readers, record_source
from lastiterate.data.encoding import encode_public, find_faults
from lastiterate.data.file_stream import SelectedRecords
from lastiterate.data.record_source import EncodedSource, find_faults_of, open_table
from lastiterate.errors import InputError
from lastiterate.features import column_maps as maps
from lastiterate.release.forget_file import Request, _locate_records
from lastiterate.release.units import Units

KINDS = ("csv", "csv.gz", "parquet", "parts", "feather", "arrow", "hive")
TOWNS = ("Bonn", "Ulm", "7", "7.50", "Köln, Süd")
COLUMNS = {
    "age": {"kind": "number", "low": 0, "high": 90, "outside": "refuse", "missing": 40},
    "size": {"kind": "number", "low": -2, "high": 2, "missing": "indicator"},
    "bill": {"kind": "number", "low": 1, "high": 1000, "scale": "log"},
    "town": {"kind": "category", "values": list(TOWNS), "outside": "refuse", "missing": "zero"},
    "seen": {"kind": "date", "first": "2020-01-01", "last": "2024-12-31", "missing": "indicator"},
    "note": {"kind": "text"},
    "who": {"kind": "id"},
    "rest": {"kind": "ignore"},
    "run": {"kind": "ignore"},
}
FAULTS = {
    "age": ("old", "91", "-1", "1_0"),
    "size": ("big", "1,5"),
    "bill": ("", "NA", "much"),
    "town": ("Oslo", "bonn"),
    "seen": ("soon", "31.01.2021"),
    "y": ("maybe", ""),
}


def schema_of(*, comma: bool = False, numbers: bool = False) -> Schema:
    target = {"target_range": [0, 5]} if numbers else {"classes": ["no", "yes"]}
    written = {"decimal": ",", "dates": "day.month.year"} if comma else {}
    return Schema.from_dict(
        {"target": "y", "source": "made up", "columns": COLUMNS, "features": "words"}
        | target
        | written
    )


def make_columns(rng: random.Random, n: int, *, comma: bool, numbers: bool) -> dict[str, list[str]]:
    """Cells as text, each in one of the ways in which programs write them."""

    def number(low: float, high: float) -> str:
        text = rng.choice([f"{rng.uniform(low, high):.{rng.randint(0, 6)}f}", str(int(high))])
        return text.replace(".", ",") if comma else text

    def day() -> str:
        year, month, of_month = rng.randint(2019, 2025), rng.randint(1, 12), rng.randint(1, 28)
        if comma:
            return f"{of_month:02}.{month:02}.{year}"
        return f"{year}-{month:02}-{of_month:02}" + rng.choice(["", " 10:30:00"])

    def some(make, *marks: str) -> list[str]:
        return [rng.choice(marks) if marks and rng.random() < 0.1 else make() for _ in range(n)]

    return {
        "age": some(lambda: number(0, 90), "", "NA", "?", "true"),
        "size": some(lambda: number(-3, 3), "nan", ""),
        "bill": some(lambda: number(1, 2000)),
        "town": some(lambda: rng.choice(TOWNS), "", "7.0"),
        "seen": some(day, "", "null"),
        "note": some(lambda: " ".join(rng.choices(["fine", 'say "no"', "a,b", "x\ny"], k=3)), ""),
        "who": some(lambda: str(rng.randint(1, max(2, n // 2)))),
        "rest": some(lambda: rng.choice(["", "x"])),
        "y": some(lambda: number(-1, 6) if numbers else rng.choice(["no", "yes"])),
    }


def write(folder, kind, columns):
    path = folder / (kind if kind in ("parts", "hive") else f"d.{kind}")
    if kind.startswith("csv"):
        opened = gzip.open if kind.endswith("gz") else open
        with opened(path, "wt", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([list(columns), *zip(*columns.values(), strict=True)])
        return path
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({name: pa.array(cells) for name, cells in columns.items()})
    if kind == "feather":
        feather = pytest.importorskip("pyarrow.feather")
        feather.write_feather(table, path, compression="zstd", chunksize=13)
        return path
    if kind == "arrow":
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
        return path
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=9)
        return path
    path.mkdir()
    if kind == "hive":  # a column of every part has one value, which its folder says
        for town in sorted({*TOWNS, *columns["town"]}):
            rows = table.filter(pa.compute.equal(table["town"], town)).drop_columns(["town"])
            below = path / f"town={quote(town) or '__HIVE_DEFAULT_PARTITION__'}" / "run=1"
            below.mkdir(parents=True)
            if len(rows):
                pq.write_table(rows, below / "0.parquet", row_group_size=9)
        return path
    for part, first in enumerate(range(0, len(table), 17)):
        pq.write_table(table.slice(first, 17), path / f"{part:03}.parquet")
    return path


@pytest.fixture
def small(monkeypatch):
    """Blocks, slices and batches of a few records."""
    monkeypatch.setattr(blocks, "BLOCK", 700)
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(record_source, "AT_ONCE", 11)
    for module in (encoding, maps):
        monkeypatch.setattr(module, "SLICE", 8)


def in_blocks(path, schema):
    return EncodedSource(open_table(path, schema), schema)


def said(act) -> str:
    with pytest.raises(InputError) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("comma", [False, True], ids=["point", "comma"])
@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
def test_rows_are_those_of_the_whole_table_to_the_last_bit(tmp_path, small, kind, comma, numbers):
    schema = schema_of(comma=comma, numbers=numbers)
    columns = make_columns(
        random.Random(f"{kind}{comma}{numbers}"), 300, comma=comma, numbers=numbers
    )
    path = write(tmp_path, kind, columns)
    source, whole = in_blocks(path, schema), encode(read_table(path, schema), schema)
    assert len(source) == 300
    public = encode_public(read_table(path, schema), schema)
    for found, wanted in (
        *zip(source.read_whole(), whole, strict=True),
        *zip(source.read_whole(public=True), public, strict=True),
    ):
        assert found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def test_maps_get_the_same_records_at_once(tmp_path, small, monkeypatch):
    """Products of matrices round in another way where they have other rows."""
    columns = make_columns(random.Random(12), 100, comma=False, numbers=False)
    path, schema, seen = write(tmp_path, "csv", columns), schema_of(), []
    mapping = maps._map_fields

    def map_fields(parts, given):
        seen.append(list(given[0]))
        return mapping(parts, given)

    monkeypatch.setattr(maps, "_map_fields", map_fields)
    encode(read_table(path, schema), schema)
    whole = list(seen)
    seen.clear()
    in_blocks(path, schema).read_whole()
    assert seen == whole and len(whole) == 13


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_of_several_faults_the_one_of_the_whole_table_is_told(tmp_path, small, kind, seed):
    """Also where a column has faults of several kinds, which are looked for one after the other."""
    rng = random.Random(seed)
    columns = make_columns(rng, 120, comma=False, numbers=False)
    for name in rng.sample(list(FAULTS), rng.randint(1, 3)):
        for cell in rng.sample(FAULTS[name], rng.randint(1, len(FAULTS[name]))):
            columns[name][rng.randrange(120)] = cell
    path, schema = write(tmp_path, kind, columns), schema_of()
    table, source = read_table(path, schema), in_blocks(path, schema)
    try:
        encode(table, schema)
    except InputError as error:
        assert said(source.read_whole) == str(error)
    else:
        source.read_whole()
    whole = [str(fault) for fault in find_faults([table], schema)]
    assert [str(fault) for fault in find_faults_of(source.stream, schema)] == whole


@pytest.mark.parametrize("rule", ["missing", "outside"])
def test_a_column_is_refused_for_its_first_reason_wherever_it_stands(tmp_path, small, rule):
    """Other text comes before a missing value, and that before a number outside the range."""
    columns = make_columns(random.Random(1), 100, comma=False, numbers=False)
    facts = schema_of().to_dict()
    facts["columns"]["age"]["missing"] = "refuse"
    columns["age"] = ["5"] * 100
    columns["age"][3] = "95"
    columns["age"][97] = "" if rule == "missing" else "old"
    path, schema = write(tmp_path, "csv", columns), Schema.from_dict(facts)
    told = said(in_blocks(path, schema).read_whole)
    assert "in record 98" in told
    assert told == said(lambda: encode(read_table(path, schema), schema))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\n\n", 40),
        lambda text: text + "one,more\n",
        lambda text: text[: len(text) // 2].rsplit(",", 1)[0] + "\n",
        lambda text: text.replace(",", ',"', 400),
        lambda text: text.replace("Bonn", "Bo\0nn", 1),
        lambda text: text.split("\n")[0] + "\n",
        lambda text: text.split("\n")[0],
        lambda text: "",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: "# made by a program\n" + text,
        lambda text: text.replace("age", "Age", 1),
        lambda text: text.replace(",y", ",z", 1),
        lambda text: text.replace(",rest", ",more", 1),
    ],
)
def test_other_tables_are_read_or_refused_alike(tmp_path, small, change):
    path, schema = tmp_path / "d.csv", schema_of()
    columns = make_columns(random.Random(2), 60, comma=False, numbers=False)
    columns["note"] = ["fine"] * 60
    write(tmp_path, "csv", columns)
    path.write_bytes(change(path.read_bytes().decode().replace("\r\n", "\n")).encode())
    seen = []
    for read in (
        lambda: encode(read_table(path, schema), schema),
        lambda: in_blocks(path, schema).read_whole(),
    ):
        try:
            seen.append([part.tobytes() for part in read()])
        except InputError as error:
            seen.append(str(error))
    assert seen[0] == seen[1]


def test_the_structure_of_a_file_is_refused_before_a_value_is_looked_at(tmp_path, small):
    """What is counted before a charge says nothing about what cells hold."""
    columns = make_columns(random.Random(3), 60, comma=False, numbers=False)
    columns["age"][10] = "old"
    path = write(tmp_path, "csv", columns)
    assert len(open_table(path, schema_of())) == 60
    with path.open("a") as file:
        file.write("cut,off")
    assert "cells in every record" in said(lambda: open_table(path, schema_of()))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_units_are_those_of_the_whole_table(tmp_path, small, kind):
    schema = schema_of()
    columns = make_columns(random.Random(4), 200, comma=False, numbers=False)
    columns["who"][5:8] = ["12.0", "12", " 12"]
    path, units = write(tmp_path, kind, columns), Units("who", 2)
    table, who = units.limit_rows(read_table(path, schema), schema)
    stream, numbered = units.limit_rows(open_table(path, schema), schema)
    assert isinstance(stream, SelectedRecords) and len(stream) == len(table) < 200
    same = who[:, None] == who[None]
    np.testing.assert_array_equal(numbered[:, None] == numbered[None], same)
    for found, wanted in zip(
        EncodedSource(stream, schema).read_whole(), encode(table, schema), strict=True
    ):
        assert found.tobytes() == wanted.tobytes()
    later = [piece[0] for piece in EncodedSource(stream, schema).pieces(7, 50)]
    np.testing.assert_array_equal(np.concatenate(later), encode(table, schema)[0][50:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", ["", "007", "7.5e8"])
def test_units_are_refused_as_in_a_whole_table(tmp_path, small, kind, cell):
    columns = make_columns(random.Random(5), 60, comma=False, numbers=False)
    columns["who"][50:52] = [cell, "7"]
    path, schema = write(tmp_path, kind, columns), schema_of()
    told = [
        said(lambda table=table: Units("who", 1).limit_rows(table, schema))
        for table in (read_table(path, schema), open_table(path, schema))
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_row_of_a_unit_has_its_number_in_the_file(tmp_path, small, kind):
    columns = make_columns(random.Random(6), 90, comma=False, numbers=False)
    columns["who"] = [str(i // 2) for i in range(90)]
    columns["bill"][71], columns["bill"][72] = "much", "more"  # the first is not used
    path, schema = write(tmp_path, kind, columns), schema_of()
    stream, _ = Units("who", 1).limit_rows(open_table(path, schema), schema)
    table, _ = Units("who", 1).limit_rows(read_table(path, schema), schema)
    told = said(lambda: encode(table, schema))
    assert "in record 73" in told or kind == "hive", "folders have another order"
    assert said(EncodedSource(stream, schema).read_whole) == told
    assert str(find_faults_of(stream, schema)[0]) == told


def test_a_file_that_changes_between_two_readings_is_refused(tmp_path, small):
    columns = make_columns(random.Random(7), 60, comma=False, numbers=False)
    path, schema = write(tmp_path, "csv", columns), schema_of()
    source = in_blocks(path, schema)
    with path.open("a") as file:
        file.write(path.read_text().splitlines()[-1] + "\n")
    assert "changed while it was read" in said(source.read_whole)


def test_a_file_without_pyarrow_is_read_alike(tmp_path, small, monkeypatch):
    import sys

    columns = make_columns(random.Random(8), 100, comma=False, numbers=False)
    path, schema = write(tmp_path, "csv", columns), schema_of()
    whole = encode(read_table(path, schema), schema)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    assert in_blocks(path, schema).read_whole()[0].tobytes() == whole[0].tobytes()


def test_columns_that_are_not_read_cost_nothing(tmp_path, monkeypatch):
    """Of Parquet only the columns of the schema are decoded."""
    pq = pytest.importorskip("pyarrow.parquet")
    columns = make_columns(random.Random(9), 50, comma=False, numbers=False)
    path, asked = write(tmp_path, "parquet", columns), []
    reading = pq.ParquetFile.iter_batches

    def iterate(self, **settings):
        asked.append(settings["columns"])
        return reading(self, **settings)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iterate)
    in_blocks(path, schema_of()).read_whole()
    assert asked == [["age", "size", "bill", "town", "seen", "note", "y"]]


def test_stream_gives_selected_rows_from_any_record_on(tmp_path, small):
    columns = make_columns(random.Random(10), 80, comma=False, numbers=False)
    path, schema = write(tmp_path, "csv", columns), schema_of()
    source = li.data.stream(path, schema)
    whole = source.read_whole()[0]
    for first in (0, 1, 37, 79):
        rows = np.concatenate([piece[0] for piece in source.pieces(5, first)])
        np.testing.assert_array_equal(rows, whole[first:])


# Folders COLUMN=VALUE, and Arrow files.

FOLDERS = {
    "target": "y",
    "classes": ["no", "yes"],
    "source": "made up",
    "columns": {
        "a": {"kind": "number", "low": 0, "high": 9},
        "year": {"kind": "number", "low": 2000, "high": 2030, "missing": "indicator"},
        "who": {"kind": "id"},
    },
}


def write_part(path, values, **more):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"a": values, "y": ["no", "yes"] * (len(values) // 2)} | more
    pq.write_table(pa.table(columns), path)


def test_folders_of_hive_give_columns(tmp_path):
    """Their names are numbers, categories, missing values, and units."""
    for year, who, first in (("2024", "ann b", 0), ("2025", "bob", 4), (None, "cy", 2)):
        name = "__HIVE_DEFAULT_PARTITION__" if year is None else year
        below = tmp_path / "d" / f"year={name}" / f"who={quote(who)}"
        write_part(below / "0.parquet", [first, first + 1])
        write_part(below / "1.parquet", [9, 9])
    schema = Schema.from_dict(FOLDERS)
    table, source = read_table(tmp_path / "d", schema), in_blocks(tmp_path / "d", schema)
    assert table.names == ("a", "y", "year", "who")
    assert list(table.cells["who"]) == ["ann b"] * 4 + ["bob"] * 4 + ["cy"] * 4
    rows, _ = source.read_whole()
    np.testing.assert_array_equal(rows, encode(table, schema)[0])
    assert rows[0, 1] == np.float32(24 / 30 * 2 - 1) and rows[-1, 2] == 1 and len(rows) == 12
    kept, _ = Units("who", 1).limit_rows(source.stream, schema)
    assert len(kept) == 3
    template = li.data.schema_template(tmp_path / "d", target="y")
    assert '[columns."year"]' in template and '[columns."who"]' in template
    with pytest.raises(InputError, match="schema does not describe"):
        del (facts := schema.to_dict())["columns"]["year"]
        in_blocks(tmp_path / "d", Schema.from_dict(facts))


def test_a_folder_that_is_named_itself_gives_no_column(tmp_path):
    write_part(tmp_path / "year=2024" / "0.parquet", [1, 2])
    assert read_table(tmp_path / "year=2024").names == ("a", "y")


@pytest.mark.parametrize(
    ("paths", "more", "words"),
    [
        (["year=1/0.parquet", "0.parquet"], {}, "below folders of the same columns"),
        (["year=1/0.parquet", "month=1/0.parquet"], {}, "below folders of the same columns"),
        (["year=1/year=2/0.parquet"], {}, "must hold every column once"),
        (["year=1/0.parquet"], {"year": [1, 2]}, "must hold every column once"),
    ],
)
def test_folders_that_give_no_one_table_are_refused(tmp_path, paths, more, words):
    for path in paths:
        write_part(tmp_path / path, [1, 2], **more)
    schema = Schema.from_dict(FOLDERS)
    for read in (read_table, open_table):
        assert words in said(lambda read=read: read(tmp_path, schema))


def test_damaged_arrow_files_are_refused_in_a_sentence(tmp_path):
    feather = pytest.importorskip("pyarrow.feather")
    pa, rng, schema = pytest.importorskip("pyarrow"), random.Random(11), Schema.from_dict(FOLDERS)
    table = pa.table({"a": [1, 2] * 20, "year": [2024.0] * 40, "who": ["x"] * 40, "y": ["no"] * 40})
    path = tmp_path / "d.feather"
    for compression in ("uncompressed", "lz4", "zstd"):
        feather.write_feather(table, path, compression=compression, chunksize=7)
        whole = path.read_bytes()
        for _ in range(25):
            content = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                content[rng.randrange(len(content))] = rng.randrange(256)
            path.write_bytes(
                content[: rng.randrange(len(content))] if rng.random() < 0.2 else content
            )
            try:
                in_blocks(path, schema).read_whole()
            except InputError as error:
                assert "\n" not in str(error)
    feather.write_feather(table, path, version=1)
    assert "Feather of version 2" in said(lambda: open_table(path, schema))
    path.write_bytes(b"year,who\n")
    assert "complete Arrow file, which starts with ARROW1" in said(lambda: open_table(path, schema))


def test_arrow_files_need_pyarrow(tmp_path, monkeypatch):
    import sys

    (tmp_path / "d.arrow").write_bytes(b"ARROW1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = said(lambda: read_table(tmp_path / "d.arrow"))
    assert "in Arrow needs pyarrow" in told and "pip install lastiterate[parquet]" in told


def test_an_address_in_a_store_is_refused_with_a_way(tmp_path):
    for read in (read_table, li.data.stream):
        told = said(lambda read=read: read("ftp://host/d.parquet"))
        assert "must be a file, or an address" in told and "copy it to a disk" in told
        assert "copy it" not in said(lambda read=read: read(tmp_path / "d.parquet"))


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "parts", "feather"])
def test_a_public_sample_is_looked_at_in_parts(tmp_path, monkeypatch, kind):
    """The kinds of columns are those of all of its cells, wherever the odd one stands."""
    columns = make_columns(random.Random(13), 60, comma=False, numbers=False)
    for name, odd in {"age": "old", "seen": "soon", "note": "twice as odd"}.items():
        columns[name] = [f"{i}" if name == "age" else f"2024-01-{i % 28 + 1:02}" for i in range(60)]
        if name == "note":
            columns[name] = [f"one of many {i}" for i in range(60)]
        columns[name][59] = odd
    columns["age"][58], columns["rest"] = "", [f"no {i % 59}" for i in range(60)]
    path, found = write(tmp_path, kind, columns), []
    for records in (7, 1000):
        monkeypatch.setattr(readers, "AT_ONCE", records)
        found.append(li.data.schema_template(path, sample=path, target="y", header=True))
    assert found[0] == found[1]
    kinds = {name: facts["kind"] for name, facts in tomllib.loads(found[0])["columns"].items()}
    assert kinds["age"] == kinds["seen"] == kinds["rest"] == "category" != kinds["note"] == "text"
    assert kinds["bill"] == "number"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [None, 1], ids=["all rows", "one of each"])
@pytest.mark.parametrize("ids", ["who", None], ids=["names", "numbers"])
def test_records_to_forget_are_those_of_the_whole_table(tmp_path, small, kind, rows, ids):
    columns = make_columns(random.Random(14), 90, comma=False, numbers=False)
    columns["who"][20:23] = ["12.0", "12", " 12"]
    path, schema, remove = write(tmp_path, kind, columns), schema_of(), tmp_path / "ids.txt"
    tables = [read_table(path, schema), open_table(path, schema)]
    if rows is not None:
        tables = [Units("who", rows).limit_rows(table, schema)[0] for table in tables]
    kept = np.arange(90) if rows is None else np.flatnonzero(tables[0].kept)
    lines = ["12", columns["who"][40], ""] if ids else [str(kept[3] + 1), str(kept[-1] + 1)]
    asked = Request(model="m", data=str(path), remove=remove, epsilon=1.0, ids=ids)
    for more in ([], ["91"] if ids is None else ["nobody"]):
        remove.write_text("\n".join([*lines, *more]))
        found = []
        for table in tables:
            try:
                found.append(_locate_records(asked, table, len(table), "who").tolist())
            except InputError as error:
                found.append(str(error))
        assert found[0] == found[1] and isinstance(found[0], list) == (not more)
    if ids is None:
        remove.write_text("\n".join(lines))
        assert _locate_records(asked, tables[1], len(kept), "who").tolist() == [3, len(kept) - 1]
