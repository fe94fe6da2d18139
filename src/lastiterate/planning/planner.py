"""From public numbers and a budget to a run: nothing here has seen the data.

Every plan starts with a private mean of the rows (which centres them, so that a smaller row norm suffices) and is one
calibrated run; classifiers clip per-example gradients far below their bound where the theorem allows it. Of each family
the best member on a public reference problem is kept (``reference``), and the lowest predicted risk wins:

- accelerated: full batches with heavy-ball momentum and falling steps, certified by composition;
- plain: the same without momentum;
- ridge: plain constant steps on a strongly convex objective, certified for the last iterate;
- permuted: one secret order, read in blocks, certified for the last iterate;
- cyclic: the same in a public order, the only family that can read data from a disk.

Privacy never depends on the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

from lastiterate.accounting.budgets import check_budget
from lastiterate.accounting.calibration import calibrate
from lastiterate.accounting.certificate import Certificate, account
from lastiterate.curves.gdp import Gdp
from lastiterate.errors import InputError, NotCertified
from lastiterate.planning.reference_problem import Reference, output_perturbation
from lastiterate.run.adjacency import Adjacency, records_moved
from lastiterate.run.batching import Cyclic, Permuted
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.losses import HuberRidge, Logistic, Softmax
from lastiterate.run.momentum import HeavyBall
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.preparation import PrivateMean
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, Steps
from lastiterate.run.validate import whole

INTERCEPT = 0.2  #: value of the constant column, relative to the norm of the centred rows
CENTRED = 0.25  #: norm that centred rows are clipped to, relative to the norm before
CLIP = 0.3  #: per-example gradients of classifiers are clipped to this fraction of their bound
MEAN_SHARE = 0.08  #: part of the budget mu^2 spent on the mean
LAST_STEP = 0.1  #: falling steps end near this fraction of the first, which lets noise die out
STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FRICTIONS = tuple(2.0**-j for j in range(1, 7))  #: 1 - momentum
FORGOTTEN = 8  #: memories of the momentum that a run must last: shorter ones do worse than their prediction
PLAIN_STEPS = tuple(round(8 * 2 ** (j / 2)) for j in range(26))
RIDGES = tuple(10.0**-j for j in (1.5, 2.0, 2.5, 3.0))  #: relative to the smoothness of the data term
BLOCKS, PASSES = (4, 16, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STREAM_BLOCKS = (64, 512, 4096)  #: small enough to hold one in memory
FEWEST_RECORDS = 20  #: in a block
ENOUGH = 1.02  #: of plans within this factor of the lowest risk, the quickest is taken
TIME_BUDGET = 60.0  #: seconds on two cores


@dataclass(frozen=True)
class Task:
    """What is public about a data set: ``classes`` is 0 for regression, ``rows_per_unit`` as in a ``Run``."""

    n: int
    features: int
    classes: int
    row_norm: float = 1.0
    rows_per_unit: int = 1

    def __post_init__(self) -> None:
        whole("n", self.n)
        whole("features", self.features)
        if self.classes == 1:
            raise InputError("classes", "must be at least 2", self.classes, "one class needs no model")
        if not 0 < self.row_norm < math.inf:
            raise InputError("row_norm", "must be a positive number", self.row_norm)

    @property
    def outputs(self) -> int:
        return self.classes if self.classes > 2 else 1

    @property
    def parameters(self) -> int:
        return (self.features + 1) * self.outputs

    def seconds(self, run: Run) -> float:
        """Estimated time on two cores: 6e10 multiplications a second (float32: twice that), 7.5e9 bytes a second."""
        speed = 6e10 if run.momentum is None else 1.2e11  # a hidden state is computed in float64
        rows = run.n / run.blocks * (self.features + 1)
        return run.steps * (5e-5 + 2e-8 * self.parameters + rows * max(4 * self.outputs / speed, 4 / 7.5e9))


@dataclass(frozen=True)
class Plan:
    """A family's best member: its certified run, its predicted risk, an estimated time on two cores."""

    name: str
    certificate: Certificate
    risk: float
    seconds: float


@dataclass(frozen=True)
class Choice:
    """What was considered: the plans, the chosen one first, and the risk of noise on the exact minimiser."""

    plans: tuple[Plan, ...]
    floor: float

    @property
    def best(self) -> Plan:
        return self.plans[0]


