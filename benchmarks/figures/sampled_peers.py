"""Epsilons of sampled batches beside dp-accounting's, on drawn parameters.

python -m benchmarks.figures.sampled_peers [--count 200] [--seed 7]   (half an hour, one core)

Records 1e3 to 1e9, rates from one record to a half, noise multipliers .5 to 20, up to 1e5 steps,
delta 1e-5 to 1e-12, all log-uniform. Poisson batches (add-remove, which is zero-out: both compare
the same pair) against ``PLDAccountant`` at its default interval of 1e-4; fixed sizes (replace-one)
against ``RdpAccountant``. Their numbers hold no allowance for the rounding of Fourier transforms;
ours do. A row where they take more than a minute is left out.
"""

from __future__ import annotations

import argparse
import math
import signal
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from lastiterate.curves.curve import Curve
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld

SECONDS, SHOWN = 60, 12


def draw(random: np.random.Generator) -> tuple[float, float, int, float]:
    """A rate, a noise multiplier, a number of steps and a delta."""
    records = random.uniform(3, 9)
    rate = 10 ** random.uniform(max(-7, -records), math.log10(0.5))
    z, steps = 10 ** random.uniform(math.log10(0.5), math.log10(20)), 10 ** random.uniform(0, 5)
    return float(rate), float(z), int(steps), float(10 ** -random.uniform(5, 12))


def poisson(rate: float, z: float, steps: int, delta: float) -> float:
    """dp-accounting's epsilon of Poisson batches."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), steps)
    return float(accountant.get_epsilon(delta))


def fixed_size(rate: float, z: float, steps: int, delta: float) -> float:
    """dp-accounting's epsilon of batches of a fixed size; the sum moves by 2 clips."""
    import dp_accounting as dp

    size = 10**6
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    event = dp.SampledWithoutReplacementDpEvent(size, round(rate * size), dp.GaussianDpEvent(z))
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


def within(seconds: int, compute: Callable[[], float]) -> float:
    """The number, or infinity where it takes longer or more memory."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return compute()
    except (TimeoutError, MemoryError, OverflowError):
        return math.inf
    finally:
        signal.alarm(0)


PAIRS: dict[str, tuple[Callable[[float, float, int], Curve], Callable[..., float]]] = {
    "Poisson": (lambda rate, z, steps: Pld(rate, (z,), (steps,)), poisson),
    "fixed size": (
        lambda rate, z, steps: FixedSizeSteps(rate, (z,), (steps,), replaced=True),
        fixed_size,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    random, rows = np.random.default_rng(given.seed), []
    for _ in range(given.count):
        rate, z, steps, delta = draw(random)
        kinds = (("Poisson", rate),) + ((("fixed size", round(rate, 6)),) if rate > 1e-5 else ())
        for kind, share in kinds:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours, theirs = PAIRS[kind]
                found = ours(share, z, steps).epsilon(delta)
                peer = within(SECONDS, partial(theirs, share, z, steps, delta))
            rows.append((kind, share, z, steps, delta, found, peer))
    for kind in ("Poisson", "fixed size"):
        known = [row for row in rows if row[0] == kind and 0 < row[6] < math.inf]
        known.sort(key=lambda row: row[6] / max(row[5], 1e-300))
        ratios = [row[5] / row[6] for row in known]
        print(
            f"\n{kind}: {len(known)} rows; ratio at most {max(ratios):.4f}, median "
            f"{np.median(ratios):.4f}, least {min(ratios):.3g}; above 1.001: "
            f"{sum(ratio > 1.001 for ratio in ratios)}"
        )
        print("rate, noise multiplier, steps, delta: ours, dp-accounting's, ratio")
        for _, rate, z, steps, delta, one, two in known[:SHOWN]:
            print(
                f"{rate:.4g}, {z:.4g}, {steps}, {delta:.3g}: {one:.6g}, {two:.6g}, {one / two:.5f}"
            )


if __name__ == "__main__":
    main()
