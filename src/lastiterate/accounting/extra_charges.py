"""Cost of what a run measures in addition to its steps: private preparation, calibration, noisy
counts."""

from __future__ import annotations

from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve, WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.selection import WorstOf
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.measured_smoothness import is_measured_by_block
from lastiterate.run.noisy_counts import Count
from lastiterate.run.preprocessing import Preparation
from lastiterate.run.probability_calibration import private_calibration
from lastiterate.run.run import Run


def curves_of_preprocessing(run: Run) -> tuple[Curve, ...]:
    """The curves of all parts that release something, in order.

    **Guarantee:** each is the Gaussian mechanism on what the part sums up, under the run's own
    adjacency; a part whose result later steps rely on fails with its own probability (twice, where
    drawn batches follow by a second bound). Where a unit has several records, each is the unit's,
    by group privacy.
    """
    return tuple(
        _curve(part, run) for part in run.preprocessing if part.noise_multiplier is not None
    )


def has_later_releases(run: Run) -> bool:
    """Whether the run measures anything on records after its last step."""
    return bool(run.counts) or private_calibration(run.probability_calibration) is not None


def calibration_curve(run: Run) -> Curve:
    """The curve of the rounds of calibration together, under the run's own adjacency.

    **Guarantee:** each is a Gaussian mechanism on the records and on what was released before
    (docs/theorems/ probabilities); their mu add in squares. The records of a unit move them by
    their number.
    """
    rounds = private_calibration(run.probability_calibration)
    if rounds is None:
        return Gdp(0.0)
    moved = run.rows_per_unit * rounds.sensitivity(run.adjacency)
    return Gdp(moved * (1 + FLOAT_SLACK) / rounds.noise_multiplier)


def with_later_parts(curve: Curve, run: Run) -> Curve:
    """``curve`` of the training with the calibration and the noisy counts that follow it.

    **Guarantee:** a count moves by what it says at most, whatever model it is of. A record that was
    trained on may be counted too: costs add. A record of a part that the library split off by
    public positions is only counted, there alone: such counts are charged to it, and the training
    to the others, so that every record pays the worse of the two.
    """
    if private_calibration(run.probability_calibration) is not None:
        curve = compose(curve, calibration_curve(run))
    both = tuple(count_curve(count, run, run.adjacency) for count in run.counts if not count.apart)
    alone = tuple(count_curve(count, run, run.adjacency) for count in run.counts if count.apart)
    trained = compose(curve, *both) if both else curve
    return WorstOf((trained, compose(*alone, *both))) if alone else trained


def list_extra_charges(run: Run) -> tuple[str, ...]:
    """Describe, in words, the run's charged preparation and the counts released with the model."""
    counted = tuple(
        f"accuracy: {count.words}, noise multiplier {count.noise_multiplier:g}"
        for count in run.counts
    )
    fit = private_calibration(run.probability_calibration)
    rounds = (
        ()
        if fit is None
        else (
            f"calibration of probabilities: {fit.rounds} rounds, noise multiplier "
            f"{fit.noise_multiplier:g}",
        )
    )
    return (
        tuple(
            f"private preparation: {type(part).__name__}, noise multiplier "
            f"{part.noise_multiplier:g}"
            for part in run.preprocessing
            if part.noise_multiplier is not None
        )
        + rounds
        + counted
    )


def count_curve(count: Count, run: Run, adjacency: str) -> Curve:
    """Return the curve of one count by itself; k records of a unit move it k times as far as
    one."""
    return Gdp(
        run.rows_per_unit
        * count.sensitivity(adjacency)
        * (1 + FLOAT_SLACK)
        / count.noise_multiplier
    )


def _curve(part: Preparation, run: Run) -> Curve:
    assert part.noise_multiplier is not None
    curve = Gdp(part.sensitivity(run.adjacency) * (1 + FLOAT_SLACK) / part.noise_multiplier)
    failure = part.failure * (1 if is_measured_by_block(run) else 2)
    of_row = WithFailure(curve, failure) if failure > 0 else curve
    return of_row.group(run.rows_per_unit) if run.rows_per_unit > 1 else of_row
