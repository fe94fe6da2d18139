"""`audit`: train models on neighbouring data sets, attack them, compare with the certificate."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from lastiterate import interrupts
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.audit import attacks, conformance, end_to_end, learned_scores, networks
from lastiterate.audit.attacks import PORTFOLIO, by_name
from lastiterate.audit.canaries import Neighbours, Train, check_adjacency, worst_case
from lastiterate.audit.canary_families import families
from lastiterate.audit.end_to_end import (
    AT_ONCE,
    TrialPlan,
    alone,
    batch_size,
    can_audit_whole,
    one_by_one,
    plan_trials,
)
from lastiterate.audit.report import AttackScores, AuditReport, Claim, conclude
from lastiterate.audit.score_distributions import find_score_laws, spread_over_devices
from lastiterate.audit.scores import (
    Progress,
    Results,
    check_pure,
    collect,
    pilots_of,
    settings,
    train_in_batches,
)
from lastiterate.audit.statements import Statement, choose_statements, fit_attacks
from lastiterate.audit.statistics import require_statement
from lastiterate.engine import Trainer
from lastiterate.errors import InputError
from lastiterate.lazy import accept_old_names
from lastiterate.release import folder, verification
from lastiterate.release.linear_model import FittedLinear
from lastiterate.run import serialization, validation
from lastiterate.run.facts import Evidence
from lastiterate.run.losses import KnownConstants
from lastiterate.run.measured_smoothness import without_preparation
from lastiterate.run.run import Run
from lastiterate.run.updates import PostProcessing

# Which parts of a run an audit executes, and which it does not: found by comparing two
# descriptions.

STAND_IN = (
    "the loss is a stand-in whose gradients are the records: a user's own loss is not looked at"
)
GIVEN = (
    "the given trainer was attacked as it is, with its own loss: whether it executes the run is not "
    "looked at"
)
PLAIN_STEPS = (
    "the optimizer's rule ({}) is not executed: it sees noisy sums alone, and plain steps on the same "
    "sums were attacked"
)
PLAIN_RECORDS = "{} of records is not executed: it acts on one record before its clip"
STEPS = "the steps of the run were attacked, not the fit around them"
AS_THEY_ARE = (
    "all iterates are attacked as they are: what single steps added cannot be read off them"
)


@dataclass(frozen=True)
class AuditedRun:
    """The part of a run that is attacked; the part whose certificate it is held against, which
    fields of the description that lacks, and what else is to be said."""

    run: Run
    claimed: Run
    lacking: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


def auditable(run: Run, *, steps_only: bool = False, given: bool = False) -> AuditedRun:
    """What is attacked of ``run``; ``steps_only``: by models without preparation and calibration;
    ``given``: by a trainer of the caller's, which may execute all that is described of a record."""
    attacked = replace(run, counts=(), rows_per_unit=1, augmentation=None)
    skipped = tuple[str, ...]()
    if isinstance(run.optimizer, PostProcessing) and not given:
        attacked = replace(attacked, optimizer=None)
        skipped += (PLAIN_STEPS.format(run.optimizer.name),)
    if run.augmentation is not None and not given:
        skipped += (PLAIN_RECORDS.format(run.augmentation.name),)
    if steps_only or not can_audit_whole(run) or networks.is_clipped_only(run):
        attacked = without_preparation(
            replace(attacked, probability_calibration=None, rows_per_record=1)
        )
    if networks.is_clipped_only(run) and isinstance(
        run.loss, KnownConstants
    ):  # whose records have no class: each counts fully
        attacked = replace(attacked, loss=replace(run.loss, class_weights=None))
    stand_in = networks.is_clipped_only(run) and not given
    caveats: tuple[str, ...] = (GIVEN,) if given else (STAND_IN,) if stand_in else ()
    caveats += skipped
    if run.release == "all" and not learned_scores.readable(attacked):
        caveats += (AS_THEY_ARE,)
    claimed = (
        replace(run, rows_per_unit=1, rows_per_record=attacked.rows_per_record)
        if given
        else attacked
    )
    lacking = list_missing_fields(run, claimed)
    if isinstance(run.loss, KnownConstants) and not given:
        lacking += ("loss (a function of the user's)",)
    return AuditedRun(attacked, claimed, lacking, caveats)


