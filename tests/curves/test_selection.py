"""Private selection against the whole output law of small discrete problems, enumerated."""

import math
from dataclasses import dataclass
from itertools import product

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from lastiterate.accounting.private_selection import Selection
from lastiterate.curves import selection
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import Curve, EpsDelta, Grouped, confirm_epsilon
from lastiterate.curves.gaussian import Gdp, log_sum_exp
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.sampled_batches import FixedSizeSteps
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


SHAPES = [(0.0, 0.2), (0.0, 0.93), (1.0, 0.05), (-0.5, 0.01), (2.5, 0.4), (100.0, 0.6)]


def negative_binomial_mass(shape, stop, k):
    """P[K = k], k >= 1, of Papernot and Steinke 2022, Definition 1."""
    shape, stop = mp.mpf(shape), mp.mpf(stop)
    if shape == 0:
        return (1 - stop) ** k / k / mp.log(1 / stop)
    weight = mp.rf(shape, k) / mp.factorial(k)
    return (1 - stop) ** k / (stop**-shape - 1) * weight


def poisson_mass(expected, k):
    return mp.exp(-mp.mpf(expected)) * mp.mpf(expected) ** k / mp.factorial(k)


@pytest.mark.parametrize(
    "runs",
    [*(NegativeBinomial(*one) for one in SHAPES), PoissonRuns(0.3), PoissonRuns(7.0)],
    ids=str,
)
def test_runs_are_drawn_by_inversion(runs):
    """On either side of every step of the distribution function, of 128 and of 200 bits; the mean
    is the masses'."""
    with mp.workdps(90):
        least = 0 if isinstance(runs, PoissonRuns) else 1
        masses = [
            poisson_mass(runs.expected, k)
            if isinstance(runs, PoissonRuns)
            else negative_binomial_mass(runs.shape, runs.stop, k)
            for k in range(least, 400)
        ]
        mean = mp.fsum(k * mass for k, mass in enumerate(masses, least))
        if abs(sum(masses) - 1) < 1e-12:
            assert mean <= runs.mean <= mean * (1 + mp.mpf("1e-9"))
        assert runs.none == pytest.approx(float(masses[0]) if least == 0 else 0.0, rel=1e-9)
        for bits in (128, 200):
            below = mp.mpf(0)
            assert runs.draw(0, bits) == least
            for k, mass in enumerate(masses[:9], least):
                below += mass
                step = int(below * 2**bits)
                assert (runs.draw(step - 1, bits), runs.draw(step + 1, bits)) == (k, k + 1)


@pytest.mark.parametrize("shape, stop", [(100.0, 0.5), (-0.999, 0.5), (0.0, 1e-7), (0.0, 1 - 1e-7)])
def test_distributions_of_runs_at_the_ends_of_what_is_allowed(shape, stop):
    assert NegativeBinomial(shape, stop).mean >= 1
    for bad in ((100.5, 0.5), (-1.0, 0.5), (-1.5, 0.5), (shape, 1.0), (shape, 1.5), (shape, 0.0)):
        with pytest.raises(InputError, match="shape in"):
            NegativeBinomial(*bad)


@pytest.mark.parametrize("shape", [0.0, 1.0, -0.5])
def test_the_mean_number_of_runs_is_as_asked(shape):
    for mean in (1.5, 7.0, 1e3):
        found = NegativeBinomial.with_mean(mean, shape).mean
        assert mean * (1 - 1e-9) <= found <= mean
    assert PoissonRuns(1e6).mean == 1e6 and PoissonRuns(2e-6).mean == 2e-6
    for make in (PoissonRuns, NegativeBinomial.with_mean):
        with pytest.raises(InputError, match="mean number of runs"):
            make(1.5e6)


