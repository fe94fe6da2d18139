"""A run as its description says it is, and the constants that follow for every data set.

Nothing here reads a verdict of the certificate. Bounds that the trainer enforces (clipped rows,
clipped gradients) are marked ENFORCED, what the releaser states ASSUMED or TESTED; what follows
from a released measurement is PAID.
"""

from __future__ import annotations

import math
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flint import arb

Array, Body = np.ndarray, dict[str, Any]
SLACK = 1.25 * 2.0**-7
"""The trainer adds gradients in float32, in chunks of 256 rows: a neighbour's computed sum may be
farther away than the exact one by 2 gamma_256 * 256 L < 2^-7 (1 + 2^-15) L (Higham 2002, section
3.1); a quarter more for all else."""
TABLE = tomllib.loads(Path(__file__).with_name("theorems.toml").read_text(encoding="utf-8"))
STRENGTH = list(TABLE["evidence"])


class NotCovered(Exception):
    """What this program does not speak about."""


class BadInput(Exception):
    """What is no certificate."""


class Fails(Exception):
    """An assumption does not hold: the theorem does not speak of the run."""


def number(body: Body, name: str, default: float | None = None, low: float = 0.0) -> float:
    """A finite number of a description."""
    value = body.get(name, default)
    if type(value) not in (int, float) or not low <= value < math.inf:
        raise BadInput(f"{body.get('type', 'run')}.{name}: must be a number of at least {low:g}")
    return float(value)


def whole(body: Body, name: str, default: int | None = None, low: int = 1) -> int:
    """An integer of a description."""
    value = body.get(name, default)
    if type(value) is not int or not low <= value <= 10**12:
        raise BadInput(f"{body.get('type', 'run')}.{name}: must be an integer of at least {low}")
    return value


class Fact(NamedTuple):
    """A number that holds for every data set, how well it is known, and why."""

    value: float
    evidence: str
    why: str


def by_foundation(fact: Fact) -> tuple[int, float]:
    """Order two bounds of one thing: enforced ones first, then better evidence, then the
    smaller."""
    return -min(STRENGTH.index(fact.evidence), STRENGTH.index("ENFORCED")), fact.value


