"""What conversions and seeds would lose without a word is refused, or warned of."""

import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.private_selection import Selection
from lastiterate.bayes import (
    LinearPosterior,
    ProposeTestSample,
    propose_test_sample,
    sample_posterior,
)
from lastiterate.bayes.linear import ClippedRows, LinearModel, RatioDomain
from lastiterate.curves.selection import NegativeBinomial
from lastiterate.data import Numeric, Schema
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError, RepeatedFitWarning
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.estimators.pipelines import SchemaTransformer
from lastiterate.release import composition_reminder, posterior, tuning
from lastiterate.release.model_kinds import SAMPLED, SELECTED
from lastiterate.release.pipeline import run_release
from lastiterate.release.score_meaning import Labels, Range
from lastiterate.release.training_request import TrainingRequest
from lastiterate.run.validation import check_kept

RUN = li.Run(
    n=40, steps=3, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 2)), RNG.integers(0, 2, 40)
MASKED, IMAGINARY = np.ma.masked_array(X, X > 1), X + 1j
SCHEMA = Schema((Numeric("a", -1, 1), Numeric("b", 0, 1)), classes=("0", "1"))
SETTINGS = ProposeTestSample(model=LinearModel(), ratio_bound=5.0, spread=1.0)
SAMPLE = posterior.certify_plan(40, 2, row_norm=1.0, epsilon=1.0, delta=1e-5, adjacency="zero-out")
CALLS = {
    "train x": lambda bad: li.train(RUN, (bad, Y), delta=1e-5),
    "train y": lambda bad: li.train(RUN, (X, bad[:, 0]), delta=1e-5),
    "network": lambda bad: li.train(
        li.Run(n=40, steps=2, step_size=0.1, clip=1.0),
        ({"a": bad},),
        model=np.zeros(2),
        loss=lambda p, r: (p @ r["a"]) ** 2,
        epsilon=5.0,
    ),
    "classifier": lambda bad: DPLogisticRegression(row_norm=1.0, classes=[0, 1]).fit(bad, Y),
    "columns of a schema": lambda bad: DPLogisticRegression(schema=SCHEMA).fit(
        {"a": bad[:, 0], "b": Y}, Y
    ),
    "rows of a schema": lambda bad: SchemaTransformer(SCHEMA).fit(X).transform(bad),
    "regressor": lambda bad: DPHuberRidge(row_norm=1.0, target_range=(0, 1)).fit(X, bad[:, 0]),
    "predict": lambda bad: li.train(RUN, (X, Y), delta=1e-5).predict(bad),
    "posterior": lambda bad: ClippedRows(n=40, features=2).clip(bad, Y),
    "posterior in a domain": lambda bad: sample_posterior(
        LinearPosterior(
            LinearModel(), RatioDomain(n=40, x_low=0.1, x_high=1.0, ratio=1.0, spread=9.0)
        ),
        np.full(40, 0.5),
        bad[:, 0],
    ),
    "planned posterior": lambda bad: run_release(
        SAMPLED,
        TrainingRequest(
            proof=SAMPLE,
            data=(bad, Y),
            delta=1e-5,
            model=1.0,
            answers=Range(-1, 1),
        ),
    ),
    "propose, test, sample": lambda bad: propose_test_sample(SETTINGS, np.full(40, 0.5), bad[:, 0]),
    "search": lambda bad: DPSearchCV(
        DPLogisticRegression(row_norm=1.0, classes=[0, 1]), {"row_norm": [1.0]}
    ).fit(bad, Y),
    "lists of arrays": lambda bad: li.train(RUN, (list(bad), Y), delta=1e-5),
    "network's answers": lambda bad: _network(X).predict(
        {"a": bad}, forward=lambda p, r: p @ r["a"]
    ),
    "counted": lambda bad: li.train(RUN, (X, Y), delta=1e-5).private_score(
        X, bad[:, 0], epsilon=1.0
    ),
    "units": lambda bad: li.select_unit_rows(
        np.ma.masked_array(Y, Y > 0) if bad is MASKED else Y + 1j, 2
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "bad, word", [(MASKED, "mask"), (IMAGINARY, "imaginary")], ids=["mask", "imaginary"]
)
def test_masks_and_imaginary_parts_are_refused(name, bad, word):
    with pytest.raises(InputError, match=word):
        CALLS[name](bad)


@pytest.mark.parametrize(
    "model",
    [DPLogisticRegression(schema=SCHEMA), DPLogisticRegression(row_norm=1.0, classes=[0, 1])],
)
def test_queries_that_are_still_to_be_run_say_how_to_run_them(model, monkeypatch):
    """As polars' LazyFrame, which is installed in few places where tests run."""
    lazy = type("LazyFrame", (), {})
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(LazyFrame=lazy))
    with pytest.raises(InputError, match=r"X must not be a query .* collect\(\)"):
        model.fit(lazy(), Y)


