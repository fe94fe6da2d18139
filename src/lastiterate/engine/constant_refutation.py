"""Look for records and parameters that refute a claimed constant of a loss.

A constant of a ``Run`` speaks of every data set, hence of a data set of copies of one record: one
record's gradients at two points refute it, or nothing does. The search starts at random pairs of
points at all distances, and climbs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.parameters import Form
from lastiterate.engine.record_loss import RecordLoss, check_loss
from lastiterate.engine.trainer import check_process
from lastiterate.errors import InputError
from lastiterate.run.facts import Evidence, Fact, LossFacts, downgrade_facts, mint

CLAIMS = ("lipschitz", "smooth", "strong", "weak_convexity")
"""Constants that are searched; others are statements about distributions or neighbours, not about
gradients at points."""
BEYOND = 1e-6
"""Relative excess that counts as a violation: far above the rounding of gradients in double
precision."""


@dataclass(frozen=True, eq=False)
class Witness:
    """A record and points whose gradients violate a claim; ``needed`` is the constant that they
    would need."""

    claim: str
    claimed: float
    needed: float
    record: int
    first: object
    second: object

    def __str__(self) -> str:
        return (
            f"{self.claim} = {self.claimed:g} does not hold: the gradients of record {self.record} "
            f"at two points "
            f"need {self.needed:.6g}"
        )


@dataclass(frozen=True, eq=False)
class Search:
    """The result of a search: facts that survived, as ``TESTED``, and a witness for each claim that
    did not."""

    facts: LossFacts
    witnesses: tuple[Witness, ...]
    tried: str


def falsify(
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    claims: LossFacts,
    *,
    radius: float = 1.0,
    pairs: int = 512,
    climbs: int = 100,
    seed: int = 0,
) -> Search:
    """Search for points that violate stated constants of a loss.

    Parameters
    ----------
    loss : callable
        ``loss(params, *record)`` of one record, written with JAX.
    params : nested arrays
        Centre of the search.
    data : tuple of array_like
        Public or synthetic records along the first axis. A constant that was checked on private
        ones would reveal something about them.
    claims : LossFacts
        Constants to check: ``lipschitz``, ``smooth``, ``strong`` or ``weak_convexity``.
    radius : float, default 1.0
        Extent of the search: distance over the square root of the number of parameters.
    pairs : int, default 512
        Number of random pairs of points.
    climbs : int, default 100
        Number of steps that every pair climbs.
    seed : int, default 0
        Seed of the search.

    Returns
    -------
    Search
        ``facts``, the constants that survived, as ``TESTED``; ``witnesses``, a record and two
        points for every other one; ``tried``, the extent in words.

    Raises
    ------
    InputError
        If no such constant is stated, or a value is out of range.

    Notes
    -----
    **Guarantee:** a witness is a disproof, up to rounding. No witness is no proof, and is called
    ``TESTED``. Constants that are not searched for stay the caller's word.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> def loss(theta, x, y):
    ...     return (theta @ x - y) ** 2 / 2
    >>> data = np.ones((4, 2)), np.zeros(4)
    >>> claims = li.LossFacts(smooth=1.0)
    >>> found = li.audit.falsify(loss, np.zeros(2), data, claims, pairs=8, climbs=4)
    >>> [witness.claim for witness in found.witnesses]
    ['smooth']
    """
    if not 0 < radius < math.inf or pairs < 1 or climbs < 0:
        raise InputError(
            "radius",
            "must be positive, pairs at least 1, climbs at least 0",
            (radius, pairs, climbs),
        )
    stated = {name: claims.fact(name) for name in CLAIMS if getattr(claims, name) is not None}
    if not stated:
        raise InputError("claims", "must state one of " + ", ".join(CLAIMS), None)
    check_process()
    with jax.enable_x64(True):
        form = Form.of(params)
        check_loss(loss, form, True, data)
        problem = _Problem(
            loss,
            form,
            data,
            form.vector(params),
            radius,
            claims.fact("weak_convexity") > claims.fact("smooth", math.inf),
        )
        by_claim = {
            name: _climb(problem, name, value, pairs, climbs, seed)
            for name, value in stated.items()
        }
    witnesses = tuple(one for one, _ in by_claim.values() if one is not None)
    count = len(jax.tree.leaves(data)[0])
    tried = (
        f"{pairs} random pairs of points within {radius:g} on {count} public records, each "
        f"climbing {climbs} "
        f"steps (seed {seed})"
    )
    stated_again = downgrade_facts(claims)
    kept: dict[str, Fact | None] = {}
    for name, (witness, worst) in by_claim.items():
        fact = getattr(stated_again, name)
        assert isinstance(fact, Fact)
        why = f"{fact.why}; survived {tried}: the worst pair needs {worst:.4g}"
        kept[name] = None if witness else mint(fact.value, Evidence.TESTED, why)
    if problem.one_sided and kept["weak_convexity"] is None:
        kept["smooth"] = (
            None  # by itself it would bound the Hessian from below as well, which was not looked at
        )
    return Search(replace(stated_again, **kept), witnesses, tried)


@dataclass(frozen=True, eq=False)
class _Problem:
    loss: RecordLoss
    form: Form
    data: tuple[Any, ...]
    centre: jax.Array
    radius: float
    #: whether smooth bounds the Hessian from above only, the claimed weak convexity being larger
    one_sided: bool

    def gradient(self, theta: jax.Array, record: tuple[Any, ...]) -> jax.Array:
        def value(vector: jax.Array) -> jax.Array:
            return self.loss(self.form.whole(self.form.arrays(vector, exact=True)), *record)

        return jax.grad(value)(theta)

    def constant_for(self, claim: str, points: jax.Array, record: tuple[Any, ...]) -> jax.Array:
        """The constant that the gradients at two points need, as something to be made large; points
        (2, p)."""
        one = self.gradient(points[0], record)
        if claim == "lipschitz":
            return jnp.linalg.norm(one)
        moved = points[1] - points[0]
        turned = self.gradient(points[1], record) - one
        if claim == "smooth" and not self.one_sided:
            return jnp.linalg.norm(turned) / jnp.linalg.norm(moved)
        bend = (turned @ moved) / (moved @ moved)
        return bend if claim == "smooth" else -bend


def _climb(
    problem: _Problem, claim: str, claimed: float, pairs: int, climbs: int, seed: int
) -> tuple[Witness | None, float]:
    """The worst pair, and a witness if it is beyond the claim; also the constant that it needs."""
    rng = np.random.default_rng(seed)
    size, count = problem.form.size, len(jax.tree.leaves(problem.data)[0])
    spread = problem.radius * np.exp(rng.uniform(-3, 0, (pairs, 1)))
    first = np.asarray(problem.centre) + spread * rng.normal(size=(pairs, size))
    away = rng.normal(size=(pairs, size))
    away *= (
        problem.radius
        * np.exp(rng.uniform(-5, 0.7, (pairs, 1)))
        * math.sqrt(size)
        / np.linalg.norm(away, axis=1, keepdims=True)
    )
    which = rng.integers(0, count, pairs)
    records = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[which]), problem.data)
    points = jnp.asarray(np.stack((first, first + away), axis=1))
    best, values = _ascend(
        lambda p, r: problem.constant_for(claim, p, r),
        climbs,
        problem.radius,
        points,
        records,
        seed,
    )
    values = np.where(np.isfinite(values), values, -np.inf)
    at = int(values.argmax())
    # "strong" is the least curvature: the search made its negative large
    needed = -float(values[at]) if claim == "strong" else float(values[at])
    bad = (
        needed < claimed - BEYOND * max(claimed, 1e-12)
        if claim == "strong"
        else needed > claimed + BEYOND * max(claimed, 1e-9)
    )
    if not bad:
        return None, needed
    one, two = (
        problem.form.whole(problem.form.arrays(np.asarray(best[at, i]), exact=True)) for i in (0, 1)
    )
    return Witness(claim, claimed, needed, int(which[at]), one, two), needed


def _ascend(
    value: Callable[[Any, Any], jax.Array],
    climbs: int,
    radius: float,
    points: jax.Array,
    records: object,
    seed: int,
) -> tuple[jax.Array, np.ndarray]:
    """The best points of paths, each by normalised, shrinking steps, in a random direction of its
    own where there is no slope."""

    def path(
        begin: jax.Array, record: object, random: jax.Array, radius: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def step(state: tuple[jax.Array, jax.Array, jax.Array], k: jax.Array) -> Any:
            at, best, top = state
            now, slope = jax.value_and_grad(value)(at, record)
            better = now > top
            best, top = jnp.where(better, at, best), jnp.where(better, now, top)
            slope = jnp.where(jnp.isfinite(slope), slope, 0.0)
            norm = jnp.linalg.norm(slope)
            way = jnp.where(norm > 0, slope / jnp.maximum(norm, 1e-300), random)
            length = (
                0.3 * radius * jnp.linalg.norm(at[1] - at[0]) / (1 + jnp.linalg.norm(at[1] - at[0]))
            )
            return (best + length * 0.97**k * way, best, top), None

        top = value(begin, record)
        (last, best, top), _ = jax.lax.scan(step, (begin, begin, top), jnp.arange(climbs))
        final = value(last, record)
        return jnp.where(final > top, last, best), jnp.maximum(final, top)

    # directions and radius are arguments: programs that are kept serve every seed and extent
    random = np.random.default_rng((seed, 1)).normal(size=points.shape)
    random /= np.linalg.norm(random, axis=(1, 2), keepdims=True)
    peaks, values = jax.jit(jax.vmap(path, (0, 0, 0, None)))(points, records, random, radius)
    return peaks, np.asarray(values)
