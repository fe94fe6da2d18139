"""A plug-in of lastiterate: a theorem about runs of one step, and blocks that stride over the records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import lastiterate as li
from lastiterate.curves import Gdp
from lastiterate.run.plugin_batching import PublicBlocks
from lastiterate.theorems import Assumption, Satisfied, Theorem, Violated
from lastiterate.theorems.assumptions import known_noise, known_sensitivity, noisy_steps


@dataclass(frozen=True)
class Strided(PublicBlocks):
    """Every k-th record in a block: record i in block i mod k, k = ceil(n / size)."""

    word = "strided"

    def divide(self, n: int) -> np.ndarray:
        """Return the block of every record."""
        return np.arange(n) % -(-n // self.size)


def check_single_step(run: li.Run) -> Satisfied | Violated:
    """Whether the run stops after its first step."""
    return Satisfied() if run.steps == 1 else Violated("it speaks of one step: use steps=1")


def bound_one_step(run: li.Run) -> Gdp:
    """Return the guarantee of a single noisy gradient, given its batch."""
    sensitivity = run.facts().fact("sensitivity")
    mu = sensitivity / (run.divisor * run.first_noise)
    return Gdp(mu * (1 + 2.0**-50))  # the product, the quotient and this factor round thrice


ONE_STEP = Theorem(
    name="one-step-gdp",
    kind="upper",
    family="composition",
    statement="""
One step of any noise: a single Gaussian mechanism, whatever the batch.

mu = sensitivity / (b noise_std).

The batch does not depend on the data: given it, the noisy mean gradient is a Gaussian mechanism, and
mixtures of pairs that are mu-GDP are mu-GDP (joint convexity). The first draw of correlated noise is
an independent one: nothing is taken back before the second step.""",
    citation="this example; Dong, Roth, Su: Gaussian differential privacy, JRSSB 84 (2022), Theorem 2.7",
    formula="mu = sensitivity / (b noise_std)",
    latex=r"\mu = \frac{\text{sensitivity}}{b \, \text{noise_std}}",
    assumptions=(
        noisy_steps,
        known_sensitivity,
        known_noise,
        Assumption("single_step", "a single step", check_single_step),
    ),
    bound=bound_one_step,
    example=li.Run(
        n=1000,
        steps=1,
        step_size=0.5,
        noise=li.GradientNoise(0.1),
        batching=li.FixedSize(100),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0)),
    ),
)
