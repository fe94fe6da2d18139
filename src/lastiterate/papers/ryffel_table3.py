"""Ryffel, Bach and Pointcheval 2022, Table 3 in reduced form: a residual net's last block, fine-tuned privately."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.papers import real, residual_net
from lastiterate.papers.item import Item, Panel, Result, Row, Trace, Work
from lastiterate.papers.residual_net import entropy, logits_of, mapped, tail
from lastiterate.papers.ryffel_privacy import PAPER
from lastiterate.run.run import Run

EPSILON, DELTA, BATCH, WIDTH = 1.0, 1e-5, 100, 16
TRAINED = {"head": ("head", "bias"), "last block": ("head", "bias", "last")}
PUBLISHED = {("last block", "DP-SGD"): 67.8, ("last block", "no privacy"): 77.0, ("head", "DP-SGD"): 68.0,
             ("head", "no privacy"): 70.7, ("head", "DP-SGLD"): 70.3}
"""Test accuracies in per cent; those of the head alone are Table 1's."""


@dataclass(frozen=True, eq=False)
class Images:
    """Grey images (n, h, w) in 0 .. 1 and labels: a public part, a private one and a test part."""

    name: str
    public: real.Labelled
    private: real.Labelled
    test: real.Labelled

    @property
    def classes(self) -> int:
        return int(self.public[1].max()) + 1


def images_of(work: Work, name: str) -> Images:
    """PneumoniaMNIST (its validation part, then 476 of its training part, are public), MNIST, or digits."""
    public, private = 1000, work.size(1500, 10**9)
    if name == "PneumoniaMNIST":
        found = np.load(real.folder_of(work.data_dir) / real.PNEUMONIA)
        x, y, *test = (np.concatenate([found[f"{part}_{what}"] for part in parts])
                       for parts in (("val", "train"), ("test",)) for what in ("images", "labels"))
    elif name == "MNIST":
        private = work.size(1500, 12_000)
        x, y = real.mnist_images(work.data_dir, "train", public + private)
        test = [part[:2000] for part in real.mnist_images(work.data_dir, "t10k")]
    else:
        from lastiterate.data.bundled import load_bundled

        table, _ = load_bundled("digits")
        answers = np.asarray(table.answers)
        kept = np.random.default_rng(work.seed).permutation(len(answers))
        x, y = np.asarray(table.array).reshape(-1, 8, 8)[kept] * (255 / 16), answers[kept]
        x, y, test, public = x[:1400], y[:1400], [x[1400:], y[1400:]], 400

    def part(x: np.ndarray, y: np.ndarray) -> real.Labelled:
        return (x / 255).astype(np.float32), y.astype(np.int32).ravel()

    return Images(name, part(x[:public], y[:public]), part(x[public:][:private], y[public:][:private]), part(*test))


