"""A posterior sample as the subject of a certificate, and its release."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast, final

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.accounting.certificate import Certificate, register
from lastiterate.accounting.subjects import Subject, Words
from lastiterate.bayes import ridge
from lastiterate.bayes.linear import (
    NEIGHBOURS,
    LinearModel,
    Neighbours,
    RatioDomain,
    posterior_curve,
)
from lastiterate.bayes.ridge import ClippedRows, ridge_curve
from lastiterate.bayes.sample import source_of
from lastiterate.curves.curve import Curve
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.run.validation import Array

# One exact posterior sample as the subject of a certificate: the public problem, and its Renyi
# curve.

CAVEATS = (
    "covers one sample only: further samples, and other releases from the same data, compose",
    "the sample has double precision; the proofs are about real numbers",
    "model and domain must have been chosen without looking at the data",
    "holds for an exact sample of the posterior: an approximate one (SGLD, MCMC) is not covered",
)


@dataclass(frozen=True)
class LinearPosterior:
    """One sample of the posterior of linear regression with one feature, on a public domain of
    ratios."""

    model: LinearModel
    domain: RatioDomain

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``problem_from_dict`` reads it back."""
        return {
            "type": type(self).__name__,
            "model": asdict(self.model),
            "domain": asdict(self.domain),
        }

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
        return {
            "type": type(self).__name__,
            "model": asdict(self.model),
            "domain": asdict(self.domain),
        }

    def curve(self, adjacency: Neighbours) -> Rdp:
        """The proved bound (docs/theorems/ridge-posterior.md); a zeroed record lies in the domain."""
        return ridge_curve(self.model, self.domain)


Problem = LinearPosterior | RidgePosterior


@register
@final
@dataclass(frozen=True)
class Posterior(Subject):
    """One exact sample of ``problem``'s posterior; ``InputError`` where no proved bound exists.

    **Guarantee:** its curve is an upper bound for every pair of neighbours in the problem's domain,
    if the sample was drawn exactly and the problem chosen without looking at the data.
    """

    entry: ClassVar[str] = "problem"
    word: ClassVar[str] = "problem"
    problem: Problem
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        if self.neighbours not in NEIGHBOURS:
            raise InputError("adjacency", "must be replace-one or zero-out", self.neighbours)
        _ = self.curves

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Posterior:
        if not isinstance(stored.get("adjacency"), str):
            raise InputError(
                "certificate",
                "must be one that lastiterate wrote, with a proper 'adjacency'",
                stored.get("adjacency"),
            )
        return cls(problem_from_dict(stored.get("problem")), stored["adjacency"])

    def description(self) -> dict[str, Any]:
        return self.problem.to_dict()

    def described(self) -> dict[str, Any]:
        """A problem does not say what neighbours are."""
        return {"problem": self.problem.to_dict(), "adjacency": self.adjacency}

    def details(self) -> dict[str, Any]:
        """The curve as it stands."""
        curve = self.problem.curve(self.neighbours)
        return {"curve": {"orders": curve.orders, "renyi_divergences": curve.values}}

    @property
    def adjacency(self) -> str:
        return self.neighbours

    def all_curves(self) -> tuple[Curve, ...]:
        return (self.problem.curve(self.neighbours),)

    def under(self, adjacency: str) -> Posterior | None:
        with suppress(InputError):
            return Posterior(self.problem, cast(Neighbours, adjacency))
        return None

    @property
    def caveats(self) -> tuple[str, ...]:
        return CAVEATS

    @property
    def words(self) -> Words:
        return Words(
            f"a {type(self.problem).__name__}, n = {self.problem.domain.n}, {self.adjacency}",
            by="by an exact sample of the posterior",
            charged=("one exact posterior sample",),
        )


def certify(
    problem: Problem, adjacency: Neighbours = "replace-one", *, extra: tuple[str, ...] = ()
) -> Certificate:
    """The certificate of one exact sample of ``problem``'s posterior; ``InputError`` where no
    proved bound exists."""
    return Certificate(Posterior(problem, adjacency), extra)


def problem_from_dict(stored: Any) -> Problem:
    """The problem that ``to_dict`` described."""
    match stored:
        case {"type": kind, "model": model, "domain": domain, **rest} if not rest:
            pass
        case _:
            raise InputError(
                "problem", "must be an object with the entries type, model and domain", None
            )
    try:
        match kind:
            case "LinearPosterior":
                return LinearPosterior(LinearModel(**model), RatioDomain(**domain))
            case "RidgePosterior":
                return RidgePosterior(LinearModel(**model), ClippedRows(**domain))
            case _:
                raise InputError("problem", "must be a LinearPosterior or a RidgePosterior", kind)
    except TypeError as error:
        raise InputError(
            "problem", "has an entry that does not belong there", str(error)[:120]
        ) from None


# One sample of a posterior, released with its own certificate.


@dataclass(frozen=True, eq=False)
class PosteriorSample:
    """A released sample of theta, shape (1,) or (d,), and what certifies it."""

    value: Array
    certificate: Certificate


def sample_posterior(
    problem: Problem,
    x: ArrayLike,
    y: ArrayLike,
    *,
    adjacency: Neighbours = "replace-one",
    generator: np.random.Generator | None = None,
) -> PosteriorSample:
    """One exact sample of the posterior given records x (shape (n,), or (n, d) for ridge) and y
    (shape (n,)).

    For ``LinearPosterior`` data outside the domain are refused; for ``RidgePosterior`` every record
    is clipped into it.

    **Guarantee:** nothing is sampled unless the certificate exists and the data lie in its domain;
    the noise comes from the operating system unless the caller gives a ``generator``, which is then
    a caveat on the certificate.
    """
    source, caveat = source_of(generator)
    certificate = certify(problem, adjacency, extra=caveat)
    match problem:
        case LinearPosterior(model, domain):
            mean, variance = model.posterior(*domain.check(x, y))
            value = mean + variance**0.5 * source.normal(1)
        case RidgePosterior(model, domain):
            centre, precision = ridge.posterior(model, *domain.clip(x, y))
            # with A = L L', L'^-1 z has covariance A^-1
            value = centre + np.linalg.solve(
                np.linalg.cholesky(precision).T, source.normal(domain.features)
            )
    return PosteriorSample(value, certificate)
