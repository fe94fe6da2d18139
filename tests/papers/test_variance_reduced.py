"""DP-SVRG: its certificate against the exact law of small runs, and what is executed against what is described."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ks_2samp, norm

import lastiterate as li
from lastiterate.engine import seeded_keys
from lastiterate.errors import InputError
from lastiterate.papers.variance_reduced import VarianceReduced

N, RATE = 10, 0.3
RUN = VarianceReduced(li.HuberRidge(residual_clip=1.0, intercept=0.0), N, RATE, epochs=1, inner=2, step=0.5,
                      lipschitz=1.0, smooth=1.0, full=3.0, part=1.5)
"""Least squares with residuals clamped to 1, rows of norm at most 1."""


def transcript_delta(epsilon, run):
    """delta of (g, second step) by quadrature: N(1/z, 1) against N(0, 1), then in units of c
    (1 - q) N(0, u^2) + q N(1, u^2) against N(0, u^2); the larger of both orders."""
    x = np.linspace(-9, 10, 3001)
    v = np.linspace(-9 * run.part, 9 * run.part + 1, 3001)
    one = np.outer(norm.pdf(x, 1 / run.full), (1 - run.rate) * norm.pdf(v, 0, run.part)
                   + run.rate * norm.pdf(v, 1, run.part))
    two = np.outer(norm.pdf(x), norm.pdf(v, 0, run.part))
    cell = (x[1] - x[0]) * (v[1] - v[0])
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell for p, q in ((one, two), (two, one)))


@pytest.mark.parametrize("run", [RUN, replace(RUN, rate=0.05, part=0.7, full=1.0)])
def test_the_certificate_is_the_exact_law_of_two_steps(run):
    for epsilon in (0.1, 0.5, 1.5):
        exact, found = transcript_delta(epsilon, run), run.curve().delta(epsilon)
        assert exact <= found * (1 + 1e-3) and found <= exact * (1 + 5e-3) + 1e-6


def test_more_epochs_and_steps_are_charged():
    longer = replace(RUN, epochs=4, inner=5).curve()
    assert longer.counts == (16,) and longer.multipliers == (1.5,) and longer.rate == RATE
    assert longer.mu == pytest.approx(2 / 3) and longer.mu >= 2 / 3


def test_calibration_keeps_the_budget_and_wastes_little():
    found = RUN.calibrated(1.0, 1e-5)
    assert found.curve().delta(1.0) <= 1e-5 < found.scaled(0.99).curve().delta(1.0)
    assert found.full / found.part == pytest.approx(RUN.full / RUN.part)


def one_record(run, models):
    """One record x = 1, y = -1 among zeros: from 0 its gradient is 1, at the first step's end -step g less."""
    x, y = np.zeros((N, 1)), np.zeros(N)
    x[0], y[0] = 1.0, -1.0
    return run.train(x, y, seeded_keys(7, models))[:, 0, 0], run.train(0 * x, y, seeded_keys(8, models))[:, 0, 0]


def test_what_is_executed_has_the_law_that_is_described():
    """Mean and variance of w after two steps, by hand; without the record exactly, with it by the same formulas."""
    models = 6000
    present, absent = one_record(RUN, models)
    step, c0 = RUN.step, RUN.full * RUN.lipschitz / N  # std of the noise on g
    # w_1 = -step g, then w_2 = w_1 - step (g + u c N / (q n) [+ drawn difference]), c = |w_1| below 2
    noise = RUN.part * step * c0 / (RATE * N)  # std of step times noise over std of N
    variance = (2 * step * c0) ** 2 + (step * noise) ** 2
    assert absent.mean() == pytest.approx(0, abs=4 * math.sqrt(variance / models))
    assert absent.var() == pytest.approx(variance, rel=0.08)
    # with it g has mean 1/N, and the batch adds q times the difference w_1 (residual 1 + w clamped at 1) over q n
    g = 1 / N + c0 * norm.ppf((np.arange(4000) + 0.5) / 4000)
    moved = np.minimum(1 - step * g, 1) - 1
    expected = float((-2 * step * g - step * moved / N).mean())
    spread = math.sqrt(present.var() / models)
    assert present.mean() == pytest.approx(expected, abs=4 * spread)


def simulated(run, models, present):
    """The described algorithm on ``one_record``'s data, in plain arithmetic with a generator of its own."""
    rng = np.random.default_rng(1)

    def slope(w):
        return present * np.clip(w + 1, -1, 1)

    w = np.zeros(models)
    for _ in range(run.epochs):
        s = w
        g = slope(s) / N + run.full / N * rng.normal(size=models)
        for _ in range(run.inner):
            c = np.minimum(2, np.abs(w - s))
            drawn = (rng.random(models) < RATE) * np.clip(slope(w) - slope(s), -c, c)
            w = w - run.step * (g + (drawn + run.part * c * rng.normal(size=models)) / (RATE * N))
    return w


@pytest.mark.parametrize("noise", [dict(full=1.0, part=4.0), dict(full=0.02, part=0.02, step=2.0)])
def test_executed_models_have_the_distribution_of_a_second_implementation(noise):
    """Kolmogorov and Smirnov's distance over several epochs: where noise dominates, and where draws of batches do."""
    run, models = replace(RUN, epochs=3, inner=3, **noise), 6000
    for found, present in zip(one_record(run, models), (1, 0), strict=True):
        assert ks_2samp(found, simulated(run, models, present)).pvalue > 1e-4


def test_an_attack_on_the_last_iterate_stays_below_the_certificate():
    run = replace(RUN, epochs=2, inner=3, full=1.0, part=1.0)
    present, absent = one_record(run, 6000)
    cuts = np.quantile(absent, (0.02, 0.05, 0.1, 0.2, 0.4))
    curve = run.curve()
    for cut in cuts:
        delta = float((present < cut).mean() - math.exp(0.5) * (absent < cut).mean())
        assert delta <= curve.delta(0.5)
    assert float((present < cuts[3]).mean()) > 0.3, "the attack sees the record"


def test_losses_fall_and_bad_descriptions_are_refused():
    x = np.random.default_rng(0).normal(size=(200, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    target = x @ np.array([0.5, -0.3, 0.2])
    quiet = replace(RUN, n=200, rate=0.2, epochs=6, inner=20, full=1e-6, part=1e-6)
    found = quiet.train(x, target, seeded_keys(0, 1))[0, 0]
    assert found == pytest.approx([0.5, -0.3, 0.2], abs=1e-2)
    assert quiet.evaluations == 6 * (200 + 2 * 20 * 40)
    for bad in (dict(inner=1), dict(rate=0.0), dict(rate=1.0), dict(full=0.0), dict(step=math.inf)):
        with pytest.raises(InputError):
            replace(RUN, **bad)
    with pytest.raises(InputError):
        RUN.train(x, target, seeded_keys(0, 1))


def test_gradients_and_differences_are_clipped_by_their_own_norms():
    """A row beyond the norm that was stated, and a loss that is less smooth than stated, move nothing further."""
    run = replace(RUN, full=1e-9, part=1e-9, smooth=1e-9)
    x, y = np.zeros((N, 1)), np.zeros(N)
    x[0], y[0] = 3.0, -1.0
    found = run.train(x, y, seeded_keys(7, 6000))[:, 0, 0]
    assert found == pytest.approx(-2 * run.step / N, rel=1e-5)
