"""Averages of iterates: what is released in the place of the last one, charged as if all of them
were."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lastiterate as li
from lastiterate.engine import Trainer, key_from_seed, keys_from_seed
from lastiterate.engine.network import fit_network
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError
from lastiterate.theorems import TABLE
from lastiterate.theorems.assumptions import last_iterate_only, not_averaged, plain_updates
from lastiterate.theorems.theorem import Applies, Violated
from tiers import unless

N = 24
X = np.random.default_rng(0).normal(size=(N, 4))
X /= np.maximum(1, np.linalg.norm(X, axis=1))[:, None]
Y = np.arange(N) % 3
LOSS = li.Softmax(classes=3, ridge=0.1)
RUN = li.Run(n=N, steps=10, step_size=0.5, noise=li.GradientNoise(0.2), loss=LOSS)
AVERAGES = {
    "tail": (li.TailAverage(0.25), [0] * 7 + [1 / 3] * 3),
    "all": (li.TailAverage(1.0), [0.1] * 10),
    "one": (li.TailAverage(0.01), [0] * 9 + [1]),
    "exponential": (
        li.ExponentialAverage(0.8),
        0.8 ** np.arange(10)[::-1] / (0.8 ** np.arange(10)).sum(),
    ),
}


CELLS = list(
    product(
        [
            {},
            {"batching": li.Cyclic(7), "domain": li.domains.Ball(0.3)},
            {"batching": li.Permuted(7), "optimizer": li.Adam()},
            {"batching": li.RandomAllocation(6)},
        ],
        AVERAGES,
    )
)


@pytest.mark.parametrize(
    "change, name", unless(lambda cell: not cell[0] or cell[1] == "exponential", CELLS), ids=str
)
def test_what_is_released_is_that_mean_of_the_iterates(name: str, change: dict[str, Any]):
    average, weights = AVERAGES[name]
    every = Trainer(replace(RUN, release="all", **change)).fit(X, Y, key_from_seed(1))
    run = replace(RUN, method=average, **change)
    expected = np.tensordot(weights, every, 1)
    np.testing.assert_allclose(Trainer(run).fit(X, Y, key_from_seed(1)), expected, atol=1e-6)
    np.testing.assert_allclose(
        Trainer(run).fit_many(X, Y, np.asarray(key_from_seed(1))[None])[0], expected, atol=1e-6
    )


def test_an_average_is_charged_as_all_iterates_and_by_no_row_about_the_last_one():
    assert RUN.method == li.NoisySGD() and li.account(RUN).epsilon(1e-5) < li.account(
        replace(RUN, release="all")
    ).epsilon(1e-5), "the last iterate is cheaper here, so that something is at stake"
    for average, _ in AVERAGES.values():
        run = replace(RUN, method=average)
        found = li.account(run)
        assert found.epsilon(1e-5) == li.account(replace(RUN, release="all")).epsilon(1e-5)
        applies = [v.theorem for v in found.verdicts if isinstance(v.result, Applies)]
        assert applies and not any(last_iterate_only in row.assumptions for row in applies)
        assert isinstance(not_averaged.check(run), Violated) and not isinstance(
            plain_updates.check(run), Violated
        )
        assert li.Run.from_json(run.to_json()) == run


def test_every_row_about_a_hidden_state_asks_for_the_last_iterate_itself():
    hidden = [
        row for row in TABLE.values() if {last_iterate_only, plain_updates} & set(row.assumptions)
    ]
    assert len(hidden) > 15 and all(not_averaged in row.assumptions for row in hidden)


def loss(params: Any, x: Any, y: Any) -> Any:
    return ((params["w"] @ x)[y] - 1.0) ** 2


FIRST = {"w": np.zeros((3, 4))}
NETWORK = li.Run(
    n=N, steps=10, step_size=0.3, noise=li.GradientNoise(0.2), clip=0.7, batching=li.Cyclic(6)
)


@pytest.mark.parametrize("pieces", [False, True])
def test_a_network_s_average_survives_an_interruption_and_is_verified(
    tmp_path: Path, pieces: bool, kept: Any, interrupted: Any
):
    order: Any = dict(model=FIRST, loss=loss, seed=2, average=li.TailAverage(0.5))
    data = Arrays((X, Y)) if pieces else (X, Y)
    whole = li.train(NETWORK, data, **order)
    every = fit_network(replace(NETWORK, release="all"), loss, FIRST, (X, Y), key_from_seed(2))["w"]
    np.testing.assert_allclose(whole.params["w"], every[5:].mean(0), atol=1e-6)
    with interrupted(6) as progress:
        li.train(NETWORK, data, progress=progress, **order, **kept)
    again = li.train(NETWORK, data, **order, **kept)
    assert np.array_equal(
        again.params["w"], whole.params["w"]
    ) and again.run.method == li.TailAverage(0.5)
    assert li.verify(again.save(tmp_path / "model")).holds


def test_exact_noise_averages_too():
    model = li.train(
        NETWORK,
        (X, Y),
        model=FIRST,
        loss=loss,
        seed=2,
        average=li.TailAverage(0.5),
        secure_noise=True,
    )
    assert model.exact and np.isfinite(model.params["w"]).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="release must be 'last' where an average"):
        replace(RUN, method=li.TailAverage(), release="all")
    for wrong in (
        lambda: li.TailAverage(0.0),
        lambda: li.TailAverage(1.1),
        lambda: li.ExponentialAverage(1.0),
    ):
        with pytest.raises(InputError, match="must lie"):
            wrong()
    with pytest.raises(InputError, match="must be a TailAverage"):
        li.train(RUN, (X, Y), average=0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="noisy steps whose last iterate"):
        li.train(replace(RUN, method=li.TailAverage()), (X, Y), average=li.ExponentialAverage())


def test_an_average_of_linear_steps_has_less_noise():
    run = replace(RUN, steps=100, loss=li.Softmax(classes=3, ridge=0.0))
    last, mean = (
        Trainer(each).fit_many(X, Y, keys_from_seed(3, 40))
        for each in (run, replace(run, method=li.TailAverage(0.5)))
    )
    assert mean.var(0).sum() < 0.9 * last.var(0).sum()
