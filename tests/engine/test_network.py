"""Any loss on any parameters: against the linear models, against materialised gradients, and bad
input."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import Trainer, key_from_seed
from lastiterate.engine.clipped_gradients import layers_of, sum_clipped
from lastiterate.engine.network import PerExample, fit_network, prepare_loop
from lastiterate.engine.tracing import program
from lastiterate.errors import InputError, NotCertified
from tiers import EXHAUSTIVE, unless

RNG = np.random.default_rng(1)
N, D = 23, 4
X = RNG.normal(size=(N, D))
X /= np.maximum(1, np.linalg.norm(X, axis=1) / 1.4)[:, None]
Y = RNG.integers(0, 3, N)
ABSTRACT = li.KnownConstants(li.LossFacts(lipschitz=5.0))
LINEAR = li.Softmax(classes=3, row_norm=1.5, intercept=0.7)
RUN = li.Run(
    n=N,
    steps=9,
    step_size=li.Constant(0.3),
    noise=li.GradientNoise(0.2),
    release="all",
    loss=LINEAR,
)
ONES = np.column_stack((X, np.full(N, 0.7)))


def softmax(theta, x, y):
    return -jax.nn.log_softmax(theta @ x)[y]


CHANGES = {
    "full batch": {},
    "clip": {"clip": 0.3},
    "blocks": {"batching": li.Cyclic(7), "clip": 0.3},
    "permuted": {"batching": li.Permuted(7)},
    "reshuffled": {"batching": li.Reshuffled(7), "clip": 0.5},
    "poisson": {"batching": li.Poisson(0.3), "clip": 0.3},
    "fresh subsets": {"batching": li.FixedSize(6)},
    "bins": {"batching": li.BallsInBins(6), "clip": 0.3},
    "allocated": {"batching": li.RandomAllocation(6), "clip": 0.3},
    "prox, momentum": {
        "prox": li.penalties.NuclearNorm(0.1),
        "optimizer": li.Nesterov(),
        "domain": li.domains.Ball(0.4),
    },
    "adam": {
        "optimizer": li.Adam(stabiliser=1e-3),
        "batching": li.RandomAllocation(6),
        "clip": 0.3,
    },
    "correlated noise": {"noise": li.Correlated(1.0, 5), "batching": li.Cyclic(7), "clip": 0.3},
    "group lasso": {"prox": li.penalties.GroupLasso(0.2), "batching": li.Cyclic(10)},
}


KEPT = ("full batch", "blocks", "poisson", "allocated", "prox, momentum", "correlated noise")
"""One of each way to read records, and of what follows a sum; samplers and updates have tests of
their own."""
CHUNKS = {"blocks": (1, 5), "poisson": (5,), "allocated": (5,)}
"""Sizes of chunks, in one of each way to read records; without one all that are read at once are a
chunk. What follows a sum sees no chunks."""


@pytest.mark.parametrize("change", unless(KEPT.__contains__, CHANGES), ids=str)
def test_a_linear_model_as_a_network_is_the_linear_model(change):
    run, key = replace(RUN, **CHANGES[change]), key_from_seed(4)
    data = X.astype(np.float32), Y
    theirs = Trainer(run).fit(*data, key)
    ours = fit_network(
        replace(run, loss=ABSTRACT),
        softmax,
        np.zeros((3, D + 1)),
        (ONES.astype(np.float32), Y),
        key,
    )
    np.testing.assert_allclose(ours, theirs, atol=3e-5)
    last = replace(run, loss=ABSTRACT, release="last")
    for microbatch in (1, 5, 500) if EXHAUSTIVE else CHUNKS.get(change, (None,)):
        found = fit_network(
            last,
            softmax,
            np.zeros((3, D + 1)),
            (ONES.astype(np.float32), Y),
            key,
            microbatch=microbatch,
        )
        np.testing.assert_allclose(found, ours[-1], atol=3e-5)


def mlp(params, x, y):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return -jax.nn.log_softmax(params[-1]["w"].T @ x + params[-1]["b"])[y]


def convolutional(params, x, y):
    z = jax.lax.conv_general_dilated(x[None, None], params["kernel"], (1, 1), "SAME")
    return -jax.nn.log_softmax(jnp.tanh(z).ravel() @ params["w"])[y]


def channels_last(params, x, y):
    """Strides, dilation, one-sided padding, another layout; kernels on two images or in groups are
    no layers."""
    z = jax.lax.conv_general_dilated(
        x.reshape(1, 3, 2, 2),
        params["kernel"],
        (1, 2),
        ((1, 0), (0, 2)),
        rhs_dilation=(2, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    two = jax.lax.conv_general_dilated(
        jnp.stack([x[:4], x[4:8]]).reshape(2, 1, 2, 2), params["other"], (1, 1), "SAME"
    )
    grouped = jax.lax.conv_general_dilated(
        x.reshape(1, 2, 2, 3), params["group"], (1, 1), "SAME", feature_group_count=2
    )
    return (jnp.tanh(z) ** 2).sum() + jnp.tanh(two).sum() + jnp.tanh(grouped).sum() + 0 * y


def tied(params, x, y):
    return ((params["w"].T @ jnp.tanh(params["w"] @ x) - x) ** 2).sum() + 0 * y


def nested(params, x, y):
    step = jax.jit(lambda w, v: jax.jit(jnp.dot)(v, w))
    return (
        jnp.logaddexp(0.0, step(params["w"], x) @ jax.jit(lambda a: a.T)(params["v"]).T).sum()
        + 0 * y
    )


def looped(params, x, y):
    return (jax.lax.fori_loop(0, 3, lambda _, v: jnp.tanh(params["w"] @ v), x) ** 2).sum() + 0 * y


def penalised(params, x, y):
    return (params["w"] @ x).sum() ** 2 + (params["w"] ** 2).sum() + 0 * y


def sequences(params, x, y):
    return ((x.reshape(3, 4) @ params["w"]) ** 2).sum() + 0 * y


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def narrow(params, x, y):
    z = jnp.matmul(params["w"], x, preferred_element_type=jnp.bfloat16)
    return (jnp.tanh(z + params["b"].astype(z.dtype)).astype(jnp.float32) ** 2).sum() + 0 * y


def transposed(params, x, y):
    """A convolution without spatial axes is a product, here with the transposed matrix."""
    numbers = jax.lax.ConvDimensionNumbers((0, 1), (0, 1), (0, 1))
    z = jax.lax.conv_general_dilated(x[None], params["w"].T, (), (), dimension_numbers=numbers)
    return (jnp.tanh(z[0]) * jnp.arange(12.0, dtype=x.dtype)).sum() + 0 * y


def empty(params, x, y):
    """Windows longer than what they are moved over give no result at all."""
    none = jax.lax.reduce_window(params["w"] * x, -jnp.inf, jax.lax.max, (20,), (1,), "VALID")
    nothing = jax.lax.conv(x[None, None], params["kernel"], (1,), "VALID")
    return none.sum() + nothing.sum() + (params["w"] * x).sum() + 0 * y


NETWORKS = {
    "no spatial axes": (transposed, {"w": normal(12, 12)}, 0),
    "no results": (empty, {"w": normal(12), "kernel": normal(1, 1, 20)}, 0),
    "layers": (mlp, [{"w": normal(12, 9), "b": normal(9)}, {"w": normal(9, 3), "b": normal(3)}], 2),
    "convolution": (
        lambda p, x, y: convolutional(p, x.reshape(3, 4), y),
        {"kernel": normal(2, 1, 3, 3), "w": normal(24, 3)},
        2,
    ),
    "layouts": (
        channels_last,
        {"kernel": normal(2, 2, 2, 3), "other": normal(2, 1, 2, 2), "group": normal(2, 1, 1, 2)},
        1,
    ),
    "tied weights": (tied, {"w": normal(5, 12)}, 0),
    "nested calls": (nested, {"w": normal(12, 6), "v": normal(6, 2)}, 1),
    "a loop": (looped, {"w": normal(12, 12)}, 0),
    "used twice": (penalised, {"w": normal(4, 12)}, 0),
    "sequences": (sequences, {"w": normal(4, 6)}, 0),
}
NO_LAYER = ("a loop", "used twice", "sequences")
"""Where no layer is found the gradients are materialised: that is shown with tied weights and the
others."""


@pytest.mark.parametrize("name", NETWORKS)
def test_dense_layers_are_found_and_summed_as_if_materialised(name):
    loss, params, layers = NETWORKS[name]
    x, y, real = normal(16, 12), RNG.integers(0, 3, 16), np.arange(16) != 5
    with jax.enable_x64(True):
        assert (
            len(layers_of(program(loss, params, x[0], y[0])[0].jaxpr, len(jax.tree.leaves(params))))
            == layers
        )
        if name in NO_LAYER and not EXHAUSTIVE:
            return
        each = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(params, x, y)
        norms = np.sqrt(
            sum((np.asarray(a, float) ** 2).reshape(16, -1).sum(1) for a in jax.tree.leaves(each))
        )
        summed = jax.jit(partial(sum_clipped, loss))
        for clip in (np.quantile(norms, 0.4), 2 * norms.max()):
            found = summed(clip, params, (x, y), real)
            scale = np.minimum(1, clip / norms) * np.asarray(real)
            for ours, one in zip(jax.tree.leaves(found), jax.tree.leaves(each), strict=True):
                wanted = np.einsum("m,m...->...", scale, np.asarray(one, float))
                np.testing.assert_allclose(ours, wanted, atol=2e-5 * (1 + np.abs(wanted).max()))
        one = summed(1e-3, params, (x, y), np.arange(16) == 0)
        assert np.sqrt(sum((np.asarray(a, float) ** 2).sum() for a in jax.tree.leaves(one))) <= 1e-3


def distance(params, x, y):
    """No derivative where ``w x`` is 0, and none by ``v`` where a record's third feature is 0."""
    return jnp.linalg.norm(params["w"] @ x) + jnp.log(jnp.abs(x[2])) * params["v"][0] + 0 * y


