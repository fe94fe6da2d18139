"""Torch modules trained by a run: released, saved, loaded, audited, predicted with."""

# pyright: reportMissingImports=false
from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from lastiterate.engine.exact_gradients import RecordGrid
from lastiterate.engine.exact_noise import draws_of
from lastiterate.engine.noise import Draws
from lastiterate.engine.random import Key
from lastiterate.engine.step_iterator import Steps, map_steps, run_to_end
from lastiterate.errors import InputError, first_line, outside
from lastiterate.release.folder import StoredModel
from lastiterate.release.network_model import check_loss
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.signatures import ProvenanceRecord
from lastiterate.release.training import name_augmentation
from lastiterate.release.training_request import LazyRecords, TrainingRequest, is_source
from lastiterate.run.run import Run
from lastiterate.run.validation import check_integer, check_kept
from lastiterate.torch.module_optimizer import name_of
from lastiterate.torch.module_training import (
    COMPILED,
    MEMORY,
    WRAPPED,
    PreparedModule,
    answers_for_units,
    iterate_in_pieces,
    iterate_module,
    loss_of,
    unwrap,
    unwrap_names,
)
from lastiterate.torch.onnx_export import write_onnx
from lastiterate.torch.parameters import Grouped, Parameters, State
from lastiterate.torch.processes import check_public
from lastiterate.torch.processes import join_processes as join_processes
from lastiterate.torch.randomness import drops
from lastiterate.torch.record_gradients import ExactRecords, cast_records
from lastiterate.torch.records import (
    inputs_of,
    join_answers,
    positional,
    predict_records,
    records_in,
    stack_dataset,
    to_arrays,
)
from lastiterate.torch.trial_training import Effect, check_fits, check_like, digest, effect_of
from lastiterate.torch.vectorisation_checks import Coarsest


