"""From public numbers and a budget to a run: nothing here has seen the data.

Every plan is one calibrated run. Of each family (``families``) the best member on a public
reference problem is kept, and the lowest predicted risk wins:

- allocation: rows whitened in part, of one norm or clipped, over secret blocks that are drawn again
  in every pass;
- correlated: the same rows over blocks in one order for all passes, with noise that later steps
  take back: drawn in memory, and public where data are read from a disk in order;
- whitened: the same rows in full batches, certified by composition;
- accelerated: centred rows, full batches with heavy-ball momentum and falling steps, certified by
  composition;
- plain: the same without momentum;
- objective: the same whitened rows, the minimiser of an objective with one random linear term
  (classifiers);
- permuted: one secret order, read in blocks, certified for the last iterate;
- cyclic: the same in a public order, for data that are read from a disk.

Where several releases share a budget (a ledger's), plans are also compared by the part that they
take of it: of those that take hardly more than the least and fit the remaining budget, the lowest
predicted risk wins.

Privacy never depends on the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.noise_calibration import check_budget
from lastiterate.errors import InputError
from lastiterate.markup import tag
from lastiterate.planning.families import FAMILIES
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.predicted_risk import Reference, output_perturbation, risk_of_ignorance
from lastiterate.planning.task import Task
from lastiterate.run.adjacency import Adjacency, has_fixed_size
from lastiterate.run.run import Run
from lastiterate.run.validation import to_float

ENOUGH = 1.02  #: of plans within this factor of the lowest risk, the quickest is taken
NOTICED = 2.0  #: seconds on two cores that it must save
MANY_PASSES = 50
WORTH, AT_STAKE = 1.25, 2e-3
"""More than ``MANY_PASSES`` must lower a classifier's predicted risk by this factor, and by as much
as is seen."""
#: of what could be learnt: models that learnt less were no better than constants (100 to 3,000
#: records)
LITTLE = 0.5
TIME_BUDGET = 60.0  #: seconds on two cores
FAIR = 1.1  #: plans that take more of a shared budget than this times the least are passed over


class SharedBudget(Protocol):
    """A budget that several releases share, such as what a ledger leaves; hashable."""

    def share(self, certificate: Certificate, /) -> float:
        """The part of the whole budget that a release takes; infinite where it has no price."""
        ...

    def fits(self, certificate: Certificate, /) -> bool:
        """Return whether the remaining budget covers the release."""
        ...


@dataclass(frozen=True)
class Plan:
    """A family's best member: its certified run, its predicted risk, an estimated time on two
    cores.

    ``share``: the part of the shared budget that it takes (``None``: there is none); ``fits``:
    whether it is left.
    """

    name: str
    certificate: Certificate
    risk: float
    seconds: float
    share: float | None = None
    fits: bool = True

    @property
    def weighed(self) -> float:
        """The predicted risk, more for a classifier's run of very many passes."""
        run = self.certificate.run
        if (
            run.method.hides_way
            or run.steps <= MANY_PASSES * run.blocks
            or not run.loss.target_classes
        ):
            return self.risk
        return self.risk * WORTH + AT_STAKE


@dataclass(frozen=True)
class Choice:
    """The considered plans, the chosen one first, and the risk of noise on the exact minimiser.

    ``alone``: with a shared budget, the name of the plan that is chosen without one; ``shared``:
    that budget, as it was then.
    """

    plans: tuple[Plan, ...]
    floor: float
    alone: str | None = None
    shared: SharedBudget | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Plan:
        return self.plans[0]

    @property
    def learnt(self) -> float:
        """The part of what could be learnt that the chosen plan is predicted to learn; below 0: its
        noise does harm."""
        return 1 - self.best.risk / risk_of_ignorance(
            self.best.certificate.run.loss.target_classes or 0
        )

    @property
    def about_noise(self) -> str:
        """That noise drowns the records, in one sentence; empty where it does not."""
        return (
            ""
            if self.learnt >= LITTLE
            else (
                f"this budget lets hardly anything be learnt from {self.best.certificate.run.n} "
                f"records: the model is "
                "predicted to answer no better than a constant, and costs all of it; ask for a "
                "larger epsilon, fewer "
                "columns or more records"
            )
        )

    @property
    def about_passes(self) -> str:
        """That a plan of lower predicted risk was passed over for its many passes, in one sentence;
        empty where none was."""
        best = self.best
        many = [plan for plan in self.plans[1:] if plan.weighed > plan.risk and plan.fits]
        if not any(plan.risk < best.risk <= plan.weighed for plan in many):
            return ""
        needed = (best.weighed - AT_STAKE) / WORTH
        return (
            f"a plan of more than {MANY_PASSES} passes over the data is taken only where it "
            f"predicts less than {needed:.4g}"
        )

    @property
    def about_sharing(self) -> str:
        """The effect of a shared budget, in one sentence; empty where there is none."""
        best, other = (
            self.best,
            next((plan for plan in self.plans if plan.name == self.alone), None),
        )
        if other is None:
            return ""
        none, takes = (
            "" if best.fits else ", and no plan fits the remaining budget",
            share_words(best.share),
        )
        if other is best:
            return f"the ledger did not change the plan: it takes {takes} of the whole budget{none}"
        return (
            f"the ledger changed the plan: {other.name} would take {share_words(other.share)} of "
            f"the whole budget, "
            f"{best.name} takes {takes}{none}"
        )

    def _repr_html_(self) -> str:
        names = ("plan", "predicted risk", "steps", "batches", "seconds")
        head = tag("tr", [tag("th", name, scope="col") for name in names])
        rows = [
            tag(
                "tr",
                [
                    tag("td", text)
                    for text in (
                        one.name + (" (chosen)" if one is self.best else ""),
                        f"{one.risk:.4g}",
                        one.certificate.run.steps,
                        type(one.certificate.run.batching).__name__,
                        f"{one.seconds:.2g}",
                    )
                ],
            )
            for one in self.plans
        ]
        return tag("table", tag("thead", head), tag("tbody", rows))


