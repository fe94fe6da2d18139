"""Convolutions and maxima written out are those of JAX, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lastiterate.engine.tracing import quick
from tiers import unless

RNG = np.random.default_rng(5)


def drawn_convolution(rng):
    """A function of images and a kernel, and arguments of the shapes it takes."""
    spatial = int(rng.integers(1, 4))
    groups, each, outputs, batch = (int(rng.integers(1, 4)) for _ in range(4))
    size = tuple(int(k) for k in rng.integers(1, 4, spatial))
    strides, base, dilation = (tuple(int(k) for k in rng.integers(1, 3, spatial)) for _ in range(3))
    padding = tuple((int(a), int(b)) for a, b in rng.integers(-1, 3, (spatial, 2)))
    sides = tuple(int(k) for k in rng.integers(7, 10, spatial))
    layouts = [tuple(int(i) for i in rng.permutation(spatial + 2)) for _ in range(3)]
    numbers = jax.lax.ConvDimensionNumbers(*layouts)

    def laid(shape, layout):  # array.transpose(layout) has the shape
        found = [0] * len(shape)
        for place, axis in enumerate(layout):
            found[axis] = shape[place]
        return jnp.asarray(rng.normal(size=found), jnp.float32)

    def function(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            strides,
            padding,
            base,
            dilation,
            numbers,
            feature_group_count=groups,
            precision="highest",
        )

    images = laid((batch, groups * each, *sides), layouts[0])
    return function, (images, laid((groups * outputs, each, *size), layouts[1]))


def drawn_maximum(rng):
    """Without dilation: JAX has no gradient of maxima with one."""
    axes = int(rng.integers(1, 5))
    size, strides = (
        tuple(int(k) for k in rng.integers(1, 4 if axes < 3 else 3, axes)) for _ in range(2)
    )
    padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 2, (axes, 2)))

    def function(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, size, strides, padding)

    return function, (jnp.asarray(rng.normal(size=rng.integers(4, 7, axes)), jnp.float32),)


def operations(function, args):
    return {str(eqn.primitive) for eqn in jax.make_jaxpr(quick(function))(*args).eqns}


def pulled_back(function, args, cotangent):
    """Its value and the cotangent of its arguments, in one program: one by one XLA would compile
    every operation."""

    def both(args, cotangent):
        value, back = jax.vjp(function, *args)
        return value, back(cotangent)

    return jax.jit(both)(args, cotangent)


@pytest.mark.parametrize("seed", unless(lambda seed: seed < 7, range(40)))
@pytest.mark.parametrize("draw", [drawn_convolution, drawn_maximum])
def test_values_and_gradients_are_those_of_jax(draw, seed):
    rng = np.random.default_rng(seed)
    function, args = draw(rng)
    assert not {"conv_general_dilated", "reduce_window_max"} & operations(function, args)
    cotangent = jnp.asarray(rng.normal(size=jax.eval_shape(function, *args).shape), jnp.float32)
    found, ours = pulled_back(quick(function), args, cotangent)
    wanted, theirs = pulled_back(function, args, cotangent)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-3)


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 3), (1, 2), "SAME")


def test_the_gradient_of_a_tie_goes_where_jax_sends_it():
    x = jnp.asarray(RNG.integers(0, 2, (20, 30)), jnp.float32)
    weights = jnp.asarray(RNG.normal(size=pooled(x).shape), jnp.float32)
    ours, theirs = (
        jax.jit(jax.grad(lambda x, f=f: (f(x) * weights).sum()))(x) for f in (quick(pooled), pooled)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_no_number_stays_none():
    x = jnp.ones((6, 6)).at[2, 3].set(jnp.nan)
    np.testing.assert_array_equal(np.isnan(quick(pooled)(x)), np.isnan(pooled(x)))


def test_dilated_maxima():
    x = jnp.asarray(RNG.normal(size=(9, 12)), jnp.float32)

    def dilated(x):
        return jax.lax.reduce_window(
            x,
            -jnp.inf,
            jax.lax.max,
            (2, 3),
            (1, 2),
            "VALID",
            base_dilation=(2, 1),
            window_dilation=(1, 3),
        )

    np.testing.assert_array_equal(quick(dilated)(x), dilated(x))


def test_what_is_too_large_or_whole_numbers_is_left_to_jax():
    large = jnp.ones((1, 1, 400)), jnp.ones((1, 1, 300))
    assert "conv_general_dilated" in operations(
        lambda x, w: jax.lax.conv(x, w, (1,), "VALID"), large
    )

    def whole(x):
        return jax.lax.reduce_window(x, np.iinfo(np.int32).min, jax.lax.max, (2,), (1,), "VALID")

    assert "reduce_window_max" in operations(whole, (jnp.arange(5, dtype=jnp.int32),))


@pytest.mark.parametrize(
    "places, stride, here", [(10, 1, True), (11, 1, False), (16, 16, True), (17, 17, False)]
)
def test_windows_are_written_out_where_that_costs_little(places, stride, here):
    arrays = jnp.ones((1, 1, 40, 40)), jnp.ones((1, 1, places, places))
    found = operations(lambda x, w: jax.lax.conv(x, w, (stride, stride), "VALID"), arrays)
    assert ("conv_general_dilated" not in found) == here
    maxima = jax.make_jaxpr(quick(lambda x: largest_of(x, places)))(jnp.ones(40))
    assert "reduce_window_max" not in str(maxima)


def largest_of(x, places):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (places,), (1,), "VALID")


def test_long_maxima_are_left_to_jax():
    assert "reduce_window_max" in operations(lambda x: largest_of(x, 26), (jnp.ones(40),))


def test_nested_results_and_nested_calls():
    @jax.jit
    def inner(x):
        return {"a": x + 1, "b": (2 * x, 3.0)}

    found = quick(lambda x, y: inner(x["left"] * y))({"left": jnp.arange(3.0)}, 2.0)
    np.testing.assert_array_equal(found["a"], [1, 3, 5])
    np.testing.assert_array_equal(found["b"][0], [0, 4, 8])
    assert found["b"][1] == 3.0
