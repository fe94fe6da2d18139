"""What variance-reduced steps execute, against what is described: by hand, and by a second
implementation."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ks_2samp, norm

import lastiterate as li
from lastiterate.audit import audit, conformance, worst_case
from lastiterate.engine import Trainer, key_from_seed, keys_from_seed, linear_gradients, methods
from lastiterate.run.methods import data_smoothness

N, RATE, MODELS = 10, 0.3, 6000
RUN = li.Run(
    n=N,
    steps=2,
    step_size=0.5,
    noise=li.NoiseMultiplier(1.5),
    method=li.VarianceReduced(2, 2.0),
    batching=li.Poisson(RATE),
    loss=li.HuberRidge(residual_clip=1.0, intercept=0.0),
)
"""Least squares with residuals clamped to 1, rows of norm at most 1: L = beta = 1. The intercept's
column is 0, but its weight has noise, and counts in |w - s|."""


def noisy(run, z, snapshot):
    return replace(
        run, noise=li.NoiseMultiplier(z), method=li.VarianceReduced(run.method.every, snapshot / z)
    )


def one_record(run, models=MODELS):
    """One record x = 1, y = -1 among zeros: from 0 its gradient is 1, at the first step's end -step
    g less."""
    x, y = np.zeros((N, 1)), np.zeros(N)
    x[0], y[0] = 1.0, -1.0
    train = Trainer(run).fit_many
    return train(x, y, keys_from_seed(7, models))[:, 0, 0], train(
        0 * x, y, keys_from_seed(8, models)
    )[:, 0, 0]


def test_the_numbers_are_the_loss_s_own():
    assert data_smoothness(RUN) == pytest.approx(1.0) and RUN.noise_unit == pytest.approx(1.0)
    ridged = li.Softmax(classes=3, row_norm=2.0, ridge=0.3, cap=0.1, intercept=0.5)
    assert data_smoothness(replace(RUN, loss=ridged)) == pytest.approx(4.25 * 0.18)


def test_what_is_executed_has_the_law_that_is_described():
    """Mean and variance of w after two steps, by hand; without the record exactly, with it by the
    same formulas."""
    present, absent = one_record(RUN)
    step, c0 = 0.5, 3.0 / N  # std of the noise on g
    # w_1 = -step g, then w_2 = w_1 - step (g + z c N / (q n) [+ drawn difference]), c = |w_1| below
    # 2, of two weights
    variance = (2 * step * c0) ** 2 + 2 * (1.5 * step**2 * c0 / (RATE * N)) ** 2
    assert absent.mean() == pytest.approx(0, abs=4 * math.sqrt(variance / MODELS))
    assert absent.var() == pytest.approx(variance, rel=0.05)
    # with it g has mean 1/N, and the batch adds q times the difference w_1 (residual 1 + w clamped
    # at 1) over q n
    g = 1 / N + c0 * norm.ppf((np.arange(4000) + 0.5) / 4000)
    moved = np.minimum(1 - step * g, 1) - 1
    expected = float((-2 * step * g - step * moved / N).mean())
    assert present.mean() == pytest.approx(expected, abs=4 * math.sqrt(present.var() / MODELS))


def simulated(run, models, present):
    """The described algorithm on ``one_record``'s data, in plain arithmetic with a generator of its
    own."""
    rng, noise, method = np.random.default_rng(1), run.noise, run.method

    def slope(w):
        return present * np.clip(w + 1, -1, 1)

    w = np.zeros((2, models))
    for k in range(run.steps):
        if k % method.every == 0:
            s = w
            g = method.snapshot * noise.z / N * rng.normal(size=w.shape)
            g[0] += slope(s[0]) / N
        c = np.minimum(2, np.sqrt(((w - s) ** 2).sum(0)))
        v = noise.z * c * rng.normal(size=w.shape)
        v[0] += (rng.random(models) < RATE) * np.clip(slope(w[0]) - slope(s[0]), -c, c)
        w = w - run.first_step * (g + v / (RATE * N))
    return w[0]


@pytest.mark.parametrize("loud, step", [((4.0, 1.0), 0.5), ((0.02, 0.02), 2.0), ((4.0, 1.0), 5.0)])
def test_executed_models_have_the_distribution_of_a_second_implementation(loud, step):
    """Kolmogorov and Smirnov's distance over snapshots: where noise dominates, where draws of
    batches do, and where steps are so long that differences are as long as they can be."""
    run = replace(
        RUN,
        steps=8,
        step_size=step,
        noise=li.NoiseMultiplier(1.0),
        method=li.VarianceReduced(3, 1.0),
    )
    run = noisy(run, *loud)
    for found, present in zip(one_record(run), (1, 0), strict=True):
        assert ks_2samp(found, simulated(run, MODELS, present)).pvalue > 1e-4


ROWS = np.array([[0.6, 0.2, 0.0], [-0.3, 0.5, 0.0], [0.1, -0.7, 0.0]])  # and the intercept's column
ANSWERS = np.array([0.4, -0.2, 0.3])


def quadratic_moments(run):
    """Exact mean and second moment of the last iterate on squared error that nothing clamps.

    The state is (1, w, s, g); given a batch a step is linear in it, plus noise of variance (z beta
    |w - s| / (q n))^2, so that first and second moments follow from those before.
    """
    p, n, noise, eta, ridge = 3, len(ROWS), run.noise, run.first_step, run.loss.ridge
    method = run.method
    rate, beta = run.batching.rate, data_smoothness(run)
    at = {name: slice(1 + i * p, 1 + (i + 1) * p) for i, name in enumerate("wsg")}
    size, eye = 1 + 3 * p, np.eye(p)
    mean = np.zeros(size)
    mean[0] = 1.0
    second = np.outer(mean, mean)
    for k in range(run.steps):
        if k % method.every == 0:
            take = np.eye(size)
            take[at["s"]], take[at["g"]] = 0, 0
            take[at["s"], at["w"]] = eye
            take[at["g"], at["w"]], take[at["g"], 0] = ROWS.T @ ROWS / n, -ROWS.T @ ANSWERS / n
            mean, second = take @ mean, take @ second @ take.T
            second[at["g"], at["g"]] += (method.snapshot * noise.z * run.noise_unit / n) ** 2 * eye
        gap = np.zeros((p, size))
        gap[:, at["w"]], gap[:, at["s"]] = eye, -eye
        extra = (eta * noise.z * beta / (rate * n)) ** 2 * np.trace(gap @ second @ gap.T)
        moves = []
        for drawn in np.ndindex(*(2,) * n):
            batch = ROWS[np.array(drawn, bool)]
            move = np.eye(size)
            move[at["w"], at["g"]] -= eta * eye
            move[at["w"], at["w"]] -= eta * ridge * eye
            move[at["w"]] -= eta * batch.T @ batch @ gap / (rate * n)
            moves.append((np.prod([rate if d else 1 - rate for d in drawn]), move))
        mean = sum(weight * move @ mean for weight, move in moves)
        second = sum(weight * move @ second @ move.T for weight, move in moves)
        second[at["w"], at["w"]] += extra * eye
    return mean[at["w"]], second[at["w"], at["w"]]


@pytest.mark.parametrize("rate, every, ridge", [(0.4, 3, 0.0), (0.7, 2, 0.4)])
def test_moments_on_a_quadratic_are_exact(rate, every, ridge):
    """Residuals beyond every score's reach: every step is linear, with noise that follows |w - s|."""
    loss = li.HuberRidge(row_norm=1.0, residual_clip=50.0, intercept=0.0, ridge=ridge)
    run = replace(RUN, n=3, steps=5, step_size=0.6, loss=loss, batching=li.Poisson(rate))
    run = replace(run, noise=li.NoiseMultiplier(2.0), method=li.VarianceReduced(every, 0.05))
    found = Trainer(run).fit_many(ROWS[:, :2], ANSWERS, keys_from_seed(5, 20_000))[:, 0]
    mean, second = quadratic_moments(run)
    assert np.abs(found.mean(0) - mean).max() < 5 * (found.std(0) / math.sqrt(len(found))).max()
    products = found[:, :, None] * found[:, None, :]
    assert (np.abs(products.mean(0) - second) < 5 * products.std(0) / math.sqrt(len(found))).all()


