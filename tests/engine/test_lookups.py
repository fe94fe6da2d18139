"""Tables of which a record reads a few rows: against materialised gradients, and rows whose slopes
cancel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import GatherDimensionNumbers, GatherScatterMode

import lastiterate as li
from lastiterate.engine.clipped_gradients import layers_of, sum_clipped
from lastiterate.engine.network import prepare_loop
from lastiterate.engine.tracing import program
from lastiterate.engine.window_gradients import Lookup

WORDS, WIDTH, LENGTH, N, CLIP = 11, 3, 6, 20, 0.7
RNG = np.random.default_rng(3)
X = RNG.integers(0, WORDS, (N, LENGTH))
X[:5] = X[:5, :1]  # one word alone, again and again
C = RNG.normal(size=(N, LENGTH, WIDTH)).astype(np.float32)
TABLE = RNG.normal(size=(WORDS, WIDTH)).astype(np.float32)


def windows(table, places, mode):
    """Rows by pairs of numbers of which the second says where in the row to begin."""
    pairs = jnp.stack([jnp.full_like(places, 1), places], -1).astype(jnp.int32)
    axes = GatherDimensionNumbers((0, 2), (), (1, 0))
    return jnp.moveaxis(jax.lax.gather(table, pairs, axes, (1, WIDTH), mode=mode), 1, 0)


READS = {
    "index": lambda w, x: w[x],
    "two axes": lambda w, x: w[x.reshape(2, 3)],
    "take": lambda w, x: jnp.take(w, x, axis=0),
    "past the end, dropped": lambda w, x: w.at[x * 2 - 3].get(mode="fill", fill_value=0.5),
    "past the end, the last": lambda w, x: w.at[x * 2].get(mode="clip"),
    "from the end": lambda w, x: w[x - WORDS],
    "one row": lambda w, x: w[x[0]],
    "a slice": lambda w, x: jax.lax.dynamic_slice(w, (x[0] * 2, x[1]), (1, WIDTH)),
    "row by row": lambda w, x: jax.vmap(lambda i: w[i])(x),
    "windows": lambda w, x: windows(w, x, GatherScatterMode.CLIP),
    "called": lambda w, x: jax.jit(lambda a: jax.jit(lambda b: a[b])(x))(w),
}
OTHERS = {
    "reshaped": lambda w, x: w.reshape(WORDS, WIDTH, 1)[x],
    "columns": lambda w, x: w.T[:, x],
    "entries": lambda w, x: w[x, x % WIDTH],
    "two rows": lambda w, x: jax.lax.dynamic_slice_in_dim(w, x[0], 2),
    "windows that are dropped": lambda w, x: windows(w, x, GatherScatterMode.FILL_OR_DROP),
    "twice": lambda w, x: w[x] + w[x[::-1]],
    "tied": lambda w, x: w[x] * (w @ jnp.ones(WIDTH, w.dtype)).sum(),
}
COPIED = ("index", "past the end, dropped", "one row", "windows", "columns", "twice")
"""Read with two copies of every record too: one of each way to sum a table's gradients. Copies are
counted after what was read is found, and so alike for the others."""


def loss_of(read):
    def loss(w, x, c):
        held = read(w, x).reshape(-1)
        return jnp.tanh(held @ jnp.resize(c, held.shape)) * 3 + (held**2).sum()

    return loss


def materialised(loss, table, x, c):
    """Every record's gradient."""
    return np.asarray(jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(table, x, c), np.float64)


def expected(gradients, clip=CLIP):
    return sum(own * min(1, clip / max(np.linalg.norm(own), 1e-30)) for own in gradients)


