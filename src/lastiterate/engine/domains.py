"""Euclidean projections onto the domains of a run."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lastiterate.schedules import Ball, Box, Domain, Everywhere


def project(domain: Domain, theta: jax.Array) -> jax.Array:
    """The closest point of the domain."""
    match domain:
        case Everywhere():
            return theta
        case Ball(radius):
            # just inside, so that rounding cannot leave the ball
            return theta * jnp.minimum(1.0, radius * (1 - 2.0**-45) / jnp.maximum(jnp.linalg.norm(theta), 1e-300))
        case Box(low, high):
            return jnp.clip(theta, low, high)
