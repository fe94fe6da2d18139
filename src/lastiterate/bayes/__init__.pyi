"""The public names, and the only place that lists them (see ``lazy``)."""

from lastiterate.bayes.clipped_sgld import make_clipped_sgld_run as make_clipped_sgld_run
from lastiterate.bayes.linear import ClippedRows as ClippedRows
from lastiterate.bayes.linear import LinearModel as LinearModel
from lastiterate.bayes.linear import RatioDomain as RatioDomain
from lastiterate.bayes.linear import corner_bound as corner_bound
from lastiterate.bayes.linear import least_prior as least_prior
from lastiterate.bayes.linear import lemma_bound as lemma_bound
from lastiterate.bayes.linear import posterior_curve as posterior_curve
from lastiterate.bayes.posterior_subject import LinearPosterior as LinearPosterior
from lastiterate.bayes.posterior_subject import Posterior as Posterior
from lastiterate.bayes.posterior_subject import PosteriorSample as PosteriorSample
from lastiterate.bayes.posterior_subject import RidgePosterior as RidgePosterior
from lastiterate.bayes.posterior_subject import certify as certify
from lastiterate.bayes.posterior_subject import sample_posterior as sample_posterior
from lastiterate.bayes.propose_test_release import Outcome as Outcome
from lastiterate.bayes.propose_test_release import ProposeTestSample as ProposeTestSample
from lastiterate.bayes.propose_test_release import propose_test_sample as propose_test_sample

# renamed: clipped_sgld_run -> make_clipped_sgld_run

__all__: list[str]
