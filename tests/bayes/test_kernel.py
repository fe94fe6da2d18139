"""The samplers on JAX against the exact laws: Dvoretzky-Kiefer-Wolfowitz bands with a false-alarm
rate of 1e-6 each."""

import itertools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr

from lastiterate.bayes import LinearModel
from lastiterate.bayes.linear import cyclic_sgld, sample, sgld
from lastiterate.errors import InputError
from lastiterate_papers.sgld_law import Chain, neighbour_laws

CHAIN = Chain(
    model=LinearModel(prior_precision=1.3, noise_precision=0.7),
    n=6,
    step_size=0.05,
    differing=(-1.2, 2.0),
)
CHAINS = 20_000
BAND = math.sqrt(math.log(2 / 1e-6) / (2 * CHAINS))


def log_prior(theta):
    return -1.3 * theta**2 / 2


def log_likelihood(theta, record):
    return -0.7 * (record[1] - theta * record[0]) ** 2 / 2


def drawn(kernel, steps, data, chains=CHAINS):
    """theta after ``steps`` steps of many chains, started from the prior."""

    def one(key):
        start, rest = jax.random.split(key)
        return sample(kernel, jax.random.normal(start) / math.sqrt(1.3), data, steps, rest).theta

    return np.asarray(
        jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(11), chains)), dtype=np.float64
    )


def records():
    x, y = np.full(6, CHAIN.common[0]), np.full(6, CHAIN.common[1])
    x[2], y[2] = CHAIN.differing
    return jnp.asarray(x), jnp.asarray(y)


def distance(values, weights, means, stds):
    """Largest gap between the empirical distribution and that of a mixture of Gaussians."""
    at = np.sort(values)
    law = sum(w * ndtr((at - m) / s) for w, m, s in zip(weights, means, stds, strict=True))
    step = np.arange(at.size + 1) / at.size
    return max(np.abs(law - step[1:]).max(), np.abs(law - step[:-1]).max())


def recursion(order):
    mean, variance = 0.0, 1 / 1.3
    for x, y in order:
        factor = 1 - 0.025 * (1.3 + 6 * 0.7 * x * x)
        mean, variance = factor * mean + 0.025 * 6 * 0.7 * x * y, factor**2 * variance + 0.05
    return mean, math.sqrt(variance)


def test_cyclic_sgld_has_its_exact_law():
    """Two passes and a half: every one in the same order."""
    steps = 15
    kernel = cyclic_sgld(log_prior, log_likelihood, n=6, step_size=0.05)
    means, variances = neighbour_laws(CHAIN, steps)
    values = drawn(kernel, steps, records())
    assert distance(values, np.full(6, 1 / 6), means + CHAIN.ratio, np.sqrt(variances)) < BAND
    # one component alone is told apart, so the band is not too wide to see the mixture
    assert distance(values, [1.0], means[:1] + CHAIN.ratio, np.sqrt(variances[:1])) > BAND


def test_sgld_has_its_exact_law():
    kernel = sgld(log_prior, log_likelihood, n=6, step_size=0.05)
    values = drawn(kernel, 5, records())
    sequences = list(itertools.product((False, True), repeat=5))
    weights = [
        math.prod(1 / 6 if differing else 5 / 6 for differing in picks) for picks in sequences
    ]
    found = [
        recursion([CHAIN.differing if differing else CHAIN.common for differing in picks])
        for picks in sequences
    ]
    assert distance(values, weights, [m for m, _ in found], [s for _, s in found]) < BAND


def test_batches_and_trees():
    """Full batches of any parameters: one step by hand, without its noise on average."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 2)), rng.normal(size=4)

    def prior(theta):
        return -(theta["w"] @ theta["w"] + theta["b"] ** 2) / 2

    def likelihood(theta, record):
        return -((record[1] - theta["w"] @ record[0] - theta["b"]) ** 2) / 2

    kernel = cyclic_sgld(prior, likelihood, n=4, batch=2, step_size=0.01)
    state = kernel.init({"w": jnp.zeros(2), "b": jnp.float32(0)}, jax.random.key(0))
    data = jnp.asarray(x), jnp.asarray(y)
    first = np.asarray(state.order[:2])
    keys = jax.random.split(jax.random.key(1), 20_000)
    moved = jax.jit(jax.vmap(lambda key: kernel.step(state, key, data).theta))(keys)
    expected = 0.005 * 2 * (y[first, None] * x[first]).sum(0)
    assert np.asarray(moved["w"]).mean(0) == pytest.approx(
        expected, abs=6 * 0.1 / math.sqrt(20_000)
    )
    assert float(moved["b"].mean()) == pytest.approx(
        0.01 * y[first].sum(), abs=6 * 0.1 / math.sqrt(20_000)
    )
    both = np.column_stack([np.asarray(moved["w"]), np.asarray(moved["b"])])
    assert np.cov(both.T) == pytest.approx(0.01 * np.eye(3), abs=6 * 0.01 * math.sqrt(2 / 20_000))
    later = kernel.step(kernel.step(state, keys[0], data), keys[1], data)
    assert (
        int(later.done) == 2
        and (later.order == state.order).all()
        and sorted(state.order.tolist()) == [0, 1, 2, 3]
    )


def test_bad_input():
    for bad in ({"batch": 4}, {"batch": 0}, {"step_size": 0.0}, {"n": 0}):
        with pytest.raises(InputError):
            cyclic_sgld(log_prior, log_likelihood, **({"n": 6, "step_size": 0.1} | bad))
    with pytest.raises(InputError, match="batch"):
        sgld(log_prior, log_likelihood, n=6, batch=7, step_size=0.1)


def test_nothing_heavy_is_imported():
    code = "import sys, lastiterate.bayes, lastiterate.bayes.linear; print(*{m.split('.')[0] for m in sys.modules})"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert (
        not {"jax", "scipy", "sklearn", "matplotlib", "torch"} & set(found)
        and "lastiterate" in found
    )


def test_public_names_do_not_collide():
    import importlib
    import pkgutil

    import lastiterate.bayes as bayes

    before = {name: getattr(bayes, name) for name in bayes.__all__}
    modules = [m.name for m in pkgutil.iter_modules(bayes.__path__)]
    for name in modules:
        importlib.import_module(f"lastiterate.bayes.{name}")
    assert all(getattr(bayes, name) is value for name, value in before.items())
    assert not set(modules) & set(bayes.__all__)
