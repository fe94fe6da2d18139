"""Estimators on memory maps: the bits of a streamed run, refusals before anything is charged."""

import os

import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.ledger import Ledger

N, D = 600, 4
RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, (N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def in_file(folder, name, values):
    np.save(folder / name, values)
    return np.load(folder / name, mmap_mode="r")


@pytest.fixture
def mapped(tmp_path):
    return in_file(tmp_path, "x.npy", X)


def classifier(**changes):
    return DPLogisticRegression(
        **(
            dict(
                epsilon=2.0,
                row_norm=1.0,
                classes=[0, 1],
                stream=True,
                calibrated=False,
                algorithm="allocation-sgd",
                random_state=3,
            )
            | changes
        )
    )


@pytest.mark.filterwarnings("ignore")
def test_a_memory_map_gives_the_bits_of_a_streamed_run(mapped):
    run = li.Run(
        n=N,
        steps=12,
        step_size=0.5,
        batching=li.RandomAllocation(100),
        loss=li.Logistic(ridge=1e-2),
    )
    found = classifier(run=run, algorithm="automatic").fit(mapped, Y)
    held = classifier(run=run, algorithm="automatic", stream=False).fit(X, Y)
    seed = int(np.random.RandomState(3).randint(2**31))
    same = li.train(found.run_, Arrays((mapped, Y)), seed=seed)
    np.testing.assert_array_equal(found.model_.weights, same.released.weights)
    np.testing.assert_allclose(found.model_.weights, held.model_.weights, rtol=0, atol=1e-10)
    assert found.certificate_.epsilon(found.delta_) == held.certificate_.epsilon(held.delta_) <= 2.0
    np.testing.assert_array_equal(found.predict(mapped), found.predict(X))


@pytest.mark.filterwarnings("ignore")
def test_plans_are_those_for_streams(mapped):
    """Nothing that needs random access is planned."""
    found = classifier(algorithm="automatic", time_budget=5.0).fit(mapped, Y)
    assert (
        not isinstance(found.run_.batching, li.Poisson | li.FixedSize) and found.choice_ is not None
    )
    ridge = DPHuberRidge(epsilon=1.0, row_norm=1.0, target_range=(-1, 1), stream=True).fit(
        mapped, X[:, 0]
    )
    assert ridge.predict(mapped).shape == (N,)


@pytest.mark.parametrize(
    "change, word",
    [
        ({"report_accuracy": 0.05}, "report_accuracy"),
        ({"stream": 1}, "stream"),
        ({"algorithm": "poisson-dp-sgd"}, "batching"),
    ],
)
def test_what_cannot_be_streamed_is_refused(mapped, change, word):
    with pytest.raises(InputError, match=word):
        classifier(**change).fit(mapped, Y)


@pytest.mark.parametrize(
    "rows, target, word",
    [
        (X.tolist(), Y, "got 'list'; open it"),
        (X.astype(np.float16), Y, "got 'float16, 2 axes'"),
        ((10 * X).astype(int), Y, "got 'int64, 2 axes'"),
        (X[:, 0], Y, "got 'float32, 1 axes'"),
        (X, Y[:-1], "must have one label for each of 600"),
    ],
)
def test_rows_that_are_no_array_of_numbers(rows, target, word):
    with pytest.raises(InputError, match=word):
        classifier(algorithm="automatic").fit(rows, target)


def test_a_wrong_number_of_labels_is_not_paid_for(mapped, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.add("ours", unit="record", adjacency="zero-out", filter=GaussianFilter(1.0))
    with pytest.raises(InputError, match="y must have one label for each of 600 records, got 599"):
        classifier(ledger=ledger, dataset="ours").fit(mapped, Y[:-1])
    assert not ledger.total().releases


def test_a_search_holds_rows_in_memory(mapped):
    with pytest.raises(InputError, match="stream"):
        DPSearchCV(classifier(), {"row_norm": [1.0]}).fit(mapped, Y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [slice(None), slice(0, 500)])
@pytest.mark.parametrize("which", ["x.npy", "y.npy"])
@pytest.mark.parametrize(
    "held", [lambda y: y, np.asarray]
)  # of a memory map without its class the file is a base
def test_a_mapped_file_that_changes_is_never_released(mapped, tmp_path, part, which, held):
    labels = in_file(tmp_path, "y.npy", Y)

    def changed(*_):
        other = np.load(tmp_path / which, mmap_mode="r+")
        other[0] = 1 - other[0]
        other.flush()
        os.utime(tmp_path / which)

    run = li.Run(
        n=len(mapped[part]),
        steps=12,
        step_size=0.5,
        batching=li.Cyclic(100),
        loss=li.Logistic(ridge=1e-2),
    )
    with pytest.raises(InputError, match=f"changed while it was read, got '{which}'"):
        classifier(run=run, algorithm="automatic").fit(
            held(mapped[part]), held(labels[part]), progress=changed
        )


@pytest.mark.filterwarnings("ignore")
def test_mapped_targets_of_rows_in_memory_are_watched_too(tmp_path):
    target = in_file(tmp_path, "y.npy", X[:, 0])
    with pytest.raises(InputError, match=r"changed while it was read, got 'y\.npy'"):
        DPHuberRidge(epsilon=1.0, row_norm=1.0, target_range=(-1, 1), stream=True).fit(
            X, target, progress=lambda *_: os.utime(tmp_path / "y.npy", (0, 0))
        )
