"""Convex losses: amplification by iteration and bounded domains; the published bound for sampled
batches refuted."""

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom

import lastiterate as li
from lastiterate.testing.exact_distributions import exact_mu
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, match
from oracles.drawn import applied
from oracles.gaussian import chain_delta, mixture_renyi, projected_mixture_renyi

DRAWS = 1000


def facts(**constants):
    return li.KnownConstants(li.LossFacts(**constants))


def draw(rng, *, batched=True):
    """Convex quadratics: steps up to 2/smooth, one step, one pass, unfinished passes, batch = n."""
    smooth = float(rng.uniform(0.2, 4))
    n = int(rng.integers(1, 30))
    b = n if not batched or rng.random() < 0.1 else int(rng.integers(1, n + 1))
    blocks = -(-n // b)
    steps = {0: 1, 1: blocks}.get(int(rng.integers(6)), int(rng.integers(1, 60)))
    eta = 2 / smooth * (1.0 if rng.random() < 0.2 else float(rng.uniform(0.01, 1)))
    return li.Run(
        n=n,
        steps=steps,
        step_size=li.Constant(eta),
        noise=li.GradientNoise(float(rng.uniform(0.1, 1))),
        batching=li.FullBatch() if b == n else li.Cyclic(b),
        loss=facts(
            sensitivity=float(rng.uniform(0.5, 3)),
            smooth=smooth,
            **({"strong": 0.0} if rng.random() < 0.5 else {"weak_convexity": 0.0}),
        ),
    )


def test_amplification_by_iteration_lies_above_the_exact_law():
    rng, tight = np.random.default_rng(41), 0
    for _ in range(DRAWS):
        run = draw(rng)
        curvature = float(rng.choice([0.0, rng.uniform(0, 1)])) * run.facts().smooth.value
        etas, stds = np.full(run.steps, run.step_size.value), np.full(run.steps, run.noise.std)
        pull, at = run.facts().sensitivity.value / run.divisor, np.arange(run.steps) % run.blocks
        mu = max(
            exact_mu(curvature, etas, stds, np.where(at == j, pull, 0.0)) for j in range(run.blocks)
        )
        ours = applied("pabi-convex", run).mu
        assert ours >= mu * (1 - 1e-12), run
        assert applied("shifted-interpolation", run).mu <= ours * (1 + 1e-9)
        tight += ours <= mu * (1 + 1e-9)
        if run.step_size.value <= 1 / run.facts().smooth.value:
            assert applied("cyclic-weakly-convex", run).mu == pytest.approx(ours, rel=1e-12)
    assert tight > DRAWS / 20


def test_published_forms_of_amplification_by_iteration():
    """Theorem 23, the last record: 2 alpha L^2 / sigma^2; Theorem 35, b = 1 and n passes over n
    records."""
    lipschitz, sigma, n = 1.5, 0.7, 12
    run = li.Run(
        n=n,
        steps=n,
        step_size=li.Constant(0.3),
        noise=li.GradientNoise(sigma),
        batching=li.Cyclic(1),
        adjacency="replace-one",
        loss=facts(lipschitz=lipschitz, smooth=1.0, strong=0.0),
    )
    once = 2 * lipschitz**2 / sigma**2
    assert applied("pabi-convex", run).rdp(3.0) == pytest.approx(3.0 * once)
    assert applied("pabi-convex", replace(run, steps=n * n)).rdp(3.0) == pytest.approx(
        3.0 * once * ((n - 1) / n + 1)
    )


def test_clipping_a_convex_loss_is_not_covered():
    """A clipped step of a convex loss expands unless its residual is a scalar."""
    softmax = li.Softmax(classes=3, ridge=0.1)
    run = replace(draw(np.random.default_rng(0)), step_size=li.Constant(0.1), loss=softmax)
    for name in ("pabi-convex", "bounded-domain-convex"):
        full = replace(run, batching=li.FullBatch(), domain=li.domains.Ball(1.0))
        assert isinstance(match(TABLE[name], full), Applies)
        refused = match(TABLE[name], replace(full, clip=0.1))
        assert isinstance(refused, Fails) and "expand" in refused.reasons[0]
        assert isinstance(match(TABLE[name], replace(full, clip=0.1, loss=li.Logistic())), Applies)
        assert isinstance(match(TABLE[name], replace(full, clip=9.0)), Applies), (
            "a clip that never acts"
        )


def test_bounded_domain_is_the_least_over_all_windows():
    rng, helped, below_one_shift = np.random.default_rng(42), 0, 0
    for _ in range(DRAWS):
        run = draw(rng, batched=False)
        diameter = float(10 ** rng.uniform(-3, 1))
        run = replace(run, domain=li.domains.Ball(diameter / 2), steps=int(rng.integers(1, 300)))
        eta, std = run.step_size.value, run.noise.std
        s, v = eta * run.facts().sensitivity.value / run.n, (eta * std) ** 2
        windows = np.arange(1, run.steps + 1)
        least = min(run.steps * s**2 / v, ((diameter + windows * s) ** 2 / (windows * v)).min())
        ours = applied("bounded-domain-convex", run).mu
        assert math.sqrt(least) * (1 - 1e-12) <= ours <= math.sqrt(least) * (1 + 2e-12), run
        assert applied("shifted-interpolation", run).mu <= ours * (1 + 1e-9)
        helped += ours < math.sqrt(run.steps * s**2 / v) * (1 - 1e-9)
        below_one_shift += diameter < s
    assert helped > DRAWS / 5 and below_one_shift > DRAWS / 20


def test_bounded_domain_constants_of_the_literature():
    """At k = D/s a whole number: alpha 2 L^2/(n^2 sigma^2) min(T, 2 D n/(eta L)); and no growth
    with the steps."""
    lipschitz, n, sigma, eta, k = 1.0, 10, 0.5, 0.25, 40
    diameter = k * 2 * eta * lipschitz / n
    run = li.Run(
        n=n,
        steps=1000,
        step_size=li.Constant(eta),
        noise=li.GradientNoise(sigma),
        domain=li.domains.Ball(diameter / 2),
        adjacency="replace-one",
        loss=facts(lipschitz=lipschitz, smooth=1.0, strong=0.0),
    )
    stated = 2 * lipschitz**2 / (n * sigma) ** 2 * 2 * diameter * n / (eta * lipschitz)
    assert applied("bounded-domain-convex", run).rdp(1.0) == pytest.approx(stated)
    assert applied("bounded-domain-convex", replace(run, steps=10**9)) == applied(
        "bounded-domain-convex", run
    )


def test_closed_forms_round_up():
    """Above the formula evaluated with 40 digits on the run's own binary numbers, and hardly above."""
    rng, longest = np.random.default_rng(43), 10**6
    with mp.workdps(40):
        for _ in range(DRAWS):
            run = draw(rng)
            radius = float(10 ** rng.uniform(-4, 3))
            run = replace(run, steps=int(rng.integers(1, longest)), domain=li.domains.Ball(radius))
            sensitivity, std = mp.mpf(run.facts().sensitivity.value), mp.mpf(run.noise.std)
            unit, passes = sensitivity / (run.divisor * std), -(-run.steps // run.blocks)
            exact = [("pabi-convex", unit * mp.sqrt(mp.mpf(passes - 1) / run.blocks + 1))]
            if run.blocks == 1:
                apart = 2 * mp.mpf(run.domain.radius) / (mp.mpf(run.step_size.value) * std)
                best = min(max(int(apart / unit), 1), run.steps)
                ends = [
                    (apart + k * unit) / mp.sqrt(k)
                    for k in range(max(1, best - 2), min(run.steps, best + 2) + 1)
                ]
                exact.append(("bounded-domain-convex", min(unit * mp.sqrt(run.steps), *ends)))
            for name, mu in exact:
                ours = applied(name, run).mu
                assert mu <= ours <= mu * (1 + 2e-13 + 4e-16 * run.steps), (name, run)
                if (
                    name == "pabi-convex"
                ):  # the longest step allowed is rounded, and its map may expand
                    drift = abs(1 - mp.mpf(run.step_size.value) * mp.mpf(run.facts().smooth.value))
                    assert ours >= mu * max(1, drift) ** run.steps


@pytest.mark.parametrize("seed", range(36))
def test_bounded_domain_lies_above_projected_chains(seed):
    """Convex and smooth maps on an interval, linear ones among them, the law by grid propagation."""
    rng = np.random.default_rng(seed)
    half, std = float(10 ** rng.uniform(-1.2, 0.3)), float(rng.uniform(0.3, 1))
    eta = 2.0 if rng.random() < 0.2 else float(rng.uniform(0.1, 2))
    pull, flat = float(rng.uniform(0.05, 1)), rng.random() < 0.5
    run = li.Run(
        n=1,
        steps=int(rng.integers(1, 9)),
        step_size=li.Constant(eta),
        noise=li.GradientNoise(std),
        domain=li.domains.Ball(half),
        adjacency="replace-one",
        loss=facts(sensitivity=2 * pull, smooth=1.0, strong=0.0),
    )

    def move(x):
        return x if flat else x - eta * (np.tanh(2 * x) / 2)  # second derivative between 0 and 1

    chain = [
        (lambda x: move(x) - eta * pull, lambda x: move(x) + eta * pull, (eta * std) ** 2)
    ] * run.steps
    curve = applied("bounded-domain-convex", run)
    for epsilon in (0.0, 1.0, 3.0):
        assert curve.delta(epsilon) >= chain_delta(epsilon, chain, -half, half, cells=801) - 5e-4


def test_no_noise_and_no_sensitivity():
    run = replace(draw(np.random.default_rng(1), batched=False), domain=li.domains.Ball(1.0))
    assert (
        applied("bounded-domain-convex", replace(run, noise=li.GradientNoise(0.0))).mu == math.inf
    )
    assert (
        applied(
            "bounded-domain-convex",
            replace(run, loss=facts(sensitivity=0.0, smooth=0.1, strong=0.0)),
        ).mu
        == 0
    )


def linear_run(n=100, steps=1, std=1.0, radius=100.0):
    """Linear losses in one dimension, C = 1, b = 1, replace-one: shifts of 2 step where the record
    is drawn."""
    return li.Run(
        n=n,
        steps=steps,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(std),
        batching=li.FixedSize(1),
        domain=li.domains.Ball(radius),
        adjacency="replace-one",
        loss=facts(lipschitz=1.0, smooth=1.0, strong=0.0),
    )


def test_the_published_bound_for_sampled_batches_is_false():
    name, run = "smooth-bounded-domain", linear_run()
    assert TABLE[name].kind == "claimed"
    claimed = applied(name, run)
    p, q = ([0.99, 0.01], [-1.0, 1.0]), ([1.0], [-1.0])
    for alpha, ratio in ((1.1, 0.0705), (2.0, 0.1336), (4.0, 23.27), (8.0, 67.11), (32.0, 92.57)):
        assert claimed.rdp(alpha) == pytest.approx(2 * alpha / 100)
        exact = mixture_renyi(alpha, p, q, 1.0)
        if alpha >= 2:
            whole = int(alpha)
            terms = [
                math.comb(whole, k) * 0.99 ** (whole - k) * 0.01**k * mp.exp(2 * k * (k - 1))
                for k in range(whole + 1)
            ]
            assert exact == pytest.approx(float(mp.log(mp.fsum(terms))) / (alpha - 1), rel=1e-7)
        assert exact / claimed.rdp(alpha) == pytest.approx(ratio, rel=2e-3)
        assert projected_mixture_renyi(alpha, p, q, 1.0, -100, 100) == pytest.approx(
            exact, rel=1e-6
        )
    steps, std, alpha = 4, 0.50716, 4.2056
    weights = binom.pmf(range(steps + 1), steps, 1 / 64)
    means = [2.0 * k - steps for k in range(steps + 1)]
    exact = mixture_renyi(alpha, (weights, means), ([1.0], [-4.0]), std * math.sqrt(steps))
    claimed = applied(name, linear_run(64, steps, std))
    assert claimed.rdp(alpha) == pytest.approx(2.044, rel=1e-3) and exact == pytest.approx(
        108.98, rel=1e-3
    )
    assert applied("composition-gdp", linear_run(64, steps, std)).rdp(alpha) >= exact, (
        "what certifies does hold"
    )


def test_the_published_bound_is_what_the_released_script_computes():
    """n = 8, b = 2, C = 2, sigma = 4, D = 1, step 0.2, M = 1 or 3: least over beta, and alpha A T
    before."""
    alpha, a, b = 1.1, 2 * 4 / (8 * 2 * 16), (1 + 0.2) ** 2 / (2 * 0.2**2 * 16)
    run = replace(
        linear_run(8, 1, 4.0, 0.5),
        step_size=li.Constant(0.2),
        batching=li.FixedSize(2),
        loss=facts(lipschitz=2.0, smooth=1.0, weak_convexity=1.0),
    )
    least = minimize_scalar(
        lambda beta: a / beta + b / (1 - beta), bounds=(1e-9, 1 - 1e-9), method="bounded"
    ).fun
    for steps in (1, 10, 50, 200):
        claimed = applied("smooth-bounded-domain", replace(run, steps=steps)).rdp(alpha)
        assert claimed == pytest.approx(alpha * min(a * steps, least), rel=1e-6)
    assert a < least < 200 * a, "both branches were met"
    curved = replace(run, steps=10**6, loss=facts(lipschitz=2.0, smooth=3.0, weak_convexity=1.0))
    wider = (math.sqrt(a) + math.sqrt(b) * 1.6 / 1.2) ** 2
    assert applied("smooth-bounded-domain", curved).rdp(alpha) == pytest.approx(
        alpha * wider, rel=1e-9
    )
    assert isinstance(
        match(TABLE["smooth-bounded-domain"], replace(run, batching=li.FullBatch())), Fails
    )


def test_it_is_shown_and_never_certifies():
    found = li.account(linear_run(), min_evidence=li.Evidence.ASSUMED)
    row = next(row for row in found.rows(1e-5) if row["theorem"] == "smooth-bounded-domain")
    assert row["applies"] and row["kind"] == "claimed" and row["epsilon"] < found.epsilon(1e-5)
    assert "smooth-bounded-domain" not in {v.theorem.name for v in found.certifying}
    no_noise = match(TABLE["smooth-bounded-domain"], linear_run(std=0.0))
    assert no_noise.curve.rdp(2.0) == math.inf
    weak = replace(linear_run(std=0.0), loss=facts(lipschitz=0.1, smooth=1.0, strong=0.0))
    assert applied("smooth-bounded-domain", weak).rdp(2.0) == math.inf
    nothing = replace(weak, loss=facts(sensitivity=0.0, lipschitz=0.1, smooth=1.0, strong=0.0))
    assert applied("smooth-bounded-domain", nothing).rdp(2.0) == 0
