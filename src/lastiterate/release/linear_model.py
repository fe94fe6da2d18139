"""Linear models: what is refused, how a run is executed, and the folder of the result."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.accounting.certificate import account
from lastiterate.accounting.tail_truncation import caveats_of_one
from lastiterate.data.schema import Schema
from lastiterate.engine import TrainedWeights, execute, fresh_key, keys_from_seed, scores
from lastiterate.engine.methods import solver_of
from lastiterate.engine.random import COUNT, Key
from lastiterate.engine.streaming.buffers import Arrays, Devices
from lastiterate.engine.streaming.execution import execute_streaming
from lastiterate.engine.unit_gradients import execute_units
from lastiterate.errors import InputError
from lastiterate.planning.task import budget as worth
from lastiterate.release.folder import StoredModel
from lastiterate.release.ledger_charge import make_charging
from lastiterate.release.noisy_accuracy import (
    Accuracy,
    CountCharge,
    accuracies,
    count_of,
    noisy_numbers,
)
from lastiterate.release.released_model import SelfContainedModel
from lastiterate.release.score_meaning import (
    Answers,
    Labels,
    Scores,
    as_json,
    check_answers,
    from_json,
)
from lastiterate.release.signatures import ProvenanceRecord
from lastiterate.release.training_request import LazyRecords, TrainingRequest, is_source
from lastiterate.release.units import check_rows, unit_records
from lastiterate.run.preprocessing import columns
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept

# The released model: predictions, counts, and its files.


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedLinear(SelfContainedModel):
    """A linear model: weights (k, d + 1), what its private preparation released, what its scores
    mean, and what noisy counts of its run say."""

    kind: ClassVar[str] = "linear"
    exact_kind: ClassVar[str] = "exact"
    run: Run
    released: TrainedWeights
    answers: Answers
    counted: tuple[float, ...] = ()

    def scores(self, x: ArrayLike) -> np.ndarray:
        """Linear scores of rows x (n, d), shape (n, k), prepared and clipped as in training."""
        check_kept("x", x)
        rows, wanted = (
            np.asarray(x),
            self.released.weights.shape[1] - 1 - columns(self.run.preprocessing, 0),
        )
        if rows.ndim != 2 or rows.shape[1] != wanted:
            made = (
                "lastiterate.features.SchemaTransformer(model.schema).transform(table) makes them"
            )
            raise InputError(
                "x",
                f"must have {wanted} features like the model",
                rows.shape,
                made * bool(self.schema),
            )
        return scores(self.run, self.released, rows)

    def probabilities(self, x: ArrayLike) -> np.ndarray:
        """The softmax of the scores of rows x (n, d), shape (n, classes); frequencies where the run
        is calibrated, too steep otherwise."""
        return self.answers.probabilities(self.scores(x))

    def predict(self, x: ArrayLike) -> np.ndarray:
        """The most probable label of every row, or a number, shape (n,)."""
        return self.answers.of(self.scores(x))

    @property
    def accuracies(self) -> tuple[Accuracy, ...]:
        """What the noisy counts say that are released with the model, each with its interval."""
        return accuracies(self.run.counts, self.counted)

    def private_score(
        self,
        x: Any,
        y: Any,
        *,
        epsilon: float,
        by: Any = None,
        groups: Sequence[str] = (),
        unit: Any = None,
        ledger: Any = None,
        dataset: str | None = None,
    ) -> FittedLinear:
        """The model with one more accuracy, counted with noise on private records x (n, d) and
        their labels y (n,).

        ``epsilon``: what the count costs by itself, at the model's delta. ``groups``, ``by``: one
        accuracy for each of these public names instead, ``by`` (n,) the name of every record's
        group; for all of them together the same ``epsilon``, since a record is of one group.
        ``unit``: who a row belongs to, demanded where the model protects such; nobody may have more
        of these than the run's ``rows_per_unit``. ``ledger``, ``dataset``: those of these records,
        charged before one is looked at. Read it as the last of ``accuracies`` of the model that is returned.

        **Guarantee:** the certificate of the returned model covers the count in addition to
        everything else, as if every record were counted and trained on. The certificate of this
        model does not, and must not be shown together with the count.
        """
        if type(self) is not FittedLinear or self.exact:
            raise InputError(
                "model", "must be one whose certificate a count can be added to", self.form
            )
        if self.run.nominal:
            raise InputError(
                "model",
                "must not be trained under add-remove: the certificate would state how many "
                "records are counted",
                self.run.adjacency,
                "train with zero-out, where n is public",
            )
        if self.run.rows_per_record > 1:
            raise InputError(
                "model",
                "must be one whose records are rows: a count would count the rows of a person as a "
                "group",
                f"records of up to {self.run.rows_per_record} rows",
                "score public records by predict, which costs nothing, or train with one row of "
                "each person, or with report_accuracy=, which counts rows",
            )
        if unit is None and self.certificate.unit:
            raise InputError(
                "unit",
                f"is needed: the certificate is about each {self.certificate.unit} with at most "
                f"{self.run.rows_per_unit} of these rows",
                None,
                f"say whose every row is: unit=table[{self.certificate.unit!r}]",
            )
        check_kept("data", (x, y) if by is None else (x, y, by))
        mu = worth(epsilon, self.delta)
        if not 0 < mu < math.inf:
            raise InputError("epsilon", "must be a positive number", epsilon)
        wanted = count_of(self.run, mu, int(np.shape(x)[0]), by, tuple(groups))
        labels = self._labels_alike(y, wanted.records)
        run, old = replace(self.run, counts=(*self.run.counts, wanted)), self.certificate
        said = (
            *check_rows(unit, wanted.records, run.rows_per_unit),
            *caveats_of_one(mu, self.delta),
        )
        unseen = tuple(text for text in said if text not in old.caveats)
        proof = replace(
            account(run, min_evidence=old.min_evidence),
            caveats=(*old.caveats, *unseen),
            unit=old.unit,
        )
        charging = make_charging(ledger=ledger, dataset=dataset, purpose="private_score")
        charging.of_units = unit is not None
        charging.charge(CountCharge(run, wanted, run.adjacency), delta=self.delta)
        right = self.predict(x) == labels
        numbers = noisy_numbers(right, by, wanted, fresh_key())
        model = replace(self, proof=proof, run=run, counted=(*self.counted, *numbers))
        charging.finish(model)
        return model

    def _labels_alike(self, y: object, records: int) -> np.ndarray:
        """The labels (n,), refused where they are of another kind than those of the model: none
        would be right."""
        labels = np.asarray(y)
        assert isinstance(self.answers, Labels)
        if labels.shape != (records,):
            raise InputError("y", f"must be one label for each of {records} records", labels.shape)
        held, given = (
            np.asarray(list(values)).dtype.kind for values in (self.answers.values, labels.tolist())
        )
        if (held == "U") != (given == "U"):
            words = ("texts", "numbers") if held == "U" else ("numbers", "texts")
            raise InputError(
                "y",
                f"must hold labels of the model, which are {words[0]}",
                words[1],
                "give labels as predict does",
            )
        return labels

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        tensors = {"weights": self.released.weights}
        tensors |= {"counted": np.asarray(self.counted)} if self.counted else {}
        tensors |= {
            f"prepared_{i}": np.asarray(part) for i, part in enumerate(self.released.released)
        }
        return {"run": self.run.to_dict(), "answers": as_json(self.answers)}, tensors

    def summary(self) -> str:
        outputs, columns = self.released.weights.shape
        return f"{columns - 1} features to {self.answers.words(outputs)}, {self.run.steps} steps, n = {self.run.n}"


def read(stored: StoredModel, like: object = None) -> FittedLinear:
    """The model in a folder."""
    if like is not None:
        raise InputError(
            "like",
            "is for networks; a linear model needs none",
            type(like).__name__,
            "leave it out",
        )
    run, tensors = Run.from_dict(stored.model["run"]), stored.tensors()
    names = ["weights", *(f"prepared_{i}" for i in range(len(run.preprocessing)))]
    counted = tuple(map(float, tensors.pop("counted", np.zeros(0)).ravel()))
    if len(counted) != sum(count.numbers for count in run.counts) or not np.isfinite(counted).all():
        raise InputError(
            "model", "must hold the numbers of every count of its run", len(counted), "train again"
        )
    if sorted(tensors) != sorted(names) or not all(
        np.isfinite(array).all() for array in tensors.values()
    ):
        raise InputError(
            "model", "must hold the weights of its run", sorted(tensors), "train again"
        )
    weights = tensors["weights"]
    if weights.dtype != np.float64:
        raise InputError(
            "model", "must hold weights in double precision", weights.dtype, "train again"
        )
    if weights.ndim != 2 or weights.shape[0] != _outputs(run) or weights.shape[1] < 2:
        raise InputError(
            "model", "must hold weights of the shape that its run releases", weights.shape
        )
    released = TrainedWeights(weights, tuple(tensors[name] for name in names[1:]))
    try:
        for rows in (3, 5):  # a part that fits one number of rows alone is none of every row
            scores(
                run,
                released,
                np.zeros((rows, weights.shape[1] - 1 - columns(run.preprocessing, 0))),
            )
    except (ValueError, IndexError, TypeError):
        raise InputError(
            "model", "must hold a preparation that fits its weights", None, "train again"
        ) from None
    schema = (
        None if stored.model.get("schema") is None else Schema.from_dict(stored.model["schema"])
    )
    answers = from_json(stored.model.get("answers"))
    if isinstance(answers, Labels) and len(answers.values) != max(2, weights.shape[0]):
        raise InputError(
            "model",
            f"must name one label for each of its {max(2, weights.shape[0])} classes",
            len(answers.values),
        )
    check_answers(schema, answers)
    return FittedLinear(
        proof=ProvenanceRecord(stored.certificate),
        delta=stored.certificate["delta"],
        schema=schema,
        run=run,
        released=released,
        answers=answers,
        counted=counted,
    )


def _outputs(run: Run) -> int:
    if run.loss.outputs is None:
        raise InputError("run", "must have a linear loss", type(run.loss).__name__)
    return run.loss.outputs


# Execution of a run, and what is refused before it.


def knows(model: object) -> bool:
    """A linear model needs no first parameters: they are 0."""
    return model is None


def name_optimizer(optimizer: object, model: object) -> str:
    """Linear models take no optimizer of a caller."""
    raise InputError(
        "optimizer",
        "is for losses given as functions",
        None,
        "use optimizer=Adam(), or another rule",
    )


def draws(model: object, loss: object, augment: object) -> list[str]:
    """Nothing: a linear model's loss is the run's own."""
    if augment is not None:
        raise InputError(
            "augment", "is for losses given as functions, and for modules", None, "leave it out"
        )
    return []


def check(order: TrainingRequest) -> TrainingRequest:
    """Refuse what linear models have no use for; rows and targets as arrays, of which only the form
    is looked at."""
    run = order.certificate.run
    if run.loss.outputs is None:
        raise InputError(
            "loss of the run",
            "must be a linear one where neither model nor loss is given",
            "KnownConstants",
            "use Logistic, Softmax or HuberRidge, or pass first parameters as model= and a loss=",
        )
    if order.microbatch is not None:
        raise InputError(
            "microbatch", "is for losses given as functions", order.microbatch, "leave it out"
        )
    if order.optimizer is not None:
        raise InputError(
            "optimizer",
            "is for losses given as functions",
            None,
            "use optimizer=Adam(), or another rule",
        )
    if run.release != "last":
        raise InputError(
            "release",
            "must be 'last' where a model is released",
            run.release,
            "use lastiterate.engine.execute for all iterates",
        )
    if solver_of(run) is not None:
        order.charging.without_checkpoint("of a run without steps")
    if order.exact:
        from lastiterate.engine.exact_linear import grid_of

        grid_of(run)
    elif len(run.counts) != (0 if order.places is None else 1) or any(
        count.numbers > 1 for count in run.counts
    ):
        raise InputError(
            "counts",
            "must be one, with the records that it is about",
            len(run.counts),
            "use report_accuracy, or private_score of the model",
        )
    return (
        order
        if isinstance(order.data, LazyRecords) or is_source(order.data)
        else replace(order, data=_arrays(order))
    )


def _arrays(order: TrainingRequest) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets; their form is checked, their values are not looked at."""
    run, data = order.certificate.run, order.data
    if len(data) != 2:
        raise InputError("data", "must be (x, y) for a linear model", f"{len(data)} parts")
    rows, target = np.asarray(data[0]), np.asarray(data[1])
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise InputError(
            "x", "must be a table of numbers, shape (n, d)", f"{rows.dtype} of shape {rows.shape}"
        )
    trained = len(rows) if order.places is None else len(order.places[0])
    if run.rows_per_record == 1 and not run.admits(trained):
        raise InputError(
            "x",
            "must have a row" if run.nominal else f"must have the run's n = {run.n} rows",
            len(rows),
        )
    if target.ndim != 1 or target.dtype.kind not in "biufO":
        raise InputError(
            "target",
            "must be numbers, or class indices, of shape (n,)",
            f"{target.dtype} of shape {target.shape}",
            "encode labels first",
        )
    return rows, target


