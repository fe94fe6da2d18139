"""Every way to a release compares what would run with its budget before a record is read, whatever
a search found."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.accounting import noise_calibration
from lastiterate.accounting.noise_calibration import calibrate_exactly
from lastiterate.cli import app
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import noisy_accuracy, posterior, tuning, unlearning
from lastiterate.release.file_training import fit_file, tune_file
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.theorems import TABLE
from lastiterate.theorems import theorem as theorem_module

RNG = np.random.default_rng(0)
N = 300
X, Y = RNG.uniform(-0.5, 0.5, (N, 3)), RNG.integers(0, 2, N)
RUN = li.Run(n=N, steps=20, step_size=0.5, batching=li.Permuted(60), loss=li.Logistic(ridge=1e-2))
COSTLY = replace(RUN, batching=li.RandomAllocation(60), clip=1.0)
BUDGET = {"epsilon": 1.0, "delta": 1e-5}
FORGETS = li.Run(
    n=N, steps=4, step_size=0.5, noise=li.NoiseMultiplier(1.0), loss=li.Logistic(ridge=0.1)
)
PLAIN = {"row_norm": 1.0, "classes": [0, 1], "algorithm": "noisy-gd"}
TRAINED = (FORGETS, np.zeros((1, 4)))


def module():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(3, 2)
    return li.train(
        replace(RUN, loss=li.KnownConstants(), clip=1.0),
        (torch.tensor(X).float(), torch.tensor(Y)),
        model=net,
        loss=torch.nn.functional.cross_entropy,
        **BUDGET,
    )


TRAININGS = {
    "a linear model": lambda **paid: li.train(RUN, (X, Y), **BUDGET, **paid),
    "a linear model of costly curves": lambda **paid: li.train(COSTLY, (X, Y), **BUDGET, **paid),
    "exact noise": lambda **paid: li.train(RUN, (X, Y), secure_noise=True, **BUDGET, **paid),
    "a network": lambda **paid: li.train(
        replace(RUN, loss=li.KnownConstants(), clip=1.0),
        (X,),
        model=np.zeros(3),
        loss=lambda p, x: (p @ x) ** 2,
        **BUDGET,
        **paid,
    ),
    "an estimator": lambda **paid: DPLogisticRegression(**BUDGET, **PLAIN, **paid).fit(X, Y),
    "an estimator with a run": lambda **paid: DPLogisticRegression(
        **BUDGET,
        run=replace(RUN, probability_calibration=li.Calibration(50.0)),
        classes=[0, 1],
        **paid,
    ).fit(X, Y),
    "an estimator that counts right answers": lambda **paid: DPLogisticRegression(
        **BUDGET, row_norm=1.0, classes=[0, 1], report_accuracy=0.1, **paid
    ).fit(X, Y),
    "a regressor": lambda **paid: DPHuberRidge(
        **BUDGET, row_norm=1.0, target_range=(0, 1), algorithm="noisy-gd", **paid
    ).fit(X, Y),
    "a search": lambda **paid: DPSearchCV(
        DPLogisticRegression(row_norm=1.0, classes=[0, 1], calibrated=False),
        {"run": [replace(RUN, n=240), replace(RUN, n=240, step_size=0.25)]},
        **BUDGET,
        **paid,
    ).fit(X, Y),
    "forgetting": lambda **paid: li.forget(TRAINED, X, Y, remove=[1, 2], **BUDGET),
}
CHEAP = Algorithm("noisy-gd")
FILES = {
    "a file": lambda: fit_file(
        TrainingRequest(data="digits", budget=Budget(1.0, 1e-6), algorithm=CHEAP, features="plain")
    ),
    "a posterior of a file": lambda: fit_file(
        TrainingRequest(
            data="diabetes", budget=Budget(1.0, 1e-6, "replace-one"), model="posterior-sample"
        )
    ),
    "a tuned file": lambda: tune_file(
        TrainingRequest(data="digits", budget=Budget(1.0, 1e-6), features="plain"),
        algorithms=(CHEAP, Algorithm("permuted-sgd")),
        law=tuning.law_of(6.0),
    ),
}


@pytest.fixture
def wrong(monkeypatch):
    """Searches that find a quarter of the noise, or plan for three times the budget, and do not
    notice."""
    true, exactly, loudest = (
        noise_calibration.calibrate_run,
        noise_calibration.smallest_true,
        noise_calibration.scale_noise,
    )

    def calibrated(run, **asked):
        return loudest(true(run, **asked), 0.25)

    def three_times(planned):
        return lambda *of, epsilon, **more: planned(*of, epsilon=3 * epsilon, **more)

    monkeypatch.setattr(noise_calibration, "calibrate_run", calibrated)
    monkeypatch.setattr(noise_calibration, "smallest_true", lambda *of: exactly(*of) / 16)
    for module_, name in (
        (tuning, "plan_candidates"),
        (unlearning, "plan_unlearning"),
        (posterior, "plan_sample"),
    ):
        monkeypatch.setattr(module_, name, three_times(getattr(module_, name)))


@pytest.fixture
def unnoticed(wrong, monkeypatch):
    """The same, with the comparison at the end of every search left out: the release's own is the
    last."""
    for module_ in (noise_calibration, noise_calibration):
        monkeypatch.setattr(module_, "check_within", lambda *of: None)


@pytest.mark.parametrize("field", ["noise", "steps"])
@pytest.mark.parametrize("run", [RUN, COSTLY], ids=["cheap", "costly"])
def test_a_calibration_that_found_too_little_is_refused(wrong, run, field):
    asked = run if field == "noise" else replace(run, noise=li.NoiseMultiplier(8.0))
    with pytest.raises(InputError, match="epsilon is exceeded by what would run"):
        li.calibrate(asked, field=field, **BUDGET)


def test_an_exact_calibration_and_the_command_are_refused_too(wrong):
    with pytest.raises(InputError, match="epsilon is exceeded by what would run"):
        calibrate_exactly(RUN, **BUDGET)
    said = CliRunner().invoke(
        app,
        [
            "calibrate",
            "--n",
            "300",
            "--steps",
            "20",
            "--step-size",
            "0.5",
            "--clip",
            "1",
            "--epsilon",
            "1",
        ],
    )
    assert said.exit_code == 2 and "--epsilon is exceeded" in " ".join(said.output.split())


@pytest.mark.parametrize("way", TRAININGS)
@pytest.mark.filterwarnings("ignore")
def test_no_training_begins_above_its_budget(unnoticed, monkeypatch, way, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.add("people", unit="row", adjacency="zero-out", filter=GaussianFilter.of(60.0, 1e-4))
    monkeypatch.setattr(noisy_accuracy, "TOO_WIDE", 1.0)  # few records are counted here
    with pytest.raises(InputError, match="epsilon is exceeded by what would run"):
        TRAININGS[way](**({} if way == "forgetting" else {"ledger": ledger}))
    assert ledger.total().releases == ()


@pytest.mark.filterwarnings("ignore")
def test_no_module_is_trained_above_its_budget(unnoticed):
    with pytest.raises(InputError, match="epsilon is exceeded by what would run"):
        module()


@pytest.mark.parametrize("way", FILES)
@pytest.mark.filterwarnings("ignore")
def test_no_file_is_trained_on_above_its_budget(unnoticed, way):
    with pytest.raises(InputError, match="epsilon is exceeded by what would run"):
        FILES[way]()


@pytest.mark.parametrize("rows", [1, 2, 30, 1000])
@pytest.mark.parametrize("epsilon, delta", [(1e-3, 1e-12), (1.0, 1e-9), (100.0, 1e-5)])
def test_exact_noise_for_units_of_many_rows_keeps_and_uses_its_budget(rows, epsilon, delta):
    run = replace(RUN, n=50_000, rows_per_unit=rows)
    found = calibrate_exactly(run, epsilon=epsilon, delta=delta)
    assert 0.999 * epsilon < found.epsilon(delta) <= epsilon


@pytest.mark.parametrize("epsilon", [708.0, 720.0, 990.0])
@pytest.mark.filterwarnings("ignore")
def test_losses_beyond_the_range_of_exponentials_are_calibrated(epsilon):
    run = li.Run(
        n=50_000,
        steps=20,
        step_size=0.5,
        clip=1.0,
        batching=li.Poisson(0.1),
        adjacency="add-remove",
        loss=li.Logistic(),
    )
    found = li.calibrate(run, epsilon=epsilon, delta=1e-6)
    assert (
        0.99 * epsilon < found.epsilon(1e-6) <= epsilon
        and found.best(1e-6).theorem.name == "poisson-pld"
    )


def test_a_run_that_two_theorems_contradict_is_refused_before_the_charge(monkeypatch, tmp_path):
    """Its noise is its own, so that no budget is compared: the lower bound alone refuses it."""
    known = TABLE["composition-gdp"]
    false = replace(known, name="half", bound=lambda run: Gdp(known.bound(run).mu / 2))
    monkeypatch.setitem(theorem_module._REGISTERED, false.name, false)
    ledger = Ledger(tmp_path / "ledger")
    ledger.add("people", unit="row", adjacency="zero-out", filter=GaussianFilter.of(60.0, 1e-4))
    run = replace(RUN, steps=1, batching=li.FullBatch(), noise=li.NoiseMultiplier(3.0))
    with pytest.raises(li.NotCertified, match=r"half certifies .* quadratic-witness shows"):
        li.train(run, (X, Y), delta=1e-5, ledger=ledger)
    assert ledger.total().releases == ()
