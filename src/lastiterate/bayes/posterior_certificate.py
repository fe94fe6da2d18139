"""What a released posterior sample is certified with: the public problem, its Renyi curve, and how to check both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from lastiterate.accounting.form import ADDED, form_problems, same
from lastiterate.accounting.stated import stated
from lastiterate.accounting.stored import Checked
from lastiterate.accounting.wording import NEIGHBOURS as NEIGHBOURS_IN_WORDS
from lastiterate.accounting.wording import UNIT, Text, rounded_up
from lastiterate.accounting.written import sealed
from lastiterate.bayes.linear_regression import NEIGHBOURS, LinearModel, Neighbours, RatioDomain, posterior_curve
from lastiterate.bayes.ridge import ClippedRows, ridge_curve
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.markup import tag
from lastiterate.run import strict_json
from lastiterate.run.adjacency import records_moved

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

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``problem_from_dict`` reads it back."""
        return {"type": type(self).__name__, "model": asdict(self.model), "domain": asdict(self.domain)}

    def curve(self, adjacency: Neighbours) -> Rdp:
        """The proved bound (docs/theorems/posterior-sample.md, Theorems 1 and 2)."""
        return posterior_curve(self.model, self.domain, adjacency)


@dataclass(frozen=True)
class RidgePosterior:
    """One sample of the posterior of ridge regression on clipped records."""

    model: LinearModel
    domain: ClippedRows

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``problem_from_dict`` reads it back."""
        return {"type": type(self).__name__, "model": asdict(self.model), "domain": asdict(self.domain)}

    def curve(self, adjacency: Neighbours) -> Rdp:
        """The proved bound (docs/theorems/ridge-posterior.md); a zeroed record lies in the domain."""
        return ridge_curve(self.model, self.domain)


Problem = LinearPosterior | RidgePosterior


@dataclass(frozen=True, repr=False)
class PosteriorCertificate:
    """The privacy of one exact posterior sample.

    **Guarantee:** ``epsilon(delta)`` is an upper bound for every pair of neighbours in the problem's domain, if the
    sample was drawn exactly and the problem chosen without looking at the data.
    """

    problem: Problem
    curve: Rdp
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

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` under replace-one."""
        return self.under("replace-one").epsilon(delta)

    def all_caveats(self) -> tuple[str, ...]:
        """Everything a reader must know beside the number."""
        return self.caveats

    def verify(self) -> bool:
        """Whether the curve is what follows from the problem, and no caveat is missing."""
        return self.curve == self.problem.curve(self.adjacency) and set(CAVEATS) <= set(self.caveats)

    def explain(self, delta: float, *, all: bool = False) -> str:
        """The answer in words: epsilon, what a record is, what it rests on (``all`` has nothing to add)."""
        other = self.replace_one_epsilon(delta)
        under = [] if records_moved(self.adjacency) == 2 else [f"Under replace-one: epsilon {rounded_up(other)}."]
        return Text("\n".join([
            f"epsilon {rounded_up(self.epsilon(delta))} at delta {delta:g} ({self.adjacency}), by an exact sample "
            "of the posterior.",
            f"Neighbours ({self.adjacency}): {NEIGHBOURS_IN_WORDS[self.adjacency]}. {UNIT}", *under,
            *(f"- {text}" for text in self.caveats)]))

    def _repr_html_(self) -> str:
        return tag("pre", self.explain(1e-5))

    def __repr__(self) -> str:
        problem = self.problem
        what = f"{type(problem).__name__}, n = {problem.domain.n}, {self.adjacency}"
        return f"<PosteriorCertificate of one sample: {what}>"

    def described(self) -> dict[str, Any]:
        """What the numbers follow from, JSON-ready; a problem does not say what neighbours are."""
        return {"problem": self.problem.to_dict(), "adjacency": self.adjacency}

    def to_dict(self, delta: float, *, files: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """JSON-ready; ``content_sha256`` covers everything else in it. ``files``: SHA-256 of a sample's files."""
        body = {
            "epsilon": self.epsilon(delta), "delta": delta,
            "adjacency": self.adjacency, "epsilon_replace_one": self.replace_one_epsilon(delta),
            "problem": self.problem.to_dict(), "caveats": list(self.caveats),
            "curve": {"orders": self.curve.orders, "renyi_divergences": self.curve.values},
            "stated": stated(self, delta, run=None, curve=self.curve, charged=("one exact posterior sample",)),
        }
        return sealed(body, files or {})

    def to_json(self, delta: float) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(delta), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> PosteriorCertificate:
        """Read a certificate back: it is derived again from its problem and must be what is written."""
        stored = strict_json.loads(text, "certificate")
        if not isinstance(stored, dict):
            raise InputError("certificate", "must be one that lastiterate wrote, a JSON object", type(stored).__name__)
        return restore(stored)


def certify(problem: Problem, adjacency: Neighbours = "replace-one", *,
            extra: tuple[str, ...] = ()) -> PosteriorCertificate:
    """The certificate of one exact sample of ``problem``'s posterior; ``InputError`` where no proved bound exists."""
    if adjacency not in NEIGHBOURS:
        raise InputError("adjacency", "must be replace-one or zero-out", adjacency)
    return PosteriorCertificate(problem, problem.curve(adjacency), adjacency, (*extra, *CAVEATS))


def problem_from_dict(stored: Any) -> Problem:
    """The problem that ``to_dict`` described."""
    if not isinstance(stored, dict) or set(stored) != {"type", "model", "domain"}:
        raise InputError("problem", "must be an object with the entries type, model and domain", None)
    kinds: dict[Any, tuple[type[LinearPosterior] | type[RidgePosterior], type[Any]]] = {
        "LinearPosterior": (LinearPosterior, RatioDomain), "RidgePosterior": (RidgePosterior, ClippedRows)}
    if not isinstance(stored["type"], str) or stored["type"] not in kinds:
        raise InputError("problem", "must be a LinearPosterior or a RidgePosterior", stored["type"])
    problem, domain = kinds[stored["type"]]
    try:
        return problem(LinearModel(**stored["model"]), domain(**stored["domain"]))
    except TypeError as error:
        raise InputError("problem", "has an entry that does not belong there", str(error)[:120]) from None


def restore(stored: dict[str, Any]) -> PosteriorCertificate:
    """The certificate that is written, derived again from its problem; refused when what is written differs."""
    fresh, problems = _derived(stored)
    if problems:
        raise InputError("certificate", "does not hold", problems[0], "ask for the original")
    return fresh


def check(stored: dict[str, Any]) -> Checked:
    """Compare what is written with what follows from the problem."""
    _, problems = _derived(stored)
    return Checked(tuple(problems), stored.get("epsilon"), stored["delta"])


def _derived(stored: dict[str, Any]) -> tuple[PosteriorCertificate, list[str]]:
    delta, caveats = stored.get("delta"), stored.get("caveats")
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise InputError("certificate", "must be one that lastiterate wrote, with a proper 'delta'", delta)
    if not isinstance(caveats, list) or not all(isinstance(text, str) for text in caveats):
        raise InputError("certificate", "must be one that lastiterate wrote, with a list of 'caveats'", None)
    adjacency = stored.get("adjacency")
    if not isinstance(adjacency, str):
        raise InputError("certificate", "must be one that lastiterate wrote, with a proper 'adjacency'", adjacency)
    found = certify(problem_from_dict(stored.get("problem")), cast(Neighbours, adjacency),
                    extra=tuple(text for text in caveats if text not in CAVEATS))
    fresh = found.to_dict(delta)
    kept = {"format", "library", "content_sha256", "weights_sha256", "model_sha256", *ADDED}
    problems = [f"{key} is not what follows from the problem" for key in fresh
                if key not in kept and not same(stored.get(key), fresh[key])]
    problems += [f"unknown entry {key!r}" for key in sorted(set(stored) - set(fresh) - kept)]
    return found, problems + form_problems(stored, lambda: fresh["stated"], "problem")