def list_missing_fields(run: Run, attacked: Run) -> tuple[str, ...]:
    """The fields of ``run`` that ``attacked`` does not have as they are described, with what is
    described there."""
    differing = [
        item.name for item in fields(Run) if getattr(run, item.name) != getattr(attacked, item.name)
    ]
    return tuple(f"{name} ({_words(getattr(run, name))})" for name in differing)


def _words(value: object) -> str:
    """The classes of what stands in a field, or a number as it is."""
    if isinstance(value, tuple):
        return ", ".join(_words(part) for part in cast("tuple[object, ...]", value))
    return str(value) if isinstance(value, int | float | str) else type(value).__name__


# ``audit``: train many models on neighbouring data sets, attack them, compare with the
# certificate.

THRESHOLDS = 2
SINGLE = "the public ways to train: one attack was asked for"
OTHER_TRAINER = "the public ways to train: a trainer or an estimator was given"
REPLAYED = 100
"""Models per data set by default where they are trained one by one."""


class Interrupted(KeyboardInterrupt):
    """An audit was interrupted: ``report`` is what the models say that were counted by then.

    Its statements hold as if no more had been planned, because nothing but time and speed is shown
    before the end.
    """

    def __init__(self, report: AuditReport) -> None:
        super().__init__("the audit was interrupted")
        self.report = report


