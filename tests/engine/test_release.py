"""Whether a model is released depends on public numbers and released parameters, never on a single
record."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import Trainer, key_from_seed
from lastiterate.engine.clipped_gradients import sum_clipped
from lastiterate.engine.linear_gradients import Linear, arrange
from lastiterate.engine.network import fit_network
from lastiterate.engine.preprocessing import clip_rows
from lastiterate.engine.random import FARTHEST, normal_pairs
from lastiterate.engine.trainer import check_growth
from lastiterate.errors import InputError

N = 50
ONES, Y = np.ones((N, 1)), np.ones(N, int)
WITHOUT = ONES * (np.arange(N) != 7)[:, None]
DIVERGING = li.Run(
    n=N,
    steps=100,
    step_size=li.Constant(4.0),
    noise=li.GradientNoise(1.0),
    optimizer=li.HeavyBall(0.01),
    loss=li.Logistic(ridge=1.0),
)
CHARGED = {
    "momentum": {},
    "all iterates": {"optimizer": None, "release": "all"},
    "clip": {"clip": 0.5},
    "blocks": {"batching": li.Cyclic(9)},
    "poisson": {"batching": li.Poisson(0.2)},
    "bins": {"batching": li.BallsInBins(9)},
    "fixed size": {"batching": li.FixedSize(9)},
}


def released(train):
    try:
        train()
    except InputError:
        return False
    return True


def grown(run, x, seed):
    """A fit whose iterates pass the range of single precision."""
    found = Trainer(run).fit(x, Y, key_from_seed(seed))
    assert np.abs(found).max() > 1e40
    return found


@pytest.mark.parametrize("charged", CHARGED)
def test_a_zero_feature_does_not_end_an_overflowing_run(charged):
    """Infinity times 0 is no number: a run refused for it would tell that one record is there
    (epsilon above 3.8)."""
    run = replace(DIVERGING, **CHARGED[charged])
    for seed in range(3):
        assert np.isfinite(grown(run, ONES, seed)).all()
        assert np.isfinite(grown(run, WITHOUT, seed)).all()


def test_parameters_that_overflow_are_refused_whoever_is_there():
    run = replace(DIVERGING, steps=1000)
    assert [
        released(lambda x=x: Trainer(run).fit(x, Y, key_from_seed(0))) for x in (ONES, WITHOUT)
    ] == [False, False]


def linear(p, x, y):
    return -jax.nn.log_sigmoid((p["w"] * x).sum() + p["b"] * 1.0) + 0 * y


@pytest.mark.parametrize("clip", [0.5, None])
@pytest.mark.parametrize(
    "batching, microbatch", [(li.FullBatch(), 3), (li.Cyclic(9), 50), (li.Poisson(0.2), 5)]
)
def test_a_zero_feature_does_not_end_an_overflowing_network(clip, batching, microbatch):
    run = replace(
        DIVERGING,
        steps=70,
        batching=batching,
        clip=clip,
        loss=li.KnownConstants(li.LossFacts(lipschitz=2.0)),
    )
    run = replace(run, step_size=li.Constant(1e30), noise=li.GradientNoise(1e20))
    found = [
        fit_network(
            run,
            linear,
            {"w": np.zeros(1), "b": np.zeros(())},
            (x, Y),
            key_from_seed(1),
            microbatch=microbatch,
        )
        for x in (ONES, WITHOUT)
    ]
    for one in found:
        assert np.isfinite(one["w"]).all() and np.abs(one["w"]).max() > 1e40


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("theta", [np.inf, -np.inf, np.nan, 1e308, 1e39])
@pytest.mark.parametrize(
    "loss",
    [li.Logistic(ridge=1.0), li.Softmax(classes=3), li.HuberRidge(residual_clip=2.0)],
    ids=lambda loss: type(loss).__name__,
)
def test_every_record_adds_a_bounded_vector_at_any_parameters(loss, theta, clip, exact):
    """Sensitivities are claimed for every theta, so also where scores overflow."""
    run = replace(DIVERGING, loss=loss, clip=clip, n=5)
    rows = np.array([[1.0, -1.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [-3.0, 2.0]])
    bound = run.facts().lipschitz.value * (1 + 1e-6)
    with jax.enable_x64(True):
        data = [a[0, 0] for a in arrange(run, rows, np.array([0, 1, 0, 1, 1]))]
        one = Linear(loss, clip, exact)
        point = jnp.asarray(
            theta * np.array([[1.0, 1.0, -1.0]] * (3 if isinstance(loss, li.Softmax) else 1))
        )
        each = [np.asarray(one.chunk_sum(point, [a[i : i + 1] for a in data])) for i in range(5)]
        total = np.asarray(one.chunk_sum(point, data))
    assert np.isfinite(total).all() and all(np.linalg.norm(part) <= bound for part in each)
    np.testing.assert_allclose(total, np.sum(each, axis=0), atol=1e-5)


@pytest.mark.parametrize("clip", [0.5, None])
def test_a_network_record_without_a_finite_gradient_adds_nothing(clip):
    x = jnp.asarray([[1.0, 2.0], [0.0, 1.0], [1.0, 0.0]])
    with jax.enable_x64(True):
        params = {"w": jnp.asarray([jnp.inf, 1.0]), "b": jnp.asarray(0.0)}
        found = sum_clipped(linear, clip, params, (x, jnp.zeros(3)), jnp.ones(3, bool))
        wanted = sum_clipped(
            linear, clip, params, (x, jnp.zeros(3)), jnp.asarray([True, False, True])
        )
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, two)


HIDDEN = replace(DIVERGING, optimizer=None, steps=620)


@pytest.mark.parametrize(
    "change, refused",
    [
        ({}, True),
        ({"steps": 500}, False),
        ({"steps": 500, "step_size": li.StepSchedule((1e29,) * 20 + (1.0,) * 480)}, True),
        ({"step_size": li.Constant(1.9)}, False),
        ({"start": li.GaussianStart(1e30), "steps": 580}, True),
        ({"steps": 580}, False),
        ({"domain": li.domains.Ball(1.0)}, False),
        ({"release": "all"}, False),
        ({"loss": li.Logistic(ridge=0.0), "step_size": li.Constant(1e30)}, False),
        ({"loss": li.KnownConstants()}, False),
        ({"loss": li.KnownConstants(li.LossFacts(lipschitz=1.0))}, False),
    ],
)
def test_hidden_iterates_that_could_overflow_are_refused_before_the_first_step(change, refused):
    """3^620 is about 1e296: the last step alone could hide what happened before, and an overflow
    would tell."""
    run = replace(HIDDEN, **change)
    ridge = getattr(run.loss, "ridge", 0.0)
    assert released(lambda: check_growth(run, np.zeros((1, 2)), ridge)) is not refused
    if refused:
        with pytest.raises(InputError, match="could overflow") as caught:
            Trainer(run).fit(ONES, Y, key_from_seed(0))
        assert "\n" not in str(caught.value)


def test_the_bound_on_iterates_holds():
    """The largest run that is not refused stays finite, and nearly reaches the bound."""
    run = replace(HIDDEN, steps=597)
    check_growth(run, np.zeros((1, 2)), 1.0)
    found = Trainer(run).fit(WITHOUT, Y, key_from_seed(2))
    assert np.isfinite(found).all() and np.abs(found).max() > 1e280
    with jax.enable_x64(True):
        second = jnp.asarray([0, 2**64 - 1], jnp.uint64)
        pairs = normal_pairs(lambda number: (jnp.zeros(2, jnp.uint64), second))
        assert np.abs(np.array(pairs)).max() < FARTHEST


def test_long_records_are_not_refused():
    """Finite numbers beyond single precision are clipped like any others; NaN and infinity are no
    numbers at all."""
    rows = clip_rows(np.array([[1e300, -1e300], [3.0, 4.0], [0.0, 3.4028235e38]]), 1.0)
    np.testing.assert_allclose(rows, [[0.5**0.5, -(0.5**0.5)], [0.6, 0.8], [0, 1]], rtol=1e-5)
    run = replace(DIVERGING, n=2, loss=li.HuberRidge(), steps=1)
    _, target = arrange(run, np.ones((2, 1)), np.array([-1e300, 1.0]))
    assert np.isfinite(target).all() and target.min() < -3e38
    for bad in (np.inf, -np.inf, np.nan):
        with pytest.raises(InputError, match="finite"):
            clip_rows(np.array([[bad, 1.0]]), 1.0)
        with pytest.raises(InputError, match="finite"):
            arrange(run, np.ones((2, 1)), np.array([bad, 1.0]))
