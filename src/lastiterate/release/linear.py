"""Linear models: from a plan or a described run to a released model, and from scores to answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from lastiterate.accounting.calibration import calibrate
from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.support import caveats_of_one, support_caveats
from lastiterate.data.schema import Schema
from lastiterate.engine import Model, execute, fresh_key, scores, seeded_key, seeded_keys
from lastiterate.engine.streaming.devices import Arrays, Devices
from lastiterate.engine.streaming.passes import check_streams
from lastiterate.engine.streaming.streamed_linear import execute_streaming, first_rows
from lastiterate.engine.unit_gradients import execute_units
from lastiterate.errors import InputError
from lastiterate.planning.families.asked import Asked
from lastiterate.planning.planner import TIME_BUDGET, Choice, SharedBudget, consider, share_words
from lastiterate.planning.task import Task, automatic_delta
from lastiterate.planning.task import budget as worth
from lastiterate.release import composition_reminder
from lastiterate.release.answers import Labels, as_json, check_answers, from_json
from lastiterate.release.charging import Custody
from lastiterate.release.charging import custody as custody_of
from lastiterate.release.exposure import warn_of_dumps
from lastiterate.release.fitted import Fitted
from lastiterate.release.folder import Stored
from lastiterate.release.kinds import Order, is_source
from lastiterate.release.linear_orders import Answers, arrays_of, check_order, check_task, indices_of
from lastiterate.release.protected_units import check_rows, check_units, unit_records
from lastiterate.release.scored import Accuracy, CountCharge, accuracy, noisy_count
from lastiterate.release.statements import Written
from lastiterate.run.arrays import check_kept
from lastiterate.run.counts import NoisyCount
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.preparation import columns
from lastiterate.run.run import Run

SEED = "the caller gave the seed: whoever knows it can subtract the noise"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedLinear(Fitted):
    """A linear model: weights (k, d + 1), what its private preparation released, what its scores mean, and what noisy
    counts of its run say."""

    kind: ClassVar[str] = "linear"
    run: Run
    released: Model
    answers: Answers
    counted: tuple[float, ...] = ()

    def scores(self, x: Any) -> np.ndarray:
        """Linear scores of rows x (n, d), shape (n, k), prepared and clipped as in training."""
        check_kept("x", x)
        rows, wanted = np.asarray(x), self.released.weights.shape[1] - 1 - columns(self.run.prelude, 0)
        if rows.ndim != 2 or rows.shape[1] != wanted:
            raise InputError("x", f"must have {wanted} features like the model", rows.shape)
        return scores(self.run, self.released, rows)

    def probabilities(self, x: Any) -> np.ndarray:
        """The softmax of the scores of rows x (n, d), shape (n, classes); frequencies where the run is calibrated, too
        steep otherwise."""
        return self.answers.probabilities(self.scores(x))

    def predict(self, x: Any) -> np.ndarray:
        """The most probable label of every row, or a number, shape (n,)."""
        return self.answers.of(self.scores(x))

    @property
    def accuracies(self) -> tuple[Accuracy, ...]:
        """What the noisy counts say that are released with the model, each with its interval."""
        return tuple(accuracy(*pair) for pair in zip(self.run.counts, self.counted, strict=True))

    def private_score(self, x: Any, y: Any, *, epsilon: float, unit: Any = None, ledger: Any = None,
                      dataset: str | None = None) -> FittedLinear:
        """The model with one more accuracy, counted with noise on private records x (n, d) and their labels y (n,).

        ``epsilon``: what the count costs by itself, at the model's delta. ``unit``: who a row belongs to; nobody may
        have more of these than the run's ``rows_per_unit``. ``ledger``, ``dataset``: charged before a record is looked
        at. Read it as ``accuracies[-1]`` of the model that is returned.

        **Guarantee:** the certificate of what is returned pays for the count beside everything else, as if every record
        were counted and trained on; the one of this model does not, and must not be shown beside the count.
        """
        if type(self) is not FittedLinear:
            raise InputError("model", "must be one whose certificate a count can be added to", self.kind)
        check_kept("data", (x, y))
        mu = worth(epsilon, self.delta)
        if not 0 < mu < math.inf:
            raise InputError("epsilon", "must be a positive number", epsilon)
        wanted = NoisyCount(self.run.rows_per_unit * (1 + FLOAT_SLACK) / mu * (1 + 1e-9), int(np.shape(x)[0]))
        run, old = replace(self.run, counts=(*self.run.counts, wanted)), self.certificate
        said = (*check_rows(unit, wanted.records, run.rows_per_unit), *caveats_of_one(mu, self.delta))
        unseen = tuple(text for text in said if text not in old.caveats)
        proof = replace(account(run, at_least=old.at_least), caveats=(*old.caveats, *unseen))
        guard = custody_of(ledger=ledger, dataset=dataset, purpose="private_score")
        guard.pay(CountCharge(run, wanted, run.adjacency), delta=self.delta)
        right = self.predict(x) == np.asarray(y)
        found = replace(self, proof=proof, run=run, counted=(*self.counted, noisy_count(right, wanted, fresh_key())))
        guard.finish(found)
        return found

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        tensors = {"weights": self.released.weights}
        tensors |= {"counted": np.asarray(self.counted)} if self.counted else {}
        tensors |= {f"prepared_{i}": np.asarray(part) for i, part in enumerate(self.released.released)}
        return {"run": self.run.to_dict(), "answers": as_json(self.answers)}, tensors

    def summary(self) -> str:
        outputs, columns = self.released.weights.shape
        return f"{columns - 1} features to {self.answers.words(outputs)}, {self.run.steps} steps, n = {self.run.n}"


def read(stored: Stored, like: Any = None) -> FittedLinear:
    """The model in a folder."""
    if like is not None:
        raise InputError("like", "is for networks; a linear model needs none", type(like).__name__, "leave it out")
    run, tensors = Run.from_dict(stored.model["run"]), stored.tensors()
    names = ["weights", *(f"prepared_{i}" for i in range(len(run.prelude)))]
    counted = tuple(map(float, tensors.pop("counted", np.zeros(0)).ravel()))
    if len(counted) != len(run.counts) or not np.isfinite(counted).all():
        raise InputError("model", "must hold one number for every count of its run", len(counted), "train again")
    if sorted(tensors) != sorted(names) or not all(np.isfinite(array).all() for array in tensors.values()):
        raise InputError("model", "must hold the weights of its run", sorted(tensors), "train again")
    weights = tensors["weights"]
    if weights.dtype != np.float64:
        raise InputError("model", "must hold weights in double precision", weights.dtype, "train again")
    if weights.ndim != 2 or weights.shape[0] != _outputs(run) or weights.shape[1] < 2:
        raise InputError("model", "must hold weights of the shape that its run releases", weights.shape)
    released = Model(weights, tuple(tensors[name] for name in names[1:]))
    try:
        for rows in (3, 5):  # a part that fits one number of rows alone is none of every row
            scores(run, released, np.zeros((rows, weights.shape[1] - 1 - columns(run.prelude, 0))))
    except (ValueError, IndexError, TypeError):
        raise InputError("model", "must hold a preparation that fits its weights", None, "train again") from None
    schema = None if stored.model.get("schema") is None else Schema.from_dict(stored.model["schema"])
    answers = from_json(stored.model.get("answers"))
    if isinstance(answers, Labels) and len(answers.values) != max(2, weights.shape[0]):
        raise InputError("model", f"must name one label for each of its {max(2, weights.shape[0])} classes",
                         len(answers.values))
    check_answers(schema, answers)
    return FittedLinear(proof=Written(stored.certificate), delta=stored.certificate["delta"], schema=schema, run=run,
                        released=released, answers=answers, counted=counted)


def _outputs(run: Run) -> int:
    if run.loss.outputs is None:
        raise InputError("run", "must have a linear loss", type(run.loss).__name__)
    return run.loss.outputs


@dataclass(frozen=True)
class Budget:
    """What a fit may cost. ``delta``: "auto" is a power of ten at most 1/(10 n); ``time_budget``: seconds."""

    epsilon: float
    delta: float | Literal["auto"] = "auto"
    adjacency: Any = "zero-out"
    time_budget: float = TIME_BUDGET

    def delta_for(self, n: int) -> float:
        if self.delta == "auto":
            return automatic_delta(n)
        if isinstance(self.delta, str):
            raise InputError("delta", "must be a number in (0, 1) or \"auto\"", self.delta)
        return self.delta

    def asked(self, task: Task) -> Asked:
        """What families of runs are asked."""
        return Asked(task, self.epsilon, self.delta_for(task.n), self.adjacency, self.time_budget)


@dataclass(frozen=True)
class Planned:
    """What will be executed, the delta of its budget, and the plans it was chosen from (``None`` for a given run)."""

    certificate: Certificate
    delta: float
    choice: Choice | None = None


def planned(task: Task, budget: Budget, run: Run | None = None, count: NoisyCount | None = None, *,
            stream: bool = False, shared: SharedBudget | None = None) -> Planned:
    """The planner's run for a task, or the given one with the least noise that the budget allows; ``stream``: the data
    do not fit in memory. With a ``count`` that is released beside the model, it is charged as well. ``shared``: what a
    ledger leaves. A given run that does not fit it is refused, with the name of the plan that does.
    """
    if count is not None:
        found = planned(task, budget, run, stream=stream, shared=shared)
        both = replace(found.certificate.run, counts=(count,))
        return replace(found, certificate=calibrate(both, epsilon=budget.epsilon, delta=found.delta))
    delta = budget.delta_for(task.n)
    if run is None:
        choice = consider(task, epsilon=budget.epsilon, delta=delta, adjacency=budget.adjacency,
                          time_budget=budget.time_budget, stream=stream, shared=shared)
        return Planned(choice.best.certificate, delta, choice)
    check_task(run, task, budget.adjacency)
    found = Planned(calibrate(run, epsilon=budget.epsilon, delta=delta), delta)
    if shared is not None and not shared.fits(found.certificate):
        choice = planned(task, budget, stream=stream, shared=shared).choice
        if choice is not None and (best := choice.best).fits:
            needed = share_words(shared.share(found.certificate))
            raise InputError("ledger", f"refuses this release: it needs {needed} of the budget", None,
                             f"the algorithm automatic fits: its plan for this ledger, "
                             f"{best.name}, needs {share_words(best.share)}; no record was read, nothing was charged")
    return found


def fit(certificate: Certificate, features: Any, target: Any = None, *, delta: float, answers: Answers,
        seed: int | None = None, caveats: tuple[str, ...] = (), schema: Schema | None = None,
        progress: Callable[[int, int, float], None] | None = None, custody: Custody | None = None,
        scratch: Path | None = None, held: tuple[np.ndarray, np.ndarray] | None = None, devices: int = 1,
        unit: Any = None) -> FittedLinear:
    """Execute the run of ``certificate`` on rows (n, d) and targets (n,), and release its last iterate.

    ``target``: class indices, or numbers for regression; ``None`` where ``features`` is a source of both. ``seed``: for
    tests only; it becomes a caveat. ``custody``: pays before a record is looked at; the caller finishes it when the
    model is out. ``scratch``: the folder of a source's scratch files. ``devices``: how many share every batch.
    ``held``: rows and class indices that the run's one noisy count is about, none of them among the others where it is
    apart. ``unit``: who a row belongs to, for runs whose records are units.

    **Guarantee:** the certificate of the result speaks of the run that was executed; every fit spends its budget anew.
    """
    if certificate.run.release != "last":
        raise InputError("release", "must be 'last' where a model is released", certificate.run.release,
                         "use lastiterate.engine.execute for all iterates")
    source = features if is_source(features) else Arrays((features, target)) if devices > 1 else None
    if source is not None:
        check_streams(certificate.run)
        Devices(devices)
    if len(certificate.run.counts) != (0 if held is None else 1):
        raise InputError("counts", "must be one, with the records that it is about", len(certificate.run.counts),
                         "use report_accuracy, or private_score of the model")
    check_units(certificate.run, unit)
    check_kept("data", (features, target))
    key, keeper = None if seed is None else seeded_key(seed), None
    if custody is not None:
        custody.pay(certificate, delta=delta)
        keeper = custody.keeper
    warn_of_dumps()
    rows = composition_reminder.REMINDER.sketch(first_rows(features) if is_source(features) else features)
    composition_reminder.REMINDER.before(rows)
    composition_reminder.REMINDER.seeded(seed, features if is_source(features) else (features, target))
    run = certificate.run
    if run.rows_per_record > 1:
        units = unit_records((features, target), unit, run.rows_per_record)
        released = execute_units(run, units, key, progress, keeper)
    elif source is None:
        released = execute(run, features, target, key, progress, keeper)
    else:
        released = execute_streaming(run, source, key, progress, keeper, scratch, devices)
    added = (*caveats, *support_caveats(certificate, delta), *(() if seed is None else (SEED,)))
    found = FittedLinear(proof=replace(certificate, caveats=(*certificate.caveats, *added)), delta=delta, schema=schema,
                         run=run, released=released, answers=answers)
    if held is not None:
        assert isinstance(answers, Labels)
        right = found.predict(held[0]) == np.asarray(answers.values)[held[1]]
        own = fresh_key() if seed is None else seeded_keys(seed, 2)[1]
        own = Devices(devices).same_key(own)  # several processes release one number
        found = replace(found, counted=(noisy_count(right, run.counts[0], own),))
    composition_reminder.REMINDER.after(rows)
    return found


def knows(model: Any) -> bool:
    """A linear model needs no first parameters: they are 0."""
    return model is None


def fit_order(order: Order) -> FittedLinear:
    """The run's own loss on data (x, y), or on a source of such records."""
    check_order(order)
    rows, target = (order.data, None) if is_source(order.data) else arrays_of(order)
    return fit(order.certificate, rows, target, delta=order.delta, answers=indices_of(order.certificate.run),
               seed=order.seed, progress=order.progress, custody=order.custody, scratch=order.scratch,
               devices=order.devices, unit=order.unit)
