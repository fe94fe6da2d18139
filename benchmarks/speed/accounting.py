"""Times of imports, accounting and calibration beside dp-accounting and Opacus, as rows of a
Markdown table.

python -m benchmarks.speed.accounting [--opacus-python PYTHON] [--rounds 9] [--only WORDS]

The other libraries compose steps: they cannot be asked about the last iterate, so they get the
question that they can answer about the same batches. Every question changes in its ninth digit from
round to round, so that no cache knows its answer; the ways to answer it take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

import dp_accounting as dp
import numpy as np
from dp_accounting import pld, rdp

import lastiterate as li
from benchmarks.peers.child_process import OPACUS, Child
from lastiterate.theorems.theorem import Applies

DELTA, EPSILON, N, STEPS, LONG = 1e-6, 1.0, 60_000, 10_000, 100_000
RATE = 0.01
ASSUMED = li.Evidence.ASSUMED
LOSS = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.001))
PATIENCE = 20.0
"""Seconds after which a way to answer a question is not asked again."""
Timed = tuple[float, float, float]
"""The answer, seconds on the clock, seconds of processor time."""


@dataclass(frozen=True)
class Question:
    """One question and every way to answer it; a way gets a factor next to 1 that makes the
    question a new one."""

    name: str
    ways: dict[str, Callable[[float], Timed]]


def here(answer: Callable[[float], float]) -> Callable[[float], Timed]:
    """Time a call in this process."""

    def timed(factor: float) -> Timed:
        clock, processor = time.perf_counter(), time.process_time()
        found = answer(factor)
        return found, time.perf_counter() - clock, time.process_time() - processor

    return timed


def by_child(child: Child, **question: object) -> Callable[[float], Timed]:
    """Ask Opacus in its own interpreter, which times itself."""

    def timed(factor: float) -> Timed:
        found = child.ask(factor=factor, delta=DELTA, **question)
        return found["answer"], found["clock"], found["processor"]

    return timed


def every_closed_form(run: li.Run) -> float:
    """Account the run and evaluate the epsilon of every theorem that applies; the best one."""
    certificate = li.account(run, min_evidence=ASSUMED)
    for verdict in certificate.verdicts:
        if isinstance(verdict.result, Applies):
            certificate.curve(verdict).epsilon(DELTA)
    return certificate.epsilon(DELTA)


def described(batching: object, z: float) -> Callable[[float], li.Run]:
    """A constant run of ``STEPS`` steps."""
    return lambda factor: li.Run(
        n=N,
        steps=STEPS,
        step_size=li.Constant(0.5 * factor),
        noise=li.NoiseMultiplier(z),
        batching=batching,
        loss=LOSS,
    )  # pyright: ignore


def scheduled(batching: object, z: float) -> Callable[[float], li.Run]:
    """A run whose ``LONG`` step sizes and noises are all different; ``z`` is the mean noise
    multiplier."""
    rng = np.random.default_rng(0)
    eta, std = (
        rng.uniform(0.1, 1, LONG),
        rng.uniform(0.5, 1.5, LONG) * z / getattr(batching, "size", N),
    )
    return lambda factor: li.Run(
        n=N,
        steps=LONG,
        step_size=li.StepSchedule(tuple((eta * factor).tolist())),
        loss=LOSS,
        noise=li.GradientNoise(tuple(std.tolist())),
        batching=batching,
    )  # pyright: ignore


def asked(
    runs: Callable[[float], li.Run], answer: Callable[[li.Run], float]
) -> Callable[[float], Timed]:
    """Answer a question about a run; making the run is not timed."""
    return lambda factor: (lambda run: here(lambda _: answer(run))(1.0))(runs(factor))


def noise(run: li.Run) -> float:
    """The calibrated noise: its multiplier, or the factor on a schedule."""
    found = li.calibrate(run, epsilon=EPSILON, delta=DELTA, min_evidence=ASSUMED).run
    return found.first_noise / run.first_noise


def gaussians(
    kind: Callable[[], dp.PrivacyAccountant], zs: list[tuple[float, int]], rate: float = 1.0
) -> Callable[[float], float]:
    """dp-accounting's epsilon of steps with noise multipliers (and how many) ``zs``."""
    return lambda factor: kind().compose(event(factor, zs, rate)).get_epsilon(DELTA)


