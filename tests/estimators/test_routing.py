"""Estimators in scikit-learn's metadata routing and output containers: units are routed, weights
are refused in words, and tables may come back as data frames."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline

from lastiterate import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.features import SchemaTransformer

N = 60
X = np.random.default_rng(0).uniform(-1, 1, (N, 2))
Y = (X[:, 0] > 0).astype(int)
WHO = pd.Series(np.arange(N) // 2, name="person")
WEIGHTS = np.ones(N)
FACTS = {
    "target": "y",
    "classes": ["0", "1"],
    "columns": {name: {"kind": "number", "low": -1, "high": 1} for name in "ab"},
}
FRAME = pd.DataFrame(X, columns=["a", "b"])

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def classifier():
    return DPLogisticRegression(row_norm=1.4, classes=[0, 1], algorithm="noisy-gd", epsilon=5.0)


ESTIMATORS = {
    "classifier": classifier,
    "regressor": lambda: DPHuberRidge(row_norm=1.4, target_range=(0, 1), algorithm="noisy-gd"),
    "search": lambda: DPSearchCV(classifier(), {"row_norm": [1, 2]}, mean_runs=2),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_units_are_routed_where_they_are_requested(routing, name):
    one = ESTIMATORS[name]().set_fit_request(units=True)
    fitted = make_pipeline(one).fit(X, Y, units=WHO)[-1]
    assert fitted.certificate_.unit == "person"
    if name != "search":
        scores = cross_validate(one, X, Y, params={"units": WHO}, cv=2, error_score="raise")
        assert len(scores["test_score"]) == 2
        grid = GridSearchCV(one, {"row_norm": [1, 2]}, cv=2, error_score="raise")
        assert grid.fit(X, Y, units=WHO).best_estimator_.certificate_.unit == "person"
    with pytest.raises(ValueError, match=r"units.*set_fit_request"):
        make_pipeline(ESTIMATORS[name]()).fit(X, Y, units=WHO)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_weights_are_refused_in_words_on_every_way(routing, name):
    words = "sample_weight is not supported; a weight would multiply .*: leave it out; class_weight"
    one = ESTIMATORS[name]()
    with pytest.raises(InputError, match=words):
        one.fit(X, Y, sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match=r"sample_weight.*set_fit_request"):
        make_pipeline(one).fit(X, Y, sample_weight=WEIGHTS)
    asked = ESTIMATORS[name]().set_fit_request(sample_weight=True)
    with pytest.raises(InputError, match=words):
        make_pipeline(asked).fit(X, Y, sample_weight=WEIGHTS)
    asked.set_score_request(sample_weight=True)
    with pytest.raises(InputError, match=words):
        cross_validate(asked, X, Y, params={"sample_weight": WEIGHTS}, cv=2, error_score="raise")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scores_take_weights_as_scikit_learn_does(name):
    """No model is trained with them: half of the records count, and the others do not."""
    fitted, half = ESTIMATORS[name]().fit(X, Y), np.arange(N) < N // 2
    weighted = fitted.score(X, Y, sample_weight=half.astype(float))
    assert weighted == pytest.approx(fitted.score(X[half], Y[half]))


def test_rows_of_a_schema_come_back_as_a_frame():
    rows = SchemaTransformer(FACTS, features="curves").set_output(transform="pandas")
    made = rows.fit_transform(FRAME)
    assert made.columns.tolist() == rows.get_feature_names_out().tolist()
    assert made.dtypes.unique().tolist() == [np.float32] and made.index.equals(FRAME.index)
    np.testing.assert_array_equal(
        made, SchemaTransformer(FACTS, features="curves").fit_transform(FRAME)
    )
    parts = ColumnTransformer([("s", SchemaTransformer(FACTS), ["a", "b"])])
    assert parts.set_output(transform="pandas").fit_transform(FRAME).columns.tolist() == [
        "s__a",
        "s__b",
    ]


def test_estimators_read_tables_whatever_scikit_learn_hands_out():
    one = DPLogisticRegression(schema=FACTS, algorithm="noisy-gd", random_state=3)
    search = DPSearchCV(one, {"features": ["plain", "curves"]}, mean_runs=2, random_state=3)
    plain = [each.fit(FRAME, Y).predict_proba(FRAME) for each in (one, search)]
    with sklearn.config_context(transform_output="pandas"):
        frames = [each.fit(FRAME, Y).predict_proba(FRAME) for each in (one, search)]
    for left, right in zip(plain, frames, strict=True):
        np.testing.assert_array_equal(left, right)


def test_searches_and_models_show_epsilon_in_notebooks():
    search = ESTIMATORS["search"]()
    assert "epsilon 0" not in search._repr_mimebundle_()["text/html"]
    shown = search.fit(X, Y)._repr_mimebundle_()["text/html"]
    model = search.best_estimator_.fitted_
    said = f"epsilon {model.certificate.epsilon(model.delta):.4g} at delta"
    assert said[:11] in shown and "(zero-out, one record)" in shown
    assert shown.endswith(model.privacy_html()) and said[:11] in model._repr_html_()
    assert "2 features to 2 classes" in model._repr_html_()
