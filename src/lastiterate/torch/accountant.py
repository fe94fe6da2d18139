"""An accountant for Opacus: read its configuration and loaders, certify what they execute."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from opacus.accountants.accountant import IAccountant
from opacus.accountants.registry import register_accountant
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer

from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.sampled_batches import Pld
from lastiterate.errors import InputError
from lastiterate.lazy import RenamedAttribute
from lastiterate.run.batching import Batching, FixedSize, FullBatch, Poisson
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.noise import GradientNoise, NoiseMultiplier
from lastiterate.run.run import Run
from lastiterate.run.updates import Adam, HeavyBall, PostProcessing, Update
from lastiterate.torch.loader_batching import (
    BatchCount,
    LoaderBatching,
    check_rates,
    count_batches,
    describe_loader,
)

# An accountant for Opacus: privacy loss distributions for Poisson batches, the full charge for all
# others.


MECHANISM = "lastiterate"
"""Its name in Opacus' registry: ``PrivacyEngine(accountant="lastiterate")``."""
History = list[tuple[float, float, int]]
SEVERAL = "may be in several that are added up"
COMPOSED = "li.curves.compose(first.accountant.curve(), second.accountant.curve())"
"""How the curves of two engines are added up."""
OTHER_RATE = "must be the one whose batches are read: they were drawn at a larger rate than counted"
OTHER_NORM = (
    "must keep its clipping norm: noise was added in units of another norm than records were "
    "clipped to"
)


