"""``lastiterate papers`` on files, folders and settings that cannot be used: one sentence, before
any work."""

import errno
import gzip
import json
import struct
import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate_papers import ITEMS, Item, Panel, Result, Row, Setting, Trace, real_data
from lastiterate_papers.finished_cells import Cells
from lastiterate_papers.item import by_name

ROWS, TEN, TWO = np.ones((30, 4), np.float16), np.arange(30) % 10, (np.arange(30) % 2)[:, None]
FEATURES = {"x_train": ROWS, "y_train": TEN, "x_test": ROWS, "y_test": TEN}
CHESTS = {
    "train_images": np.ones((30, 28, 28), np.uint8),
    "train_labels": TWO,
    "test_images": np.ones((30, 28, 28), np.uint8),
    "test_labels": TWO,
}


def command(*words):
    return CliRunner().invoke(app, ["papers", *map(str, words)])


def idx(path, array):
    path.parent.mkdir(exist_ok=True)
    head = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


@pytest.fixture
def data(tmp_path):
    """Small files of the right form."""
    np.savez(tmp_path / real_data.CIFAR, **FEATURES)
    np.savez(tmp_path / real_data.PNEUMONIA, **CHESTS)
    for part in ("train", "t10k"):
        idx(tmp_path / f"mnist/{part}-images-idx3-ubyte.gz", np.ones((30, 28, 28)))
        idx(tmp_path / f"mnist/{part}-labels-idx1-ubyte.gz", TEN)
    return tmp_path


@pytest.fixture
def reached(monkeypatch):
    """An item that needs all files; the list grows when it is run."""
    done = []
    panel = Panel("title", "x", "y", (Trace("line", (1.0, 2.0), (1.0, 3.0)),))

    def run(work):
        done.append(work.given)
        return Result((Row("what", 1.0, 1.0),), (panel,))

    item = Item(
        "bok-toy",
        "paper",
        "title",
        "matches",
        run,
        (real_data.CIFAR, real_data.PNEUMONIA, *real_data.MNIST),
        {"n": Setting(3.0, 1, 9, whole=True)},
    )
    monkeypatch.setattr("lastiterate_papers.ITEMS", (item,))
    return done


def test_good_files_are_read(data, reached):
    assert command("bok-toy", "--data-dir", data).exit_code == 0 and reached == [{"n": 3.0}]
    assert real_data.pneumonia(data).y.tolist() == TWO.ravel().tolist() and real_data.cifar(
        data
    ).x.shape == (
        30,
        4,
    )
    images, labels = real_data.mnist_images(data, "train", 7)
    assert images.shape == (7, 28, 28) and labels.tolist() == list(range(7))