def test_sums_without_a_clip_stay_finite():
    """Gradients that are finite in single precision, and whose sum is not: they count as 0, and so
    does one too long for that precision alone; no record ends the run."""
    x, d = jnp.ones((8, 3), jnp.float32), jnp.ones(8, jnp.float32)
    loss = (lambda w, x, d: (w @ x).sum() * d), (lambda w, x, d: (w * x).sum() * d)
    for given, shape in zip(loss, ((1, 3), (3,)), strict=True):
        with jax.enable_x64(True):
            found = jax.jit(partial(sum_clipped, given, None))
            params, real = jnp.zeros(shape, jnp.float32), jnp.ones(8, bool)
            for size in (
                1e38,
                1e36,
                1e18,
            ):  # of the sum of eight, of one that is too long for such a sum, of a product
                hurt = (
                    (x * (1e30 if size == 1e18 else 1.0)).at[3:].set(1.0),
                    (d * size).at[3:].set(1.0),
                )
                np.testing.assert_array_equal(found(params, hurt, real).ravel(), np.full(3, 5.0))
            np.testing.assert_allclose(
                found(params, (x, d * 1e30), real).ravel(), np.full(3, 8e30), rtol=1e-6
            )


@pytest.mark.parametrize("bad", [0.0, 1e30])
def test_a_record_without_a_finite_gradient_counts_as_zero(bad):
    """Whether a run ends must not tell that one record is there."""
    params = {"w": normal(4, 12), "v": normal(2)}
    x, y = normal(16, 12), np.zeros(16, np.int32)
    spoilt = x.copy()
    spoilt[3] = bad
    loss = distance if bad == 0 else lambda p, x, y: distance(p, x, y) ** 4
    with jax.enable_x64(True):
        summed = jax.jit(partial(sum_clipped, loss, 0.5))
        found = summed(params, (spoilt, y), np.ones(16, bool))
        wanted = summed(params, (x, y), np.arange(16) != 3)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, wanted)
    run = replace(RUN, n=16, release="last", clip=0.5, loss=li.KnownConstants())
    assert np.isfinite(fit_network(run, loss, params, (spoilt, y))["w"]).all()


