"""A loss that may read other records is refused, in every form that JAX has, before a ledger is
charged."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

import lastiterate as li
from lastiterate.engine.clipped_gradients import sum_clipped
from lastiterate.engine.step_iterator import Pause
from lastiterate.engine.tracing import ALLOWED
from lastiterate.engine.trainer import Loop
from support import refuse_unpaid
from tiers import EXHAUSTIVE

N, D = 6, 3
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
RUN = li.Run(n=N, steps=2, step_size=0.3, clip=1.0, noise=li.GradientNoise(0.2))
METHODS = ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


@custom_vmap
def mixed(x):
    return x


@mixed.def_vmap
def _(size, batched, x):
    return jnp.broadcast_to(x.sum(0) * 100, x.shape), batched[0]


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def called(x, method):
    return jax.pure_callback(lambda a: a - a.mean(0), like(x), x, vmap_method=method)


def foreign(x, method):
    return jax.ffi.ffi_call("nothing_of_that_name", like(x), vmap_method=method)(x)


def counted(x):
    io_callback(lambda a: None, None, x)
    return x


def printed(x):
    jax.debug.print("{}", x)
    return x


def told(x):
    jax.debug.callback(lambda a: None, x)
    return x


@jax.custom_vjp
def mixed_backward(x):
    return x


mixed_backward.defvjp(lambda x: (x, None), lambda _, slope: (mixed(slope),))


@jax.custom_jvp
def mixed_forward(x):
    return x


mixed_forward.defjvp(lambda x, dx: (mixed(x[0]), dx[0]))
SEEN = jax.new_ref(np.zeros(D, np.float32))


def remembered(x):
    SEEN[...] = SEEN[...] + x
    return SEEN[...]


def drawn(x, impl):
    seed = jax.lax.bitcast_convert_type(x[0].astype(jnp.float32), jnp.int32)
    return x * jax.random.normal(jax.random.key(seed, impl=impl), (D,), x.dtype)


def bits(x):
    key = jnp.ones(4, jnp.uint32) * jax.lax.bitcast_convert_type(
        x[0].astype(jnp.float32), jnp.uint32
    )
    return x * jax.lax.rng_bit_generator(key, (D,))[1].astype(x.dtype)


def summed_over_devices(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("records",))
    spec = jax.sharding.PartitionSpec()
    return jax.shard_map(
        lambda a: jax.lax.psum(a, "records"), mesh=mesh, in_specs=spec, out_specs=spec
    )(x)


SEERS = (
    {
        "custom_vmap": (mixed, "custom_vmap_call"),
        "io_callback": (counted, "io_callback"),
        "print": (printed, "debug_"),
        "callback": (told, "debug_callback"),
        "reference": (remembered, "'get'|'swap'"),
        "rbg": (partial(drawn, impl="rbg"), "threefry"),
        "unsafe_rbg": (partial(drawn, impl="unsafe_rbg"), "threefry"),
        "bits": (bits, "rng_bit_generator"),
        "shard_map": (summed_over_devices, "shard_map"),
    }
    | {
        f"pure_callback {method}": (partial(called, method=method), "pure_callback")
        for method in METHODS
    }
    | {f"ffi {method}": (partial(foreign, method=method), "ffi_call") for method in METHODS}
)


def with_jvp(see):
    found = jax.custom_jvp(lambda x: see(x))
    found.defjvp(lambda x, dx: (x[0], dx[0]))
    return found


def with_vjp(see):
    found = jax.custom_vjp(lambda x: see(x))
    found.defvjp(lambda x: (x, None), lambda _, slope: (slope,))
    return found


PLACES = {
    "plain": lambda see, x: see(x),
    "jit": lambda see, x: jax.jit(lambda a: jax.jit(see)(a) * 2)(x),
    "scan": lambda see, x: jax.lax.scan(lambda held, _: (see(held), None), x, None, length=2)[0],
    "while": lambda see, x: jax.lax.while_loop(
        lambda held: held[0] < 2, lambda held: (held[0] + 1, see(held[1])), (0, x)
    )[1],
    "condition": lambda see, x: jax.lax.while_loop(
        lambda held: (held[0] < 2) & (see(held[1])[0] < 9),
        lambda held: (held[0] + 1, held[1]),
        (0, x),
    )[1],
    "cond": lambda see, x: jax.lax.cond(x[0] > 0, see, lambda a: a, x),
    "switch": lambda see, x: jax.lax.switch(jnp.int32(x[0]), [jnp.sin, jnp.cos, see], x),
    "checkpoint": lambda see, x: jax.checkpoint(lambda a: see(a))(x),
    "custom_jvp": lambda see, x: with_jvp(see)(x),
    "custom_vjp": lambda see, x: with_vjp(see)(x),
    "solve": lambda see, x: jax.lax.custom_linear_solve(
        lambda a: see(a) * 2, x, lambda _, b: b / 2, symmetric=True
    ),
}


def loss_of(see, place=PLACES["plain"]):
    """See the record beside the parameters' way, so that whatever has no derivative is no obstacle."""
    return lambda w, x: (w * jax.lax.stop_gradient(place(see, x))).sum() ** 2


