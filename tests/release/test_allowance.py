"""Plans are made for the ledger they are charged to, and a refusal names what fits."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.ledger import GaussianFilter, Ledger, RenyiFilter
from lastiterate.planning.planner import FAIR, consider
from lastiterate.planning.task import Task
from lastiterate.release.allowance import Allowance
from lastiterate.release.ledger_charge import make_charging

FILTERS = {
    "gaussian": GaussianFilter.of(3.0, 1e-5),
    "no failure": GaussianFilter.of(3.0, 1e-5, 0.0),
    "renyi": RenyiFilter.of(3.0, 1e-5),
}
TASK = Task(455, 30, 2)
ASKED: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}


def made(path: Path, name: str) -> Ledger:
    ledger = Ledger(path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=FILTERS[name])
    return ledger


@pytest.mark.parametrize("name", FILTERS)
def test_the_default_plan_fits_a_new_ledger_twice(name: str, tmp_path: Path) -> None:
    """The command that the guide shows, on a table where the plan was refused at 311 % of an empty
    ledger."""
    ledger = made(tmp_path, name)
    words = [
        "train",
        "breast_cancer",
        "--epsilon",
        "2",
        "--delta",
        "1e-6",
        "--explain-plan",
        "--ledger",
        str(ledger.path),
    ]
    for out in ("m", "n"):
        found = CliRunner().invoke(app, [*words, "--out", str(tmp_path / out)])
        assert found.exit_code == 0, found.output
        changed = "ledger changed the plan: allocation would take" in " ".join(found.output.split())
        assert changed == (name != "gaussian")
        assert changed != ("The ledger did not change the plan" in " ".join(found.output.split()))
    assert (
        min(ledger.total().left) >= 0
        and len(ledger.total().releases) == 2
        and ledger.verify() == ()
    )


@pytest.mark.parametrize("kind", ["gaussian", "renyi"])
def test_a_new_ledger_says_which_epsilon_one_release_may_have(kind: str, tmp_path: Path) -> None:
    """Not that of the ledger itself, which a release of the same epsilon exceeds by a few percent."""

    def call(*words: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, list(map(str, words)))
        return found.exit_code, " ".join(found.output.split())

    file = tmp_path / "l"
    about = ("--dataset", "a", "--unit", "record", "--epsilon", 1, "--delta", 1e-5)
    code, said = call("ledger", "make", file, *about, "--filter", kind)
    words = r"One release of the automatic plan fits with epsilon up to ([0-9.]+) at delta 1e-05 "
    most = re.search(words + r"\(zero-out\)\.", said)
    assert code == 0 and most is not None and 0.9 < float(most[1]) < 1, said
    train = ("train", "breast_cancer", "--delta", 1e-5, "--ledger", file, "--epsilon")
    assert call(*train, 1, "--out", tmp_path / "one")[0] == 2
    code, said = call(*train, most[1], "--out", tmp_path / "most")
    assert code == 0, said
    code, said = call("ledger", "make", tmp_path / "p", *about[:3], "person", *about[4:])
    assert code == 0 and "automatic plan with --unit fits with epsilon up to" in said


def test_every_refusal_in_python_names_a_number_that_fits(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (455, 3))
    y, ledger = (x[:, 0] > 0).astype(int), Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(1.0, 1e-5))
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "row_norm": 1.0, "classes": [0, 1]}
    fits = r"epsilon=([0-9.]+) at delta 1e-05 fits"
    one = DPLogisticRegression(algorithm="objective-perturbation", ledger=ledger, **asked)
    with pytest.raises(li.InputError, match=fits + " by the automatic plan; nothing"):
        one.fit(x, y)
    search = DPSearchCV(
        DPLogisticRegression(classes=[0, 1]),
        {"row_norm": [0.5, 1.0]},
        epsilon=1.0,
        delta=1e-5,
        ledger=ledger,
    )
    with pytest.raises(li.InputError, match=f"one fit without a search costs less: {fits} by"):
        search.fit(x, y)
    free = DPLogisticRegression(algorithm="noisy-gd", **asked).fit(x, y).fitted_
    with pytest.raises(li.InputError, match=fits + "; nothing") as refused:
        free.private_score(x, y, epsilon=1.0, ledger=ledger)
    assert ledger.total().releases == ()
    most = float(re.search(fits, str(refused.value))[1])
    free.private_score(x, y, epsilon=most, ledger=ledger)
    ledger.add("b", unit="record", adjacency="zero-out", filter=GaussianFilter.of(1.0, 1e-5))
    DPLogisticRegression(**asked | {"epsilon": most}, ledger=ledger, dataset="b").fit(x, y)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("part", "task"), [(0.3, TASK), (0.002, Task(100, 3, 0))], ids=["a third", "little"]
)
def test_a_ledger_shows_what_the_automatic_plan_may_have(
    name: str, part: float, task: Task, tmp_path: Path
) -> None:
    """It is the largest epsilon of a Gaussian mechanism, which the planner has for every task."""
    allowance = Allowance.of(made(tmp_path, name).total())
    left = replace(allowance, left=tuple(int(share * part) for share in allowance.left))
    said = left.describe_rest(1e-5, planned=True)
    most = re.search(r"^the automatic plan, or .* fits with epsilon up to ([0-9.]+) at", said)
    assert most is not None
    assert consider(task, epsilon=float(most[1]), delta=1e-5, shared=left).best.fits
    shown = CliRunner().invoke(app, ["ledger", "show", str(tmp_path / "l")])
    assert "left: the automatic plan, or a Gaussian mechanism" in " ".join(shown.output.split())


@pytest.mark.parametrize("asked", ["automatic", "permuted-sgd", "noisy-gd"])
@pytest.mark.parametrize("kind", [DPLogisticRegression, DPHuberRidge])
def test_estimators_are_refused_in_their_own_arguments(
    kind: type, asked: str, tmp_path: Path
) -> None:
    """Of batches they have algorithms, and noisy-gd of the same epsilon costs more than the plan."""
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (455, 3))
    y, ledger = (x[:, 0] > 0).astype(int), Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(1.0, 1e-5))
    target: dict[str, Any] = (
        {"classes": [0, 1]} if kind is DPLogisticRegression else {"target_range": (0, 1)}
    )
    more: dict[str, Any] = {"delta": 1e-5, "row_norm": 1.0, "ledger": ledger, **target}
    said = r"epsilon=([0-9.]+) at delta 1e-05 fits by the automatic plan; nothing was trained"
    with pytest.raises(li.InputError, match=said) as refused:
        kind(1.0, algorithm=asked, **more).fit(x, y)
    most = float(re.findall(r"epsilon=([0-9.]+)", str(refused.value))[0])
    kind(most, **more).fit(x, y)


def test_estimators_with_a_run_are_told_of_full_batches(tmp_path: Path) -> None:
    x, ledger = np.random.default_rng(0).uniform(-0.5, 0.5, (400, 3)), Ledger(tmp_path / "l")
    y = (x[:, 0] > 0).astype(int)
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(1.0, 1e-5))
    run = li.Run(
        n=400, steps=200, step_size=0.3, batching=li.RandomAllocation(20), loss=li.Logistic()
    )
    more: dict[str, Any] = {"classes": [0, 1], "ledger": ledger, "delta": 1e-5}
    said = (
        r"epsilon=([0-9.]+) at .* plan, and the same epsilon with batching=FullBatch\(\); nothing"
    )
    with pytest.raises(li.InputError, match=said) as refused:
        DPLogisticRegression(1.0, run=run, **more).fit(x, y)
    most = float(re.findall(r"epsilon=([0-9.]+)", str(refused.value))[0])
    full = replace(run, batching=li.FullBatch())
    DPLogisticRegression(most, run=full, **more).fit(x, y)


@pytest.mark.parametrize("name", FILTERS)
def test_plans_are_weighed_with_what_they_take(name: str, tmp_path: Path) -> None:
    shared = make_charging(ledger=made(tmp_path, name)).allowance()
    choice, alone = consider(TASK, **ASKED, shared=shared), consider(TASK, **ASKED)
    assert choice.alone == alone.best.name == "allocation" and alone.about_sharing == ""
    shares = {plan.name: plan.share for plan in choice.plans}
    assert all(plan.fits == (plan.share is not None and plan.share <= 1) for plan in choice.plans)
    least = min(share for share in shares.values() if share is not None)
    admitted = [
        plan for plan in choice.plans if plan.share is not None and plan.share <= FAIR * least
    ]
    assert choice.best in admitted and choice.best.weighed <= 1.02 * min(
        plan.weighed for plan in admitted
    )
    assert choice.best.name == ("allocation" if name == "gaussian" else "correlated")
    assert choice.best.risk < 1.05 * alone.best.risk


@pytest.mark.parametrize("name", ["no failure", "renyi"])
def test_a_refused_algorithm_names_the_plan_that_fits(name: str, tmp_path: Path) -> None:
    ledger = made(tmp_path, name)
    x = np.random.default_rng(0).uniform(-1, 1, (455, 3))
    asked: dict[str, Any] = {"row_norm": 1.0, "classes": [0, 1], "ledger": ledger, **ASKED}
    with pytest.raises(
        li.InputError,
        match=r"refuses this release.*automatic fits: its plan .*, needs \d+(\.\d+)?%",
    ):
        DPLogisticRegression(algorithm="allocation-sgd", **asked).fit(x, (x[:, 0] > 0).astype(int))
    assert ledger.total().releases == ()
    DPLogisticRegression(**asked).fit(x, (x[:, 0] > 0).astype(int))
    assert [release.state for release in ledger.total().releases] == ["released"]


def test_a_refused_run_is_told_of_full_batches_and_then_of_the_largest_epsilon(
    tmp_path: Path,
) -> None:
    ledger, rng = made(tmp_path, "renyi"), np.random.default_rng(0)
    data = rng.uniform(-1, 1, (400, 3)).astype(np.float32), rng.integers(0, 2, 400)
    run = li.Run(
        n=400,
        steps=1000,
        step_size=0.3,
        clip=1.0,
        batching=li.RandomAllocation(20),
        loss=li.Logistic(),
    )
    with pytest.raises(
        li.InputError, match=r"refuses .* full batches \(batching=FullBatch\(\)\) .* fit, they need"
    ):
        li.train(run, data, ledger=ledger, **ASKED)
    full = li.Run(n=400, steps=20, step_size=0.3, clip=1.0, loss=li.Logistic())
    persons = Ledger(tmp_path / "persons")
    persons.add("p", unit="person", adjacency="zero-out", filter=FILTERS["renyi"], rows_per_unit=7)
    cause = (
        r"as a group of 7, because the ledger is per person and nothing says whose a row is: say "
        r"whose a row is \(unit=NAMES, .*\), where rows_per_unit=7 uses all rows of each"
    )
    with pytest.raises(li.InputError, match=cause) as refused:
        li.train(full, data, ledger=persons, **ASKED)
    assert "a Gaussian mechanism" not in str(refused.value), "it would be refused in turn"
    if found := re.search(r"; or epsilon=([0-9.]+) at", str(refused.value)):
        li.train(full, data, ledger=persons, epsilon=float(found[1]), delta=1e-6)
    for _ in range(2):
        li.train(full, data, ledger=ledger, **ASKED)
    found = re.compile(r"; epsilon=(\d+\.\d+) at delta 1e-06 fits( by the automatic plan)?[,;]")
    said = list[tuple[str, str]]()
    for one in (run, full):
        with pytest.raises(li.InputError, match=found) as refused:
            li.train(one, data, ledger=ledger, **ASKED)
        said += found.findall(str(refused.value))
    most = float(said[0][0])
    assert said == [(said[0][0], " by the automatic plan"), (said[0][0], "")]
    own = replace(run, loss=li.KnownConstants(li.LossFacts()))
    first = {"a": np.zeros(3, np.float32)}  # such a loss has no automatic plan
    with pytest.raises(li.InputError, match=r"1e-06 fits with batching=FullBatch\(\);"):
        li.train(
            own,
            data,
            model=first,
            loss=lambda p, x, y: (x @ p["a"] - y) ** 2,
            ledger=ledger,
            **ASKED,
        )
    with pytest.raises(li.InputError, match="refuses"):
        li.train(full, data, ledger=ledger, epsilon=1.02 * most, delta=1e-6)
    li.train(full, data, ledger=ledger, epsilon=most, delta=1e-6)
    with pytest.raises(li.InputError, match=r"used up|epsilon=0\.0"):
        li.train(full, data, ledger=ledger, **ASKED)
    assert len(ledger.total().releases) == 3


def test_what_is_left_decides_where_little_is(tmp_path: Path) -> None:
    """Secret batches take a little more than public ones, and do not fit what a plan without
    secrets still does."""
    ledger = made(tmp_path, "gaussian")
    best = consider(TASK, **ASKED, shared=make_charging(ledger=ledger).allowance())
    shares = {plan.name: plan.share for plan in best.plans}
    assert shares["correlated"] is not None and shares["allocation"] is not None
    filter = FILTERS["gaussian"]
    assert isinstance(filter, GaussianFilter)
    used = 1 - (shares["correlated"] + shares["allocation"]) / 2
    ledger.reserve("a", Gdp(filter.mu * used**0.5), adjacency="zero-out", run="r" * 64, purpose="p")
    choice = consider(TASK, **ASKED, shared=make_charging(ledger=ledger).allowance())
    assert (choice.best.name, choice.best.fits) == ("correlated", True)
    ledger.reserve("a", Gdp(filter.mu * 0.3), adjacency="zero-out", run="r" * 64, purpose="p")
    choice = consider(TASK, **ASKED, shared=make_charging(ledger=ledger).allowance())
    assert not choice.best.fits and "no plan fits the remaining budget" in choice.about_sharing


def test_a_resumed_release_is_planned_as_before_it_was_charged(tmp_path: Path) -> None:
    from lastiterate.release.allowance import Allowance

    ledger = made(tmp_path, "gaussian")
    first = ledger.reserve("a", Gdp(0.3), adjacency="zero-out", run="r" * 64, purpose="p")
    second = ledger.reserve("a", Gdp(0.4), adjacency="zero-out", run="r" * 64, purpose="p")
    budget, total = FILTERS["gaussian"].budget, ledger.total()
    assert Allowance.of(total, first).left == budget
    assert Allowance.of(total, second).left[0] == budget[0] - total.releases[0].charge.costs[0]
    assert Allowance.of(total).left == tuple(
        a - b for a, b in zip(budget, total.spent, strict=True)
    )


def test_a_filter_that_never_charges_a_curve_names_one_that_does(tmp_path):
    """Exact noise has a curve of Renyi divergences: no epsilon fits a Gaussian filter of no failure
    probability."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(150, 4)), rng.integers(0, 3, 150)
    run = li.Run(n=150, steps=6, step_size=0.5, loss=li.Softmax(classes=3))
    how = dict(epsilon=4.0, delta=1e-5, seed=3, secure_noise=True, dataset="d")
    for name, filter in (("g", GaussianFilter(9.0)), ("r", RenyiFilter(9.0, (4.0, 8.0, 16.0)))):
        Ledger(tmp_path / name).add("d", unit="row", adjacency="zero-out", filter=filter)
    with pytest.raises(li.InputError, match="or with the renyi filter") as refused:
        li.train(run, (x, y), ledger=tmp_path / "g", **how)
    assert "smaller epsilon" not in str(refused.value)
    li.train(run, (x, y), ledger=tmp_path / "r", **how)
