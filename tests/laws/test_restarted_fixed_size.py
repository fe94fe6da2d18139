"""Batches of a fixed size after a restart: above the exact law of the last iterate, also where
losses are curved."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis import restarted_sampling
from lastiterate.analysis.restarted_sampling import (
    _approximate_squared_mu,
    by_itself,
    candidates,
    instead_of_another,
    last_steps,
)
from lastiterate.curves.curve import BestOf
from lastiterate.curves.gaussian import Gdp
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import match
from oracles.drawn import applied
from tiers import size

NAME = "restarted-fixed-size"
EPSILONS = (0.0, 0.2, 0.7, 1.5)
GRID = np.linspace(-22, 22, 1101)


def gradients(run, targets):
    """Of every record at every point of the grid: curvature M where the residual is not clipped."""
    loss = run.loss
    return np.clip(
        loss.row_norm**2 * GRID - loss.row_norm * np.array(targets)[:, None],
        -loss.residual_clip * loss.row_norm,
        loss.residual_clip * loss.row_norm,
    )


def last_iterate(run, each):
    """Density of the last iterate on the grid, all subsets of every step enumerated; one parameter,
    alike steps."""
    assert run.constant
    width, chosen = (
        GRID[1] - GRID[0],
        list(itertools.combinations(range(len(each)), run.batching.size)),
    )
    eta, spread = run.first_step, run.first_step * run.first_noise
    moved = [
        GRID - eta * (each[list(one)].sum(0) / run.divisor + run.loss.ridge * GRID)
        for one in chosen
    ]
    step = sum(np.exp(-(((GRID[:, None] - m) / spread) ** 2) / 2) for m in moved) / (
        len(chosen) * spread * math.sqrt(2 * math.pi)
    )
    law = step[:, GRID.size // 2]  # from 0
    for _ in range(run.steps - 1):
        law = step @ law * width
    return law


def exact(run, targets, other):
    """delta in both orders, (removed, added) for each epsilon; ``other``: the last record's target
    in the neighbouring data, ``None`` where its gradient is zero."""
    one = gradients(run, targets)
    two = gradients(run, [*targets[:-1], 0.0 if other is None else other])
    if other is None:
        two[-1] = 0.0
    p, q, width = last_iterate(run, one), last_iterate(run, two), GRID[1] - GRID[0]
    assert abs(p.sum() * width - 1) < 1e-5 > abs(q.sum() * width - 1)
    return [
        [float(np.maximum(a - math.exp(e) * b, 0).sum() * width) for a, b in ((p, q), (q, p))]
        for e in EPSILONS
    ]


def drawn(rng):
    n = int(rng.integers(2, 5))
    adjacency = ("zero-out", "replace-one")[int(rng.random() < 0.4)]
    loss = li.HuberRidge(
        row_norm=float(rng.uniform(0.4, 1.0)),
        residual_clip=float(rng.uniform(0.5, 2.0)),
        ridge=float(rng.uniform(0.0, 0.8)),
        intercept=0.0,
    )
    run = li.Run(
        n=n,
        steps=int(rng.integers(2, 7)),
        step_size=float(rng.uniform(0.4, 1.2)),
        noise=li.GradientNoise(float(rng.uniform(0.5, 1.1))),
        batching=li.FixedSize(int(rng.integers(1, n))),
        loss=loss,
        adjacency=adjacency,
    )
    most = 3 * loss.residual_clip
    targets = (
        rng.choice([-most, most, 0.3, -0.3], n)
        if rng.random() < 0.7
        else rng.uniform(-most, most, n)
    )
    return run, targets.tolist(), None if adjacency == "zero-out" else float(-targets[-1])


def test_every_restart_lies_above_the_exact_law_of_curved_losses():
    rng, near, tried = np.random.default_rng(33), 0.0, 0
    for _ in range(size(20, 1000, "RESTARTED")):
        run, targets, other = drawn(rng)
        true = exact(run, targets, other)
        for one, bound in restarts(run, rng):
            for epsilon, orders in zip(EPSILONS, true, strict=True):
                tried += 1
                assert all(
                    t <= ours * (1 + 1e-3) + 1e-5
                    for t, ours in zip(orders, bound.directions(epsilon), strict=True)
                ), (run, targets, one, epsilon)
                near = max(near, max(orders) / bound.delta(epsilon) if max(orders) > 1e-3 else 0.0)
    assert near > 0.6 and tried > 200


def restarts(run, rng):
    """Some restarts of a run, the failure of distances excluded, and the curves of their tails."""
    rate, kept = run.batching.size / run.n, []

    def collected(run, *, chance, every, distances, curve, lengthened, shares, seen):
        assert (chance, every) == (rate, 1) and shares == ((run.divisor - 1) / run.divisor, 1.0)
        assert seen is (by_itself if run.adjacency == "replace-one" else instead_of_another)
        steps = last_steps(run, rate, 0.0, 1, shares)
        found = np.array(
            candidates(steps, rate, run.steps, 1, distances, 0.0, lengthened), dtype=object
        )
        kept.extend((one, curve(run, one)) for one in rng.permutation(found)[:3])
        return curve(run, kept[0][0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restarted_sampling, "search_restarts", collected)
        restarted_sampling.search_subset_restarts(run)
    return kept


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_tail_of_a_restart(adjacency):
    """Steps of a fixed size with a share of the noise, to which the record adds more, where S = 1/2
    and M = 1."""
    run = li.Run(
        n=6,
        steps=5,
        step_size=0.4,
        noise=li.GradientNoise(1.3),
        batching=li.FixedSize(2),
        adjacency=adjacency,
        loss=li.KnownConstants(li.LossFacts(sensitivity=0.5, smooth=1.0, strong=0.9)),
    )
    replaced = adjacency == "replace-one"
    for one, bound in restarts(run, np.random.default_rng(0)):
        longer = 1 + 4 * (one.apart + one.closed) if replaced else 1 + 2 * one.closed
        (z,) = bound.multipliers
        assert (
            z == pytest.approx(1.3 * 2 / 0.5 * math.sqrt(one.share) / longer, rel=1e-9)
            and one.closed > 0.01
        )
        assert (bound.counts, bound.replaced, bound.mu, bound.rate) == (
            (5 - one.first,),
            replaced,
            one.mu,
            1 / 3,
        )
    found = curve(run)
    (z,) = (
        found.curves[0] if isinstance(found, BestOf) else found
    ).multipliers  # from the first step on
    assert z == pytest.approx(1.3 * 2 / 0.5, rel=1e-9)
    silent = li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.0))
    assert curve(replace(run, loss=silent)) == Gdp(0.0)


def test_one_step_of_the_proof():
    """The shift follows the step in which another record stands; what is left is what the record
    adds.

    Every record's gradient is clip(M x - t) for some t; any shift, any two points, the longest
    contributions.
    """
    rng, longest = np.random.default_rng(8), {}
    for _ in range(size(1500, 4000, "STEPS")):
        run, *_ = drawn(rng)
        loss, b, eta = run.loss, run.divisor, float(run.step_sizes[0])
        bend, most, sensitivity = (
            loss.row_norm**2,
            loss.residual_clip * loss.row_norm,
            run.facts().sensitivity.value,
        )

        def gradient(point, target, bend=bend, most=most):
            return np.clip(bend * point - target, -most, most)

        x, w, k = *rng.uniform(-3, 3, 2), rng.uniform(0, 1)
        others, (own, new, instead) = (
            rng.uniform(-4, 4, int(b) - 1),
            rng.choice([-9, -1, 0, 1, 9], 3),
        )
        replaced = run.adjacency == "replace-one"

        def step(point, target, one=1.0, others=others, run=run, eta=eta, b=b, gradient=gradient):
            total = sum(gradient(point, t) for t in others) + one * gradient(point, target)
            return point - eta * (total / b + run.loss.ridge * point)

        shift = k * (step(x, instead) - step(w, instead))
        # with the record, so that X - W is 1 - k times what the map of the neighbour's batch makes
        # of it
        neighbour = partial(step, target=new) if replaced else partial(step, target=0.0, one=0.0)
        added = step(x, own) - neighbour(x) + k * (neighbour(x) - neighbour(w)) - shift
        c = max(abs(1 - eta * run.loss.ridge), abs(1 - eta * (run.loss.ridge + bend)))
        kept = step(x, own) - (neighbour(w) + shift + added)
        assert abs(kept) <= (1 - k) * c * abs(x - w) + 1e-9
        limit = (
            restarted_sampling.shift_growth(run)(abs(x - w), k * abs(x - w)) * sensitivity * eta / b
        )
        missing = (
            neighbour(w) + added - step(w, instead)
        )  # from the place of the step that the record is not in
        for length in (abs(added), abs(missing) if replaced else 0.0):
            assert length <= limit * (1 + 1e-9)
            longest[replaced] = max(longest.get(replaced, 0.0), length * b / (eta * sensitivity))
    assert longest[False] > 1.05 and longest[True] > 1.05, "without the factor this fails"


RUN = li.Run(
    n=10_000,
    steps=10_000,
    step_size=1.0,
    noise=li.NoiseMultiplier(1.5),
    batching=li.FixedSize(100),
    loss=li.Logistic(ridge=0.0385, intercept=0.0),
)


def curve(run):
    return applied(NAME, run)


def test_what_contracts_is_forgotten():
    short, long = (curve(RUN), curve(replace(RUN, steps=50_000)))
    composed = match(TABLE["fixed-size-amplified"], RUN).curve
    assert long.epsilon(1e-5) <= short.epsilon(1e-5) * 1.01 < composed.epsilon(1e-5) / 4


@pytest.mark.filterwarnings("error")
def test_what_a_step_is_ranked_by_is_never_no_number():
    """The chi-squared distance of q N(2/z) + (1 - q) N(0) to q N(1/z) + (1 - q) N(0) over q^2, for
    small q; with little noise it overflows, and must rank last, silently: the chance of a draw,
    squared, may be 0."""
    x, z = np.linspace(-30, 30, 60_001), 2.0
    density = [
        np.exp(-((x - place) ** 2) / 2) / math.sqrt(2 * math.pi) for place in (0.0, 1 / z, 2 / z)
    ]
    for seen, near in (
        (by_itself, density[1] - density[0]),
        (instead_of_another, density[2] - density[1]),
    ):
        found = seen(np.array([0.0, 1e-4, 1 / 400, 4.0, 1e6, math.inf]))
        assert list(found[:2]) == [math.inf] * 2 and found[3] == pytest.approx(
            (near**2 / density[0]).sum() * (x[1] - x[0]), rel=1e-6
        )
        assert found[2] > 1e170 and found[4] == pytest.approx(1e-6, rel=1e-3) and found[5] == 0
        for noise in (0.0, 1e-4, 1e200):
            assert _approximate_squared_mu(np.array([noise, 5.0]), 1e-200, 0.5, seen) == (
                math.inf if noise < 1 else 0.0
            )
