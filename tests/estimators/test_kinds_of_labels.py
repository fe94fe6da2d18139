"""Rows and labels that are no plain numbers: read as what they are, or refused without a value."""

import datetime
from decimal import Decimal

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import Schema
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.ledger import GaussianFilter, Ledger

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = (X[:, 0] > 0).astype(int)
DAYS = np.datetime64("2026-01-01") + np.arange(60)


def classifier(**more):
    return DPLogisticRegression(
        3.0, row_norm=2.0, features="plain", algorithm="noisy-gd", **{"classes": [0, 1]} | more
    )


def regressor():
    return DPHuberRidge(3.0, row_norm=2.0, target_range=(0, 1), algorithm="noisy-gd")


def search(estimator):
    return DPSearchCV(estimator, {"row_norm": [1.0, 2.0]}, epsilon=3.0, mean_runs=2)


@pytest.mark.parametrize("labels", [(Decimal(0), Decimal("1.00")), ("0", "1"), (False, True)])
@pytest.mark.parametrize("kind", [list, lambda given: np.array(given, dtype=object)])
def test_labels_may_be_of_any_exact_kind(labels, kind, tmp_path):
    given = kind([labels[i] for i in Y])
    fitted = classifier(classes=list(labels)).fit(X, given)
    assert set(fitted.predict(X)) <= set(labels)
    fitted.fitted_.save(tmp_path / "m")
    assert li.load(tmp_path / "m") is not None
    assert set(search(classifier(classes=list(labels))).fit(X, given).predict(X)) <= set(labels)


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("wrap", [lambda one: one, search])
@pytest.mark.parametrize(
    "rows, labels, said",
    [
        (DAYS[:, None], Y, "X must hold numbers, and has days or times"),
        (X, [["HIV"], [0]] * 30, ""),
        (X, np.array(["HIV", 0] * 30, dtype=object), ""),
        (X, [None, 0] * 30, ""),
        (X, np.array([datetime.date(2026, 1, 1)] * 60), ""),
        (np.array([["HIV", 1]] * 60, dtype=object), Y, "must hold numbers"),
    ],
)
def test_others_are_refused_in_a_sentence_that_shows_no_value(make, wrap, rows, labels, said):
    with pytest.raises(ValueError) as refused:
        wrap(make()).fit(rows, labels)
    shown = str(refused.value)
    assert said in shown and "HIV" not in shown and "2026" not in shown and "\n" not in shown
    if said:
        assert isinstance(refused.value, InputError)


@pytest.mark.parametrize("wrap", [lambda one: one, search])
def test_days_and_text_are_no_number_to_predict(wrap):
    for target in (DAYS, ["HIV"] * 60, np.array(["HIV"] * 60, dtype=object)):
        with pytest.raises(InputError, match="must hold numbers") as refused:
            wrap(regressor()).fit(X, target)
        assert "HIV" not in str(refused.value)


@pytest.mark.parametrize(
    "more, said",
    [
        ({"sample_weight": np.ones(60)}, "sample_weight is not supported; a weight would multiply"),
        ({"groups": Y}, "groups is not supported; say whose every row is with units="),
        ({"progress": print}, "progress is not supported; fit takes X, y and units"),
    ],
)
def test_a_search_refuses_what_privacy_forbids(more, said):
    with pytest.raises(InputError, match=said):
        search(classifier()).fit(X, Y, **more)


@pytest.mark.parametrize("grid", [{"row_norm": 1.0}, ["row_norm"], {"row_norm": "12"}])
def test_a_grid_is_lists_by_name(grid):
    with pytest.raises(InputError, match="param_grid must be a dictionary from names to lists"):
        DPSearchCV(classifier(), grid).fit(X, Y)