DAMAGES = {
    "text": lambda at: (at / real_data.CIFAR).write_text("no archive"),
    "cut": lambda at: (at / real_data.CIFAR).write_bytes((at / real_data.CIFAR).read_bytes()[:300]),
    "keys": lambda at: np.savez(at / real_data.CIFAR, a=ROWS),
    "objects": lambda at: np.savez(
        at / real_data.CIFAR, **FEATURES | {"x_train": np.array([{}], object)}
    ),
    "count": lambda at: np.savez(at / real_data.CIFAR, **FEATURES | {"y_train": TEN[:9]}),
    "columns": lambda at: np.savez(at / real_data.CIFAR, **FEATURES | {"x_test": ROWS[:, :2]}),
    "infinite": lambda at: np.savez(at / real_data.CIFAR, **FEATURES | {"x_train": ROWS * np.inf}),
    "none": lambda at: np.savez(
        at / real_data.CIFAR, **FEATURES | {"x_train": ROWS[:0], "y_train": TEN[:0]}
    ),
    "labels": lambda at: np.savez(at / real_data.PNEUMONIA, **CHESTS | {"test_labels": TWO + 1}),
    "halves": lambda at: np.savez(at / real_data.PNEUMONIA, **CHESTS | {"test_labels": TWO + 0.5}),
    "flat": lambda at: np.savez(at / real_data.PNEUMONIA, **CHESTS | {"train_images": ROWS}),
    "other part's": lambda at: idx(at / "mnist/train-labels-idx1-ubyte.gz", TEN[:10]),
    "shape": lambda at: idx(at / "mnist/t10k-images-idx3-ubyte.gz", np.ones((30, 4, 4))),
    "cut idx": lambda at: (at / real_data.MNIST[0]).write_bytes(
        (at / real_data.MNIST[0]).read_bytes()[:40]
    ),
    "a folder": lambda at: (at / real_data.MNIST[0]).unlink() or (at / real_data.MNIST[0]).mkdir(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_in_a_sentence_before_any_work(damage, data, reached):
    DAMAGES[damage](data)
    done = command("bok-toy", "--data-dir", data, "--out", data / "out", "--json")
    assert (
        done.exit_code == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    )
    assert not reached and not done.stdout and not (data / "out").exists()


def test_all_goes_on_after_an_item_that_fails_and_says_what_it_lacks(data, reached, monkeypatch):
    import lastiterate_papers as papers

    (needs,) = papers.ITEMS
    free = replace(needs, name="bok-free", data=(), settings={})
    monkeypatch.setattr("lastiterate_papers.ITEMS", (needs, free))
    done = command("--all", "--out", data / "out")
    assert done.exit_code == 0 and "bok-toy: data not at hand (needs cifar10" in done.stdout
    assert "1 of 2 items" in done.stdout
    DAMAGES["text"](data)
    done = command("--all", "--out", data / "out", "--data-dir", data, "--json")
    first, second = json.loads(done.stdout)
    assert done.exit_code == 2 and first["status"] == "failed" and "archive" in first["error"]
    assert second["status"] == "matches" and (data / "out/bok-free.json").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(place, data, reached):
    (data / "file").touch()
    for words in (["bok-toy"], ["--all"]):
        done = command(*words, "--data-dir", data, "--out", data / place)
        assert (
            done.exit_code == 2
            and done.stderr.startswith("error: --out must be a folder")
            and not reached
        )


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    cells = Cells.of(tmp_path, {"item": "bok-toy"})
    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.raises(InputError, match="No space left on device"):
        cells.get("piece", lambda: 1)


def test_all_stops_where_nothing_can_be_written(data, reached, monkeypatch):
    import lastiterate_papers as papers

    def full(*_):
        raise InputError("out", "must be a folder that can be written")

    monkeypatch.setattr(
        "lastiterate_papers.ITEMS", (*papers.ITEMS, replace(papers.ITEMS[0], name="bok-more"))
    )
    monkeypatch.setattr("lastiterate_papers.files.write", full)
    done = command("--all", "--out", data / "out", "--data-dir", data)
    assert (
        done.exit_code == 2 and done.stderr.startswith("error: --out must be") and len(reached) == 1
    )


def test_settings_outside_their_interval_are_refused(data, reached):
    for bad in ("n=0", "n=10", "n=2.5"):
        done = command("bok-toy", "--data-dir", data, "--set", bad)
        assert done.exit_code == 2 and "from 1 to 9" in done.stderr
    assert command("bok-toy", "--data-dir", data, "--set", "n=2").exit_code == 0 and reached == [
        {"n": 2.0}
    ]


def test_a_name_that_is_none_leads_to_the_nearest():
    with pytest.raises(InputError, match=r"perhaps bok-table1.*lastiterate papers lists them"):
        by_name(ITEMS, "bok-tabel1")


def test_an_interrupted_item_says_where_its_pieces_are(tmp_path, monkeypatch):
    def run(work):
        work.cell("piece", lambda: 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "lastiterate_papers.ITEMS", (Item("bok-toy", "paper", "title", "matches", run),)
    )
    done = command("bok-toy", "--out", tmp_path / "out")
    assert done.exit_code == 130 and "finished pieces of bok-toy are kept" in done.stderr
    assert "finished pieces" not in command("bok-toy").stderr


def test_the_list_says_once_which_files_are_needed(reached):
    shown = command().stdout
    assert shown.count("cifar10_features.npz") == 1 and "--data-dir names a folder" in shown


def test_without_its_package_the_command_says_so_in_one_sentence(monkeypatch):
    class Absent:
        @staticmethod
        def find_spec(name, *_):
            if name == "lastiterate_papers":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.startswith("lastiterate_papers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    done = command()
    assert done.exit_code == 2 and done.stdout == ""
    assert " ".join(done.stderr.split()) == (
        "error: papers needs the package lastiterate_papers, which is not there; "
        "install lastiterate again: both come together."
    )
