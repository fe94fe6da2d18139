"""Calibrated models: what their certificates charge, what folders say, and what a resumed fit
releases."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.accounting.certificate import Certificate, delta_beyond_support
from lastiterate.accounting.noise_calibration import calibrate_exactly
from lastiterate.audit.runner import auditable
from lastiterate.curves.gaussian import Gdp
from lastiterate.engine.checkpoint import Checkpoint, Key
from lastiterate.engine.linear_model import execute
from lastiterate.ledger import Ledger
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.run.facts import FLOAT_SLACK

DELTA, Z = 1e-5, 4.0
PLAIN = li.Run(
    n=300, steps=20, step_size=0.5, clip=0.5, loss=li.Logistic(), noise=li.NoiseMultiplier(30.0)
)
RUN = replace(PLAIN, probability_calibration=li.Calibration(Z))


def data(seed=0, n=300):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) / 3
    return x, (x[:, 0] + 0.3 * rng.normal(size=n) > 0.3).astype(int)


@pytest.mark.parametrize("adjacency, moved", [("zero-out", 1), ("replace-one", 2)])
def test_all_rounds_cost_what_one_gaussian_mechanism_does(adjacency, moved):
    plain, run = replace(PLAIN, adjacency=adjacency), replace(RUN, adjacency=adjacency)
    steps, both = (li.account(one).curve("composition-gdp") for one in (plain, run))
    assert both.mu == pytest.approx(math.hypot(steps.mu, moved * (1 + FLOAT_SLACK) / Z), rel=1e-12)
    rounds = li.account(replace(run, probability_calibration=li.Calibration(Z, rounds=7))).curve(
        "composition-gdp"
    )
    assert rounds.mu == both.mu, "more rounds share the same"


def test_every_theorem_that_certifies_is_charged_for_them():
    for run in (
        replace(PLAIN, batching=li.Permuted(30), clip=None),
        replace(PLAIN, batching=li.RandomAllocation(30)),
        replace(PLAIN, batching=li.Poisson(0.1)),
        replace(PLAIN, batching=li.FixedSize(30)),
        replace(PLAIN, rows_per_unit=2),
        replace(
            PLAIN,
            loss=li.Logistic(ridge=0.1),
            clip=None,
            method=li.ObjectivePerturbation(4),
            steps=4000,
        ),
    ):
        before, after = (
            li.account(run),
            li.account(replace(run, probability_calibration=li.Calibration(0.5))),
        )
        names = {verdict.theorem.name for verdict in before.certifying}
        assert names and {verdict.theorem.name for verdict in after.certifying} == names
        for name in names:
            alone = Gdp(run.rows_per_unit / 0.5).epsilon(DELTA)
            assert after.curve(name).epsilon(DELTA) > max(
                alone, before.curve(name).epsilon(DELTA)
            ), name


def test_lower_bounds_say_nothing_about_folded_weights():
    run = replace(PLAIN, clip=None)
    assert (
        li.account(run).lower(DELTA)
        > 0
        == li.account(replace(run, probability_calibration=RUN.probability_calibration)).lower(
            DELTA
        )
    )


def test_steps_relative_to_a_measured_smoothness_are_certified_and_have_no_lower_bound():
    """What theorems read of such a run has no calibration: it is composed in, and lower bounds
    still say nothing."""
    run = li.Run(
        n=2000,
        steps=50,
        step_size=li.RelativeToSmooth(1.0),
        noise=li.NoiseMultiplier(20.0),
        batching=li.Cyclic(100),
        preprocessing=(li.TopEigenvalue(30.0),),
        loss=li.Logistic(intercept=0.5),
        clip=1.0,
    )
    plain, both = (
        li.account(run),
        li.account(replace(run, probability_calibration=li.Calibration(10.0))),
    )
    assert both.epsilon(1e-5) > plain.epsilon(1e-5)
    assert both.lower(DELTA) == 0


def test_records_that_a_count_was_held_apart_for_do_not_pay_for_the_rounds():
    count = li.NoisyCount(0.1, 30, "apart")
    with_both = li.account(replace(RUN, counts=(count,)))
    assert with_both.epsilon(DELTA) == pytest.approx(
        li.account(replace(PLAIN, counts=(count,))).epsilon(DELTA)
    )


def test_noise_that_ends_is_counted_for_every_round():
    short, long = (
        li.account(replace(RUN, probability_calibration=li.Calibration(0.028, rounds=r)))
        for r in (1, 3)
    )
    assert delta_beyond_support(long, DELTA) > 2 * delta_beyond_support(short, DELTA) > 1e-6
    assert delta_beyond_support(li.account(RUN), DELTA) < 1e-30


def test_exact_noise_is_charged_for_the_rounds_too():
    both, plain = Certificate(ExactRun(RUN)), Certificate(ExactRun(PLAIN))
    assert both.epsilon(DELTA) > plain.epsilon(DELTA)
    found = calibrate_exactly(replace(RUN, noise=None), epsilon=2.0, delta=DELTA)
    assert (
        1.99 < found.epsilon(DELTA) <= 2
        and found.run.probability_calibration == RUN.probability_calibration
    )
    with pytest.raises(li.InputError, match="does not suffice for the preparation"):
        calibrate_exactly(
            replace(RUN, noise=None, probability_calibration=li.Calibration(0.1)),
            epsilon=2.0,
            delta=DELTA,
        )


@pytest.mark.parametrize("secure", [False, True])
def test_a_folder_says_what_was_executed_and_an_edit_is_noticed(tmp_path, secure):
    x, y = data()
    model = li.train(RUN, (x, y), seed=1, secure_noise=secure)
    other = li.train(PLAIN, (x, y), seed=1, secure_noise=secure)
    slopes = model.released.weights[:, :-1] / other.released.weights[:, :-1]
    assert np.ptp(slopes) < 1e-9 and not np.allclose(model.released.weights, other.released.weights)
    place = model.save(tmp_path / "model")
    assert li.verify(place).holds
    again = li.load(place)
    assert again.certificate.run == RUN and np.array_equal(
        again.probabilities(x), model.probabilities(x)
    )
    certificate = json.loads((place / "certificate.json").read_text())
    assert any(
        "calibration of probabilities: 4 rounds" in text
        for text in certificate["stated"]["charged"]
    )
    for edited in ({"type": "Calibration", "noise_multiplier": 400.0, "rounds": 4}, None):
        certificate["exact_run" if secure else "run"]["calibration"] = edited
        (place / "certificate.json").write_text(json.dumps(certificate))
        assert not li.verify(place).holds


def test_a_run_in_json_comes_back_and_a_look_alike_is_refused():
    assert li.Run.from_json(RUN.to_json()) == RUN
    assert (
        li.Run.from_dict({k: v for k, v in PLAIN.to_dict().items() if k != "calibration"}) == PLAIN
    )
    for wrong in (
        5.0,
        {"type": "NoisyCount", "noise_multiplier": 1.0, "records": 3},
        {"type": "Calibration", "noise_multiplier": -1.0},
    ):
        with pytest.raises(li.InputError):
            li.Run.from_dict(RUN.to_dict() | {"calibration": wrong})


def test_a_resumed_fit_releases_the_same_weights(tmp_path):
    (x, y), place = data(), tmp_path / "checkpoint"
    key = Key(b"k" * 32)

    class Killed(Exception):
        pass

    def stop(done, steps, seconds):
        raise Killed

    run = replace(RUN, steps=2000)
    whole = execute(run, x, y, np.arange(4, dtype=np.uint32))
    with pytest.raises(Killed):
        execute(run, x, y, np.arange(4, dtype=np.uint32), stop, Checkpoint(place, key, 0.0))
    again = execute(run, x, y, np.arange(4, dtype=np.uint32), None, Checkpoint(place, key, 0.0))
    assert np.array_equal(whole.weights, again.weights)


def test_audits_of_long_runs_leave_the_calibration_out_and_say_so():
    assert auditable(RUN).run == RUN
    found = auditable(replace(RUN, steps=50_000))
    assert found.run == replace(PLAIN, steps=50_000) and found.lacking == (
        "probability_calibration (Calibration)",
    )


def test_what_cannot_be_paid_is_refused_before_a_ledger_is_charged(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.add("people", unit="record", adjacency="zero-out", filter=GaussianFilter(3.0, 1e-7))
    under = {"ledger": ledger, "dataset": "people"}
    with pytest.raises(li.InputError, match="cannot be reached by noise alone"):
        li.train(
            replace(RUN, noise=None, probability_calibration=li.Calibration(0.1)),
            data(),
            epsilon=1.0,
            delta=DELTA,
            **under,
        )
    finer = replace(RUN, probability_calibration=li.Calibration(1e14))
    with pytest.raises(li.InputError, match="secure_noise needs a grid"):
        li.train(finer, data(), secure_noise=True, **under)
    assert not ledger.total("people").releases
    li.train(RUN, data(), delta=DELTA, **under)
    assert len(ledger.total("people").releases) == 1


def test_a_public_factor_is_free():
    plain = replace(PLAIN, clip=None)
    run = replace(plain, probability_calibration=li.AssumedSlope(0.5))
    before, after = li.account(plain), li.account(run)
    assert after.epsilon(DELTA) == before.epsilon(DELTA)
    assert delta_beyond_support(after, DELTA) == delta_beyond_support(before, DELTA)
    assert li.Run.from_json(run.to_json()) == run
    assert Certificate.from_json(after.to_json(DELTA)).epsilon(DELTA) == after.epsilon(DELTA)