@pytest.mark.parametrize(
    "clip, dtype",
    [
        (1.0, jnp.bfloat16.dtype),
        (1.0, np.dtype("float16")),
        (1.0, np.dtype("float32")),
        (None, jnp.bfloat16.dtype),
    ],
    ids=str,
)
def test_one_record_moves_the_sum_by_the_clip_in_any_precision(dtype, clip):
    """256 equal gradients of norm 1: half precision would round their sum by as much as one of
    them."""
    params = {"w": jnp.zeros((2, 8), dtype)}
    run = replace(RUN, n=256, clip=clip, loss=li.KnownConstants())
    with jax.enable_x64(True):
        for loss in (lambda p, x: (p["w"] * x).sum(), lambda p, x: x[:, 0] @ (p["w"] @ (x[0] * 2))):
            loop, first, data = prepare_loop(run, loss, params, (np.ones((256, 2, 8), dtype),), 256)
            assert [a.shape[:3] for a in data] == [(1, 1, 256)] * 2, (
                "one chunk, and which of its records are real"
            )
            total, real = jax.jit(loop.objective.chunk_sum), np.asarray(data[1])[0, 0]
            for seed in range(10):
                u = np.random.default_rng(seed).normal(size=(2, 8))
                u = (u / np.linalg.norm(u)).astype(dtype)
                sums = [
                    np.asarray(total(first, (rows, real)))
                    for rows in (np.stack([u] * 256), np.stack([*[u] * 255, 0 * u]))
                ]
                assert np.linalg.norm(sums[0] - sums[1]) <= 1.0098 * (clip or 1.01)


