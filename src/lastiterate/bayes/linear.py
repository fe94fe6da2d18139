"""Bayesian linear regression, on public bounds too, and divergences between Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.run.adjacency import records_moved
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.validation import Array, check_integer, check_kept, positive

# How far two Gaussians are apart: Renyi divergences in one dimension.


def renyi(order: float, mean1: float, precision1: float, mean2: float, precision2: float) -> float:
    """Renyi divergence of order > 1 of N(mean1, 1/precision1) from N(mean2, 1/precision2).

    It may be infinite.

    Gil, Alajaji, Linder 2013, Table 2. With A = order * precision1 - (order - 1) * precision2 > 0
    (else infinite) it is [order log precision1 - (order - 1) log precision2 - log A] / (2 (order -
    1)) + order gap^2 precision1 precision2 / (2 A).
    """
    share = (order - 1) * (precision2 - precision1) / precision1
    if share >= 1:
        return math.inf
    gap = (mean1 - mean2) ** 2 * precision2 / (1 - share)
    return float(log_part(order, (precision2 - precision1) / precision1)) + order / 2 * gap


def log_part(order: ArrayLike, change: ArrayLike) -> Array:
    """Renyi divergence of centred Gaussians of precisions A and A (1 + change).

    (order - 1) change < 1.

    It falls for change < 0 and grows for change > 0: its derivative is order change / (2 (1 +
    change) (1 - (order - 1) change)).
    """
    above, moved = np.asarray(order, dtype=np.float64) - 1, np.asarray(change, dtype=np.float64)
    return -(np.log1p(moved) + np.log1p(-above * moved) / above) / 2


# Bayesian linear regression with one feature and known precision: its posterior, and what one
# sample of it leaks. y = theta x + noise, noise ~ N(0, 1/beta), theta ~ N(0, 1/alpha) (Heller and
# Fetaya 2023, equation 4). Proofs: docs/theorems/posterior-sample.md.

Neighbours = Literal["replace-one", "zero-out"]
NEIGHBOURS: tuple[Neighbours, ...] = ("replace-one", "zero-out")
MOST_ORDER = 1e6
SLACK = 1 + 1e-12
"""Each bound is some thirty correctly rounded operations on terms of one sign."""


@dataclass(frozen=True, kw_only=True)
class LinearModel(Checked):
    """The prior and the noise of a Bayesian linear regression.

    Parameters
    ----------
    prior_precision : float, default 1.0
        Precision (1/variance) of the prior, positive.
    noise_precision : float, default 1.0
        Precision of the noise of a label, positive.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.bayes import LinearModel
    >>> LinearModel().posterior(np.ones(3), np.ones(3))
    (0.75, 0.25)
    """

    prior_precision: float = field(default=1.0, metadata=require(positive, "prior_precision"))
    noise_precision: float = field(default=1.0, metadata=require(positive, "noise_precision"))

    def posterior(self, x: Array, y: Array) -> tuple[float, float]:
        """Return mean and variance of theta given the records of one feature.

        Source: Heller and Fetaya 2023, Lemma IV.2.

        Parameters
        ----------
        x : numpy.ndarray, shape (n,)
            Feature of every record.
        y : numpy.ndarray, shape (n,)
            Label of every record.

        Returns
        -------
        tuple of float
            Mean and variance.
        """
        precision = self.prior_precision + self.noise_precision * float(x @ x)
        return self.noise_precision * float(x @ y) / precision, 1 / precision


@dataclass(frozen=True, kw_only=True)
class RatioDomain:
    """The data sets of n records with bounded x and a bounded ratio y/x.

    Every record has x_low <= x <= x_high and |y/x - ratio| <= spread.

    Parameters
    ----------
    n : int
        Number of records.
    ratio : float
        Centre of the ratios, positive.
    spread : float
        Largest distance of a ratio from the centre, at least 0.
    x_low : float, default 0.5
        Lower bound on x, positive.
    x_high : float, default 1.0
        Upper bound on x.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    All five are public numbers: choosing them by looking at the data voids every guarantee. Source:
    Heller and Fetaya 2023, equation 5.

    Examples
    --------
    >>> from lastiterate.bayes import RatioDomain
    >>> domain = RatioDomain(n=2, ratio=1.0, spread=0.5)
    >>> domain.check([0.5, 1.0], [0.5, 1.25])[1].tolist()
    [0.5, 1.25]
    """

    n: int = field(metadata=require(check_integer, "n"))
    ratio: float = field(metadata=require(positive, "ratio"))
    spread: float = field(metadata=require(positive, "spread", zero=True))
    x_low: float = field(default=0.5, metadata=require(positive, "x_low"))
    x_high: float = field(default=1.0, metadata=require(positive, "x_high"))

    def __post_init__(self) -> None:
        normalise_fields(self)
        if self.x_low > self.x_high:
            raise InputError("x_low", f"cannot exceed x_high = {self.x_high:g}", self.x_low)

    @classmethod
    def paper(
        cls, *, n: int, exponent: float, ratio: float, x_low: float = 0.5, x_high: float = 1.0
    ) -> RatioDomain:
        """Return the domain D(n, gamma_1, x_h, x_l, c) of the paper, with spread = n^exponent.

        The exponent lies strictly between 0 and 1/2.
        """
        if not 0 < exponent < 0.5:
            raise InputError("exponent", "must lie strictly between 0 and 1/2", exponent)
        return cls(n=n, ratio=ratio, spread=float(n) ** exponent, x_low=x_low, x_high=x_high)

    def check(self, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        """Return the records as arrays of shape (n,); refuse data outside the domain."""
        check_kept("data", (x, y))
        arrays = tuple(np.asarray(values, dtype=np.float64) for values in (x, y))
        if any(values.shape != (self.n,) for values in arrays):
            raise InputError(
                "data", f"must be x and y of shape ({self.n},)", [v.shape for v in arrays]
            )
        inside = (arrays[0] >= self.x_low) & (arrays[0] <= self.x_high)
        with np.errstate(invalid="ignore", over="ignore"):
            inside &= np.abs(arrays[1] - self.ratio * arrays[0]) <= self.spread * arrays[0]
        if not inside.all():
            raise InputError(
                "data",
                "hold a record outside the public domain, so nothing is sampled",
                None,
                "clip or drop such records by a public rule, or see propose_test_sample",
            )
        return arrays[0], arrays[1]


def lemma_bound(order: ArrayLike, model: LinearModel, domain: RatioDomain) -> Array:
    """Bound the Renyi divergence of neighbouring posteriors by the published lemma.

    With h = x_high^2 and kappa = (n - 1) x_low^2 it is
    (3/2) h / kappa + order beta h^2 / kappa (3 spread + ratio alpha / (alpha + beta kappa))^2.

    Parameters
    ----------
    order : array_like
        Renyi orders.
    model : LinearModel
        Precisions alpha of the prior and beta of the noise.
    domain : RatioDomain
        Public bounds of the records.

    Returns
    -------
    numpy.ndarray
        Bounds, shaped like ``order``; infinite where order > kappa / (2 h).

    See Also
    --------
    corner_bound : A sharper bound.

    Notes
    -----
    It holds where one record is replaced or removed. Source: Heller and Fetaya 2023, Lemma IV.3, as
    restored in docs/theorems/posterior-sample.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, RatioDomain, lemma_bound
    >>> domain = RatioDomain(n=1000, ratio=1.0, spread=0.1)
    >>> lemma_bound([2.0, 1e9], LinearModel(), domain).round(4).tolist()
    [0.0067, inf]
    """
    alpha, beta, (spread, ratio) = (
        model.prior_precision,
        model.noise_precision,
        _round_domain(domain),
    )
    high, kappa, orders = (
        domain.x_high**2,
        (domain.n - 1) * domain.x_low**2,
        np.asarray(order, dtype=np.float64),
    )
    if kappa == 0:
        return np.full(orders.shape, np.inf)
    mean = beta * high**2 / kappa * (3 * spread + ratio * alpha / (alpha + beta * kappa)) ** 2
    return np.where(
        2 * orders * high <= kappa, (1.5 * high / kappa + orders * mean) * SLACK, np.inf
    )


def corner_bound(
    order: ArrayLike, model: LinearModel, domain: RatioDomain, adjacency: Neighbours = "replace-one"
) -> Array:
    """Bound the Renyi divergence of neighbouring posteriors by the worst pair of the domain.

    With low = x_low^2 under "replace-one" and 0 under "zero-out", A = alpha + beta (n - 1) x_low^2
    + beta low, d = x_high^2 - low, t = beta d / A and g = max(ratio - spread, 0) it is log_part(t)
    + (order/2) beta^2 (2 spread x_high^2 + g alpha d / A)^2 / ((A + beta d) (1 - (order - 1) t)).

    Parameters
    ----------
    order : array_like
        Renyi orders.
    model : LinearModel
        Precisions alpha of the prior and beta of the noise.
    domain : RatioDomain
        Public bounds of the records.
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Relation of neighbouring data sets; a zeroed record counts as a removed one.

    Returns
    -------
    numpy.ndarray
        Bounds, shaped like ``order``. They are finite where max(order - 1, sqrt(order)) beta
        x_high^2 <= alpha + beta (n - 1) x_low^2 and (order - 1) t <= 0.999.

    See Also
    --------
    lemma_bound : The published bound.

    Notes
    -----
    It is exact where ratio >= spread: Theorem 2 of docs/theorems/posterior-sample.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, RatioDomain, corner_bound, lemma_bound
    >>> model, domain = LinearModel(), RatioDomain(n=1000, ratio=1.0, spread=0.1)
    >>> bool(corner_bound(2.0, model, domain) < lemma_bound(2.0, model, domain))
    True
    """
    alpha, beta, (spread, ratio) = (
        model.prior_precision,
        model.noise_precision,
        _round_domain(domain),
    )
    orders = np.asarray(order, dtype=np.float64)
    high, rest = domain.x_high**2, alpha + beta * (domain.n - 1) * domain.x_low**2
    low = domain.x_low**2 if records_moved(adjacency) == 2 else 0.0
    lighter, width = rest + beta * low, beta * (high - low)
    t = width / lighter
    gap = beta * 2 * spread * high + max(ratio - spread, 0.0) * alpha * t
    with np.errstate(all="ignore"):
        bound = log_part(orders, t) + orders / 2 * gap**2 / (
            (lighter + width) * (1 - (orders - 1) * t)
        )
    allowed = np.maximum(orders - 1, np.sqrt(orders)) * beta * high <= rest
    allowed &= (orders - 1) * t <= 0.999  # so that 1 - (order - 1) t is good to twelve digits
    # both logarithms of log_part are off by a few units in the last place of t
    return np.where(allowed, bound * SLACK + 1e-14 * t, np.inf)


def posterior_curve(
    model: LinearModel, domain: RatioDomain, adjacency: Neighbours = "replace-one"
) -> Rdp:
    """Return the Renyi curve of one posterior sample, for every data set in a domain.

    Parameters
    ----------
    model : LinearModel
        Precisions of the prior and of the noise.
    domain : RatioDomain
        Public bounds of the records.
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Relation of neighbouring data sets.

    Returns
    -------
    Rdp
        Curve at up to 200 orders.

    Raises
    ------
    InputError
        If n is too small for any order above 1.05.

    Notes
    -----
    **Guarantee:** an upper bound at every order. docs/theorems/posterior-sample has the proof.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, RatioDomain, posterior_curve
    >>> curve = posterior_curve(LinearModel(), RatioDomain(n=1000, ratio=1.0, spread=0.1))
    >>> curve.epsilon(1e-5) < 1
    True
    """
    high, rest = domain.x_high**2, (domain.n - 1) * domain.x_low**2
    least = model.prior_precision / model.noise_precision + rest
    if least < 1.05 * high:
        needed = 2 + math.floor(
            (1.05 * high - model.prior_precision / model.noise_precision) / domain.x_low**2
        )
        raise InputError(
            "n",
            f"is too small for the lemma, which needs at least {needed} records here",
            domain.n,
            "use more records or a larger prior_precision",
        )
    orders = 1 + np.geomspace(0.01, min(least / high, MOST_ORDER), 200)
    values = corner_bound(orders, model, domain, adjacency)
    if records_moved(adjacency) == 2:
        values = np.minimum(values, lemma_bound(orders, model, domain))
    kept = np.isfinite(values)
    return Rdp(orders=tuple(map(float, orders[kept])), values=tuple(map(float, values[kept])))


def _round_domain(domain: RatioDomain) -> tuple[float, float]:
    """Spread and ratio, the spread widened by what ``check`` may misjudge in double precision."""
    return domain.spread * SLACK + 1e-15 * domain.ratio, domain.ratio


# Bayesian ridge regression on clipped records: its posterior, and what one sample of it leaks.
#
# theta ~ N(0, I/alpha), y = x . theta + N(0, 1/beta): the posterior is N(beta A^-1 X'y, A^-1), A =
# alpha I + beta X'X. Rows are scaled down to |x| <= row_norm and labels clamped to |y| <= label_bound
# first. Proof: docs/theorems/ridge-posterior.md.


@dataclass(frozen=True, kw_only=True)
class ClippedRows(Checked):
    """The data sets of n records whose features and labels have public bounds.

    Parameters
    ----------
    n : int
        Number of records.
    features : int
        Number of features, at most 1e6.
    row_norm : float, default 1.0
        Bound on the Euclidean norm of a row.
    label_bound : float, default 1.0
        Bound on the absolute value of a label.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> from lastiterate.bayes import ClippedRows
    >>> rows, labels = ClippedRows(n=1, features=2).clip([[3.0, 4.0]], [2.0])
    >>> rows.round(3).tolist(), labels.tolist()
    ([[0.6, 0.8]], [1.0])
    """

    n: int = field(metadata=require(check_integer, "n"))
    features: int = field(metadata=require(check_integer, "features", most=10**6))
    row_norm: float = field(default=1.0, metadata=require(positive, "row_norm"))
    label_bound: float = field(default=1.0, metadata=require(positive, "label_bound"))

    def clip(self, rows: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
        """Clip every record into the domain by itself.

        Parameters
        ----------
        rows : array_like, shape (n, features)
            Rows.
        labels : array_like, shape (n,)
            Labels.

        Returns
        -------
        tuple of numpy.ndarray
            Clipped rows and labels.

        Raises
        ------
        InputError
            If a shape is another one, or a number is not finite.
        """
        check_kept("data", (rows, labels))
        x, y = np.array(rows, dtype=np.float64), np.array(labels, dtype=np.float64)
        if x.shape != (self.n, self.features) or y.shape != (self.n,):
            raise InputError(
                "data",
                f"must be rows of shape ({self.n}, {self.features}) and {self.n} labels",
                (x.shape, y.shape),
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise InputError(
                "data",
                "must be finite numbers, so nothing is sampled",
                None,
                "fill in missing values",
            )
        top = np.abs(x).max(axis=1, initial=0.0, keepdims=True)
        scaled = x / np.where(top > 0, top, 1.0)  # squares neither overflow nor vanish
        inner = np.linalg.norm(scaled, axis=1, keepdims=True)  # at least 1, or 0 for a row of zeros
        with np.errstate(over="ignore"):  # nobody may learn from a warning that a record is large
            x = np.where(
                top * inner > self.row_norm, scaled / np.maximum(inner, 1.0) * self.row_norm, x
            )
        return x, np.clip(y, -self.label_bound, self.label_bound)


def posterior(model: LinearModel, rows: Array, labels: Array) -> tuple[Array, Array]:
    """Return the mean (d,) and the precision matrix (d, d) of theta given rows and labels."""
    precision = model.noise_precision * rows.T @ rows
    precision[np.diag_indices_from(precision)] += model.prior_precision
    mean = np.linalg.solve(precision, model.noise_precision * rows.T @ labels)
    return np.asarray(mean, dtype=np.float64), precision


def ridge_bound(order: ArrayLike, model: LinearModel, domain: ClippedRows) -> Array:
    """Bound the Renyi divergence between posteriors of replace-one neighbours from above.

    With H = beta row_norm^2 / alpha (the largest leverage beyond the prior), T = (n - 1) H, for
    (order - 1) H < 1, else infinite:

      [order log(1 + H) - log(1 + order H)] / (2 (order - 1)) + log_part(H)
      + (order/2) (1 + H) / (1 - (order - 1) H) beta label_bound^2 (2 f + sqrt(H T) sqrt(T / (1 +
        T)) / (1 + H))^2,

    f the maximum of sqrt(a) / (1 + a) over a <= H. The second term of the square is how far the
    other records' labels can move the mean: the prior's precision has to grow with n. Zero-out is
    the special case of a record (0, 0).
    """
    orders, clipped = np.asarray(order, dtype=np.float64), SLACK
    beta = model.noise_precision
    leverage = beta * (domain.row_norm * clipped) ** 2 / model.prior_precision
    total = (domain.n - 1) * leverage
    a = min(leverage, 1.0)
    gap = 2 * math.sqrt(a) / (1 + a) + total * math.sqrt(leverage / (1 + total)) / (1 + leverage)
    left = 1 - (orders - 1) * leverage
    with np.errstate(all="ignore"):
        added = (orders * math.log1p(leverage) - np.log1p(orders * leverage)) / (2 * (orders - 1))
        logs = added + log_part(orders, leverage) + 1e-14 * leverage * (1 + orders / (orders - 1))
        mean = orders / 2 * (1 + leverage) / left * beta * (domain.label_bound * clipped * gap) ** 2
        # 1 - (order - 1) H is off by 2^-51, which its size is compared with
        return np.where(left > 1e-3, (logs + mean) * SLACK, np.inf)


def ridge_curve(model: LinearModel, domain: ClippedRows) -> Rdp:
    """Return the Renyi curve of one posterior sample of clipped records.

    **Guarantee:** an upper bound at every order, under replace-one and zero-out; nothing is claimed
    beyond order 1 + 1/H.
    """
    leverage = model.noise_precision * domain.row_norm**2 / model.prior_precision
    most = min(1 / leverage, MOST_ORDER)
    orders = 1 + np.geomspace(min(0.01, most / 100), 0.995 * most, 200)
    values = ridge_bound(orders, model, domain)
    kept = np.isfinite(values) & (orders > 1)
    return Rdp(orders=tuple(map(float, orders[kept])), values=tuple(map(float, values[kept])))


def least_prior(
    domain: ClippedRows, *, epsilon: float, delta: float, noise_precision: float = 1.0
) -> LinearModel:
    """Find the weakest prior whose posterior sample keeps a budget.

    It reads public numbers only. Every term of the bound falls as the precision of the prior grows.

    Parameters
    ----------
    domain : ClippedRows
        Public bounds of the records.
    epsilon : float
        Budget, in natural logarithms.
    delta : float
        Budget, within (0, 1).
    noise_precision : float, default 1.0
        Precision (1/variance) of the noise of a label.

    Returns
    -------
    LinearModel
        Model with the least precision of the prior, to a factor of 1 + 1e-6.

    Raises
    ------
    InputError
        If no sensible precision keeps the budget.

    Notes
    -----
    docs/theorems/ridge-posterior has the bound and its proof.

    Examples
    --------
    >>> from lastiterate.bayes import ClippedRows, least_prior
    >>> domain = ClippedRows(n=5000, features=3)
    >>> round(least_prior(domain, epsilon=1.0, delta=1e-6, noise_precision=0.1).prior_precision, 2)
    14.44
    """
    if not 0 < epsilon < math.inf:
        raise InputError(
            "epsilon", "must be a positive finite number", epsilon, "1 is a common choice"
        )

    def within(log_prior: float) -> LinearModel | None:
        model = LinearModel(prior_precision=math.exp(log_prior), noise_precision=noise_precision)
        return model if ridge_curve(model, domain).epsilon(delta) <= epsilon else None

    scale = math.log(noise_precision) + 2 * math.log(domain.row_norm)
    low, high = scale - 7.0, min(scale + 7.0, 60.0)
    least = within(high)
    while least is None:
        if high >= 60:
            raise InputError(
                "epsilon",
                "cannot be reached by a prior of any sensible precision",
                epsilon,
                "raise epsilon, or lower noise_precision",
            )
        low, high = high, min(high + 7, 60.0)
        least = within(high)
    while high - low > 1e-6:
        middle = (low + high) / 2
        better = within(middle)
        low, high = (middle, high) if better is None else (low, middle)
        least = better or least
    return least
