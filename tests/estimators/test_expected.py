"""What scikit-learn users expect of estimators, and what is refused with a reason."""

import traceback
import warnings

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from torch.nn import Linear

import lastiterate as li
from lastiterate.data import Numeric, Schema
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.planning.planner import plan
from lastiterate.planning.task import Task
from lastiterate.run.preprocessing import PrivateTargetMean
from lastiterate.torch import DPNetClassifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3)) * 0.1
Y = (X[:, 0] > 0).astype(int)
RUN = li.Run(n=400, steps=20, step_size=0.5, loss=li.Logistic(row_norm=1.0, intercept=0.5))


@pytest.fixture(scope="module")
def classifier():
    return DPLogisticRegression(epsilon=5.0, classes=[0, 1], run=RUN).fit(X, Y)


def test_a_target_range_must_be_given():
    with pytest.raises(li.InputError, match="target_range must be given"):
        DPHuberRidge().fit(X, 100 + X[:, 0])


@pytest.mark.parametrize(
    "model",
    [DPLogisticRegression(classes=[0, 1]), DPHuberRidge(target_range=(0.0, 1.0))],
    ids=["classifier", "regressor"],
)
def test_a_row_norm_must_be_given(model):
    with pytest.raises(li.InputError, match="row_norm must be given: a public bound"):
        model.fit(X, Y)


@pytest.mark.parametrize(
    ("rows", "target"), [([["Ann's income", 1, 2]] * 400, Y), (X, ["Ann's income"] * 400)]
)
def test_text_where_numbers_are_needed_is_not_shown(classifier, rows, target):
    """The data holder's terminal is told what is wrong; a value of a record is never part of it."""
    model = DPHuberRidge(row_norm=1.0, target_range=(0.0, 1.0))
    fits = [lambda: model.fit(rows, target)] + (
        [lambda: classifier.predict(rows)] if rows is not X else []
    )
    for fit in fits:
        with pytest.raises(li.InputError, match="must hold numbers") as caught:
            fit()
        told = "".join(traceback.format_exception(caught.value))
        assert "Ann" not in told and "schema=" in told


@pytest.mark.parametrize(
    ("rows", "target", "word"),
    [
        (X[:, 0] + 0.777, Y, "Expected 2D array.*Reshape your data"),
        (0.777, Y, "Expected 2D array"),
        (X, 0.777j + X[:, 0], "real numbers"),
        ({"a": X[:, 0]}, 0.777, "a value for each record"),
    ],
)
def test_neither_are_arrays_of_another_form(classifier, rows, target, word):
    """Scikit-learn's own refusals print them."""
    if isinstance(rows, dict):
        schema = Schema((Numeric("a", -1, 1),), target_range=(0, 1))
        fits = [lambda: DPHuberRidge(schema=schema).fit(rows, target)]
    else:
        model = DPHuberRidge(row_norm=1.0, target_range=(0.0, 1.0))
        fits = [lambda: model.fit(rows, target)]
    if target is Y:
        fits += [
            lambda: classifier.predict(rows),
            lambda: DPNetClassifier(Linear(1, 2), classes=[0, 1]).fit(rows, Y),
            lambda: DPSearchCV(DPLogisticRegression(classes=[0, 1]), {"row_norm": [1.0]}).fit(
                rows, Y
            ),
        ]
    for fit in fits:
        with pytest.raises(li.InputError, match=word) as caught:
            fit()
        shown = "".join(traceback.format_exception(caught.value))
        assert not any(
            digits in shown
            for digits in ("0.777", *(f"{value:.4f}"[:5] for value in X[:2, 0] + 0.777))
        )


def test_no_warning_depends_on_private_labels():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        DPLogisticRegression(
            epsilon=5.0,
            classes=range(400),
            run=li.Run(n=400, steps=2, step_size=0.5, loss=li.Softmax(classes=400, intercept=0.5)),
        ).fit(X, np.arange(400))
    assert not [one for one in seen if "unique classes" in str(one.message)]


