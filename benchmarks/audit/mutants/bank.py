"""Small runs of every kind, executed under given keys on neighbouring data: what a change of the sources shows at.

The same keys train on both data sets of a pair, so that what a record moves is known without sampling: only the spread
of the noise is estimated, from many models of one data set.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.audit import networks
from lastiterate.audit.families import families
from lastiterate.audit.neighbours import DataSet, Neighbours, Train, execute
from lastiterate.audit.whole import flat, one_by_one
from lastiterate.engine import Trainer, seeded_keys
from lastiterate.ledger import GaussianFilter, Ledger

BATCH, BATCHES, FEW, KEYS, WIDTH = 512, 6, 40, 4, 2
"""Models at once, one size, so that every program is compiled once; batches that a spread is estimated from; models
where they are trained one by one; keys that every pair is shown under; columns."""
LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.5, intercept=0.5)
LOGISTIC = li.Logistic(row_norm=1.0, ridge=0.1, intercept=0.5)
BASE: dict[str, Any] = {"n": 6, "steps": 6, "step_size": 0.5, "loss": LOSS}
PER = {"n": 6, "steps": 4, "step_size": 0.3, "loss": li.Abstract(li.LossFacts()), "clip": 1.0}
LINEAR: dict[str, dict[str, Any]] = {
    "full": {}, "cyclic": {"batching": li.Cyclic(4), "steps": 7, "clip": 0.8, "step_size": li.InverseDecay(0.5, 0.5)},
    "ball": {"batching": li.Cyclic(3), "domain": li.domains.Ball(2.0), "update": li.Nesterov()},
    "permuted": {"batching": li.Permuted(2), "loss": LOGISTIC, "prox": li.penalties.L1(0.01)},
    "reshuffled": {"batching": li.Reshuffled(2), "loss": li.Softmax(classes=3, row_norm=1.0, ridge=0.1)},
    "poisson": {"batching": li.Poisson(0.5), "domain": li.domains.Box(-3.0, 3.0)},
    "fixed": {"batching": li.FixedSize(2), "adjacency": "replace-one", "loss": LOGISTIC},
    "allocation": {"batching": li.RandomAllocation(2)}, "bins": {"batching": li.BallsInBins(2)},
    "all": {"batching": li.Cyclic(2), "release": "all", "steps": 4, "update": li.HeavyBall(0.5)},
    "adam": {"update": li.Adam(), "clip": 0.5, "start": li.GaussianStart(0.3)},
    "average": {"method": li.TailAverage(0.5), "loss": LOGISTIC},
    "averaged": {"method": li.ExponentialAverage(0.7)},
    "correlated": {"noise": li.Correlated(1.0, 3, decay=0.5), "batching": li.Cyclic(2)},
    "snapshots": {"method": li.VarianceReduced(3, 1.0), "batching": li.Poisson(0.5), "loss": LOGISTIC},
}
PREPARED: dict[str, dict[str, Any]] = {
    "prepared": {"prelude": (li.PrivateMean(9.0, 1.0), li.PrivateCovariance(9.0, 0.25)), "batching": li.Permuted(2)},
    "target": {"prelude": (li.PrivateTargetMean(9.0, 1.0),)},
    "calibrated": {"loss": LOGISTIC, "calibration": li.Calibration(9.0, 2)},
    "measured": {"prelude": (li.TopEigenvalue(9.0, 1e-6),), "step_size": li.RelativeToSmooth(0.5)},
}
STAND_IN: dict[str, dict[str, Any]] = {
    "network": {"batching": li.Poisson(0.5)}, "network, adam": {"update": li.Adam(), "batching": li.Cyclic(2)},
    "network, reshuffled": {"batching": li.Reshuffled(2)}}


@dataclass(frozen=True)
class Case:
    """A run, a way to train it, and pairs of data sets; ``quick``: many models at once."""

    run: Any
    train: Train
    pairs: tuple[Neighbours, ...]
    quick: bool

    def shown(self) -> dict[str, Any]:
        """What every pair shows under a few keys, (pairs, 2, keys, p), and models of the first pair."""
        keys = seeded_keys(5, BATCH if self.quick else KEYS)
        found = [[self.models(data, keys)[:KEYS] for data in (pair.with_record, pair.without_record)]
                 for pair in self.pairs]
        spread = np.split(seeded_keys(6, BATCH * BATCHES), BATCHES) if self.quick else [seeded_keys(6, FEW)]
        many = [self.models(self.pairs[0].with_record, part) for part in spread]
        refused = [part for part in many if isinstance(part, str)]
        return {"pairs": found, "many": refused[0] if refused else np.concatenate(many)}

    def models(self, data: DataSet, keys: Any) -> np.ndarray | str:
        """Released numbers (keys, p), or the rule that refused them."""
        try:
            found = execute(self.run, data, self.train, keys)
        except li.InputError as error:
            return str(error)
        return found.reshape(len(found), -1)


def runs() -> dict[str, Any]:
    """Every run with the noise of its budget."""
    described = {name: li.Run(**BASE | changes) for name, changes in (LINEAR | PREPARED).items()}
    described |= {name: li.Run(**PER | changes) for name, changes in STAND_IN.items()}
    return {name: run if run.noise is not None and not run.noise.independent else
            li.calibrate(run, epsilon=1.0, delta=1e-5).run for name, run in described.items()}


def cases(held: Path) -> dict[str, Callable[[], Case]]:
    """Every case by name, made when it is asked for; ``held``: a file that keeps calibrated runs."""
    if not held.exists():
        held.write_text(json.dumps({name: run.to_dict() for name, run in runs().items()}))
    found = {name: li.Run.from_dict(text) for name, text in json.loads(held.read_text()).items()}
    made: dict[str, Callable[[], Case]] = {}
    for name in LINEAR:
        made[name] = lambda run=found[name]: _of(run, Trainer(run).fit_many)
    for name in PREPARED:
        made[name] = lambda run=found[name]: _of(run, one_by_one(run), quick=False)
    for name in STAND_IN:
        made[name] = lambda run=found[name]: Case(run, networks.train_many(run), networks.families(run)[:4], True)
    made["module"] = lambda: _module(found["network"])
    for name, (of, way) in WAYS.items():
        swapped = replace(found[of], adjacency="replace-one")
        made[name] = lambda way=way, run=swapped: _of(run, _each(way, run), False)
    return made


def _of(run: Any, train: Train, quick: bool = True) -> Case:
    pairs = networks.families(run) if networks.stands_in(run) else families(run, WIDTH, 0)
    return Case(run, train, pairs if quick else pairs[:3], quick)


def _each(way: Callable[..., np.ndarray], run: Any) -> Train:
    def train(x: Any, y: Any, keys: Any) -> np.ndarray:
        return np.stack([way(run, x, y, int(key[0]) >> 1) for key in np.asarray(keys)])

    return train


def _module(run: Any) -> Case:
    from lastiterate.torch.attacked import stand_in

    return Case(run, stand_in(run, networks.SHAPES), networks.families(run)[:4], True)


def trained(run: Any, data: Any, seed: int, **given: Any) -> np.ndarray:
    """The numbers of a model that ``train`` releases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about seeds
        return _numbers(li.train(run, data, seed=seed, at_least=li.Evidence.ASSUMED, **given))


