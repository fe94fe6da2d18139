"""From a data file to a released model and back to predictions: what the command line does, for
Python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from lastiterate.accounting.noise_calibration import check_range
from lastiterate.atomic_files import is_taken
from lastiterate.curves.selection import Runs
from lastiterate.data import BUNDLED
from lastiterate.data.encoding import TIMES
from lastiterate.data.file_stream import Stream
from lastiterate.data.record_source import EncodedSource
from lastiterate.data.schema import Schema
from lastiterate.data.table import Table
from lastiterate.errors import InputError, outside
from lastiterate.limits import memory
from lastiterate.planning.planner import Choice
from lastiterate.planning.presets import is_read_in_order
from lastiterate.planning.task import FeatureMap
from lastiterate.release import posterior, tuning
from lastiterate.release.data_file import (
    SAMPLE,
    SHARE,
    DataFile,
    MemoryBound,
    format_least,
    is_array_too_large,
    open_file,
)
from lastiterate.release.linear_model import FittedLinear
from lastiterate.release.linear_plans import (
    AUTO,
    FeatureChoice,
    candidate,
    check_planned,
    choose_features,
    plan_for_units,
    warn_of_noise,
)
from lastiterate.release.model_kinds import LINEAR, SAMPLED, SELECTED
from lastiterate.release.pipeline import run_release
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.score_meaning import Labels, Range, pick_class, threshold_of
from lastiterate.release.training_request import (
    AUTOMATIC,
    Algorithm,
    Budget,
    LazyRecords,
    TrainingRequest,
)
from lastiterate.remote_files import is_remote, to_path
from lastiterate.run.adjacency import has_fixed_size
from lastiterate.run.validation import relative_weights

ABOUT_DATA = ("data file", "column", "target")
"""Beginnings of the arguments of refusals that say that a file does not fit its schema."""
ONE_CLASS = 0.9
"""Share of the records from which on a class is nearly all of them."""
BY_ACCURACY = (
    "candidates are compared by plain accuracy, whatever the class weights: one that never predicts a "
    "rare class may win; lastiterate train --class-weight trains without a comparison"
)
"""What tuning does with a rare class, which only the user may know of."""


@dataclass(frozen=True, kw_only=True)
class PublicScores:
    """How well a model predicts records that are public; of a model for numbers ``value`` alone.

    ``value``: accuracy or R^2. ``largest_class``, ``largest_share``: the most frequent class of
    these records, and what always answering it gets. Of two classes: ``auroc``, and the
    ``average_precision`` for the one that is rarer there; ``None`` where there is one class alone.
    ``recall``, ``precision``: of the rarer class, for the predicted labels. ``targets``: how many
    numbers were predicted, of which ``targets_outside`` lie outside ``target_range``.
    """

    value: float
    largest_class: str | None = None
    largest_share: float | None = None
    rarer_class: str | None = None
    rarer_share: float | None = None
    auroc: float | None = None
    average_precision: float | None = None
    recall: float | None = None
    precision: float | None = None
    targets: int | None = None
    targets_outside: int | None = None
    target_range: tuple[float, float] | None = None

    @property
    def beyond(self) -> str:
        """How many targets no prediction can reach, in words; empty where none is so."""
        if not self.targets_outside or self.target_range is None:
            return ""
        low, high = self.target_range
        count = f"{self.targets_outside:,} of {self.targets:,} targets"
        lie = "lies" if self.targets_outside == 1 else "lie"
        return f"{count} {lie} outside [{low:g}, {high:g}], and predictions never do"

    @property
    def rare(self) -> bool:
        """Whether one class is nearly all of the records."""
        return self.largest_share is not None and self.largest_share >= ONE_CLASS

    def describe(self, where: str) -> str:
        """All of them in one line; ``where``: what the records are."""
        if self.largest_class is None:
            return f"R^2 {self.value:.3f} on {where}" + (self.beyond and f"; {self.beyond}")
        ranking = (
            ""
            if self.auroc is None
            else f"; AUROC {self.auroc:.3f}; average precision {self.average_precision:.3f} for "
            f"{self.rarer_class}"
        )
        always = f"; always answering {self.largest_class} gets {self.largest_share:.3f}"
        return f"{self.value:.3f} on {where}{always}{ranking}"

    @classmethod
    def of_numbers(cls, answers: Range, predicted: np.ndarray, target: np.ndarray) -> PublicScores:
        """Of predictions (m,), for the targets (m,) as they are written."""
        return cls(
            value=float(
                1 - ((target - predicted) ** 2).sum() / ((target - target.mean()) ** 2).sum()
            ),
            targets=len(target),
            targets_outside=int(((target < answers.low) | (target > answers.high)).sum()),
            target_range=(answers.low, answers.high),
        )

    @classmethod
    def of_classes(cls, labels: Labels, chances: np.ndarray, target: np.ndarray) -> PublicScores:
        """Of probabilities (m, classes), for class indices (m,)."""
        from sklearn import metrics  # pyright: ignore

        shares = np.bincount(target, minlength=len(labels.values)) / len(target)
        names = [str(value) for value in labels.values]
        largest = int(shares.argmax())
        predicted = pick_class(chances, labels.threshold)
        score = cls(
            value=float((predicted == target).mean()),
            largest_class=names[largest],
            largest_share=float(shares[largest]),
        )
        if len(names) != 2 or not shares.all():
            return score
        rarer = 1 - largest
        true, said, ranks = target == rarer, predicted == rarer, chances[:, rarer]
        return replace(
            score,
            rarer_class=names[rarer],
            rarer_share=float(shares[rarer]),
            auroc=float(metrics.roc_auc_score(true, ranks)),  # pyright: ignore
            average_precision=float(metrics.average_precision_score(true, ranks)),  # pyright: ignore
            recall=float(metrics.recall_score(true, said, zero_division=0)),  # pyright: ignore
            precision=float(metrics.precision_score(true, said, zero_division=0)),  # pyright: ignore
        )


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What came out: the model, the order that made it, the maps that make rows, and scores on data
    that is public (``None`` where there are none)."""

    model: ReleasedModel
    order: TrainingRequest
    maps: FeatureChoice
    scores: PublicScores | None = None
    plain_score: float | None = None

    @property
    def test_score(self) -> float | None:
        """Accuracy or R^2 on data that is public."""
        return None if self.scores is None else self.scores.value

    @property
    def choice(self) -> Choice | None:
        """The plans that the run was chosen from."""
        return self.order.choice

    @property
    def features(self) -> str:
        """Why records become rows as they do."""
        return self.maps.why

    def weigh_features(self) -> str:
        """Whether more features pay, in words; plans once more."""
        choice, budget = self.order.choice, self.order.budget
        if choice is None or self.order.task is None or budget is None:
            return ""
        task = replace(self.order.task, n=choice.best.certificate.run.n, feature_map="plain")
        return self.maps.compare_costs(
            task, choice.best, budget, stream=self.order.stream, shared=choice.shared
        )