class Run:
    """What a description says: fields by their names, the table's parts among them, and what every
    theorem asks."""

    def __init__(self, body: Body, adjacency: str | None = None) -> None:
        if not isinstance(body, dict) or body.get("type") != "Run":
            raise BadInput('run: must be an object with "type": "Run"')
        self.body = body
        for name, default in TABLE["parts"].items():
            part = body.get(name) or {"type": default}
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise BadInput(f"run.{name}: must be an object with a type")
            setattr(self, name, part)
        self.n, self.steps = whole(body, "n"), whole(body, "steps")
        self.unit_rows = whole(body, "rows_per_unit", 1)
        self.clip = None if body.get("clip") is None else number(body, "clip")
        self.update, self.prox = body.get("update"), body.get("prox")
        self.release, self.calibration = body.get("release", "last"), body.get("calibration")
        self.prelude, self.counts = body.get("prelude") or [], body.get("counts") or []
        self.relative = self.step_size["type"] == "RelativeToSmooth"
        self.independent = self.noise["type"] != "Correlated"  # of the other steps' noise
        self.adjacency = adjacency or body.get("adjacency", "zero-out")
        if self.adjacency not in ("zero-out", "replace-one", "add-remove"):
            raise BadInput("run.adjacency: must be zero-out, replace-one or add-remove")
        # how many records' contributions a sum changes by: one is taken out, and one put in
        self.moved = 2 if self.adjacency == "replace-one" else 1
        self.read_batches()

    def read_batches(self) -> None:
        """How batches are drawn, and how many records they hold."""
        self.kind = kind = self.batching["type"]
        if kind not in TABLE["batches"]:
            raise NotCovered(f"batches of the kind {kind}")
        if self.adjacency == "add-remove" and kind not in ("Poisson", "RandomAllocation"):
            raise BadInput("run.adjacency: add-remove is for Poisson batches and random allocation")
        self.drawn = TABLE["batches"][kind][2]
        self.random_sizes = kind in ("BallsInBins", "RandomAllocation", "Poisson")
        self.size = self.n if kind in ("FullBatch", "Poisson") else whole(self.batching, "size")
        # the probability that a step draws a record, and what sums of gradients are divided by
        self.rate = number(self.batching, "rate") if kind == "Poisson" else self.size / self.n
        self.divisor = self.rate * self.n if kind == "Poisson" else float(self.size)
        if not 0 < self.rate <= 1:
            raise BadInput("run.batching: must draw at most n records, and some")
        # batches of one pass, and passes that are begun
        self.blocks = 1 if self.drawn == "step" else -(-self.n // self.size)
        self.passes = -(-self.steps // self.blocks)
        # the fewest and the most records of a batch, over the divisor
        last = self.n - self.size * (self.blocks - 1)
        self.shares = (0.0, self.n / self.divisor) if self.random_sizes else (1.0, 1.0)
        if kind in ("Cyclic", "Permuted", "Reshuffled"):
            self.shares = (last / self.size, 1.0)

    @cached_property
    def place_weights(self) -> Array:
        """The probability of every block for one record."""
        if self.random_sizes:
            return np.full(self.blocks, 1 / self.blocks)
        counts = np.full(self.blocks, float(self.size))
        counts[-1] = self.n - self.size * (self.blocks - 1)
        return counts / self.n

    # Steps and noise.

    @cached_property
    def etas(self) -> Array:
        """The step size of every step; one entry where it is constant."""
        kind = self.step_size["type"]
        if self.relative:
            return np.ones(1)
        if kind == "Constant":
            return np.array([number(self.step_size, "value")])
        if kind == "InverseDecay":
            beta, strong = number(self.step_size, "beta"), number(self.step_size, "strong")
            if self.steps > 10**7:
                raise NotCovered("more than 10,000,000 different steps")
            return 1.0 / (2.0 * beta + strong * np.arange(self.steps) / 2.0)
        if kind == "Steps" or (kind == "StableSteps" and self.update):
            return self.listed(self.step_size.get("values"), "step_size")
        raise NotCovered(f"step sizes of the kind {kind}")

    def listed(self, values: Any, name: str) -> Array:
        """One number for every step."""
        if not isinstance(values, list) or len(values) != self.steps:
            raise BadInput(f"run.{name}: needs one value for each of {self.steps} steps")
        array = np.array([number({"type": name, "value": value}, "value") for value in values])
        return array[:1] if name == "noise" and (array == array[0]).all() else array

    @cached_property
    def unit(self) -> float | None:
        """What a noise multiplier multiplies: the clipping norm, else the loss's Lipschitz
        constant."""
        given = self.constants.get("lipschitz")
        return self.clip if self.clip is not None else None if given is None else given.value

    @cached_property
    def stds(self) -> Array:
        """The noise on the mean gradient at every step; one entry where it is always the same."""
        kind = self.noise["type"]
        if kind == "GradientNoise":
            if isinstance(self.noise.get("std"), list):
                return self.listed(self.noise["std"], "noise")
            return np.array([number(self.noise, "std")])
        if kind == "Langevin":
            return number(self.noise, "sigma") * np.sqrt(2 / self.etas)
        if kind in ("NoiseMultiplier", "Correlated"):
            if self.unit is None:
                raise NotCovered("a noise multiplier without a clip or a Lipschitz constant")
            return np.array([number(self.noise, "z") * self.unit / self.divisor])
        raise NotCovered(f"noise of the kind {kind}")

    @property
    def constant(self) -> bool:
        """Whether step size and noise are the same at every step."""
        return self.etas.size == 1 and self.stds.size == 1

    def each(self, values: Array) -> Array:
        """One entry per step."""
        if self.steps > 10**7:
            raise NotCovered("more than 10,000,000 steps one by one")
        return np.broadcast_to(values, (self.steps,)) if values.size == 1 else values

    @property
    def temperature(self) -> float:
        """sigma^2, where every step adds sqrt(2 step) sigma N(0, I) to the parameters, else 0."""
        if self.noise["type"] == "Langevin":
            return number(self.noise, "sigma") ** 2
        return float(self.etas[0] * self.stds[0] ** 2 / 2) if self.constant else 0.0

    # Constants of the loss.

    @cached_property
    def ridge(self) -> float:
        """The ridge that is added outside of records."""
        outside = self.loss["type"] != "Abstract" and not self.relative
        return number(self.loss, "ridge", 0.0) if outside else 0.0

    @cached_property
    def row(self) -> float:
        """The largest norm of a row with its intercept."""
        return math.hypot(number(self.loss, "row_norm", 1.0), number(self.loss, "intercept", 1.0))

    @cached_property
    def curvature(self) -> float:
        """How steep a linear model's loss is in its scores: the largest eigenvalue of its second
        derivative."""
        cap = None if self.loss.get("cap") is None else number(self.loss, "cap")
        if cap is not None and not 1e-6 <= cap < 1:
            raise BadInput("loss.cap: must lie between 1e-6 and 1")
        most = {"Logistic": 0.25, "Softmax": 0.5, "HuberRidge": 1.0}[self.loss["type"]]
        if cap is None or cap >= 0.5:
            return most
        return cap * (1 - cap) if self.loss["type"] == "Logistic" else 2 * cap * (1 - cap)

    @cached_property
    def constants(self) -> dict[str, Fact]:
        """The loss's own constants: lipschitz, smooth, strong, weak_convexity, sensitivity,
        log_sobolev, hoelder."""
        kind = self.loss["type"]
        if kind == "Abstract":
            stated, known = self.loss.get("constants") or {}, {"TestedFact": "TESTED"}
            given = {name: x for name, x in stated.items() if isinstance(x, dict) and "value" in x}
            return {
                name: Fact(number(x, "value"), known.get(x["type"], "ASSUMED"), str(x.get("why")))
                for name, x in given.items()
            }
        steep = {"Logistic": 1.0, "Softmax": math.sqrt(2)}
        steep["HuberRidge"] = number(self.loss, "residual_clip", 1.0)
        if kind not in steep:
            raise NotCovered(f"a loss of the kind {kind}")
        cap = 1.0 if self.loss.get("cap") is None else number(self.loss, "cap")
        lipschitz, ridge = steep[kind] * cap * self.row, number(self.loss, "ridge", 0.0)
        why = "rows are clipped before training"
        return {
            "lipschitz": Fact(lipschitz, "ENFORCED", why),
            "smooth": Fact(self.curvature * self.row**2 + ridge, "ENFORCED", why),
            "strong": Fact(ridge, "PROVED", "a convex data term and the ridge"),
            "weak_convexity": Fact(0.0, "PROVED", "a convex data term"),
        }

    @cached_property
    def lipschitz(self) -> Fact | None:
        """A bound on one record's contribution: the clip, or a smaller constant that is as well
        founded."""
        given = self.constants.get("lipschitz")
        if self.clip is None:
            return given
        clipped = Fact(self.clip, "ENFORCED", "every record's gradient is clipped")
        return clipped if given is None else min(clipped, given, key=by_foundation)

    @cached_property
    def sensitivity(self) -> Fact | None:
        """How far neighbours move a sum of contributions."""
        stated, bound = self.constants.get("sensitivity"), self.lipschitz
        if bound is None:
            return stated
        slack = SLACK if bound.evidence in ("ENFORCED", "PROVED") else 0.0
        why = f"one record's part, {self.moved:g} x {bound.value:g} and rounding: {bound.why}"
        derived = Fact(self.moved * bound.value * (1 + slack), bound.evidence, why)
        return derived if stated is None else min(derived, stated, key=by_foundation)

    @cached_property
    def squared_ratios(self) -> Array:
        """(S / (b std))^2 of every step, or one entry where all are the same."""
        with np.errstate(divide="ignore"):
            return (self.sensitivity.value / self.divisor / self.stds) ** 2 * (1 + 1e-14)

    def ratio_of_step(self) -> arb:
        """S / (b std): what one participation adds, over the noise of its own step."""
        if self.stds[0] == 0:
            raise NotCovered("steps without noise")
        return arb(self.sensitivity.value) / (arb(self.divisor) * arb(float(self.stds[0])))

    def multipliers(self, first: int, share: float) -> Array:
        """The noise over the sensitivity of every step from ``first`` on."""
        if self.sensitivity.value == 0:
            raise NotCovered("records without a contribution")
        unit = self.divisor / self.sensitivity.value * math.sqrt(share) * (1 - 1e-14)
        return self.each(self.stds)[first:] * unit

    @cached_property
    def clip_acts(self) -> bool:
        """Whether per-record clipping may change the field of gradients: not that of a scalar
        residual (PROOFS B3),
        and not where an enforced bound lies below the clip."""
        if self.clip is None or self.loss["type"] in ("Logistic", "HuberRidge"):
            return False
        given = self.constants.get("lipschitz")
        idle = given is not None and given.evidence == "ENFORCED" and given.value <= self.clip
        return not idle

    def smooth_facts(self) -> dict[str, Fact]:
        """smooth, strong, weak_convexity as they survive clipping (none of them where it may
        act)."""
        return {} if self.clip_acts else self.constants

    @property
    def strong(self) -> float:
        """How strongly convex the loss is known to be, after clipping."""
        fact = self.smooth_facts().get("strong")
        return 0.0 if fact is None else fact.value

    @cached_property
    def diameter(self) -> float:
        """The diameter of the domain that every step is projected on, rounded up."""
        kind = self.domain["type"]
        if kind == "Everywhere":
            return math.inf
        if kind == "Ball":
            return 2 * number(self.domain, "radius")
        if kind == "Simplex":
            return number(self.domain, "total", 1.0) * math.sqrt(2) * (1 + 1e-15)
        if kind == "Box":
            if self.domain.get("dimension") is None:
                return math.inf
            low, high = (number(self.domain, end, low=-math.inf) for end in ("low", "high"))
            return (high - low) * math.sqrt(whole(self.domain, "dimension")) * (1 + 1e-15)
        raise NotCovered(f"a domain of the kind {kind}")

    @cached_property
    def shrinks(self) -> float:
        """w of the part w/2 |theta|^2 of the proximal term."""
        if self.prox is None:
            return 0.0
        names = {"L2Squared": "weight", "ElasticNet": "l2"}
        kind = self.prox.get("type")
        if kind not in ("L1", "GroupLasso", "NuclearNorm", *names):
            raise NotCovered(f"a proximal term of the kind {kind}")
        return number(self.prox, names[kind]) if kind in names else 0.0


class StepMap:
    """Bounds on the Hessian of a step's data term: the Lipschitz constant of the step follows
    (PROOFS B)."""

    def __init__(self, run: Run, shares: tuple[float, float] | None = None) -> None:
        facts, ridge = run.constants, run.ridge
        if run.relative:
            if run.clip_acts:
                raise NotCovered("steps relative to a smoothness that clipping loses")
            low, high, shares = 0.0, number(run.step_size, "relative"), (1.0, 1.0)
            why = "the largest eigenvalue is measured, and steps follow it"
            self.facts = [Fact(high, "PAID", why)]
        else:
            if "smooth" not in facts:
                raise NotCovered("a loss whose smoothness is not stated")
            high, low = facts["smooth"].value - ridge, -facts["smooth"].value
            if "strong" in facts:
                low = facts["strong"].value - ridge
            elif "weak_convexity" in facts:
                low = -facts["weak_convexity"].value
            used = ("smooth", "strong" if "strong" in facts else "weak_convexity")
            self.facts = [facts[name] for name in used if name in facts]
        fewest, most = run.shares if shares is None else shares
        self.ridge, self.clipped = ridge, run.clip_acts
        self.low, self.high = low * (fewest if low > 0 else most), high * most

    def lipschitz(self, eta: Array) -> Array:
        """Upper ends of the Lipschitz constants of steps of these sizes.

        A difference 1 - eta h carries an absolute error of a few ulp of 1 + eta |h|, which is
        added.
        """
        eta = np.asarray(eta, dtype=float)
        if not self.clipped:
            ends = (abs(1 - eta * (self.ridge + h)) for h in (self.low, self.high))
            constants = np.maximum(*ends)
        else:
            shrink = 1 - eta * self.ridge
            inner = clipped_step(eta / np.where(shrink > 0, shrink, 1.0), self.low, self.high)
            beyond = -shrink + eta * max(abs(self.low), abs(self.high))
            constants = np.where(shrink > 0, shrink * inner, beyond)
        error = 2.0**-51 * (1 + eta * (abs(self.low) + abs(self.high) + self.ridge))
        exact = constants == 1.0  # 1 - 0: convex data terms without a ridge
        return np.where(exact, 1.0, constants + error)


def clipped_step(eta: Array, low: float, high: float) -> Array:
    """Lip of x - eta clip(grad f(x)), low <= Hess f <= high (PROOFS B1): max(1, |1 - A|, |1 -
    B|, sqrt q)."""
    a, b = eta * high, eta * low
    plain = np.maximum(1.0, np.maximum(abs(1 - a), abs(1 - b)))
    total = a + b
    with np.errstate(divide="ignore", invalid="ignore"):
        q = 1 + (a - b) ** 2 / (total * (4 - total))
        turn = 1 - q * (2 - total) / 2
    rotates = (total > 0) & (total < 4) & (b <= turn + 1e-11) & (turn <= a + 1e-11)
    return np.where(rotates, np.maximum(plain, np.sqrt(np.where(rotates, q, 1.0))), plain)