def test_a_network_of_arrays_and_functions_keeps_its_structure():
    params = {"act": jnp.tanh, "w": normal(D + 1, 3), "name": "first", "depth": 1}

    def loss(p, x, y):
        return -jax.nn.log_softmax(p["act"](x) @ p["w"])[y]

    run = replace(RUN, clip=1.0, release="last", loss=li.KnownConstants())
    model = li.train(run, (ONES.astype(np.float32), Y), model=params, loss=loss)
    found, certificate = model.params, model.certificate
    assert found["act"] is jnp.tanh and found["name"] == "first" and found["depth"] == 1
    assert (
        found["w"].shape == (D + 1, 3)
        and found["w"].dtype == np.float32
        and np.isfinite(found["w"]).all()
    )
    assert not np.array_equal(found["w"], params["w"])
    assert certificate.run is run and certificate.best(1e-5).theorem.name == "composition-gdp"
    assert any("first parameters" in caveat for caveat in certificate.all_caveats())
    again = li.train(run, (ONES.astype(np.float32), Y), model=params, loss=loss).params
    assert not np.array_equal(found["w"], again["w"]), "every call draws its own noise"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_short_parameters_are_trained_in_single_precision_at_least(dtype):
    """Sums of 256 gradients in half precision would lose more than the allowance for rounding
    covers."""
    seen = set()

    def loss(p, x, y):
        seen.add(str(p.dtype))
        return softmax(p, x, y)

    run = replace(RUN, clip=1.0, release="last", loss=li.KnownConstants())
    with jax.enable_x64(True):
        first = jnp.zeros((3, D + 1), dtype)
    found = fit_network(run, loss, first, (ONES.astype(np.float32), Y))
    assert str(found.dtype) == dtype and seen == {"float64" if dtype == "float64" else "float32"}


