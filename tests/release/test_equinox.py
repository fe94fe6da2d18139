"""Modules of Equinox as models: trained whole or in halves; layers that keep state are found and
refused first."""

import equinox as eqx
import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.network_model import check_stateless

RUN = li.Run(
    n=40, steps=3, step_size=0.1, clip=1.0, batching=li.Cyclic(20), noise=li.GradientNoise(0.05)
)
X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
KEY = jax.random.key(0)


class Normed(eqx.Module):
    """A linear layer, and a norm that takes a state."""

    linear: eqx.nn.Linear
    norm: eqx.Module

    def __call__(self, x, state):
        return self.norm(self.linear(x), state)[0]


def normed(norm):
    return eqx.nn.make_with_state(lambda: Normed(eqx.nn.Linear(4, 2, key=KEY), norm()))()


def batch_norm(mode="ema"):
    return eqx.nn.BatchNorm(2, axis_name="records", mode=mode)


def entropy(module, x, y):
    return -jax.nn.log_softmax(module(x))[y]


def trained(module, loss=entropy, **how):
    return li.train(RUN, (X, Y), model=module, loss=loss, seed=0, **how)


def test_a_module_is_trained_whole_or_in_halves_and_read_back(tmp_path):
    module = eqx.nn.MLP(4, 2, 8, 1, key=KEY)
    whole = trained(module)
    half, rest = eqx.partition(module, eqx.is_inexact_array)
    parted = trained(half, lambda half, x, y: entropy(eqx.combine(half, rest), x, y))
    expected = np.asarray(jax.vmap(whole.params)(X))
    assert type(whole.params) is eqx.nn.MLP and np.array_equal(whole.predict(X), expected)
    assert not np.allclose(expected, jax.vmap(module)(X))
    assert np.array_equal(parted.predict(X, lambda half, x: eqx.combine(half, rest)(x)), expected)
    with pytest.raises(InputError, match=r"forward is needed .* equinox.combine"):
        parted.predict(X)
    whole.save(tmp_path / "m")
    assert np.array_equal(li.load(tmp_path / "m", like=module).predict(X), expected)


@pytest.mark.parametrize(
    "norm, said",
    [
        (
            batch_norm,
            r"batch normalisation mixes them, got .BatchNorm at .*\.norm'; use "
            r"equinox.nn.GroupNorm",
        ),
        (lambda: batch_norm("batch"), "batch normalisation mixes them"),
        (
            lambda: eqx.nn.SpectralNorm(eqx.nn.Linear(2, 2, key=KEY), "weight", key=KEY),
            r"keeps state from one to the next, got 'SpectralNorm at .*\.norm'; freeze",
        ),
    ],
)
def test_layers_with_state_are_found_before_anything_is_paid(norm, said, tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(100.0, 1e-3))
    module, _ = normed(norm)
    halves = eqx.partition(module, eqx.is_inexact_array)[0]
    for model in (module, halves, [Normed(None, module)], Normed(None, norm())):
        with pytest.raises(InputError, match=said):
            trained(
                model, lambda *_: pytest.fail("the loss was called"), ledger=ledger, dataset="a"
            )
    assert ledger.total().releases == ()


def test_layers_without_state_or_frozen_ones_are_trained():
    check_stateless(
        eqx.nn.Sequential(
            [eqx.nn.Linear(4, 2, key=KEY), eqx.nn.GroupNorm(1, 2), eqx.nn.LayerNorm(2)]
        )
    )
    module, state = normed(batch_norm)
    frozen = eqx.nn.inference_mode(module)
    found = trained(frozen, lambda module, x, y: -jax.nn.log_softmax(module(x, state))[y])
    assert not np.array_equal(found.params.linear.weight, module.linear.weight)


def test_what_is_no_parameter_is_refused_with_the_remedy():
    class Counted(eqx.Module):
        linear: eqx.nn.Linear
        count: jax.Array

    module = Counted(eqx.nn.Linear(4, 2, key=KEY), np.array(3))
    with pytest.raises(InputError, match=r".count is not, got 'int64'; .* equinox.partition"):
        trained(module)
    half, _ = eqx.partition(eqx.nn.MLP(4, 2, 8, 1, key=KEY), eqx.is_inexact_array)
    with pytest.raises(InputError, match=r"without a batch axis.* equinox.combine"):
        trained(half)
