"""``audit``: train many models on pairs of neighbouring data sets, attack them, and compare with the certificate."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.exact_steps import ExactRun
from lastiterate.audit import cipher_check, executed, networks, public_ways, replay
from lastiterate.audit.attacked_run import Attacked, auditable
from lastiterate.audit.attacks import PORTFOLIO, by_name
from lastiterate.audit.canaries import worst_case
from lastiterate.audit.claim import Claim
from lastiterate.audit.described_scores import described
from lastiterate.audit.families import families
from lastiterate.audit.judged import Judged, conclude
from lastiterate.audit.neighbours import Neighbours, Train, check_adjacency
from lastiterate.audit.outcome import AuditReport
from lastiterate.audit.portfolio import Statement, chosen, fitted
from lastiterate.audit.scoring import (
    Progress,
    Results,
    TrialPlan,
    batch_size,
    check_pure,
    collect,
    in_batches,
    pilots_of,
    settings,
)
from lastiterate.audit.shared import on_devices
from lastiterate.audit.sizes import planned
from lastiterate.audit.statistics import require_statement
from lastiterate.audit.whole import AT_ONCE, alone, end_to_end, exactly, one_by_one
from lastiterate.engine import Trainer
from lastiterate.errors import InputError
from lastiterate.run import validate
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run

THRESHOLDS = 2
SINGLE = "the public ways to train: one attack was asked for"
OTHER_TRAINER = "the public ways to train: a trainer or an estimator was given"
REPLAYED = 100
"""Models per data set by default where they are trained one by one."""


class Interrupted(KeyboardInterrupt):
    """An audit was interrupted: ``report`` is what the models say that were counted by then.

    Its statements hold as if no more had been planned, because nothing but time and speed is shown before the end.
    """

    def __init__(self, report: AuditReport) -> None:
        super().__init__("the audit was interrupted")
        self.report = report


def audit(run: Any, *, attack: str | None = None, trials: int | None = None, failure: float = 0.05, delta: float = 1e-5,
          batch_models: int | None = None, results: str | Path | None = None, seed: int | None = None,
          neighbours: Neighbours | None = None, n: int | None = None, features: int | None = None,
          train: Train | None = None, at_least: Evidence = Evidence.ENFORCED, progress: Progress | None = None
          ) -> AuditReport:
    """Attack the trainer of ``run``: a lower bound on epsilon at ``delta`` beside the certificate's upper bound.

    ``run``: a Run, an ``ExactRun`` with its exact noise, or one of the library's estimators, which is attacked as a
    whole on ``n`` made-up records.

    ``attack``: one of ``ATTACKS``, or replay, on the tight pair; by default a portfolio on the two most decisive of
    many pairs, and a look at whether ``fit`` does what is audited. ``trials``: models per data set that count; by
    default as many as a minute holds, which is measured first. ``failure``: probability that any statement
    of the report is wrong. ``neighbours``: the one pair to attack (default: made-up ones, with ``features``
    columns). ``train``: what is audited, (features, target, keys) -> released parameters (default:
    ``Trainer(run).fit_many``). ``results``: a file to resume from, with the trials, batches and seed that it was begun
    with. Errors: ``InputError`` for numbers too small for any statement, neighbours of another adjacency, or a trainer
    that is not a pure function of data and key. ``progress(done, total, models_per_minute, seconds_left)`` is called
    first with the estimate, and then now and then; ``Interrupted`` has the report of what was counted by then.

    **Guarantee:** that of ``AuditReport``; nothing is chosen on the models that are counted.
    """
    exact = type(run) is ExactRun
    whole = None if type(run) is Run else exactly(run, features) if exact else end_to_end(run, n, features)
    attacked = auditable(run) if whole is None else Attacked(whole.run, (), (whole.said,))
    run, caveats, left = attacked.run, attacked.caveats, attacked.lacking
    if seed is not None:
        validate.whole("seed", seed, least=0)
    begun = settings(results)
    trials, batch_models, seed = (begun.get(name) if value is None else value for name, value in (
        ("trials", trials), ("batch_models", batch_models), ("seed", seed)))
    if attack != replay.NAME and trials is not None:
        require_statement(trials, failure, delta, THRESHOLDS)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    pairs = _pairs(run, neighbours, attack, features if whole is None else whole.columns, seed)
    certificate = certificate_of(run, at_least) if whole is None else whole.certificate
    if attack == replay.NAME:
        return _replayed(run, pairs[0], certificate, trials, failure, delta, caveats, progress)
    if attack is not None:
        by_name(attack)
    own = train is None and whole is None and attack is None
    if (own and alone(run)) or whole is not None:
        batch_models = AT_ONCE if batch_models is None else batch_models
    most = batch_size(run, pairs[0].with_record.features.shape[1]) if batch_models is None else batch_models
    trained = train or (default_train(run) if whole is None else whole.train)
    plan, pairs = planned(run, pairs, trained, trials, batch_models, seed, most)
    require_statement(plan.trials, failure, delta, THRESHOLDS)
    task = _Task(run, pairs, trained, plan, certificate, failure, delta, progress)
    statements = task.piloted(attack)
    if own or (attack is None and (exact or isinstance(train, public_ways.Executed))):
        broken, unused = task.as_described(exact=exact)
    else:
        broken, unused = (), (SINGLE if attack is not None else OTHER_TRAINER,)
    judged = task.counted(statements, attack, results)
    short = len(judged[0].scores[0]) < plan.trials
    if short:
        caveats = (*caveats, f"interrupted: {plan.trials} models per data set were planned")
    report = conclude(certificate, judged, failure=failure, delta=delta, pilot=plan.pilot, seed=seed, caveats=caveats,
                      claim=task.claim, violations=broken, pairs=len(pairs), not_executed=(*left, *unused))
    if short:
        raise Interrupted(report)
    return report


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
        network, handed = networks.stands_in(run), isinstance(self.train, public_ways.Executed)
        if isinstance(self.train, public_ways.Executed):
            call = self.train.call(pair)
        else:
            call = networks.public(run, pair) if network else public_ways.linear(run, pair, exact=exact)
        broken, left = public_ways.checked(call, lambda keys: in_batches(run, pair.with_record, self.train, keys, size),
                                           noisy=executed.noisy(run))
        steps = () if exact or handed else (networks if network else executed).violations(run, pair, size)
        return (*cipher_check.violations(), *steps, *broken), left

    def piloted(self, attack: str | None) -> list[Statement]:
        """The statements that will be counted."""
        run, plan, began = self.run, self.plan, time.perf_counter()
        attacks = list[Statement]()
        for number, pair in enumerate(self.pairs):
            pilots = pilots_of(run, number, pair, self.train, plan)
            if number == 0:
                check_pure(run, pair, self.train, plan, pilots[0])
            attacks += fitted(run, number, pair, pilots, self.claim, PORTFOLIO if attack is None else (attack,))
        if not attacks:
            raise InputError("attack", "does not fit these neighbours", attack, "leave it out")
        attacks = chosen(run, self.pairs, attacks)
        if self.progress is not None:
            rate = 2 * plan.pilot * len(self.pairs) / (time.perf_counter() - began)
            total = 2 * plan.trials * len({one.pair for one in attacks})
            self.progress(0, total, 60 * rate, total / rate)
        return [attacks[0].with_thresholds(plan.trials, self.delta, self.failure * attacks[0].share), *attacks[1:]]

    def counted(self, statements: list[Statement], attack: str | None, results: str | Path | None) -> list[Judged]:
        """Scores of the models that count, the favourite's first."""
        kept = {one.pair: self.pairs[one.pair] for one in statements}
        about = identity(self.run, tuple(kept.values()), attack, self.plan, self.delta, self.failure)
        scores = {number: [one.score for one in statements if one.pair == number] for number in kept}
        store = collect(self.run, kept, scores, self.train, self.plan,
                        Results(None if results is None else Path(results), about), self.progress)
        columns = [(one, store.of(one.pair, scores[one.pair].index(one.score))) for one in statements]
        return [Judged(one.attack, kept[one.pair], one.thresholds, one.share, values,
                       described(self.run, kept[one.pair], one.attack)) for one, values in columns if len(values[0])]