def test_a_convolution_runs_in_both_precisions():
    params = {"kernel": normal(2, 1, 3, 3), "w": normal(24, 3)}
    images = RNG.normal(size=(N, 12)).astype(np.float32)
    run = replace(RUN, clip=1.0, release="last", noise=li.GradientNoise(0.0))

    def loss(p, x, y):
        return convolutional(p, x.reshape(3, 4), y)

    key = key_from_seed(8)
    single, double = (
        fit_network(
            replace(run, loss=li.KnownConstants(li.LossFacts(smooth=smooth))),
            loss,
            params,
            (images, Y),
            key,
        )
        for smooth in (None, 1.0)
    )
    for one, two, first in zip(*map(jax.tree.leaves, (single, double, params)), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
        assert np.abs(one - first).max() > 1e-3


def test_what_a_hidden_state_may_certify_is_computed_in_double_precision():
    seen = []

    def loss(theta, x, y):
        seen.append(theta.dtype)
        return softmax(theta, x, y)

    params = np.zeros((3, D + 1), np.float32)
    for facts, extra, exact in (
        ({}, {}, False),
        ({"smooth": 1.0}, {}, True),
        ({}, {"domain": li.domains.Ball(1.0)}, True),
        ({"smooth": 1.0}, {"optimizer": li.HeavyBall(0.5)}, False),
        ({"smooth": 1.0}, {"release": "all"}, False),
    ):
        seen.clear()
        run = replace(RUN, release="last", clip=1.0, loss=li.KnownConstants(li.LossFacts(**facts)))
        with jax.enable_x64(True):
            loop, first, data = prepare_loop(
                replace(run, **extra), loss, params, (ONES.astype(np.float32), Y)
            )
            jax.eval_shape(loop.objective.chunk_sum, first, jax.tree.map(lambda a: a[0, 0], data))
        assert set(map(str, seen)) == {"float64" if exact else "float32"}
    run = replace(RUN, release="last", loss=li.KnownConstants(li.LossFacts(smooth=1.0)), clip=1.0)
    found = fit_network(run, loss, params, (ONES.astype(np.float32), Y))
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    "change, word",
    [
        ({"loss": lambda p, x, y: softmax(p, x, y)[None]}, "one number for one record"),
        ({"loss": lambda p, x, y: 1}, "one number for one record"),
        (
            {"loss": lambda p, x, y: softmax(p, x - jax.lax.pmean(x, "batch"), y)},
            "batch normalisation",
        ),
        ({"loss": lambda p, x: 0.0}, "one record"),
        ({"loss": lambda p, x, y: (x @ p).mean()}, "one record"),
        ({"loss": "softmax"}, "must be a function"),
        ({"loss": lambda p, x, y: jnp.sqrt(p.sum()) * softmax(p, x, y)}, "finite gradient"),
        ({"params": np.zeros((3, D + 1), int)}, "floating-point"),
        ({"params": {"w": np.full((3, D + 1), np.nan)}}, "finite at the start"),
        ({"params": {}}, "structure of NumPy or JAX arrays"),
        ({"params": {"w": [0.0], "b": 0.0}}, "a number is an array as np.array"),
        (
            {
                "params": {"w": np.zeros((3, D + 1)), "b": 0.0},
                "loss": lambda p, x, y: softmax(p["w"], x, y) + p["b"],
            },
            r"\['b'\] is a number, which would not be trained, got 0.0; write np.array\(0.0\)",
        ),
        (
            {
                "params": {"w": np.zeros((3, D + 1)), "z": np.zeros(2)},
                "loss": lambda p, x, y: softmax(p["w"], x, y),
            },
            r"must hold parameters that the loss reads, and \['z'\] is none: it would be released "
            r"as noise",
        ),
        ({"data": (ONES, Y.astype(str))}, "data must be arrays of numbers"),
        (
            {"data": (ONES, Y + 1)},
            "class indices that the loss knows, and one lies beyond an array's end",
        ),
        ({"data": (ONES[:5], Y)}, "n = 23"),
        ({"data": (np.where(ONES > 1, np.nan, ONES), Y)}, "finite numbers"),
        (
            {"data": (jnp.asarray(np.where(ONES > 1, np.nan, ONES), jnp.bfloat16), Y)},
            "finite numbers",
        ),
        ({"data": ONES}, "a tuple"),
        ({"data": ()}, "at least one array"),
        ({"microbatch": 0}, "microbatch"),
        ({"run": {"loss": LINEAR}}, "KnownConstants"),
        ({"run": {"preprocessing": (li.PrivateMean(3.0, 1.0),)}}, "preprocessing"),
        (
            {"run": {"start": li.GaussianStart(1.0)}, "params": np.ones((3, D + 1))},
            "starts at random",
        ),
        ({"run": {"domain": li.domains.Box(-1.0, 1.0, 3)}}, "number of parameters, 15"),
    ],
)
def test_bad_input_is_one_sentence(change, word):
    run = replace(
        RUN, **{"clip": 1.0, "release": "last", "loss": li.KnownConstants()} | change.get("run", {})
    )
    given = {
        "loss": softmax,
        "params": np.zeros((3, D + 1)),
        "data": (ONES.astype(np.float32), Y),
    } | change
    given.pop("run", None)
    with pytest.raises(InputError, match=word) as caught:
        li.train(run, given.pop("data"), model=given.pop("params"), **given)
    assert "\n" not in str(caught.value)


def test_a_label_beyond_the_outputs_is_found_in_whatever_piece_it_lies():
    run = replace(RUN, clip=1.0, release="last", loss=li.KnownConstants(), batching=li.Cyclic(6))
    for where, last in ((1, 3), (N - 1, 3), (1, 2), (N - 1, 2)):
        target = np.where(np.arange(N) == where, last, 0)
        pieces = li.data.Generated(
            N, lambda first, count, y=target: (ONES[first:][:count], y[first:][:count])
        )
        if last == 2:
            assert li.train(
                run, pieces, model=np.zeros((3, D + 1)), loss=softmax, seed=0
            ).params.any()
        else:
            with pytest.raises(InputError, match="class indices that the loss knows"):
                li.train(run, pieces, model=np.zeros((3, D + 1)), loss=softmax)


