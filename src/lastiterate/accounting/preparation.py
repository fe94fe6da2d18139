"""What a run's private preparation costs: the curve of every part, paid for once."""

from __future__ import annotations

from lastiterate.curves.curve import Curve
from lastiterate.curves.failure import WithFailure
from lastiterate.curves.gdp import Gdp
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.paid import by_block
from lastiterate.run.preparation import Preparation
from lastiterate.run.run import Run


def prepared_curves(run: Run) -> tuple[Curve, ...]:
    """The curves of all parts that release something, in order.

    **Guarantee:** each is the Gaussian mechanism on what the part sums up, under the run's own adjacency; a part whose
    result later steps rely on fails with its own probability (twice, where drawn batches follow by a second bound).
    Where a unit has several rows, each is the unit's, by group privacy.
    """
    return tuple(_curve(part, run) for part in run.prelude if part.noise_multiplier is not None)


def _curve(part: Preparation, run: Run) -> Curve:
    assert part.noise_multiplier is not None
    curve = Gdp(part.moved(run.adjacency) * (1 + FLOAT_SLACK) / part.noise_multiplier)
    failure = part.failure * (1 if by_block(run) else 2)
    found = WithFailure(curve, failure) if failure > 0 else curve
    return found.group(run.rows_per_unit) if run.rows_per_unit > 1 else found