@accept_old_names("audit", at_least="min_evidence")
def audit(
    run: Any,
    *,
    attack: str | None = None,
    trials: int | None = None,
    failure: float = 0.05,
    delta: float = 1e-5,
    batch_models: int | None = None,
    results: str | Path | None = None,
    seed: int | None = None,
    neighbours: Neighbours | None = None,
    n: int | None = None,
    features: int | None = None,
    train: Train | None = None,
    min_evidence: Evidence = Evidence.ENFORCED,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack the trainer of a run, and bound its epsilon from below.

    Parameters
    ----------
    run : Run, ExactRun or estimator
        Run, run with exact noise, or one of the library's estimators, which is attacked as a whole
        on ``n`` synthetic records.
    attack : str, optional
        Name of one of ``ATTACKS``, or "replay"; by default a portfolio on the two most decisive of
        many pairs, and a check of whether the public calls execute what is audited.
    trials : int, optional
        Number of counted models per data set; by default what one to four minutes
        train on two cores.
    failure : float, default 0.05
        Probability that any statement of the report is wrong.
    delta : float, default 1e-5
        Delta at which epsilon is stated.
    batch_models : int, optional
        Number of models trained at once.
    results : path, optional
        File to resume from, with the trials, batches and seed that it was begun with.
    seed : int, optional
        Seed of the models.
    neighbours : Neighbours, optional
        Pair to attack; by default synthetic ones.
    n : int, optional
        Number of synthetic records, for an estimator.
    features : int, optional
        Number of columns of the synthetic records.
    train : callable, optional
        Trainer to audit: ``train(features, target, keys)`` returns released parameters, one model
        per key. By default it is the library's.
    min_evidence : Evidence, default Evidence.ENFORCED
        Weakest evidence of the facts that the certificate may rest on.
    progress : callable, optional
        ``progress(done, total, models_per_minute, seconds_left)``, called first with the estimate
        and then from time to time.

    Returns
    -------
    AuditReport
        Lower bound next to the certificate's upper bound.

    Raises
    ------
    InputError
        If numbers are too small for any statement, neighbours have another adjacency, or the
        trainer is not a pure function of data and key.
    Interrupted
        If the audit is interrupted; it has the report of the models counted so far.

    See Also
    --------
    audit_one_run : Audit by one model.

    Notes
    -----
    **Guarantee:** that of `AuditReport`. Nothing is chosen on the models that are counted.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=20, steps=5, step_size=0.5, noise=li.NoiseMultiplier(2), loss=li.Logistic())
    >>> report = li.audit.audit(run, attack="projection", trials=200, seed=0)
    >>> report.refuted, 0 < report.lower < report.upper
    (False, True)
    """
    exact = type(run) is ExactRun
    whole = (
        None
        if type(run) is Run
        else end_to_end.exactly(run, features)
        if exact
        else end_to_end.end_to_end(run, n, features)
    )
    described, given = run, train is not None and not isinstance(train, end_to_end.AuditedTrainer)
    replayed = attack == attacks.NAME
    if replayed and (exact or train is not None):
        raise InputError(
            "attack",
            "'replay' guesses the keys that the library draws for noise in floating point",
            "exact noise" if exact else "a trainer",
            "leave attack out",
        )
    if whole is None:
        attacked = auditable(run, steps_only=replayed, given=given)
    else:
        said = GIVEN if given else STEPS if replayed else whole.said
        attacked = AuditedRun(whole.run, whole.run, (), (said,))
    run, caveats, left = attacked.run, attacked.caveats, attacked.lacking
    if seed is not None:
        validation.check_integer("seed", seed, least=0)
    begun = settings(results)
    trials, batch_models, seed = (
        begun.get(name) if value is None else value
        for name, value in (("trials", trials), ("batch_models", batch_models), ("seed", seed))
    )
    if not replayed and trials is not None:
        require_statement(trials, failure, delta, THRESHOLDS)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    pairs = _pairs(run, neighbours, attack, features if whole is None else whole.columns, seed)
    if networks.is_clipped_only(run) and not given:
        _check_gradients(pairs[0])
    certificate = (
        account(attacked.claimed, min_evidence=min_evidence) if whole is None else whole.certificate
    )
    upper_whole = _whole_epsilon(described, certificate, min_evidence, delta) if left else None
    if replayed:
        report = _replay(run, pairs[0], certificate, trials, failure, delta, caveats, progress)
        return replace(report, not_executed=(*left, SINGLE), upper_whole=upper_whole)
    if attack is not None:
        by_name(attack)
    own = train is None and whole is None and attack is None
    if (own and alone(run)) or whole is not None:
        batch_models = AT_ONCE if batch_models is None else batch_models
    most = (
        batch_size(run, math.prod(pairs[0].with_record.features.shape[1:]))
        if batch_models is None
        else batch_models
    )
    trained = train or (default_train(run) if whole is None else whole.train)
    plan, pairs = plan_trials(run, pairs, trained, trials, batch_models, seed, most)
    require_statement(plan.trials, failure, delta, THRESHOLDS)
    task = _Task(run, pairs, trained, plan, certificate, failure, delta, progress)
    statements, rate = task.run_pilot(attack)
    if own or (attack is None and (exact or isinstance(train, end_to_end.AuditedTrainer))):
        with interrupts.keep_outcome():  # it trains by the public calls, which name their outcomes
            broken, unused = task.as_described(exact=exact)
    else:
        broken, unused = (), (SINGLE if attack is not None else OTHER_TRAINER,)
    task.announce(statements, rate)
    judged = task.score_models(statements, attack, results)
    short = len(judged[0].scores[0]) < plan.trials
    if short:
        caveats = (*caveats, f"interrupted: {plan.trials} models per data set were planned")
    report = conclude(
        certificate,
        judged,
        failure=failure,
        delta=delta,
        pilot=plan.pilot,
        seed=seed,
        caveats=caveats,
        claim=task.claim,
        violations=broken,
        pairs=len(pairs),
        not_executed=(*left, *unused),
        upper_whole=upper_whole,
    )
    if short:
        raise Interrupted(report)
    return report


def _whole_epsilon(
    run: Run, attacked: Certificate, min_evidence: Evidence, delta: float
) -> float | None:
    """Return the epsilon of the whole description where it is not that of the attacked part."""
    epsilon = account(run, min_evidence=min_evidence).epsilon(delta)
    return None if epsilon == attacked.epsilon(delta) else epsilon


@dataclass(frozen=True, eq=False)
class _Task:
    """One audit: pilots of all pairs, then the models that count."""

    run: Run
    pairs: tuple[Neighbours, ...]
    train: Train
    plan: TrialPlan
    certificate: Certificate
    failure: float
    delta: float
    progress: Progress | None

    @cached_property
    def claim(self) -> Claim:
        return Claim.of(self.certificate)

    def as_described(self, *, exact: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the library's own trainer does not do, and what of it was not executed."""
        run, pair, size = self.run, self.pairs[0], self.plan.batch_models
        network, handed = (
            networks.is_clipped_only(run),
            isinstance(self.train, end_to_end.AuditedTrainer),
        )
        if isinstance(self.train, end_to_end.AuditedTrainer):
            call = self.train.call(pair)
        else:
            call = (
                networks.public(run, pair) if network else end_to_end.linear(run, pair, exact=exact)
            )
        broken, left = end_to_end.check_entry_points(
            call,
            lambda keys: train_in_batches(run, pair.with_record, self.train, keys, size),
            noisy=conformance.noisy(run),
        )
        steps = (
            ()
            if exact or handed
            else (networks if network else conformance).violations(run, pair, size)
        )
        return (*conformance.cipher_violations(), *steps, *broken), left

    def run_pilot(self, attack: str | None) -> tuple[list[Statement], float]:
        """The statements that will be counted, and how many models were trained in a second."""
        run, plan, began = self.run, self.plan, time.perf_counter()
        statements = list[Statement]()
        for number, pair in enumerate(self.pairs):
            pilots = pilots_of(run, number, pair, self.train, plan)
            if number == 0:
                check_pure(run, pair, self.train, plan, pilots[0])
            statements += fit_attacks(
                run, number, pair, pilots, self.claim, PORTFOLIO if attack is None else (attack,)
            )
        if not statements:
            raise InputError("attack", "does not fit these neighbours", attack, "leave it out")
        statements = choose_statements(run, self.pairs, statements)
        rate = 2 * plan.pilot * len(self.pairs) / (time.perf_counter() - began)
        statements[0] = statements[0].with_thresholds(
            plan.trials, self.delta, self.failure * statements[0].share
        )
        return statements, rate

    def announce(self, statements: list[Statement], rate: float) -> None:
        """Say how many models will be counted, and how long that takes at so many in a second."""
        if self.progress is not None:
            total = 2 * self.plan.trials * len({one.pair for one in statements})
            self.progress(0, total, 60 * rate, total / rate)

    def score_models(
        self, statements: list[Statement], attack: str | None, results: str | Path | None
    ) -> list[AttackScores]:
        """Scores of the models that count, the favourite's first."""
        kept = {one.pair: self.pairs[one.pair] for one in statements}
        about = identity(
            self.run, tuple(kept.values()), attack, self.plan, self.delta, self.failure
        )
        scores = {
            number: [one.score for one in statements if one.pair == number] for number in kept
        }
        store = collect(
            self.run,
            kept,
            scores,
            self.train,
            self.plan,
            Results(None if results is None else Path(results), about),
            self.progress,
        )
        columns = [
            (one, store.of(one.pair, scores[one.pair].index(one.score))) for one in statements
        ]
        return [
            AttackScores(
                one.attack,
                kept[one.pair].about,
                one.thresholds,
                one.share,
                values,
                find_score_laws(self.run, kept[one.pair], one.attack),
            )
            for one, values in columns
            if len(values[0])
        ]