class OpacusAccountant(IAccountant):
    """An accountant for Opacus that looks at the batches the data loader really draws.

    Opacus hands over a noise multiplier and 1 / len(data_loader), whatever the loader draws. After
    ``watch(data_loader)`` Poisson batches are composed by their privacy loss distributions. A
    loader that shuffles, or reads in order, is charged in full for every epoch that begins. Every
    step is compared with the batches that the loader drew: one that adds several up is refused.
    Worker processes read ahead: so many batches at the end of a pass are not compared. Until you
    call ``watch`` Poisson batches are assumed, and a warning says that epsilon is unproved.
    ``PrivacyEngine(accountant="lastiterate")`` uses it.

    Notes
    -----
    **Guarantee:** an upper bound for all iterates, under "add-remove" (Poisson batches) or
    "zero-out" (others), if the training is executed as described: batches as the watched loader
    draws them, one step for each, clipped gradients and Gaussian noise. The multiplier is lowered
    by an allowance for sums in single precision.

    Examples
    --------
    >>> from lastiterate.torch import OpacusAccountant
    >>> accountant = OpacusAccountant()
    >>> for _ in range(3):
    ...     accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    >>> len(accountant), 0.1 < accountant.poisson_epsilon(1e-5) < 1.0
    (3, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.history: History = []
        self._drawn: LoaderBatching | None = None
        self._rates = set[float]()  # of Poisson loaders that were watched
        self._counts = list[BatchCount]()  # of passes whose batches a next step may use
        self._optimizer: Any = None
        self._norm: Any = None  # the clipping norm of the step before
        self._shuffled: bool | None = None  # whether batches are Poisson ones, if it is known
        self._miscounted = ""  # what was wrong with a step of the optimizer
        self._unseen = 0  # steps that were made while no loader was watched
        self.added_up = False  #: whether a step was made with several batches
        self.repeated = False  #: whether a step was made without a batch of its own
        self.passes: list[
            int
        ] = []  #: steps that were counted when passes began; twice where two were open at once

    def watch(self, data_loader: object) -> OpacusAccountant:
        """Account for the batches that ``data_loader``, from ``make_private``, really draws.

        Where one engine trains in several stages, watch the Poisson loader of each.
        """
        drawn = describe_loader(data_loader)
        self._check_same(drawn.shuffled)
        self._drawn = drawn
        count_batches(data_loader, drawn.shuffled, self._begin_pass)
        if not drawn.shuffled:
            self._rates |= drawn.rates
        return self

    def _check_same(self, shuffled: bool) -> None:
        """Refuse Poisson batches after others, and others after them."""
        if self._shuffled not in (None, shuffled):
            raise InputError(
                "data_loader",
                f"must draw as the one that was watched before, {_kind(self._shuffled)}",
                _kind(shuffled),
                f"use an engine for each: {COMPOSED}",
            )
        self._shuffled = shuffled

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """Return what the optimiser of ``make_private`` calls before every step.

        It refuses clipping norms that are learned from the data: the share of clipped records is
        divided by how many were drawn, and no theorem here covers that.
        """
        count = super().get_optimizer_hook_fn(sample_rate)

        def check_and_count(optimizer: Any) -> None:
            if isinstance(optimizer, AdaClipDPOptimizer):
                raise InputError(
                    "optimizer",
                    "must keep one clipping norm: an adaptive one follows from how many records "
                    "were drawn, which no theorem here covers",
                    type(optimizer).__name__,
                    'give make_private clipping="flat", or another accountant',
                )
            self._optimizer = optimizer
            self._compare_norms(optimizer)
            self.added_up = self.added_up or optimizer.accumulated_iterations > 1
            count(optimizer)

        return check_and_count

    def _compare_norms(self, optimizer: Any) -> None:
        """Note a clipping norm that noise follows and clips do not: only a step that clips and adds
        noise at once has one norm for both."""
        norms = getattr(optimizer, "max_grad_norms", ())
        before, self._norm = self._norm, (optimizer.max_grad_norm, *norms)
        at_once = type(optimizer) is DPOptimizer and not optimizer._is_last_step_skipped
        larger = math.hypot(*norms) > optimizer.max_grad_norm * (1 + 1e-6)  # in single precision
        if larger or (before not in (None, self._norm) and not at_once):
            self._miscounted = OTHER_NORM

    def _begin_pass(self, begun: BatchCount) -> None:
        overlapping = any(count.open and not count.exhausted for count in self._counts)
        again = overlapping or len(self) not in self.passes  # one that was over took no part
        if self._drawn is not None and self._drawn.shuffled and again:
            self.passes.append(len(self))
        # A part of a batch that Opacus holds, or a batch without a step, would join the next one.
        if getattr(self._optimizer, "_is_last_step_skipped", False) or any(
            count.exhausted and count.steps and count.unused for count in self._counts
        ):
            self.added_up = True
        self._counts.append(begun)

    def _use_batch(self, rate: float) -> None:
        """Compare a step with the batches that were drawn for it: it must have one of its own, at
        the rate that is counted."""
        left = [count for count in self._counts if count.unused]
        used = [count for count in left if count.open] or left
        if not used:
            self.repeated = True
        elif len(used) > 1 or used[0].unused > 1 + used[0].ahead:
            self.added_up = True
        for count in used:
            if count.rate > rate + 1e-9:
                self._miscounted = OTHER_RATE
            count.unused -= 1
            count.steps += 1
        self._counts = [count for count in self._counts if count.open or count in used]

    def check_steps(self) -> None:
        """Refuse steps with several batches, without a batch of their own, at another rate or with
        another clipping norm than is counted."""
        if self._miscounted:
            raise InputError(
                "optimizer and data_loader" if self._miscounted == OTHER_RATE else "optimizer",
                self._miscounted,
                None,
                "train every stage with the optimizer and the loader of one make_private, and an "
                f"engine for each clipping norm: {COMPOSED}",
            )
        if self.added_up:
            raise InputError(
                "data_loader",
                "must have a step with every batch: batches were added up before a step, or left out",
                None,
                f"call optimizer.step() after every backward(), and leave signal_skip_step() to "
                f"BatchMemoryManager: a record {SEVERAL}",
            )
        if self.repeated:
            raise InputError(
                "data_loader",
                "must be the one that is read, with one step for every batch: steps were made for "
                "which it drew none",
                None,
                "watch the loader that make_private returned, before its first batch, and give every "
                "step a batch of its own",
            )

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step of the optimiser."""
        if self._drawn is None:
            self._unseen += 1
        else:
            self._use_batch(sample_rate)
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            noise_multiplier, sample_rate, steps = self.history.pop()
            self.history.append((noise_multiplier, sample_rate, steps + 1))
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, **options: object) -> float:
        """Return epsilon at ``delta`` of all steps so far, with a warning where it is assumed."""
        unproved = self._list_assumptions()
        epsilon = self.curve().epsilon(delta)
        if unproved:
            warnings.warn(f"epsilon is unproved: {unproved}", UserWarning, stacklevel=2)
        if self._drawn is not None and self._drawn.shuffled:
            warnings.warn(
                "the data loader draws no Poisson batches: every pass is charged in full, "
                f"epsilon {epsilon:.3g}, where accounting for Poisson batches would claim "
                f"{self.poisson_epsilon(delta):.3g}",
                UserWarning,
                stacklevel=2,
            )
        return epsilon

    def _list_assumptions(self) -> str:
        """What an epsilon takes on trust, or nothing."""
        if self._drawn is None:
            return (
                "Poisson batches are assumed, with one step for each; after make_private, call "
                "engine.accountant.watch(data_loader) before the first step"
            )
        found = list[str]()
        if self._unseen:
            taken = "whole passes" if self._drawn.shuffled else "one Poisson batch each"
            found.append(f"{self._unseen} steps before watch() are taken for {taken}")
        ahead = sum(count.unused for count in self._counts if count.exhausted and count.steps)
        if ahead:
            found.append(
                f"{ahead} batches that were read in the last pass are taken for unused; "
                "finish the pass"
            )
        return ", and ".join(found)

    claimed = RenamedAttribute("poisson_epsilon")

    def poisson_epsilon(self, delta: float) -> float:
        """Return the epsilon that the same history would have with Poisson batches."""
        return poisson_curve(self.history).epsilon(delta)

    def curve(self) -> Curve:
        """Return the privacy curve of all steps so far."""
        self.check_steps()
        if self._drawn is None:
            return poisson_curve(self.history)
        drawn = self._drawn
        check_rates(
            self.history,
            drawn.rates if drawn.shuffled else self._rates,
            "watch the loader that make_private returned, of every stage of the training, and take "
            f"a step with every batch: a record {SEVERAL}. Stages that shuffle need an engine "
            f"each: {COMPOSED}",
        )
        return (
            full_curve(self.history, drawn.batches, self.passes)
            if drawn.shuffled
            else poisson_curve(self.history)
        )

    def state_dict(self, destination: Any = None) -> Any:
        """Return the state as Opacus does, with the counted epochs."""
        state = super().state_dict(destination)
        state["passes"] = list(self.passes)
        state["added_up"] = self.added_up
        state["repeated"] = self.repeated
        state["unseen"] = self._unseen
        state["shuffled"] = self._shuffled
        state["miscounted"] = self._miscounted
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Resume from a state of ``state_dict``."""
        passes = list(state_dict.get("passes", ()))
        shuffled = state_dict.get("shuffled", True if passes else None)
        if shuffled is not None:
            self._check_same(bool(shuffled))
        super().load_state_dict(state_dict)
        self.passes = passes
        self._miscounted = str(state_dict.get("miscounted", ""))
        self.added_up = bool(state_dict.get("added_up", False))
        self.repeated = bool(state_dict.get("repeated", False))
        self._unseen = int(state_dict.get("unseen", len(self)))

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name in Opacus' registry."""
        return MECHANISM


