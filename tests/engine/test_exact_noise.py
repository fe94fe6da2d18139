"""The discrete Gaussian: its tables against 60 digits, its frequencies, the decisions that need
more bits."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.stats import chi2, norm

from lastiterate.engine import exact_noise
from lastiterate.engine.exact_noise import DiscreteGaussian, block_width, exp_between
from lastiterate.engine.random import Bits, derive_key
from lastiterate.errors import InputError

KEY = derive_key(b"a test's secret", "tests")
SMALLEST_CHANCE = 1e-6
"""A right sampler fails a test of frequencies with this probability; the bits are fixed, so it
never does."""


def masses(sigma: float, most: int) -> "mpmath.matrix":
    """P[X = 0], P[X = 1], ... to 60 digits."""
    with mpmath.workdps(60):
        weights = [
            mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(sigma) ** 2))
            for x in range(most + 1)
        ]
        total = 2 * mpmath.fsum(weights) - 1
        return [weight / total for weight in weights]


def misfit(draws: np.ndarray, expected: np.ndarray, inner: np.ndarray) -> float:
    """Tail probability of Pearson's statistic: ``inner`` are the bounds between cells, ``expected``
    their masses."""
    seen = np.bincount(np.searchsorted(inner, draws, side="right"), minlength=len(expected))
    assert expected.min() * len(draws) > 5 and abs(expected.sum() - 1) < 1e-9
    statistic = float(((seen - expected * len(draws)) ** 2 / (expected * len(draws))).sum())
    return float(chi2.sf(statistic, len(expected) - 1))


@pytest.mark.parametrize("precision", [64, 128, 700])
@pytest.mark.parametrize(
    "x", [Fraction(0), Fraction(1, 3), Fraction(7, 2), Fraction(123457, 999), Fraction(1, 10**40)]
)
def test_bounds_on_the_exponential(x: Fraction, precision: int) -> None:
    low, high = exp_between(x, precision)
    with mpmath.workprec(precision + 200):
        assert (
            low
            <= mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** precision
            <= high
        )
    assert high - low <= 2


@pytest.mark.parametrize("sigma", [0.125, 0.3, 1.0, 4.7, 31.9])
def test_tables_are_the_exact_law(sigma: float) -> None:
    """Blocks of one number: the table alone is the law of |X| (zero counted twice, and rejected
    with one sign)."""
    found, width = exact_noise._blocks(sigma)
    exact = masses(sigma, 400)
    with mpmath.workdps(60):
        total = mpmath.fsum(exact)
        ends = [
            int(mpmath.floor(mpmath.fsum(exact[: j + 1]) / total * 2**64))
            for j in range(len(found.ends))
        ]
    assert width == 1 and found.ends.tolist() == ends


def test_blocks_reject_what_the_law_asks_for() -> None:
    """Weight of the block times the chance of acceptance is the law's weight, for every number of
    every block."""
    sigma = 1000.0
    width, square = block_width(sigma), 2 * sigma**2
    assert sigma / 32 < width <= sigma / 16
    for begin in (0, width, 40 * width):
        for place in (0, 1, width - 1):
            uniform = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
            many = np.full(2**16, begin), np.full(2**16, place)
            kept = DiscreteGaussian(sigma)._accept(uniform, *many, Bits(KEY, 0))
            wanted = math.exp(-((begin + place) ** 2) / square) / math.exp(-(begin**2) / square)
            assert abs(kept.mean() - wanted) < 2**-15


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 3.3, 20.0])
def test_frequencies_at_small_scales(sigma: float) -> None:
    draws = DiscreteGaussian(sigma).sample(Bits(KEY, 1), 400_000)
    exact = np.array([float(mass) for mass in masses(sigma, 300)])
    most = int(np.flatnonzero(exact * len(draws) > 20)[-1])
    numbers = np.arange(-most, most + 1)
    inside = exact[np.abs(numbers)]
    tail = (1 - inside.sum()) / 2
    cells, bounds = inside.copy(), numbers[1:] - 0.5
    cells[[0, -1]] += tail
    assert misfit(draws, cells / cells.sum(), bounds) > SMALLEST_CHANCE


@pytest.mark.parametrize("sigma", [40.0, 1234.5, 2.0**30 + 0.7, 2.0**46])
def test_frequencies_at_large_scales(sigma: float) -> None:
    """Against the normal law at half-way points: for sigma >= 40 the sum differs from the integral
    by less than 1e-9 (cells are not smaller than a number)."""
    draws = DiscreteGaussian(sigma).sample(Bits(KEY, 2), 300_000)
    bounds = np.unique(np.floor(norm.ppf(np.linspace(0, 1, 201)[1:-1]) * sigma)) + 0.5
    expected = np.diff(norm.cdf(bounds / sigma), prepend=0.0, append=1.0)
    assert misfit(draws, expected, bounds) > SMALLEST_CHANCE
    low = np.abs(draws) % 8  # places inside of blocks
    assert misfit(low, np.full(8, 0.125), np.arange(7) + 0.5) > SMALLEST_CHANCE or sigma < 1000


@pytest.mark.parametrize("sigma", [3.3, 40.0, 2.0**33])
def test_exact_decisions_give_the_same_law(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision is made to be in doubt, so that all are taken by integers of any length."""
    monkeypatch.setattr(exact_noise, "UNDECIDED", 2.0)
    monkeypatch.setattr(
        exact_noise._Blocks, "is_undecided", lambda self, uniform, which: np.full(len(which), True)
    )
    slow = DiscreteGaussian(sigma).sample(Bits(KEY, 3), 300)
    monkeypatch.undo()
    quick = DiscreteGaussian(sigma).sample(Bits(KEY, 3), 300)
    # the first words are the same, and they decide alike; further bits only shift where later
    # batches begin
    assert (slow[:250] == quick[:250]).all()