def _pairs(
    run: Run, neighbours: Neighbours | None, attack: str | None, columns: int | None, seed: int
) -> tuple[Neighbours, ...]:
    if neighbours is not None:
        check_adjacency(neighbours, run)
        return (neighbours,)
    if networks.is_clipped_only(run):
        pairs = networks.families(run, seed)
        return pairs if attack is None else pairs[:1]
    return families(run, columns, seed) if attack is None else (worst_case(run, columns),)


def _check_gradients(pair: Neighbours) -> None:
    """Refuse records of the caller's that are no gradients of the stand-in."""
    shape = pair.with_record.features.shape[1:]
    if shape != (networks.SIZE,):
        raise InputError(
            "neighbours",
            f"must hold gradients of {networks.SIZE} numbers where the loss is a function and no "
            "trainer is given",
            f"records of shape {shape}",
            "give the trainer of your model, such as train=lastiterate.torch.trainer(run, module, "
            "loss)",
        )


def _replay(
    run: Run,
    pair: Neighbours,
    certificate: Certificate,
    trials: int | None,
    failure: float,
    delta: float,
    caveats: tuple[str, ...],
    progress: Progress | None,
) -> AuditReport:
    trials = REPLAYED if trials is None else trials
    require_statement(trials, failure, delta)
    signs = attacks.scores(run, pair, trials, progress)
    return conclude(
        certificate,
        [AttackScores(attacks.NAME, pair.about, (0.0,), 1.0, signs)],
        failure=failure,
        delta=delta,
        pilot=0,
        seed=None,
        caveats=caveats,
    )


