"""Forgetting end to end: what is executed, what is certified and charged, what is refused, and that
nothing is left."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.analysis import perturbed_objective
from lastiterate.analysis.unlearning import Continued
from lastiterate.cli import app
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning import unlearning_plans
from lastiterate.planning.unlearning_plans import least_noise, plan_unlearning
from lastiterate.release import unlearning
from lastiterate.release.ledger_charge import make_charging
from lastiterate.release.model_kinds import UNLEARNED
from lastiterate.release.pipeline import finish
from lastiterate.release.unlearning import make_order, plan_forgetting, read_training
from lastiterate.run.methods import RidgeMinimiser

N, D = 1500, 6


def table(seed=0, classes=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    y = (x @ rng.normal(size=(D, classes)) + rng.normal(size=(N, classes)) / 2).argmax(axis=1)
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


X, Y = table()


def fitted(x=X, y=Y, ridge=0.01):
    return LogisticRegression(C=1 / (ridge * len(x)), fit_intercept=False).fit(x, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_plain_ridge_model_forgets(classes, tmp_path):
    x, y = table(1, classes)
    names = np.array(["red", "green", "blue"])[y]
    model = fitted(x, names)
    found = li.forget(
        model, x, names, remove=[3, 70, 3], epsilon=1.0, delta=1e-5, row_norm=1.0, seed=0
    )
    subject = found.certificate.subject
    assert (
        isinstance(subject, Unlearning)
        and subject.removed == 2
        and found.certificate.adjacency == "forgotten"
    )
    assert 0.99 < found.certificate.epsilon(1e-5) <= 1.0, "all of the budget, and no more"
    assert isinstance(
        subject.training, RidgeMinimiser
    ) and subject.training.loss.ridge == pytest.approx(0.01)
    assert abs((found.predict(x) == names).mean() - model.score(x, names)) < 0.02
    found.save(tmp_path / "m")
    assert li.verify(tmp_path / "m").holds
    again = li.load(tmp_path / "m")
    assert (
        np.array_equal(again.released.weights, found.released.weights)
        and again.unlearning == subject
    )
    assert (again.predict(x) == found.predict(x)).all()


def test_requests_in_a_row_are_one_longer_run():
    first = li.forget(fitted(), X, Y, remove=[1, 2], epsilon=1.0, delta=1e-5, row_norm=1.0, seed=0)
    x, y = np.delete(X, [1, 2], axis=0), np.delete(Y, [1, 2])
    second = li.forget(first, x, y, remove=[9], epsilon=1.0, delta=1e-5, seed=1)
    subject = second.certificate.subject
    assert [part.removed for part in subject.requests] == [2, 1] and subject.removed == 3
    assert second.certificate.epsilon(1e-5) <= 1.0
    with pytest.raises(li.InputError, match="must hold the 1497 records that are left"):
        li.forget(second, x, y, remove=[0], epsilon=1.0)


def test_what_was_removed_leaves_no_trace_of_its_values():
    """The same weights whatever the removed records hold: only the weights before them remember."""
    other, label = X.copy(), Y.copy()
    other[[4, 8]], label[[4, 8]] = 0.1, 1 - Y[[4, 8]]
    run = li.Run(
        n=N, steps=20, step_size=1.0, noise=li.GradientNoise(0.0), loss=li.Logistic(ridge=0.01)
    )
    weights = np.full((1, D + 1), 0.3)
    one, two = (
        li.forget((run, weights), *data, remove=[4, 8], epsilon=1.0, seed=5)
        for data in ((X, Y), (other, label))
    )
    assert np.array_equal(one.released.weights, two.released.weights)
    three = li.forget((run, weights + 0.1), X, Y, remove=[4, 8], epsilon=1.0, seed=5)
    assert not np.array_equal(one.released.weights, three.released.weights)


def test_the_law_is_the_one_that_is_certified():
    """On clamped residuals the mean and the variance of the last weights are those of the linear
    recursion."""
    n, run = (
        40,
        li.Run(
            n=40,
            steps=12,
            step_size=0.5,
            noise=li.GradientNoise(0.0),
            batching=li.Cyclic(10),
            loss=li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.4, intercept=0.0),
        ),
    )
    x, y = np.ones((n, 1)), np.full(n, 1e20)
    start = np.array([[2.0, 0.0]])
    plan = plan_unlearning(run, (), 3, 1, epsilon=1.0, delta=1e-5, most=1)
    drawn = np.array(
        [
            li.forget(
                (run, start), x, y, remove=[0, 1, 2], epsilon=1.0, delta=1e-5, epochs=1, seed=seed
            ).released.weights[0, 0]
            for seed in range(200)
        ]
    )
    mean, variance = 2.0, plan.run.start.std**2
    for k, eta in enumerate(plan.run.step_sizes):
        block = np.arange(n)[k % plan.run.blocks * int(plan.run.divisor) :][: int(plan.run.divisor)]
        mean = (1 - 0.4 * eta) * mean + eta * (block > 2).sum() / plan.run.divisor
        variance *= (1 - 0.4 * eta) ** 2
    assert drawn.mean() == pytest.approx(mean, abs=4 * (variance / 200) ** 0.5)
    assert drawn.std() == pytest.approx(variance**0.5, rel=0.25)


def test_private_trainings_go_on_privately(tmp_path):
    run = li.Run(
        n=N, steps=100, step_size=1.0, batching=li.Cyclic(150), loss=li.Logistic(ridge=0.02)
    )
    model = li.train(run, (X, Y), epsilon=1.0, delta=1e-5, seed=0)
    found = li.forget(model, X, Y, remove=[5], epsilon=0.5, delta=1e-5, seed=1)
    steps = found.unlearning.requests[-1].run
    assert plan_unlearning(model.run, (), 1, D, epsilon=0.5, delta=1e-5).retraining == 10, (
        "passes of the training itself"
    )
    assert (
        steps.noise_stds.min() >= model.run.noise_stds.min()
        and found.certificate.epsilon(1e-5) <= 0.5
    )
    assert li.account(steps).epsilon(1e-5) < 2.0, "everybody else is still protected"
    assert found.unlearning.training == model.run
    parts = (li.UnitRows(), li.PrivateMean(30.0, 1.0))
    model = li.train(replace(run, preprocessing=parts), (X, Y), epsilon=4.0, delta=1e-5, seed=0)
    other = X.copy()
    other[5] = np.nan
    one, two = (
        li.forget(model, x, Y, remove=[5], epsilon=4.0, delta=1e-5, seed=1) for x in (X, other)
    )
    assert np.array_equal(one.released.weights, two.released.weights)


def test_plans_follow_public_numbers_alone():
    loss = li.Logistic(row_norm=1.0, ridge=0.01, intercept=0.0)
    exactly = RidgeMinimiser(n=100_000, loss=loss, residual=1e-8)
    few, many = (
        plan_unlearning(exactly, (), removed, 50, epsilon=1.0, delta=1e-6) for removed in (1, 1000)
    )
    assert few.run.start.std < many.run.start.std / 500 and few.passes <= many.passes
    assert few.certificate.certifies(1.0, 1e-6) and few.everybody_else() is None
    assert few.excess <= unlearning_plans.GOOD and few.retraining is not None
    quiet = replace(few.run, start=li.FixedStart())
    std = least_noise(exactly, (), 1, quiet, 1.0, 1e-6)
    assert (
        not Unlearning(
            exactly, (Continued(replace(quiet, start=li.GaussianStart(std * 0.999)), 1),)
        )
        .curves[0]
        .delta(1.0)
        <= 1e-6
    )


def test_others_pay_under_one_adjacency():
    """An exchange of a record that stays moves the steps by twice what its absence does."""
    training = li.Run(
        n=N,
        steps=50,
        step_size=1.0,
        noise=li.GradientNoise(0.02),
        loss=li.Logistic(ridge=0.05),
        adjacency="replace-one",
    )
    plan = plan_unlearning(training, (), 1, D, epsilon=0.5, delta=1e-5)
    assert plan.run.adjacency == "replace-one"
    first, steps = unlearning_plans.private(training), plan.everybody_else()
    absent = unlearning_plans.private(replace(plan.run, adjacency="zero-out"))
    assert first is not None and steps is not None and absent is not None
    both, mixed = (unlearning_plans.together(first, one) for one in (steps, absent))
    assert both is not None and mixed is not None and mixed.epsilon(1e-5) == both.epsilon(1e-5)
    assert both.epsilon(1e-5) > max(first.epsilon(1e-5), absent.epsilon(1e-5) * 2)
    alone = replace(training, batching=li.Poisson(0.1), adjacency="add-remove")
    assert unlearning_plans.together(unlearning_plans.private(alone), steps) is None, (
        "other neighbours"
    )


def test_a_solver_that_may_end_farther_away_is_in_delta():
    """The distance to a perturbed minimiser holds for linear terms of the usual length, and not for
    all."""
    loss = li.Logistic(row_norm=1.0, ridge=0.05)
    training = li.Run(
        n=N,
        steps=2000,
        step_size=1.5,
        noise=li.NoiseMultiplier(1.0),
        loss=loss,
        method=li.ObjectivePerturbation(D + 1),
    )
    steps = li.Run(n=N, steps=5, step_size=1.0, noise=li.GradientNoise(0.0), loss=loss)
    assert (
        Unlearning(training, (Continued(steps, 1),)).curves[0].delta(1e6)
        >= perturbed_objective.FAILURE
    )


def test_a_model_that_says_more_than_its_certificate_is_refused():
    run = li.Run(
        n=N, steps=20, step_size=1.0, noise=li.GradientNoise(0.05), loss=li.Logistic(ridge=0.05)
    )
    model = li.train(run, (X, Y), seed=0)
    loud = replace(model, run=replace(run, noise=li.GradientNoise(50.0)))
    with pytest.raises(li.InputError, match="must be described as its certificate says"):
        li.forget(loud, X, Y, remove=[3], epsilon=0.1)
    found = li.forget(model, X, Y, remove=[3], epsilon=1.0, seed=0)
    more = replace(
        found,
        unlearning=Unlearning(
            replace(run, noise=li.GradientNoise(50.0)), found.unlearning.requests
        ),
    )
    with pytest.raises(li.InputError, match="must be described as its certificate says"):
        li.forget(more, np.delete(X, 3, axis=0), np.delete(Y, 3), remove=[3], epsilon=0.1)


def test_who_was_trained_on_pays_for_what_is_forgotten(tmp_path):
    """The ledger knows whom a model was charged to and what was certified; nobody else pays, and no
    other run."""
    ledger = Ledger(tmp_path / "l")
    for name in "AB":
        ledger.add(name, unit="row", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-5))
    run = li.Run(
        n=N, steps=20, step_size=1.0, noise=li.GradientNoise(0.05), loss=li.Logistic(ridge=0.05)
    )
    model, head = li.train(run, (X, Y), delta=1e-5, ledger=ledger, dataset="A"), ledger.head()
    louder = replace(run, noise=li.GradientNoise(50.0))
    other = replace(model, run=louder, proof=li.account(louder))
    for asked, dataset, why in (
        (model, "B", "dataset must be the one .*give dataset='A'"),
        (other, "A", "about another run"),
    ):
        with pytest.raises(li.InputError, match=why):
            li.forget(
                asked, X, Y, remove=[3], epsilon=1.0, delta=1e-5, ledger=ledger, dataset=dataset
            )
    assert ledger.head() == head
    found = li.forget(model, X, Y, remove=[3], epsilon=1.0, delta=1e-5, ledger=ledger, dataset="A")
    with pytest.raises(li.InputError, match="give dataset='A'"):
        li.forget(
            found,
            np.delete(X, 3, axis=0),
            np.delete(Y, 3),
            remove=[3],
            epsilon=1.0,
            ledger=ledger,
            dataset="B",
        )
    assert [line.purpose for line in ledger.total("A").releases] == ["train", "forget"]


def test_as_many_records_are_removed_as_are_certified():
    before = read_training(fitted(), X, Y, 1.0)
    order = make_order(
        before,
        plan_forgetting(before, 1, epsilon=1.0, delta=1e-5, most=80),
        (X, Y),
        (1, 2, 3),
        1.0,
        1e-5,
        make_charging(),
    )
    with pytest.raises(li.InputError, match="must name the 1 record of the certificate"):
        finish(UNLEARNED, order)


def test_a_certificate_says_that_requests_must_not_follow_models():
    steps = li.Run(
        n=N, steps=5, step_size=1.0, noise=li.GradientNoise(0.0), loss=li.Logistic(ridge=0.05)
    )
    said = Unlearning(steps, (Continued(replace(steps, start=li.GaussianStart(1.0)), 1),)).caveats
    assert any("nobody chose which records to remove" in text for text in said)


REFUSED = [
    (dict(remove=[N]), "must name records of the data, 0 .. 1499"),
    (dict(remove=[]), "must be a list of integers, the positions"),
    (dict(remove=range(N)), "must leave some records"),
    (dict(remove=[0.5]), "must be a list of integers, the positions"),
    (dict(row_norm=0.5), "must be a public bound on the norm"),
    (dict(remove=np.flatnonzero(Y == 1)), "must leave a record of every class"),
    (dict(epochs=0), "epochs must be an integer"),
]


@pytest.mark.parametrize(("given", "why"), REFUSED)
def test_bad_input_is_refused(given, why):
    with pytest.raises(li.InputError, match=why):
        li.forget(fitted(), X, Y, **dict(remove=[1], epsilon=1.0, delta=1e-5, row_norm=1.0) | given)


def test_an_estimator_forgets_what_it_was_fitted_on():
    run = li.Run(
        n=N, steps=40, step_size=0.5, loss=li.Logistic(ridge=0.1), noise=li.GradientNoise(0.01)
    )
    estimator = li.estimators.DPLogisticRegression(
        run=run, features="plain", classes=[0, 1], epsilon=50.0, random_state=0
    ).fit(X, Y)
    one, two = (
        li.forget(given, X, Y, remove=[1], epsilon=5.0, delta=1e-5, seed=1)
        for given in (estimator, estimator.fitted_)
    )
    assert np.array_equal(one.released.weights, two.released.weights)


def test_models_that_are_not_known_to_forget():
    with pytest.raises(li.InputError, match="fit_intercept of the model must be False"):
        li.forget(LogisticRegression(C=1e-2).fit(X, Y), X, Y, remove=[1], epsilon=1.0, row_norm=1.0)
    with pytest.raises(li.InputError, match="must be the minimiser of its objective on these data"):
        other = fitted()
        other.coef_ = other.coef_ * np.nan
        li.forget(other, X, Y, remove=[1], epsilon=1.0, row_norm=1.0)
    for other in (
        (X, 1 - Y),
        (X[::-1], Y),
        (table(7)[0], Y),
        (X[: N // 2], Y[: N // 2]),
    ):  # another fit would be of them
        with pytest.raises(
            li.InputError, match="must be the minimiser of its objective on these data"
        ):
            li.forget(fitted(), *other, remove=[1], epsilon=1.0, row_norm=1.0)
    run = li.Run(
        n=N, steps=50, step_size=0.5, clip=1.0, loss=li.Logistic(), optimizer=li.HeavyBall(0.9)
    )
    model = li.train(run, (X, Y), epsilon=1.0, delta=1e-5, seed=0)
    with pytest.raises(
        li.NotCertified, match="its own differential privacy gives epsilon 1 at delta"
    ):
        li.forget(model, X, Y, remove=[1], epsilon=1.0, delta=1e-5)
    measured = replace(
        run,
        clip=None,
        loss=li.Logistic(row_norm=1.0, ridge=0.1),
        optimizer=None,
        step_size=li.RelativeToSmooth(1.9),
        preprocessing=(li.TopEigenvalue(noise_multiplier=20.0),),
    )
    model = li.train(measured, (X, Y), epsilon=1.0, delta=1e-5, seed=0)
    with pytest.raises(li.NotCertified, match=r"measured on the records.*epsilon 1 at delta"):
        li.forget(model, X, Y, remove=[1], epsilon=1.0, delta=1e-5)
    network = li.train(
        replace(run, loss=li.KnownConstants(), optimizer=None),
        (X, Y),
        model=np.zeros(D),
        epsilon=1.0,
        delta=1e-5,
        loss=lambda w, x, y: (w @ x - y) ** 2,
        seed=0,
    )
    for remove, found in (
        ([1], "1"),
        ([1, 4, 1], format_rounded_up(network.certificate.group(2, 1e-5))),
    ):
        with pytest.raises(
            li.NotCertified,
            match="network model forgets.*train again without them; its own "
            f"differential privacy gives epsilon {found} at delta 1e-05 for these records together",
        ):
            li.forget(network, X, Y, remove=remove, epsilon=1.0)


def test_a_skipped_removal_is_not_what_is_executed(monkeypatch):
    honest = li.forget(fitted(), X, Y, remove=[2], epsilon=1.0, delta=1e-5, row_norm=1.0, seed=0)
    monkeypatch.setattr(
        unlearning, "zero_removed", lambda rows, target, removed, n: (rows, target, [])
    )
    broken = li.forget(fitted(), X, Y, remove=[2], epsilon=1.0, delta=1e-5, row_norm=1.0, seed=0)
    assert not np.array_equal(honest.released.weights, broken.released.weights)


# The command line.

SCHEMA = """target = "member"
classes = ["no", "yes"]
source = "made up"
[columns.id]
kind = "id"
[columns.age]
kind = "number"
low = 0
high = 1
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A folder with a table, its schema, a ledger and a model that can forget."""
    place, rng = tmp_path_factory.mktemp("forget"), np.random.default_rng(0)
    ages = rng.random(600)
    rows = [
        f"p{i // 2},{age:.4f},{'yes' if age + rng.normal() / 5 > 0.5 else 'no'}"
        for i, age in enumerate(ages)
    ]
    (place / "data.csv").write_text("\n".join(["id,age,member", *rows]) + "\n")
    (place / "schema.toml").write_text(SCHEMA)
    (place / "ids.txt").write_text("p5\n\np77\n")
    command(
        "ledger",
        "make",
        place / "budget.db",
        "--dataset",
        "members",
        "--unit",
        "person",
        "--rows-per-unit",
        2,
        "--epsilon",
        40,
        "--delta",
        1e-4,
    )
    command(
        "train",
        place / "data.csv",
        "--schema",
        place / "schema.toml",
        "--epsilon",
        1,
        "--algorithm",
        "forgetting-sgd",
        "--out",
        place / "model",
        "--ledger",
        place / "budget.db",
        "--dataset",
        "members",
    )
    return place


def command(*words, code=0):
    found = CliRunner().invoke(app, list(map(str, words)))
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


def asked(
    place, *more, remove="ids.txt", data="data.csv", model="model", ids=("--ids", "id"), epsilon=1
):
    return (
        "forget",
        place / model,
        place / data,
        "--remove",
        place / remove,
        *ids,
        "--epsilon",
        epsilon,
        "--delta",
        1e-4,
        *more,
    )


@pytest.fixture(scope="module")
def persons(released):
    """The folder with a ledger of persons that states no rows, models that protect persons, and the
    files that are left when a person is deleted."""
    place = released
    table, schema = (place / "data.csv").read_text(), place / "schema.toml"
    rows = table.splitlines(keepends=True)
    (place / "left.csv").write_text("".join(row for row in rows if not row.startswith("p5,")))
    (place / "first.csv").write_text("".join(rows[:1] + rows[1::2]))
    for name, text in (("one", "p5\n"), ("next", "p6\n"), ("row", "11\n"), ("later", "12\n")):
        (place / f"{name}.txt").write_text(text)
    made = ("--dataset", "d", "--unit", "person", "--delta", 1e-3)
    command("ledger", "make", place / "persons.db", *made, "--epsilon", 3)
    command("ledger", "make", place / "small.db", *made, "--epsilon", 1.1)
    train = ("train", place / "data.csv", "--schema", schema, "--epsilon", 1, "--unit", "id")
    sgd = ("--algorithm", "forgetting-sgd")
    for name in ("persons", "small"):
        command(*train, *sgd, "--ledger", place / f"{name}.db", "--out", place / f"{name}-model")
    with pytest.warns(UserWarning, match="several rows of each id cannot forget.*rows_per_unit=1"):
        command(*train, *sgd, "--rows-per-unit", 2, "--out", place / "two-sgd")
    command(*train, "--rows-per-unit", 2, "--out", place / "two-auto")
    return place


def test_a_model_of_one_row_of_each_person_forgets_a_person(persons, tmp_path):
    """The same rows as training are used: of the file itself, of its first rows, and by number."""
    ledger = ("--ledger", persons / "persons.db")
    model = dict(model="persons-model", remove="one.txt")
    one = command(*asked(persons, *ledger, "--out", tmp_path / "one", **model))
    assert "forgot 1 unit (id), by the first row, 1 in all of 1 request" in one
    other = command(*asked(persons, *ledger, "--out", tmp_path / "two", data="first.csv", **model))
    assert "forgot 1 unit (id), by the first row" in other
    model["remove"] = "row.txt"  # the first row of p5
    by_number = command(*asked(persons, "--out", tmp_path / "three", ids=(), **model))
    assert "forgot 1 unit (id), by the first row" in by_number
    model["remove"] = "later.txt"
    text = command(*asked(persons, "--out", tmp_path / "four", ids=(), **model), code=2)
    assert "training used the first row of every id alone: name them with --ids id" in text
    # the certificate of a model that forgot names no column
    model.update(model=tmp_path / "one", remove="next.txt", data="left.csv")
    text = command(*asked(persons, "--out", tmp_path / "five", **model), code=2)
    assert "must hold the 299 records that are left" in text and "--unit COLUMN" in text
    text = command(*asked(persons, *ledger, "--out", tmp_path / "five", **model), code=2)
    assert "the ledger knows others" in text and "--unit COLUMN" in text
    text = command(*asked(persons, *ledger, "--unit", "id", "--out", tmp_path / "five", **model))
    assert "2 in all of 2 requests" in text
    book = Ledger(persons / "persons.db")
    assert [line.purpose for line in book.total().releases] == ["train", *["forget"] * 3]
    assert book.verify() == ()


def test_in_python_a_ledger_of_persons_is_charged_for_one_row_of_each(persons):
    from lastiterate.data import encode, read_table

    model = li.load(persons / "persons-model")
    x, y = encode(read_table(str(persons / "first.csv"), model.schema), model.schema)
    more = dict(remove=[7], epsilon=1.0, delta=1e-4, ledger=persons / "persons.db")
    assert li.forget(model, x, y, **more).unlearning.removed == 1


@pytest.mark.parametrize("model", ["two-sgd", "two-auto"])
def test_a_model_of_several_rows_of_a_person_says_what_to_do_instead(persons, tmp_path, model):
    words = asked(persons, "--out", tmp_path / "m", model=model, remove="one.txt")
    text = command(*words, code=2)
    assert "model must use one row of each id" in text and "this one uses up to 2" in text
    assert "--unit id --rows-per-unit 2 --epsilon EPSILON" in text
    assert f"epsilon 1 at delta {1e-4:g} for each of them" in text or "epsilon 0." in text
    again = ("--unit", "id", "--rows-per-unit", 2, "--epsilon", 1, "--out", tmp_path / "again")
    command("train", persons / "left.csv", "--schema", persons / "schema.toml", *again)


def test_a_budget_that_does_not_pay_for_steps_names_what_works(persons, tmp_path):
    words = dict(model="small-model", remove="one.txt")
    ledger = ("--ledger", persons / "small.db")
    for number in range(20):
        place = tmp_path / f"m{number}"
        found = CliRunner().invoke(
            app, list(map(str, asked(persons, *ledger, "--out", place, **words)))
        )
        if found.exit_code:
            break
    text = " ".join(found.output.split())
    assert found.exit_code == 2 and "the steps cost those who stay the same" in text, text
    assert "--batch" not in text and "whose a row is" not in text
    most = re.search(r"with an epsilon of at most ([\d.]+) at delta 0.0001", text)
    train = ("train", persons / "left.csv", "--schema", persons / "schema.toml", "--unit", "id")
    command(*train, *ledger, "--epsilon", most[1], "--delta", 1e-4, "--out", tmp_path / "again")


def test_a_page_says_for_whom_it_holds(persons, tmp_path):
    words = dict(model="persons-model", remove="one.txt")
    text = command(*asked(persons, "--out", tmp_path / "m", **words))
    others = re.search(r"everybody else epsilon ([\d.]+) \(zero-out\)", text)[1]
    page = (tmp_path / "m" / "report.html").read_text()
    assert "your record" not in page and "whether the removed record had ever been used" in page
    for_them = f"epsilon {others} at delta 0.0001 (zero-out) for the training and all steps since"
    assert f"This is about the removed records alone. Everybody else: {for_them}." in page
    number = re.search(r"certified epsilon ([\d.]+) at", text)[1]
    caveat = f"the number {number} says nothing about the records that stay; for them: {for_them}"
    assert f"- {caveat}" in text and page.count(caveat) == 2
    assert "is no differential privacy for" not in text + page.split("<script")[0]
    stored = json.loads((tmp_path / "m" / "certificate.json").read_text())
    assert "is no differential privacy for the records that stay" in stored["caveats"]
    said = command("verify", tmp_path / "m")
    assert f"says nothing about the records that stay; for them: {for_them}." in said
    assert li.verify(tmp_path / "m").holds


def test_from_the_folder_to_the_next_request(released, tmp_path):
    ledger = ("--ledger", released / "budget.db", "--dataset", "members")
    said = command(*asked(released, "--out", tmp_path / "two", "--reserve", 20, *ledger))
    assert (
        "4 records, 4 in all of 1 request " in said
        and "20 more records" in said
        and "epsilon" in said
    )
    assert "holds" in command("verify", tmp_path / "two")
    assert "about the removed records alone" in command("verify", tmp_path / "two")
    for form in ("model-card", "registry", "scai", "sacro"):
        said = command(
            "export", tmp_path / "two", "--format", form, "--out", tmp_path / form, code=2
        )
        assert (
            "states the differential privacy of every record" in said
            and not (tmp_path / form).exists()
        )
    assert "@misc{forgetting," in command("export", tmp_path / "two", "--format", "bibtex")
    page = (tmp_path / "two" / "report.html").read_text()
    assert "Epsilon over epochs" in page and "4 removed records together" in page
    stored = json.loads((tmp_path / "two" / "certificate.json").read_text())
    assert (
        stored["adjacency"] == "forgotten" and stored["unlearning"]["requests"][0]["removed"] == 4
    )
    lines = Ledger(released / "budget.db").total("members").releases
    assert [line.purpose for line in lines] == ["train", "forget"] and lines[-1].state == "released"
    # the file without these people is what the next request is made on, and nothing else
    kept = [
        line
        for line in (released / "data.csv").read_text().splitlines()
        if not line.startswith(("p5,", "p77,"))
    ]
    (tmp_path / "left.csv").write_text("\n".join(kept) + "\n")
    (tmp_path / "more.txt").write_text("1\n")
    again = (
        "forget",
        tmp_path / "two",
        "--remove",
        tmp_path / "more.txt",
        "--epsilon",
        1,
        "--delta",
        1e-4,
        *ledger,
    )
    refused = command(*again, released / "data.csv", "--out", tmp_path / "three", code=2)
    assert "the ledger knows others" in refused and not (tmp_path / "three").exists()
    said = command(*again, tmp_path / "left.csv", "--out", tmp_path / "three")
    assert "forgot 1 record, 5 in all of 2 requests" in said
    assert not Ledger(released / "budget.db").verify()


BAD = {
    "unknown id": (dict(remove="none.txt"), "1 of 2 lines do not, the first is line 2"),
    "empty list": (dict(remove="empty.txt"), "must name at least one record"),
    "no such column": (dict(ids=("--ids", "name")), "--ids must be a column of the data file"),
    "everybody": (dict(remove="all.txt"), "--remove must leave some records"),
    "a class": (dict(remove="class.txt", ids=()), "must leave a record of every class"),
    "another data set": (dict(data="other.csv"), "the ledger knows others"),
    "small epsilon": (dict(epsilon=-1), "epsilon"),
    "no model": (dict(model="nowhere"), "must be a folder that train wrote"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_ends_with_one_sentence(released, tmp_path, what):
    rows = (released / "data.csv").read_text().splitlines()
    (released / "none.txt").write_text("p5\nnobody\n")
    (released / "empty.txt").write_text("\n\n")
    (released / "all.txt").write_text("\n".join(f"p{i}" for i in range(300)))
    (released / "class.txt").write_text(
        "\n".join(str(i) for i, row in enumerate(rows) if row.endswith("yes"))
    )
    (released / "other.csv").write_text(
        "\n".join([*rows[:5], rows[5].replace(",0.", ",0.9"), *rows[6:]]) + "\n"
    )
    given, why = BAD[what]
    before = Ledger(released / "budget.db").head()
    said = command(
        *asked(
            released,
            "--out",
            tmp_path / "m",
            "--ledger",
            released / "budget.db",
            "--dataset",
            "members",
            **given,
        ),
        code=2,
    )
    assert why in said and said.count("error:") == 1 and "nobody" not in said
    assert not list(tmp_path.iterdir()) and Ledger(released / "budget.db").head() == before


def test_without_a_ledger_it_says_that_nobody_compared_the_data(released, tmp_path):
    said = command(*asked(released, "--out", tmp_path / "m"))
    assert "nobody compared the data" in said and "holds" in command("verify", tmp_path / "m")


def test_an_estimator_and_a_ledger_do_not_go_together(released):
    with pytest.raises(li.InputError, match="cannot be charged for steps without noise"):
        li.forget(
            fitted(), X, Y, remove=[1], epsilon=1.0, row_norm=1.0, ledger=released / "budget.db"
        )
    assert read_training(fitted(), X, Y, 1.0).earlier == ()