def _kind(shuffled: bool | None) -> str:
    return "batches of whole passes" if shuffled else "Poisson batches"


def poisson_curve(history: History) -> Curve:
    """Steps (noise multiplier, rate, how many) on Poisson batches; a rate of 1 is a full batch."""
    curves = list[Curve]()
    for rate, steps in groupby(
        sorted(history, key=lambda step: (step[1], step[0])), key=lambda step: step[1]
    ):
        counts = dict[float, int]()
        for z, _, count in steps:
            counts[z] = counts.get(z, 0) + count
        if min(counts) <= 0:
            return Gdp(math.inf)
        if rate >= 1:
            curves.append(
                Gdp((1 + FLOAT_SLACK) * math.sqrt(sum(n / z**2 for z, n in counts.items())))
            )
        else:
            curves.append(
                Pld(rate, tuple(z / (1 + FLOAT_SLACK) for z in counts), tuple(counts.values()))
            )
    return compose(*curves)


def full_curve(history: History, batches: int, passes: Sequence[int] = ()) -> Curve:
    """A record takes part once in every pass of ``batches`` steps or fewer, and there where the
    noise is least.

    ``passes``: the steps that passes began with; where none is named passes are whole. Of several
    that were open at once a record may be in one step, as often as there are such passes.
    """
    each = np.repeat([float(z) for z, _, _ in history], [count for _, _, count in history])
    if each.size == 0:
        return Gdp(0.0)
    starts = sorted({0, each.size, *(place for place in passes if place < each.size)})
    for begin, end in pairwise(starts):
        each[begin:end] /= max(passes.count(begin), 1)
    least = np.minimum.reduceat(
        each, [at for begin, end in pairwise(starts) for at in range(begin, end, batches)]
    )
    if least.min() <= 0:
        return Gdp(math.inf)
    return Gdp(float((1 + FLOAT_SLACK) * math.sqrt((least**-2.0).sum()) * (1 + 1e-12)))


