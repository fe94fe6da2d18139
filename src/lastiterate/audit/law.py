"""The law of the released iterate, against its exact law: the second line behind attacks.

On squared error that nothing clamps every step is an affine map with Gaussian noise, so that given all batches the last
iterate is exactly Gaussian, and a finite mixture of Gaussians over the batches that can be drawn. On four made-up
records and two passes (or steps that draw their own batches) all of them can be listed. Compared are the mean, the
covariance and the distribution along two directions (Kolmogorov and Smirnov): what leaves no trace on a worst-case
record, such as momentum left on, the best iterate instead of the last or the wrong order of batches, shows here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import combinations, permutations, product
from types import NoneType
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.audit import snapshot_law
from lastiterate.audit.noise_covariance import columns, noise_p
from lastiterate.engine import Trainer, seeded_keys
from lastiterate.errors import InputError
from lastiterate.run.batching import FixedSize, FullBatch, Poisson
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import Abstract, HuberRidge
from lastiterate.run.method import Descent
from lastiterate.run.methods import snapshots_of
from lastiterate.run.noise import GradientNoise
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Steps
from lastiterate.run.updates import HeavyBall, Nesterov

RECORDS, SIZE, RATE = 4, 2, 0.3
ROWS = np.array([[0.9, -0.3], [-0.2, 0.7], [0.5, 0.8], [-0.8, -0.4]])
TARGET = np.array([1.2, -0.7, 0.3, 1.9])
STEP, NOISE, FAR = 0.6, 0.05, 1e6
LONGEST = 40
"""Steps over which correlated noise is looked at; its band, in twice as many."""
MODELS = 20_000
Z, P = 6.0, 1e-7
"""Beyond these a law is not the described one: a right trainer gets there with probability below 1e-6."""
Batches = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class LawReport:
    """How far the models lie from the exact law: ``z`` of means and covariances, ``p`` of their distribution, ``noise``
    that of the noise of all steps together."""

    models: int
    batching: str
    components: int  #: Gaussians in the exact mixture
    z: float
    p: float
    noise: float

    @property
    def holds(self) -> bool:
        return self.z < Z and min(self.p, self.noise) > P

    @property
    def verdict(self) -> str:
        """In words."""
        return "the released iterate follows its exact law" if self.holds else \
            "BUG: the released iterate does not follow the law of the run"

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "holds": self.holds, "verdict": self.verdict}, indent=2)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, in the order in which they are read."""
        return [("law of", f"the last iterate on squared error, {self.batching}"),
                ("models", f"{self.models}, against an exact mixture of {self.components} Gaussians"),
                ("mean and covariance", f"at most {self.z:.1f} standard errors away (a right trainer: below {Z:g})"),
                ("distribution", f"Kolmogorov-Smirnov p = {self.p:.1e} (a right trainer: above {P:g})"),
                ("noise of all steps", f"covariance p = {self.noise:.1e} (a right trainer: above {P:g})"),
                ("verdict", self.verdict)]


def compare(run: Run, *, models: int = MODELS, seed: int = 0) -> LawReport:
    """Compare what the library's trainer releases with its exact law: the batches, momentum, ridge, start and schedule
    of ``run``, on squared error and four records. The domain is left out (audits look at it), and so are clips and what
    is done before and after the steps."""
    snapshots = snapshots_of(run.method) is not None
    small = snapshot_law.shrunk(run, RECORDS) if snapshots else on_a_quadratic(run)
    draws = Trainer(small).fit_many(ROWS, TARGET, seeded_keys(seed, models))[:, 0, :]
    mixed = snapshot_law.mixture(small, _with_intercept(small), TARGET) if snapshots else mixture(small)
    weights, means, spreads = mixed
    return LawReport(models, type(run.batching).__name__, len(weights), _moments(draws, weights, means, spreads),
                     _distribution(draws, weights, means, spreads), 1.0 if snapshots else noise_p(small, seed + 1))