def runs_for(n: int, passes: int) -> dict[str, tuple[Run, str]]:
    """Without privacy, DP-SGD and DP-SGLD at the budget, each with the row that certifies it."""
    plain = li.Run(n=n, steps=passes * (n // BATCH), step_size=0.3, noise=li.NoiseMultiplier(1.0), clip=1.0,
                   batching=li.Poisson(BATCH / n))
    quiet = replace(plain, noise=li.GradientNoise(0.0), clip=1e6, batching=li.Cyclic(BATCH))
    runs = {"no privacy": (quiet, "no noise")}
    for name, described in {"DP-SGD": plain, "DP-SGLD": replace(
            plain, batching=li.FixedSize(BATCH), noise=li.Langevin(1.0))}.items():
        certificate = li.calibrate(described, epsilon=EPSILON, delta=DELTA)
        best = certificate.best(DELTA)
        assert best is not None
        runs[name] = certificate.run, best.theorem.name
    return runs


@dataclass(frozen=True, eq=False)
class Tuning:
    """A net that was trained on the public part, what its frozen part makes of the others, and their labels."""

    net: dict[str, Any]
    inner: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    answers: np.ndarray

    @classmethod
    def of(cls, data: Images, net: dict[str, Any]) -> Tuning:
        return cls(net, mapped(net, data.private[0]), data.private[1], mapped(net, data.test[0]), data.test[1])

    def right(self, params: dict[str, Any]) -> float:
        """Test accuracy in per cent."""
        return 100 * float((logits_of(params, self.test).argmax(axis=1) == self.answers).mean())

    def accuracy(self, run: Run, names: tuple[str, ...], seed: int) -> float:
        """After a run on the arrays of those names, the others frozen; per-example clips over all of them at once."""
        from lastiterate.engine import seeded_key
        from lastiterate.engine.network import fit_network

        frozen = {key: value for key, value in self.net.items() if key not in names}
        inner = self.inner
        if "last" not in names:  # the head alone reads means over each channel
            inner = np.asarray(_pooled(self.net, self.inner))

        def loss(params: Any, x: Any, y: Any) -> Any:
            if "last" in names:
                return entropy(tail({**frozen, **params}, x), y)
            return entropy(params["head"] @ x + params["bias"], y)

        n = run.n
        tuned = fit_network(run, loss, {key: self.net[key] for key in names}, (inner[:n], self.labels[:n]),
                            seeded_key(seed), microbatch=BATCH)
        return self.right({**self.net, **tuned})


def _pooled(net: dict[str, Any], inner: np.ndarray) -> Any:
    """What the head reads, (n, width)."""
    import jax

    return jax.jit(jax.vmap(lambda x: residual_net.block(net["last"], x).mean(axis=(1, 2))))(inner)


def names_of(work: Work) -> list[str]:
    """The sets of images that are there; digits where there are none."""
    found = [name for name, files in (("PneumoniaMNIST", (real.PNEUMONIA,)), ("MNIST", real.MNIST))
             if real.present(work.data_dir, *files)]
    return (found[:1] if work.quick else found) or ["digits"]


def table_3(work: Work) -> Result:
    """Head alone, and last block with head: without privacy, DP-SGD, DP-SGLD."""
    rows, panels, sizes = list[Row](), list[Panel](), {}
    passes = work.size(6, 30)
    for name in names_of(work):
        data, bars = images_of(work, name), dict[str, list[float]]()
        work.progress(f"{name}: training on the public part")
        first = residual_net.parameters(work.seed, data.classes, WIDTH)
        whole = residual_net.pretrained(first, *data.public, work.size(150, 600), work.seed)
        n = len(data.private[0]) // BATCH * BATCH
        this, sizes[name] = Tuning.of(data, whole), {"public": len(data.public[0]), "private": n,
                                                     "test": len(data.test[0])}
        rows.append(Row(f"{name}, before fine-tuning: test accuracy, %", this.right(whole)))
        for part, names in TRAINED.items():
            for column, (run, row) in runs_for(n, passes).items():
                value = work.cell(f"{name}: {part}, {column}", partial(this.accuracy, run, names, work.seed))
                rows.append(Row(f"{name}, {part}, {column} ({row}): test accuracy, %", value,
                                PUBLISHED.get((part, column)), 0.5))
                bars.setdefault(column, []).append(value)
        traces = tuple(Trace(column, (1.0, 2.0), tuple(values), style) for (column, values), style in zip(
            bars.items(), ("chance", "sampling", "certified"), strict=True))
        panels.append(Panel(f"{name} (1: head alone, 2: last block and head)", "what is trained", "test accuracy, %",
                            traces))
    return Result(tuple(rows), tuple(panels),
                  {"records": sizes, "epsilon": EPSILON, "delta": DELTA, "passes": passes, "clip": 1.0, "step": 0.3,
                   "batch": BATCH, "adjacency": "zero-out", "width": WIDTH},
                  ("Reduced: a net of two residual blocks on grey images stands for their ResNet18 on CIFAR-10, so "
                   "that published accuracies stand beside ours and are not comparable.",
                   "What the table says is whether fine-tuning a block helps: without privacy it did (77.0 against "
                   "70.7), with DP-SGD it did not (67.8 against 68.0).",
                   "The net is written in plain JAX; modules of Equinox, which is no dependency, are trees of arrays "
                   "and train the same way. Group normalisation works within a record; batch normalisation mixes "
                   "records and is refused by name, here, in torch modules, and in any loss that asks for an axis over "
                   "records, as Equinox's does."))


ITEMS = (
    Item("ryffel-table3", PAPER, "Table 3, reduced: fine-tuning the last block of a residual net", "differs", table_3,
         optional=(real.PNEUMONIA, *real.MNIST)),
)
