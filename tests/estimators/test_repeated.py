"""Repeated fits are told once, whatever way they come, and other fits are not."""

import pickle
import warnings

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.ensemble import VotingRegressor
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.release import composition_reminder
from lastiterate.release.composition_reminder import FITS, HASHES, Reminder
from lastiterate.release.units import UnitLoss

RANDOM = np.random.default_rng(5)
X = RANDOM.random((120, 3))
Y = (X[:, 0] > 0.5).astype(int)
LOGISTIC = DPLogisticRegression(
    epsilon=5.0, row_norm=2.0, classes=[0, 1], algorithm="noisy-gd"
)  # planned at once
RIDGE = DPHuberRidge(epsilon=5.0, row_norm=2.0, target_range=(-1.0, 1.0), algorithm="noisy-gd")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has not fitted yet."""
    monkeypatch.setattr(composition_reminder, "REMINDER", Reminder())


def told(*calls):
    """The reminders that some calls give."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for call in calls:
            call()
    return [w for w in found if w.category is li.errors.RepeatedFitWarning]


@pytest.mark.parametrize("estimator", [LOGISTIC, RIDGE], ids=lambda e: type(e).__name__)
def test_the_second_fit_is_told_and_the_third_is_not(estimator):
    assert not told(lambda: estimator.fit(X, Y))
    (warning,) = told(lambda: estimator.fit(X, Y), lambda: estimator.fit(X, Y))
    text = str(warning.message)
    assert (
        issubclass(li.errors.RepeatedFitWarning, UserWarning)
        and "compose" in text
        and "its own fit only" in text
    )
    assert "\n" not in text and ". " not in text, "one sentence"
    assert warning.filename == __file__, "it points to the caller of fit"


def networks():
    """Data of losses in JAX and of modules, and the other things that ``train`` asks for."""
    torch = pytest.importorskip("torch")
    first = {"a": np.zeros(3, np.float32)}
    jax_loss = {"model": first, "loss": lambda p, x, y: (x @ p["a"] - y) ** 2}
    module = {"model": torch.nn.Linear(3, 2), "loss": torch.nn.functional.cross_entropy}
    x = X.astype(np.float32)
    tensors = torch.from_numpy(x), torch.from_numpy(Y)
    return {
        "arrays": ((x, Y.astype(np.float32)), jax_loss),
        "tensors": (tensors, module),
        "data set": (torch.utils.data.TensorDataset(*tensors), module),
    }


@pytest.mark.parametrize("name", ["arrays", "tensors", "data set"])
def test_train_tells_of_networks_and_modules(name):
    data, more = networks()[name]
    run = li.Run(n=len(X), steps=2, step_size=0.1, clip=1.0, batching=li.FullBatch())
    asked = dict(epsilon=1.0, delta=1e-5, **more)
    assert not told(lambda: li.train(run, data, **asked))
    (warning,) = told(lambda: li.train(run, data, **asked))
    assert "compose" in str(warning.message) and warning.filename == __file__


def test_other_records_of_a_network_are_not_told():
    """Nor are the flags of units, which are alike in all data sets: the largest part counts."""
    _, more = networks()["arrays"]
    run = li.Run(n=len(X), steps=2, step_size=0.1, clip=1.0)
    flags = np.ones((len(X), 1), np.float32)
    unit = more | {"loss": UnitLoss(more["loss"], 1)}
    for _ in range(2):
        x = RANDOM.random((len(X), 1, 3)).astype(np.float32)
        data = flags, x, Y[:, None].astype(np.float32)
        assert not told(lambda: li.train(run, data, epsilon=1.0, delta=1e-5, **unit))  # noqa: B023


@pytest.mark.parametrize(
    "again",
    [
        lambda: LOGISTIC.fit(X[::-1], 1 - Y),
        lambda: DPLogisticRegression(epsilon=0.1, row_norm=1.0, classes=[0, 1]).fit(X, Y),
        lambda: LOGISTIC.fit(X.astype(np.float32), Y),
        lambda: LOGISTIC.fit(np.vstack([X[:40], RANDOM.random((80, 3))]), Y),
        lambda: LOGISTIC.fit(X[60:100], Y[60:100]),
        lambda: RIDGE.fit(X, X[:, 1]),
        lambda: VotingRegressor([("one", RIDGE)]).fit(X, Y),
    ],
    ids=[
        "other target",
        "other settings",
        "other precision",
        "a third is old",
        "a part",
        "other model",
        "voting",
    ],
)
def test_rows_are_recognised(again):
    LOGISTIC.fit(X, Y)
    assert len(told(again)) == 1


def test_other_rows_are_not():
    other = RANDOM.random((120, 3))
    other[:3] = X[:3]  # some rows are equal by chance
    assert not told(
        lambda: LOGISTIC.fit(X[:60], Y[:60]),
        lambda: LOGISTIC.fit(X[60:], Y[60:]),
        lambda: LOGISTIC.fit(other, Y),
        lambda: LOGISTIC.fit(2 * RANDOM.random((120, 3)), Y),
    )


@pytest.mark.parametrize("jobs", [None, 2], ids=["one thread", "two threads"])
def test_cross_validation_is_told_where_no_row_comes_back(jobs):
    """Two folds have no training row in common, and the pipeline scales each anew: only the call
    stack tells.

    A worker (here a thread, and a process likewise) has scikit-learn's function on its own stack.
    """
    model = make_pipeline(StandardScaler(), RIDGE)
    with parallel_config(backend="threading"):
        assert len(told(lambda: cross_val_score(model, X, Y, cv=KFold(2), n_jobs=jobs))) == 1


@pytest.mark.parametrize("fits", [1, 2], ids=["not told yet", "told"])
def test_as_an_error_it_comes_before_anything_is_spent(fits):
    assert len(told(*[lambda: LOGISTIC.fit(X, Y)] * fits)) == fits - 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", li.errors.RepeatedFitWarning)
        for _ in range(2):
            late = DPLogisticRegression(row_norm=2.0, classes=[0, 1])
            with pytest.raises(li.errors.RepeatedFitWarning):
                late.fit(X, Y)
            assert not hasattr(late, "fitted_") and not hasattr(late, "certificate_")
        with pytest.raises(ValueError, match="RepeatedFitWarning"):
            GridSearchCV(RIDGE, {"row_norm": [1, 2]}, cv=2).fit(X, Y)


def test_a_refused_fit_is_not_remembered():
    with pytest.raises(InputError):
        DPLogisticRegression(epsilon=0, row_norm=1.0, classes=[0, 1]).fit(X, Y)
    with pytest.raises(ZeroDivisionError):
        LOGISTIC.fit(X, Y, progress=lambda *_: 1 / 0)
    assert not told(lambda: LOGISTIC.fit(X, Y))


def test_what_is_kept_is_little_and_secret():
    one, two = Reminder(), Reminder()
    many = RANDOM.random((5000, 2))
    assert len(one.sketch(many)) == HASHES and len(one.sketch(X[[0, 0, 1]])) == 2
    assert one.sketch(many) == one.sketch(many[RANDOM.permutation(5000)])
    assert not one.sketch(X) & two.sketch(X), "another process has other hashes"
    for _ in range(FITS + 5):
        one.after(one.sketch(RANDOM.random((3, 2))))
    assert len(one._fits) == FITS
    fitted = pickle.dumps(LOGISTIC.fit(X, Y))
    assert b"Reminder" not in fitted and b"repeated" not in fitted