def test_doubt_is_seen() -> None:
    """A uniform number on the edge of two blocks, and one at an acceptance probability, are not
    decided by 64 bits."""
    found, _ = exact_noise._blocks(1000.0)
    at = found.ends[[3, 50]]
    which = np.searchsorted(found.ends, at, side="left")
    assert (
        found.is_undecided(at, which).all()
        and not found.is_undecided(at - np.uint64(1), which).any()
    )
    assert found.is_undecided(np.array([2**64 - 1], np.uint64), np.array([len(found.ends)])).all()
    seen = {exact_noise._exact_block(1000.0, int(at[0]), Bits(KEY, i)) for i in range(40)}
    assert seen == {3, 4}
    edge = int(math.exp(-0.5 * 31 * 31 / 1000.0**2) * 2**64)
    for shift, wanted in ((-(2**40), {True}), (2**40, {False})):
        assert {
            exact_noise._exact_acceptance(1000.0, edge + shift, 0, 31, Bits(KEY, i))
            for i in range(5)
        } == wanted


def test_streams_are_functions_of_their_numbers() -> None:
    one = DiscreteGaussian(50.0).sample(Bits(KEY, 7), 1000)
    assert (one == DiscreteGaussian(50.0).sample(Bits(KEY, 7), 1000)).all()
    other = DiscreteGaussian(50.0).sample(Bits(KEY, 8), 1000)
    assert (one != other).any() and abs(np.corrcoef(one, other)[0, 1]) < 0.2
    assert (
        derive_key(b"s", "noise") != derive_key(b"s", "order")
        and len(derive_key(b"s", "noise")) == 32
    )


@pytest.mark.parametrize("sigma", [0.0, 0.1, 2.0**48, math.inf, math.nan])
def test_scales_that_are_not_drawn(sigma: float) -> None:
    with pytest.raises(InputError, match="grid"):
        DiscreteGaussian(sigma)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("shift", [1, 2, 7])
def test_renyi_divergences_are_at_most_the_gaussians(sigma: float, shift: int) -> None:
    """Exact sums: alpha D^2 / (2 sigma^2), attained for whole shifts times whole orders and never
    exceeded."""
    with mpmath.workdps(60):
        weights = {
            x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(sigma) ** 2))
            for x in range(-400, 401)
        }
        total = mpmath.fsum(weights.values())
        for alpha in (1.5, 2, 3.25, 8):
            moment = mpmath.fsum(
                weights[x - shift] ** alpha * weights[x] ** (1 - alpha)
                for x in range(-150, 400 - 7)
            )
            divergence = mpmath.log(moment / total) / (alpha - 1)
            bound = mpmath.mpf(alpha) * shift**2 / (2 * mpmath.mpf(sigma) ** 2)
            assert divergence <= bound * (1 + mpmath.mpf(10) ** -50)
