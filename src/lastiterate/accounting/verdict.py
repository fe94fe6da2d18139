"""What one theorem says about a run: a row of a certificate."""

from __future__ import annotations

from dataclasses import dataclass

from lastiterate.curves.curve import Curve
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.run.evidence import Evidence, weakest
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Applies, Fails, Theorem, holds_with_zeroed_records


@dataclass(frozen=True, repr=False)
class Verdict:
    """A theorem, and whether it applies to the run: with which curve on which facts, or why it fails."""

    theorem: Theorem
    result: Applies | Fails
    run: Run  #: that it is about

    @property
    def evidence(self) -> Evidence | None:
        return self.result.evidence if isinstance(self.result, Applies) else None

    @property
    def bound(self) -> Curve | LowerBound | None:
        """What the theorem says about the steps, without the private preparation; ``None`` where it does not apply."""
        return self.result.bound if isinstance(self.result, Applies) else None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the theorem does not apply; empty where it does."""
        return self.result.reasons if isinstance(self.result, Fails) else ()

    def certifies(self, at_least: Evidence) -> bool:
        """Whether the theorem is an upper bound that holds on facts of the evidence asked for."""
        good = isinstance(self.result, Applies) and self.theorem.kind in ("upper", "exact")
        return good and self.evidence is not None and self.evidence.satisfies(at_least)

    def groups(self, run: Run) -> bool:
        """Whether what it says of one record of ``run`` holds for several, one after the other."""
        return isinstance(self.result, Applies) and holds_with_zeroed_records(run, self.result.facts)

    def refusal(self, at_least: Evidence) -> tuple[str, ...]:
        """Why the theorem does not certify the run: reasons, weak facts, or (the rest) an infinite epsilon."""
        if isinstance(self.result, Fails):
            return self.result.reasons
        if self.certifies(at_least):
            return ("its epsilon is infinite (no noise)",)
        weak = "; ".join(fact.why for fact in self.result.facts if not fact.evidence.satisfies(at_least))
        return (f"rests on {weakest(*self.result.facts).name} facts ({weak}): "
                "pass at_least=Evidence.ASSUMED to rely on them",)

    def __repr__(self) -> str:
        said = "applies" if isinstance(self.result, Applies) else "fails"
        return f"<Verdict {self.theorem.name} ({self.theorem.kind}): {said}>"
