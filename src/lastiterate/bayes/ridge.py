"""Bayesian ridge regression on clipped records: its posterior, and what one sample of it leaks.

theta ~ N(0, I/alpha), y = x . theta + N(0, 1/beta): the posterior is N(beta A^-1 X'y, A^-1), A =
alpha I + beta X'X. Rows are scaled down to |x| <= row_norm and labels clamped to |y| <= label_bound
first. Proof: docs/theorems/ridge-posterior.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.bayes.linear import MOST_ORDER, SLACK, LinearModel, log_part
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.run.serialization import Checked, require
from lastiterate.run.validation import Array, check_integer, check_kept, positive


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
