"""What a run releases beside its model costs: its private preparation, and noisy counts of right answers."""

from __future__ import annotations

from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve
from lastiterate.curves.failure import WithFailure
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.private_selection import WorstOf
from lastiterate.run.counts import NoisyCount
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.measured_smoothness import by_block
from lastiterate.run.preparation import Preparation
from lastiterate.run.run import Run


def prepared_curves(run: Run) -> tuple[Curve, ...]:
    """The curves of all parts that release something, in order.

    **Guarantee:** each is the Gaussian mechanism on what the part sums up, under the run's own adjacency; a part whose
    result later steps rely on fails with its own probability (twice, where drawn batches follow by a second bound).
    Where a unit has several rows, each is the unit's, by group privacy.
    """
    return tuple(_curve(part, run) for part in run.prelude if part.noise_multiplier is not None)


def with_counts(curve: Curve, run: Run) -> Curve:
    """``curve`` of the training with the noisy counts that are released beside the model.

    **Guarantee:** a count moves by 1 at most, whatever model it is of. A record that was trained on may be counted too:
    costs add. One of a part that the library split off by public places is only counted, there alone: such counts are
    charged to it, and the training to the others, so that every record pays the worse of the two.
    """
    both = tuple(_counted(count, run) for count in run.counts if not count.apart)
    alone = tuple(_counted(count, run) for count in run.counts if count.apart)
    trained = compose(curve, *both) if both else curve
    return WorstOf((trained, compose(*alone, *both))) if alone else trained


def charged_beside(run: Run) -> tuple[str, ...]:
    """What the run's preparation is charged for, and counts that are released beside the model, in words."""
    counted = tuple(f"accuracy: a count over {count.records} records, "
                    + ("apart from those that are trained on" if count.apart else "which may be trained on too")
                    + f", noise multiplier {count.noise_multiplier:g}" for count in run.counts)
    return tuple(f"private preparation: {type(part).__name__}, noise multiplier {part.noise_multiplier:g}"
                 for part in run.prelude if part.noise_multiplier is not None) + counted


def _counted(count: NoisyCount, run: Run) -> Curve:
    """Exchanging a record, too, moves the count by 1 at most; a unit's rows by their number."""
    return Gdp(run.rows_per_unit * (1 + FLOAT_SLACK) / count.noise_multiplier)


def _curve(part: Preparation, run: Run) -> Curve:
    assert part.noise_multiplier is not None
    curve = Gdp(part.moved(run.adjacency) * (1 + FLOAT_SLACK) / part.noise_multiplier)
    failure = part.failure * (1 if by_block(run) else 2)
    found = WithFailure(curve, failure) if failure > 0 else curve
    return found.group(run.rows_per_unit) if run.rows_per_unit > 1 else found