def plan(
    task: Task,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = "zero-out",
    time_budget: float = TIME_BUDGET,
    stream: bool = False,
    shared: SharedBudget | None = None,
) -> Certificate:
    """The run for a task and a budget, calibrated; its certificate's epsilon(delta) is at most
    ``epsilon``."""
    choice = consider(
        task,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        time_budget=time_budget,
        stream=stream,
        shared=shared,
    )
    return choice.best.certificate


@lru_cache(maxsize=256)
def consider(
    task: Task,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = "zero-out",
    time_budget: float = TIME_BUDGET,
    stream: bool = False,
    shared: SharedBudget | None = None,
) -> Choice:
    """The best plan of every family, in the order of predicted risk.

    ``stream``: the data do not fit in memory and are read again in every pass. ``time_budget``:
    seconds that a fit may take, estimated on two cores. ``shared``: a budget of which the release
    takes a part; where no plan fits the remaining budget, the one that takes least comes first.
    Errors: a bad budget, or no plan that keeps it.
    """
    if shared is not None:
        return weigh_shared(
            shared,
            consider(
                task,
                epsilon=epsilon,
                delta=delta,
                adjacency=adjacency,
                time_budget=time_budget,
                stream=stream,
            ),
        )
    check_budget(epsilon, delta, task.n)
    if not 0 < to_float("time_budget", time_budget) < math.inf:
        raise InputError("time_budget", "must be a positive number of seconds", time_budget)
    asked = PlanRequest(
        replace(task, streamed=True) if stream else task, epsilon, delta, adjacency, time_budget
    )
    plans = [
        plan
        for name, family in FAMILIES.items()
        if (family.larger if stream else family.smaller)
        and (family.whitened or task.feature_map != "fourier")
        and (plan := best_of(asked, name, family.runs)) is not None
    ]
    if not plans and not has_fixed_size(adjacency):
        raise InputError(
            "adjacency",
            "has no automatic plan under add-remove for so few records, or in so short a time",
            adjacency,
            "name an algorithm: allocation-sgd or poisson-dp-sgd",
        )
    if not plans:
        raise InputError(
            "time_budget", "is too short for any plan", time_budget, "allow more seconds"
        )
    first = _first(plans)
    plans.sort(key=lambda plan: (plan is not first, plan.risk))
    asked = asked.with_public_count()
    moved = asked.empty.facts().fact("sensitivity")
    reference = Reference.from_centred_rows(task, asked.empty)
    return Choice(tuple(plans), output_perturbation(reference, moved / asked.mu, task.n))


def _first(plans: list[Plan]) -> Plan:
    """The one of the lowest risk, or the quickest of nearly the lowest where somebody would notice."""
    least = min(plans, key=lambda plan: (plan.weighed, plan.seconds))
    return min(
        (
            plan
            for plan in plans
            if plan.weighed <= ENOUGH * least.weighed and plan.seconds <= least.seconds - NOTICED
        ),
        key=lambda plan: plan.seconds,
        default=least,
    )


def share_words(share: float | None) -> str:
    """A part of a budget in words."""
    return (
        "more than it can charge" if share is None or math.isinf(share) else f"{100 * share:.3g}%"
    )


def weigh_shared(shared: SharedBudget, choice: Choice) -> Choice:
    """The same plans with what each takes of a shared budget, and the one first that is best with
    it."""
    plans = [
        replace(plan, share=shared.share(plan.certificate), fits=shared.fits(plan.certificate))
        for plan in choice.plans
    ]
    shares = {plan.name: math.inf if plan.share is None else plan.share for plan in plans}
    fitting = [plan for plan in plans if plan.fits]
    cheapest = min(shares[plan.name] for plan in fitting or plans)
    first = _first(
        [plan for plan in fitting or plans if shares[plan.name] <= FAIR * cheapest] or plans
    )
    plans.sort(key=lambda plan: (plan is not first, plan.risk))
    return replace(choice, plans=tuple(plans), alone=choice.best.name, shared=shared)


def best_of(
    asked: PlanRequest, name: str, runs: Callable[[PlanRequest], Iterator[Run]]
) -> Plan | None:
    """The cheapest run among those of nearly the lowest risk, with the least noise that the budget
    allows."""
    seconds = asked.task.seconds
    counted = asked.with_public_count()
    found = (asked.under(run) for run in runs(counted))
    risks = {
        run: counted.risk(run)
        for run in found
        if run is not None and seconds(run) <= asked.time_budget
    }
    if not risks:
        return None
    near = [run for run, risk in risks.items() if risk <= ENOUGH * min(risks.values())]
    certificate = asked.certificate(min(near, key=seconds))
    return Plan(name, certificate, counted.risk(certificate.run), seconds(certificate.run))
