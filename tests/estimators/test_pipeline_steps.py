"""Steps of pipelines: which ones learn from the values of private rows, by their parameters."""

import contextlib
import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import RBFSampler, SkewedChi2Sampler
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from lastiterate.estimators import DPLogisticRegression
from lastiterate.estimators.pipelines import UnpaidStepWarning

Y = np.arange(60) % 2
LOGISTIC = DPLogisticRegression(
    epsilon=5.0, row_norm=2.0, classes=[0, 1], algorithm="noisy-gd"
)  # planned at once


def told(step, rows):
    """The warning of a pipeline, though the rows of its step may be refused behind it; or ""."""
    with warnings.catch_warnings(record=True) as found, contextlib.suppress(ValueError, TypeError):
        warnings.simplefilter("always")
        make_pipeline(step, LOGISTIC).fit(rows, Y)
    return next((str(w.message) for w in found if w.category is UnpaidStepWarning), "")


STATED = [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
FILLED = SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True)
LEARN_NOTHING = {
    "imputer": FILLED,
    "one hot": OneHotEncoder(categories=STATED, sparse_output=False),
    "one hot, drop": OneHotEncoder(categories=STATED, drop="first", sparse_output=False),
    "one hot, unknown": OneHotEncoder(
        categories=STATED, handle_unknown="ignore", sparse_output=False
    ),
    "ordinal": OrdinalEncoder(categories=STATED),
    "ordinal, unknown": OrdinalEncoder(
        categories=STATED, handle_unknown="use_encoded_value", unknown_value=-1
    ),
    "polynomial": PolynomialFeatures(2),
    "indicator": MissingIndicator(features="all"),
    "function": FunctionTransformer(np.tanh),
    "normalizer": Normalizer(),
    "samples": RBFSampler(gamma=1.0, random_state=0),
    "skewed samples": SkewedChi2Sampler(random_state=0),
    "projection": GaussianRandomProjection(2, random_state=0),
    "sparse projection": SparseRandomProjection(2, random_state=0),
    "splines": SplineTransformer(knots=np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])),
    "a pipeline": make_pipeline(FILLED, PolynomialFeatures()),
    "columns": ColumnTransformer(
        [("a", FILLED, [0])],
        remainder=OneHotEncoder(categories=STATED[:1], sparse_output=False),
    ),
    "a union": FeatureUnion([("a", PolynomialFeatures()), ("b", Normalizer())]),
}
LEARN = {
    "imputer of means": clone(FILLED).set_params(strategy="mean"),
    "imputer that drops": clone(FILLED).set_params(keep_empty_features=False),
    "imputer with indicators": clone(FILLED).set_params(add_indicator=True),
    "one hot": OneHotEncoder(sparse_output=False),
    "one hot, frequent": OneHotEncoder(
        categories=STATED, min_frequency=0.3, handle_unknown="infrequent_if_exist"
    ),
    "one hot, few": OneHotEncoder(categories=STATED, max_categories=2),
    "ordinal": OrdinalEncoder(),
    "indicator": MissingIndicator(),
    "samples": RBFSampler(gamma="scale", random_state=0),
    "projection": GaussianRandomProjection(eps=0.9, random_state=0),
    "splines": SplineTransformer(),
    "columns": ColumnTransformer([("a", FILLED, [0])], remainder=StandardScaler()),
}


def fitted_state(step):
    """What ``fit`` kept, but for the parts' parameters, as text."""

    def show(one):
        if isinstance(one, BaseEstimator) or type(one).__name__ in ("BSpline", "Bunch"):
            return {name: show(value) for name, value in sorted(vars(one).items())}
        if isinstance(one, dict):
            return {name: show(value) for name, value in one.items()}
        if isinstance(one, list | tuple):
            return [show(value) for value in one]
        return (one.toarray() if hasattr(one, "toarray") else np.asarray(one)).tolist()

    return repr(show(step))


def two_tables(name):
    """Other values, frequencies and missing values, in the second one a column without numbers."""
    random = np.random.default_rng(3)
    one, two = random.integers(0, 3, (60, 2)).astype(float), np.zeros((60, 2))
    two[:2] = [[1.0, 0.0], [0.0, 1.0]]
    if "imputer" in name or "indicator" in name:
        one[::4, 0], two[:, 1] = np.nan, np.nan
    return (one, two[:20]) if "projection" in name else (one, two)


@pytest.mark.parametrize("name", LEARN_NOTHING)
def test_steps_that_learn_nothing_are_not_told(name):
    kept = {fitted_state(clone(LEARN_NOTHING[name]).fit(rows)) for rows in two_tables(name)}
    assert len(kept) == 1
    rows = two_tables("")[0]
    assert not told(LEARN_NOTHING[name], rows)


@pytest.mark.parametrize("name", LEARN)
def test_steps_that_learn_are_told_with_what_does_not(name):
    if "projection" not in name:  # whose number of columns follows from that of the rows
        kept = {fitted_state(clone(LEARN[name]).fit(rows)) for rows in two_tables(name)}
        assert len(kept) == 2
    rows = two_tables("")[0]
    text = told(LEARN[name], np.tile(rows, 200) if "projection" in name else rows)
    assert "OneHotEncoder(categories=[...])" in text and "schema" in text
