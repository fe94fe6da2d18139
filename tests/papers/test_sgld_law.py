"""The exact law of cyclic SGLD: closed forms against the chain stepped record by record."""

import time

import mpmath as mp
import numpy as np
import pytest

from lastiterate.bayes.linear import LinearModel
from lastiterate.errors import InputError
from lastiterate_papers.sgld_law import Chain, common_law, neighbour_laws

MODEL = LinearModel(prior_precision=1.3, noise_precision=0.7)


def chain_of(differing):
    return Chain(model=MODEL, n=7, step_size=0.01, common=(1.1, 5.5), differing=differing)


def stepped(chain, order, steps, one=float):
    """Mean and variance of theta itself, by the recursion theta + (eta/2)(-alpha theta + n beta x
    (y - theta x))."""
    eta, a, b = (
        one(chain.step_size),
        one(chain.model.prior_precision),
        one(chain.model.noise_precision),
    )
    mean, variance = one(0), 1 / a
    for j in range(steps):
        x, y = (one(v) for v in order[j % len(order)])
        factor = 1 - eta / 2 * (a + chain.n * b * x * x)
        mean, variance = (
            factor * mean + eta / 2 * chain.n * b * x * y,
            factor * factor * variance + eta,
        )
    return mean, variance


@pytest.mark.parametrize("differing", [(0.55, 2.75), (0.4, 0.9), (1.5, -3.0), (0.0, 1.0)])
@pytest.mark.parametrize("steps", [0, 1, 3, 7, 8, 20, 49, 53, 700])
def test_closed_forms_are_the_recursion(differing, steps):
    chain = chain_of(differing)
    mean, variance = stepped(chain, [chain.common] * 7, steps)
    found = common_law(chain, steps)
    assert abs(found[0] + chain.ratio - mean) < 1e-10 and abs(found[1] - variance) < 1e-10
    means, variances = neighbour_laws(chain, steps)
    for r in range(7):
        order = [differing if j == r else chain.common for j in range(7)]
        mean, variance = stepped(chain, order, steps)
        assert abs(means[r] + chain.ratio - mean) < 1e-10 and abs(variances[r] - variance) < 1e-10


@pytest.mark.parametrize("n, epochs", [(100, 3), (100, 40)])
def test_against_sixty_digits(n, epochs):
    """The paper's problem, where means are c and gaps a millionth of it: relative accuracy of the
    gap."""
    chain = Chain.paper(LinearModel(), n, ratio=n**1.25)
    with mp.workdps(60):
        base = stepped(chain, [chain.common] * n, n * epochs, mp.mpf)
        for r in (1, n // 2, n):
            order = [chain.differing if j == r - 1 else chain.common for j in range(n)]
            mean, variance = stepped(chain, order, n * epochs, mp.mpf)
            means, variances = neighbour_laws(chain, n * epochs, [r])
            gap = common_law(chain, n * epochs)[0] - means[0]
            assert gap == pytest.approx(float(base[0] - mean), rel=1e-8)
            assert variances[0] == pytest.approx(float(variance), rel=1e-11)


def test_trillions_of_steps_without_a_loop():
    chain = Chain.paper(LinearModel(), 10**6, ratio=3e7)
    start = time.process_time()
    mean, variance = common_law(chain, 10**15)
    means, variances = neighbour_laws(chain, 10**15)
    assert time.process_time() - start < 5, "a loop over the steps would take years"
    # the stationary law: the posterior's mean, and its variance doubled by nothing but 1/(2 - g)
    assert mean == pytest.approx(-3e7 / (1 + 10**6), rel=1e-9)
    assert variance == pytest.approx(1 / (1 + 10**6), rel=1e-9)
    assert (
        means.shape == variances.shape == (10**6,)
        and (np.diff(means) <= 0).all()
        and (np.diff(variances) >= 0).all()
    )


def test_steps_that_are_too_long_are_refused():
    for step, words in ((0.5, "the chain diverges"), (0.3, "the chain overshoots")):
        with pytest.raises(InputError, match=words):
            Chain(model=LinearModel(), n=7, step_size=step, common=(1.0, 1.0), differing=(0.5, 0.5))
    with pytest.raises(InputError, match="for the differing record"):
        Chain(model=LinearModel(), n=7, step_size=0.2, common=(1.0, 1.0), differing=(2.0, 2.0))
    with pytest.raises(InputError, match="step"):
        common_law(chain_of((0.4, 0.9)), -1)
    with pytest.raises(InputError, match="step_size"):
        Chain(model=LinearModel(), n=7, step_size=0.0)
