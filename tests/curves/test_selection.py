"""Private selection against the whole output law of small discrete problems, enumerated."""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from lastiterate.accounting.private_selection import Selection
from lastiterate.curves import selection
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import Curve, EpsDelta, confirm_epsilon
from lastiterate.curves.gaussian import Gdp, log_sum_exp
from lastiterate.curves.selection import (
    NegativeBinomial,
    PoissonRuns,
    Runs,
    Selected,
    WorstOf,
    selection_rdp,
)
from lastiterate.errors import InputError
from oracles.number_of_runs import masses_of

FAMILIES = [
    NegativeBinomial(0.0, 0.2),
    NegativeBinomial(1.0, 0.05),
    NegativeBinomial(-0.5, 0.01),
    NegativeBinomial(3.0, 0.4),
    PoissonRuns(0.5),
    PoissonRuns(4.0),
]
EPSILONS = np.linspace(0.0, 6.0, 61)


def profile(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


def divergence(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    p, q = np.log(p[p + q > 0]), np.log(q[p + q > 0])
    both = [alpha * a + (1 - alpha) * b for a, b in ((p, q), (q, p))]
    return max(log_sum_exp(terms) / (alpha - 1) for terms in both)


@dataclass(frozen=True)
class Exact(Curve):
    """The curve of a pair of discrete laws, both directions."""

    pair: tuple[tuple[float, ...], tuple[float, ...]]

    def delta(self, epsilon: float) -> float:
        return profile(*map(np.array, self.pair), epsilon)

    def epsilon(self, delta: float) -> float:
        return confirm_epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        return divergence(*map(np.array, self.pair), alpha)

    def group(self, size: int) -> Curve:
        raise NotImplementedError


def generating(runs: Runs, x: np.ndarray) -> np.ndarray:
    """E[x^K], written from the laws' definitions."""
    if isinstance(runs, PoissonRuns):
        return np.exp(runs.expected * (x - 1))
    rest = 1 - (1 - runs.stop) * x
    if runs.shape == 0:
        return np.log(rest) / math.log(runs.stop)
    return (rest**-runs.shape - 1) / (runs.stop**-runs.shape - 1)


def selected_law(runs: Runs, law: np.ndarray) -> np.ndarray:
    """No output, then the outcomes from worst to best: the best of K draws is at most y with
    probability E[F(y)^K]."""
    return np.diff(
        generating(runs, np.concatenate(([0.0], np.minimum(1, np.cumsum(law))))), prepend=0.0
    )


def pairs(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Laws of few outcomes; some outcomes are rare, the best ones above all, where selection
    amplifies most."""
    random, found = np.random.default_rng(seed), []
    for _ in range(25):
        outcomes = int(random.integers(2, 7))
        p = random.dirichlet(np.full(outcomes, random.choice([0.2, 1.0, 5.0]))) + 1e-4
        p = np.sort(p)[::-1] if random.random() < 0.5 else p
        q = p * np.exp(random.uniform(-1, 1, outcomes) * random.choice([0.05, 0.5, 2.0]))
        found.append((p / p.sum(), q / q.sum()))
    return found


@pytest.mark.parametrize("runs", FAMILIES, ids=str)
def test_the_output_law_is_that_of_every_number_of_runs_and_outcome(runs: Runs) -> None:
    law = np.array([0.5, 0.3, 0.2])
    found = np.zeros(4)
    for k, mass in enumerate(masses_of(runs, 1e-3)[:7]):
        for outcomes in product(range(3), repeat=k):
            found[max(outcomes, default=-1) + 1] += mass * math.prod(law[list(outcomes)])
    exact = selected_law(runs, law)
    missing = 1 - sum(masses_of(runs, 1e-12)[:7])
    assert (
        (found <= exact + 1e-12).all()
        and exact.sum() == pytest.approx(1)
        and found.sum() >= 1 - missing - 1e-3
    )


@pytest.mark.parametrize("runs", FAMILIES, ids=str)
def test_laws_of_the_number_of_runs(runs: Runs) -> None:
    masses = np.array(masses_of(runs, 1e-12))
    assert masses.sum() == pytest.approx(1) and runs.none == pytest.approx(masses[0])
    assert float(masses @ np.arange(len(masses))) == pytest.approx(runs.mean, rel=1e-6)
    slope = (generating(runs, np.array(1.0)) - generating(runs, np.array(1 - 1e-7))) / 1e-7
    assert slope == pytest.approx(runs.mean, rel=1e-4)


@pytest.mark.parametrize("runs", FAMILIES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_enumerated_profiles_lie_below_the_certificate(runs: Runs, seed: int) -> None:
    closest = 0.0
    for p, q in pairs(seed):
        claimed = Selected(Exact((tuple(p), tuple(q))), runs)
        laws = selected_law(runs, p), selected_law(runs, q)
        for epsilon in EPSILONS:
            true, bound = profile(*laws, float(epsilon)), claimed.delta(float(epsilon))
            assert true <= bound * (1 + 1e-9) + 1e-13
            closest = max(closest, true / bound if true > 1e-6 else 0.0)
        for alpha in (1.2, 2.0, 7.0):
            assert (
                divergence(*laws, alpha)
                <= selection_rdp(claimed.curve, runs, alpha) * (1 + 1e-9) + 1e-12
            )
    assert closest > 0.2  # the bound is not empty


@pytest.mark.parametrize("runs", FAMILIES, ids=str)
def test_the_shift_is_needed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ratio of the numbers of runs the statement on profiles is false, and the
    enumeration sees it."""
    monkeypatch.setattr(selection, "_shift", lambda curve, runs: 0.0)
    monkeypatch.setattr(selection, "_table", lambda curve, runs: EpsDelta(0.0, 1.0))
    seen = 0
    for p, q in pairs(0):
        claimed, laws = (
            Selected(Exact((tuple(p), tuple(q))), runs),
            (selected_law(runs, p), selected_law(runs, q)),
        )
        seen += any(
            profile(*laws, float(e)) > claimed.delta(float(e)) * (1 + 1e-6) + 1e-12
            for e in EPSILONS
        )
    assert seen > 0


def test_one_run_costs_what_it_costs() -> None:
    curve = Selected(Gdp(0.5), NegativeBinomial.with_mean(1.000001))
    assert curve.epsilon(1e-6) == pytest.approx(Gdp(0.5).epsilon(1e-6), rel=0.05)


@pytest.mark.parametrize(("mean", "factor"), [(10, 2.1), (30, 3.7), (100, 7.0)])
def test_selection_beats_composition(mean: float, factor: float) -> None:
    """The factors that the proof note states, at (1.29, 1e-6) for every run."""
    naive = compose(*[Gdp(0.3)] * mean).epsilon(1e-6)
    assert naive / Selected(Gdp(0.3), NegativeBinomial.with_mean(mean)).epsilon(1e-6) > factor


def test_curves_with_a_failure_probability_have_only_the_profile() -> None:
    curve = Selected(EpsDelta(0.1, 1e-9), NegativeBinomial.with_mean(10))
    assert curve.rdp(2.0) == math.inf and 0.1 < curve.epsilon(1e-6) < 0.5
    assert curve.delta(5.0) >= 1e-8 and curve.epsilon(5e-9) == math.inf


def test_records_of_a_group_may_be_part_of_different_mechanisms():
    """A chain that crosses a randomised answer and then a noisy count: each of the two for one
    record."""
    answer, count = EpsDelta(1.0, 0.0), Gdp(0.8)
    grouped = WorstOf((answer, count)).group(2)
    x = np.linspace(-9, 11, 40_001)
    density = np.exp(-((x[:, None] - [0.0, 0.8]) ** 2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    says = np.array([1.0, np.e]) / (1 + np.e)
    # both records are told apart at once: the answer by one, the count by the other
    p, q = np.outer(density[:, 1], says), np.outer(density[:, 0], says[::-1])
    for epsilon in (0.3, 1.0, 2.0, 2.5):
        assert grouped.delta(epsilon) >= np.maximum(p - np.exp(epsilon) * q, 0).sum() - 1e-9
        assert grouped.delta(epsilon) >= max(
            answer.group(2).delta(epsilon), count.group(2).delta(epsilon)
        )
    assert WorstOf((Gdp(0.1), Gdp(0.2))).group(3) == Gdp(0.2).group(3)


@pytest.mark.parametrize(
    "curve",
    [
        Selected(Gdp(0.3), NegativeBinomial(0.0, 0.1)),
        WorstOf((Gdp(0.1), Gdp(0.2))),
        Selected(WorstOf((Gdp(0.1), EpsDelta(0.2, 0.0))), PoissonRuns(3.0)),
    ],
)
def test_curves_are_written_and_read(curve: Curve) -> None:
    assert curve_from_dict(curve.to_dict()) == curve


def test_the_worst_of_several() -> None:
    curve = WorstOf((Gdp(0.3), EpsDelta(0.5, 1e-9)))
    assert curve.delta(0.0) == EpsDelta(0.5, 1e-9).delta(0.0) and curve.delta(0.51) == Gdp(
        0.3
    ).delta(0.51)
    assert compose(WorstOf((Gdp(0.3), Gdp(0.1))), Gdp(0.4)).epsilon(1e-6) >= Gdp(0.5).epsilon(1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: NegativeBinomial(-1.0, 0.5),
        lambda: NegativeBinomial(0.0, 0.0),
        lambda: PoissonRuns(0.0),
        lambda: NegativeBinomial.with_mean(1.0),
        lambda: WorstOf(()),
    ],
)
def test_what_is_no_law_is_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()


@pytest.mark.parametrize("law", [3, [], None, {"type": "Gdp", "mu": 1.0}, {"type": "PoissonRuns"}])
def test_a_stored_selection_has_a_law_of_runs(law: object) -> None:
    stored = {"candidates": [{}], "law": law, "held_out": 1, "score_noise": 1.0, "unit": 1}
    with pytest.raises(InputError, match="law"):
        Selection.from_dict(stored)
