"""Where batches move records, no bit of a record's gradient depends on its place, whatever a loss
casts to."""

import contextlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine.exact_gradients import ExactRecords, RecordGrid
from lastiterate.engine.network import prepare_loop

pytestmark = pytest.mark.usefixtures("as_users_have_them")  # bits

N, D, H = 24, 37, 19
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, D)).astype(np.float32), np.arange(N) % 3
FIRST = {
    "a": RNG.normal(size=(H, D)).astype(np.float32),
    "b": RNG.normal(size=(3, H)).astype(np.float32),
}
RUN = li.Run(
    n=N,
    steps=2,
    step_size=0.3,
    noise=li.GradientNoise(0.1),
    clip=0.4,
    batching=li.Poisson(0.5),
    adjacency="add-remove",
)


def loss(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(params["b"] @ jnp.tanh(params["a"] @ x))[y]


def short(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    """In bfloat16 but for the last step; what is trained is in single precision."""
    cast = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    return -jax.nn.log_softmax(
        (cast["b"] @ jnp.tanh(cast["a"] @ x.astype(jnp.bfloat16))).astype(jnp.float32)
    )[y]


def places(model: object, theta: jax.Array) -> set[bytes]:
    """What record 0 adds to a chunk at each of its places, beside records that do not count, as
    bits."""
    total, found = jax.jit(model.chunk_sum), set[bytes]()
    for at in range(N):
        order = np.roll(np.arange(N), at)
        found.add(
            np.asarray(
                total(theta, (X[order] * 9, Y[order], (order == 0).astype(np.uint8)))
            ).tobytes()
        )
    return found


FIXED = RNG.normal(size=(D, D)).astype(np.float32) / 6


def features(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    """Of features that a public matrix makes of a record, in single precision."""
    return loss(params, jnp.tanh(x.astype(jnp.float32) @ FIXED), y)


def parts(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    """The same in complex numbers of two times 32 bits."""
    return loss(params, jnp.tanh((x.astype(jnp.complex64) @ FIXED.astype(np.complex64)).real), y)


@pytest.mark.parametrize("exactly", [False, True], ids=["real arithmetic", "exact sums"])
@pytest.mark.parametrize("given", [loss, short], ids=["single precision", "bfloat16"])
def test_a_gradient_has_the_same_bits_at_every_place(
    given, exactly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jax.enable_x64(True):
        loop, theta, _ = prepare_loop(RUN, given, FIRST, (X, Y), 32)
        model = loop.objective
        assert model.alone and not model.exact
        if exactly:
            grid = RecordGrid.of(RUN)
            model = ExactRecords(
                given, model.form, RUN.clip, grid.places, grid.most_squared, 32, alone=True
            )
        read, sizes = type(model)._read, set[tuple[int, ...]]()
        monkeypatch.setattr(
            type(model),
            "_read",
            lambda self, *given: sizes.add(given[-1][-1].shape) or read(self, *given),
        )
        (bits,) = places(model, theta)
        assert sizes == {
            (1,)
        }  # the loop's body knows one record, so that places of vectorised code do not matter
        one = np.frombuffer(bits)
        assert 0.39 < np.linalg.norm(one) <= 0.4
        total, ones = jax.jit(model.chunk_sum), np.ones(N, np.uint8)
        each = [total(theta, (X * 9, Y, (np.arange(N) == i).astype(np.uint8))) for i in range(N)]
        assert max(float(jnp.linalg.norm(each_one)) for each_one in each) <= 0.4
        assert float(jnp.abs(total(theta, (X * 9, Y, ones)) - sum(each)).max()) < 1e-14
        assert not np.asarray(total(theta, (X * 9, Y, ones * 0))).any()
        scattered = total(theta, (X * 9, Y, (np.arange(N) % 5 == 3).astype(np.uint8)))
        assert float(jnp.abs(scattered - sum(each[3::5])).max()) < 1e-14


KERNEL = RNG.normal(size=(3, 3, 2, 4))
TABLE = KERNEL.reshape(18, 4)


def kinks(params: jax.Array, picture: jax.Array) -> jax.Array:
    """Slopes that the last bit of a convolution decides on, where ``picture`` is made so."""
    found = jax.lax.conv_general_dilated(
        picture[None], params, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return 30 * jax.nn.relu(found)[0, 5, 5].sum()


def ties(count: int) -> np.ndarray:
    """Pictures whose middle is at the kink of every channel, up to rounding: (count, 12, 12, 2)."""
    pictures = RNG.normal(size=(count, 12, 12, 2))
    for picture in pictures:
        patch = picture[4:7, 4:7].reshape(-1)
        for _ in range(3):
            patch = patch - np.linalg.pinv(TABLE.T) @ (TABLE.T @ patch)
        picture[4:7, 4:7] = patch.reshape(3, 3, 2)
    return pictures


@pytest.mark.parametrize("facts", [{}, {"smooth": 9.0}], ids=["every step charged", "hidden state"])
@pytest.mark.parametrize(
    "batching",
    [li.Poisson(0.5), li.RandomAllocation(31), li.FixedSize(31)],
    ids=lambda batching: type(batching).__name__,
)
def test_the_last_bit_of_double_precision_does_not_depend_on_the_place(
    batching, facts: dict[str, float]
) -> None:
    """It decides on a slope at a kink, and then on all of a clipped gradient."""
    pictures, most = ties(62), 31
    run = li.Run(
        n=62,
        steps=2,
        step_size=0.5,
        clip=1.0,
        noise=li.NoiseMultiplier(1.0),
        batching=batching,
        adjacency="zero-out",
        loss=li.KnownConstants(li.LossFacts(**facts)),
    )
    with jax.enable_x64(True):
        loop, theta, _ = prepare_loop(run, kinks, KERNEL, (pictures,), most)
        assert (loop.objective.exact, loop.objective.alone) == (bool(facts), True)
        total = jax.jit(
            lambda x: jax.lax.map(
                lambda i: loop.objective.chunk_sum(
                    theta, (x, (jnp.arange(most) == i).astype(jnp.uint8))
                ),
                jnp.arange(most),
            )
        )
        for picture in pictures[:4]:
            each = np.asarray(total(np.repeat(picture[None], most, 0)))
            assert each.any() and (each == each[0]).all()


def test_blocks_in_order_are_vectorised() -> None:
    runs = {"drawn": RUN, "in order": replace(RUN, batching=li.Cyclic(8), adjacency="zero-out")}
    with jax.enable_x64(True):
        known = {
            (name, given.__name__): prepare_loop(run, given, FIRST, (X, Y))[0].objective
            for name, run in runs.items()
            for given in (loss, short)
        }
    assert {name: (model.exact, model.alone) for name, model in known.items()} == {
        ("drawn", "loss"): (False, True),
        ("drawn", "short"): (False, True),
        ("in order", "loss"): (False, False),
        ("in order", "short"): (False, False),
    }


@pytest.mark.parametrize("given", [features, parts])
def test_what_records_become_in_fewer_bits_is_read_one_by_one_where_batches_move(given) -> None:
    """Whatever is known of the loss, and whatever precision its parameters have."""
    curved = replace(RUN, adjacency="zero-out", loss=li.KnownConstants(li.LossFacts(smooth=9.0)))
    with jax.enable_x64(True):
        found = [
            prepare_loop(run, given, FIRST, (X, Y))
            for run in (RUN, curved, replace(curved, batching=li.Cyclic(8)))
        ]
        known = [loop.objective for loop, _, _ in found]
        assert [(model.exact, model.alone) for model in known] == [
            (False, True),
            (True, True),
            (True, False),
        ]
        assert len(places(known[1], found[1][1])) == 1


def test_parameters_in_short_complex_numbers_are_refused_where_theorems_compare_steps() -> None:
    run = replace(
        RUN,
        batching=li.Cyclic(8),
        adjacency="zero-out",
        loss=li.KnownConstants(li.LossFacts(smooth=9.0)),
    )
    with pytest.raises(li.InputError, match="rounds what it makes of them to fewer bits"):
        li.train(
            run,
            (X, Y),
            loss=lambda p, x, y: loss({**p, "a": p["a"].astype(jnp.complex64).real}, x, y),
            model=FIRST,
            delta=1e-3,
        )


def test_short_forward_passes_are_released_in_the_precision_that_was_given() -> None:
    model = li.train(RUN, (X * 9, Y), model=FIRST, loss=short, delta=1e-3, seed=0)
    assert model.params["a"].dtype == np.float32
    assert model.certificate.epsilon(1e-3) == li.account(RUN).epsilon(1e-3)


def test_casts_are_refused_where_theorems_compare_steps() -> None:
    """Of what depends on parameters: records may be cast."""
    run = replace(
        RUN,
        batching=li.Cyclic(8),
        adjacency="zero-out",
        loss=li.KnownConstants(li.LossFacts(smooth=9.0)),
    )
    with pytest.raises(li.InputError, match="rounds what it makes of them to fewer bits"):
        li.train(run, (X, Y), model=FIRST, loss=short, delta=1e-3)
    with jax.enable_x64(True):
        loop, _, _ = prepare_loop(
            run, lambda p, x, y: loss(p, x.astype(jnp.bfloat16), y), FIRST, (X, Y)
        )
    assert loop.objective.exact


def backwards(cast):
    """A product of a matrix and a vector whose slopes are rounded."""
    product = jax.custom_vjp(lambda w, x: w @ x)
    product.defvjp(
        lambda w, x: (w @ x, (w, x)),
        lambda held, slope: (
            jnp.outer(cast(slope), held[1]).astype(slope.dtype),
            held[0].T @ slope,
        ),
    )
    return product


ROUNDED = {
    "backward pass": lambda p, x: backwards(lambda slope: slope.astype(jnp.bfloat16))(p, x),
    "fewer bits of one type": lambda p, x: jax.lax.reduce_precision(p @ x, 11, 51),
    "fewer bits backwards": lambda p, x: backwards(
        lambda slope: jax.lax.reduce_precision(slope, 8, 52)
    )(p, x),
    "short products": lambda p, x: jax.lax.dot(
        p, x, precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    ),
    "no rounding": lambda p, x: jax.lax.reduce_precision(
        backwards(lambda slope: slope)(p, x), 11, 52
    ),
}


@pytest.mark.parametrize("kind", ROUNDED)
def test_rounding_that_no_type_of_the_loss_shows_is_refused_where_theorems_compare_steps(
    kind: str,
) -> None:
    run = replace(
        RUN,
        batching=li.Cyclic(8),
        adjacency="zero-out",
        loss=li.KnownConstants(li.LossFacts(smooth=9.0)),
    )
    refused = (
        contextlib.nullcontext()
        if kind == "no rounding"
        else pytest.raises(li.InputError, match="fewer bits")
    )
    with jax.enable_x64(True), refused:
        assert prepare_loop(
            run, lambda p, x, y: jnp.tanh(ROUNDED[kind](p, x)).sum(), FIRST["a"], (X, Y)
        )[0].objective.exact