def _check_several_processes(order: TrainingRequest) -> None:
    """Refuse, by the arguments alone, what one process does with the whole data."""
    assert order.budget is not None
    named, batching = order.algorithm.name, order.algorithm.batching
    in_order = named == AUTOMATIC.name or is_read_in_order(named, batching)
    for name, value, refused in (
        ("model", order.model, order.model == SAMPLE),
        ("adjacency", order.budget.adjacency, not has_fixed_size(order.budget.adjacency)),
        ("batch", batching, not in_order and batching is not None),
        ("algorithm", named, not in_order),
    ):
        if refused:
            raise InputError(
                name,
                f"needs the whole data in one process, and {order.processes.count} were started",
                value,
                "start one, without a launcher",
            )


def check_asked(order: TrainingRequest) -> Budget:
    """Refuse what cannot be combined in a fit on a file; its budget."""
    assert order.budget is not None
    sample, by_planner = order.model == SAMPLE, order.algorithm.planned
    if order.processes.count > 1:
        _check_several_processes(order)
    if (order.stream or order.devices != 1) and sample:
        raise InputError(
            "stream" if order.stream else "devices",
            f"cannot be combined with {SAMPLE}",
            None,
            "it needs the whole data in one memory",
        )
    if order.report_accuracy is not None and (sample or order.exact or order.stream):
        raise InputError(
            "report_accuracy",
            "is for the linear models of plans and algorithms",
            order.report_accuracy,
            "leave it out",
        )
    if sample and not by_planner:
        raise InputError(
            "algorithm",
            f"cannot be combined with {SAMPLE}, which draws one posterior sample",
            None,
        )
    if sample and order.units is not None:
        raise InputError(
            "unit",
            f"cannot be combined with {SAMPLE}, whose bound is for one row",
            order.units.column,
        )
    for name, value in (("class_weight", order.class_weight), ("threshold", order.threshold)):
        if sample and value is not None:
            raise InputError(
                name, f"is for classes, and {SAMPLE} learns a number", value, "leave it out"
            )
    if order.class_weight is not None and order.threshold is not None:
        warnings.warn(
            "class_weight and threshold both move predictions to one class, and together they may "
            "predict nothing else: one of the two is usually enough",
            UserWarning,
            stacklevel=2,
        )
    check_planned(order.features, planned=by_planner and not sample)
    if sample and order.test is not None:
        raise InputError("test", f"is not scored for {SAMPLE}", order.test, "leave it out")
    if order.data in BUNDLED and order.test is not None:
        raise InputError(
            "test",
            "cannot be combined with a bundled set, a fifth of which is kept for testing",
            order.test,
        )
    if not has_fixed_size(order.budget.adjacency) and (order.stream or order.devices != 1):
        raise InputError(
            "stream" if order.stream else "devices",
            "must be left out under add-remove: what is read "
            "in pieces is cut by the number of records, which nothing may follow from",
            None,
        )
    return order.budget