def exactly(prepared: PreparedModule, key: Key) -> tuple[PreparedModule, Draws]:
    """The same run on exact sums, and their noise."""
    grid, plain, places = RecordGrid.of(prepared.run), prepared.summed, prepared.places
    most = min(prepared.most, max(1, MEMORY // sum(plain.parameters.sizes)))
    if places is not None:
        places = places.within(most)
        most = places.most
    summed = ExactRecords(
        **{each.name: getattr(plain, each.name) for each in fields(plain)}, grid=grid
    )
    return replace(prepared, summed=summed, most=most, places=places), draws_of(
        prepared.run, grid.step, key
    )


# What a trained module answers for records, which are given as the training took them.


AT_ONCE = 256
"""Records of one forward pass."""


def predict_module(module: torch.nn.Module, x: object, inputs: int | None) -> Any:
    """The module's outputs for the records of ``x`` in evaluation mode: arrays, in tuples and
    dictionaries.

    ``inputs``: ``positional`` of the records that it was trained on. A module that answers for a
    record otherwise in a batch is asked for one record at a time, as it was trained. Errors: what
    the module does not take.
    """
    check_kept("x", x)
    answers, alone = list[Any](), False
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            for part in _some(module, x, inputs):
                answer = None if alone else _answer(module, part)
                if answer is not None and not answers:
                    alone = not _is_answered_alone(module, part, answer)
                answers += _answer_one_by_one(module, part) if alone else [answer]
            return join_answers(answers)
    finally:
        for part in training:
            part.training = True


def _answer_one_by_one(module: torch.nn.Module, records: object) -> list[Any]:
    return [
        _answer(module, tree_map(lambda a, at=i: a[at : at + 1], records))
        for i in range(len(tree_leaves(records)[0]))
    ]


def _is_answered_alone(module: torch.nn.Module, records: object, answer: object) -> bool:
    """Whether the module answers for the first and for the last record alone as in their batch, but
    for rounding; where it does not, that is warned of."""
    count = len(tree_leaves(records)[0])
    for place in sorted({0, count - 1}) if count > 1 else ():
        with Coarsest() as seen:
            own = _answer(module, tree_map(lambda a, at=place: a[at : at + 1], records))
        if tree_structure(own) != tree_structure(answer):
            continue  # a single answer may have lost an axis
        pairs = zip(tree_leaves(answer), tree_leaves(own), strict=True)
        if not all(_is_close(many[place], one[0], seen.tolerance) for many, one in pairs):
            warnings.warn(
                "x: the module answers for a record otherwise in a batch than alone, and predict "
                "asks it for one record at a time; outputs of model.module depend on the batch",
                stacklevel=outside(),
            )
            return False
    return True


def _is_close(given: Any, wanted: Any, tolerance: float) -> bool:
    """Whether two answers are equal but for rounding; integers may turn over with it."""
    if given.shape != wanted.shape or given.dtype.kind not in "fc":
        return given.shape == wanted.shape
    size = np.nan_to_num(np.abs(wanted), posinf=0.0).max(initial=0.0)
    return bool(np.allclose(given, wanted, tolerance, tolerance * size / 10 + 1e-9, equal_nan=True))


def _answer(module: torch.nn.Module, records: object) -> Any:
    try:
        count = len(tree_leaves(records)[0])
        answer = to_arrays(predict_records(module, records), count)
        if answer is None and count == 1:  # .squeeze() takes the batch axis of one record, too
            twice = tree_map(lambda a: torch.cat([a, a]), records)
            both = to_arrays(predict_records(module, twice), 2)
            answer = None if both is None else tree_map(lambda a: a[:1], both)
    except InputError:
        raise
    except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise InputError(
            "x",
            "must hold records that the module takes, along the first axis",
            f"records of shape {tuple(tree_leaves(records)[0].shape[1:])}: {first_line(error)}",
            _shape_remedy(module),
        ) from None
    if answer is None:
        raise InputError(
            "x",
            "must hold records for each of which the module answers",
            None,
            _shape_remedy(module),
        )
    return answer


def _shape_remedy(module: torch.nn.Module) -> str:
    """What to give a module that does not take records of their shape."""
    if not answers_for_units(module):
        return "give a single record as x[None]"
    return (
        "PerUnit takes units with an axis of rows, (units, rows, ...); for single rows write "
        "lastiterate.load(folder, like=module).predict(x) with the module inside of it"
    )


def _some(module: torch.nn.Module, x: Any, inputs: int | None) -> Iterator[Any]:
    """What the module takes, some records at a time, as precise as its parameters and where they
    are."""
    where = next(module.parameters())
    for piece in x.pieces(AT_ONCE) if is_source(x) else (x,):
        records = cast_records(inputs_of(piece, inputs), where.dtype)
        for first in range(0, max(1, len(tree_leaves(records)[0])), AT_ONCE):
            yield tree_map(lambda a, at=first: a[at : at + AT_ONCE].to(where.device), records)


FIRST = (
    "the module's first parameters and buffers, and what the loss holds, are taken to be chosen "
    "without looking "
    "at the data"
)
INPUTS = "inputs"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FittedModule(ReleasedModel):
    """A released torch module: the last iterate of a run, with its certificate.

    `train` and `load` return it.

    Parameters
    ----------
    proof : Certificate or Written
        Certificate, or the written one of a folder.
    delta : float
        Delta at which a folder states epsilon.
    schema : Schema, optional
        Map from the records of a file to rows.
    statement : dict, optional
        Statement of the releaser.
    exact : bool, default False
        Whether the certificate covers the arithmetic.
    run : Run
        Executed run.
    state : dict of str to torch.Tensor
        Trained parameters by name; with ``release="all"`` all iterates of each, (T, ...).
    module : torch.nn.Module, optional
        Module of the caller's class with these parameters; ``None`` for a folder that was loaded
        without ``like=module``.
    effect : Effect, optional
        Changes of the training, and a digest of all other parameters.
    inputs : int, optional
        Number of parts of a record that the module got by position, 0 by name; ``None`` where it is
        unknown.

    Notes
    -----
    **Guarantee:** ``certificate`` is about the run whose last iterate this is.

    Examples
    --------
    >>> import torch
    >>> import lastiterate as li
    >>> run = li.Run(n=8, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    >>> data = torch.ones(8, 3), torch.zeros(8, dtype=torch.long)
    >>> loss = torch.nn.functional.cross_entropy
    >>> model = li.train(run, data, model=torch.nn.Linear(3, 2), loss=loss)
    >>> type(model).__name__, sorted(model.state_dict())
    ('FittedModule', ['bias', 'weight'])
    """

    kind: ClassVar[str] = "torch"
    exact_kind: ClassVar[str] = "exact-torch"
    run: Run
    state: dict[str, torch.Tensor]
    module: torch.nn.Module | None = None
    effect: Effect | None = None
    inputs: int | None = None

    @property
    def conditions(self) -> tuple[str, ...]:
        return (FIRST,) if self.effect is None else (FIRST, self.effect.words)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state for ``module.load_state_dict``; without a module, trained parameters."""
        if self.run.release == "all":
            raise InputError(
                "release",
                "must be 'last' for the state of one module",
                "all",
                "ask the module of one step, model.module_at(step, like=module).state_dict(), or "
                "read model.state, which has every step's",
            )
        if self.module is None:
            return dict(self.state)
        held = unwrap(self.module).state_dict()
        return {name: tensor.detach().cpu() for name, tensor in held.items()}

    def with_caveats(self, *caveats: str) -> FittedModule:
        """Return the same model with further caveats in its certificate."""
        return replace(
            self, proof=replace(self.certificate, caveats=(*self.certificate.caveats, *caveats))
        )

    def predict(self, x: object) -> np.ndarray:
        """The module's outputs for the records of ``x``, in evaluation mode.

        ``x``: records as ``train`` takes them, of which the first part counts: a tuple, a Dataset,
        a dictionary, or a source that is read in pieces. Or that first part alone: an array or a
        tensor with the records along its first axis, a tuple or a dictionary of several. What a
        tuple of arrays is follows from the training: ``(x, y)``, or both inputs of a module that
        was trained on ``((a, b), y)``. Outputs are the module's own for each record, as arrays in
        tuples or dictionaries; what it answers for a batch as a whole is left out, such as the loss
        of labels that are among its inputs.
        """
        if self.run.release == "all":
            raise InputError(
                "release",
                "must be 'last' for predictions",
                "all",
                "ask the module of one step: model.module_at(step, like=module)",
            )
        if self.module is None:
            raise InputError(
                "model", "must be a module to predict", None, "load the folder with like=module"
            )
        return predict_module(self.module, x, self.inputs)

    def module_at(self, step: int, like: torch.nn.Module | Grouped) -> torch.nn.Module:
        """Return a copy of ``like``, in evaluation mode, with the parameters after ``step`` steps.

        Epsilon covers a choice among the steps by public records, and none by private ones.

        ``like``: a module of the class that was trained, with its frozen parameters and buffers.
        The run released all iterates.
        """
        if self.run.release != "all":
            raise InputError(
                "release",
                "must be 'all' for a module of one step",
                self.run.release,
                "take model.module, the last one",
            )
        check_integer("step", step, least=1, most=self.run.steps)
        one = {name: tensor[step - 1] for name, tensor in self.state.items()}
        effect = {} if self.effect is None else self.effect.to_dict()
        return _fill_module(like, one, one, effect).eval()

    def to_onnx(self, file: str | Path, x: object = None) -> Path:
        """Write an ONNX file that answers as the module does in evaluation mode, and carries its
        release.

        ``x``: two or more public records as ``predict`` takes them, of which only the shapes count;
        the file takes any number of records. ``lastiterate.verify`` compares the weights in the
        graph with the certified ones. Errors: no module, no ``x``, and modules that PyTorch cannot
        write.
        """
        if self.run.release == "all":
            raise InputError(
                "release",
                "must be 'last' for a file of one model",
                "all",
                "write the module of one step, model.module_at(step, like=module), by torch.onnx",
            )
        return write_onnx(self, self.module, file, x, names=self.state, inputs=self.inputs)

    def contents(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        dtypes = {
            name: str(tensor.dtype).removeprefix("torch.") for name, tensor in self.state.items()
        }
        effect = {} if self.effect is None else {"effect": self.effect.to_dict()}
        inputs = {} if self.inputs is None else {INPUTS: self.inputs}
        tensors = {name: _plain(tensor) for name, tensor in self.state.items()}
        return {"run": self.run.to_dict(), "parameters": dtypes} | effect | inputs, tensors

    def summary(self) -> str:
        count = sum(tensor.numel() for tensor in self.state.values())
        kept = "" if self.effect is None else f", {self.effect.kept} others as they were"
        return f"{count:,} parameters in {len(self.state)} tensors{kept}, {self.run.steps} steps, n = {self.run.n}"


def _plain(tensor: torch.Tensor) -> np.ndarray:
    """An array of the file format; bfloat16 is stored as float32, which holds it exactly."""
    return np.ascontiguousarray(
        (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
    )


def knows(model: object) -> bool:
    """Whether ``model`` is a torch module, or one with groups of parameters."""
    return isinstance(model, torch.nn.Module | Grouped)


def name_optimizer(optimizer: Any, model: torch.nn.Module | Grouped) -> str:
    """The names of its classes, as it makes them for the trained parameters."""
    return name_of(optimizer, Parameters.of(model).shapes)


def draws(model: torch.nn.Module | Grouped, loss: object, augment: Any) -> list[str]:
    """An augmentation, and dropout that is switched on."""
    module: torch.nn.Module = model.module if isinstance(model, Grouped) else model
    return [
        *name_augmentation(augment),
        *(["dropout"] if any(drops(part) for part in module.modules()) else []),
    ]


def check(order: TrainingRequest) -> TrainingRequest:
    """Refuse what cannot be trained, by the shapes of the records alone; a Dataset is read when it
    is paid for."""
    run, data = order.certificate.run, order.data
    check_loss(run, order.loss)
    if order.exact:
        RecordGrid.of(run)
    order = replace(order, loss=loss_of(order.loss))
    rule, tried = check_fits(
        run,
        order.model,
        order.loss,
        data,
        order.microbatch,
        kept=order.charging.kept_in is not None,
        optimizer=order.optimizer,
        augment=order.augment,
        device=order.processes.layer_device,
    )
    check_public(order, rule, tried)
    if order.by_step:
        order = replace(order, model=copy_model(order.model))
    unread = isinstance(data, torch.utils.data.Dataset)
    return (
        replace(
            order,
            data=LazyRecords(
                lambda: stack_dataset(data, records_in(data, run.n) if run.nominal else run.n)
            ),
        )
        if unread
        else order
    )


def fit(order: TrainingRequest, key: Key | None) -> FittedModule:
    """Execute the run on ``loss(module(x), *rest)`` and release the last parameters."""
    return run_to_end(iterate(order, key))


def iterate(order: TrainingRequest, key: Key | None) -> Steps[FittedModule]:
    """``fit`` in pauses; an iterate is read by the names of its parameters."""
    run = order.certificate.run
    how: Any = {
        "microbatch": order.microbatch,
        "progress": order.progress,
        "checkpoint": order.charging.checkpoint,
        "optimizer": order.optimizer,
        "augment": order.augment,
        "by_step": order.by_step,
        "processes": order.processes,
        "executed_as": exactly if order.exact else None,
    }
    module = order.model.module if isinstance(order.model, Grouped) else order.model
    parameters = Parameters.of(order.model)
    known = digest(unwrap_names(module, parameters.constants))

    def name_tensors(theta: np.ndarray) -> State:
        return unwrap_names(module, parameters.restore_precision(theta))

    if order.in_pieces:
        steps = iterate_in_pieces(
            run, order.model, order.loss, order.data, key, folder=order.scratch, **how
        )
    else:
        data = copy_tensors(order.data) if order.by_step else order.data
        steps = iterate_module(run, order.model, order.loss, data, key, **how)
    state = yield from map_steps(lambda trained: name_tensors(trained[1]), steps)
    order.processes.check_same(processes=digest(state))
    kept = order.processes.kept
    first = None if kept is None else name_tensors(kept.initial)
    released = _with_parameters(module, state) if run.release == "last" else None
    return FittedModule(
        proof=order.certificate,
        delta=order.delta,
        exact=order.exact,
        run=run,
        state=state,
        module=released,
        effect=effect_of(
            run,
            parameters,
            unwrap(module),
            None if released is None else unwrap(released),
            known,
            state,
            first,
        ),
        inputs=positional(order.data),
    )


def copy_model(model: torch.nn.Module | Grouped) -> torch.nn.Module | Grouped:
    """A module that a loop's own code cannot change between two steps."""
    try:
        return copy.deepcopy(model)
    except Exception as error:  # of the module's own way to be copied
        raise InputError(
            "module",
            "must be one that copy.deepcopy copies, for a loop trains a copy",
            first_line(error),
            "train it with lastiterate.train",
        ) from None


def copy_tensors(data: object) -> Any:
    """Records that a loop's own code cannot change between two steps."""

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone()
        return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf

    return tree_map(copy_leaf, data)


def _with_parameters(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A copy of the module with these parameters, by their names in the module on rows."""
    own = copy.deepcopy(module)
    named = dict(unwrap(own).named_parameters())
    with torch.no_grad():
        for name, tensor in state.items():
            named[name].copy_(tensor)
    return own


def read(stored: StoredModel, like: object = None) -> FittedModule:
    """The model in a folder; ``like``: a module of the class that was trained, which is copied."""
    run, tensors, dtypes = (
        Run.from_dict(stored.model["run"]),
        stored.tensors(),
        stored.model.get("parameters"),
    )
    if not isinstance(dtypes, dict) or dtypes.keys() != tensors.keys():
        raise _damage_error("another list of parameters")
    state = {name: _cast_array(tensors[name], dtypes[name]) for name in tensors}
    inputs = stored.model.get(INPUTS)
    if inputs is not None and (type(inputs) is not int or inputs < 0):
        raise _damage_error("another number of inputs than a whole one")
    module = None
    if like is not None:
        one = {name: a[0] if run.release == "all" else a for name, a in state.items()}
        filled = _fill_module(like, one, state, stored.model.get("effect"))
        module = filled if run.release == "last" else None
    return FittedModule(
        proof=ProvenanceRecord(stored.certificate),
        delta=stored.certificate["delta"],
        run=run,
        state=state,
        module=module,
        inputs=inputs,
    )


def _fill_module(like: object, one: State, state: State, effect: object) -> torch.nn.Module:
    """A copy of ``like`` with the parameters ``one``; ``state``: what was trained, by name.

    Errors: no module, one without these parameters, and other frozen numbers than in the training.
    """
    given = _plain_module(like)
    prefix = _earlier_prefix(given, one)
    one, state = (
        {name.removeprefix(prefix): tensor for name, tensor in part.items()}
        for part in (one, state)
    )
    _check_names(unwrap(given), one)
    check_like(unwrap(given), state, effect, prefix)
    return _with_parameters(given, one)


def _earlier_prefix(like: torch.nn.Module, state: State) -> str:
    """What stands before the names of a folder of an earlier version, which called parameters as
    wrappers do."""
    named = dict(unwrap(like).named_parameters())
    if named.keys() >= state.keys():
        return ""
    for prefix in (WRAPPED, COMPILED, WRAPPED + COMPILED, COMPILED + WRAPPED):
        inner = {name.removeprefix(prefix) for name in state if name.startswith(prefix)}
        if len(inner) == len(state) and named.keys() >= inner:
            return prefix
    return ""


def _plain_module(like: object) -> torch.nn.Module:
    """Return the module itself; errors: none."""
    like = like.module if isinstance(like, Grouped) else like
    if not isinstance(like, torch.nn.Module):
        raise InputError(
            "like", "must be a module of the class that was trained", type(like).__name__
        )
    if hasattr(like, "to_standard_module"):
        raise InputError(
            "like",
            "must be the module itself, not a wrapper that keeps gradients of records",
            type(like).__name__,
            "give like.to_standard_module()",
        )
    return like


def _check_names(like: torch.nn.Module, state: State) -> None:
    """Refuse a module without these parameters."""
    named = dict(like.named_parameters())
    for name, tensor in state.items():
        if name not in named or named[name].shape != tensor.shape:
            shape = tuple(named[name].shape) if name in named else "missing"
            raise InputError(
                "like", f"must have a parameter {name} of shape {tuple(tensor.shape)}", shape
            )


def _cast_array(array: np.ndarray, dtype: object) -> torch.Tensor:
    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if (
        not isinstance(wanted, torch.dtype)
        or not wanted.is_floating_point
        or not np.isfinite(array).all()
    ):
        raise _damage_error("arrays that are no finite numbers of a known precision")
    return torch.from_numpy(np.array(array)).to(wanted)


def _damage_error(what: str) -> InputError:
    return InputError(
        "parameters of the model",
        f"must be complete, and the folder holds {what}",
        None,
        "check it with lastiterate verify",
    )
