"""Checks of modules: refusals before anything is paid, and nothing else changed by a training."""

# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from lastiterate.engine.linear_gradients import batches_move, hidden_state
from lastiterate.engine.optimizers import is_coupled
from lastiterate.engine.record_loss import blame_augmentation, check_classes
from lastiterate.errors import InputError, first_line, outside
from lastiterate.run.domains import Everywhere
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import GaussianStart
from lastiterate.run.updates import PostProcessing
from lastiterate.run.validation import positive_integer
from lastiterate.torch.gradient_graphs import identity
from lastiterate.torch.layers import NoOwnRules, all_tensors
from lastiterate.torch.module_optimizer import Make, ModuleOptimizer, name_of
from lastiterate.torch.module_requirements import check_parts, resolve_layers
from lastiterate.torch.parameters import Grouped, HostWeights, Parameters, State
from lastiterate.torch.randomness import Augment, DrawnRecords, drops
from lastiterate.torch.record_gradients import PerRecord, full_precision, to_theta
from lastiterate.torch.records import (
    blank,
    check_items,
    check_lengths,
    numpy_targets,
    records_in,
    whole,
)
from lastiterate.torch.vectorisation_checks import make_synthetic_records, normal

# Refusals of an augmentation before a record is read: it is tried on synthetic records under
# synthetic keys.


def with_blank_keys(records: tuple[Any, ...]) -> tuple[Any, ...]:
    """Records with keys, of which the form alone counts."""
    return (*records, torch.zeros(1, dtype=torch.int64))


VECTORISED = 3
"""Synthetic records that are vectorised together."""


def find_drawing(
    run: Run,
    module: torch.nn.Module,
    augment: Augment | None,
    records: tuple[Any, ...],
    dtype: torch.dtype,
) -> DrawnRecords | None:
    """Return the run's random draws for records, tried on synthetic ones; of ``records`` only
    shapes and types count.

    Errors: a run that says something else; what is no function of one record and its key alone.
    """
    dropping = any(drops(part) for part in module.modules())
    if (run.augmentation is not None) != (dropping or augment is not None):
        raise InputError(
            "augmentation of the run",
            "must say what records draw, and nothing else",
            None,
            "give train(augment=..., copies=...), and leave the run's to it",
        )
    if run.augmentation is None:
        return None
    drawing = DrawnRecords(augment, run.augmentation.copies)
    if augment is not None:
        _check_augment(run, drawing, records, dtype)
    return drawing


def _check_augment(
    run: Run, drawing: DrawnRecords, records: tuple[Any, ...], dtype: torch.dtype
) -> None:
    """Refuse what is no function of one record and its key alone."""
    first = make_synthetic_records(records[0], dtype, normal, VECTORISED)
    words, random = torch.arange(VECTORISED), torch.random.get_rng_state()
    with HoldsNoRecords(run, records[0]):
        alone = [
            _try_record(drawing, tree_map(lambda a, at=i: a[at], first), words[i])
            for i in range(VECTORISED)
        ]
    if not torch.equal(random, torch.random.get_rng_state()):
        raise InputError(
            "augment",
            "must draw from its key, and draws from the generator of all records",
            None,
            "write key.uniform(...), key.normal(...) or key.integers(...)",
        )
    try:
        with NoOwnRules():
            together = vmap(lambda one, word: drawing.draw_record((one,), word)[0])(first, words)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            "augment",
            "must be made of operations that torch.func.vmap takes",
            first_line(error),
            "write torch.where in the place of if, and draw from the key",
        ) from None
    for i, one in enumerate(alone):
        for part, many in zip(tree_leaves(one), tree_leaves(together), strict=True):
            if many[i].shape != part.shape or not torch.allclose(
                many[i].double(), part.double(), 1e-4, 1e-6, equal_nan=True
            ):
                raise InputError(
                    "augment",
                    "must look at one record, and what it makes depends on those that it is "
                    "vectorised with",
                    None,
                    "look for functions with a vmap of their own",
                )


def _try_record(drawing: DrawnRecords, first: object, word: torch.Tensor) -> Any:
    """Augment one synthetic record."""
    try:
        made = drawing.draw_record((first,), word)[0]
        same = tree_structure(made) == tree_structure(first)
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
        raise InputError(
            "augment",
            "must take a key and one record (without a batch axis), and give a record of that form",
            first_line(error),
            "draw with key.uniform(...), key.normal(...), key.integers(...)",
        ) from None
    if not same:
        raise InputError(
            "augment",
            "must give a record of the form that it takes",
            str(tree_structure(made))[:120],
        )
    return made


class HoldsNoRecords(TorchFunctionMode):
    """Refuses, while it is active, tensors with one entry for every record, each of a record's
    shape."""

    def __init__(self, run: Run, first: object) -> None:
        super().__init__()
        self._rows = {(run.n, *leaf.shape[1:]) for leaf in tree_leaves(first)}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(tuple(tensor.shape) in self._rows for tensor in all_tensors((args, kwargs or {}))):
            raise InputError(
                "augment",
                "must look at one record, and holds a tensor with one entry for every record",
                None,
                "what it needs of others is no longer that record's own",
            )
        return func(*args, **(kwargs or {}))


# What is refused before a run on a module is paid for, by the module, the loss and the shapes of
# records.