def fit_file(order: TrainingRequest) -> TrainResult:
    """Fit on a file with its schema, or on a bundled public set, of which a fifth is kept for
    testing.

    Its charging is charged as soon as the public numbers of records and features are known, before
    a value is looked at; the caller finishes it. Nothing is written.
    """
    budget, sample = check_asked(order), order.model == SAMPLE
    bound = MemoryBound(order.memory)
    bound = replace(bound, room=order.processes.send(lambda: bound.most))
    if not order.stream and is_array_too_large(order.data, bound):
        order = _read_in_pieces(order, f"its values need more memory: {bound.words}")
    stated = budget.public_n(1)
    file = open_file(
        order.data,
        order.schema,
        units=order.units,
        stream=order.stream,
        nominal=None if has_fixed_size(budget.adjacency) else stated,
    )
    maps = _choose_maps(file, order.features, budget, sample=sample)
    file = file.map_rows(maps.schema, test=order.test, row_norm=order.row_norm)
    if isinstance(file.records, Stream) and file.nominal is None:  # else their number is private
        file.records.progress = order.rows_progress
    order, file = _limit_memory(order, file, bound)
    order = _with_form(order, file)
    order = _plan_sample(order, file, budget) if sample else _plan_linear(order, file, maps)
    return _score_model(run_release(SAMPLED if sample else LINEAR, order), order, file, maps)


def _limit_memory(
    order: TrainingRequest, file: DataFile, bound: MemoryBound
) -> tuple[TrainingRequest, DataFile]:
    """Read rows in pieces that need more memory than the bound; where the run cannot, refuse what
    was stated, and hold them where the machine can.

    **Guarantee:** under add-remove nothing that is said follows from the number of records.
    """
    if file.in_pieces or isinstance(file.table, Table):
        return order, file
    assert isinstance(file.table, EncodedSource)
    in_groups = order.processes.count > 1 and file.table.find_start(len(file.table) - 1) > 0
    if bound.covers(file.memory) and not in_groups:
        return order, file
    reason = _find_hindrance(order, file)
    if in_groups and not reason:
        return order, replace(file, in_pieces=True)  # each process reads its own row groups
    if bound.covers(file.memory):
        return order, file
    if not reason:
        said = f"its rows need about {file.memory / 1e9:.3g} GB of memory, and {bound.words}"
        return _read_in_pieces(order, said), replace(file, in_pieces=True)
    if bound.stated is None and file.memory <= SHARE * memory():
        return order, file
    size = "more" if file.nominal else f"at least {format_least(file.memory)}"
    raise InputError(
        "memory",
        f"must be {size}, since rows are held in memory with {reason}",
        bound.stated,
        "allow more, or leave that out: then they are read in pieces",
    )


def _read_in_pieces(order: TrainingRequest, why: str) -> TrainingRequest:
    if order.notice is not None:
        order.notice(f"the file is read piece by piece: {why}")
    return replace(order, stream=True)


def _find_hindrance(order: TrainingRequest, file: DataFile) -> str:
    """What of an order needs all rows in memory, in words; empty where nothing does."""
    assert order.budget is not None
    hindrances = {
        SAMPLE: order.model == SAMPLE,
        "report_accuracy": order.report_accuracy is not None,
        order.budget.adjacency: not has_fixed_size(order.budget.adjacency),
        "several rows of a unit": order.units is not None and order.units.rows > 1,
    }
    found = next((name for name, hinders in hindrances.items() if hinders), "")
    run = order.algorithm.describe_run(order.budget.make_request(file.task), exact=order.exact)
    if found or run is None or (run.batching.streams and run.method.noisy_steps):
        return found
    return f"algorithm={order.algorithm.name}"