def on_a_quadratic(run: Run) -> Run:
    """The run with its batches, schedule, momentum and start on four records of squared error."""
    for name, part in (("update", run.update), ("method", run.method)):
        if type(part) not in (NoneType, Nesterov, HeavyBall, Descent):
            raise InputError(name, "has no law that is written out here", type(part).__name__)
    known = not isinstance(run.loss, Abstract)
    loss = HuberRidge(row_norm=50.0, residual_clip=FAR, ridge=min(run.loss.ridge, 0.5) if known else 0.0,
                      intercept=min(getattr(run.loss, "intercept", 0.5), 1.0))
    match run.batching:
        case FullBatch():
            batching = run.batching
        case Poisson():
            batching = Poisson(RATE)
        case _:
            batching = replace(run.batching, size=SIZE)
    noise, blocks = run.decided_noise, batching.blocks(RECORDS)
    steps = blocks * max(2, -(-2 * noise.column(LONGEST).size // blocks))
    eta = np.resize(run.step_sizes[:steps], steps)
    std = np.resize(run.noise_stds[:steps], steps)
    small = replace(
        run, n=RECORDS, steps=steps, batching=batching, loss=loss, clip=None, prox=None, domain=Everywhere(),
        release="last", adjacency="zero-out", prelude=(), counts=(), calibration=None, record_draws=None,
        rows_per_record=1, step_size=Steps(tuple((STEP * eta / eta.max()).tolist())),
        noise=GradientNoise(tuple((NOISE * std / max(std.max(), 1e-300)).tolist())))
    if noise.independent:
        return small
    unit = replace(small, noise=noise.with_unit())
    return replace(unit, noise=unit.decided_noise.scaled(NOISE / unit.first_noise))


def mixture(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (c,), means (c, p) and covariances (c, p, p) over all batches that can be drawn."""
    rows = _with_intercept(run)
    components = [(weight, *gaussian(run, rows, batches)) for weight, batches in drawn(run)]
    weights, means, spreads = zip(*components, strict=True)
    return np.array(weights), np.stack(means), np.stack(spreads)


def _with_intercept(run: Run) -> np.ndarray:
    return np.column_stack((ROWS, np.full(RECORDS, run.loss.intercept)))  # pyright: ignore


def drawn(run: Run) -> Iterator[tuple[float, Batches]]:
    """All batches of all steps, with their probabilities."""
    every = tuple(range(run.n))
    match run.batching.drawn:
        case "never":
            size = int(run.divisor)
            yield 1.0, tuple(every[k % run.blocks * size:][:size] for k in range(run.steps))
        case "once":
            for weight, batches in _passes(run):
                yield weight, batches * (run.steps // run.blocks)
        case _:
            units = _steps(run) if run.batching.drawn == "each step" else _passes(run)
            for chosen in product(units, repeat=run.steps // len(units[0][1])):
                yield float(np.prod([one for one, _ in chosen])), tuple(b for _, part in chosen for b in part)


def _passes(run: Run) -> list[tuple[float, Batches]]:
    """The batches of one pass: an order cut into blocks, or every record's own bin."""
    size, blocks, every = int(run.divisor), run.blocks, range(run.n)
    if run.batching.independent:
        return [(blocks**-run.n, tuple(tuple(i for i in every if bins[i] == j) for j in range(blocks)))
                for bins in product(range(blocks), repeat=run.n)]
    cut = [tuple(tuple(sorted(order[j * size:(j + 1) * size])) for j in range(blocks)) for order in permutations(every)]
    different = sorted(set(cut))
    return [(1 / len(different), batches) for batches in different]


def _steps(run: Run) -> list[tuple[float, Batches]]:
    """The batch of one step that draws its own."""
    every = range(run.n)
    match run.batching:
        case FixedSize(size):
            sets = list(combinations(every, size))
            return [(1 / len(sets), (one,)) for one in sets]
        case Poisson(rate):
            return [(rate**m * (1 - rate) ** (run.n - m), (one,))
                    for m in range(run.n + 1) for one in combinations(every, m)]
        case _:
            raise InputError("batching", "has no law that is listed here", type(run.batching).__name__)


def gaussian(run: Run, rows: np.ndarray, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the last iterate given the batches; the state is parameters beside what momentum keeps,
    and what every draw of noise has done to both.

    Update rules are written out again, on purpose: what is compared with the trainer must not share its mistakes.
    """
    p, b = rows.shape[1], run.divisor
    eye, none = np.eye(p), np.zeros((p, p))
    mean, spread, drawn = np.zeros(2 * p), np.zeros((2 * p, 2 * p)), np.zeros((run.steps, 2 * p, p))
    mixing = np.linalg.inv(columns(run))
    spread[:p, :p] = run.start.std**2 * eye
    if isinstance(run.update, Nesterov):
        spread = np.block([[spread[:p, :p]] * 2] * 2)  # the previous parameters are the first ones
    for k, batch in enumerate(batches):
        x, y, eta = rows[list(batch)], TARGET[list(batch)], run.step_sizes[k]
        bend, push = x.T @ x / b + run.loss.ridge * eye, x.T @ y / b  # pyright: ignore
        match run.update:
            case None:
                move, towards, noisy = np.block([[eye - eta * bend, none], [none, none]]), (push, 0 * push), (1.0, 0.0)
            case HeavyBall(beta):
                move = np.block([[eye - eta * bend, -eta * beta * eye], [bend, beta * eye]])
                towards, noisy = (push, -push / eta), (1.0, -1.0 / eta)
            case Nesterov():
                ahead, shrink = k / (k + 3.0), eye - eta * bend
                move, towards, noisy = np.block([[(1 + ahead) * shrink, -ahead * shrink], [eye, none]]), \
                    (push, 0 * push), (1.0, 0.0)
            case _:
                raise AssertionError  # refused before
        way = np.kron(np.array(noisy)[:, None], eye)
        mean = move @ mean + eta * np.concatenate(towards)
        spread = move @ spread @ move.T
        drawn = move @ drawn + eta * run.noise_stds[k] * mixing[k][:, None, None] * way
    return mean[:p], (spread + np.einsum("kij,klj->il", drawn, drawn))[:p, :p]


def _moments(draws: np.ndarray, weights: np.ndarray, means: np.ndarray, spreads: np.ndarray) -> float:
    """The largest distance of a mean or second moment, in standard errors."""
    first = weights @ means
    centred = means - first
    second = np.einsum("c,cij->ij", weights, spreads + centred[:, :, None] * centred[:, None, :])
    deviations = draws - first
    products = deviations[:, :, None] * deviations[:, None, :]
    count = np.sqrt(len(draws))
    scores = [np.abs(deviations.mean(0)) / (deviations.std(0) / count),
              (np.abs(products.mean(0) - second) / (products.std(0) / count)).ravel()]
    return float(max(part.max() for part in scores))


def _distribution(draws: np.ndarray, weights: np.ndarray, means: np.ndarray, spreads: np.ndarray) -> float:
    """The smallest p of two directions."""
    from scipy.special import ndtr  # pyright: ignore
    from scipy.stats import kstest  # pyright: ignore

    def along(direction: np.ndarray) -> float:
        middles = means @ direction
        sizes = np.sqrt(np.einsum("i,cij,j->c", direction, spreads, direction))

        def exact(values: ArrayLike) -> np.ndarray:
            values = np.asarray(values, np.float64)
            cdf = np.zeros(values.shape)
            for weight, middle, size in zip(weights, middles, sizes, strict=True):
                cdf += weight * ndtr((values - middle) / size)
            return cdf

        return float(kstest(draws @ direction, exact).pvalue)  # pyright: ignore

    return min(along(one) for one in (np.ones(means.shape[1]), cast(np.ndarray, np.arange(means.shape[1]) - 1.2)))
