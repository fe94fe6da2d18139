"""What ``--json`` prints: the numbers of the screens, pure functions of what they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastiterate.accounting.wording import finite
from lastiterate.planning.planner import Choice
from lastiterate.planning.predicted_scores import predicted_scores
from lastiterate.run.correlated_noise import Correlated
from lastiterate.run.noise import NoiseMultiplier

if TYPE_CHECKING:
    from lastiterate.release.pipeline import Released
    from lastiterate.run.run import Run


def trained(result: Released, where: str) -> dict[str, Any]:
    """A released model in short: its budget, what certifies it, scores on data that are public (``null`` where there
    are none), the run in a few numbers. The folder's ``certificate.json`` has all of it."""
    model, certificate, delta = result.model, result.model.certificate, result.model.delta
    best, run = certificate.best(delta), certificate.subject.run
    return {"model": where, "kind": model.form, "epsilon": finite(certificate.epsilon(delta)), "delta": delta,
            "adjacency": certificate.adjacency,
            "replace_one_epsilon": finite(certificate.replace_one_epsilon(delta)),
            "theorem": None if best is None else best.theorem.name,
            "accuracies": [vars(score) for score in getattr(model, "accuracies", ())], "test_score": result.test_score,
            "plain_score": result.plain_score,
            "run": None if run is None else summary(run), "features": result.features or None,
            "plan": None if result.choice is None else result.choice.best.name,
            "caveats": list(certificate.all_caveats())}


def summary(run: Run) -> dict[str, Any]:
    """A run in a few numbers."""
    noise = run.noise
    return {"n": run.n, "steps": run.steps, "batching": run.batching.word, "expected_batch":
            run.batching.expected_batch(run.n), "noise_multiplier": noise.z if isinstance(
                noise, NoiseMultiplier | Correlated) else None, "method": run.method.words(run)}


def plans(choice: Choice, delta: float) -> dict[str, Any]:
    """The plans that were considered, the chosen one first."""
    listed: list[dict[str, Any]] = []
    for plan in choice.plans:
        certificate = plan.certificate
        noise = certificate.run.noise
        charged = {row["theorem"]: row["epsilon"] for row in certificate.rows(delta)
                   if row["applies"] and row["kind"] == "upper" and row["epsilon"] is not None}
        scores = predicted_scores(certificate.run, plan.risk)
        listed.append({"plan": plan.name, "predicted_risk": finite(plan.risk),
                       "predicted_log_loss_above_best": None if scores is None else finite(scores.log_loss),
                       "predicted_accuracy_below_best": None if scores is None else finite(scores.accuracy),
                       "seconds": plan.seconds,
                       "noise_multiplier": noise.z if isinstance(noise, NoiseMultiplier | Correlated) else None,
                       "ledger_share": None if plan.share is None else finite(plan.share), "fits_ledger": plan.fits,
                       "epsilon_by_theorem": charged, "run": certificate.run.to_dict()})
    return {"delta": delta, "chosen": choice.best.name, "without_ledger": choice.alone, "plans": listed,
            "output_perturbation_risk": finite(choice.floor)}


def predictions(header: list[str], rows: list[list[str]]) -> list[dict[str, Any]]:
    """One object per record: what stands beside it as text, the prediction as text or number, and the probability of
    every class."""
    at = header.index("prediction")
    numbers = [place > at or place == at == len(header) - 1 for place in range(len(header))]
    return [{name: float(cell) if number else cell for name, number, cell in zip(header, numbers, row, strict=True)}
            for row in rows]
