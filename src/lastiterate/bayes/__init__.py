"""Posterior samples and SGLD: which are private, and which only look so.

Without JAX, except for the samplers in ``kernel``.
"""

from __future__ import annotations

from lastiterate.bayes.certificate import LinearPosterior, PosteriorCertificate, RidgePosterior, certify
from lastiterate.bayes.clipped_sgld import clipped_sgld_run
from lastiterate.bayes.interim_breach import Breach, breach
from lastiterate.bayes.linear import LinearModel, RatioDomain
from lastiterate.bayes.propose_test import Outcome, ProposeTestSample, propose_test_sample
from lastiterate.bayes.ridge import ClippedRows, least_prior
from lastiterate.bayes.samples import PosteriorSample, sample_posterior
from lastiterate.bayes.sgld_law import Chain

__all__ = [
    "Breach", "Chain", "ClippedRows", "LinearModel", "LinearPosterior", "Outcome", "PosteriorCertificate",
    "PosteriorSample", "ProposeTestSample", "RatioDomain", "RidgePosterior", "breach", "certify", "clipped_sgld_run",
    "least_prior", "propose_test_sample", "sample_posterior",
]
