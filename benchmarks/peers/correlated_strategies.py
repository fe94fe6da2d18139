"""Noise on the sum of all steps by strategies of this library and of jax-privacy, for mu = 1 and
contributions of 1.

python -m benchmarks.peers.correlated_strategies [BLOCKSxPASSES ...]

Needs jax-privacy 2.0 beside this library for its rows, and says so where it is missing. In brackets
the root mean square over all partial sums. The sensitivity of every strategy is found in the same
way, from its first column.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import lastiterate as li
from benchmarks.peers.strategy_noise import at_the_end, on_the_way, seasonal
from lastiterate.planning.task import POWERS

DECAYS = 1 - np.geomspace(0.3, 0.01, 60)


def shown(noise: li.Correlated, blocks: int, passes: int) -> str:
    """Both figures of a strategy."""
    steps = blocks * passes
    return (
        f"{at_the_end(noise, blocks, np.ones(steps)):.2f} ({on_the_way(noise, blocks, steps):.2f})"
    )


def stated(column: np.ndarray) -> li.Correlated:
    """A strategy of another library by its first column, which its optimiser leaves at 0 or a
    rounding below."""
    return li.Correlated(1.0, tuple((np.maximum(column, 0) / column[0]).tolist()))


def ours(blocks: int, passes: int) -> Iterator[tuple[str, str]]:
    """Independent noise, the square root, the best power, one array kept, the best two powers, free
    numbers."""
    ones = np.ones(blocks * passes)
    powers = [li.Correlated(1.0, blocks, power) for power in POWERS]
    decays = [li.Correlated(1.0, 1, decay=float(decay)) for decay in DECAYS]
    best, one = (
        min(many, key=lambda noise: at_the_end(noise, blocks, ones)) for many in (powers, decays)
    )
    for name, noise in (
        ("independent", li.Correlated(1.0, 1)),
        ("square root, band l", li.Correlated(1.0, blocks)),
        ("square root, band 2l", li.Correlated(1.0, 2 * blocks)),
        (f"power {best.power:g}, band l", best),
        (f"lambda-CGD, decay {one.decay:.3g}", one),
        best_seasonal(blocks, passes, 2),
        best_seasonal(blocks, passes, 3),
        ("free numbers, as long as the run", free(blocks, passes)),
    ):
        yield name, shown(noise, blocks, passes)


def best_seasonal(blocks: int, passes: int, long: int) -> tuple[str, li.Correlated]:
    """Two powers, one of a pass's length (see ``seasonal``), that fit the sum of all steps; of
    ``long`` passes."""
    ones = np.ones(blocks * passes)
    found = minimize(
        lambda two: at_the_end(seasonal(*two, blocks, long), blocks, ones),
        (0.55, 0.3),
        method="Nelder-Mead",
        bounds=((0.3, 0.9), (0.0, 0.9)),
        options={"xatol": 1e-3, "fatol": 1e-4},
    )
    power, season = (round(float(one), 2) for one in found.x)
    return f"powers {power:g} and, of a pass, {season:g}, band {long}l", seasonal(
        power, season, blocks, long
    )


def free(blocks: int, passes: int) -> li.Correlated:
    """A band as long as the run with any numbers, fitted to the sum of all steps from the square
    root: a local optimum, which says how far every shorter band is from what noise of this kind can
    do."""
    steps = blocks * passes
    behind = np.subtract.outer(np.arange(steps), np.arange(steps))

    @jax.value_and_grad
    def noise(rest: jax.Array) -> jax.Array:
        c = jnp.where(behind >= 0, jnp.concatenate((jnp.ones(1), rest))[np.maximum(behind, 0)], 0.0)
        left = jax.scipy.linalg.solve_triangular(c.T, jnp.ones(steps), lower=False)
        columns = c[:, ::blocks]  # of a record in the first block
        return jnp.log(jnp.abs(columns.T @ columns).sum()) / 2 + jnp.log(jnp.linalg.norm(left))

    found = minimize(
        jax.jit(noise), li.Correlated(1.0, steps).entries[1:], jac=True, method="L-BFGS-B"
    )
    return li.Correlated(1.0, (1.0, *found.x.tolist()))


def theirs(blocks: int, passes: int) -> Iterator[tuple[str, str]]:
    """Free bands as long as a pass, optimised for the last, the mean and the largest partial sum;
    BLT."""
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz  # pyright: ignore

    steps = blocks * passes
    for name, reduction in (
        ("last", lambda errors: errors[-1]),
        ("mean", jnp.mean),
        ("max", jnp.max),
    ):
        band = toeplitz.optimize_banded_toeplitz(steps, blocks, reduction_fn=reduction)
        yield f"jax-privacy, band l, {name}", shown(stated(np.asarray(band)), blocks, passes)
    for error in ("max", "mean"):
        blt = buffered_toeplitz.optimize(
            n=steps, min_sep=blocks, max_participations=passes, error=error, max_buffers=4
        )
        yield (
            f"jax-privacy, BLT, {error}",
            shown(stated(np.asarray(blt.toeplitz_coefs(steps))), blocks, passes),
        )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for shape in sys.argv[1:] or ("20x20", "100x3"):
        blocks, passes = map(int, shape.split("x"))
        print(f"{blocks} blocks, {passes} passes; one release of the sum: {passes}")
        for name, found in ours(blocks, passes):
            print(f"  {name}: {found}", flush=True)
        try:
            for name, found in theirs(blocks, passes):
                print(f"  {name}: {found}", flush=True)
        except ImportError:
            print("  jax-privacy is not installed")


if __name__ == "__main__":
    main()