@pytest.mark.parametrize("name", [*READS, *OTHERS])
def test_sums_are_those_of_materialised_gradients(name):
    loss, (x, c) = loss_of((READS | OTHERS)[name]), (jnp.asarray(X), jnp.asarray(C))
    with jax.enable_x64(True):
        found = layers_of(program(loss, TABLE, x[0], c[0])[0].jaxpr, 1)
        assert isinstance(found[0], Lookup) if name in READS else not found
        gradients = materialised(loss, TABLE, X, C)
        for copies in (1, 2) if name in COPIED else (1,):
            given = (x, c) if copies == 1 else tuple(jnp.repeat(a, 2, 0) for a in (x, c))
            summed = jax.jit(
                lambda clip, table, records, copies=copies: sum_clipped(
                    loss, clip, table, records, jnp.ones(N, bool), copies
                )
            )
            for clip in (
                CLIP,
                1e3,
            ):  # which cuts nearly every gradient, and none: a wrong length is seen then
                total = summed(clip, jnp.asarray(TABLE), given)
                wanted = expected(gradients, clip)
                np.testing.assert_allclose(
                    total, wanted, rtol=2e-5, atol=2e-5 * max(1, np.abs(wanted).max())
                )


@pytest.mark.parametrize(
    "batching", [li.Cyclic(8), li.RandomAllocation(8), li.Poisson(0.4)], ids=str
)
def test_chunks_of_every_kind_keep_the_rows_of_a_table_apart(batching):
    """Here of one whose rows are matrices."""
    run = li.Run(
        n=N,
        steps=1,
        step_size=1.0,
        clip=CLIP,
        noise=li.NoiseMultiplier(1.0),
        batching=batching,
        adjacency="add-remove" if isinstance(batching, li.Poisson) else "zero-out",
    )
    table = TABLE[:, :, None] * np.ones(2, np.float32)
    loss = loss_of(lambda w, x: w[x][:, :, 0] + w.sum() * 0)
    once = loss_of(lambda w, x: w[x][:, :, 0])
    with jax.enable_x64(True):
        chunk = (jnp.asarray(X), jnp.asarray(C), jnp.asarray(np.arange(N) % 3 > 0, jnp.uint8))
        sums = []
        for each in (loss, once):
            loop, theta, _ = prepare_loop(run, each, table, (X, C))
            sums.append(np.asarray(jax.jit(loop.objective.chunk_sum)(theta, chunk)))
    np.testing.assert_allclose(*sums, atol=1e-5)
    real = np.arange(N) % 3 > 0
    wanted = expected(materialised(once, table, X[real], C[real]))
    np.testing.assert_allclose(sums[1].reshape(table.shape), wanted, atol=1e-5)


@pytest.mark.parametrize("batching", [li.Cyclic(1), li.RandomAllocation(1)], ids=str)
@pytest.mark.parametrize(
    "read", [READS["index"], READS["past the end, dropped"]], ids=["index", "dropped"]
)
def test_slopes_that_cancel_or_add_up_stay_below_the_clip(read, batching):
    """Of one row read at all places: a norm of places in the row's stead would be too small, or
    round past the clip."""
    run = li.Run(
        n=2, steps=1, step_size=1.0, clip=CLIP, noise=li.NoiseMultiplier(1.0), batching=batching
    )
    same = np.full(LENGTH, 4)
    signs = np.array([1, -1, 1, -1, 1, -1], np.float32)
    rough = [RNG.normal(size=(LENGTH, WIDTH)) + big * signs[:, None] for big in (0, 1e3, 1e7, 1e20)]
    slopes = np.array(
        [np.ones((LENGTH, WIDTH)), *rough, np.full((LENGTH, WIDTH), 3e38)], np.float32
    )

    def loss(w, x, c):
        return (read(w, x) * c).sum()

    with jax.enable_x64(True):
        loop, theta, _ = prepare_loop(run, loss, TABLE, (np.stack([same] * 2), C[:2]))
        chunk_sum = jax.jit(loop.objective.chunk_sum)
        for c in slopes:
            chunk = (same[None], c[None], np.ones(1, np.uint8))
            total = np.asarray(chunk_sum(theta, jax.tree.map(jnp.asarray, chunk)))
            assert np.isfinite(total).all() and np.linalg.norm(total) <= CLIP
            if np.abs(c).max() < 1e3:
                assert np.linalg.norm(total) > 0.99 * CLIP
