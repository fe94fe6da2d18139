"""How a step ends: the proximal map of a run, then the Euclidean projection onto its domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import Real
from lastiterate.errors import InputError
from lastiterate.run.domains import AffineBall, Ball, Box, Domain, Everywhere, Simplex
from lastiterate.run.penalties import L1, ElasticNet, GroupLasso, L2Squared, NuclearNorm, Prox

INSIDE = 1 - 2.0**-45
"""Radii are shrunk by this factor, so that rounding cannot leave the domain."""


def project(domain: Domain | Disc, theta: jax.Array) -> jax.Array:
    """The closest point of the domain (as executed); ``theta`` of any shape, its entries are the coordinates."""
    match domain:
        case Everywhere():
            return theta
        case Ball(radius):
            return onto_ball(radius, theta)
        case Box(low, high):
            return jnp.clip(theta, low, high)
        case Simplex(total):
            return onto_simplex(theta.ravel(), total).reshape(theta.shape)
        case Disc():
            return onto_disc(domain, theta.ravel()).reshape(theta.shape)
        case _:
            raise InputError("domain", "has no projection that executes it", type(domain).__name__)


def onto_simplex(theta: jax.Array, total: float) -> jax.Array:
    """max(theta - shift, 0), with the shift that makes the sum ``total`` (Held, Wolfe, Crowder 1974)."""
    ordered = jnp.sort(theta)[::-1]
    shifts = (jnp.cumsum(ordered) - total) / jnp.arange(1, theta.size + 1)
    return jnp.maximum(theta - shifts[jnp.sum(ordered > shifts) - 1], 0.0)


@dataclass(frozen=True)
class Disc:
    """An affine ball as it is executed: the ball of ``radius`` around ``centre`` in the affine set through it.

    ``normals``: orthonormal; with those that are given, nearly parallel ones would make the computed map expand.
    """

    normals: np.ndarray
    centre: np.ndarray
    radius: float


def executed(domain: Domain) -> Domain | Disc:
    """The domain as it is executed."""
    if type(domain) is not AffineBall:
        return domain
    centre, radius = domain.centre()
    return Disc(np.linalg.svd(np.array(domain.normals), full_matrices=False)[2], np.array(centre), radius)


def onto_disc(disc: Disc, theta: jax.Array) -> Any:
    """The ball's part of an affine set is a ball in it: project onto the set, then towards that ball's centre."""
    moved = theta - disc.centre
    moved = moved - disc.normals.T @ (disc.normals @ moved)
    return disc.centre + onto_ball(disc.radius, moved)


def onto_ball(radius: Real, theta: jax.Array) -> jax.Array:
    return theta * jnp.minimum(1.0, radius * INSIDE / jnp.maximum(jnp.linalg.norm(theta), 1e-300))


def proximal(prox: Prox | None, step: Real, array: jax.Array) -> jax.Array:
    """argmin_u step h(u) + |u - array|^2 / 2."""
    match prox:
        case None:
            return array
        case L1(weight):
            return soft(array, step * weight)
        case L2Squared(weight):
            return array / (1 + step * weight)
        case ElasticNet(l1, l2):
            return soft(array, step * l1) / (1 + step * l2)
        case GroupLasso(weight, axis):
            if array.ndim <= axis:
                return soft(array, step * weight)  # without such an axis every entry is a group of its own
            norms = jnp.sqrt((array**2).sum(axis, keepdims=True))
            return array * jnp.maximum(0.0, 1 - step * weight / jnp.maximum(norms, 1e-300))
        case NuclearNorm(weight):
            if array.ndim != 2:
                return array
            left, values, right = jnp.linalg.svd(array, full_matrices=False)
            return (left * soft(values, step * weight)) @ right


def soft(values: jax.Array, threshold: Real) -> jax.Array:
    """Every entry moved towards 0 by ``threshold``, and no further than 0."""
    return jnp.sign(values) * jnp.maximum(jnp.abs(values) - threshold, 0.0)