@pytest.mark.parametrize(("rows", "word"), [(csr_matrix(X), "[Ss]parse"), (X.tolist(), None)])
def test_sparse_rows_are_refused_and_lists_are_rows(rows, word):
    model = DPLogisticRegression(epsilon=5.0, classes=[0, 1], run=RUN)
    if word is None:
        assert model.fit(rows, Y).coef_.shape == (1, 3)
        return
    with pytest.raises(li.InputError, match=word):
        model.fit(rows, Y)
    assert not hasattr(model, "partial_fit")
    with pytest.raises(
        AttributeError, match="partial_fit does not exist: every call would be a release"
    ):
        model.partial_fit(rows, Y)


@pytest.mark.parametrize(
    "model",
    [DPLogisticRegression(classes=[0, 1]), DPHuberRidge(target_range=(0.0, 1.0))],
    ids=["classifier", "regressor"],
)
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sample_weight", "contributes beyond the bound"),
        ("colour", "fit takes X, y, progress and units"),
    ],
)
def test_arguments_that_privacy_does_not_allow(model, name, word):
    with pytest.raises(li.InputError, match=f"{name} is not supported; .*{word}"):
        model.fit(X, Y, **{name: np.ones(400)})
    assert not hasattr(model, "fitted_")


def test_a_budget_that_is_text():
    with pytest.raises(li.InputError, match="epsilon must be a number"):
        DPLogisticRegression(epsilon="1", row_norm=1.0, classes=[0, 1]).fit(X, Y)


def test_coefficients_give_the_scores_of_rows_that_nothing_clips(classifier):
    assert classifier.coef_.shape == (1, 3) and classifier.intercept_.shape == (1,)
    np.testing.assert_allclose(
        (X @ classifier.coef_.T + classifier.intercept_)[:, 0],
        classifier.decision_function(X),
        atol=1e-6,
    )
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), classifier.predict_proba(X))
    centred = DPLogisticRegression(
        epsilon=5.0,
        classes=[0, 1],
        run=li.Run(
            **{
                **{name: getattr(RUN, name) for name in RUN.__dataclass_fields__},
                "preprocessing": (li.PrivateMean(10.0, 2.0),),
            }
        ),
    ).fit(X, Y)
    np.testing.assert_allclose(
        (X @ centred.coef_.T + centred.intercept_)[:, 0], centred.decision_function(X), atol=1e-5
    )


def test_coefficients_of_whitened_rows_that_keep_their_lengths():
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(4000, 12)) * 0.2
    run = plan(Task(len(rows), 12, 0, 12**0.5), epsilon=3.0, delta=1e-6).run
    assert {PrivateTargetMean, li.PrivateMean, li.PrivateCovariance} == {
        type(part) for part in run.preprocessing
    }
    model = DPHuberRidge(epsilon=3.0, target_range=(-1.0, 4.0), run=run).fit(
        rows, 1.2 + rows.sum(1)
    )
    found, (_, mean, matrix) = model.predict(rows), model.model_.released
    prepared = (rows - mean) @ matrix / run.preprocessing[-1].row_norm
    short = np.linalg.norm(prepared, axis=1) < run.loss.row_norm * 0.999
    assert short.sum() > 2000
    linear = np.clip(rows @ model.coef_ + model.intercept_, -1.0, 4.0)  # as predictions are
    np.testing.assert_allclose(linear[short], found[short], atol=2e-4)
    np.testing.assert_allclose(model.coef_, 1.0, atol=0.4)
    wide = np.clip(
        4 * rows, -1, 1
    )  # nearly all of them longer than what is clipped to before they are whitened
    none = DPHuberRidge(epsilon=3.0, target_range=(-1.0, 4.0), run=run).fit(wide, 1.2 + rows.sum(1))
    with pytest.raises(AttributeError, match="or most are clipped"):
        _ = none.coef_
    two = DPLogisticRegression(epsilon=3.0, row_norm=12**0.5, classes=[0, 1]).fit(
        rows, rows[:, 0] > 0
    )
    assert two.coef_.argmax() == 0 and two.intercept_.shape == (1,)


