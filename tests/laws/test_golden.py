"""Published numbers, and the noise that a budget needs."""

import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis.step_map import bound_clipped_step
from lastiterate.curves.gaussian import Gdp
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import match

FULL = li.FullBatch()
HERE = Path(__file__).parents[1] / "golden"
NOISE = tomllib.loads((HERE / "noise_multipliers.toml").read_text())
PUBLISHED = tomllib.loads((HERE / "published.toml").read_text())


def multiplier(batching, epsilon, blocks, passes, *, theorem=None, contraction=None):
    strong, step = (0.0, 1.0) if contraction is None else (1 - contraction, 1.0)
    run = li.Run(
        n=blocks * 10,
        steps=blocks * passes,
        step_size=li.Constant(step),
        noise=li.NoiseMultiplier(1.0),
        batching=batching(10),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=strong)),
    )
    if theorem == "composition-gdp":
        run = li.Run(**{**{f: getattr(run, f) for f in run.__dataclass_fields__}, "release": "all"})
    found = li.calibrate(
        run, epsilon=epsilon, delta=NOISE["delta"], min_evidence=li.Evidence.ASSUMED
    )
    assert found.epsilon(NOISE["delta"]) <= epsilon
    assert theorem is None or found.best(NOISE["delta"]).theorem.name == theorem
    return found.run.noise.z


def printed(value, expected):
    """Equal to the digits that were printed."""
    digits = len(str(expected).split(".")[1]) if "." in str(expected) else 0
    return abs(value - expected) <= 0.5 * 10.0**-digits * (1 + 1e-6)


def needs(value, expected):
    """The printed noise multipliers are rounded to the nearest digit, and three of them up."""
    digits = len(str(expected).split(".")[1]) if "." in str(expected) else 0
    return -1.0 < (value - expected) * 10.0**digits < 0.5 + 1e-6


@pytest.mark.parametrize("epsilon, blocks, passes", [(1, 20, 5), (3, 20, 500), (8, 200, 1)])
def test_rounded_up_entries_with_40_digits(epsilon, blocks, passes):
    """delta(eps) = mean_j delta_{mu_j}(eps), mu_j^2 = ((E - 1)/l + 1/(l - j + 1))/z^2, on both
    sides of our answer."""
    from oracles.gaussian import gdp_delta

    z = multiplier(li.Permuted, epsilon, blocks, passes)

    def delta(z):
        places = range(1, blocks + 1)
        mus = [math.sqrt((passes - 1) / blocks + 1 / (blocks - j + 1)) / z for j in places]
        return sum(gdp_delta(epsilon, mu) for mu in mus) / blocks

    assert delta(z) <= NOISE["delta"] < delta(z * (1 - 1e-5))


@pytest.mark.parametrize("row", NOISE["row"], ids=lambda r: f"eps{r['epsilon']}-l{r['blocks']}")
def test_noise_that_a_budget_needs(row):
    for passes, permuted, cyclic, composed in zip(
        row["passes"], row["permuted"], row["cyclic"], row["composition"], strict=True
    ):
        where = row["epsilon"], row["blocks"], passes
        assert needs(
            multiplier(li.Permuted, *where, theorem="shifted-interpolation-permuted"), permuted
        )
        assert needs(multiplier(li.Cyclic, *where), cyclic)
        assert needs(multiplier(li.Cyclic, *where, theorem="composition-gdp"), composed)


@pytest.mark.parametrize(
    "row", NOISE["ridge"], ids=lambda r: f"eps{r['epsilon']}-c{r['contraction']}"
)
def test_noise_with_a_ridge(row):
    where = row["epsilon"], row["blocks"], row["passes"]
    assert printed(multiplier(li.Permuted, *where, contraction=row["contraction"]), row["permuted"])
    assert printed(multiplier(li.Cyclic, *where, contraction=row["contraction"]), row["cyclic"])


def test_bok_table_1():
    row = PUBLISHED["bok"]
    for i, c in enumerate(row["contraction"]):
        for k, passes in enumerate(row["passes"]):
            strong = (1 - c) / row["step"]
            run = li.Run(
                n=row["n"],
                steps=passes * row["n"] // row["b"],
                step_size=li.Constant(row["step"]),
                noise=li.GradientNoise(row["sigma"]),
                batching=li.Cyclic(row["b"]),
                adjacency="replace-one",
                loss=li.KnownConstants(
                    li.LossFacts(sensitivity=row["sensitivity"], smooth=10.0, strong=strong)
                ),
            )
            mu = match(TABLE["shifted-interpolation"], run).curve.mu
            assert printed(mu, row["mu"][i][k])
            assert printed(Gdp(mu).epsilon(row["delta"]), row["epsilon"][i][k])
            composed = match(TABLE["composition-gdp"], run).curve
            assert printed(composed.epsilon(row["delta"]), row["composition_epsilon"][k])


