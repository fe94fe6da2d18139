"""What a released posterior sample is certified with: the public problem, its Renyi curve, and how to check both."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from lastiterate.accounting.certificate import content_hash
from lastiterate.bayes.linear import NEIGHBOURS, LinearModel, Neighbours, RatioDomain, posterior_curve
from lastiterate.bayes.ridge import ClippedRows, ridge_curve
from lastiterate.curves.compose import curve_from_dict
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError

FORMAT = 1
CAVEATS = (
    "covers one sample only: further samples, and other releases from the same data, compose",
    "the sample has double precision; the proofs are about real numbers",
    "model and domain must have been chosen without looking at the data",
    "holds for an exact sample of the posterior: an approximate one (SGLD, MCMC) is not covered",
)


@dataclass(frozen=True)
class LinearPosterior:
    """One sample of the posterior of linear regression with one feature, on a public domain of ratios."""

    model: LinearModel
    domain: RatioDomain

    def curve(self, adjacency: Neighbours) -> Rdp:
        """The proved bound (docs/theorems/posterior-sample.md, Theorems 1 and 2)."""
        return posterior_curve(self.model, self.domain, adjacency)


@dataclass(frozen=True)
class RidgePosterior:
    """One sample of the posterior of ridge regression on clipped records."""

    model: LinearModel
    domain: ClippedRows

    def curve(self, adjacency: Neighbours) -> Rdp:
        """The proved bound (docs/theorems/ridge-posterior.md); a zeroed record lies in the domain."""
        return ridge_curve(self.model, self.domain)


Problem = LinearPosterior | RidgePosterior


@dataclass(frozen=True)
class PosteriorCertificate:
    """The privacy of one exact posterior sample.

    **Guarantee:** ``epsilon(delta)`` is an upper bound for every pair of neighbours in the problem's domain, if the
    sample was drawn exactly and the problem chosen without looking at the data.
    """

    problem: Problem
    curve: Rdp = field(repr=False)
    adjacency: Neighbours = "replace-one"
    caveats: tuple[str, ...] = CAVEATS

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta``."""
        return self.curve.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon``."""
        return self.curve.delta(epsilon)

    def under(self, adjacency: Neighbours) -> PosteriorCertificate:
        """The same sample accounted under another adjacency."""
        return certify(self.problem, adjacency, extra=tuple(text for text in self.caveats if text not in CAVEATS))

    def verify(self) -> bool:
        """Whether the curve is what follows from the problem, and no caveat is missing."""
        return self.curve == self.problem.curve(self.adjacency) and set(CAVEATS) <= set(self.caveats)

    def to_dict(self, delta: float, *, weights_sha256: str | None = None) -> dict[str, Any]:
        """JSON-ready; ``content_sha256`` covers everything else in it. ``weights_sha256``: of a sample on disk."""
        from lastiterate import __version__

        body = {
            "format": FORMAT, "library": f"lastiterate {__version__}", "epsilon": self.epsilon(delta), "delta": delta,
            "adjacency": self.adjacency, "epsilon_replace_one": self.under("replace-one").epsilon(delta),
            "problem": type(self.problem).__name__, "model": asdict(self.problem.model),
            "domain": asdict(self.problem.domain), "curve": self.curve.to_dict(), "caveats": list(self.caveats),
            "weights_sha256": weights_sha256,
        }
        body = json.loads(json.dumps(body))
        return body | {"content_sha256": content_hash(body)}

    def to_json(self, delta: float) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(delta), indent=2)

    @classmethod
    def from_json(cls, text: str) -> PosteriorCertificate:
        """Read a certificate back: it is derived again from its problem and must be what is written."""
        try:
            stored = json.loads(text)
            problem = _problem(stored)
            found = cls(problem, cast(Rdp, curve_from_dict(stored["curve"])), stored["adjacency"],
                        tuple(stored["caveats"]))
            adjacency, delta, hashed = stored["adjacency"], stored["delta"], stored["content_sha256"]
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise InputError("certificate", "must be one that lastiterate wrote, complete", str(error)) from None
        if adjacency not in NEIGHBOURS or not found.verify():
            raise InputError("certificate", "does not hold", None, "its curve does not follow from its problem")
        fresh = found.to_dict(delta)
        kept = {"library", "content_sha256", "weights_sha256", "model_sha256"}
        same = {k: v for k, v in stored.items() if k not in kept} == {k: v for k, v in fresh.items() if k not in kept}
        if not same or hashed != content_hash(stored):
            raise InputError("certificate", "does not hold", None, "a number or text in it was changed")
        return found


def certify(problem: Problem, adjacency: Neighbours = "replace-one", *,
            extra: tuple[str, ...] = ()) -> PosteriorCertificate:
    """The certificate of one sample; ``InputError`` where no proved bound exists."""
    if adjacency not in NEIGHBOURS:
        raise InputError("adjacency", "must be replace-one or zero-out", adjacency)
    return PosteriorCertificate(problem, problem.curve(adjacency), adjacency, (*extra, *CAVEATS))


def _problem(stored: dict[str, Any]) -> Problem:
    model = LinearModel(**stored["model"])
    match stored["problem"]:
        case "LinearPosterior":
            return LinearPosterior(model, RatioDomain(**stored["domain"]))
        case "RidgePosterior":
            return RidgePosterior(model, ClippedRows(**stored["domain"]))
        case other:
            raise InputError("certificate", "names an unknown problem", other)
