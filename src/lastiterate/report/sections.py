"""The parts of a report, in the order in which they are read."""

from __future__ import annotations

from lastiterate.markup import Markup
from lastiterate.report.effect_pictures import effects
from lastiterate.report.execution import check, downloads, execution, ledger, word
from lastiterate.report.guarantee_tables import banners, refused, summary
from lastiterate.report.over_curves import steps, tradeoff
from lastiterate.report.reasons import evidence, secrets, verdicts
from lastiterate.report.subject import Subject


def every(subject: Subject) -> list[Markup | str]:
    """All parts, for a certificate that holds."""
    return [*banners(subject), summary(subject), tradeoff(subject), steps(subject), verdicts(subject),
            evidence(subject), secrets(subject), execution(subject), ledger(subject), word(subject),
            effects(subject), check(subject), downloads()]


__all__ = ["every", "refused", "steps", "tradeoff"]
