"""What composition would charge for a run, and what keeping something secret takes off."""

from __future__ import annotations

import math

from lastiterate.accounting.guarantee import Guarantee
from lastiterate.accounting.wording import rounded_up
from lastiterate.run.run import Run

COMPOSITION = "composition-gdp"


def composition_epsilon(certificate: Guarantee, delta: float) -> float:
    """What plain composition charges for the same run, as if every batch and every iterate were known."""
    verdicts = [v for v in certificate.certifying if v.theorem.name == COMPOSITION]
    return min((certificate.curve(v).epsilon(delta) for v in verdicts), default=math.inf)


def secrets(run: Run) -> str:
    """What the batches of a run keep secret ("" for nothing)."""
    if run.batching.drawn == "never":
        return ""
    blocks = "the blocks" if run.blocks > 1 else "the batches"
    what = blocks if run.batching.independent or run.batching.drawn == "each step" else "the order of the records"
    return what + {"once": "", "each pass": ", drawn anew in every pass,", "each step": ", drawn anew at every step,"}[
        run.batching.drawn]


def gained(certificate: Guarantee, delta: float) -> str:
    """One sentence: what composition would charge for the same run, and which secrecy makes it cost less."""
    best = certificate.best(delta)
    assert best is not None
    if (beyond := certificate.run.method.beyond_composition) is not None:
        return beyond.format(secret=secrets(certificate.run))
    hidden = any(assumption.name == "last_iterate_only" for assumption in best.theorem.assumptions)
    kept = [part for part in (secrets(certificate.run), "the iterates before the last one" if hidden else "") if part]
    charged = rounded_up(certificate.epsilon(delta))
    if best.theorem.name == COMPOSITION or not kept or not certificate.run.decided_noise.independent:
        who = "composition" if best.theorem.name == COMPOSITION else best.theorem.name
        return (f"{who} charges epsilon {charged}: every step counts in full, and all iterates could be published at "
                "that price")
    composed = composition_epsilon(certificate, delta)
    says = f"charge epsilon {rounded_up(composed)}" if math.isfinite(composed) else "promise nothing"
    return (f"composition would {says} for the same run; that {' and '.join(kept)} stay secret brings it to {charged}")
