"""Estimators on memory maps: the bits of a streamed run, refusals before anything is charged."""

import os

import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine.streaming.devices import Arrays
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV

N, D = 600, 4
RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, (N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture
def mapped(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def classifier(**changes):
    return DPLogisticRegression(**(dict(epsilon=2.0, row_norm=1.0, classes=[0, 1], stream=True, calibrated=False,
                                        algorithm="allocation-sgd", random_state=3) | changes))


@pytest.mark.filterwarnings("ignore")
def test_a_memory_map_gives_the_bits_of_a_streamed_run(mapped):
    run = li.Run(n=N, steps=12, step_size=0.5, batching=li.RandomAllocation(100), loss=li.Logistic(ridge=1e-2))
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
    assert not isinstance(found.run_.batching, li.Poisson | li.FixedSize) and found.choice_ is not None
    ridge = DPHuberRidge(epsilon=1.0, row_norm=1.0, target_range=(-1, 1), stream=True).fit(mapped, X[:, 0])
    assert ridge.predict(mapped).shape == (N,)


@pytest.mark.parametrize("change, word", [({"report_accuracy": 0.05}, "report_accuracy"), ({"stream": 1}, "stream"),
                                          ({"algorithm": "poisson-dp-sgd"}, "batching")])
def test_what_cannot_be_streamed_is_refused(mapped, change, word):
    with pytest.raises(InputError, match=word):
        classifier(**change).fit(mapped, Y)


@pytest.mark.parametrize("rows, target, word", [
    (X.tolist(), Y, "got 'list'; open it"), (X.astype(np.float16), Y, "got 'float16, 2 axes'"),
    ((10 * X).astype(int), Y, "got 'int64, 2 axes'"), (X[:, 0], Y, "got 'float32, 1 axes'"), (X, Y[:-1], "600")])
def test_rows_that_are_no_array_of_numbers(rows, target, word):
    with pytest.raises(ValueError, match=word):
        classifier(algorithm="automatic").fit(rows, target)


def test_a_search_holds_rows_in_memory(mapped):
    with pytest.raises(InputError, match="stream"):
        DPSearchCV(classifier(), {"row_norm": [1.0]}).fit(mapped, Y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [slice(None), slice(0, 500)])
def test_a_mapped_file_that_changes_is_never_released(mapped, part):
    def changed(*_):
        other = np.load(mapped.filename, mmap_mode="r+")
        other[0] = 0
        other.flush()
        os.utime(mapped.filename)

    run = li.Run(n=len(mapped[part]), steps=12, step_size=0.5, batching=li.Cyclic(100), loss=li.Logistic(ridge=1e-2))
    with pytest.raises(InputError, match=r"changed while it was read, got 'x\.npy'"):
        classifier(run=run, algorithm="automatic").fit(mapped[part], Y[part], progress=changed)