def refused(loss, said, tmp_path, **more):
    with refuse_unpaid(tmp_path, said) as charged:
        li.train(RUN, (X,), model=np.zeros(D), loss=loss, **charged, **more)


@pytest.mark.parametrize("name", SEERS)
def test_what_may_see_other_records_is_refused(name, tmp_path):
    see, said = SEERS[name]
    refused(loss_of(see), said, tmp_path)


@pytest.mark.parametrize(
    "held", [X, X[::-1] * 2, jnp.asarray(X)], ids=["records", "like records", "of JAX"]
)
def test_a_loss_that_holds_an_array_like_the_data_is_refused(held, tmp_path):
    """What a loss knows of all records is in the gradient of every one, however that is clipped."""
    said = "loss must look at one record, and holds an array with one entry for every record"
    refused(lambda w, x: ((held @ w) ** 2).mean() + 0 * x.sum(), said, tmp_path)
    kept = li.train(
        RUN,
        (X,),
        model=np.zeros(D),
        loss=lambda w, x: ((jnp.asarray(X[:3]) @ w) ** 2).sum() * x[0],
        epsilon=50.0,
        delta=1e-5,
    )
    assert any("what the loss holds" in text for text in kept.certificate.all_caveats()), (
        "part of them is not seen"
    )


def test_what_is_no_array_is_refused_before_it_is_paid_for(tmp_path):
    class Frame:
        shape = X.shape

    said = r"data must be arrays.*got 'Frame'; give numbers of a table by to_numpy"
    with refuse_unpaid(tmp_path, said) as charged:
        li.train(RUN, (Frame(),), model=np.zeros(D), loss=lambda w, x: (w @ x) ** 2, **charged)


@pytest.mark.parametrize("place", PLACES)
def test_nested_programs_are_looked_at(place, tmp_path):
    refused(loss_of(mixed, PLACES[place]), "custom_vmap_call", tmp_path)


@pytest.mark.parametrize("see", [mixed_backward, mixed_forward], ids=["backward", "forward"])
@pytest.mark.parametrize("more", [{}, {"secure_noise": True}], ids=["plain", "exact"])
def test_derivatives_of_the_callers_own_are_looked_at(see, more, tmp_path):
    refused(lambda w, x: (see(w) * x).sum(), "custom_vmap_call", tmp_path, **more)


@pytest.mark.parametrize("more", [{}, {"secure_noise": True}], ids=["plain", "exact"])
def test_a_loss_is_looked_at_where_it_is_executed_too(more):
    """A loss whose code asks where it is traced is another one in training than in the check
    before."""
    calls = []

    def turning(w, x):
        calls.append(1)
        return loss_of(mixed if len(calls) > first else lambda a: a)(w, x)

    first = 10**6
    li.train(RUN, (X,), model=np.zeros(D), loss=turning, **more)
    first = len(calls) - 1  # its last trace is the one that is executed
    calls.clear()
    with pytest.raises(li.InputError, match="custom_vmap_call"):
        li.train(RUN, (X,), model=np.zeros(D), loss=lambda w, x: turning(w, x), **more)