def automatic_delta(n: int) -> float:
    """A power of ten at most 1/(10 n), and at most 1e-5."""
    return min(1e-5, 10.0 ** -math.ceil(math.log10(10 * n)))


def budget(epsilon: float, delta: float) -> float:
    """The largest mu (to 1e-9) that is (epsilon, delta)-DP."""
    low, high = 0.0, 1.0
    while Gdp(high).delta(epsilon) <= delta and high < 1e6:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if Gdp(middle).delta(epsilon) <= delta else (low, middle)
    return low


def plan(task: Task, *, epsilon: float, delta: float, adjacency: Adjacency = "zero-out",
         time_budget: float = TIME_BUDGET, stream: bool = False) -> Certificate:
    """The run for a task and a budget, calibrated; its certificate's epsilon(delta) is at most ``epsilon``."""
    choice = consider(task, epsilon=epsilon, delta=delta, adjacency=adjacency, time_budget=time_budget, stream=stream)
    return choice.best.certificate


@lru_cache(maxsize=256)
def consider(task: Task, *, epsilon: float, delta: float, adjacency: Adjacency = "zero-out",
             time_budget: float = TIME_BUDGET, stream: bool = False) -> Choice:
    """The best plan of every family, in the order of predicted risk.

    ``stream``: the data do not fit in memory and must be read in a public order. ``time_budget``: seconds that a fit
    may take, estimated on two cores. Errors: a bad budget, or no plan that keeps it.
    """
    check_budget(epsilon, delta, task.n)
    if not 0 < time_budget < math.inf:
        raise InputError("time_budget", "must be a positive number of seconds", time_budget)
    return _Search(task, epsilon, delta, adjacency, time_budget).all(stream)