def _pairs(run: Run, neighbours: Neighbours | None, attack: str | None, columns: int | None,
           seed: int) -> tuple[Neighbours, ...]:
    if neighbours is not None:
        check_adjacency(neighbours, run)
        return (neighbours,)
    if networks.stands_in(run):
        pairs = networks.families(run, seed)
        return pairs if attack is None else pairs[:1]
    return families(run, columns, seed) if attack is None else (worst_case(run, columns),)


def _replayed(run: Run, pair: Neighbours, certificate: Certificate, trials: int | None, failure: float, delta: float,
              caveats: tuple[str, ...], progress: Progress | None) -> AuditReport:
    trials = REPLAYED if trials is None else trials
    require_statement(trials, failure, delta)
    signs = replay.scores(run, pair, trials, progress)
    return conclude(certificate, [Judged(replay.NAME, pair, (0.0,), 1.0, signs)], failure=failure, delta=delta, pilot=0,
                    seed=None, caveats=caveats)


def default_train(run: Run) -> Train:
    """What the library itself does with the run, on all devices; one model after the other where rows are prepared
    privately."""
    if alone(run) and not networks.stands_in(run):
        return one_by_one(run)
    return on_devices(networks.train_many(run) if networks.stands_in(run) else Trainer(run).fit_many)


def certificate_of(run: Run, at_least: Evidence = Evidence.ENFORCED) -> Certificate:
    """The certificate that an audit of ``run`` is held against: of the part that is attacked."""
    return account(auditable(run).run, at_least=at_least)


def identity(run: Run, pairs: tuple[Neighbours, ...], attack: str | None, plan: TrialPlan, delta: float, failure: float
             ) -> dict[str, Any]:
    """Everything that scores on disk depend on, apart from the code."""
    import hashlib

    digest = hashlib.sha256()
    for pair in pairs:
        for data_set in (pair.with_record, pair.without_record):
            for array in (data_set.features, data_set.target):
                digest.update(np.ascontiguousarray(array).tobytes())
            digest.update(str(data_set.absent).encode())
    return {"run": run.to_dict(), "neighbours": digest.hexdigest(), "attack": attack, "trials": plan.trials,
            "pilot": plan.pilot, "batch_models": plan.batch_models, "seed": plan.seed, "delta": delta,
            "failure": failure}
