"""Capped losses: gradients of one convex function, constants that hold and are sharp, steps that
never expand."""

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine.linear_gradients import Linear
from lastiterate.engine.random import NOISE, gaussian, key_from_seed, stream
from lastiterate.engine.trainer import Trainer
from lastiterate.errors import InputError

from . import reference

CASES = [
    li.Softmax(classes=k, row_norm=1.3, intercept=0.6, cap=c)
    for k in (2, 3, 6)
    for c in (0.05, 0.3, 0.5, 0.8)
]
CASES += [li.Logistic(row_norm=1.3, intercept=0.6, cap=c) for c in (0.05, 0.3, 0.5, 0.8)]


def ids(loss):
    return f"{type(loss).__name__.lower()} {getattr(loss, 'classes', 2)} {loss.cap}"


def value(loss, theta, row, label):
    """h_c(m), m = log sum of the others' scores - the label's: log(1 + e^m), continued with slope
    c."""
    scores = theta @ row
    if isinstance(loss, li.Logistic):
        m = (1 - 2 * label) * scores[0]
    else:
        others = np.delete(scores, label)
        m = others.max() + math.log(np.exp(others - others.max()).sum()) - scores[label]
    turn = math.log(loss.cap / (1 - loss.cap))
    return np.logaddexp(0, m) if m <= turn else np.logaddexp(0, turn) + loss.cap * (m - turn)


def gradient(loss, theta, row, label, *, exact=True):
    with jax.enable_x64(True):
        records = jnp.asarray(row)[None], jnp.asarray([label])
        return np.asarray(Linear(loss, None, exact).chunk_sum(jnp.asarray(theta), records))


def drawn(loss, rng, spread):
    """Parameters, a row on the public ball, a label."""
    row = rng.normal(size=3)
    row = np.append(row / np.linalg.norm(row) * loss.row_norm, loss.intercept)
    return rng.normal(size=(loss.outputs, 4)) * spread, row, int(rng.integers(max(loss.outputs, 2)))


@pytest.mark.parametrize("loss", CASES, ids=ids)
def test_the_gradient_of_the_capped_loss(loss):
    rng, acted = np.random.default_rng(1), 0
    for _ in range(12):
        theta, row, label = drawn(loss, rng, 3.0)
        found = gradient(loss, theta, row, label)
        for place in np.ndindex(theta.shape):
            step = np.zeros_like(theta)
            step[place] = 1e-6
            slope = (
                value(loss, theta + step, row, label) - value(loss, theta - step, row, label)
            ) / 2e-6
            assert found[place] == pytest.approx(slope, abs=2e-6)
        np.testing.assert_allclose(gradient(loss, theta, row, label, exact=False), found, atol=2e-6)
        acted += np.linalg.norm(found - gradient(replace(loss, cap=None), theta, row, label)) > 1e-9
    assert 0 < acted < 12


@pytest.mark.parametrize("loss", CASES, ids=ids)
def test_constants_hold_and_are_sharp(loss):
    """Lipschitz, convex and co-coercive: |g - g'|^2 <= smooth <g - g', w - w'>: steps up to
    2/smooth never expand."""
    rng, facts = np.random.default_rng(2), loss.facts()
    lipschitz, smooth = facts.fact("lipschitz"), facts.fact("smooth")
    with jax.enable_x64(True):
        field = jax.jit(
            lambda thetas, rows, labels: jax.vmap(
                lambda theta, row, label: Linear(loss, None, True).chunk_sum(
                    theta, (row[None], label[None])
                )
            )(thetas, rows, labels)
        )
        count = 3000
        draws = [drawn(loss, rng, 10.0 ** rng.uniform(-1.5, 1)) for _ in range(count)]
        first = np.array([theta for theta, _, _ in draws])
        rows, labels = (
            np.array([row for _, row, _ in draws]),
            np.array([label for _, _, label in draws]),
        )
        # the sharpest pairs are two classes at the cap, close together along the row
        close = rng.random(count) < 0.5
        moves = rng.normal(size=first.shape) * 10.0 ** rng.uniform(-1, 1.5, size=(count, 1, 1))
        odds = math.log(min(loss.cap, 0.5) / (1 - min(loss.cap, 0.5)))
        for k in np.flatnonzero(close):
            scores, turned = np.full(loss.outputs, -40.0), np.zeros(loss.outputs)
            if loss.outputs == 1:
                scores[0], turned[0] = odds * (1 - 2 * labels[k]), 1.0
            else:
                other = (labels[k] + 1) % loss.outputs
                scores[labels[k]], scores[other], turned[labels[k]], turned[other] = (
                    0.0,
                    odds,
                    -1.0,
                    1.0,
                )
            first[k] = np.outer(scores, rows[k]) / (rows[k] @ rows[k])
            moves[k] = rng.normal() * 1e-2 * np.outer(turned, rows[k])
        one, two = (
            np.asarray(field(jnp.asarray(at), jnp.asarray(rows), jnp.asarray(labels)))
            for at in (first, first + moves)
        )
    size = np.sqrt((one**2).sum((1, 2)))
    apart, inner = ((two - one) ** 2).sum((1, 2)), ((two - one) * moves).sum((1, 2))
    assert size.max() <= lipschitz * (1 + 1e-12) and size.max() > 0.98 * lipschitz
    length = np.sqrt((moves**2).sum((1, 2)))
    assert (apart <= smooth * inner * (1 + 1e-6) + 1e-15 * length).all()  # gradients are rounded
    ratio = np.sqrt(apart[inner > 1e-10]) / length[inner > 1e-10]
    assert 0.97 * smooth < ratio.max() <= smooth * (1 + 1e-6)
    for share in (0.3, 1.0):
        stepped = moves - 2 * share / smooth * (two - one)
        assert ((stepped**2).sum((1, 2)) <= length**2 * (1 + 1e-9) + 1e-14 * length).all()