def test_a_record_beyond_double_precision_is_clipped_like_any_other():
    far = X.astype(np.longdouble)
    far[0, 0] = (
        np.longdouble("1e400") if np.finfo(np.longdouble).max > 1e400 else np.longdouble(1e308)
    )
    assert np.isfinite(li.train(RUN, (far, Y), delta=1e-5).released.weights).all()
    far[0, 0] = np.inf
    with pytest.raises(InputError, match="finite"):
        li.train(RUN, (far, Y), delta=1e-5)


def test_no_warning_depends_on_how_large_a_record_is():
    rows = X.copy()
    rows[0] = 1.7e308
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = ClippedRows(n=40, features=2).clip(rows, Y)
    assert np.allclose(found[0], 0.5**0.5) and (np.linalg.norm(found, axis=1) <= 1 + 1e-12).all()


@pytest.mark.parametrize(
    "rows, word",
    [
        ([[1.0, 2j], [0.5, 1.0]], "imaginary"),
        ([[1.0, np.ma.masked], [0.5, 1.0]], "mask"),
        ([1.0, np.complex64(2)], "imaginary"),
        ([X[:2], [MASKED[:2]]], "mask"),
        (SimpleNamespace(dtypes=[X.dtype, IMAGINARY.dtype]), "imaginary"),  # as a DataFrame says it
    ],
)
def test_lists_and_tables_are_looked_through(rows, word):
    check_kept("data", [[1.0, 2], X, "a", None, [True, np.float32(1.0)]])
    with pytest.raises(InputError, match=word):
        check_kept("data", rows)


OTHER = X.copy()
OTHER[7] = 0.0
NETWORK = li.Run(n=40, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(12.0))


def _module(x, **how):
    torch = pytest.importorskip("torch")
    return li.train(
        NETWORK,
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(Y)),
        delta=1e-5,
        model=torch.nn.Linear(2, 2).double(),
        loss=torch.nn.functional.cross_entropy,
        **how,
    )


def _network(x, **how):
    return li.train(
        NETWORK,
        ({"a": x},),
        model=np.zeros(2),
        loss=lambda p, r: (p @ r["a"]) ** 2,
        delta=1e-5,
        **how,
    )


TRAINED, HELD = tuning.parts(40)
SEARCH = Certificate(
    Selection((replace(RUN, n=len(TRAINED)),), NegativeBinomial.with_mean(2.0), len(HELD), 5.0, 1)
)
SEEDED = {
    "linear": lambda x, seed: li.train(RUN, (x, Y), delta=1e-5, seed=seed),
    "linear, exact": lambda x, seed: li.train(
        RUN, (x, Y), delta=1e-5, seed=seed, secure_noise=True
    ),
    "linear, in pieces": lambda x, seed: li.train(RUN, Arrays((x, Y)), delta=1e-5, seed=seed),
    "network": lambda x, seed: _network(x, seed=seed),
    "network, exact": lambda x, seed: _network(x, seed=seed, secure_noise=True),
    "network, in pieces": lambda x, seed: li.train(
        NETWORK,
        Arrays((x,)),
        model=np.zeros(2),
        delta=1e-5,
        seed=seed,
        loss=lambda p, r: (p @ r) ** 2,
    ),
    "module": lambda x, seed: _module(x, seed=seed),
    "module, exact": lambda x, seed: _module(x, seed=seed, secure_noise=True),
    "search": lambda x, seed: run_release(
        SELECTED,
        TrainingRequest(
            proof=SEARCH,
            data=(x, Y),
            delta=1e-5,
            seed=seed,
            answers=Labels((0, 1)),
        ),
    ),
}


def _warned(fit, x, seed):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(x, seed)
    return any(
        "this seed was used" in str(w.message) and w.category is RepeatedFitWarning for w in caught
    )


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_that_is_used_for_other_data_has_a_warning_of_its_own(name, monkeypatch):
    monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())
    fit = SEEDED[name]
    assert not _warned(fit, X, 77) and not _warned(fit, X, 77) and not _warned(fit, OTHER, 78)
    assert not _warned(fit, OTHER, None), "the system's randomness is never the same"
    assert _warned(fit, OTHER, 77), "one record differs: the difference of both models has no noise"


def test_records_in_pieces_are_the_same_data_as_records_in_memory(monkeypatch):
    monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())
    assert not _warned(SEEDED["linear"], X, 5) and not _warned(SEEDED["linear, in pieces"], X, 5)
    assert _warned(SEEDED["linear, in pieces"], OTHER, 5)
