"""A posterior sample as the subject of a certificate, and its release."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast, final

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.accounting.certificate import Certificate, register
from lastiterate.accounting.certificate_subject import CertificateSubject, Words
from lastiterate.bayes import linear
from lastiterate.bayes.linear import (
    NEIGHBOURS,
    ClippedRows,
    LinearModel,
    Neighbours,
    RatioDomain,
    posterior_curve,
    ridge_curve,
)
from lastiterate.bayes.propose_test_release import source_of
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
    """The posterior of linear regression with one feature, on a public domain of ratios.

    Parameters
    ----------
    model : LinearModel
        Precisions of the prior and of the noise.
    domain : RatioDomain
        Public bounds of the records.

    See Also
    --------
    RidgePosterior : Several features.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, LinearPosterior, RatioDomain
    >>> problem = LinearPosterior(LinearModel(), RatioDomain(n=1000, ratio=1.0, spread=0.1))
    >>> problem.curve("replace-one").epsilon(1e-5) < 1
    True
    """

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
    """The posterior of ridge regression on clipped records.

    Parameters
    ----------
    model : LinearModel
        Precisions of the prior and of the noise.
    domain : ClippedRows
        Public bounds of the records.

    See Also
    --------
    LinearPosterior : One feature.

    Examples
    --------
    >>> from lastiterate.bayes import ClippedRows, LinearModel, RidgePosterior
    >>> model = LinearModel(prior_precision=15.0, noise_precision=0.1)
    >>> problem = RidgePosterior(model, ClippedRows(n=5000, features=3))
    >>> problem.curve("replace-one").epsilon(1e-6) < 1
    True
    """

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
class Posterior(CertificateSubject):
    """One exact posterior sample, as the subject of a certificate.

    Parameters
    ----------
    problem : LinearPosterior or RidgePosterior
        Model and public domain.
    neighbours : {"replace-one", "zero-out"}, default "replace-one"
        Relation of neighbouring data sets.

    Raises
    ------
    InputError
        If no proved bound exists.

    See Also
    --------
    certify : The certificate.

    Notes
    -----
    **Guarantee:** its curve is an upper bound for every pair of neighbours in the domain, if the
    sample was drawn exactly and the problem was chosen without the data.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, LinearPosterior, Posterior, RatioDomain
    >>> problem = LinearPosterior(LinearModel(), RatioDomain(n=1000, ratio=1.0, spread=0.1))
    >>> Posterior(problem).adjacency
    'replace-one'
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

    def describe(self) -> dict[str, Any]:
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

    def with_adjacency(self, adjacency: str) -> Posterior | None:
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
    """Certify one exact sample of a posterior.

    Parameters
    ----------
    problem : LinearPosterior or RidgePosterior
        Model and public domain.
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Relation of neighbouring data sets.
    extra : tuple of str, default ()
        Caveats to add.

    Returns
    -------
    Certificate
        Certificate of one sample.

    Raises
    ------
    InputError
        If no proved bound exists.

    See Also
    --------
    sample_posterior : Draw the sample.

    Examples
    --------
    >>> from lastiterate.bayes import LinearModel, LinearPosterior, RatioDomain, certify
    >>> problem = LinearPosterior(LinearModel(), RatioDomain(n=1000, ratio=1.0, spread=0.1))
    >>> certify(problem).epsilon(1e-5) < 1
    True
    """
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
    """A released posterior sample with its certificate.

    Parameters
    ----------
    value : numpy.ndarray, shape (1,) or (d,)
        Sample of theta.
    certificate : Certificate
        Its certificate.

    See Also
    --------
    sample_posterior : Draw one.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.bayes import LinearModel, LinearPosterior, RatioDomain, sample_posterior
    >>> problem = LinearPosterior(LinearModel(), RatioDomain(n=1000, ratio=1.0, spread=0.1))
    >>> sample_posterior(problem, np.ones(1000), np.ones(1000)).value.shape
    (1,)
    """

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
    """Draw one exact sample of a posterior, and release it with its certificate.

    Parameters
    ----------
    problem : LinearPosterior or RidgePosterior
        Model and public domain.
    x : array_like, shape (n,) or (n, d)
        Private features: (n,) for a `LinearPosterior`, whose domain they must lie in; (n, d) for a
        `RidgePosterior`, which clips every record.
    y : array_like, shape (n,)
        Private labels.
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Relation of neighbouring data sets.
    generator : numpy.random.Generator, optional
        Source of the noise, for tests only; it becomes a caveat. By default it is the system.

    Returns
    -------
    PosteriorSample
        Sample and certificate.

    Raises
    ------
    InputError
        If no proved bound exists, or the data lie outside the domain.

    Notes
    -----
    **Guarantee:** nothing is sampled unless the certificate exists and the data lie in its domain.
    Proofs: docs/theorems/posterior-sample and docs/theorems/ridge-posterior.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.bayes import ClippedRows, RidgePosterior, least_prior, sample_posterior
    >>> domain = ClippedRows(n=5000, features=3)
    >>> model = least_prior(domain, epsilon=1.0, delta=1e-6, noise_precision=0.1)
    >>> x = np.random.default_rng(0).uniform(-0.5, 0.5, (5000, 3))
    >>> sample = sample_posterior(RidgePosterior(model, domain), x, x[:, 0])
    >>> sample.value.shape, sample.certificate.epsilon(1e-6) <= 1.0
    ((3,), True)
    """
    source, caveat = source_of(generator)
    certificate = certify(problem, adjacency, extra=caveat)
    match problem:
        case LinearPosterior(model, domain):
            mean, variance = model.posterior(*domain.check(x, y))
            value = mean + variance**0.5 * source.normal(1)
        case RidgePosterior(model, domain):
            centre, precision = linear.posterior(model, *domain.clip(x, y))
            # with A = L L', L'^-1 z has covariance A^-1
            value = centre + np.linalg.solve(
                np.linalg.cholesky(precision).T, source.normal(domain.features)
            )
    return PosteriorSample(value, certificate)