@pytest.mark.parametrize(
    "curve", [Gdp(0.3), Gdp(2.0), Exact(((0.2, 0.5, 0.3), (0.3, 0.5, 0.2)))], ids=str
)
def test_renyi_divergences_of_selections_are_the_theorems(curve):
    """Papernot and Steinke 2022, Theorem 2 with the best order of a dense grid, and Theorem 6 with
    no output as an output."""
    orders = 1 + np.geomspace(10**-1.5, 383, 2000)
    inner = np.array([(1 - 1 / order) * curve.rdp(float(order)) for order in orders])
    for alpha in (1.05, 1.5, 2.0, 3.7, 40.0):
        for shape, stop in SHAPES:
            runs = NegativeBinomial(shape, stop)
            best = float((inner - math.log(stop) / orders).min())
            found = curve.rdp(alpha) + (1 + shape) * best + math.log(runs.mean) / (alpha - 1)
            ours = selection_rdp(curve, runs, alpha)
            assert found * (1 - 1e-4) <= ours <= found * 1.02 + 1e-3
        for expected in (0.2, 4.0):
            failure = curve.delta(math.log(1 + 1 / (alpha - 1)))
            found = curve.rdp(alpha) + expected * failure + math.log(expected) / (alpha - 1)
            moments = float(np.logaddexp(-expected, (alpha - 1) * found))
            ours = selection_rdp(curve, PoissonRuns(expected), alpha)
            assert ours == pytest.approx(max(0.0, moments / (alpha - 1)), rel=1e-6)
    for bad in (1.0, 0.5):
        with pytest.raises(InputError, match="exceed 1"):
            selection_rdp(curve, PoissonRuns(4.0), bad)


def test_the_orders_of_a_selection():
    assert len(selection.ORDERS) == 50
    gaps = np.array(selection.ORDERS) - 1
    assert gaps[0] == pytest.approx(10**-1.5) and gaps[-1] == pytest.approx(383.12, rel=1e-3)
    assert gaps[1:] / gaps[:-1] == pytest.approx(10 ** (1 / 12))
    table = selection._table(Gdp(0.3), PoissonRuns(4.0))
    assert table.orders == selection.ORDERS
    assert table.values[7] == selection_rdp(Gdp(0.3), PoissonRuns(4.0), table.orders[7])
    assert selection._table(EpsDelta(0.1, 1e-9), PoissonRuns(4.0)).orders == ()


