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
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.features import SchemaTransformer
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
    assert [len(kept) for kept in one.sketch(many)] == [HASHES] * 3
    assert [len(kept) for kept in one.sketch(X[[0, 0, 1]])] == [2]
    assert one.sketch(many) == one.sketch(many[RANDOM.permutation(5000)])
    assert not any(a & b for a in one.sketch(X) for b in two.sketch(X)), "of another process"
    for _ in range(FITS + 5):
        one.after(one.sketch(RANDOM.random((3, 2))))
    assert len(one._fits) == FITS
    fitted = pickle.dumps(LOGISTIC.fit(X, Y))
    assert b"Reminder" not in fitted and b"repeated" not in fitted


# A table is recognised whatever is made of it.

AGES, PAY = RANDOM.integers(18, 90, 120), RANDOM.gamma(2.0, 1000.0, 120)
HEIGHTS, CITIES = RANDOM.normal(170, 10, 120), RANDOM.choice(["a", "b"], 120)
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
NOTES = [" ".join(RANDOM.choice(WORDS, 6)) for _ in range(120)]
TABLE = {"age": AGES, "pay": PAY, "height": HEIGHTS, "city": CITIES, "note": NOTES}
WHO = np.arange(120) // 2
FACTS = {
    "target": "ill",
    "classes": ["0", "1"],
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100, "outside": "clip"},
        "pay": {"kind": "number", "low": 0, "high": 20_000, "outside": "clip"},
        "height": {"kind": "number", "low": 100, "high": 220, "outside": "clip"},
        "city": {"kind": "category", "values": ["a", "b"]},
        "note": {"kind": "text"},
    },
}
FEW = FACTS | {"columns": {name: FACTS["columns"][name] for name in ("pay", "city")}}
NUMBERS = np.stack([AGES, PAY, HEIGHTS], axis=1).astype(float)


def frame(names=tuple(TABLE)):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({name: TABLE[name] for name in names})


def by_schema(schema=FACTS, **how):
    return DPLogisticRegression(5.0, schema=schema, algorithm="noisy-gd", **how)


def train_numbers():
    run = li.Run(n=120, steps=3, step_size=0.1, loss=li.Logistic(row_norm=5e3, ridge=0.1))
    return li.train(run, (NUMBERS, Y), epsilon=1.0, delta=1e-5)


WAYS = {
    "words": lambda: by_schema(features="words").fit(TABLE, Y, units=WHO),
    "other maps": lambda: by_schema(features="curves,words").fit(TABLE, Y, units=WHO),
    "more rows": lambda: by_schema(features="words", rows_per_unit=5).fit(TABLE, Y, units=WHO),
    "single rows": lambda: by_schema(features="curves,words").fit(frame(), Y),
    "other order": lambda: by_schema(features="words").fit(frame(reversed(TABLE)), Y),
    "few columns": lambda: by_schema(FEW).fit(frame(["city", "pay"]), Y),
    "a part": lambda: by_schema(features="words").fit(frame()[40:90], Y[40:90]),
    "numbers": lambda: LOGISTIC.fit(NUMBERS, Y),
    "regression": lambda: RIDGE.fit(NUMBERS[:, ::-1], Y),
    "a pipeline": lambda: make_pipeline(StandardScaler(), LOGISTIC).fit(NUMBERS, Y),
    "a schema's step": lambda: make_pipeline(
        SchemaTransformer(FACTS, "curves,words"), LOGISTIC
    ).fit(frame(), Y),
    "a search": lambda: DPSearchCV(
        by_schema(features="words"), {"features": ["words", "curves,words"]}, epsilon=5.0
    ).fit(frame(), Y),
    "train": train_numbers,
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_table_is_recognised_whatever_is_made_of_it(way, monkeypatch):
    assert not told(WAYS["words"])
    assert len(told(WAYS[way])) == 1
    monkeypatch.setattr(composition_reminder, "REMINDER", Reminder())
    assert not told(WAYS[way])
    assert len(told(WAYS["words"])) == 1


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_tables_of_other_records_are_not_recognised():
    """Though they hold the same ages, cities and words, and numbers of persons from 0 on."""
    WAYS["words"]()
    WAYS["train"]()
    other = {
        "age": RANDOM.permutation(AGES),
        "pay": RANDOM.gamma(2.0, 1000.0, 120),
        "height": RANDOM.normal(170, 10, 120),
        "city": RANDOM.permutation(CITIES),
        "note": [" ".join(RANDOM.choice(WORDS, 6)) for _ in range(120)],
    }
    assert not told(lambda: by_schema(features="words").fit(other, Y, units=WHO))
    few = {name: other[name] for name in ("pay", "city")}
    assert not told(lambda: by_schema(FEW).fit(few, Y))


def test_columns_that_two_draws_share_do_not_count_alone():
    """Integers, rounded numbers and categories are alike in many data sets."""
    reminder = Reminder()

    def draw():
        return {
            "age": RANDOM.integers(18, 90, 500),
            "rounded": RANDOM.normal(5, 2, 500).round(1),
            "number": np.arange(500),
            "city": RANDOM.choice(["a", "b"], 500),
        }

    one, two = reminder.sketch(draw()), reminder.sketch(draw())
    assert len(one) == 2, "no sketch of cells"
    assert not any(a & b for a in one for b in two)
    ages = [reminder.sketch({"age": draw()["age"]}) for _ in range(2)]
    assert ages[0] == ages[1] == []


def test_whole_rows_of_wide_tables_are_recognised():
    reminder = Reminder()
    wide = RANDOM.random((60, 300)).astype(np.float32)
    assert reminder.sketch(wide) == reminder.sketch(wide[::-1].astype(np.float64)) != []