def test_labels_of_none_and_numbers_that_are_no_labels_are_taken():
    run = replace(RUN, clip=1.0, release="last", loss=li.KnownConstants())
    masked = np.where(Y, Y, -100)
    for target, loss in (
        (masked, lambda p, x, y: jnp.where(y < 0, 0.0, softmax(p, x, y))),
        (Y + 7, lambda p, x, y: ((p @ x).sum() - y) ** 2),
        (Y + 7, lambda p, x, y: softmax(p, x, y - 7)),
        (Y + 7, lambda p, x, y: jax.checkpoint(lambda q: softmax(q, x, y - 7))(p)),
    ):
        assert li.train(
            run, (ONES, target), model=np.zeros((3, D + 1)), loss=loss, seed=0
        ).params.any()


def test_nothing_is_trained_that_nothing_certifies():
    run = replace(RUN, release="last", loss=ABSTRACT)
    calls = []

    def loss(p, x, y):
        calls.append(1)
        return softmax(p, x, y)

    with pytest.raises(NotCertified):
        li.train(run, (ONES, Y), model=np.zeros((3, D + 1)), loss=loss)
    assert not calls
    first, weak = np.zeros((3, D + 1)), li.Evidence.ASSUMED
    assert li.train(run, (ONES, Y), model=first, loss=loss, min_evidence=weak).params.shape == (
        3,
        D + 1,
    )


def test_a_product_that_is_rounded_further_is_differentiated_as_it_is():
    params, x, y = {"w": normal(4, 12), "b": normal(4)}, normal(16, 12), np.zeros(16)
    with jax.enable_x64(True):
        found = jax.jit(partial(sum_clipped, narrow, 100.0))(params, (x, y), np.ones(16, bool))
        each = jax.jit(jax.vmap(jax.grad(narrow), (None, 0, 0)))(params, x, y)
        wanted = jax.tree.map(lambda a: np.asarray(a).sum(0), each)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02 * np.abs(theirs).max())


def test_norms_that_underflow_do_not_lift_the_clip():
    """Squares below 2^-1022 are counted as that much, so that no gradient passes as if it were
    zero."""
    with jax.enable_x64(True):
        one, clip, summed = jnp.ones(1, bool), 1e-12, jax.jit(sum_clipped, static_argnums=0)
        large, little = jnp.full((1, 1), 1e153), jnp.full((1, 1), 1e-163)
        found = summed(lambda w, x, d: (w @ x) @ d, clip, jnp.zeros((1, 1)), (large, little), one)
        assert abs(float(found[0, 0])) <= clip
        found = summed(
            lambda w, x: (w * x).sum(), 1e-250, jnp.zeros(1), (jnp.full((1, 1), 1e-200),), one
        )
        assert abs(float(found[0])) <= 1e-250


def test_memory_is_bounded_by_the_microbatch():
    """The largest array of a compiled gradient grows with the microbatch, not with the batch.
    Weights that are tied have no layer, so that every record's gradient is an array."""
    params = {"w": normal(20, 12)}
    compiled = {}

    def largest(microbatch, n):
        run = li.Run(
            n=n, steps=1, step_size=li.Constant(0.1), noise=li.GradientNoise(1.0), clip=1.0
        )
        with jax.enable_x64(True):
            loop, first, data = prepare_loop(
                run, tied, params, (np.zeros((n, 12), np.float32), np.zeros(n, int)), microbatch
            )
            chunk = jax.tree.map(lambda a: a[0, 0], data)
            assert (
                isinstance(loop.objective, PerExample) and data[0].shape[1] * data[0].shape[2] >= n
            )
            lowered = jax.jit(loop.objective.chunk_sum).lower(first, chunk)
            if (
                text := lowered.as_text()
            ) not in compiled:  # the same program needs the same memory
                compiled[text] = lowered.compile().memory_analysis().temp_size_in_bytes
        return compiled[text]

    assert largest(64, 512) > 4 * largest(8, 512)
    assert largest(8, 2048) == largest(8, 512)
