"""One sample of a posterior, released with its own certificate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.accounting.certificate import Certificate
from lastiterate.bayes import ridge
from lastiterate.bayes.linear_regression import Neighbours
from lastiterate.bayes.posterior_subject import LinearPosterior, Problem, RidgePosterior, certify
from lastiterate.bayes.randomness import source_of
from lastiterate.run.arrays import Array


@dataclass(frozen=True, eq=False)
class PosteriorSample:
    """A released sample of theta, shape (1,) or (d,), and what certifies it."""

    value: Array
    certificate: Certificate


def sample_posterior(problem: Problem, x: ArrayLike, y: ArrayLike, *, adjacency: Neighbours = "replace-one",
                     generator: np.random.Generator | None = None) -> PosteriorSample:
    """One exact sample of the posterior given records x (shape (n,), or (n, d) for ridge) and y (shape (n,)).

    For ``LinearPosterior`` data outside the domain are refused; for ``RidgePosterior`` every record is clipped into it.

    **Guarantee:** nothing is sampled unless the certificate exists and the data lie in its domain; the noise comes from
    the operating system unless the caller gives a ``generator``, which is then a caveat on the certificate.
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
            value = centre + np.linalg.solve(np.linalg.cholesky(precision).T, source.normal(domain.features))
    return PosteriorSample(value, certificate)
