"""One immutable description of a training run: the accountant reads it and the trainer executes it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run import codec
from lastiterate.run.adjacency import Adjacency, check_adjacency, records_moved
from lastiterate.run.arrays import Array
from lastiterate.run.batching import BallsInBins, Batching, Cyclic, FixedSize, FullBatch, Permuted, Poisson, Reshuffled
from lastiterate.run.domains import Domain, Everywhere
from lastiterate.run.evidence import Evidence, Fact, mint
from lastiterate.run.facts import FLOAT_SLACK, LossFacts, after_clipping
from lastiterate.run.losses import Abstract, HuberRidge, Logistic, Loss, Softmax
from lastiterate.run.noise import GradientNoise, Langevin, Noise, NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.starts import Fixed, Momentum, Prelude, Start
from lastiterate.run.step_sizes import Constant, InverseDecay, Steps, StepSize
from lastiterate.run.validate import executable, whole

Release = Literal["last", "all"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a training run that is public.

    Step k = 0, 1, ... computes ``Project(Prox(theta - step_k (data gradient sum / b + ridge theta + noise_std_k
    N(0, I))))`` with the public divisor b. ``noise_std_k`` is per coordinate of the mean gradient.

    **Guarantee:** what is accounted is what is executed, because both read this object and nothing else.
    """

    n: int
    steps: int
    step_size: StepSize
    noise: Noise
    batching: Batching = FullBatch()
    domain: Domain = Everywhere()
    prox: Prox | None = None
    start: Start = Fixed()
    clip: float | None = None
    momentum: Momentum | None = None
    prelude: tuple[Prelude, ...] = ()
    release: Release = "last"
    adjacency: Adjacency = "zero-out"
    loss: Loss = Abstract()

    def __post_init__(self) -> None:
        whole("n", self.n)
        whole("steps", self.steps, most=10**9)
        object.__setattr__(self, "prelude", tuple(self.prelude))
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            for part in value if name == "prelude" else (value,):
                if not isinstance(part, kinds) and not (name in ("momentum", "prox") and part is None):
                    raise InputError(name, "must be one of " + ", ".join(kind.__name__ for kind in kinds),
                                     type(part).__name__)
        if self.clip is not None:
            executable("clip", self.clip)
        if self.release not in ("last", "all"):
            raise InputError("release", "must be 'last' or 'all'", self.release)
        check_adjacency(self.adjacency, poisson=isinstance(self.batching, Poisson))
        size = getattr(self.batching, "size", 1)
        if size > self.n:
            raise InputError("batch size", f"cannot exceed n = {self.n}", size, "use full batches")
        if isinstance(self.step_size, Steps) and len(self.step_size.values) != self.steps:
            raise InputError("step_size", f"needs one value for each of {self.steps} steps", len(self.step_size.values))
        stds = self.noise.std if isinstance(self.noise, GradientNoise) else None
        if isinstance(stds, tuple) and len(stds) != self.steps:
            raise InputError("noise std", f"needs one value for each of {self.steps} steps", len(stds))

    # What follows from the description.

    @property
    def divisor(self) -> float:
        """The public number that summed gradients are divided by."""
        match self.batching:
            case FullBatch():
                return float(self.n)
            case Poisson(rate):
                return rate * self.n
            case batching:
                return float(batching.size)

    @property
    def blocks(self) -> int:
        """Batches in one pass over the data (1 for full batches, and for batches drawn afresh)."""
        match self.batching:
            case Cyclic(size) | Permuted(size) | Reshuffled(size) | BallsInBins(size):
                return -(-self.n // size)
            case _:
                return 1

    @property
    def shares(self) -> tuple[float, float]:
        """The fewest and the most records that a step's batch can hold, over the public divisor."""
        match self.batching:
            case FullBatch() | FixedSize():
                return 1.0, 1.0
            case Cyclic(size) | Permuted(size) | Reshuffled(size):
                return (self.n - size * (self.blocks - 1)) / size, 1.0
            case BallsInBins() | Poisson():
                return 0.0, self.n / self.divisor

    @property
    def constant(self) -> bool:
        """Whether step size and noise are the same at every step."""
        varied = isinstance(self.noise, GradientNoise) and isinstance(self.noise.std, tuple)
        return isinstance(self.step_size, Constant) and not varied

    def facts(self) -> LossFacts:
        """The constants that hold for this run, after clipping and the conversion to its adjacency."""
        return self._facts

    @cached_property
    def _facts(self) -> LossFacts:
        facts = self.loss.facts()
        lipschitz = self.lipschitz(facts)
        kept = facts
        if self.clip is not None:
            scalar = isinstance(self.loss, Logistic | HuberRidge) or self.clipping_is_idle(facts)
            kept = after_clipping(facts, scalar_residual=scalar)
        return replace(kept, lipschitz=lipschitz, sensitivity=self._sensitivity(facts.sensitivity, lipschitz))

    def clipping_is_idle(self, facts: LossFacts) -> bool:
        """Whether an enforced Lipschitz constant already lies below the clip, so that clipping never acts."""
        bound = facts.lipschitz
        enforced = isinstance(bound, Fact) and bound.evidence >= Evidence.ENFORCED
        return self.clip is not None and enforced and facts.fact("lipschitz") <= self.clip

    def lipschitz(self, facts: LossFacts) -> Fact | None:
        """Bound on one record's (clipped) data gradient: the smaller of the loss's constant and the clip."""
        known = facts.lipschitz
        assert known is None or isinstance(known, Fact)
        if self.clip is None:
            return known
        clipped = mint(self.clip, Evidence.ENFORCED, "per-example gradients are clipped")
        return known if known is not None and known.value < clipped.value else clipped

    def _sensitivity(self, given: Fact | float | None, lipschitz: Fact | None) -> Fact | None:
        assert given is None or isinstance(given, Fact)
        displaces = isinstance(self.batching, FixedSize)
        moved = records_moved(self.adjacency, displaces=displaces)
        if given is not None and moved > records_moved(self.adjacency):
            given = Fact(2 * given.value, f"twice {given.why}: a drawn record displaces another")
        derived = None
        if lipschitz is not None:
            slack = 1 + FLOAT_SLACK if lipschitz.evidence >= Evidence.ENFORCED else 1.0
            value = moved * lipschitz.value * slack
            rule = f"{'2 L' if moved == 2 else 'L'} under {self.adjacency}"
            derived = mint(value, lipschitz.evidence, f"{rule}, L = {lipschitz.value:g}: {lipschitz.why}")
        if given is None or derived is None:
            return derived if given is None else given
        low, high = sorted((given, derived), key=lambda fact: fact.value)
        return mint(low.value, low.evidence, f"{low.why} (the larger, {high.value:g}, is not used)")

    def noise_std(self, step: int) -> float:
        """Standard deviation, per coordinate, of the noise on the mean gradient at a step (0-based)."""
        match self.noise:
            case GradientNoise(std):
                return std[step] if isinstance(std, tuple) else std
            case Langevin(sigma):
                return sigma * math.sqrt(2.0 / self.step_size.at(step))
            case NoiseMultiplier(z):
                unit = self.clip
                if unit is None:
                    unit = self.loss.facts().fact("lipschitz", -1.0)
                if unit < 0:
                    raise InputError("noise_multiplier", "needs a clip or a lipschitz constant to multiply", z,
                                     "give --clip, --lipschitz, or the noise itself with --noise-std")
                return z * unit / self.divisor

    @cached_property
    def step_sizes(self) -> Array:
        """The step size of every step; shape (steps,)."""
        match self.step_size:
            case Constant(value):
                return _frozen(np.full(self.steps, value))
            case InverseDecay(beta, strong):
                return _frozen(1.0 / (2.0 * beta + strong * np.arange(self.steps, dtype=np.float64) / 2.0))
            case Steps(values):
                return _frozen(np.array(values, dtype=np.float64))

    @cached_property
    def noise_stds(self) -> Array:
        """``noise_std`` of every step; shape (steps,)."""
        match self.noise:
            case GradientNoise(std) if isinstance(std, tuple):
                return _frozen(np.array(std, dtype=np.float64))
            case Langevin(sigma):
                return _frozen(sigma * np.sqrt(2.0 / self.step_sizes))
            case _:
                return _frozen(np.full(self.steps, self.noise_std(0)))

    # JSON.

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``Run.from_dict`` gives the same run back."""
        return codec.encode(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """Read a description; every constant in it is the caller's word (``ASSUMED``)."""
        run = codec.decode(data, "run", _CLASSES)
        if not isinstance(run, cls):
            raise InputError("run", "must be a JSON object with \"type\": \"Run\"", type(data).__name__)
        return run

    @classmethod
    def from_json(cls, text: str) -> Run:
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise InputError("run", "must be valid JSON", str(error), "write one with Run.to_json()") from None


_KINDS: dict[str, tuple[type, ...]] = {
    "step_size": get_args(StepSize), "noise": get_args(Noise), "batching": get_args(Batching),
    "domain": get_args(Domain), "prox": get_args(Prox), "start": get_args(Start), "momentum": get_args(Momentum),
    "prelude": (Prelude,), "loss": get_args(Loss),
}
_CLASSES: dict[str, type] = {kind.__name__: kind for kinds in _KINDS.values() for kind in kinds} \
    | {kind.__name__: kind for kind in (Run, LossFacts, Fact)}


def _frozen(values: Array) -> Array:
    values.setflags(write=False)
    return values


def data_term_ridge(loss: Loss) -> float:
    """The ridge that the trainer adds outside the records (0 for a loss known only by its constants)."""
    return loss.ridge if isinstance(loss, Logistic | Softmax | HuberRidge) else 0.0