def test_one_record_in_single_precision():
    """Zeroing any of 600 wild records moves the computed sum by at most the run's sensitivity."""
    rng = np.random.default_rng(3)
    for loss in (li.Softmax(classes=3, row_norm=1.5, cap=0.2), li.Logistic(row_norm=1.5, cap=0.2)):
        run = li.Run(n=600, steps=1, step_size=0.1, noise=li.GradientNoise(0.1), loss=loss)
        rows = rng.normal(size=(600, 3))
        rows = np.c_[rows / np.linalg.norm(rows, axis=1)[:, None] * 1.5, np.ones(600)].astype(
            np.float32
        )
        labels = rng.integers(0, 2, 600)
        theta, largest = rng.normal(size=(loss.outputs, 4)) * 30, 0.0
        with jax.enable_x64(True):
            field = Linear(loss, None, False).chunk_sum
            full = np.asarray(field(jnp.asarray(theta), (jnp.asarray(rows), jnp.asarray(labels))))
            for i in rng.integers(0, 600, 20):
                less = rows.copy()
                less[i] = 0
                part = np.asarray(
                    field(jnp.asarray(theta), (jnp.asarray(less), jnp.asarray(labels)))
                )
                largest = max(largest, np.linalg.norm(full - part))
        assert 0.3 * run.facts().fact("sensitivity") < largest <= run.facts().fact("sensitivity")


@pytest.mark.parametrize(
    "loss", [li.Softmax(classes=3, ridge=0.05, cap=0.3), li.Logistic(ridge=0.1, cap=0.3)], ids=ids
)
def test_runs_agree_with_numpy(loss):
    rng = np.random.default_rng(4)
    rows, labels = rng.normal(size=(23, 4)), rng.integers(0, 2, 23)
    run = li.Run(
        n=23,
        steps=7,
        step_size=0.9,
        noise=li.GradientNoise(0.2),
        batching=li.Cyclic(9),
        release="all",
        loss=loss,
    )
    key = key_from_seed(3)
    with jax.enable_x64(True):
        noise = np.array(
            [gaussian(stream(key, NOISE), k, (loss.outputs, 5)) for k in range(run.steps)]
        )
    theirs = reference.fit(run, rows, labels, noise)
    np.testing.assert_allclose(Trainer(run).fit(rows, labels, key), theirs, atol=2e-5)
    np.testing.assert_allclose(
        Trainer(replace(run, release="last")).fit(rows, labels, key), theirs[-1], atol=2e-6
    )


def test_a_clip_that_never_acts_keeps_the_constants():
    loss = li.Softmax(classes=4, cap=0.2)
    run = li.Run(n=100, steps=10, step_size=1.0, noise=li.GradientNoise(0.1), loss=loss)
    bound = loss.facts().fact("lipschitz")
    idle = replace(run, clip=bound * 1.001)
    assert (
        idle.facts().smooth == run.facts().smooth
        and idle.facts().sensitivity == run.facts().sensitivity
    )
    acting = replace(run, clip=bound * 0.5)
    assert acting.facts().smooth is None, "clipping the vector expands, capped or not"
    scalar = replace(acting, loss=li.Logistic(cap=0.2), clip=0.1)
    assert scalar.facts().smooth == scalar.loss.facts().smooth


def test_descriptions():
    base = li.Softmax(classes=5, ridge=0.01)
    for cap, share in ((0.1, 0.18), (0.5, 0.5), (0.9, 0.5)):
        facts, b2 = replace(base, cap=cap).facts(), 2.0
        assert facts.fact("lipschitz") == pytest.approx(math.sqrt(2) * cap * math.sqrt(b2))
        assert facts.fact("smooth") == pytest.approx(share * b2 + 0.01)
        two = li.Logistic(ridge=0.01, cap=cap).facts()
        assert two.fact("lipschitz") == pytest.approx(cap * math.sqrt(b2))
        assert two.fact("smooth") == pytest.approx(share / 2 * b2 + 0.01)
        run = li.Run(
            n=10, steps=1, step_size=1.0, noise=li.GradientNoise(1.0), loss=replace(base, cap=cap)
        )
        assert (
            li.Run.from_json(run.to_json()) == run
            and json.loads(run.to_json())["loss"]["cap"] == cap
        )
    for bad in (0.0, 1.0, -0.1, 2.0, math.nan, "0.1"):
        for loss in (li.Logistic(), base):
            with pytest.raises(InputError, match="cap"):
                replace(loss, cap=bad)


def test_longer_steps_and_less_noise_at_the_same_privacy():
    """c = 0.1: constants are 10 and 2.8 times smaller than without a cap."""
    plain = li.Softmax(classes=10)
    capped = replace(plain, cap=0.1)
    for name, times in (("lipschitz", 10.0), ("smooth", 0.5 / 0.18)):
        assert plain.facts().fact(name) == pytest.approx(times * capped.facts().fact(name))
    run = li.Run(
        n=10_000,
        steps=200,
        step_size=1 / capped.facts().fact("smooth"),
        noise=li.NoiseMultiplier(3.0),
        batching=li.Permuted(500),
        loss=capped,
    )
    found = li.account(run)
    assert found.best(1e-6).theorem.name == "shifted-interpolation-permuted"
    assert found.epsilon(1e-6) < li.account(replace(run, loss=plain, clip=0.1)).epsilon(1e-6) / 1.5
