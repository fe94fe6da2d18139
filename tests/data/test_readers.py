"""Which reader a path leads to, and what is told when none does."""

from pathlib import Path

import numpy as np
import pytest

from lastiterate.data import read_table
from lastiterate.errors import InputError


def test_unknown_kinds_and_missing_files(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    for name in ("t.xlsx", "none.csv"):
        with pytest.raises(
            InputError, match=r"must be (one of: .*\.parquet.*IDX|an existing file)"
        ):
            read_table(tmp_path / name)


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
