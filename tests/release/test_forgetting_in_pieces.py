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
from lastiterate.ledger.filters import GaussianFilter
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


# ``lastiterate.forget`` of a source.

FORGET = dict(epsilon=1.0, delta=1e-5, epochs=20)


@pytest.fixture(scope="module")
def trained():
    return li.train(RUN, (X, Y), epsilon=4.0, delta=1e-5, seed=0)


def test_a_source_makes_the_model_of_arrays(trained):
    gone = [22, 5, 399, 5]  # a record named twice is forgotten once
    whole = li.forget(trained, X, Y, remove=gone, seed=3, **FORGET)
    pieces = li.forget(trained, Uneven((X, Y)), remove=gone, seed=3, **FORGET)
    np.testing.assert_allclose(pieces.released.weights, whole.released.weights, atol=1e-6)
    assert pieces.certificate.to_json(1e-5) == whole.certificate.to_json(1e-5)
    assert pieces.unlearning.removed == 3
    left = tuple(np.delete(part, gone, axis=0) for part in (X, Y))
    again = li.forget(pieces, Uneven(left), remove=[0], seed=4, **FORGET)
    assert again.unlearning.removed == 4
    pair = (trained.run, trained.released.weights)
    own = li.forget(pair, Uneven((X, Y)), remove=gone, seed=3, **FORGET)
    assert own.released.weights.tobytes() == pieces.released.weights.tobytes()


def test_a_stream_of_a_file_makes_the_model_of_the_command(place):
    train = ("train", "d.csv", "--epsilon", 2, "--delta", 1e-5, "--algorithm", "forgetting-sgd")
    command(*train, "--out", "m")
    model = li.load("m")
    source = li.data.stream("d.csv", model.schema)
    found = li.forget("m", source, remove=[10, 11], seed=3, scratch=place, **FORGET)
    whole = li.forget("m", *source.read_whole(), remove=[10, 11], seed=3, **FORGET)
    np.testing.assert_allclose(found.released.weights, whole.released.weights, atol=1e-6)
    other = replace(model.schema, columns=tuple(
        replace(one, high=4.0) if one.name == "a" else one for one in model.schema.columns
    ))  # fmt: skip
    with pytest.raises(InputError, match=r"x must be read through .*stream\(path, model.schema\)"):
        li.forget(model, li.data.stream("d.csv", other), remove=[1], **FORGET)
    with pytest.raises(InputError, match="scratch must be a folder"):
        li.forget(model, source, remove=[1], scratch="nowhere", **FORGET)
    (place / "d.csv").write_text((place / "d.csv").read_text().replace("p0,", "p9,"))
    with pytest.raises(InputError, match="changed"):
        li.forget(model, source, remove=[1], **FORGET)


class Short(Arrays):
    """One record fewer than it says."""

    dear = True

    def pieces(self, most, first=0):
        for piece in super().pieces(most, first):
            yield tuple(part[:-1] for part in piece) if len(piece[0]) < most else piece


ROUND = Uneven((X, Y))
BAD = {
    "a number beyond the source": (ROUND, dict(remove=[N]), "records of the data, 0 .. 399"),
    "no number": (ROUND, dict(remove=[]), "must be a list of integers"),
    "everybody": (ROUND, dict(remove=range(N)), "must leave some records"),
    "a class": (ROUND, dict(remove=np.flatnonzero(Y == 1)), "leave a record of every class"),
    "targets twice": (ROUND, dict(remove=[1], y=Y), "y must be left out where x is a source"),
    "arrays without targets": (X, dict(remove=[1]), "y must be left out where x is a source"),
    "another width": (Uneven((X[:, :3], Y)), dict(remove=[1]), "the 5 features of the model"),
    "another size": (Uneven((X[1:], Y[1:])), dict(remove=[1]), "the 400 records that are left"),
    "unknown classes": (Uneven((X, Y + 1)), dict(remove=[1]), "must be class indices 0..1"),
    "rows alone": (Uneven((X,)), dict(remove=[1]), r"rows \(m, d\) of numbers and targets"),
    "columns": (Uneven((X, Y[:, None])), dict(remove=[1]), r"rows \(m, d\) of numbers and targets"),
    "fewer records": (Short((X, Y)), dict(remove=[1]), "must hold 400 records in every pass"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_source_is_refused(trained, what):
    source, given, why = BAD[what]
    with pytest.raises(InputError, match=why):
        li.forget(trained, source, **FORGET | given)


def test_a_minimiser_of_arrays_needs_arrays():
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=0.1, fit_intercept=False).fit(X, Y)
    with pytest.raises(InputError, match=r"give rows and labels as arrays: forget\(model, x, y"):
        li.forget(model, Uneven((X, Y)), remove=[1], row_norm=9.0, **FORGET)


def test_numbers_are_no_classes():
    target = np.arange(N) // 100  # integers of which one record alone may hold a value
    target[7] = 9
    run = replace(RUN, loss=li.HuberRidge(ridge=0.05))
    model = li.train(run, (X, target), epsilon=4.0, delta=1e-5, seed=0)
    for data in ((X, target), (Uneven((X, target)),)):
        assert li.forget(model, *data, remove=[7], **FORGET).unlearning.removed == 1
    with pytest.raises(InputError, match="must leave a record of every class"):
        li.forget(
            li.train(RUN, (X, Y), epsilon=4.0, delta=1e-5),
            *(X, Y.astype(float)),
            remove=np.flatnonzero(Y),
            **FORGET,
        )


def test_a_ledger_refuses_a_source_that_changed(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="row", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-5))
    run = replace(RUN, noise=li.GradientNoise(0.05))
    model = li.train(run, Uneven((X, Y)), delta=1e-5, ledger=ledger)
    changed = X.copy()
    changed[300, 2] += 1
    head = ledger.head()
    with pytest.raises(InputError, match="the ledger knows others"):
        li.forget(model, Uneven((changed, Y)), remove=[1], ledger=ledger, **FORGET)
    assert ledger.head() == head
    found = li.forget(model, Uneven((X, Y)), remove=[1], ledger=ledger, **FORGET)
    left = tuple(np.delete(part, 1, axis=0) for part in (X, Y))
    li.forget(found, *left, remove=[1], ledger=ledger, **FORGET)
    assert [line.purpose for line in ledger.total("d").releases] == ["train", "forget", "forget"]


def test_the_memory_of_a_request_does_not_grow_with_the_records():
    """Rows of 200 MB that a function makes are forgotten from in a fraction of that."""
    import tracemalloc

    n, d = 250_000, 200

    def make(first, count):
        each = np.arange(first, first + count)
        rows = (np.add.outer(each * 7919 % 1009, np.arange(d) * 31) % 101 / 50 - 1) / d**0.5
        return rows.astype(np.float32), (each % 2).astype(np.int32)

    loss = li.Logistic(row_norm=1.0, ridge=0.05)
    steps = li.Run(n=n, steps=2, step_size=0.5, noise=li.GradientNoise(0.01), loss=loss)
    pair = (steps, np.zeros((1, d + 1)))
    tracemalloc.start()
    try:
        found = li.forget(
            pair, li.data.Generated(n, make), remove=[5, 9], epsilon=1.0, delta=1e-6, epochs=1
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.unlearning.removed == 2 and peak < n * d * 4 / 2
