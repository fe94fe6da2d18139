"""The search for the least noise asks few theorems, and finds what all of them allow."""

import math
from dataclasses import replace

import pytest

import lastiterate as li
from lastiterate.accounting import noise_calibration
from lastiterate.curves.gaussian import Gdp
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Assumption, Satisfied, Violated

RUN = li.Run(
    n=1000, steps=50, step_size=li.Constant(0.5), batching=li.Permuted(100), loss=li.Logistic()
)
BUDGET = {"epsilon": 1.0, "delta": 1e-6}


def counted(monkeypatch):
    """How many theorems each question of the search was about."""
    asked, true = [], noise_calibration.Certificate.of
    monkeypatch.setattr(
        noise_calibration.Certificate,
        "of",
        staticmethod(
            lambda run, theorems, min_evidence: (
                asked.append(len(theorems)),
                true(run, theorems, min_evidence),
            )[1]
        ),
    )
    return asked


def test_the_search_asks_the_theorems_that_hold_and_all_of_them_confirm(monkeypatch):
    asked = counted(monkeypatch)
    found = li.calibrate(RUN, **BUDGET)
    assert found.epsilon(1e-6) <= 1
    assert li.account(noise_calibration.scale_noise(found.run, 1 - 2e-6)).epsilon(1e-6) > 1
    assert asked[0] == asked[-1] == len(noise_calibration.upper_theorems())
    # the first question, the epsilon that is stated, the certificate
    assert len(asked) > 10 and sum(number >= 10 for number in asked) <= 3


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_theorem_that_needs_more_noise_than_the_first_question_is_not_forgotten(
    monkeypatch, share
):
    """It halves mu wherever the noise is at least ``share`` of what is needed without it; the first
    question is about noise 1, where it does not hold.
    """
    known = TABLE["composition-gdp"]
    monkeypatch.setattr(noise_calibration, "upper_theorems", lambda: (known,))
    plain = noise_calibration.calibrate_run(RUN, **BUDGET).noise.z
    enough = Assumption(
        "enough",
        "enough noise",
        lambda run: Satisfied() if run.noise.z >= share * plain else Violated("too little noise"),
    )
    made = replace(
        known,
        name="made",
        assumptions=(*known.assumptions, enough),
        bound=lambda run: Gdp(known.bound(run).mu / 2),
    )
    monkeypatch.setattr(noise_calibration, "upper_theorems", lambda: (known, made))
    assert share * plain > 1
    assert noise_calibration.calibrate_run(RUN, **BUDGET).noise.z == pytest.approx(
        max(share, 0.5) * plain, rel=3e-6
    )


@pytest.mark.parametrize("delta", [1e-5, 1e-300, 0.4])
def test_the_sign_of_an_excess_is_exact(delta):
    assert (
        noise_calibration.excess_of(delta, delta)
        <= 0
        < noise_calibration.excess_of(math.nextafter(delta, 1), delta)
    )
    assert noise_calibration.excess_of(0.0, delta) <= 0 < noise_calibration.excess_of(1.0, delta)


@pytest.mark.parametrize(
    "n, steps, rate, epsilon, delta",
    [(627_589, 2, 0.0455, 1.223, 5.1e-11), (1074, 16, 0.0382, 7.07, 3.9e-12)],
)
def test_no_noise_is_wasted_where_coarse_curves_are_far_off(n, steps, rate, epsilon, delta):
    run = li.Run(
        n=n,
        steps=steps,
        step_size=li.Constant(0.5),
        batching=li.Poisson(rate),
        clip=1.0,
        adjacency="add-remove",
        loss=li.Logistic(row_norm=1.0, ridge=1e-3, intercept=0.3),
    )
    assert (
        0.999 * epsilon < li.calibrate(run, epsilon=epsilon, delta=delta).epsilon(delta) <= epsilon
    )


@pytest.mark.parametrize(
    "batching, n, steps, epsilon, delta, wins",
    [
        (li.Poisson(0.0285), 4701, 35, 0.0153, 1e-10, "poisson-pld"),
        (li.FixedSize(678), 2036, 20, 0.00229, 1.5e-12, "fixed-size-amplified"),
    ],
    ids=["few orders name another theorem", "an allowance for rounding hides the root"],
)
def test_exact_curves_decide_between_theorems_at_tiny_budgets(
    batching, n, steps, epsilon, delta, wins
):
    """No theorem of the table certifies what has 1 % less noise, or much less."""
    run = li.Run(n=n, steps=steps, step_size=0.2, batching=batching, clip=1.0)
    found = li.calibrate(run, epsilon=epsilon, delta=delta)
    assert found.epsilon(delta) <= epsilon and found.best(delta).theorem.name == wins
    for share in (0.99, 0.9, 0.7, 0.5, 0.1):
        assert not li.account(noise_calibration.scale_noise(found.run, share)).certifies(
            epsilon, delta
        )
