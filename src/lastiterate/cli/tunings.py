"""``lastiterate tune``: a secret number of candidates, one release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from lastiterate.cli.bundles import FromFile, bundled
from lastiterate.cli.screen import ALGORITHM_HELP, TimeBudget, app, console, reports_errors
from lastiterate.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Tuning(FromFile):
    """What ``tune`` is asked for."""

    epsilon: Annotated[float, typer.Option("--epsilon", help="the budget of all candidates, scores and the release")]
    mean_runs: Annotated[float, typer.Option("--mean-runs", help="candidates trained on average")] = 10.0
    runs: Annotated[str, typer.Option("--runs", help="law of their number: logarithmic, geometric or poisson")
                    ] = "logarithmic"
    row_norms: Annotated[str | None, typer.Option("--row-norms", help="candidates, such as 0.5,1,2")] = None
    algorithms: Annotated[str, typer.Option("--algorithms", help="candidates, by commas; " + ALGORITHM_HELP)
                          ] = "automatic"
    class_weight: Annotated[str | None, typer.Option("--class-weight", help="public weights LABEL=WEIGHT,LABEL=WEIGHT "
                                                    "that candidates are trained with; their scores count all answers "
                                                    "alike")] = None
    time_budget: TimeBudget = 10.0

    @property
    def norms(self) -> tuple[float, ...]:
        """The candidates' row norms."""
        try:
            return () if self.row_norms is None else tuple(float(norm) for norm in self.row_norms.split(","))
        except ValueError:
            raise InputError("row_norms", "must be numbers such as 0.5,1,2", self.row_norms) from None


@app.command("tune")
@reports_errors
@bundled
def tune_command(asked: Tuning) -> None:
    """Train a secret number of candidates, score them on held-out records, release the best one.

    What is shown while it runs says nothing: neither how many candidates there are, nor their scores.
    """
    from lastiterate.cli import flags, show
    from lastiterate.cli.saving import committed
    from lastiterate.release import datafile, open_dataset, tuning
    from lastiterate.release.linear_plans import Algorithm

    schema = open_dataset.schema_for(asked.data, asked.schema, target=None, classes=None, model=None,
                                     header=flags.header(asked.header))
    (where, earlier), norms = asked.folders(), asked.norms
    algorithms = tuple(Algorithm(name.strip()) for name in asked.algorithms.split(","))
    with asked.charging(purpose="tune", place=where, earlier=earlier) as charging:
        result = datafile.tune_file(asked.data, asked.budget, schema=schema, row_norms=norms, algorithms=algorithms,
                                    law=tuning.law_of(asked.mean_runs, asked.runs), charging=charging,
                                    class_weight=flags.class_weight(asked.class_weight), features=asked.features)
    place = committed(result.model, where, charging)
    show.trained(console, result, str(place))
    if place not in (where, charging.finished):
        raise typer.Exit(2)
