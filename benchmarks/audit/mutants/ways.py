"""Ways to release a model that users take, one model per key: in pieces, exact noise, resumed, by
units."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.audit.end_to_end import flat
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.units import UnitLoss


def trained(run: Any, data: Any, seed: int, **given: Any) -> np.ndarray:
    """The numbers of a model that ``train`` releases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about seeds
        return _numbers(li.train(run, data, seed=seed, min_evidence=li.Evidence.ASSUMED, **given))


def _numbers(model: Any) -> np.ndarray:
    if hasattr(model, "released"):
        return flat(model.released)
    parts = next(
        getattr(model, name) for name in ("params", "state", "weights") if hasattr(model, name)
    )
    return np.concatenate([np.ravel(np.asarray(parts[name], np.float64)) for name in sorted(parts)])


def streamed(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    from lastiterate.engine.streaming.buffers import Arrays

    return trained(run, Arrays((np.asarray(x, np.float32), y)), seed)


def exactly(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    return trained(run, (x, y), seed, secure_noise=True)


def kept(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    """Interrupted and resumed, charged to a ledger, saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ledger = Ledger(place / "l")
        ledger.add(
            "d", unit="record", adjacency=run.adjacency, filter=GaussianFilter.of(100.0, 1e-3)
        )
        (place / "k").write_text(bytes(range(32)).hex())
        (place / "k").chmod(0o600)
        given: dict[str, Any] = {
            "checkpoint": place / "c",
            "checkpoint_every": 0.0,
            "checkpoint_key": place / "k",
            "ledger": ledger,
            "dataset": "d",
            "seed": seed,
            "min_evidence": li.Evidence.ASSUMED,
        }

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
    return trained(
        replace(run, rows_per_record=2, clip=None),
        (np.repeat(x, 2, 0), np.repeat(y, 2)),
        seed,
        unit=who,
    )


def squared(params: Any, row: Any, label: Any) -> Any:
    """Of one record, under a small network."""
    import jax.numpy as jnp

    return (jnp.tanh(row @ params["a"] + params["b"]) @ params["c"] - label) ** 2


def first(x: Any) -> dict[str, np.ndarray]:
    return {
        "a": np.full((np.shape(x)[1], 2), 0.3, np.float32),
        "b": np.ones(2, np.float32),
        "c": np.ones(2, np.float32),
    }


def by_network(run: Any, x: Any, y: Any, seed: int, **given: Any) -> np.ndarray:
    return trained(run, bounded(x, y), seed, model=first(x), loss=squared, **given)


def bounded(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.clip(np.float32(x), -9, 9), np.clip(np.float32(y), -9, 9)


def by_exact_network(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    return by_network(run, x, y, seed, secure_noise=True)


def by_network_in_pieces(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    from lastiterate.engine.streaming.buffers import Arrays

    return trained(run, Arrays(bounded(x, y)), seed, model=first(x), loss=squared)


def by_units_of_a_network(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    who = np.repeat(np.arange(run.n), 2)
    data = bounded(np.repeat(x, 2, 0), np.repeat(y, 2))
    return trained(run, data, seed, model=first(x), loss=UnitLoss(squared, 2), unit=who)


def by_module(run: Any, x: Any, y: Any, seed: int) -> np.ndarray:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(np.shape(x)[1], 6),
        torch.nn.LayerNorm(6),
        torch.nn.Unflatten(1, (1, -1)),
        torch.nn.Conv1d(1, 2, 2, stride=2, padding=1),
        torch.nn.GroupNorm(1, 2),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(1),
    )
    data = bounded(x, y)
    module(torch.from_numpy(data[0]))
    return trained(run, data, seed, model=module, loss=lambda out, y: (out[0] - y) ** 2)


WAYS: dict[str, tuple[str, Callable[..., np.ndarray]]] = {
    "streamed": ("reshuffled", streamed),
    "streamed, bins": ("bins", streamed),
    "exact": ("poisson", exactly),
    "kept": ("cyclic", kept),
    "units": ("full", by_units),
    "exact, prepared": ("prepared", exactly),
    "exact network": ("network", by_exact_network),
    "streamed network": ("network, reshuffled", by_network_in_pieces),
    "units of a network": ("network", by_units_of_a_network),
    "trained network": ("network", by_network),
    "trained module": ("network, reshuffled", by_module),
}