def test_an_attack_on_the_last_iterate_stays_below_the_certificate():
    run = noisy(
        replace(RUN, steps=6, noise=li.NoiseMultiplier(1.0), method=li.VarianceReduced(3, 1.0)),
        1.0,
        1.0,
    )
    present, absent = one_record(run)
    cuts = np.quantile(absent, (0.02, 0.05, 0.1, 0.2, 0.4))
    allowed = li.account(run).delta(0.5)
    for cut in cuts:
        assert float((present < cut).mean() - math.exp(0.5) * (absent < cut).mean()) <= allowed
    assert float((present < cuts[3]).mean()) > 0.3, "the attack sees the record"


def test_audits_see_what_snapshots_leak_and_not_more_than_is_certified():
    quiet = noisy(replace(RUN, steps=4), 2.0, 0.5)
    report = audit(quiet, attack="projection", trials=400, seed=1)
    assert (
        0.5 < report.lower <= report.upper
        and report.theorem == "variance-reduction"
        and not report.violations
    )


def kept_snapshot(reduction, objective, sampler, theta, memory, data, order, unit, k):
    """Steps as they are, but for a snapshot that is never taken again."""
    moved, added, found = FOLLOWED(
        reduction, objective, sampler, theta, memory, data, order, unit, k
    )
    return (
        moved,
        added,
        tuple(jnp.where(k > 0, old, new) for old, new in zip(memory, found, strict=True)),
    )