@pytest.mark.parametrize(
    "grid, count",
    [
        ({}, 1),
        ([], 0),
        ({"row_norm": [1.0]}, 1),
        ({"row_norm": [1.0, 1.0]}, 1),
        ({"time_budget": [5.0, 6.0]}, 1),  # which a named algorithm does not look at
    ],
)
def test_a_choice_of_one_is_refused_before_it_is_charged(tmp_path, grid, count):
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-6))
    paid = search(classifier()).set_params(param_grid=grid, ledger=ledger, dataset="d")
    said = f"candidates must be at least two different ones, got {count}; give param_grid several"
    with pytest.raises(InputError, match=said):
        paid.fit(X, Y)
    assert ledger.total("d").releases == ()
    paid.set_params(param_grid={"row_norm": [0.5, 1.0]}).fit(X, Y)
    assert len(ledger.total("d").releases) == 1


OF_RECORDS = [
    (
        X,
        np.c_[Y, Y],
        r"y must hold one value for each record, got shape \(60, 2\); give one column",
    ),
    (X, Y[:-1], "must have as many records in X as in y, got 60 and 59; give X"),
    (X[:, :, None], Y, r"must be a table, got 3 axes; make a row of each record: X.reshape"),
    ([[1.0, 2.0], [3.0]], [0, 1], "must hold numbers in rows of one length"),
]


@pytest.mark.parametrize("make", [classifier, regressor, lambda: search(classifier())])
@pytest.mark.parametrize("rows, answers, said", OF_RECORDS)
def test_arrays_that_do_not_fit_are_refused_in_our_words(make, rows, answers, said):
    with pytest.raises(InputError, match=said):
        make().fit(rows, answers)


@pytest.mark.parametrize(
    "make, least", [(classifier, 2), (regressor, 2), (lambda: search(classifier()), 10)]
)
def test_too_few_records_are_counted(make, least):
    said = rf"must hold at least {least} records, got {least - 1} sample\(s\); give more records"
    with pytest.raises(InputError, match=said):
        make().fit(X[: least - 1], Y[: least - 1])


@pytest.mark.parametrize(
    "more, said",
    [
        ({"mean_runs": "a"}, "mean_runs must be a number, got 'a'"),
        ({"delta": "a"}, r'delta must be a number in \(0, 1\) or "auto", got .a'),
        ({"param_grid": {"row_norm": ["a", "b"]}}, "row_norm must be a number, got 'a'"),
        ({"param_grid": {"run": [1, 2]}}, "run must be a Run, got 1"),
    ],
)
def test_settings_of_a_search_have_their_kinds(more, said):
    with pytest.raises(InputError, match=said):
        search(classifier()).set_params(**more).fit(X, Y)


def test_a_search_needs_persons_and_rows_of_numbers():
    with pytest.raises(InputError, match="units must name at least 10 persons, got 6"):
        search(classifier()).fit(X, Y, units=np.arange(60) // 10)
    with pytest.raises(InputError, match=r"got 'dict'; give the estimator schema="):
        search(classifier()).fit({"a": X[:, 0]}, Y)
    with pytest.raises(InputError, match="got 'dict'; give columns in the order that fit saw"):
        classifier().fit(X, Y).predict({"a": X[:, 0]})
    with pytest.raises(InputError, match="with labels of the type that y has"):
        classifier(classes=["0", "1"]).fit(X, Y)


def test_the_rules_of_a_search_hold_without_labels():
    with pytest.raises(InputError, match="y must be given"):
        search(classifier()).fit(X, None)
    with pytest.raises(InputError, match=r"Unknown label type.*labels as integers or as text"):
        classifier(classes=[1.5, 2.5]).fit(X, Y + 1.5)


def test_an_estimator_with_a_schema_is_shown_in_a_line():
    columns = {f"c{i}": {"kind": "number", "low": 0, "high": 1} for i in range(40)}
    schema = Schema.from_dict({"target": "y", "classes": ["a", "b"], "columns": columns})
    assert repr(schema) == "<Schema of 40 columns, target 'y': 2 classes>"
    assert repr(DPLogisticRegression(schema=schema)) == f"DPLogisticRegression(schema={schema!r})"
    array = Schema.from_dict({"target_range": [0, 9], "array": {"low": 0, "high": 255}})
    assert repr(array) == "<Schema of arrays, 0 to 255, target 'y': 0 to 9>"