@pytest.mark.parametrize("mu", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("runs", FAMILIES, ids=str)
def test_the_shift_bounds_the_ratio_of_the_numbers_of_runs(runs, mu):
    """sup f'(x) / f'(x') over the probabilities of one event under both laws of a Gaussian
    mechanism."""
    other = ndtr(np.linspace(-9, 9, 3001))
    one = ndtr(np.linspace(-9, 9, 3001) + mu)
    if isinstance(runs, PoissonRuns):
        exact = runs.expected * (one - other)
    else:
        rest = [1 - (1 - runs.stop) * x for x in (one, other)]
        exact = (1 + runs.shape) * np.log(rest[1] / rest[0])
    assert exact.max() * (1 - 1e-6) <= selection._shift(Gdp(mu), runs)


@pytest.mark.parametrize(
    "curve, runs, shift",
    [
        (Gdp(0.3), NegativeBinomial(0.0, 0.05), 0.5806098554125435),
        (Gdp(0.3), NegativeBinomial(1.0, 0.001), 1.9364729606265376),
        (Gdp(2.0), NegativeBinomial(-0.5, 0.3), 0.47639659779755494),
        (EpsDelta(1.0, 0.6), NegativeBinomial(0.0, 0.25), 1.2103148277295266),
        (EpsDelta(0.1, 1e-3), NegativeBinomial(2.0, 0.4), 0.2207622507870122),
        (EpsDelta(1.0, 0.02), NegativeBinomial(0.0, 0.01), 1.5471968734681796),
        (Gdp(0.3), PoissonRuns(5.0), 0.5961769237030363),
    ],
)
def test_the_shift_is_as_it_was(curve, runs, shift):
    """Numbers of the code itself, so that no change passes unnoticed."""
    assert selection._shift(curve, runs) == pytest.approx(shift, rel=1e-9)


@pytest.mark.parametrize(
    "curve, runs, deltas, epsilons",
    [
        (
            Gdp(0.3),
            NegativeBinomial(0.0, 0.05),
            (1.0, 1.0, 8.357376535443515e-07, 4.707030472455514e-73),
            (0.7906373663734237, 1.4913440011437795, 1.989109929277457, 2.6783059428191787),
        ),
        (
            Rdp.linear(0.05),
            NegativeBinomial(-0.5, 0.01),
            (1.0, 0.9210274187750334, 1.7817385614046897e-06, 9.516486776651358e-68),
            (0.794880907550229, 1.524381792716471, 2.0366604547830898, 2.7490575201847642),
        ),
        (
            Gdp(1.0),
            PoissonRuns(0.3),
            (0.39980081961600744, 0.08080229635868692, 0.008032430923539266, 1.6203142280124974e-9),
            (0.11487747676798846, 2.850189651832254, 4.741767672438847, 7.1793299202316625),
        ),
        (
            EpsDelta(0.1, 1e-9),
            PoissonRuns(5.0),
            (1.0, 5e-9, 5e-9, 5e-9),
            (0.24979187969296313, 0.34941084154171753, 0.34979150064120224, math.inf),
        ),
        (
            EpsDelta(0.7, 0.0),
            PoissonRuns(50.0),
            (1.0, 1.0, 1.0, 0.06353873681871708),
            (4.447867273895288, 10.151649748557192, 17.042110674971468, 17.518777227209405),
        ),
        (
            EpsDelta(7000.0, 1e-9),
            NegativeBinomial(0.0, 0.1),
            (1.0, 1.0, 1.0, 1.0),
            (7002.222730299623, 7002.302330864989, 7002.302587987382, math.inf),
        ),
        (EpsDelta(9000.0, 1e-9), NegativeBinomial(0.0, 0.1), (1.0,), (math.inf, math.inf)),
        (
            EpsDelta(0.01, 1e-6),
            NegativeBinomial(0.0, 0.5),
            (1.0, 1.442695040891849e-6),
            (0.00498849010393328, 0.0136101318498081, math.inf),
        ),
    ],
)
def test_curves_of_selections_are_as_they_were(curve, runs, deltas, epsilons):
    """Numbers of the code itself, so that no change passes unnoticed."""
    found = Selected(curve, runs)
    for epsilon, delta in zip((0.0, 0.5, 2.0, 6.0), deltas, strict=False):
        assert found.delta(epsilon) == pytest.approx(delta, rel=1e-9)
    for delta, epsilon in zip((0.3, 1e-3, 1e-6, 1e-12), epsilons, strict=False):
        assert found.epsilon(delta) == pytest.approx(epsilon, rel=1e-8)


def test_a_profile_holds_at_its_shift_and_beyond():
    """mean delta(epsilon - shift) from the shift on, where no table is better; 1 below."""
    curve, runs = EpsDelta(0.1, 1e-9), NegativeBinomial(1.0, 0.5)
    found, shift = Selected(curve, runs), selection._shift(curve, runs)
    assert found.delta(shift * (1 - 1e-9)) == 1
    assert found.delta(shift) == pytest.approx(min(1.0, 2 * curve.delta(0.0)), rel=1e-9)
    for above in (0.05, 0.09, 0.2):
        assert found.delta(shift + above) == pytest.approx(2 * curve.delta(above), rel=1e-6)


def test_parts_of_the_worst_of_several():
    point, curves = EpsDelta(1.0, 0.0), (Gdp(0.1), Gdp(0.2))
    worst = WorstOf((*curves, point))
    epsilons = np.array([0.0, 0.4, 1.5])
    logs = worst.log_profile(epsilons)
    assert logs.shape == (3, 2)
    assert logs.tolist() == [
        [max(curve.log_delta(float(e)) for curve in worst.curves)] * 2 for e in epsilons
    ]
    assert worst.rdp(3.0) == point.rdp(3.0) and worst.epsilon(1e-6) == 1.0
    assert WorstOf((Gdp(0.1), point, Gdp(0.2))).group(2) == Grouped(
        WorstOf((Gdp(0.1), point, Gdp(0.2))), 2
    )
    assert WorstOf(curves[:1]).group(4) == curves[0].group(4)
    assert WorstOf(curves).group(4) == curves[1].group(4)
    assert WorstOf(curves).replace_one_curve() == WorstOf(tuple(c.group(2) for c in curves))
    sampled = FixedSizeSteps(0.1, (2.0,), (3,))
    assert WorstOf((sampled,)).coarser() == WorstOf((sampled.coarser(),))
    selected = Selected(sampled, PoissonRuns(2.0))
    assert selected.coarser() == Selected(sampled.coarser(), PoissonRuns(2.0))
    assert selected.group(2) == Selected(sampled.group(2), PoissonRuns(2.0))
