"""``audit``: train many models on two neighbouring data sets, attack them, and compare with the certificate."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.audit import pace, replay, trajectory
from lastiterate.audit.adversarial_image import ImageNeighbours
from lastiterate.audit.attacks import by_name, choose_thresholds, count, strongest
from lastiterate.audit.canaries import worst_case
from lastiterate.audit.neighbours import Neighbours, Train, check_adjacency
from lastiterate.audit.outcome import AuditReport, Rate
from lastiterate.audit.scoring import Progress, Results, TrialPlan, all_scores, batch_size, settings, train_first
from lastiterate.audit.statistics import CombinedBounds, Counts, ceiling, gaussian_epsilon, require_statement
from lastiterate.engine import Trainer
from lastiterate.errors import InputError
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run
from lastiterate.run.stable import without_preparation

THRESHOLDS = 2
EXACT = ("projection", trajectory.NAME)
"""Attacks whose score is linear in Gaussian parameters."""
REPLAYED = 100
"""Models per data set by default where they are trained one by one."""


class Interrupted(KeyboardInterrupt):
    """An audit was interrupted: ``report`` is what the models say that were counted by then.

    Its statements hold as if no more had been planned, because nothing but time and speed is shown before the end.
    """

    def __init__(self, report: AuditReport) -> None:
        super().__init__("the audit was interrupted")
        self.report = report


def audit(run: Run, *, attack: str | None = None, trials: int | None = None, failure: float = 0.05, delta: float = 1e-5,
          batch_models: int | None = None, results: str | Path | None = None, seed: int | None = None,
          neighbours: Neighbours | None = None, features: int | None = None, train: Train | None = None,
          at_least: Evidence = Evidence.ENFORCED, progress: Progress | None = None) -> AuditReport:
    """Attack the trainer of ``run``: a lower bound on epsilon at ``delta`` beside the certificate's upper bound.

    ``attack``: one of ``ATTACKS``, or replay; by default the strongest that fits. ``trials``: models per data set that
    count; by default as many as a minute holds, which is measured first. ``failure``: probability that any statement
    of the report is wrong. ``neighbours``: two data sets (default: the worst case for the run's loss, with ``features``
    columns). ``train``: what is audited, (features, target, keys) -> released parameters (default:
    ``Trainer(run).fit_many``). ``results``: a file to resume from, with the trials, batches and seed that it was begun
    with. Errors: ``InputError`` for numbers too small for any statement, neighbours of another adjacency, or a trainer
    that is not a pure function of data and key. ``progress(done, total, models_per_minute, seconds_left)`` is called
    first with the estimate, and then now and then; ``Interrupted`` has the report of what was counted by then.

    **Guarantee:** that of ``AuditReport``; nothing is chosen on the models that are counted.
    """
    run, caveats = auditable(run)
    begun = settings(results)
    trials, batch_models, seed = (begun.get(name) if value is None else value for name, value in (
        ("trials", trials), ("batch_models", batch_models), ("seed", seed)))
    replayed = REPLAYED if trials is None else trials
    if attack == replay.NAME:
        require_statement(replayed, failure, delta)
    elif trials is not None:
        require_statement(trials, failure, delta, THRESHOLDS)
    neighbours = worst_case(run, features) if neighbours is None else neighbours
    check_adjacency(neighbours, run)
    certificate = certificate_of(run, at_least)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    if attack == replay.NAME:
        present, without = replay.scores(run, neighbours, replayed, progress)
        return conclude(certificate, neighbours, replay.NAME, (present, without), (0.0,), failure=failure, delta=delta,
                        pilot=0, seed=None, caveats=caveats)
    chosen = by_name(strongest(run, neighbours) if attack is None else attack)
    train = default_train(run) if train is None else train
    plan = planned(run, neighbours, train, trials, batch_models, seed, progress)
    require_statement(plan.trials, failure, delta, THRESHOLDS)
    firsts = train_first(run, neighbours, train, plan)
    pilots = [first_models.released[:plan.pilot] for first_models in firsts]
    score = chosen.scorer(run, neighbours, *pilots)
    thresholds = choose_thresholds(score(pilots[0]), score(pilots[1]), plan.trials, delta, failure)
    about = identity(run, neighbours, chosen.name, plan, delta, failure)
    kept = Results(None if results is None else Path(results), about)
    found = all_scores(run, firsts, train, plan, score, kept, progress)
    short = len(found[0]) < plan.trials
    if short:
        caveats = (*caveats, f"interrupted: {plan.trials} models per data set were planned")
    report = conclude(certificate, neighbours, chosen.name, found, thresholds, failure=failure, delta=delta,
                      pilot=plan.pilot, seed=seed, caveats=caveats)
    if short:
        raise Interrupted(report)
    return report


def auditable(run: Run) -> tuple[Run, tuple[str, ...]]:
    """The part of the run that is attacked, and what is left out."""
    caveats: tuple[str, ...] = ()
    if run.prelude:
        run, caveats = without_preparation(run), ("the private preparation is neither attacked nor counted",)
    if run.release == "all" and not trajectory.readable(run):
        caveats += ("all iterates are released, but only the last one is attacked",)
    return run, caveats


def default_train(run: Run) -> Train:
    """What the library itself does with the run; all iterates are kept only where they are released."""
    return partial(trajectory.fit_one_by_one, run) if run.release == "all" else Trainer(run).fit_many


def certificate_of(run: Run, at_least: Evidence = Evidence.ENFORCED) -> Certificate:
    """The certificate that an audit of ``run`` is held against: of the part that is attacked."""
    return account(auditable(run)[0], at_least=at_least)


def planned(run: Run, neighbours: Neighbours, train: Train, trials: int | None, batch_models: int | None, seed: int,
            progress: Progress | None) -> TrialPlan:
    """Trials and batches as asked for, and a pilot of a tenth of the trials, at least 200 (or half of them) and at most
    4,000.

    The speed is measured where it decides the number of trials, or is shown.
    """
    if batch_models is not None and batch_models < 1:
        raise InputError("batch_models", "must be a whole number >= 1", batch_models)
    size = batch_size(run, neighbours.with_record.features.shape[1]) if batch_models is None else batch_models
    rate = 0.0
    if trials is None or progress is not None:
        rate, fastest = pace.measured(run, neighbours, train, size, None if trials is None else 2 * trials)
        size = fastest if batch_models is None else size
    trials = pace.trials_for(rate) if trials is None else trials
    pilot = min(max(trials // 10, min(200, max(trials // 2, 50))), 4000)
    plan = TrialPlan(trials, pilot, min(size, trials), seed)
    if progress is not None:
        progress(0, 2 * trials, 60 * rate, 2 * (trials + plan.pilot) / rate)
    return plan


def identity(run: Run, neighbours: Neighbours, attack: str, plan: TrialPlan, delta: float, failure: float
             ) -> dict[str, Any]:
    """Everything that scores on disk depend on, apart from the code."""
    import hashlib

    digest = hashlib.sha256()
    for data_set in (neighbours.with_record, neighbours.without_record):
        for array in (data_set.features, data_set.target):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(str(data_set.absent).encode())
    return {"run": run.to_dict(), "neighbours": digest.hexdigest(), "attack": attack, "trials": plan.trials,
            "pilot": plan.pilot, "batch_models": plan.batch_models, "seed": plan.seed, "delta": delta,
            "failure": failure}


def conclude(certificate: Certificate, neighbours: Neighbours | ImageNeighbours, attack: str,
             scores: tuple[np.ndarray, np.ndarray], thresholds: tuple[float, ...], *, failure: float,
             delta: float, pilot: int, seed: int | None, caveats: tuple[str, ...] = ()) -> AuditReport:
    """The report from scores with and without the record; the thresholds were fixed before."""
    counts: tuple[Counts, ...] = tuple(count(*scores, threshold) for threshold in thresholds)
    proof = CombinedBounds(counts, failure)
    curves = [certificate.curve(verdict) for verdict in certificate.certifying]
    best = certificate.best(delta)
    rates = tuple(Rate(threshold, int(c.false_positives), int(c.false_negatives), *pair)
                  for threshold, c, pair in zip(thresholds, counts, proof.rates(), strict=True))
    gaussian = gaussian_epsilon(proof.mu(), delta) if neighbours.gaussian and attack in EXACT and delta > 0 else None
    trials = min(len(part) for part in scores)
    return AuditReport(
        attack=attack, neighbours=neighbours.about, adjacency=certificate.run.adjacency, trials=trials, pilot=pilot,
        failure=failure, delta=delta, lower=proof.epsilon(delta), lower_gaussian=gaussian, mu_lower=proof.mu(),
        ceiling=ceiling(trials, failure, delta, len(thresholds)), upper=certificate.epsilon(delta),
        theorem=None if best is None else best.theorem.name, refuted_at=proof.refuted(curves), rates=rates, seed=seed,
        caveats=caveats, scores=scores,
    )