def test_coefficients_of_a_regression_are_in_the_units_of_its_target():
    run = li.Run(n=400, steps=20, step_size=0.1, loss=li.HuberRidge(row_norm=1.0, intercept=0.5))
    model = DPHuberRidge(epsilon=50.0, target_range=(10.0, 30.0), run=run).fit(X, 20 + 50 * X[:, 0])
    inside = np.abs(model.predict(X) - 20) < 9.99
    np.testing.assert_allclose(
        (X @ model.coef_ + model.intercept_)[inside], model.predict(X)[inside], atol=1e-5
    )
    assert isinstance(model.intercept_, float) and inside.sum() > 100


def test_rows_divided_by_their_norms_have_no_coefficients():
    run = li.Run(
        **{
            **{name: getattr(RUN, name) for name in RUN.__dataclass_fields__},
            "preprocessing": (li.UnitRows(),),
        }
    )
    model = DPLogisticRegression(epsilon=5.0, classes=[0, 1], run=run).fit(X, Y)
    assert not hasattr(model, "coef_") and model.model_.weights.shape == (1, 4)
    with pytest.raises(AttributeError, match="divided by their norms"):
        _ = model.coef_


def test_progress_is_steps_and_time(capsys):
    DPLogisticRegression(epsilon=5.0, classes=[0, 1], run=RUN, verbose=1).fit(X, Y)
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines and all(" of 20 steps, " in line and line.endswith(" s") for line in lines)


@pytest.mark.parametrize(
    "value", [object(), "x", [1, 2], -1.5, float("nan")], ids=["object", "x", "list", "-1", "nan"]
)
@pytest.mark.parametrize(
    "name",
    [
        "run",
        "features",
        "algorithm",
        "delta",
        "adjacency",
        "epsilon",
        "time_budget",
        "row_norm",
        "random_state",
        "calibrated",
        "report_accuracy",
        "class_weight",
        "stream",
        "schema",
        "classes",
    ],
)
def test_what_is_no_value_of_an_argument_is_named_and_not_pythons_error(name, value):
    with pytest.raises(li.InputError, match=f"^{name} |^y must hold only the public classes"):
        DPLogisticRegression(**{"row_norm": 1.0, "classes": [0, 1], name: value}).fit(X, Y)


@pytest.mark.parametrize(
    ("bad", "said"), [(np.nan, "X must hold no missing values"), (np.inf, "X must hold finite")]
)
def test_missing_and_infinite_numbers_are_named_without_advice_for_other_libraries(bad, said):
    rows = X.copy()
    rows[7, 1] = bad
    with pytest.raises(li.InputError, match=said):
        DPLogisticRegression(row_norm=1.0, classes=[0, 1]).fit(rows, Y)
    with pytest.raises(li.InputError, match="y must hold no missing values"):
        DPHuberRidge(row_norm=1.0, target_range=(0.0, 1.0)).fit(X, np.where(Y, np.nan, 0.5))


def test_a_certificate_is_asked_for_numbers(classifier):
    with pytest.raises(li.InputError, match="delta must be a number, got 'x'"):
        classifier.certificate_.epsilon("x")
    with pytest.raises(li.InputError, match="epsilon must be a number"):
        classifier.certificate_.delta(None)


def test_a_search_has_the_probabilities_of_its_winner():
    grid = {"row_norm": [0.5, 1.0]}
    search = DPSearchCV(
        DPLogisticRegression(classes=[0, 1], algorithm="noisy-gd"),
        grid,
        epsilon=20.0,
        random_state=0,
    ).fit(X, Y)
    assert np.array_equal(search.predict_proba(X), search.best_estimator_.predict_proba(X))
    assert np.array_equal(search.decision_function(X) > 0, search.predict(X) == 1)
    assert not hasattr(DPSearchCV(DPHuberRidge(target_range=(0.0, 1.0)), grid), "predict_proba")
