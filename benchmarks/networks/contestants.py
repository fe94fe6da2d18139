"""Who trains: every one a function from a task, a budget, a step size and a seed to a score and the
time of a step."""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn.functional import cross_entropy

import lastiterate as li
from benchmarks.networks.tasks import Task
from benchmarks.peers.strategy_noise import at_the_end
from lastiterate.planning.task import POWERS

EPSILON, DELTA, CLIP, WARM, BAND = 3.0, 1e-5, 1.0, 5, 16


class Fit(NamedTuple):
    """Accuracy on public records, processor milliseconds of a step after the first few, the noise
    multiplier."""

    accuracy: float
    ms: float
    noise: float


Contestant = Callable[[Task, float, int], Fit]


class Watch:
    """Processor time of this process, all threads, from a step on."""

    def __init__(self) -> None:
        self.at = list[tuple[int, float]]()

    def __call__(self, done: int, *_: Any) -> None:
        self.at.append((done, time.process_time()))

    @property
    def ms(self) -> float:
        first = next((one for one in self.at if one[0] >= WARM), self.at[0])
        last = self.at[-1]
        return 1e3 * (last[1] - first[1]) / max(1, last[0] - first[0])


def run_of(task: Task, batching: Any, rate: float) -> li.Run:
    adjacency = "add-remove" if isinstance(batching, li.Poisson) else "zero-out"
    return li.Run(
        n=len(task.data[0]),
        steps=task.steps,
        step_size=rate,
        clip=CLIP,
        batching=batching,
        adjacency=adjacency,
    )


def _multiplier(run: li.Run) -> float:
    noise: Any = run.noise
    return float(noise.z) if hasattr(noise, "z") else float(run.noise_stds[0] * run.divisor / CLIP)


def ours(
    batching: Callable[[Task], Any], *, module: bool = False, correlated: bool = False
) -> Contestant:
    """This library, on a loss written with JAX or on a module."""

    def fit(task: Task, rate: float, seed: int) -> Fit:
        run, how = run_of(task, batching(task), rate), {"epsilon": EPSILON, "delta": DELTA}
        if correlated:
            blocks = -(-run.n // task.batch)
            noises = [li.Correlated(1.0, BAND, power) for power in POWERS]
            best = min(noises, key=lambda noise: at_the_end(noise, blocks, np.ones(task.steps)))
            run, how = (
                li.calibrate(replace(run, noise=best), epsilon=EPSILON, delta=DELTA).run,
                {"delta": DELTA},
            )
        watch, data = Watch(), task.data[:2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if module:
                found: Any = li.train(
                    run, data, model=task.module(), loss=cross_entropy, progress=watch, **how
                )
                params = {name: tensor.numpy() for name, tensor in found.state.items()}
            else:
                found = li.train(
                    run, data, model=task.first(), loss=task.loss, progress=watch, **how
                )
                params = found.params
        return Fit(task.accuracy(params), watch.ms, _multiplier(found.run))

    return fit


def opacus(mode: str) -> Contestant:
    """Opacus with Poisson batches, its noise for the budget by its own accountant."""

    def fit(task: Task, rate: float, seed: int) -> Fit:
        from opacus import PrivacyEngine

        torch.manual_seed(seed)
        warnings.simplefilter("ignore")
        x, y = map(torch.from_numpy, task.data[:2])
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=task.batch
        )
        module = task.module()
        more = {"criterion": torch.nn.CrossEntropyLoss()} if mode == "ghost" else {}
        made = PrivacyEngine().make_private_with_epsilon(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=rate),
            data_loader=loader,
            target_epsilon=EPSILON,
            target_delta=DELTA,
            epochs=task.steps / len(loader),
            max_grad_norm=CLIP,
            grad_sample_mode=mode,
            **more,
        )
        private, optimizer, loader = made[0], made[1], made[-1]
        criterion: Any = made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()
        watch, done = Watch(), 0
        while done < task.steps:
            for some, classes in loader:
                optimizer.zero_grad()
                criterion(private(some), classes).backward()
                optimizer.step()
                done += 1
                watch(done)
                if done == task.steps:
                    break
        params = {name: tensor.detach().numpy() for name, tensor in module.named_parameters()}
        return Fit(task.accuracy(params), watch.ms, float(optimizer.noise_multiplier))

    return fit


def jax_privacy(task: Task, rate: float, seed: int) -> Fit:
    """jax-privacy's clipped gradients and noise on Poisson batches, noise for the budget by
    dp-accounting."""
    import dp_accounting
    import jax_privacy as library
    import optax
    from jax_privacy import batch_selection

    n, q = len(task.data[0]), task.batch / len(task.data[0])

    def event(z: float) -> Any:
        step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        return dp_accounting.SelfComposedDpEvent(step, task.steps)

    z = dp_accounting.calibrate_dp_mechanism(
        dp_accounting.pld.PLDAccountant,
        event,
        EPSILON,
        DELTA,
        dp_accounting.ExplicitBracketInterval(0.3, 30.0),
        tol=1e-3,
    )
    gradient = library.clipped_grad(
        task.loss,
        l2_clip_norm=CLIP,
        normalize_by=task.batch,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
    )
    optimizer = optax.chain(
        library.noise_addition.gaussian_privatizer(
            stddev=z * gradient.sensitivity(), prng_key=jax.random.key(seed)
        ),
        optax.sgd(rate),
    )

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any, empty: Any) -> Any:
        moved, state = optimizer.update(
            gradient(params, x, y, is_padding_example=empty), state, params
        )
        return optax.apply_updates(params, moved), state

    params: Any = jax.tree.map(jnp.asarray, task.first())
    state, watch = optimizer.init(params), Watch()
    x, y = task.data[0], task.data[1]
    # one size for all batches, beyond which fewer than one in 10^9 is: another would be compiled
    # anew
    most = int(np.ceil((task.batch + 6 * np.sqrt(task.batch)) / 32) * 32)
    drawn = batch_selection.CyclicPoissonSampling(sampling_prob=q, iterations=task.steps)
    for done, places in enumerate(drawn.batch_iterator(n, rng=np.random.default_rng(seed)), 1):
        full = np.concatenate((places.astype(np.int64), np.zeros(most - len(places), np.int64)))
        params, state = step(params, state, x[full], y[full], np.arange(most) >= len(places))
        if done <= WARM or done == task.steps:
            jax.block_until_ready(params)
        watch(done)
    return Fit(task.accuracy(params), watch.ms, z)


CONTESTANTS: dict[str, Contestant] = {
    "lastiterate, random allocation": ours(lambda task: li.RandomAllocation(task.batch)),
    "lastiterate, Poisson": ours(lambda task: li.Poisson(task.batch / len(task.data[0]))),
    "lastiterate, correlated, public order": ours(
        lambda task: li.Cyclic(task.batch), correlated=True
    ),
    "lastiterate, torch, random allocation": ours(
        lambda task: li.RandomAllocation(task.batch), module=True
    ),
    "Opacus": opacus("hooks"),
    "Opacus, ghost clipping": opacus("ghost"),
    "jax-privacy": jax_privacy,
}
"""By name, in the order of a round."""
