"""Probabilities of private classifiers: planned by default where they pay, as good as the data
allow, and refusable."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import lastiterate as li
from benchmarks.utility.probabilities import calibration_error, log_loss, table
from lastiterate.cli import app
from lastiterate.estimators import DPLogisticRegression, DPSearchCV
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.planner import consider
from lastiterate.planning.presets import ALGORITHMS, FORGETTING, PERTURBED, describe_algorithm
from lastiterate.planning.task import CALIBRATION_SHARE, Task, budget
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.prediction import labels_with
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.probability_calibration import private_calibration

pytestmark = pytest.mark.usefixtures("optimised")  # large fits: the time is in the steps

RUN = li.Run(
    n=400, steps=40, step_size=1.0, loss=li.Logistic(), noise=li.NoiseMultiplier(20.0), clip=0.5
)
TASK = Task(8000, 12, 2, 2.0, calibrated=True)


@pytest.mark.parametrize("positives", [0.04, 0.27])
def test_probabilities_are_nearly_as_good_as_without_privacy(positives):
    x, y, x_test, y_test = table(8000, positives, 50)
    plain = LogisticRegression(C=1e6).fit(x, y).predict_proba(x_test)[:, 1]
    *more, model, bare = (
        DPLogisticRegression(
            row_norm=2.0, classes=[0, 1], calibrated=calibrated, random_state=seed
        ).fit(x, y)
        for calibrated, seed in ((True, 2), (True, 3), (True, 1), (False, 1))
    )
    chance, steep = (one.predict_proba(x_test)[:, 1] for one in (model, bare))
    errors = [calibration_error(y_test, one.predict_proba(x_test)[:, 1]) for one in (model, *more)]
    assert (
        log_loss(y_test, chance)
        < 1.04 * log_loss(y_test, plain)
        < 1.1 * log_loss(y_test, plain)
        < log_loss(y_test, steep)
    )
    assert np.median(errors) < 0.02 < calibration_error(y_test, steep) and max(errors) < 0.025
    assert model.score(x_test, y_test) > bare.score(x_test, y_test) - 0.003
    assert (
        model.run_.probability_calibration is not None and bare.run_.probability_calibration is None
    )
    assert 0.99 < model.certificate_.epsilon(model.delta_) <= 1 and model.certificate_.verify()


@pytest.mark.parametrize("adjacency, moved", [("zero-out", 1), ("replace-one", 2)])
def test_every_plan_spends_the_share_and_no_more(adjacency, moved):
    whole = budget(1.0, 1e-5)
    for plan in consider(TASK, epsilon=1.0, delta=1e-5, adjacency=adjacency).plans:
        part = plan.certificate.run.probability_calibration
        spent = (moved * (1 + FLOAT_SLACK) / part.noise_multiplier / whole) ** 2
        assert 0.9 * CALIBRATION_SHARE < spent <= CALIBRATION_SHARE, plan.name
        assert 0.97 < plan.certificate.epsilon(1e-5) <= 1, plan.name


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS[1:] if name not in (PERTURBED, FORGETTING)]
)
def test_named_algorithms_are_calibrated_too(algorithm):
    """All but those whose models have no steps, or may have to forget records: neither can be
    calibrated."""
    asked = PlanRequest(TASK, 1.0, 1e-5, "zero-out", 60.0)
    assert (
        describe_algorithm(asked, algorithm).probability_calibration
        == asked.with_calibration(asked.empty).probability_calibration
        is not None
    )


UNPAID = {
    "few records": Task(400, 12, 2, 2.0, calibrated=True),
    "many classes": Task(10**6, 12, 101, 2.0, calibrated=True),
    "a regression": Task(10**6, 12, 0, 2.0, calibrated=True),
    "nobody asked": Task(8000, 12, 2, 2.0),
}


@pytest.mark.parametrize("why", UNPAID)
def test_nothing_is_spent_where_it_would_not_pay(why):
    asked = PlanRequest(UNPAID[why], 1.0, 1e-5, "zero-out", 60.0)
    assert asked.calibration_share == 0 and asked.mu == asked.whole_mu
    assert private_calibration(asked.with_calibration(asked.empty).probability_calibration) is None


def test_a_threshold_follows_from_public_costs():
    x, y, x_test, _ = table(2000, 0.1, 51)
    model = DPLogisticRegression(row_norm=2.0, classes=["no", "yes"], threshold=0.1).fit(
        x, np.array(["no", "yes"])[y]
    )
    chance = model.predict_proba(x_test)[:, 1]
    assert np.array_equal(model.predict(x_test) == "yes", chance >= 0.1) and (chance >= 0.1).any()
    for wrong in (0, 1.0, True, "half"):
        with pytest.raises(li.InputError, match="threshold must lie between 0 and 1"):
            DPLogisticRegression(row_norm=2.0, classes=[0, 1], threshold=wrong).fit(x, y)
    with pytest.raises(li.InputError, match="threshold is for two classes"):
        DPLogisticRegression(row_norm=2.0, classes=[0, 1, 2], threshold=0.5).fit(x, y)


def test_a_threshold_of_two_costs_is_kept_in_the_folder(tmp_path):
    x, y, x_test, _ = table(2000, 0.1, 51)
    labels = ["no", "yes"]
    model = DPLogisticRegression(row_norm=2.0, classes=labels, threshold=(1, 9)).fit(
        x, np.array(labels)[y]
    )
    model.fitted_.save(tmp_path / "model")
    read = li.load(tmp_path / "model")
    assert read.answers.threshold == 0.1
    assert np.array_equal(read.predict(x_test), model.predict(x_test))
    assert np.array_equal(model.predict(x_test) == "yes", model.predict_proba(x_test)[:, 1] >= 0.1)
    for wrong in ((1, 0), (-1, 2), (1, 2, 3), (1, float("inf")), (True, 2)):
        with pytest.raises(li.InputError, match="costs of a false alarm and of a miss"):
            DPLogisticRegression(row_norm=2.0, classes=[0, 1], threshold=wrong).fit(x, y)


def test_costs_are_refused_for_weighted_records_with_the_threshold_that_they_mean(tmp_path):
    """It decides as the costs do once the weights are taken out of the probabilities again."""
    x, y, x_test, _ = table(2000, 0.1, 51)
    model = DPLogisticRegression(row_norm=2.0, classes=[0, 1], class_weight={0: 1, 1: 20})
    said = r"weighted records; state threshold=0\.5, .*or train without class weights"
    with pytest.raises(li.InputError, match=said):
        model.set_params(threshold=(1, 20)).fit(x, y)
    model.set_params(threshold=None).fit(x, y)
    with pytest.raises(li.InputError, match=said):
        model.set_params(threshold=(1, 20)).predict(x_test)
    model.fitted_.save(tmp_path / "model")
    with pytest.raises(li.InputError, match=said):
        labels_with(li.load(tmp_path / "model"), (1, 20))
    with pytest.raises(li.InputError, match=r"state threshold=0\.6897, "):
        model.set_params(threshold=(1, 9)).predict(x_test)
    shares = model.predict_proba(x_test) / [1, 20]
    shares /= shares.sum(axis=1, keepdims=True)
    found = model.set_params(threshold=2 / 2.9).predict(x_test)
    assert np.array_equal(found == 1, shares[:, 1] >= 0.1)
    assert 0 < found.sum() < len(found)


RANKING = r"^threshold must be one number here: costs \(a false alarm 1, a miss 10\) speak of "


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ({"calibrated": False}, "calibrated=True"),
        ({"algorithm": "forgetting-sgd"}, "algorithm=automatic"),
        ({"run": RUN}, "give the run a probability_calibration=Calibration\\(Z\\)"),
    ],
)
def test_costs_are_refused_where_scores_are_no_probabilities(more, remedy, monkeypatch):
    """Before the charge; each remedy trains, and one number stays what it was."""
    x, y, x_test, _ = table(400, 0.1, 51)
    x, x_test = x / 2, x_test / 2
    charged = []
    monkeypatch.setattr(Charging, "charge", lambda *_, **__: charged.append(1))
    public = {"classes": [0, 1]} | ({} if "run" in more else {"row_norm": 1.0})
    model = DPLogisticRegression(threshold=(1, 10), **public, **more)
    with pytest.raises(
        li.InputError, match=f"{RANKING}.*; (use )?{remedy}, or state threshold=0.09"
    ):
        model.fit(x, y)
    assert not charged
    model.set_params(threshold=0.09091).fit(x, y)
    assert (model.predict(x_test) == (model.predict_proba(x_test)[:, 1] >= 0.09091)).all()
    if "run" in more:
        better = {"run": replace(RUN, probability_calibration=li.Calibration(50.0))}
    else:
        better = {"calibrated": True, "algorithm": "automatic"}
    model.set_params(threshold=(1, 10), **better).fit(x, y)
    assert (model.predict(x_test) == (model.predict_proba(x_test)[:, 1] >= 1 / 11)).all()
    assert len(charged) == 2


def test_a_search_refuses_costs_for_scores_that_only_rank():
    x, y, _, _ = table(400, 0.1, 51)
    one = DPLogisticRegression(
        classes=[0, 1], algorithm="noisy-gd", calibrated=False, threshold=(1, 10)
    )
    search = DPSearchCV(one, {"row_norm": [2.0, 3.0]}, mean_runs=2.0)
    with pytest.raises(li.InputError, match=f"{RANKING}.*search runs that calibrate"):
        search.fit(x, y)


STATED = ["stay", "churn"]  # not in ascending order
FACTS = {
    "classes": STATED,
    "columns": {"a": {"kind": "number", "low": -1, "high": 1}},
}


def _make_model(form, threshold):
    """A model on one number whose rare second class is ``churn``, and what it predicts for."""
    a = np.linspace(-1, 1, 3000)
    leaves = a + np.random.default_rng(8).normal(size=3000) > 1.6
    y = np.where(leaves, "churn", "stay")
    rows, table = a[:, None], {"a": a}
    settings: dict = dict(epsilon=8.0, random_state=0, threshold=threshold)
    if form == "classes":
        return DPLogisticRegression(row_norm=1.0, classes=STATED, **settings).fit(rows, y), rows
    if form == "search":
        estimator = DPLogisticRegression(classes=STATED, algorithm="noisy-gd", **settings)
        grid = {"row_norm": [0.9, 1.0]}
        return DPSearchCV(estimator, grid, epsilon=8.0, random_state=0).fit(rows, y), rows
    if form == "numbers":
        model = DPLogisticRegression(row_norm=1.0, classes=[1, 0], **settings)
        return model.fit(rows, np.where(leaves, 0, 1)), rows
    return DPLogisticRegression(schema=FACTS, **settings).fit(table, y), table


@pytest.mark.parametrize("form", ["classes", "schema", "search", "numbers"])
def test_a_threshold_is_for_the_second_of_the_stated_classes_everywhere(form, tmp_path):
    """A miss of somebody who leaves costs ten false alarms: from 1 / 11 on they are predicted."""
    model, given = _make_model(form, (1, 10))
    rare, usual = (0, 1) if form == "numbers" else ("churn", "stay")
    labels = [0, 1] if form == "numbers" else ["churn", "stay"]
    chances, predicted = model.predict_proba(given), model.predict(given)
    assert list(model.classes_) == labels  # as scikit-learn's scorers demand
    assert np.array_equal(predicted == rare, chances[:, 0] >= 1 / 11)
    assert 0.1 < (predicted == rare).mean() < 0.9 and chances[0, 1] > chances[-1, 1] + 0.1
    assert np.array_equal(model.decision_function(given) > 0, chances[:, 1] > 0.5)
    released = getattr(model, "best_estimator_", model).fitted_
    released.save(tmp_path / "m")
    read = li.load(tmp_path / "m")
    assert read.answers.values == tuple(map(type(read.answers.values[0]), (usual, rare)))
    rows = given if form != "schema" else model.transformer_.transform(given)
    assert read.predict(rows).tolist() == predicted.tolist()
    assert np.array_equal(read.probabilities(rows)[:, ::-1], chances)
    if form != "schema":
        if form != "search":
            read.to_onnx(tmp_path / "m.onnx")
            session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
            label = session.run(["label"], {"x": rows.astype(np.float32)})[0]
            assert np.count_nonzero(label != predicted) <= 1  # single precision
        return
    csv = tmp_path / "t.csv"
    csv.write_text("a\n" + "".join(f"{float(value)!r}\n" for value in given["a"]))
    called = ["predict", str(tmp_path / "m"), str(csv)]
    for more in ((), ("--threshold", "1:10")):
        done = CliRunner().invoke(app, [*called, *more])
        assert done.exit_code == 0, done.output
        lines = [
            line.split(",") for line in done.output.splitlines() if line[:5] in ("stay,", "churn")
        ]
        assert [line[0] for line in lines] == predicted.tolist()


def test_without_a_stated_order_the_second_class_is_the_larger_one():
    a = np.linspace(-1, 1, 600)[:, None]
    model = DPLogisticRegression(row_norm=1.0, random_state=0, threshold=0.3, epsilon=4.0)
    with pytest.warns(UserWarning, match="classes=None"):
        model.fit(a, np.where(a[:, 0] > 0, "stay", "churn"))
    assert model.fitted_.answers.values == ("churn", "stay")
    assert np.array_equal(model.predict(a) == "stay", model.predict_proba(a)[:, 1] >= 0.3)


def test_classes_in_another_order_than_the_schemas_leave_the_second_open():
    a = np.linspace(-1, 1, 600)
    y = np.where(a > 0, "stay", "churn")
    model = DPLogisticRegression(schema=FACTS, classes=STATED[::-1], random_state=0)
    assert model.fit({"a": a}, y).fitted_.answers.values == tuple(STATED)
    with pytest.raises(li.InputError, match=r"classes must have the order of the schema.*leave"):
        model.set_params(threshold=0.3).fit({"a": a}, y)
    model.set_params(classes=None).fit({"a": a}, y)


def test_three_stated_classes_keep_their_columns():
    a = np.random.default_rng(4).uniform(-1, 1, (3000, 2))
    y = np.array(["c", "a", "b"])[np.argmax(np.column_stack((a, -a.sum(axis=1))), axis=1)]
    model = DPLogisticRegression(row_norm=2.0, classes=["c", "a", "b"], epsilon=8.0).fit(a, y)
    assert list(model.classes_) == ["a", "b", "c"] and model.score(a, y) > 0.7
    assert np.array_equal(model.classes_[model.predict_proba(a).argmax(axis=1)], model.predict(a))
    assert np.array_equal(model.fitted_.predict(a), model.predict(a))


@pytest.mark.parametrize("labels", [["no", "yes"], ["yes", "no"], ["c", "a", "b"], ["b", "c", "a"]])
def test_coefficients_are_those_of_the_classes_in_ascending_order(labels):
    a = np.random.default_rng(4).uniform(-1, 1, (400, 2))
    loss = li.Logistic() if len(labels) == 2 else li.Softmax(classes=3, row_norm=2.0)
    run = li.Run(n=400, steps=5, step_size=0.5, loss=replace(loss, row_norm=2.0))
    y = np.array(labels)[(a[:, 0] > 0).astype(int) * (len(labels) - 1)]
    model = DPLogisticRegression(epsilon=5.0, classes=labels, run=run).fit(a, y)
    scores = a @ model.coef_.T + model.intercept_
    found = scores[:, 0] if len(labels) == 2 else scores
    np.testing.assert_allclose(found, model.decision_function(a), atol=1e-5)
    larger = model.predict(a) == model.classes_[-1]
    assert np.array_equal(larger, found > 0 if len(labels) == 2 else found.argmax(axis=1) == 2)


def test_weights_of_classes_are_in_the_run_the_certificate_and_the_answers():
    x, y, x_test, y_test = table(8000, 0.1, 51)
    found = {}
    for weight in (None, {0: 1, 1: 9}):
        model = DPLogisticRegression(
            epsilon=2.0, row_norm=2.0, classes=[0, 1], class_weight=weight, random_state=3
        )
        found[weight is None] = model.fit(x, y)
    weighted, plain = found[False], found[True]
    assert weighted.run_.loss.class_weights == (1 / 9, 1.0)
    assert weighted.certificate_.epsilon(weighted.delta_) <= 2 and weighted.certificate_.verify()
    assert "class_weights" in weighted.certificate_.to_json(weighted.delta_)
    recalled = [float((one.predict(x_test)[y_test == 1] == 1).mean()) for one in (weighted, plain)]
    assert recalled[0] > 0.5 > 0.35 > recalled[1]
    reference = (
        LogisticRegression(C=1e6, class_weight={0: 1, 1: 9}).fit(x, y).predict_proba(x_test)[:, 1]
    )
    assert abs(weighted.predict_proba(x_test)[:, 1].mean() - reference.mean()) < 0.06


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("balanced", "count private labels"),
        ({0: 1}, "each of the classes"),
        ({0: 1, 1: -1}, "positive numbers"),
    ],
)
def test_what_is_no_public_weighting_is_refused_before_anything_is_charged(tmp_path, given, words):
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter.of(3.0, 1e-5))
    x, y, *_ = table(2000, 0.1, 51)
    with pytest.raises(li.InputError, match=words):
        DPLogisticRegression(
            row_norm=2.0, classes=[0, 1], class_weight=given, ledger=ledger, dataset="d"
        ).fit(x, y)
    assert not ledger.total("d").releases


def test_a_run_says_its_weights_itself():
    run = li.Run(
        n=400, steps=3, step_size=0.1, clip=1.0, loss=li.Logistic(class_weights=(0.5, 1.0))
    )
    x, y, *_ = table(400, 0.3, 51)
    assert DPLogisticRegression(classes=[0, 1], run=run).fit(x, y).run_.loss.class_weights == (
        0.5,
        1.0,
    )
    with pytest.raises(li.InputError, match="class_weight must be left out where a run is given"):
        DPLogisticRegression(classes=[0, 1], run=run, class_weight={0: 1, 1: 2}).fit(x, y)


def test_the_choice_is_true_or_false():
    with pytest.raises(li.InputError, match="calibrated must be True or False"):
        DPLogisticRegression(row_norm=1.0, classes=[0, 1], calibrated="yes").fit(
            np.eye(4), [0, 1, 0, 1]
        )
