"""How large iterates can become, by public numbers: runs that could overflow are refused before they start."""

from __future__ import annotations

import math

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import FARTHEST
from lastiterate.errors import InputError
from lastiterate.run.domains import Everywhere
from lastiterate.run.run import Run
from lastiterate.run.starts import GaussianStart

LARGEST = 1e290
"""Norm of iterates whose scores, at rows of the longest norm that is executed, stay inside of double precision."""
_REMEDY = "stay below 2/smooth, or add a ridge or a domain; nothing was released"


class Diverged(InputError):
    """A run whose released iterates are not finite; only its execution shows it."""


def check_growth(run: Run, initial: np.ndarray | jax.Array, ridge: float) -> None:
    """Refuse a run whose hidden iterates could overflow; looks at public numbers only.

    With |theta'| <= |1 - step ridge| |theta| + step (L batch / b + noise), projections and proximal maps no further
    from 0. Where every iterate counts as released (momentum, snapshots, release="all") an overflow may be shown when it
    happens.

    **Guarantee:** where the loss has the Lipschitz constant that the run states, no iterate overflows, so that whether
    the last one is released says nothing about the hidden ones.
    """
    lipschitz = run.facts().fact("lipschitz", math.inf)
    charged = run.release == "all" or run.update is not None or run.method.charges_way
    if charged or not isinstance(run.domain, Everywhere) or math.isinf(lipschitz):
        return
    size, first = np.size(initial), math.sqrt(np.size(initial)) * float(np.abs(initial).max())
    reach = FARTHEST * math.sqrt(size)  # no draw of noise is longer
    if isinstance(run.start, GaussianStart):
        first += run.start.std * reach
    reach *= run.decided_noise.reach(run.steps)
    steps, stds = run.step_sizes, run.noise_stds
    moved = steps * (run.shares[1] * lipschitz + stds * reach)
    growth = np.log(np.maximum(1.0, np.abs(1 - steps * ridge)))
    if math.log(first + float(moved.sum()) + 1.0) + float(growth.sum()) > math.log(LARGEST):
        raise InputError("step_size", "makes the run diverge: iterates could overflow", None, _REMEDY)


def check_released(released: np.ndarray) -> None:
    """Refuse to release what is not finite: with momentum or release="all" a function of what counts as released."""
    if not np.isfinite(released).all():
        raise Diverged("step_size", "makes the run diverge: an iterate is not finite", None, _REMEDY)
