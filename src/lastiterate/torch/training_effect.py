"""What a training did to a module: the trained parameters changed, and every other number is bit
for bit as before."""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lastiterate.errors import InputError, outside
from lastiterate.run.domains import Everywhere
from lastiterate.run.run import Run
from lastiterate.torch.gradient_sums import PerRecord
from lastiterate.torch.parameters import Parameters, State

TRAINED, KEPT = "trained", "kept"


@dataclass(frozen=True)
class Effect:
    """``trained``, ``numbers``: tensors that were clipped, noised and released, and the numbers in
    them; ``changed``: how many of the numbers differ from the first ones; ``kept``: all other
    tensors of the module, frozen parameters and buffers; ``digest``: SHA-256 over their names,
    shapes and bits; ``still``: trained tensors of which rounding kept every bit."""

    trained: int
    numbers: int
    changed: int
    kept: int
    digest: str
    still: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The sentence of a certificate."""
        kept = (
            f"the other {self.kept} are bit for bit those that were given, SHA-256 {self.digest}"
            if self.kept
            else "it has no other"
        )
        return (
            f"the training changed {self.changed:,} of {self.numbers:,} numbers in the "
            f"{self.trained} tensors that "
            f"it was to train, and no other tensor of the module: {kept}"
            + (f"; rounding kept every bit of {', '.join(self.still)}" if self.still else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """The entry of model.json."""
        return {
            TRAINED: {"tensors": self.trained, "numbers": self.numbers, "changed": self.changed},
            KEPT: {"tensors": self.kept, "sha256": self.digest},
        }


def others(module: torch.nn.Module, trained: Mapping[str, Any]) -> State:
    """All tensors of a module but the trained ones: frozen parameters and buffers."""
    every = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in every if name not in trained}


def digest(tensors: State) -> str:
    """SHA-256 over names, types, shapes and bits."""
    hasher = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        plain = tensor.cpu().contiguous()
        hasher.update(f"{name} {plain.dtype} {tuple(plain.shape)};".encode())
        hasher.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def check_constants(summed: PerRecord, constants: State) -> None:
    """Refuse a run whose forward passes wrote to the copies of what is not trained: later gradients
    would follow from earlier records."""
    for (
        name,
        given,
    ) in (
        summed.parameters.constants.items()
    ):  # one at a time: a third copy of a large model is too much
        taken = given.to(summed.dtype) if given.is_floating_point() else given
        if digest({name: taken}) != digest({name: constants[name]}):
            raise movement_error("a frozen parameter or a buffer")


def effect_of(
    run: Run,
    parameters: Parameters,
    module: torch.nn.Module,
    released: torch.nn.Module | None,
    known: str,
    state: State,
    first: State | None = None,
) -> Effect:
    """What a run did to a module, compared number by number.

    ``known``: the digest of what is not trained, before; ``state``: the trained tensors after, or
    all iterates of each; ``released``: a copy of the module that holds them; ``first``: the trained
    tensors before, where a checkpoint kept others than the module holds.

    **Guarantee:** a module of which anything but the trained parameters differs, bit by bit, is
    refused.

    A trained tensor may keep all its bits: its precision may hold no number that is nearer to the
    last iterate than the first one. The released tensor is then the first one, which is public, or
    a rounding of a noisy iterate, and epsilon covers both: the release is warned of, and not lost.
    That a loss uses the parameter at all is checked before the training.
    """
    for each in (module, *(() if released is None else (released,))):
        if digest(others(each, state)) != known:
            raise movement_error("a frozen parameter or a buffer")
    if released is not None:
        check_holds(released, state)
    first = dict(module.named_parameters()) if first is None else first
    last = {name: tensor if run.release == "last" else tensor[-1] for name, tensor in state.items()}
    differ = {
        name: int((tensor != first[name].detach().cpu()).sum()) for name, tensor in last.items()
    }
    still = [name for name, count in differ.items() if not count and last[name].numel()]
    if still and run.prox is None and isinstance(run.domain, Everywhere):
        warnings.warn(
            f"model: rounding kept every bit of {len(still)} trained tensors, {still[0]} among "
            "them: the certificate holds, and they are as they were before the training; train in "
            "single precision, with model.float(), or with longer steps",
            stacklevel=outside(),
        )
    return Effect(
        len(last),
        sum(tensor.numel() for tensor in last.values()),
        sum(differ.values()),
        len(parameters.constants),
        known,
        tuple(still),
    )


def check_holds(released: torch.nn.Module, state: State) -> None:
    """Refuse a copy that does not hold what was trained, as modules with a way of their own to be
    copied make one."""
    held = dict(released.named_parameters())
    missing = [
        name for name, tensor in state.items() if not torch.equal(held[name].detach().cpu(), tensor)
    ]
    if missing:
        raise InputError(
            "model",
            "must hold what was trained, and a copy of it holds other numbers",
            missing[0],
            "look at how the module copies itself",
        )


def movement_error(what: str) -> InputError:
    """The refusal of what changed without a clip and without noise; nothing is shown of it."""
    return InputError(
        "model",
        "must change in its trained parameters alone, and a forward pass wrote to others",
        what,
        "leave out what is written in place, or freeze that part with .eval()",
    )


def check_like(like: torch.nn.Module, state: State, entry: object, prefix: str = "") -> None:
    """Refuse a module whose other tensors are not those that it was trained with.

    ``prefix``: what stood before their names in the digest of the training."""
    kept = entry.get(KEPT) if isinstance(entry, dict) else None
    known = kept.get("sha256") if isinstance(kept, dict) else None
    held = {prefix + name: tensor for name, tensor in others(like, state).items()}
    if known is not None and digest(held) != known:
        raise InputError(
            "like",
            "must hold the frozen parameters and buffers of the training, bit for bit",
            "others",
            "load those first: the folder holds the trained parameters alone",
        )
