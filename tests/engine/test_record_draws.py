"""Augmentations and keys of a record's own: the mean over copies is clipped, and nobody else
decides what is drawn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap

import lastiterate as li
from lastiterate.audit.runner import auditable
from lastiterate.engine import key_from_seed
from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.checkpoint import Key as Sealing
from lastiterate.engine.exact_gradients import fit_network_exactly
from lastiterate.engine.linear_gradients import hidden_state
from lastiterate.engine.network import fit_network
from lastiterate.engine.random import ORDER, stream
from lastiterate.engine.record_loss import keys_of, keys_of_batch, to_key
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import fit_streaming
from lastiterate.errors import InputError
from lastiterate.run.batching import Batching
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match
from tiers import unless

N, CLIP = 24, 0.7
X = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
Y = np.arange(N) % 3
FIRST = {
    "kernel": np.random.default_rng(1).normal(size=(2, 1, 3)).astype(np.float32),
    "matrix": np.random.default_rng(2).normal(size=(3, 8)).astype(np.float32),
    "bias": np.zeros(3, np.float32),
}
STREAMED = [li.Cyclic(5), li.Permuted(5), li.RandomAllocation(5)]
BATCHINGS = [*STREAMED, li.Poisson(0.3)]
MORE = [li.FullBatch(), li.Reshuffled(5), li.BallsInBins(5), li.FixedSize(5)]
RUN = li.Run(
    n=N,
    steps=6,
    step_size=0.5,
    noise=li.GradientNoise(0.01),
    clip=CLIP,
    augmentation=li.RecordAugmentation("shaken", 4),
)


def uniform(key: Any) -> Any:
    """A number in [0, 1); ``jax.random.uniform`` takes seconds to compile."""
    return jax.random.key_data(key)[0].astype(jnp.float32) * 2.0**-32


def shaken(key: Any, x: Any) -> Any:
    return x * (uniform(key) - 0.3)


def loss(params: Any, x: Any, y: Any) -> Any:
    hidden = jax.nn.relu(jax.lax.conv(x[None, None], params["kernel"], (1,), "VALID")).reshape(-1)
    return -jax.nn.log_softmax(params["matrix"] @ hidden + params["bias"])[y]


def violent(key: Any, x: Any) -> Any:
    """Of any sign and length, and nothing of a record that is 0."""
    drawn = uniform(key) - 0.5
    return x * jnp.sign(drawn) * jnp.exp(100 * jnp.abs(drawn))


def linear(params: Any, x: Any) -> Any:
    return params @ x


def square(params: Any, x: Any, y: Any) -> Any:
    return (params @ x - y) ** 2


@pytest.mark.parametrize("copies", unless(lambda copies: copies > 1, [1, 4]))
def test_the_mean_over_copies_is_clipped_and_then_added(copies: int):
    run = replace(
        RUN,
        steps=2,
        noise=li.GradientNoise(1e-9),
        release="all",
        augmentation=li.RecordAugmentation("s", copies),
    )
    released = fit_network(run, loss, FIRST, (X, Y), key_from_seed(1), augment=shaken)
    with jax.enable_x64(True):
        order = stream(key_from_seed(1), ORDER)
        words = np.asarray(keys_of(order, jnp.arange(N), 1, copies))
        np.testing.assert_array_equal(words[5:11, 0], keys_of_batch(order, np.arange(5, 11), 1))
    point = {name: values[0] for name, values in released.items()}
    total = {name: np.zeros(values.shape) for name, values in FIRST.items()}
    with jax.enable_x64(True):
        gradient, form = jax.jit(jax.grad(loss)), jax.jit(shaken)
        for i in range(N):
            keys = [to_key(words[i, copy]) for copy in range(copies)]
            each = [gradient(point, form(key, X[i]).astype(np.float32), Y[i]) for key in keys]
            mean = {name: np.mean([np.asarray(g[name], float) for g in each], 0) for name in FIRST}
            norm = np.sqrt(sum((values**2).sum() for values in mean.values()))
            assert i or norm > CLIP, "the clip has something to do"
            total = {
                name: total[name] + values * min(1, CLIP / norm) for name, values in mean.items()
            }
    for name, values in released.items():
        np.testing.assert_allclose(values[1], values[0] - 0.5 * total[name] / N, atol=3e-6)


@pytest.mark.parametrize(
    "batching, exact",
    unless(
        lambda case: type(case[0]) is not li.Poisson,
        [(li.RandomAllocation(5), False), (li.Poisson(0.5), False), (li.Cyclic(5), True)],
    ),
    ids=str,
)
def test_one_record_moves_no_sum_by_more_than_the_clip_whatever_is_drawn(
    batching: Batching, exact: bool
):
    run = replace(RUN, batching=batching, release="all", steps=20, noise=li.GradientNoise(1e-3))
    without = X.copy()
    without[3] = 0
    fit = fit_network_exactly if exact else fit_network
    one, other = (
        fit(run, linear, np.zeros(6, np.float64), (rows,), key_from_seed(2), augment=violent)
        for rows in (X, without)
    )
    moved = (
        np.diff(one - other, axis=0, prepend=0) * run.divisor / 0.5
    )  # gradients do not follow the parameters
    norms = np.linalg.norm(moved, axis=1)
    assert 0.5 * CLIP < norms.max() <= CLIP * (1 + 1e-6), "the record is drawn, and clipped"
    several = norms[norms > 1e-6]
    assert len(several) > 1 and len({tuple(np.round(step, 4)) for step in moved[norms > 1e-6]}) > 1


@pytest.mark.parametrize(
    "batching", unless(lambda one: type(one) is li.RandomAllocation, [*BATCHINGS, *MORE]), ids=str
)
def test_what_a_record_draws_follows_from_its_number_and_not_from_its_place(batching: Batching):
    run = replace(RUN, batching=batching)
    found = fit_network(
        run, square, np.zeros(6, np.float32), (X, Y), key_from_seed(1), augment=shaken
    )
    apart = fit_network(
        run, square, np.zeros(6, np.float32), (X, Y), key_from_seed(1), augment=shaken, microbatch=3
    )
    np.testing.assert_allclose(found, apart, atol=1e-6)
    if batching in STREAMED:
        pieces = fit_streaming(
            run, square, np.zeros(6, np.float32), Arrays((X, Y)), key_from_seed(1), augment=shaken
        )
        np.testing.assert_array_equal(found, pieces)


def test_draws_of_records_steps_and_copies_differ_and_are_those_of_many_models_as_well():
    def drawn(key: Any, x: Any) -> Any:
        return jax.random.uniform(key, x.shape)

    run = replace(
        RUN,
        batching=li.Cyclic(1),
        steps=2 * N,
        release="all",
        noise=li.GradientNoise(1e-9),
        clip=100.0,
        augmentation=li.RecordAugmentation("drawn", 2),
    )
    every = fit_network(run, linear, np.zeros(6), (X,), key_from_seed(1), augment=drawn)
    single = fit_network(
        replace(run, augmentation=li.RecordAugmentation("drawn", 1)),
        linear,
        np.zeros(6),
        (X,),
        key_from_seed(1),
        augment=drawn,
    )
    means, first = (-np.diff(found, axis=0, prepend=0) / 0.5 for found in (every, single))
    second = 2 * means - first  # copy 0 of one is copy 0 of two
    numbers = np.round(np.concatenate([first, second]).ravel(), 6)
    assert len(np.unique(numbers)) == len(numbers) and numbers.min() > 0 and numbers.max() < 1
    assert abs(np.corrcoef(first[:N].ravel(), first[N:].ravel())[0, 1]) < 0.3


def test_the_run_says_it_and_only_what_charges_every_iterate_certifies_it():
    model = li.train(
        replace(RUN, augmentation=None, batching=li.Cyclic(8)),
        (X, Y),
        model=np.zeros(6),
        loss=square,
        augment=shaken,
        copies=2,
    )
    run = model.certificate.run
    assert run is not None and run.augmentation == li.RecordAugmentation("shaken", 2)
    with pytest.raises(li.InputError, match="copies"):
        li.train(
            replace(RUN, augmentation=None),
            (X, Y),
            model=np.zeros(6),
            loss=square,
            augment=shaken,
            copies=0,
        )
    assert li.Run.from_json(run.to_json()) == run
    assert any(
        "shaken, 2 times" in caveat and "stated" in caveat
        for caveat in model.certificate.all_caveats()
    )
    for batching in (*BATCHINGS, *MORE):
        drawing = replace(RUN, batching=batching)
        charged = replace(
            drawing, augmentation=None, optimizer=li.PostProcessing("any"), step_size=1.0
        )
        applies = [
            {
                name
                for name, row in TABLE.items()
                if row.kind == "upper" and isinstance(match(row, run), Applies)
            }
            for run in (drawing, charged)
        ]
        every = applies[1] | {"langevin-linear"}  # which adds up what each step releases as well
        assert applies[0] and applies[0] <= every and not hidden_state(drawing)


@pytest.mark.parametrize(
    "change",
    [
        {"clip": None},
        {"loss": li.KnownConstants(li.LossFacts(smooth=1.0))},
        {"loss": li.Softmax(classes=3)},
        {"domain": li.domains.Ball(1.0)},
    ],
    ids=str,
)
def test_a_run_that_a_theorem_about_one_loss_could_speak_of_draws_nothing(change: dict[str, Any]):
    with pytest.raises(InputError, match="draws random numbers"):
        replace(RUN, **change)


@custom_vmap
def mixed(x: Any) -> Any:
    return x


@mixed.def_vmap
def _(size: Any, batched: Any, x: Any) -> Any:
    return jnp.broadcast_to(x.sum(0), x.shape), batched[0]


REFUSED = {
    "callback": (
        lambda key, x: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        "callback",
    ),
    "print": (lambda key, x: (jax.debug.print("{}", x), x)[1], "alone"),
    "vmap": (lambda key, x: mixed(x), "alone"),
    "records": (
        lambda key, x: jnp.asarray(X)[jax.random.randint(key, (), 0, N)],
        "one entry for every record",
    ),
    "form": (lambda key, x: (x, x), "form"),
    "shape": (lambda key, x: x[:3], "^augment must give a record that the model and the loss take"),
    "arguments": (lambda x: x, "key and one record"),
    "batch": (lambda key, x: x - jax.lax.pmean(x, "records"), "key and one record"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_augmentation_that_may_look_at_other_records_is_refused(name: str):
    augment, said = REFUSED[name]
    with pytest.raises(InputError, match=said) as caught:
        li.train(RUN, (X, Y), model=np.zeros(6), loss=square, seed=1, augment=augment)
    assert "\n" not in str(caught.value)


def test_an_audit_attacks_the_run_without_draws_and_says_so():
    found = auditable(RUN)
    assert found.run.augmentation is None and any("augmentation" in name for name in found.lacking)


def test_what_is_said_and_what_is_done_are_the_same():
    for change, given in [
        ({}, {}),
        ({"augmentation": None}, {"copies": 2}),
        ({}, {"augment": shaken, "copies": 3}),
    ]:
        with pytest.raises(InputError, match=r"copies|augmentation"):
            li.train(replace(RUN, **change), (X, Y), model=np.zeros(6), loss=square, **given)
    with pytest.raises(InputError, match="augment"):
        li.train(
            li.Run(
                n=N,
                steps=2,
                step_size=0.1,
                noise=li.GradientNoise(1.0),
                clip=1.0,
                loss=li.Softmax(classes=3),
            ),
            (X, Y),
            augment=shaken,
        )


def test_an_interrupted_run_goes_on_with_the_same_draws_and_knows_its_augmentation(tmp_path: Path):
    sealing = Sealing(bytes(32))
    whole = fit_network(
        RUN, square, np.zeros(6, np.float32), (X, Y), key_from_seed(1), augment=shaken
    )

    def interrupt(done: int, *_: Any) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_network(
            RUN,
            square,
            np.zeros(6, np.float32),
            (X, Y),
            key_from_seed(1),
            augment=shaken,
            progress=interrupt,
            checkpoint=Checkpoint(tmp_path / "c", sealing, 0.0),
        )
    with pytest.raises(InputError, match="checkpoint"):
        fit_network(
            RUN,
            square,
            np.zeros(6, np.float32),
            (X, Y),
            key_from_seed(1),
            augment=violent,
            checkpoint=Checkpoint(tmp_path / "c", sealing, 0.0),
        )
    found = fit_network(
        RUN,
        square,
        np.zeros(6, np.float32),
        (X, Y),
        key_from_seed(1),
        augment=shaken,
        checkpoint=Checkpoint(tmp_path / "c", sealing, 0.0),
    )
    np.testing.assert_array_equal(found, whole)


def test_a_loss_that_asks_for_a_key_has_one_for_every_record_and_step():
    def dropped(params: Any, x: Any, *, key: Any) -> Any:
        return params @ jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)

    run = li.Run(
        n=N,
        steps=3,
        step_size=1.0,
        noise=li.GradientNoise(1e-9),
        clip=1e3,
        batching=li.FullBatch(),
        release="all",
    )
    model = li.train(run, (np.eye(N, dtype=np.float32),), model=np.zeros(N), loss=dropped)
    kept = -np.diff(model.params, axis=0, prepend=0) * N  # record i moves entry i where it is kept
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-5)
    assert (
        set(np.round(kept).ravel()) == {0.0, 1.0}
        and len({tuple(row) for row in np.round(kept)}) == 3
    )
    assert model.certificate.run.augmentation == li.RecordAugmentation("the loss", 1)  # type: ignore[union-attr]