def check_training(
    run: Run, model: torch.nn.Module | Grouped, microbatch: int | None
) -> Parameters:
    """What is trained; errors that need no data are found here, before anything is paid."""
    module = model.module if isinstance(model, Grouped) else model
    if run.preprocessing:
        raise InputError(
            "preprocessing",
            "prepares the rows of linear models only",
            type(run.preprocessing[0]).__name__,
            "leave it out",
        )
    if microbatch is not None:
        positive_integer("microbatch", microbatch)
    check_parts(module, drawing=run.augmentation is not None)
    parameters = Parameters.of(model)
    if set(parameters.scales) != {1.0} and (
        run.prox is not None or not isinstance(run.domain, Everywhere)
    ):
        raise InputError(
            "speeds",
            "must be 1 where the run has a domain or a penalty",
            None,
            "they speak of the parameters themselves",
        )
    if isinstance(run.start, GaussianStart) and parameters.vector(module).any():
        raise InputError(
            "model",
            "must have parameters 0 where the run starts at random",
            None,
            "or use start=FixedStart()",
        )
    return parameters


def try_on_synthetic(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: Any,
    parameters: Parameters,
    records: tuple[Any, ...],
    augment: Augment | None,
    initial: np.ndarray | None = None,
    device: torch.device | None = None,
) -> tuple[np.ndarray, PerRecord, tuple[Any, ...]]:
    """Return the first parameters, the gradient sums of a module and a loss, tried on synthetic
    records, and records of the form that they take: of ``records`` shapes and types count.

    ``initial``: first parameters that take the place of the module's. ``device``: where layers are
    computed one at a time, of a module that lies on the host."""
    check_classes(run, numpy_targets(records))
    module = model.module if isinstance(model, Grouped) else model
    initial = parameters.vector(module) if initial is None else initial
    summed = PerRecord(
        module,
        loss,
        parameters,
        (),
        run.clip,
        hidden_state(run),
        batches_move(run),
        weights=run.loss.class_weights,
        host=None if device is None else HostWeights(device),
    )
    drawing = find_drawing(run, module, augment, records, summed.dtype)
    formed = records if drawing is None else with_blank_keys(records)
    summed = replace(summed, drawing=drawing)
    with full_precision(parameters.device):
        theta = to_theta(initial, parameters.device)
        plain = replace(summed, drawing=None if drawing is None else replace(drawing, augment=None))
        with blame_augmentation(augment, lambda: resolve_layers(plain, formed, theta)):
            return initial, resolve_layers(summed, formed, theta), formed


def check_optimizer(
    run: Run, model: torch.nn.Module | Grouped, optimizer: Make | None
) -> ModuleOptimizer | None:
    """Return the rule that a caller's optimizer is, tried over all steps of the run.

    Errors: a run that names another one."""
    parameters = Parameters.of(model)
    stated = run.optimizer
    if optimizer is not None and isinstance(stated, PostProcessing):
        name = name_of(optimizer, parameters.shapes)
        if stated.name not in (name, PostProcessing().name):
            raise InputError(
                "optimizer of the run",
                f"must be the one that is given, {name}",
                stated.name,
                f"write Run(optimizer=li.{replace(stated, name=name)!r})",
            )
    return ModuleOptimizer.of(
        optimizer,
        parameters,
        parameters.vector(model.module if isinstance(model, Grouped) else model),
        coupled=is_coupled(run),
        steps=run.steps,
        epoch=run.batching.steps_per_epoch(run.n),
    )


Tried = tuple[PerRecord, np.ndarray, tuple[Any, ...]]
"""The sums of a module and a loss, its first parameters, and records of the form that it takes."""


def check_fits(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: object,
    data: object,
    microbatch: int | None,
    *,
    kept: bool = False,
    optimizer: Make | None = None,
    augment: Augment | None = None,
    device: torch.device | None = None,
) -> tuple[ModuleOptimizer | None, Tried | None]:
    """Refuse what cannot be trained, by the shapes of the records alone: before a record is read,
    or paid for. Return the rule, and what was tried on synthetic records.

    ``kept``: refuse too what a checkpoint would not know again.

    Shapes of a Dataset, or of records that are read in pieces, are known once one is read: after
    they are paid for.
    """
    parameters = check_training(run, model, microbatch)
    rule = check_optimizer(run, model, optimizer)
    if kept and rule is not None:
        rule.identity(run.steps)
    if isinstance(data, torch.utils.data.Dataset):
        check_items(data, records_in(data, run.n) if run.nominal else run.n)
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors
    data = whole(data)
    if isinstance(data, tuple) and len(data) > 0:
        records = blank(data)
        check_lengths(data, records_in(data, run.n) if run.nominal else run.n)
        initial, summed, records = try_on_synthetic(
            run, model, loss, parameters, records, augment, device=device
        )
        if kept:
            identity(summed, to_theta(initial, parameters.device), records)
        return rule, (summed, initial, records)
    return rule, None


# What a training did to a module: the trained parameters changed, and every other number is bit
# for bit as before.


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
    host = summed.host
    placed = State() if host is None else host.place(constants)  # the forward pass had these
    for name in placed.keys() - (frozenset[str]() if host is None else host.names):
        if digest({name: placed[name]}) != digest({name: constants[name]}):
            raise movement_error("a frozen parameter or a buffer")
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