UNKNOWN = {
    "not vectorised": lambda p, x: jax.lax.ragged_dot(
        jnp.outer(x, x),
        jnp.stack([p, p])[:, :, None],
        jnp.stack([x[0].astype(jnp.int32), D - x[0].astype(jnp.int32)]),
    ).sum(),
    "no derivative": lambda p, x: jax.scipy.linalg.schur(jnp.outer(p, x))[0].sum(),
    "no backward pass": lambda p, x: jax.lax.fori_loop(
        0, x[0].astype(int), lambda _, held: jnp.tanh(p * held).astype(held.dtype), x
    ).sum(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_operations_that_jax_cannot_differentiate_or_vectorise_are_refused(name, tmp_path):
    refused(UNKNOWN[name], "of which JAX has gradients, of many records at once", tmp_path)


def test_the_clipped_sum_runs_no_code_of_the_callers_on_all_records():
    """A derivative's code that looks at what it is given finds no batch of it."""
    kinds = []

    @jax.custom_vjp
    def curious(x):
        return x

    def backward(_, slope):
        kinds.append(type(slope).__name__)
        return (slope,)

    curious.defvjp(lambda x: (x, None), backward)
    with jax.enable_x64(True):
        sum_clipped(
            lambda w, x: (curious(w) * x).sum(),
            1.0,
            jnp.zeros(D),
            (jnp.asarray(X),),
            jnp.ones(N, bool),
        )
    assert kinds and not [
        kind for kind in kinds if "vmap" in kind.lower() or "batch" in kind.lower()
    ]


def test_layers_of_equinox_and_public_functions_are_taken(monkeypatch):
    """Traced where it is checked and where it is executed, and translated for XLA. The exhaustive
    tier compiles and trains it too: what XLA makes of JAX's own operations is not ours."""
    import equinox as eqx

    translated = []

    def released(loop, state, data, *_):
        yield Pause(0)
        chunk = jax.tree.map(lambda a: a[0, 0], data)
        translated.append(jax.jit(loop.objective.chunk_sum).lower(state.theta, chunk).as_text())
        return np.asarray(state.theta)

    keys, rng = jax.random.split(jax.random.key(0), 9), np.random.default_rng(1)

    class Every(eqx.Module):
        parts: list

        def __init__(self):
            self.parts = [
                eqx.nn.Conv1d(1, 4, 3, padding=1, key=keys[0]),
                eqx.nn.GroupNorm(2, 4),
                eqx.nn.MaxPool1d(2, 1),
                eqx.nn.AdaptiveAvgPool1d(2),
                eqx.nn.Dropout(0.5, inference=True),
                eqx.nn.MultiheadAttention(2, 4, key=keys[1]),
                eqx.nn.LayerNorm(4),
                eqx.nn.RMSNorm(4),
                eqx.nn.LSTMCell(4, 4, key=keys[2]),
                eqx.nn.GRUCell(4, 4, key=keys[3]),
                eqx.nn.Embedding(5, 4, key=keys[4]),
                eqx.nn.MLP(4, 3, 8, 2, key=keys[5]),
            ]

        def __call__(self, x, i):
            conv, group, pool, adapt, drop, attend, layer, rms, lstm, gru, table, mlp = self.parts
            z = jax.vmap(layer)(adapt(drop(pool(group(conv(x[None]))))).T)
            z = attend(z, z, z).mean(0)
            return mlp(gru(rms(lstm(z, (z, z))[0]), z) + table(i))

    def loss(model, x, i):
        a = jnp.outer(x, x) + 2 * jnp.eye(D, dtype=x.dtype)
        extra = (
            jnp.linalg.slogdet(a)[1]
            + jnp.linalg.solve(a, x)[0]
            + jnp.linalg.svd(a)[1][0]
            + jnp.sort(x)[0]
            + jnp.cumsum(x)[-1]
            + jax.scipy.special.logsumexp(x)
            + jax.lax.top_k(x, 2)[0][1]
            + jnp.fft.fft(x).real[0]
            + jnp.linalg.qr(a)[1][0, 0]
            + jnp.linalg.cholesky(a)[0, 0]
            + jnp.interp(x[0], jnp.arange(4.0), jnp.arange(4.0) ** 2)
            + jnp.split(x, 3)[0][0]
            + jnp.stack([x, x])[0, 0]
        )
        draw = jax.random.normal(jax.random.fold_in(jax.random.key(0), i), (D,), x.dtype)
        answers = model(x + draw, i)
        return jax.nn.logsumexp(answers) - answers[i] * extra

    # numbers of NumPy: its own initial ones are a program for every layer
    model = jax.tree.map(
        lambda leaf: (
            rng.normal(size=leaf.shape).astype(leaf.dtype) / 2
            if isinstance(leaf, jax.ShapeDtypeStruct)
            else leaf
        ),
        eqx.filter_eval_shape(Every),
    )
    if not EXHAUSTIVE:
        monkeypatch.setattr(Loop, "_run_steps", released)
    found = li.train(RUN, (X, np.arange(N) % 3), model=model, loss=loss, seed=0)
    assert EXHAUSTIVE or "potrf" in translated[0], "the Cholesky factor of the loss"
    assert all(
        np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params) if hasattr(leaf, "dtype")
    )


def test_the_list_of_operations_is_not_empty_by_accident():
    assert {
        "add",
        "dot_general",
        "jit",
        "scan",
        "cond",
        "while",
        "custom_jvp_call",
        "conv_general_dilated",
    } <= ALLOWED
    assert (
        not {"custom_vmap_call", "pure_callback", "io_callback", "ffi_call", "psum", "debug_print"}
        & ALLOWED
    )