register_accountant(MECHANISM, OpacusAccountant, force=True)


# A run from what other libraries are configured with: Opacus, jax-privacy, dp-accounting.
# ``account``, ``report`` and ``audit`` then speak of that run: what they say holds if it is
# executed as described. Known are the exact classes; what a configuration does beyond them is
# refused, not guessed.


OPTIMIZERS = ("DPOptimizer", "DPPerLayerOptimizer", "DPOptimizerFastGradientClipping")
"""Optimizers of Opacus whose noise is the noise multiplier times one clipping norm."""


def describe(
    configuration: Any,
    *,
    optimizer: object = None,
    data_loader: object = None,
    n: int | None = None,
    steps: int | None = None,
) -> Run:
    """Describe the configuration of another library as a run.

    Parameters
    ----------
    configuration : PrivacyEngine, DpEvent or DPKerasConfig
        Opacus' engine; an event of dp-accounting (Gaussian steps on Poisson, fixed-size or full
        batches), or a plan of jax-privacy that holds one; or jax-privacy's Keras configuration.
    optimizer : object, optional
        Optimiser that ``make_private`` returned, for Opacus.
    data_loader : object, optional
        Data loader that ``make_private`` returned, for Opacus.
    n : int, optional
        Number of records, for an event.
    steps : int, optional
        Number of steps; by default those that the engine's accountant has counted.

    Returns
    -------
    Run
        Run for `lastiterate.account`, with the optimiser of an engine as its update: Adam and
        momentum as such, all others by name. All iterates count as released unless the optimiser
        is plain SGD.

    Raises
    ------
    InputError
        If the configuration is of another class, or has a part that a run cannot express.

    Notes
    -----
    **Guarantee:** the account holds if the training is executed as the configuration describes.

    Examples
    --------
    >>> import dp_accounting
    >>> from lastiterate.torch import describe
    >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    >>> run = describe(dp_accounting.SelfComposedDpEvent(step, 100), n=1000)
    >>> run.batching, run.noise, run.steps
    (Poisson(rate=0.01), NoiseMultiplier(z=1.0), 100)
    """
    package = type(configuration).__module__.split(".")[0]
    if package == "opacus":
        return _opacus(configuration, optimizer, data_loader, steps)
    if hasattr(configuration, "dp_event"):
        configuration = configuration.dp_event
    if hasattr(configuration, "train_size") and hasattr(configuration, "clipping_norm"):
        return _keras(configuration)
    if type(configuration).__module__.startswith("dp_accounting"):
        return _event(configuration, n, steps)
    raise InputError(
        "configuration",
        "must be a PrivacyEngine, a DPKerasConfig, or hold a DpEvent",
        type(configuration).__name__,
    )


def _opacus(engine: Any, optimizer: Any, data_loader: Any, steps: int | None) -> Run:
    if type(engine).__name__ != "PrivacyEngine":
        raise InputError(
            "configuration", "must be a PrivacyEngine of Opacus", type(engine).__name__
        )
    if optimizer is None or type(optimizer).__name__ not in OPTIMIZERS:
        raise InputError(
            "optimizer",
            "must be what make_private returned, with one clipping norm that stays",
            type(optimizer).__name__,
            "adaptive clipping spends budget of its own",
        )
    if data_loader is None:
        raise InputError(
            "data_loader",
            "is needed: what it draws decides the answer",
            None,
            "give the one that make_private returned",
        )
    drawn, history = describe_loader(data_loader), list(engine.accountant.history)
    if isinstance(engine.accountant, OpacusAccountant):
        engine.accountant.check_steps()
    if steps is None:
        check_rates(
            history,
            drawn.rates,
            "a run has one batch size, and one step for each batch: describe every stage with its "
            "own optimizer, data_loader and steps=, and compose the curves of their certificates",
        )
    count = sum(entry[-1] for entry in history) if steps is None else steps
    if count < 1:
        raise InputError("steps", "must be given where the accountant has counted none", count)
    norms = optimizer.max_grad_norm
    clip = float(sum(c * c for c in norms) ** 0.5) if isinstance(norms, list) else float(norms)
    passes = getattr(engine.accountant, "passes", ())
    if drawn.shuffled and (
        any(place % drawn.batches for place in passes) or len({*passes}) < len(passes)
    ):
        raise InputError(
            "configuration",
            "must have read whole passes to be a run",
            None,
            "the accountant's get_epsilon charges every pass that began",
        )
    divisor = drawn.batching.divisor(drawn.n)
    noise: Any = NoiseMultiplier(float(optimizer.noise_multiplier))
    if steps is None and len({entry[0] for entry in history}) > 1:
        noise = GradientNoise(
            tuple(entry[0] * clip / divisor for entry in history for _ in range(entry[-1]))
        )
    update, step_size = _describe_update(optimizer.original_optimizer)
    return Run(
        n=drawn.n,
        steps=count,
        step_size=step_size,
        noise=noise,
        clip=clip,
        batching=drawn.batching,
        optimizer=update,
        release="last" if update is None else "all",
        adjacency="zero-out" if drawn.shuffled else "add-remove",
    )