def added(objective, theta, origin, longest, chunk):
    """Both gradients of every record together, clipped as their difference is."""
    rows, target = chunk[0].astype(jnp.float64), chunk[1]
    found = sum(
        linear_gradients.residuals(objective.loss, point @ rows.T, target)
        for point in (theta, origin)
    )
    return linear_gradients.clip_residuals(rows, found, longest) @ rows


FOLLOWED = methods.Reduction.step_direction
WRONG = {
    "a sum in the place of a difference": (linear_gradients.Linear, "sum_differences", added),
    "one snapshot for all steps": (methods.Reduction, "step_direction", kept_snapshot),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_stays_within_its_clip_shows_in_the_law(name, patched):
    """Default audits look at it; no attack sees these."""
    holds = conformance.CHECKS[
        "what follows snapshots has another law on squared error than the described one"
    ]
    run, pair = (
        replace(RUN, step_size=li.InverseDecay(0.5, 0.3), start=li.GaussianStart(1.0)),
        worst_case(RUN),
    )
    assert holds(run, pair, 16)
    patched(*WRONG[name])
    assert not holds(run, pair, 16)


def test_losses_fall_all_iterates_agree_and_domains_hold():
    x = np.random.default_rng(0).normal(size=(200, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    target = x @ np.array([0.5, -0.3, 0.2])
    quiet = noisy(
        replace(
            RUN,
            n=200,
            steps=120,
            batching=li.Poisson(0.2),
            noise=li.NoiseMultiplier(1.0),
            method=li.VarianceReduced(20, 1.0),
        ),
        1e-6,
        1e-6,
    )
    found = Trainer(quiet).fit(x, target, key_from_seed(0))
    assert found[0, :3] == pytest.approx([0.5, -0.3, 0.2], abs=1e-2)
    assert np.array_equal(
        found, Trainer(quiet).fit(x, target, key_from_seed(0), progress=lambda *_: None)
    )
    every = Trainer(replace(quiet, release="all")).fit(x, target, key_from_seed(0))
    assert every.shape == (120, 1, 4) and np.array_equal(every[-1], found)
    kept = Trainer(replace(quiet, domain=li.domains.Ball(0.3))).fit(x, target, key_from_seed(0))
    assert np.linalg.norm(kept) == pytest.approx(0.3)


def test_gradients_and_differences_are_clipped_by_their_own_norms():
    """A row beyond the norm that was stated moves a snapshot by L / n, and a loss whose gradient
    would move further than beta |w - s| no step between."""
    run = noisy(RUN, 1e-9, 1e-9)
    x, y = np.zeros((N, 1)), np.zeros(N)
    x[0], y[0] = 3.0, -1.0
    found = Trainer(run).fit_many(x, y, keys_from_seed(7, 2000))[:, 0, 0]
    # w_1 = -step / n; the difference is |w_1| where the record is drawn, against the snapshot's
    # gradient
    drawn = 0.5 * 0.5 / N / (RATE * N)
    assert np.isclose(found, -1.0 / N, rtol=1e-5).mean() == pytest.approx(1 - RATE, abs=0.05)
    assert np.isclose(found, -1.0 / N + drawn, rtol=1e-5).mean() == pytest.approx(RATE, abs=0.05)


def test_a_difference_is_never_longer_than_its_clip():
    import jax

    from lastiterate.engine.linear_gradients import Linear

    model = Linear(li.Softmax(classes=3), None, exact=True)
    rng = np.random.default_rng(3)
    rows, here, there = rng.normal(size=(1, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    with jax.enable_x64(True):
        full = np.asarray(model.sum_differences(here, there, np.inf, (rows, np.array([1]))))
        for longest in (0.0, 1e-3, 0.1):
            found = np.asarray(model.sum_differences(here, there, longest, (rows, np.array([1]))))
            assert np.linalg.norm(found) <= longest and np.allclose(
                found, full * longest / np.linalg.norm(full)
            )