def _choose_maps(file: DataFile, features: str, budget: Budget, *, sample: bool) -> FeatureChoice:
    """The maps of a fit; a posterior sample has none unless they are named."""
    plain = sample and features == AUTO and not file.schema.features
    return choose_features(
        file.schema, "plain" if plain else features, file.shape, file.count, budget
    )


def find_reading_faults(file: DataFile, model: str | None) -> list[InputError]:
    """The first refusal of each column in the reading of ``train`` with its own features; none
    where it takes the file. Which maps a budget carries changes no refusal."""
    maps = None
    try:
        maps = _choose_maps(file, AUTO, Budget(1.0), sample=model == SAMPLE)
        return file.map_rows(maps.schema, test=None, row_norm=None).find_faults()
    except InputError as error:
        if not error.argument.startswith(ABOUT_DATA):
            raise
        read = file if maps is None else replace(file, schema=maps.schema)
        others = read.find_faults()
        return [error, *(other for other in others if other.argument != error.argument)]


def _with_form(order: TrainingRequest, file: DataFile) -> TrainingRequest:
    """The order with what the data's form says; a classifier's threshold belongs to its answers."""
    answers, threshold = file.answers, threshold_of(order.threshold, len(file.schema.classes))
    if isinstance(answers, Labels):
        answers = replace(answers, threshold=threshold)
    read_by = file.table.outside if isinstance(file.table, Table) else ()
    return replace(
        order,
        data=file.data,
        schema=file.schema,
        answers=answers,
        unit=file.who,
        size=file.size(),
        caveats=(*order.caveats, *(part.words for part in read_by)),
    )


def _plan_linear(order: TrainingRequest, file: DataFile, maps: FeatureChoice) -> TrainingRequest:
    weights = relative_weights(order.class_weight, file.schema.classes)
    task = replace(
        file.task, feature_map=maps.part, calibrated=order.calibrated, class_weights=weights
    )
    order.charging.name_unit(order.units, file.schema)
    order = plan_for_units(order, task, order.processes.send(order.charging.allowance))
    warn_of_noise(order.choice)
    return replace(order, model=None, size=file.size(order.certificate.run))


def _plan_sample(order: TrainingRequest, file: DataFile, budget: Budget) -> TrainingRequest:
    task = file.task
    delta = budget.delta_for(task.n)
    proof = posterior.certify_plan(
        task.n,
        task.features,
        row_norm=file.row_norm,
        epsilon=budget.epsilon,
        delta=delta,
        adjacency=budget.adjacency,
    )
    return replace(order, proof=proof, delta=delta, model=file.row_norm)


def tune_file(
    order: TrainingRequest,
    *,
    row_norms: tuple[float, ...] = (),
    algorithms: tuple[Algorithm, ...] = (AUTOMATIC,),
    features: tuple[str, ...] = (),
    law: Runs,
) -> TrainResult:
    """Select one of ``features`` times ``row_norms`` times ``algorithms`` privately on a file, or
    on a bundled public set.

    A bundled set's own held-out fifth scores the released model. The other records are split once
    more, at public positions, into those that candidates are trained on and those that they are
    scored on. Of the order, ``class_weight`` is what a record of each class counts in training;
    scores are counts of right answers, whatever their class; its ``features`` are the only ones
    where none are listed, and "auto" looks at what one candidate may cost.
    """
    budget, named = order.budget, features or (order.features,)
    assert budget is not None
    for name in named:
        check_planned(name, planned=all(one.planned for one in algorithms))
    check_range(budget.epsilon, budget.delta_for(2))
    if not has_fixed_size(budget.adjacency):
        raise InputError(
            "adjacency",
            "must be zero-out or replace-one for tune: candidates are scored on records of "
            "public places, which one record more moves",
            budget.adjacency,
            "use zero-out",
        )
    if order.class_weight is not None:
        warnings.warn(BY_ACCURACY, UserWarning, stacklevel=outside())
    budget.public_n(1)  # refuses a number that nothing would follow from
    file = open_file(order.data, order.schema, units=order.units)
    order.charging.name_unit(order.units, file.schema)
    each = tuning.first_share(budget.epsilon, budget.delta_for(file.count), law)
    trained = len(tuning.parts(file.count)[0])
    share = replace(budget, epsilon=each[0], delta=each[1])
    maps = dict[Schema, FeatureChoice]()
    parts = dict[tuple[Schema, FeatureMap], None]()
    for name in named:
        one = choose_features(file.schema, name, file.shape, trained, share)
        maps.setdefault(one.schema, one)
        parts[one.schema, one.part] = None
    files = {one: file.map_rows(one, test=None, row_norm=None) for one in maps}
    _check_candidates(
        len(
            {
                (norm, one, part)
                for norm in row_norms or (0,)
                for one in algorithms
                for part in parts
            }
        )
    )
    file, shared = next(iter(files.values())), order.charging.allowance()
    task, (train, held) = file.task, tuning.parts(file.task.n)
    delta = budget.delta_for(task.n)
    weights = relative_weights(order.class_weight, file.schema.classes)
    asked = replace(task, n=len(train), calibrated=True, class_weights=weights)
    rows = _columns_of(files)
    proof, of_candidates = tuning.plan_candidates(
        [
            (candidate(replace(asked, **own, row_norm=norm), budget, algorithm, shared), rows[one])
            for one, part in parts
            for own in [{"features": files[one].features, "feature_map": part}]
            for norm in row_norms or (files[one].row_norm,)
            for algorithm in algorithms
        ],
        epsilon=budget.epsilon,
        delta=delta,
        law=law,
        held_out=len(held),
        regression=task.classes == 0,
    )
    _check_candidates(len(of_candidates))
    order = replace(
        _with_form(order, file),
        data=LazyRecords(partial(_read_columns, tuple(files.values()))),
        size=max(one.size() for one in files.values()),
        proof=proof,
        delta=delta,
        model=of_candidates,
    )
    model = run_release(SELECTED, order)
    assert model.schema is not None
    order = replace(order, schema=model.schema, model=None)
    return _score_model(model, order, files[model.schema], maps[model.schema])