def event(factor: float, zs: list[tuple[float, int]], rate: float) -> dp.DpEvent:
    steps = [dp.GaussianDpEvent(z * factor) for z, _ in zs]
    drawn = [dp.PoissonSampledDpEvent(rate, step) for step in steps] if rate < 1 else steps
    return dp.ComposedDpEvent(
        [dp.SelfComposedDpEvent(step, n) for step, (_, n) in zip(drawn, zs, strict=True)]
    )


def calibrated(
    kind: Callable[[], dp.PrivacyAccountant], zs: list[tuple[float, int]], rate: float = 1.0
) -> Callable[[float], float]:
    """dp-accounting's factor on the noises ``zs`` (within 1e-3), which is not below 1."""
    return lambda factor: dp.calibrate_dp_mechanism(
        kind,
        lambda x: event(x, zs, rate),
        EPSILON * factor,
        DELTA,
        dp.LowerEndpointAndGuess(1.0, 4.0),
        tol=1e-3,
    )


def python(code: str) -> Callable[[float], Timed]:
    """Time a fresh interpreter (its processor time is not known here)."""
    return here(
        lambda _: float(subprocess.run([sys.executable, "-c", code], check=True).returncode)
    )


def questions(opacus: Child | None) -> list[Question]:
    """What is asked, and of whom."""

    def other(**question: object) -> dict[str, Callable[[float], Timed]]:
        return (
            {}
            if opacus is None
            else {
                f"Opacus, {kind.upper()}": by_child(opacus, accountant=kind, **question)
                for kind in ("rdp", "prv")
            }
        )

    def plain(
        zs: list[tuple[float, int]], rate: float = 1.0
    ) -> dict[str, Callable[[float], Timed]]:
        return {
            "dp-accounting, RDP": here(gaussians(rdp.RdpAccountant, zs, rate)),
            "dp-accounting, PLD": here(gaussians(pld.PLDAccountant, zs, rate)),
        }

    full, cyclic, permuted = (
        described(batching, z)
        for batching, z in ((li.FullBatch(), 100.0), (li.Cyclic(300), 7.0), (li.Permuted(300), 7.0))
    )
    long, places = scheduled(li.FullBatch(), 300.0), scheduled(li.Cyclic(N // 100), 30.0)
    long_zs = [(std * N, 1) for std in long(1.0).noise.std]  # pyright: ignore
    place_zs = [(std * N / 100, 1) for std in places(1.0).noise.std[::100]]  # pyright: ignore

    def poisson(factor: float) -> li.Run:
        return li.Run(
            n=N,
            steps=STEPS,
            step_size=li.Constant(0.5),
            noise=li.NoiseMultiplier(4.4),
            clip=1.0,
            batching=li.Poisson(RATE * factor),
        )

    slope = np.linspace(0.7, 1.5, STEPS)
    varied = [
        (float(z), STEPS // 50) for z in slope[:: STEPS // 50]
    ]  # at the start of each fiftieth: less noise

    def varying(factor: float) -> li.Run:
        return replace(
            poisson(factor), noise=li.GradientNoise(tuple((slope * 4 / (RATE * N)).tolist()))
        )

    small, met = {"steps": STEPS, "rate": 1.0}, STEPS // 200
    return [
        Question("bare python", {"": python("pass")}),
        Question(
            "import",
            {
                "lastiterate": python("import lastiterate"),
                "dp-accounting": python("import dp_accounting.pld, dp_accounting.rdp"),
            },
        ),
        Question(
            "every closed form, full batch, 10,000 steps",
            {
                "lastiterate": asked(full, every_closed_form),
                **plain([(100.0, STEPS)]),
                **other(z=100.0, **small),
            },
        ),
        Question(
            "every closed form, cyclic, 200 blocks",
            {
                "lastiterate": asked(cyclic, every_closed_form),
                **plain([(7.0, met)]),
                **other(z=7.0, steps=met, rate=1.0),
            },
        ),
        Question(
            "every closed form, permuted, 200 blocks",
            {"lastiterate": asked(permuted, every_closed_form)},
        ),
        Question(
            "100,000 different steps, full batch",
            {
                "lastiterate": asked(long, every_closed_form),
                "dp-accounting, RDP": here(gaussians(rdp.RdpAccountant, long_zs)),
            },
        ),
        Question(
            "100,000 different steps, cyclic, 100 places",
            {
                "lastiterate": asked(places, every_closed_form),
                "dp-accounting, RDP": here(gaussians(rdp.RdpAccountant, place_zs)),
            },
        ),
        Question(
            "calibrate, full batch, 10,000 steps",
            {
                "lastiterate": asked(full, lambda run: 100 * noise(run)),
                "dp-accounting, RDP": here(calibrated(rdp.RdpAccountant, [(1.0, STEPS)])),
                **other(**small, epsilon=EPSILON),
            },
        ),
        Question(
            "calibrate, permuted, 200 blocks",
            {"lastiterate": asked(permuted, lambda run: 7 * noise(run))},
        ),
        Question(
            "epsilon, Poisson 0.01, 10,000 steps",
            {
                "lastiterate": asked(poisson, lambda run: li.account(run).epsilon(DELTA)),
                **plain([(4.4, STEPS)], RATE),
                **other(z=4.4, steps=STEPS, rate=RATE),
            },
        ),
        Question(
            "calibrate, Poisson 0.01, 10,000 steps",
            {
                "lastiterate": asked(poisson, lambda run: 4.4 * noise(run)),
                "dp-accounting, RDP": here(calibrated(rdp.RdpAccountant, [(1.0, STEPS)], RATE)),
                "dp-accounting, PLD": here(calibrated(pld.PLDAccountant, [(1.0, STEPS)], RATE)),
                **other(steps=STEPS, rate=RATE, epsilon=EPSILON),
            },
        ),
        Question(
            "calibrate, Poisson 0.01, 10,000 different noises (dp-accounting: rounded down to 50)",
            {
                "lastiterate": asked(varying, lambda run: 4 * noise(run)),
                "dp-accounting, PLD": here(calibrated(pld.PLDAccountant, varied, RATE)),
            },
        ),
    ]


def main() -> None:
    """Print one row per question and way."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--only", default="", help="questions whose name begins so")
    OPACUS.option(options)
    chosen = options.parse_args()
    interpreter = OPACUS.python(chosen)
    child = None if interpreter is None else Child(interpreter, "opacus_accounting")
    print(
        "| question | by | answer | clock, ms (IQR) | processor, ms (IQR) |\n|---|---|---|---|---|"
    )
    for question in filter(lambda asked: asked.name.startswith(chosen.only), questions(child)):
        taken: dict[str, list[Timed]] = {way: [] for way in question.ways}
        for turn in range(1 + chosen.rounds):
            for way, ask in question.ways.items():
                if sum(clock for _, clock, _ in taken[way]) < PATIENCE:
                    taken[way].append(ask(1 + 1e-9 * turn))
        for way, rounds in taken.items():
            rounds = rounds[1:] or rounds  # the first round warms up
            print(
                f"| {question.name} | {way} | {rounds[0][0]:.5g} | "
                + " | ".join(
                    spread([1e3 * seconds[which] for seconds in rounds]) for which in (1, 2)
                )
                + " |",
                flush=True,
            )


def spread(values: list[float]) -> str:
    """Median and interquartile range."""
    quarters = (
        statistics.quantiles(values, n=4, method="inclusive")
        if len(values) > 1
        else [0.0, 0.0, 0.0]
    )
    spreads = f" ({figure(quarters[2] - quarters[0], 2)})" if len(values) > 1 else ", once"
    return figure(statistics.median(values), 3) + spreads


def figure(value: float, digits: int) -> str:
    """A number with so many digits, and no exponent where it is large."""
    return f"{float(f'{value:.{digits}g}'):,.0f}" if value >= 100 else f"{value:.{digits}g}"


if __name__ == "__main__":
    main()
