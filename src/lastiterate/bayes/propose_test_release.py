"""Release one posterior sample by propose-test-release, with randomness of the operating system."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.bayes.linear import SLACK, LinearModel, RatioDomain, corner_bound
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve, EpsDelta
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.run.validation import Array, check_kept, positive

# Where a released sample's randomness comes from: the operating system, or a generator that the
# caller gave.

GIVEN = "the caller gave the generator: whoever knows its state can subtract the noise"
"""The caveat of a certificate whose sample was drawn from a caller's generator."""


class Source(Protocol):
    """What samplers draw from."""

    def normal(self, count: int) -> Array:
        """Standard normal numbers, shape (count,)."""
        ...

    def laplace(self, scale: float) -> float:
        """One centred Laplace number of density exp(-|x| / scale) / (2 scale)."""
        ...


class SystemSource:
    """The operating system's generator: every number from fresh secret bits, nothing kept between
    calls."""

    def normal(self, count: int) -> Array:
        # Box and Muller with 53 bits: no number beyond 8.6 standard deviations, a tail of 1e-17
        source = SystemRandom()
        radius = [math.sqrt(-2 * math.log1p(-source.random())) for _ in range(count)]
        return np.array([r * math.cos(2 * math.pi * source.random()) for r in radius])

    def laplace(self, scale: float) -> float:
        source = SystemRandom()
        return scale * (math.log1p(-source.random()) - math.log1p(-source.random()))


