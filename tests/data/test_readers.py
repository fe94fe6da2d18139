"""Which reader a path leads to, and what is told when none does."""

import gzip
import tomllib
from pathlib import Path

import numpy as np
import pytest

from lastiterate.data import read_table, schema_template
from lastiterate.data.csv_files import HeaderRule, read_csv
from lastiterate.data.record_source import estimate_memory, open_stream, streams
from lastiterate.errors import InputError


def test_unknown_kinds_and_missing_files(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    for name in ("t.xlsx", "none.csv"):
        with pytest.raises(
            InputError, match=r"must be (one of: .*\.parquet.*IDX|an existing file)"
        ):
            read_table(tmp_path / name)


@pytest.mark.parametrize(
    "name, way",
    [
        ("t.xlsx", "save the sheet as CSV UTF-8"),
        ("t.csv.zip", "unpack it first"),
        ("t.json", "write its table as CSV or Parquet"),
        ("t.sav", "write its table as CSV or Parquet"),
    ],
)
def test_every_other_kind_of_file_has_a_way_in(tmp_path, name, way):
    (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=way):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["t.txt", "t.dat", "t", "t.{0}.data"])
def test_a_table_of_text_with_another_name_is_read_by_the_name_that_is_said(tmp_path, name):
    (tmp_path / name).write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"call it (\S+\.csv)\.$") as refused:
        read_table(tmp_path / name)
    said = str(refused.value).rsplit(" ", 1)[1].removesuffix(".")
    (tmp_path / name).rename(tmp_path / said)
    assert read_table(tmp_path / said).cells == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize("name", ["t.tsv", "T.TSV", "t.tab", "t.tsv.gz"])
def test_tables_of_tabs_are_read_whole_and_in_pieces(tmp_path, name):
    """Commas in a header do not outnumber the tabs of such a file."""
    text = b"a, b, c, in cm\tn\n1\t2\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    cells = {"a, b, c, in cm": ["1"], "n": ["2"]}
    assert read_table(tmp_path / name).cells == cells and streams(tmp_path / name)
    (piece,) = open_stream(tmp_path / name).tables(9)
    assert piece.cells == cells and estimate_memory(tmp_path / name) > 0
    assert 'columns."a, b, c, in cm"' in schema_template(tmp_path / name)


def test_a_file_of_tabs_that_has_none_is_read_as_its_header_says(tmp_path):
    (tmp_path / "t.tsv").write_text("a,b\n1,2\n")
    assert read_table(tmp_path / "t.tsv").names == ("a", "b")


BODY = "age,job\n1,a\n2,b\n"


@pytest.mark.parametrize(
    "text",
    [
        "sep=,\n" + BODY,
        "sep=;\r\n" + BODY.replace(",", ";"),
        '"sep=;"\n' + BODY.replace(",", ";"),
        "\ufeffsep=|\n" + BODY.replace(",", "|"),
        "# made by a program\n# on Monday, the 3rd, at 12, by us\n" + BODY,
        "sep=;\n# comment\n" + BODY.replace(",", ";"),
        "#\n" + BODY,
        "\n\n" + BODY,
    ],
)
def test_lines_above_a_header_are_no_part_of_the_table(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    assert read_table(tmp_path / "t.csv").cells == {"age": ["1", "2"], "job": ["a", "b"]}
    (piece,) = open_stream(tmp_path / "t.csv").tables(9)
    assert piece.cells == read_table(tmp_path / "t.csv").cells
    assert list(tomllib.loads(schema_template(tmp_path / "t.csv"))["columns"]) == ["age"]


@pytest.mark.parametrize(
    "text, names, records",
    [
        ("#id,age\n1,2\n", (), [["1", "2"]]),  # a header that begins with #
        ("#1,2\n#3,4\n", ("#id", "age"), [["#1", "2"], ["#3", "4"]]),  # and records
        ('#1,"a\nb"\n3,4\n', ("#id", "age"), [["#1", "a\nb"], ["3", "4"]]),
        ('#1,2\n"a\nb",4\n', ("#id", "age"), [["#1", "2"], ["a\nb", "4"]]),
        ("#1,2\n" * 400, ("#id", "age"), [["#1", "2"]] * 400),
    ],
)
def test_no_record_is_taken_for_a_comment(tmp_path, text, names, records):
    (tmp_path / "t.csv").write_text(text)
    table = read_csv(tmp_path / "t.csv", HeaderRule(names=names) if names else HeaderRule(True))
    assert table.names == ("#id", "age")
    assert [list(row) for row in zip(*table.cells.values(), strict=True)] == records


def test_comments_elsewhere_are_refused_with_a_way_out(tmp_path):
    (tmp_path / "t.csv").write_text(BODY + "# the end\n")
    with pytest.raises(InputError, match=r"1 in record 3; .*a comment: leave that line out"):
        read_table(tmp_path / "t.csv")


def test_an_unknown_separator_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("sep=:\n" + BODY.replace(",", ":"))
    with pytest.raises(InputError, match="comma, semicolon, tab or bar separates, got 'sep=: in"):
        read_table(tmp_path / "t.csv")


def test_what_does_not_fit_into_memory(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise MemoryError

    (tmp_path / "a-images-idx3-ubyte").write_bytes(
        bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7])
    )
    assert len(read_table(tmp_path / "a-images-idx3-ubyte")) == 1
    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(InputError, match="memory"):
        read_table(tmp_path / "a-images-idx3-ubyte")


def test_capital_suffixes(tmp_path):
    (tmp_path / "T.CSV").write_text("a,b\n1,2\n")
    assert read_table(tmp_path / "T.CSV").cells == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(
    "name", ["t.csv", "t.npy", "t.bin", "t-images-idx3-ubyte", "test_batch", "plain"]
)
def test_files_that_cannot_be_opened(tmp_path, monkeypatch, name):
    def closed(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    (tmp_path / name).write_bytes(bytes(3073))
    monkeypatch.setattr(Path, "open", closed)
    monkeypatch.setattr(np, "fromfile", closed)
    monkeypatch.setattr(np, "load", closed)
    with pytest.raises(InputError, match="Permission denied") as caught:
        read_table(tmp_path / name)
    assert "\n" not in str(caught.value)