def _describe_update(optimizer: torch.optim.Optimizer) -> tuple[Update | None, float]:
    """The update rule of an optimizer, with the step size of the run: the rule of a run where that
    is the same one, and its name otherwise."""
    settings = optimizer.param_groups[0]
    decayed = any(settings.get(name) for name in ("weight_decay", "amsgrad", "maximize"))
    if len(optimizer.param_groups) == 1 and not decayed:
        rate = float(settings["lr"])
        if type(optimizer) is torch.optim.SGD and not settings["dampening"]:
            if not settings["momentum"]:
                return None, rate
            if not settings["nesterov"]:
                return HeavyBall(float(settings["momentum"])), rate
        if type(optimizer) is torch.optim.Adam:
            return Adam(*map(float, (*settings["betas"], settings["eps"]))), rate
    return PostProcessing(type(optimizer).__name__), 1.0


def _keras(config: Any) -> Run:
    """jax-privacy's configuration for Keras, which draws Poisson batches itself."""
    if getattr(config, "gradient_accumulation_steps", 1) != 1:
        raise InputError(
            "configuration",
            "must take a step with every batch",
            config.gradient_accumulation_steps,
            "describe the run by hand: batches that are accumulated count as one",
        )
    z = config.noise_multiplier
    return Run(
        n=int(config.train_size),
        steps=int(config.train_steps),
        step_size=1.0,
        noise=None if z is None else NoiseMultiplier(float(z)),
        clip=float(config.clipping_norm),
        batching=Poisson(config.batch_size / config.train_size),
        release="all",
        adjacency="add-remove",
    )


def _event(event: Any, n: int | None, steps: int | None) -> Run:
    """Equal Gaussian steps; their noise multiplier is taken in units of the clipping norm."""
    count = 1
    while type(event).__name__ in ("SelfComposedDpEvent", "ComposedDpEvent"):
        if type(event).__name__ == "SelfComposedDpEvent":
            event, count = event.event, count * event.count
        else:
            parts = list(event.events)
            if not parts or any(part != parts[0] for part in parts):
                raise InputError(
                    "configuration",
                    "must be equal steps",
                    type(event).__name__,
                    "a step of another kind is a release of its own: compose their curves",
                )
            event, count = parts[0], count * len(parts)
    batching, inner, held = _parse_event(event, n)
    if type(inner).__name__ != "GaussianDpEvent":
        raise InputError("configuration", "must be Gaussian steps", type(inner).__name__)
    if steps is not None and steps != count:
        raise InputError("steps", f"must be those of the event, {count}", steps, "leave it out")
    adjacency = (
        "replace-one"
        if isinstance(batching, FixedSize)
        else "add-remove"
        if isinstance(batching, Poisson)
        else "zero-out"
    )
    return Run(
        n=held,
        steps=count,
        step_size=1.0,
        noise=NoiseMultiplier(float(inner.noise_multiplier)),
        clip=1.0,
        batching=batching,
        release="all",
        adjacency=adjacency,
    )


def _parse_event(event: Any, n: int | None) -> tuple[Batching, Any, int]:
    """How an event draws batches, what is done with one, and the number of records."""
    if type(event).__name__ == "SampledWithoutReplacementDpEvent":
        if n not in (None, event.source_dataset_size):
            raise InputError(
                "n", f"must be that of the event, {event.source_dataset_size}", n, "leave it out"
            )
        return FixedSize(int(event.sample_size)), event.event, int(event.source_dataset_size)
    if n is None:
        raise InputError("n", "is needed: the event does not say how many records there are", None)
    if type(event).__name__ == "PoissonSampledDpEvent":
        return Poisson(float(event.sampling_probability)), event.event, n
    return FullBatch(), event, n