def _columns_of(files: Mapping[Schema, DataFile]) -> dict[Schema, tuning.CandidateRows]:
    """The columns of the rows of every schema in the rows of all, side by side."""
    ends = np.cumsum([0, *(one.features for one in files.values())]).tolist()
    if 4 * TIMES * ends[-1] * max(one.task.n for one in files.values()) > memory():
        raise InputError(
            "features",
            "must make rows that fit in memory, all of them at once",
            f"{ends[-1]} numbers of each record",
            "try fewer maps, or smaller ones",
        )
    return {
        schema: tuning.CandidateRows(start, stop, schema)
        for schema, (start, stop) in zip(files, pairwise(ends), strict=True)
    }


def _read_columns(files: Sequence[DataFile]) -> tuple[np.ndarray, np.ndarray]:
    """The rows that every file's schema makes, side by side, and the targets."""
    rows, (targets, *_) = zip(*(one.rows for one in files), strict=True)
    return np.concatenate(rows, axis=1), targets


def _check_candidates(count: int) -> None:
    tuning.check_candidates(
        "candidates",
        count,
        "give --row-norms 0.5,1,2, several --algorithms, or --features several times; to train "
        "one model use lastiterate train, which spends nothing on a choice",
    )


def _score_model(
    model: ReleasedModel, order: TrainingRequest, file: DataFile, maps: FeatureChoice
) -> TrainResult:
    """A released model with what it, and the same model without privacy, score on data that are
    public."""
    score = None if file.tested is None else _score(model, order, file)
    plain = _plain_score(file) if file.bundled and model.kind != SAMPLED.name else None
    return TrainResult(model, order, maps, score, plain)


def _score(model: ReleasedModel, order: TrainingRequest, file: DataFile) -> PublicScores:
    """How well a model predicts the records that are public."""
    assert file.tested is not None
    features, target = file.tested
    if isinstance(order.answers, Labels):
        assert isinstance(model, FittedLinear)
        return PublicScores.of_classes(order.answers, model.probabilities(features), target)
    assert isinstance(file.answers, Range)
    return PublicScores.of_numbers(file.answers, model.predict(features), target)


def _plain_score(file: DataFile) -> float:
    """Score of the same kind of model without privacy; for bundled public sets only."""
    from sklearn.linear_model import LogisticRegression, Ridge  # pyright: ignore

    assert file.tested is not None
    (features, target), answers = file.tested, file.answers
    model = Ridge() if file.schema.regression else LogisticRegression(max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = answers.scale(target) if isinstance(answers, Range) else target
        return float(model.fit(*file.rows).score(features, truth))  # pyright: ignore


def find_free_folder(data: str) -> tuple[Path, Path | None]:
    """models/NAME-K with the first free K, and the one before it, if any."""
    path = to_path(data)
    stem, k, before = (path if is_remote(path) else path.absolute()).stem, 1, None
    while is_taken(folder := Path("models") / f"{stem}-{k}"):
        k, before = k + 1, folder
    return folder, before
