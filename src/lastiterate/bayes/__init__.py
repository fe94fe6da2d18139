"""Posterior samples and SGLD: which are private, and which only look so.

Without JAX.
"""

from __future__ import annotations

from lastiterate.bayes.clipped_sgld import clipped_sgld_run
from lastiterate.bayes.linear import (
    ClippedRows,
    LinearModel,
    RatioDomain,
    corner_bound,
    least_prior,
    lemma_bound,
    posterior_curve,
)
from lastiterate.bayes.posterior_subject import (
    LinearPosterior,
    Posterior,
    PosteriorSample,
    RidgePosterior,
    certify,
    sample_posterior,
)
from lastiterate.bayes.propose_test_release import Outcome, ProposeTestSample, propose_test_sample

__all__ = [
    "ClippedRows",
    "LinearModel",
    "LinearPosterior",
    "Outcome",
    "Posterior",
    "PosteriorSample",
    "ProposeTestSample",
    "RatioDomain",
    "RidgePosterior",
    "certify",
    "clipped_sgld_run",
    "corner_bound",
    "least_prior",
    "lemma_bound",
    "posterior_curve",
    "propose_test_sample",
    "sample_posterior",
]
