"""DP-SVRG after Wang, Ye and Xu 2017: epochs of one noisy full gradient and of noisy steps on gradient differences.

Their paper is not at hand: constants, noise and analysis are not published here; those below are ours, with a proof in
docs/theorems/variance-reduction. All intermediate parameters are charged for, so that steps may depend on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from lastiterate.curves.pld import Pld
from lastiterate.errors import InputError, NotCertified
from lastiterate.run.batching import Poisson
from lastiterate.run.losses import LinearLoss

NUMBERS = ("epochs", "inner", "step", "lipschitz", "smooth", "full", "part")
"""Arguments of a compiled program; all else is what it is compiled for."""


@dataclass(frozen=True)
class VarianceReduced:
    """A described run on a linear loss with rows of norm at most its ``row_norm``, without intercept.

    Every one of ``epochs`` epochs begins at a snapshot s with the mean gradient of all n records there, plus noise of
    ``full`` L / n per coordinate, L = ``lipschitz``. Each of its ``inner`` steps of size ``step`` from w adds the mean
    over a Poisson batch of ``rate`` of gradient differences between w and s, clipped to c = min(2 L, ``smooth``
    |w - s|), with noise of ``part`` c / (rate n), and the ridge's gradient.
    """

    loss: LinearLoss
    n: int
    rate: float
    epochs: int
    inner: int
    step: float
    lipschitz: float
    smooth: float
    full: float
    part: float

    def __post_init__(self) -> None:
        if self.inner < 2:
            raise InputError("inner", "must be a whole number >= 2: the first step of an epoch reads no record",
                             self.inner)
        for name in ("n", "epochs", "step", "lipschitz", "smooth", "full", "part"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise InputError(name, "must be a positive number", getattr(self, name))
        if not 0 < self.rate < 1:
            raise InputError("rate", "must lie within 0 .. 1", self.rate)

    @property
    def evaluations(self) -> float:
        """Gradients of records: n for every snapshot, two for every record of a batch."""
        return self.epochs * (self.n + 2 * self.inner * self.rate * self.n)

    def curve(self) -> Pld:
        """What all parameters leak together, zero-out or add-remove: ``epochs`` Gaussian mechanisms of multiplier
        ``full`` and ``epochs`` (``inner`` - 1) sampled ones of multiplier ``part``.

        **Guarantee:** an upper bound for the run as ``train`` executes it (docs/theorems/variance-reduction). The first
        step of an epoch is at its snapshot, where every difference is 0: it reads no record.
        """
        mu = math.sqrt(self.epochs) / self.full * (1 + 1e-9)
        return Pld(self.rate, (self.part,), (self.epochs * (self.inner - 1),), mu)

    def scaled(self, factor: float) -> VarianceReduced:
        """All noise multiplied."""
        return replace(self, full=self.full * factor, part=self.part * factor)

    def calibrated(self, epsilon: float, delta: float) -> VarianceReduced:
        """The least noise, in the proportion described, whose curve has ``delta`` at ``epsilon`` (to 1e-3)."""
        def allowed(factor: float) -> bool:
            return self.scaled(factor).curve().delta(epsilon) <= delta

        low, high = 1.0, 1.0
        for _ in range(60):
            if allowed(high):
                break
            low, high = high, 2 * high
        else:
            raise NotCertified("no noise up to 2^60 times that described reaches the budget")
        while allowed(low) and low > 2**-60:
            low, high = low / 2, low
        while high / low > 1.001:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if allowed(middle) else (middle, high)
        return self.scaled(high)

    def train(self, x: np.ndarray, y: np.ndarray, keys: Any) -> np.ndarray:
        """Weights (models, k, d) of one execution per key, from 0, on rows (n, d) and labels (n,).

        **Guarantee:** exactly the run that ``curve`` speaks of, in float64: gradients and differences are scaled to
        their clips by their own computed norms, and nothing else leaves.
        """
        import jax

        if len(x) != self.n:
            raise InputError("x", f"must have the described n = {self.n} rows", np.shape(x))
        with jax.enable_x64(True):
            numbers = {name: getattr(self, name) for name in NUMBERS}
            fitted = _compiled(self.loss, self.n, self.rate)
            return np.asarray(fitted(numbers, np.asarray(x, np.float64), np.asarray(y), np.asarray(keys)))


@lru_cache(maxsize=8)
def _compiled(loss: LinearLoss, n: int, rate: float) -> Any:
    """One program for all runs that differ in ``NUMBERS`` only, for many keys."""
    import jax

    def one(numbers: dict[str, Any], x: Any, y: Any, key: Any) -> Any:
        return _fitted(SimpleNamespace(loss=loss, n=n, rate=rate, **numbers), x, y, key)

    return jax.jit(jax.vmap(one, in_axes=(None, None, None, 0)))


def _fitted(this: Any, x: Any, y: Any, key: Any) -> Any:
    """Weights (k, d) after all epochs."""
    import jax
    import jax.numpy as jnp

    from lastiterate.engine.gradients import clip_residuals, outputs, residuals
    from lastiterate.engine.noise import NOISE, ORDER, gaussian, stream
    from lastiterate.engine.samplers import sampler_of

    sampler, data = sampler_of(Poisson(this.rate), this.n, 1024), (x, y)
    noise, order = stream(key, NOISE), stream(key, ORDER)
    shape, batch = (outputs(this.loss), x.shape[1]), this.rate * this.n

    def epoch(number: Any, snapshot: Any) -> Any:
        first = number * (this.inner + 1)
        found = clip_residuals(data[0], residuals(this.loss, snapshot @ data[0].T, data[1]), this.lipschitz)
        unit = this.full * this.lipschitz / this.n
        mean = found @ data[0] / this.n + unit * gaussian(noise, first, shape)

        def one(k: Any, now: Any) -> Any:
            longest: Any = jnp.minimum(2 * this.lipschitz, this.smooth * jnp.sqrt(((now - snapshot) ** 2).sum()))

            def read(chunk: Any) -> Any:
                rows, labels = chunk
                moved = residuals(this.loss, now @ rows.T, labels) - residuals(this.loss, snapshot @ rows.T, labels)
                return clip_residuals(rows, moved, longest) @ rows

            total = sampler.batch_sum(read, data, order, number * this.inner + k)
            drawn = this.part * longest * gaussian(noise, first + 1 + k, shape)
            return now - this.step * (mean + (total + drawn) / batch + this.loss.ridge * now)

        return jax.lax.fori_loop(0, this.inner, one, snapshot)

    return jax.lax.fori_loop(0, this.epochs, epoch, jnp.zeros(shape))