def fit(order: TrainingRequest, key: Key | None) -> FittedLinear:
    """Execute the run on rows (n, d) and targets (n,), or on a source of them, and release its last
    iterate."""
    run = order.certificate.run
    model = FittedLinear(
        proof=order.certificate,
        delta=order.delta,
        schema=order.schema,
        exact=order.exact,
        run=run,
        released=_execute_order(order, key),
        answers=_indices_of(run) if order.answers is None else order.answers,
    )
    return (
        model
        if order.places is None or order.exact
        else replace(model, counted=_count_correct(model, order))
    )


def _execute_order(order: TrainingRequest, key: Key | None) -> TrainedWeights:
    """By the arithmetic that was asked for, on records as they come."""
    run, checkpoint = order.certificate.run, order.charging.checkpoint
    if is_source(order.data):
        return execute_streaming(
            run, order.data, key, order.progress, checkpoint, order.scratch, order.devices
        )
    rows, target = order.data
    if order.places is not None:
        if checkpoint is not None and order.answers is not None:
            checkpoint.held_out = (rows[order.places[1]], target[order.places[1]])
            checkpoint.read_as = f", counted as {json.dumps(as_json(order.answers))}"
        rows, target = rows[order.places[0]], target[order.places[0]]
    if order.exact:
        from lastiterate.engine.exact_linear import execute_exactly

        return execute_exactly(run, rows, target, key, order.progress, checkpoint)
    if run.rows_per_record > 1:
        records = unit_records((rows, target), order.trained_units, run.rows_per_record)
        return execute_units(run, records, key, order.progress, checkpoint)
    if order.devices > 1:
        source = Arrays((rows, target))
        return execute_streaming(
            run, source, key, order.progress, checkpoint, order.scratch, order.devices
        )
    return execute(run, rows, target, key, order.progress, checkpoint)


def _count_correct(model: FittedLinear, order: TrainingRequest) -> tuple[float, ...]:
    """The noisy count of right answers on the records that are kept for it.

    **Guarantee:** a run that resumes from a checkpoint gives the same number as before: it was
    charged for one.
    """
    assert order.places is not None and isinstance(model.answers, Labels)
    rows, target = (part[order.places[1]] for part in order.data)
    right = model.predict(rows) == np.asarray(model.answers.values)[target]
    # several processes release one number
    return noisy_numbers(
        right, None, model.run.counts[0], Devices(order.devices).same_key(_count_key(order))
    )


def _count_key(order: TrainingRequest) -> Key:
    """What the noise of the count is drawn under: of a seed, of the run's own key where a
    checkpoint has it, or new."""
    if order.seed is not None:
        return keys_from_seed(order.seed, 2)[1]
    checkpoint = order.charging.checkpoint
    return fresh_key() if checkpoint is None else checkpoint.derive_stream(COUNT)


def _indices_of(run: Run) -> Answers:
    """What scores mean where classes are known by their indices."""
    return Labels(tuple(range(run.loss.target_classes))) if run.loss.target_classes else Scores()