class SeededSource:
    """A NumPy generator, for tests and audits."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def normal(self, count: int) -> Array:
        return self._generator.standard_normal(count)

    def laplace(self, scale: float) -> float:
        return float(self._generator.laplace(0.0, scale))


def source_of(generator: np.random.Generator | None) -> tuple[Source, tuple[str, ...]]:
    """The source of randomness, and the caveat it brings (none for the operating system's)."""
    return (SystemSource(), ()) if generator is None else (SeededSource(generator), (GIVEN,))


# Propose, test, sample: one posterior sample without knowing the ratio beforehand, or nothing.
# Heller and Fetaya 2023, Algorithm 1, as restored in this project: the published listing is lost,
# so constants, the order of the tests and the accounting are our own, and so is the proof
# (docs/theorems/propose-test-sample.md). Status: proved for replace-one, and for one record removed
# or added, over real numbers.

PRECISION = "noise and arithmetic have double precision; the proof is about real numbers"
ORDERS = 1 + np.geomspace(0.01, 400.0, 120)
"""Orders at which the test asks the posterior's bound to keep its promise."""


@dataclass(frozen=True, kw_only=True)
class ProposeTestSample:
    """The public numbers of propose-test-sample, a posterior sample without a public ratio.

    Parameters
    ----------
    model : LinearModel
        Precisions of the prior and of the noise.
    ratio_bound : float
        Bound that the ratios y/x are clamped to for their average, positive.
    spread : float
        Largest distance of a kept record's ratio from the noisy average, positive.
    x_low : float, default 0.5
        Lower bound that x is clamped to, positive.
    x_high : float, default 1.0
        Upper bound that x is clamped to.
    count_epsilon : float, default 0.25
        Cost of each of two noisy counts.
    ratio_epsilon : float, default 0.25
        Cost of the noisy average.
    failure : float, default 1e-7
        Probability, within (0, 0.1), that one count is too large.
    slope : float, default 0.02
        Largest Renyi divergence of the sample, divided by the order.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    propose_test_sample : Run the algorithm.

    Notes
    -----
    docs/theorems/propose-test-sample has the guarantee and its proof; the algorithm follows Heller
    and Fetaya 2023, Algorithm 1.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, ProposeTestSample
    >>> settings = ProposeTestSample(model=LinearModel(), ratio_bound=10.0, spread=0.5)
    >>> 0.5 < settings.epsilon(1e-5) < 2.0
    True
    """

    model: LinearModel
    ratio_bound: float
    spread: float
    x_low: float = 0.5
    x_high: float = 1.0
    count_epsilon: float = 0.25
    ratio_epsilon: float = 0.25
    failure: float = 1e-7
    slope: float = 0.02

    def __post_init__(self) -> None:
        for name in (
            "ratio_bound",
            "spread",
            "x_low",
            "x_high",
            "count_epsilon",
            "ratio_epsilon",
            "slope",
        ):
            positive(name, getattr(self, name))
        if self.x_low > self.x_high:
            raise InputError("x_low", f"cannot exceed x_high = {self.x_high:g}", self.x_low)
        if not 0 < self.failure < 0.1:
            raise InputError(
                "failure",
                "must lie strictly between 0 and 0.1",
                self.failure,
                "1e-7 is a common choice",
            )

    @property
    def curve(self) -> Curve:
        """What everything that is released leaks as long as neither count is too large."""
        pure = (
            EpsDelta(each, 0.0)
            for each in (self.count_epsilon, self.ratio_epsilon, self.count_epsilon)
        )
        sample = Rdp(
            orders=tuple(map(float, ORDERS)), values=tuple(map(float, self.slope * ORDERS * SLACK))
        )
        return compose(sample, *pure)  # in this order each is composed by its Renyi curve

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon`` for the whole algorithm."""
        return min(1.0, self.curve.delta(epsilon) + 2 * self.failure)

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta``; infinite at or below twice ``failure``."""
        return (
            self.curve.epsilon(delta - 2 * self.failure) if delta > 2 * self.failure else math.inf
        )

    @property
    def margin(self) -> float:
        """What a count is lowered by: 1 + log(1/(2 failure)) / count_epsilon."""
        return 1 + math.log(1 / (2 * self.failure)) / self.count_epsilon

    def ratio_scale(self, count: float) -> float:
        """Scale of the Laplace noise on the average when at least ``count`` records are there.

        A record's weight x^2 is at most a share x_high^2 / (x_high^2 + (count - 1) x_low^2) of all,
        and exchanging it moves the average by at most twice ratio_bound times that share.
        """
        high, low = self.x_high**2, self.x_low**2
        return 2 * self.ratio_bound * high / (high + (count - 1) * low) / self.ratio_epsilon * SLACK

    def passes(self, count: float, centre: float) -> bool:
        """Whether posteriors of ``count`` or more records around the ratio ``centre`` keep the
        promise: public."""
        if not count >= 2:
            return False
        # the bound grows with |ratio| and is the same for a ratio and its negative (flip all
        # labels)
        ratio = max(abs(centre), 1e-12)
        domain = RatioDomain(
            n=math.floor(count),
            ratio=ratio,
            spread=self.spread * SLACK,
            x_low=self.x_low,
            x_high=self.x_high,
        )
        # replace-one with n records leaves n - 1 in common, one record more or less leaves n
        curve = np.maximum(
            corner_bound(ORDERS, self.model, domain),
            corner_bound(ORDERS, self.model, domain, "zero-out"),
        )
        return bool((curve <= self.slope * ORDERS).all())


@dataclass(frozen=True)
class Outcome:
    """The released numbers of propose-test-sample.

    Parameters
    ----------
    count : float
        Noisy count of the records.
    centre : float or None
        Noisy average of the ratios; ``None`` where the count was too small.
    kept : float or None
        Noisy count of the kept records; ``None`` where there was no average.
    value : float or None
        Sample of theta; ``None`` where a test failed.
    settings : ProposeTestSample
        Public numbers of the algorithm.
    caveats : tuple of str, default ()
        Notes on what the proof does not cover.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, Outcome, ProposeTestSample
    >>> settings = ProposeTestSample(model=LinearModel(), ratio_bound=10.0, spread=0.5)
    >>> outcome = Outcome(1.2, None, None, None, settings)
    >>> outcome.epsilon(1e-5) == settings.epsilon(1e-5)
    True
    """

    count: float
    centre: float | None
    kept: float | None
    value: float | None
    settings: ProposeTestSample = field(repr=False)
    caveats: tuple[str, ...] = ()

    def epsilon(self, delta: float) -> float:
        """Return epsilon at ``delta``, which is the same for every outcome."""
        return self.settings.epsilon(delta)


Last = Callable[[Array, Array, Source], float]
"""The last line: a number from the kept records x, y and a source of randomness."""


def propose_test_sample(
    settings: ProposeTestSample,
    x: ArrayLike,
    y: ArrayLike,
    *,
    generator: np.random.Generator | None = None,
) -> Outcome:
    """Estimate the ratio privately, test it, and release a posterior sample or none.

    Parameters
    ----------
    settings : ProposeTestSample
        Public numbers of the algorithm.
    x : array_like, shape (n,)
        Private feature of every record; n itself is private.
    y : array_like, shape (n,)
        Private label of every record.
    generator : numpy.random.Generator, optional
        Source of the noise, for tests only; it becomes a caveat. By default it is the system.

    Returns
    -------
    Outcome
        Noisy counts, noisy average, and the sample where all tests passed.

    Raises
    ------
    InputError
        If the data are no finite numbers of these shapes.

    Notes
    -----
    **Guarantee:** the outcome as a whole is (``settings.epsilon(delta)``, delta)-DP for one record
    replaced, removed or added, with the system's randomness. docs/theorems/propose-test-sample has
    the proof.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.bayes import LinearModel, ProposeTestSample, propose_test_sample
    >>> settings = ProposeTestSample(model=LinearModel(), ratio_bound=10.0, spread=0.5)
    >>> outcome = propose_test_sample(settings, np.ones(2), np.ones(2))
    >>> outcome.value is None
    True
    """
    source, caveats = source_of(generator)

    def exact(kept_x: Array, kept_y: Array, source: Source) -> float:
        mean, variance = settings.model.posterior(kept_x, kept_y)
        return mean + math.sqrt(variance) * float(source.normal(1)[0])

    return run(settings, x, y, source, exact, (*caveats, PRECISION))


def run(
    settings: ProposeTestSample,
    x: ArrayLike,
    y: ArrayLike,
    source: Source,
    last: Last,
    caveats: tuple[str, ...] = (),
) -> Outcome:
    """The algorithm with a last line of one's own: only that of ``propose_test_sample`` is
    certified."""
    rows, ratios = _clip(settings, x, y)
    count = rows.size - settings.margin + source.laplace(1 / settings.count_epsilon)
    if count < 2:
        return Outcome(count, None, None, None, settings, caveats)
    weights = rows * rows
    average = float(weights @ np.clip(ratios, -settings.ratio_bound, settings.ratio_bound)) / max(
        weights.sum(), 1e-300
    )
    centre = average + source.laplace(settings.ratio_scale(count))
    near = np.abs(ratios - centre) <= settings.spread
    kept = int(near.sum()) - settings.margin + source.laplace(1 / settings.count_epsilon)
    if not settings.passes(kept, centre):
        return Outcome(count, centre, kept, None, settings, caveats)
    return Outcome(
        count, centre, kept, last(rows[near], (rows * ratios)[near], source), settings, caveats
    )


def _clip(settings: ProposeTestSample, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Clamp x to [x_low, x_high], and return it with the ratio y/x of the clamped values: each
    record by itself."""
    check_kept("data", (x, y))
    one, two = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if (
        one.ndim != 1
        or one.shape != two.shape
        or not (np.isfinite(one).all() and np.isfinite(two).all())
    ):
        raise InputError(
            "data", "must be finite numbers x and y of the same shape (n,)", (one.shape, two.shape)
        )
    kept = np.clip(one, settings.x_low, settings.x_high)
    return kept, two / kept
