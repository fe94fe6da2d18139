# pyright: reportMissingImports=false
"""A run from what other libraries are configured with: Opacus, jax-privacy, dp-accounting.

``account``, ``report`` and ``audit`` then speak of that run: what they say holds if it is executed as described. Known
are the exact classes; what a configuration does beyond them is refused, not guessed.
"""

from __future__ import annotations

from typing import Any

from lastiterate.errors import InputError
from lastiterate.run.batching import Batching, FixedSize, FullBatch, Poisson
from lastiterate.run.noise import GradientNoise, NoiseMultiplier
from lastiterate.run.run import Run

OPTIMIZERS = ("DPOptimizer", "DPPerLayerOptimizer", "DPOptimizerFastGradientClipping")
"""Optimizers of Opacus whose noise is the noise multiplier times one clipping norm."""


def describe(configuration: Any, *, optimizer: object = None, data_loader: object = None, n: int | None = None,
             steps: int | None = None) -> Run:
    """The run that ``configuration`` stands for.

    An Opacus ``PrivacyEngine``: with the ``optimizer`` and the ``data_loader`` that ``make_private`` returned;
    ``steps``: by default those that its accountant has counted. A dp-accounting event, or a plan of jax-privacy that
    holds one (``dp_event``): Gaussian steps on Poisson batches, on batches of a fixed size or on all records, clipped
    to 1; of ``n`` records. A ``DPKerasConfig`` of jax-privacy. Errors: ``InputError`` for anything else.

    All iterates count as released unless the optimizer is plain SGD, so that the answer holds for any optimizer that
    goes on from the noisy gradients.
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
    raise InputError("configuration", "must be a PrivacyEngine, a DPKerasConfig, or hold a DpEvent",
                     type(configuration).__name__)


def _opacus(engine: Any, optimizer: Any, data_loader: Any, steps: int | None) -> Run:
    import torch

    from lastiterate.torch.loaders import drawn_by

    if type(engine).__name__ != "PrivacyEngine":
        raise InputError("configuration", "must be a PrivacyEngine of Opacus", type(engine).__name__)
    if optimizer is None or type(optimizer).__name__ not in OPTIMIZERS:
        raise InputError("optimizer", "must be what make_private returned, with one clipping norm that stays",
                         type(optimizer).__name__, "adaptive clipping spends budget of its own")
    if data_loader is None:
        raise InputError("data_loader", "is needed: what it draws decides the answer", None,
                         "give the one that make_private returned")
    drawn, history = drawn_by(data_loader), list(engine.accountant.history)
    count = sum(entry[-1] for entry in history) if steps is None else steps
    if count < 1:
        raise InputError("steps", "must be given where the accountant has counted none", count)
    norms = optimizer.max_grad_norm
    clip = float(sum(c * c for c in norms) ** 0.5) if isinstance(norms, list) else float(norms)
    passes = getattr(engine.accountant, "passes", ())
    if drawn.shuffled and (any(place % drawn.batches for place in passes) or len({*passes}) < len(passes)):
        raise InputError("configuration", "must have read whole passes to be a run", None,
                         "the accountant's get_epsilon charges every pass that began")
    divisor = drawn.batching.divisor(drawn.n)
    noise: Any = NoiseMultiplier(float(optimizer.noise_multiplier))
    if steps is None and len({entry[0] for entry in history}) > 1:
        noise = GradientNoise(tuple(entry[0] * clip / divisor for entry in history for _ in range(entry[-1])))
    inner = optimizer.original_optimizer
    plain = type(inner) is torch.optim.SGD and len(inner.param_groups) == 1 and not any(
        inner.param_groups[0][name] for name in ("momentum", "weight_decay", "dampening", "nesterov"))
    return Run(n=drawn.n, steps=count, step_size=float(inner.param_groups[0]["lr"]), noise=noise, clip=clip,
               batching=drawn.batching, release="last" if plain else "all",
               adjacency="zero-out" if drawn.shuffled else "add-remove")


def _keras(config: Any) -> Run:
    """jax-privacy's configuration for Keras, which draws Poisson batches itself."""
    if getattr(config, "gradient_accumulation_steps", 1) != 1:
        raise InputError("configuration", "must take a step with every batch", config.gradient_accumulation_steps,
                         "describe the run by hand: batches that are accumulated count as one")
    z = config.noise_multiplier
    return Run(n=int(config.train_size), steps=int(config.train_steps), step_size=1.0,
               noise=None if z is None else NoiseMultiplier(float(z)), clip=float(config.clipping_norm),
               batching=Poisson(config.batch_size / config.train_size), release="all", adjacency="add-remove")


def _event(event: Any, n: int | None, steps: int | None) -> Run:
    """Equal Gaussian steps; their noise multiplier is taken in units of the clipping norm."""
    count = 1
    while type(event).__name__ in ("SelfComposedDpEvent", "ComposedDpEvent"):
        if type(event).__name__ == "SelfComposedDpEvent":
            event, count = event.event, count * event.count
        else:
            parts = list(event.events)
            if not parts or any(part != parts[0] for part in parts):
                raise InputError("configuration", "must be equal steps", type(event).__name__,
                                 "a step of another kind is a release of its own: compose their curves")
            event, count = parts[0], count * len(parts)
    batching, inner, held = _sampled(event, n)
    if type(inner).__name__ != "GaussianDpEvent":
        raise InputError("configuration", "must be Gaussian steps", type(inner).__name__)
    if steps is not None and steps != count:
        raise InputError("steps", f"must be those of the event, {count}", steps, "leave it out")
    adjacency = "replace-one" if isinstance(batching, FixedSize) else \
        "add-remove" if isinstance(batching, Poisson) else "zero-out"
    return Run(n=held, steps=count, step_size=1.0, noise=NoiseMultiplier(float(inner.noise_multiplier)), clip=1.0,
               batching=batching, release="all", adjacency=adjacency)


def _sampled(event: Any, n: int | None) -> tuple[Batching, Any, int]:
    """How an event draws batches, what is done with one, and the number of records."""
    if type(event).__name__ == "SampledWithoutReplacementDpEvent":
        if n not in (None, event.source_dataset_size):
            raise InputError("n", f"must be that of the event, {event.source_dataset_size}", n, "leave it out")
        return FixedSize(int(event.sample_size)), event.event, int(event.source_dataset_size)
    if n is None:
        raise InputError("n", "is needed: the event does not say how many records there are", None)
    if type(event).__name__ == "PoissonSampledDpEvent":
        return Poisson(float(event.sampling_probability)), event.event, n
    return FullBatch(), event, n
