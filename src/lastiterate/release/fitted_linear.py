"""A released linear model: its predictions, and its folder.

Who predicts imports neither what trains it nor what certifies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.data.schema import Schema
from lastiterate.engine.preprocessing import TrainedWeights, scores
from lastiterate.errors import InputError
from lastiterate.release.folder import StoredModel
from lastiterate.release.released_model import SelfContainedModel
from lastiterate.release.score_meaning import Answers, Labels, as_json, check_answers, from_json
from lastiterate.release.signatures import ProvenanceRecord
from lastiterate.run.preprocessing import columns
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept

if TYPE_CHECKING:
    from lastiterate.accounting.private_selection import Selection
    from lastiterate.accounting.unlearning import Unlearning
    from lastiterate.release.noisy_accuracy import Accuracy


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

    @property
    def features(self) -> int:
        return self.released.weights.shape[1] - 1 - columns(self.run.preprocessing, 0)

    def scores(self, x: ArrayLike) -> np.ndarray:
        """Linear scores of rows x (n, d), shape (n, k), prepared and clipped as in training."""
        check_kept("x", x)
        rows = np.asarray(x)
        self.check_rows(rows)
        return scores(self.run, self.released, rows)

    def check_rows(self, rows: np.ndarray) -> None:
        """Refuse what has not the form of rows of the model; no value is looked at."""
        wanted = self.features
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
        from lastiterate.release.noisy_accuracy import accuracies

        return accuracies(self.run.counts, self.counted)

    def effects(self) -> tuple[Any, ...]:
        """How the score changes with every column of the schema, the largest effect first, as the
        report draws it.

        An effect has the ``column``, the ``places`` in its range (with ``labels`` for categories),
        the ``change`` of the score at each, and in ``band`` two standard deviations of the noise,
        as large as it is for a value that no record has (``bounded``; an average of iterates has
        twice the weights' root mean square instead).
        There are none of text, of arrays, and without a schema.
        """
        found = import_module("lastiterate.release.column_effects").column_effects(self)
        return tuple(found)

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
        their labels y (n,). ``x`` may be a data frame, or columns by name, where the model has a
        schema.

        ``epsilon``: what the count costs by itself, at the model's delta. ``groups``, ``by``: one
        accuracy for each of these public names instead, ``by`` (n,) the name of every record's
        group; for all of them together the same ``epsilon``, since a record is of one group. Labels
        as groups show whether a rare class is predicted, which one overall accuracy does not.
        ``unit``: who a row belongs to, demanded where the model protects such; nobody may have more
        of these than the run's ``rows_per_unit``. ``ledger``, ``dataset``: those of these records,
        charged before one is looked at. Read it as the last of ``accuracies`` of the model that is returned.

        **Guarantee:** the certificate of the returned model covers the count in addition to
        everything else, as if every record were counted and trained on. The certificate of this
        model does not, and must not be shown together with the count.
        """
        return import_module("lastiterate.release.linear_model").add_count(
            self, x, y, epsilon, by, groups, unit, ledger, dataset
        )

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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedSelected(FittedLinear):
    """The selected linear model; its certificate is about all candidates."""

    kind: ClassVar[str] = "selected"
    selection: Selection

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        model, tensors = FittedLinear.contents(self)
        return model | {"selection": self.selection.description()}, tensors


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedUnlearned(FittedLinear):
    """A linear model whose certificate compares it with one that never saw the removed records."""

    kind: ClassVar[str] = "unlearned"
    unlearning: Unlearning

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        model, tensors = FittedLinear.contents(self)
        return model | {"unlearning": self.unlearning.description()}, tensors

    def summary(self) -> str:
        return f"{FittedLinear.summary(self)}, {self.unlearning.words.short}"


def run_for_scores(unlearning: Unlearning) -> Run:
    """The run whose preparation and rows the scores of an unlearned model need."""
    last, training = unlearning.requests[-1].run, unlearning.training
    return (
        replace(last, preprocessing=training.preprocessing) if isinstance(training, Run) else last
    )


def read(stored: StoredModel, like: object = None) -> FittedLinear:
    """The model in a folder: of one run, selected from several, or unlearned."""
    model = _read_linear(stored, like)
    if stored.model["kind"] == FittedSelected.kind:
        from lastiterate.accounting.private_selection import Selection

        selection = Selection.from_dict(stored.model["selection"])
        if model.run not in selection.candidates:
            raise InputError(
                "model", "must be one of the candidates of its certificate", None, "train again"
            )
        return FittedSelected(**vars(model), selection=selection)
    if stored.model["kind"] == FittedUnlearned.kind:
        from lastiterate.accounting.unlearning import Unlearning

        unlearning = Unlearning.from_dict(stored.model["unlearning"])
        if model.run != run_for_scores(unlearning):
            raise InputError(
                "model", "must be scored by the run of its certificate", None, "forget again"
            )
        return FittedUnlearned(**vars(model), unlearning=unlearning)
    return model


def _read_linear(stored: StoredModel, like: object) -> FittedLinear:
    """The model of one run in a folder."""
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