@dataclass
class _Search:
    """One task and one budget; families of runs, and the best of each on the reference problem."""

    task: Task
    epsilon: float
    delta: float
    adjacency: Adjacency
    time_budget: float

    def all(self, stream: bool) -> Choice:
        """The best plan of every family: its runs with (nearly) the noise that they need, what certifies it."""
        families: dict[str, tuple[Iterator[Run], Callable[[Run], Certificate]]] = {
            "cyclic": (self._blocks(Cyclic, STREAM_BLOCKS), account)} if stream else {
            "accelerated": (self._accelerated(), self._calibrate), "plain": (self._plain(), self._calibrate),
            "ridge": (self._ridges(), account), "permuted": (self._blocks(Permuted, BLOCKS), account)}
        found = [plan for name, family in families.items() if (plan := self._best(name, *family)) is not None]
        if not found:
            raise InputError("time_budget", "is too short for any plan", self.time_budget, "allow more seconds")
        least = ENOUGH * min(plan.risk for plan in found)
        first = min((plan for plan in found if plan.risk <= least), key=lambda plan: plan.seconds)
        found.sort(key=lambda plan: (plan is not first, plan.risk))
        moved = self.empty.facts().fact("sensitivity")
        floor = output_perturbation(self.problem, moved / self.mu, self.task.n)
        return Choice(tuple(found), floor)

    @cached_property
    def loss(self) -> Logistic | Softmax | HuberRidge:
        norm = CENTRED * self.task.row_norm
        if self.task.classes == 0:
            return HuberRidge(row_norm=norm, residual_clip=0.5, intercept=INTERCEPT * norm)
        if self.task.classes == 2:
            return Logistic(row_norm=norm, intercept=INTERCEPT * norm)
        return Softmax(classes=self.task.classes, row_norm=norm, intercept=INTERCEPT * norm)

    @cached_property
    def problem(self) -> Reference:
        norm = math.hypot(self.loss.row_norm, self.loss.intercept)
        return Reference.of(self.task.features, self.task.classes, norm)

    @cached_property
    def mu(self) -> float:
        """What one row may cost: the budget, shared by the rows of a unit."""
        found, rows = budget(self.epsilon, self.delta), self.task.rows_per_unit
        return found if rows == 1 else found / rows * (1 - 1e-9)

    @cached_property
    def empty(self) -> Run:
        """What all runs share: the loss, the private mean (8 % of mu^2), one plain step."""
        multiplier = 1.01 * records_moved(self.adjacency) / (self.mu * math.sqrt(MEAN_SHARE))
        mean = PrivateMean(noise_multiplier=multiplier, row_norm=self.task.row_norm)
        return Run(n=self.task.n, steps=1, step_size=Constant(self.first), noise=NoiseMultiplier(1.0), loss=self.loss,
                   clip=self.clip if self.task.classes == 2 else None, adjacency=self.adjacency, prelude=(mean,),
                   rows_per_unit=self.task.rows_per_unit)

    @cached_property
    def clip(self) -> float | None:
        """Clipping records that are far from right: less sensitivity, and so less noise, for some bias.

        Composition holds whatever is clipped; other theorems keep a clamped scalar residual (two classes), but not a
        clipped vector, whose step expands.
        """
        return CLIP * self.loss.facts().fact("lipschitz") if self.task.classes else None

    @cached_property
    def first(self) -> float:
        """sqrt(classes / 2) / smooth: the worst curvature of softmax needs two classes at even odds."""
        return math.sqrt(max(self.task.classes, 2) / 2) / self.loss.facts().fact("smooth")

    def _composed(self, steps: int) -> NoiseMultiplier:
        """What composition needs: noise that grows with the square root of the steps."""
        return NoiseMultiplier(math.sqrt(steps / (1 - MEAN_SHARE)) / self.mu * (1 + FLOAT_SLACK))

    def _accelerated(self) -> Iterator[Run]:
        """Full batches, momentum, steps that fall linearly."""
        for steps, friction in product(STEPS, FRICTIONS):
            if steps * friction < FORGOTTEN:
                continue
            falling = Steps(tuple(self.first * (1 - (1 - LAST_STEP) * k / steps) for k in range(steps)))
            yield replace(self.empty, steps=steps, step_size=falling, noise=self._composed(steps), clip=self.clip,
                          momentum=HeavyBall(1 - friction))

    def _plain(self) -> Iterator[Run]:
        """Full batches, constant steps."""
        for steps in PLAIN_STEPS:
            yield replace(self.empty, steps=steps, noise=self._composed(steps), clip=self.clip)

    def _ridges(self) -> Iterator[Run]:
        """Full batches until the ridge has forgotten the start: three relaxation times."""
        data = self.loss.facts().fact("smooth")
        for share in RIDGES:
            loss = replace(self.loss, ridge=share * data)
            step = min(self.first, 1.9 / (data + loss.ridge))
            steps = math.ceil(3 / (step * loss.ridge))
            if found := self._calibrated(replace(self.empty, steps=steps, step_size=Constant(step), loss=loss)):
                yield found

    def _blocks(self, kind: type[Cyclic] | type[Permuted], counts: tuple[int, ...]) -> Iterator[Run]:
        """Blocks in one order, constant steps below 2 / smooth; ever more passes while the prediction improves."""
        step = min(self.first, 1.9 / self.loss.facts().fact("smooth"))
        for blocks in counts:
            size = -(-self.task.n // blocks)
            run = replace(self.empty, step_size=Constant(step), batching=kind(size))
            best = math.inf
            for passes in PASSES if size >= FEWEST_RECORDS else ():
                found = self._calibrated(replace(run, steps=passes * run.blocks))
                if found is None or self.problem.risk(found) > best:
                    break
                best = self.problem.risk(found)
                yield found

    def _calibrated(self, run: Run) -> Run | None:
        """The run with the noise that it needs, unless it takes too long or nothing certifies it."""
        if self.task.seconds(run) > self.time_budget:
            return None
        with suppress(NotCertified):
            return self._calibrate(run).run

    def _calibrate(self, run: Run) -> Certificate:
        return calibrate(run, epsilon=self.epsilon, delta=self.delta)

    def _best(self, name: str, runs: Iterable[Run], certify: Callable[[Run], Certificate]) -> Plan | None:
        """The cheapest run among those of nearly the lowest risk."""
        risks = {run: self.problem.risk(run) for run in runs if self.task.seconds(run) <= self.time_budget}
        if not risks:
            return None
        near = [run for run, risk in risks.items() if risk <= ENOUGH * min(risks.values())]
        certificate = certify(min(near, key=self.task.seconds))
        return Plan(name, certificate, self.problem.risk(certificate.run), self.task.seconds(certificate.run))


def composition_epsilon(certificate: Certificate, delta: float) -> float:
    """What plain composition charges for the same run."""
    found = [v for v in certificate.certifying if v.theorem.name == "composition-gdp"]
    return min((replace(certificate, verdicts=(v,)).epsilon(delta) for v in found), default=math.inf)