def default_train(run: Run) -> Train:
    """What the library itself does with the run, on all devices; one model after the other where
    rows are prepared privately."""
    if alone(run) and not networks.is_clipped_only(run):
        return one_by_one(run)
    return spread_over_devices(
        networks.train_many(run) if networks.is_clipped_only(run) else Trainer(run).fit_many
    )


def certificate_of(run: Run, min_evidence: Evidence = Evidence.ENFORCED) -> Certificate:
    """The certificate that an audit of ``run`` is held against: of the part that is attacked."""
    return account(auditable(run).run, min_evidence=min_evidence)


def identity(
    run: Run,
    pairs: tuple[Neighbours, ...],
    attack: str | None,
    plan: TrialPlan,
    delta: float,
    failure: float,
) -> dict[str, Any]:
    """Everything that scores on disk depend on, apart from the code."""
    import hashlib

    digest = hashlib.sha256()
    for pair in pairs:
        for data_set in (pair.with_record, pair.without_record):
            for array in (data_set.features, data_set.target):
                digest.update(np.ascontiguousarray(array).tobytes())
            digest.update(str(data_set.absent).encode())
    return {
        "run": run.to_dict(),
        "neighbours": digest.hexdigest(),
        "attack": attack,
        "trials": plan.trials,
        "pilot": plan.pilot,
        "batch_models": plan.batch_models,
        "seed": plan.seed,
        "delta": delta,
        "failure": failure,
    }


# The subject that a path on the command line names: a run, or the run of a released model.


@dataclass(frozen=True)
class AuditTarget:
    """A run to audit, and the delta at which its certificate speaks (``None`` if it has none)."""

    run: Run
    delta: float | None = None
    min_evidence: Evidence = Evidence.ENFORCED
    kind: str = "run"  #: of the released model, where there is one
    forgetting: Certificate | None = None  #: of a model that forgot, whose last steps ``run`` is
    exact: bool = False  #: whether the noise of ``run`` is exact

    @property
    def attacked(self) -> Run | ExactRun:
        """What ``audit`` takes."""
        return ExactRun(self.run) if self.exact else self.run

    @property
    def whole(self) -> Certificate:
        """Of all that is described, what is attacked and what is not."""
        if self.forgetting is not None:
            return self.forgetting
        return (
            Certificate(ExactRun(self.run))
            if self.exact
            else account(self.run, min_evidence=self.min_evidence)
        )

    @property
    def certificate(self) -> Certificate:
        """Of what is attacked."""
        return (
            Certificate(ExactRun(self.run))
            if self.exact
            else certificate_of(self.run, self.min_evidence)
        )


def read(path: Path) -> AuditTarget:
    """The run in a JSON file, or in the certificate of a folder that train wrote.

    Only the description is used: the model's own data are not touched. Errors: a folder that does
    not verify.
    """
    if not path.exists():
        raise InputError("audit", "needs an existing run file or model folder", str(path))
    if not path.is_dir():
        return AuditTarget(Run.from_dict(serialization.read(path, "run")))
    whole = folder.read(path)
    if problems := verification.verify(path).problems:
        raise InputError(
            "model",
            "does not fit its certificate, with whose values an audit would be compared",
            problems[0],
            "lastiterate verify lists everything",
        )
    stored, model = whole.certificate, whole.model
    delta, evidence = stored.get("delta"), str(stored.get("at_least"))
    if "exact_run" in stored:
        if model.get("kind") != FittedLinear.exact_kind:
            raise InputError(
                "audit",
                "attacks exact noise of linear models only, and this release has exact noise",
                str(model.get("kind")),
                "write the run to a file and audit that",
            )
        return AuditTarget(
            Run.from_dict(stored["exact_run"]), delta, kind=str(model.get("kind")), exact=True
        )
    if "unlearning" in stored:
        subject = Unlearning.read(stored)
        return AuditTarget(
            subject.requests[-1].run,
            delta,
            kind=str(model.get("kind")),
            forgetting=Certificate(subject),
        )
    if "run" not in stored or not isinstance(delta, float) or evidence not in Evidence.__members__:
        raise InputError(
            "certificate",
            "must be one of a run that lastiterate wrote, complete",
            None,
            "check it with lastiterate verify",
        )
    return AuditTarget(
        Run.from_dict(stored["run"]), delta, Evidence[evidence], str(model.get("kind"))
    )