def _numbers(model: Any) -> np.ndarray:
    if hasattr(model, "released"):
        return flat(model.released)
    parts = model.params if hasattr(model, "params") else model.weights
    return np.concatenate([np.ravel(np.asarray(parts[name], np.float64)) for name in sorted(parts)])


def streamed(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    from lastiterate.engine.streaming.devices import Arrays

    return trained(run, Arrays((np.asarray(x, np.float32), y)), seed)


def exactly(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    return trained(run, (x, y), seed, secure_noise=True)


def kept(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    """Interrupted and resumed, charged to a ledger, saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ledger = Ledger(place / "l")
        ledger.add("d", unit="record", adjacency=run.adjacency, filter=GaussianFilter.of(100.0, 1e-3))
        (place / "k").write_text(bytes(range(32)).hex())
        (place / "k").chmod(0o600)
        given: dict[str, Any] = {"checkpoint": place / "c", "checkpoint_every": 0.0, "checkpoint_key": place / "k",
                                     "ledger": ledger, "dataset": "d", "seed": seed, "at_least": li.Evidence.ASSUMED}

        def stop(done: int, *_: Any) -> None:
            if done >= run.steps // 2:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            li.train(run, (x, y), progress=stop, **given)
        model = li.train(run, (x, y), **given)
        model.save(place / "m")
        again = li.load(place / "m")
        return np.concatenate((_numbers(model), _numbers(again)))


def by_units(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    who = np.repeat(np.arange(run.n), 2)
    return trained(replace(run, rows_per_record=2, clip=None), (np.repeat(x, 2, 0), np.repeat(y, 2)), seed, unit=who)


def squared(params: Any, row: Any, label: Any) -> Any:
    """Of one record, under a small network."""
    import jax.numpy as jnp

    return (jnp.tanh(row @ params["a"] + params["b"]) @ params["c"] - label) ** 2


def by_network(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    first = {"a": np.full((np.shape(x)[1], 2), 0.3, np.float32), "b": np.ones(2, np.float32),
             "c": np.ones(2, np.float32)}
    return trained(run, (np.clip(np.float32(x), -9, 9), np.clip(np.float32(y), -9, 9)), seed, model=first, loss=squared)


def by_module(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Unflatten(1, (1, -1)), torch.nn.Conv1d(1, 2, 2), torch.nn.Tanh(),
                                 torch.nn.Flatten(), torch.nn.LazyLinear(1))
    data = (np.clip(np.float32(x), -9, 9), np.clip(np.float32(y), -9, 9))
    module(torch.from_numpy(data[0]))
    return trained(run, data, seed, model=module, loss=lambda out, y: ((out[:, 0] - y) ** 2).sum())


WAYS: dict[str, tuple[str, Callable[..., np.ndarray]]] = {
    "streamed": ("reshuffled", streamed), "streamed, poisson": ("poisson", streamed),
    "exact": ("poisson", exactly), "kept": ("cyclic", kept), "units": ("full", by_units),
    "trained network": ("network", by_network), "trained module": ("network, reshuffled", by_module)}