def test_bok_closed_forms_up_to_1000_steps():
    """Equal to their theorems to 1e-12, and above: full batch, blocks (l >= 2), convex, bounded
    domain."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        n, T = int(rng.integers(2, 50)), int(rng.integers(1, 1000))
        m = float(rng.uniform(0.001, 0.5))
        eta, L, sigma = (
            float(rng.uniform(0.1, 1.9)),
            float(rng.uniform(0.1, 5)),
            float(rng.uniform(0.1, 3)),
        )
        c = max(abs(1 - eta * m), abs(1 - eta))

        def ours(batching=FULL, steps=T, strong=m, eta=eta, L=L, sigma=sigma, n=n, **more):
            run = li.Run(
                n=n,
                steps=steps,
                step_size=li.Constant(eta),
                noise=li.GradientNoise(sigma),
                batching=batching,
                loss=li.KnownConstants(li.LossFacts(sensitivity=L, smooth=1.0, strong=strong)),
                **more,
            )
            return match(TABLE["shifted-interpolation"], run).curve.mu

        theirs = math.sqrt((1 - c**T) / (1 + c**T) * (1 + c) / (1 - c)) * L / (n * sigma)
        assert theirs * (1 - 1e-13) <= ours() <= theirs * (1 + 2e-12)
        convex = ours(strong=0.0)
        assert (
            math.sqrt(T) * L / (n * sigma) * (1 - 1e-13)
            <= convex
            <= math.sqrt(T) * L / (n * sigma) * (1 + 2e-12)
        )
        b = int(rng.integers(1, max(2, n // 2)))
        b = b if n % b == 0 else 1
        blocks = n // b
        passes = max(1, 1000 // blocks // 2)
        if blocks >= 2:
            got = ours(li.Cyclic(b), passes * blocks)
            theirs = (
                L
                / (b * sigma)
                * math.sqrt(
                    1
                    + c ** (2 * blocks - 2)
                    * (1 - c**2)
                    / (1 - c**blocks) ** 2
                    * (1 - c ** (blocks * (passes - 1)))
                    / (1 + c ** (blocks * (passes - 1)))
                )
            )
            assert theirs * (1 - 1e-12) <= got <= theirs * (1 + 2e-12)
        D = float(rng.uniform(0.01, 3))
        if D * n / (eta * L) <= T:
            theirs = (
                math.sqrt(3 * L * D / (eta * n) + (L / n) ** 2 * math.ceil(D * n / (eta * L)))
                / sigma
            )
            bounded = ours(strong=0.0, domain=li.domains.Ball(D / 2))
            assert bounded <= theirs * (1 + 1e-9), "never worse than their bounded form"


def test_figure_1_of_chourasia():
    row = PUBLISHED["chourasia"]
    ratio = (row["sensitivity"] / (row["sigma"] * row["n"])) ** 2
    for strong in row["strong"]:
        start = li.GaussianStart(math.sqrt(2 * row["sigma"] ** 2 / strong))
        run = li.Run(
            n=row["n"],
            steps=row["steps"],
            step_size=li.Constant(row["step"]),
            noise=li.Langevin(row["sigma"]),
            start=start,
            adjacency="replace-one",
            loss=li.KnownConstants(
                li.LossFacts(sensitivity=row["sensitivity"], smooth=row["smooth"], strong=strong)
            ),
        )
        time = row["step"] * row["steps"]
        ours = match(TABLE["langevin-strongly-convex"], run).curve.rdp(row["order"])
        assert ours == pytest.approx(
            row["order"] * ratio / strong * (1 - math.exp(-strong * time / 2)), rel=1e-9
        )
        assert match(TABLE["langevin-lsi"], run).curve.rdp(row["order"]) == pytest.approx(
            ours, rel=1e-9
        )
        baseline = match(TABLE["composition-langevin"], run).curve.rdp(row["order"])
        assert baseline == pytest.approx(row["order"] * ratio / 4 * time, rel=1e-9)


def test_constants_of_clipped_steps():
    assert bound_clipped_step(1.0, 0.0, 1.0) == pytest.approx(math.sqrt(4 / 3))
    assert bound_clipped_step(1.0, 0.1, 1.0) == pytest.approx(1.11979, abs=1e-5)
    assert bound_clipped_step(0.1, 0.0, 1.0) == pytest.approx(1.01274, abs=1e-5)
    # the published example: a quadratic with curvatures 1 and 0.02 whose clipped step stretches by
    # 1.1471
    hessian, angle, x = np.array([1.0, 0.02]), 0.95845, np.array([0.80864, 29.424])

    def step(point):
        gradient = hessian * point
        return point - gradient * min(1.0, 1.0 / np.linalg.norm(gradient))

    move = 1e-6 * np.array([math.cos(angle), math.sin(angle)])
    stretch = max(np.linalg.norm(step(x + s * move) - step(x)) / 1e-6 for s in (1, -1))
    assert stretch == pytest.approx(1.1471, abs=1e-3) and stretch <= bound_clipped_step(
        1.0, 0.02, 1.0
    )
