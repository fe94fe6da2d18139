"""Small runs of every kind, executed under given keys on neighbouring data: what a change of the
sources shows at.

The same keys train on both data sets of a pair, so that what a record moves is known without
sampling: only the spread of the noise is estimated, from many models of one data set.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import lastiterate as li
from benchmarks.audit.mutants.ways import WAYS
from lastiterate.audit import networks
from lastiterate.audit.canaries import DataSet, Neighbours, Train, execute
from lastiterate.audit.canary_families import families
from lastiterate.audit.end_to_end import one_by_one
from lastiterate.engine import Trainer, keys_from_seed

BATCH, BATCHES, FEW, KEYS, WIDTH = 512, 6, 40, 4, 2
"""Models at once, one size, so that every program is compiled once; batches that a spread is
estimated from; models where they are trained one by one; keys that every pair is shown under;
columns."""
LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.5, intercept=0.5)
LOGISTIC = li.Logistic(row_norm=1.0, ridge=0.1, intercept=0.5)
BASE: dict[str, Any] = {"n": 6, "steps": 6, "step_size": 0.5, "loss": LOSS}
PER = {"n": 6, "steps": 4, "step_size": 0.3, "loss": li.KnownConstants(li.LossFacts()), "clip": 1.0}
LINEAR: dict[str, dict[str, Any]] = {
    "full": {},
    "cyclic": {
        "batching": li.Cyclic(4),
        "steps": 7,
        "clip": 0.8,
        "step_size": li.InverseDecay(0.5, 0.5),
    },
    "ball": {"batching": li.Cyclic(3), "domain": li.domains.Ball(2.0), "optimizer": li.Nesterov()},
    "permuted": {"batching": li.Permuted(2), "loss": LOGISTIC, "prox": li.penalties.L1(0.01)},
    "reshuffled": {
        "batching": li.Reshuffled(2),
        "loss": li.Softmax(classes=3, row_norm=1.0, ridge=0.1),
    },
    "poisson": {"batching": li.Poisson(0.5), "domain": li.domains.Box(-3.0, 3.0)},
    "fixed": {"batching": li.FixedSize(2), "adjacency": "replace-one", "loss": LOGISTIC},
    "allocation": {"batching": li.RandomAllocation(2)},
    "bins": {"batching": li.BallsInBins(2)},
    "all": {"batching": li.Cyclic(2), "release": "all", "steps": 4, "optimizer": li.HeavyBall(0.5)},
    "adam": {"optimizer": li.Adam(), "clip": 0.5, "start": li.GaussianStart(0.3)},
    "average": {"method": li.TailAverage(0.5), "loss": LOGISTIC},
    "averaged": {"method": li.ExponentialAverage(0.7)},
    "correlated": {"noise": li.Correlated(1.0, 3, decay=0.5), "batching": li.Cyclic(2)},
    "snapshots": {
        "method": li.VarianceReduced(3, 1.0),
        "batching": li.Poisson(0.5),
        "loss": LOGISTIC,
    },
    "grouped": {
        "prox": li.penalties.GroupLasso(0.01),
        "loss": li.Softmax(classes=3, row_norm=1.0, ridge=0.1),
    },
    "simplex": {"domain": li.domains.Simplex(1.0), "batching": li.Permuted(3), "loss": LOGISTIC},
}
PREPARED: dict[str, dict[str, Any]] = {
    "prepared": {
        "preprocessing": (li.PrivateMean(9.0, 1.0), li.PrivateCovariance(9.0, 0.25)),
        "batching": li.Permuted(2),
    },
    "target": {"preprocessing": (li.PrivateTargetMean(9.0, 1.0),)},
    "calibrated": {"loss": LOGISTIC, "probability_calibration": li.Calibration(9.0, 2)},
    "calibrated, classes": {
        "loss": li.Softmax(classes=3, row_norm=1.0, ridge=0.1),
        "probability_calibration": li.Calibration(9.0, 2),
    },
    "cosines": {"preprocessing": (li.SquareRoots(), li.UnitRows(), li.CosineFeatures(9.0, 4))},
    "measured": {
        "preprocessing": (li.TopEigenvalue(9.0, 1e-6),),
        "step_size": li.RelativeToSmooth(0.5),
    },
}
STAND_IN: dict[str, dict[str, Any]] = {
    "network": {"batching": li.Poisson(0.5)},
    "network, adam": {"optimizer": li.Adam(), "batching": li.Cyclic(2)},
    "network, reshuffled": {"batching": li.Reshuffled(2)},
}
AT_ONCE = {*LINEAR, *STAND_IN, "module"}
"""Cases whose models are trained many at once."""


@dataclass(frozen=True)
class Case:
    """A run, a way to train it, and pairs of data sets; ``quick``: many models at once."""

    run: Any
    train: Train
    pairs: tuple[Neighbours, ...]
    quick: bool

    def shown(self, *, few: bool = False) -> dict[str, Any]:
        """What every pair shows under a few keys, (pairs, 2, keys, p), and models of the first
        pair; ``few``: without these where they are trained one by one."""
        keys = keys_from_seed(5, BATCH if self.quick else KEYS)
        found = [
            [self.models(data, keys)[:KEYS] for data in (pair.with_record, pair.without_record)]
            for pair in self.pairs
        ]
        if few and not self.quick:
            return {"pairs": found, "many": found[0][0]}
        spread = (
            np.split(keys_from_seed(6, BATCH * BATCHES), BATCHES)
            if self.quick
            else [keys_from_seed(6, FEW)]
        )
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
    return {
        name: run
        if run.noise is not None and not run.noise.independent
        else li.calibrate(run, epsilon=1.0, delta=1e-5).run
        for name, run in described.items()
    }


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
        made[name] = lambda run=found[name]: Case(
            run, networks.train_many(run), networks.families(run)[:4], True
        )
    made["module"] = lambda: _module(found["network"])
    for name, (of, way) in WAYS.items():
        swapped = replace(found[of], adjacency="replace-one")
        made[name] = lambda way=way, run=swapped: _of(run, _each(way, run), False)
    return made


def described(held: Path, name: str) -> tuple[Any, bool]:
    """The run of a case, and whether it is trained as modules are."""
    found = {name: li.Run.from_dict(text) for name, text in json.loads(held.read_text()).items()}
    if name in WAYS:
        return replace(
            found[WAYS[name][0]],
            adjacency="replace-one",
            rows_per_record=2 if name == "units" else 1,
        ), name == "trained module"
    return found["network" if name == "module" else name], name == "module"


def _of(run: Any, train: Train, quick: bool = True) -> Case:
    pairs = networks.families(run) if networks.is_clipped_only(run) else families(run, WIDTH, 0)
    return Case(run, train, pairs if quick else pairs[:3], quick)


def _each(way: Callable[..., np.ndarray], run: Any) -> Train:
    def train(x: Any, y: Any, keys: Any) -> np.ndarray:
        return np.stack([way(run, x, y, int(key[0]) >> 1) for key in np.asarray(keys)])

    return train


def _module(run: Any) -> Case:
    from lastiterate.torch.audited_modules import stand_in

    return Case(run, stand_in(run, networks.SHAPES), networks.families(run)[:4], True)
