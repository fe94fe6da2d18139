"""Forgetting in a file that is larger than memory: the model, the charge and the refusals of one
that fits."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.engine.streaming import steps as streaming_steps
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError
from lastiterate.ledger.ledger import Ledger
from lastiterate.release import data_file, forget_file, ledger_charge
from lastiterate.release.ledger_charge import compute_keyed_digest, make_charging
from lastiterate.release.model_kinds import SAMPLED, SELECTED, UNLEARNED
from lastiterate.release.pipeline import finish
from lastiterate.release.reduced_data import (
    ReducedSource,
    ZeroedSource,
    check_classes_of,
)
from lastiterate.release.unlearning import make_order, plan_forgetting, read_training

N, D = 400, 5
rng = np.random.default_rng(0)
X = rng.normal(size=(N, D)).astype(np.float32)
Y = (X @ rng.normal(size=D) > 0).astype(int)


class Uneven(Arrays):
    """Pieces that cut blocks anywhere."""

    dear = True

    def pieces(self, most, first=0):
        return super().pieces(min(most, 23), first)


def forget(model, data, gone, seed=1, **more):
    before = read_training(model, (), (), None)
    plan = plan_forgetting(before, len(gone), epsilon=1.0, delta=1e-5, most=20)
    order = make_order(before, plan, data, gone, 1.0, 1e-5, make_charging(), seed, **more)
    return finish(UNLEARNED, order)


RUN = li.Run(n=N, steps=40, step_size=1.0, batching=li.Cyclic(40), loss=li.Logistic(ridge=0.02))
PREPARED = {
    "plain": (),
    "unit rows": (li.UnitRows(),),
    "mean": (li.UnitRows(), li.PrivateMean(30.0, 1.0)),
}


@pytest.mark.parametrize("parts", PREPARED.values(), ids=PREPARED)
def test_pieces_make_the_model_of_memory(parts):
    model = li.train(replace(RUN, preprocessing=parts), (X, Y), epsilon=4.0, delta=1e-5, seed=0)
    gone = (5, 22, 23, 399)
    whole = forget(model, (X, Y), gone)
    pieces = forget(model, Uneven((X, Y)), gone)
    np.testing.assert_allclose(pieces.released.weights, whole.released.weights, atol=1e-6)
    assert pieces.certificate.to_json(1e-5) == whole.certificate.to_json(1e-5)
    # the next request, on what is left
    left = tuple(np.delete(part, gone, axis=0) for part in (X, Y))
    more = [forget(found, given, (0, 395)) for found, given in (
        (whole, left), (pieces, Uneven(left))
    )]  # fmt: skip
    np.testing.assert_allclose(more[1].released.weights, more[0].released.weights, atol=1e-6)
    assert more[1].unlearning.removed == 6
    # nothing follows from what a removed record held
    other, answers = X.copy(), Y.copy()
    other[list(gone)], answers[list(gone)] = np.nan, 1 - answers[list(gone)]
    again = forget(model, Uneven((other, answers)), gone)
    assert again.released.weights.tobytes() == pieces.released.weights.tobytes()


@pytest.mark.parametrize("kind", [SELECTED, SAMPLED])
def test_kinds_that_need_all_records_at_once_refuse_pieces(kind):
    model = li.train(RUN, (X, Y), epsilon=4.0, delta=1e-5, seed=0)
    before = read_training(model, (), (), None)
    plan = plan_forgetting(before, 1, epsilon=1.0, delta=1e-5, most=20)
    order = make_order(before, plan, Uneven((X, Y)), (3,), 1.0, 1e-5, make_charging())
    with pytest.raises(InputError, match=f"memory of one device for {kind.name} models"):
        finish(kind, order)
    with pytest.raises(InputError, match="devices must be 1 for unlearned models"):
        finish(UNLEARNED, replace(order, devices=2))


def test_numbers_are_forgotten_like_classes():
    target = np.tanh(X[:, 0]).astype(np.float32)
    run = replace(
        RUN, loss=li.HuberRidge(ridge=0.05), preprocessing=(li.PrivateTargetMean(9.0, 1.0),)
    )
    model = li.train(run, (X, target), epsilon=4.0, delta=1e-5, seed=0)
    whole, pieces = (forget(model, data, (7,)) for data in ((X, target), Uneven((X, target))))
    np.testing.assert_allclose(pieces.released.weights, whole.released.weights, atol=1e-6)


def test_positions_without_a_record_hold_zeros():
    source = ZeroedSource(Uneven((X, Y)), RUN, (), np.array([0, 30]), N + 50)
    parts = [np.concatenate(part) for part in zip(*source.pieces(37), strict=True)]
    present = np.ones(N + 50, np.uint8)
    present[[0, 30, *range(N, N + 50)]] = 0
    np.testing.assert_array_equal(parts[2], present)
    assert not parts[0][present == 0].any() and not parts[1][present == 0].any()
    np.testing.assert_array_equal(parts[0][1:30], X[1:30])
    for first in (29, 31, N - 1, N, N + 7):
        rest = np.concatenate([piece[2] for piece in source.pieces(11, first)])
        np.testing.assert_array_equal(rest, present[first:])
    staying = ReducedSource(Uneven((X, Y)), np.array([0, 30, 399]))
    for first in (0, 29, 100):
        rows = np.concatenate([piece[0] for piece in staying.pieces(11, first)])
        np.testing.assert_array_equal(rows, np.delete(X, [0, 30, 399], axis=0)[first:])


def test_a_digest_of_pieces_is_that_of_arrays():
    assert compute_keyed_digest("key", Uneven((X, Y))) == compute_keyed_digest("key", (X, Y))
    left = tuple(np.delete(part, [3, 77], axis=0) for part in (X, Y))
    staying = ReducedSource(Uneven((X, Y)), np.array([3, 77]))
    assert compute_keyed_digest("key", staying) == compute_keyed_digest("key", left)


def test_the_last_record_of_a_class_stays():
    labels = np.zeros(100, int)
    labels[[40, 90]] = 1
    source = Uneven((X[:100], labels))
    check_classes_of(source, (40,), 2)
    check_classes_of(source, (40, 90), 0)
    with pytest.raises(InputError, match="must leave a record of every class"):
        check_classes_of(source, (40, 90), 2)
    check_classes_of(Uneven((X[:100], np.zeros(100, int))), (40, 90), 2)  # it had none before


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A file with persons and a schema; every file needs more memory than there is, and ids are
    looked for in blocks of seven."""
    lines = ["id,a,b,y", *(
        f"p{i // 2},{a:.3f},{b:.3f},{'yes' if a + b > 0 else 'no'}"
        for i, (a, b) in enumerate(X[:, :2].tolist())
    )]  # fmt: skip
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "d.toml").write_text(
        'target = "y"\nclasses = ["no", "yes"]\n[columns.id]\nkind = "ignore"\n'
        + "".join(f'[columns.{name}]\nkind = "number"\nlow = -3\nhigh = 3\n' for name in "ab")
    )
    (tmp_path / "ids").write_text("p5\np77\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forget_file, "TEXTS", 7)
    return tmp_path


def command(*words, code=0):
    ended = CliRunner().invoke(app, list(map(str, words)))
    assert ended.exit_code == code, ended.output
    return ended.output


@pytest.mark.parametrize("trained", ["whole", "pieces"])
def test_a_file_larger_than_memory_forgets_with_its_ledger(place, monkeypatch, trained):
    command(
        "ledger", "make", "l", "--dataset", "d", "--unit", "row", "--delta", 1e-3, "--epsilon", 9
    )
    ledger = ("--ledger", "l", "--dataset", "d")
    train = ("train", "d.csv", "--epsilon", 2, "--delta", 1e-5, "--algorithm", "forgetting-sgd")
    command(*train, *ledger, *["--stream"] * (trained == "pieces"), "--out", "m")
    how = ("--epsilon", 1, "--delta", 1e-5, *ledger)
    monkeypatch.setattr(data_file, "PROGRAM", 10**9 - 10**3)
    said = command(
        "forget",
        "m",
        "d.csv",
        "--remove",
        "ids",
        "--ids",
        "id",
        *how,
        "--memory",
        "1GB",
        "--out",
        "m2",
    )
    assert "read piece by piece" in said and "--memory 1000000000 leaves them 1e-06 GB" in said
    assert "forgot 4 records" in " ".join(said.split())
    assert li.verify("m2") and li.load("m2").unlearning.removed == 4
    # the ledger knows what is left, whoever reads it in one piece
    lines = (place / "d.csv").read_text().splitlines(keepends=True)
    (place / "left.csv").write_text(
        "".join(line for line in lines if not line.startswith(("p5,", "p77,")))
    )
    (place / "one").write_text("1\n")
    again = ("--remove", "one", *how)
    refused = command("forget", "m2", "d.csv", *again, "--memory", "1GB", "--out", "m3", code=2)
    assert "the ledger knows others" in refused and not (place / "m3").exists()
    for name, more in (("m3", ()), ("m4", ("--memory", "1GB"))):
        said = command("forget", "m2", "left.csv", *again, *more, "--out", name)
        assert ("piece by piece" in said) == bool(more)
    assert [line.purpose for line in Ledger(place / "l").total("d").releases] == [
        "train",
        *["forget"] * 3,
    ]
    assert not list(place.glob(".lastiterate*"))


def test_a_file_that_changes_takes_no_trained_model_with_it(place, monkeypatch):
    """What the ledger keeps in mind is read before the first step."""
    command(
        "ledger", "make", "l", "--dataset", "d", "--unit", "row", "--delta", 1e-3, "--epsilon", 9
    )
    read = []
    monkeypatch.setattr(
        streaming_steps.StreamLoop, "execute", lambda *_: read.append("steps") or np.zeros((1, 3))
    )
    plain = ledger_charge.compute_keyed_digest
    monkeypatch.setattr(
        ledger_charge,
        "compute_keyed_digest",
        lambda key, data: read.append("digest") or plain(key, data),
    )
    train = ("train", "d.csv", "--epsilon", 2, "--delta", 1e-5, "--algorithm", "forgetting-sgd")
    command(*train, "--ledger", "l", "--dataset", "d", "--stream", "--out", "m")
    assert read == ["digest", "steps"]


def test_bad_input_is_one_sentence_in_pieces(place, monkeypatch):
    train = ("train", "d.csv", "--epsilon", 2, "--delta", 1e-5, "--algorithm", "forgetting-sgd")
    command(*train, "--out", "m")
    monkeypatch.setattr(data_file, "PROGRAM", 10**9 - 10**3)
    how = ("forget", "m", "d.csv", "--epsilon", 1, "--memory", "1GB", "--out", "m2", "--remove")
    (place / "none").write_text("p5\nnobody\n")
    said = command(*how, "none", "--ids", "id", code=2)
    assert "1 of 2 lines do not, the first is line 2" in said
    said = command(*how, "ids", "--ids", "name", code=2)
    assert "--ids must be a column of the data file" in said
    ones = [str(i + 1) for i, (a, b) in enumerate(X[:, :2].round(3).tolist()) if a + b > 0]
    (place / "class").write_text("\n".join(ones) + "\n")
    assert "must leave a record of every class" in command(*how, "class", code=2)
    (place / "all").write_text("\n".join(str(i + 1) for i in range(N)))
    assert "--remove must leave some records" in command(*how, "all", code=2)
    said = command(*how, "ids", "--ids", "id", "--scratch", "nowhere", code=2)
    assert "--scratch must be a folder that can be written to" in said
    assert "--memory" in command(*how, "ids", "--memory", "1MB", code=2)
    assert not (place / "m2").exists()


def test_one_number_in_two_forms_is_refused_across_blocks(place, monkeypatch):
    lines = (place / "d.csv").read_text().splitlines()
    names = ["id", *(str(i) for i in range(N - 1)), "007"]
    rows = [",".join([name, *line.split(",")[1:]]) for name, line in zip(names, lines, strict=True)]
    (place / "d.csv").write_text("\n".join(rows) + "\n")
    command(
        *("train", "d.csv", "--epsilon", 2, "--delta", 1e-5, "--algorithm", "forgetting-sgd"),
        *("--out", "m"),
    )
    (place / "seven").write_text("7\n")
    monkeypatch.setattr(data_file, "PROGRAM", 10**9 - 10**3)
    how = ("forget", "m", "d.csv", "--epsilon", 1, "--memory", "1GB", "--out", "m2", "--ids", "id")
    said = command(*how, "--remove", "seven", code=2)
    assert "--ids must" in said and "007" in said
