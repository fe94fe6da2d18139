"""The minimiser of an objective with one random linear term, on whitened rows: no steps to pay for, but a ridge.

Constants were compared on synthetic families (benchmarks/utility/planner_constants.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from lastiterate.analysis.perturbed_objective import log_determinants, steps_for
from lastiterate.planning.families import whitened
from lastiterate.planning.families.asked import Asked, linear_loss
from lastiterate.planning.task import budget
from lastiterate.run.adjacency import records_moved
from lastiterate.run.losses import Logistic, Softmax
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.perturbed_minimiser import PerturbedMinimiser
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant

SHARES = (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4)  #: ridges, relative to the smoothness of the data term
STEP = 0.9  #: of the solver, relative to 1/smooth
LAST = 0.3  #: noise on the minimiser, relative to the least that the linear term leaves in any direction
LARGEST_EPSILON = 50.0  #: beyond it e^epsilon times the probability of a term that is too long could count
TOLERANCE = 0.05  #: of the solver, as mu of the noise on the minimiser, relative to that of the linear term


def perturbed(asked: Asked) -> Iterator[Run]:
    """Runs for ever smaller ridges, while the solver's error can be bounded."""
    if asked.task.classes == 0 or records_moved(asked.adjacency) != 1 or asked.task.rows_per_unit > 1 \
            or asked.task.rows_per_record > 1:
        return
    best = whitened.weighed(asked)
    for share in SHARES:
        run = run_of(best, share)
        if run is None:
            return
        yield run


def run_of(asked: Asked, share: float, *, cap: float | None = None) -> Run | None:
    """The run for a ridge of this share, with about the noise that it needs; ``None`` where so small a ridge
    takes epsilon by itself, where epsilon is out of range, or double precision cannot reach the tolerance.
    """
    task = asked.task
    loss = linear_loss(task, asked.longest or 1.0)
    assert isinstance(loss, Logistic | Softmax)
    loss = replace(loss, cap=cap)
    loss = replace(loss, ridge=share * loss.facts().fact("smooth"))
    run = Run(n=task.n, steps=1, step_size=Constant(STEP / loss.facts().fact("smooth")), loss=loss,
              noise=NoiseMultiplier(1.0), method=PerturbedMinimiser(task.parameters, LAST),
              adjacency=asked.adjacency,
              prelude=whitened.preparation(asked), rows_per_unit=task.rows_per_unit)
    charged = whitened.spent(asked) * asked.mu**2 + asked.calibration_share * asked.whole_mu**2
    epsilon = asked.epsilon - log_determinants(run)
    left = budget(epsilon, asked.delta) ** 2 - charged if 0 < epsilon <= LARGEST_EPSILON else 0.0
    if left <= 0:
        return None
    run = replace(run, noise=NoiseMultiplier(left**-0.5))  # near what calibration finds
    steps = steps_for(run, TOLERANCE * math.sqrt(left))
    return None if steps is None else replace(run, steps=steps)
