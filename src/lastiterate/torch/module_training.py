"""Execute a run on a module: records in memory, in pieces, and units of several rows."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch.func import vmap
from torch.utils._pytree import SUPPORTED_NODES, tree_leaves, tree_map

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.external_gradients import ExternalLoop
from lastiterate.engine.linear_gradients import batches_move
from lastiterate.engine.noise import Draws
from lastiterate.engine.random import ORDER, Key, host_stream
from lastiterate.engine.step_iterator import Steps, map_steps, resume_within, run_to_end
from lastiterate.engine.streaming.execution import check_piece as checked_stream
from lastiterate.engine.streaming.execution import iterate_streamed
from lastiterate.engine.streaming.scratch import again_and_again
from lastiterate.engine.streaming.sorting import Passes
from lastiterate.engine.streaming.source import Piece, Source, number_records
from lastiterate.engine.trainer import Progress, check_process
from lastiterate.errors import InputError
from lastiterate.release.training_request import Processes
from lastiterate.release.units import UnitLoss
from lastiterate.run.facts import CHUNK
from lastiterate.run.run import Run
from lastiterate.torch.gradient_graphs import identity
from lastiterate.torch.module_optimizer import Make, ModuleOptimizer
from lastiterate.torch.parameter_contributions import Contribution
from lastiterate.torch.parameters import Grouped, Parameters, State
from lastiterate.torch.processes import begin_together
from lastiterate.torch.randomness import Augment, keys_to_words
from lastiterate.torch.record_gradients import Loss, PerRecord, full_precision, to_theta
from lastiterate.torch.recorded_operations import RecordedComputation
from lastiterate.torch.records import records_of, split_by_record, take_records, tensors_of
from lastiterate.torch.trial_training import (
    check_constants,
    check_training,
    try_on_synthetic,
    with_blank_keys,
)
from lastiterate.torch.vectorisation_checks import (
    TRIES,
    ChunkSizes,
    draw_parameters,
    make_synthetic_records,
    normal,
    usual,
)

MEMORY = 2**23
"""Numbers of per-record gradients that are stored at once, where the caller does not say."""
WIDE = 512
"""Records of a chunk, at most, where sums are double precision."""


@dataclass(frozen=True, eq=False)
class PreparedModule:
    """Everything that a run on a module needs, checked; ``initial``: (size,) float64."""

    run: Run
    summed: PerRecord
    initial: np.ndarray
    records: tuple[Any, ...]
    most: int
    places: ChunkSizes | None = None  #: where a record that is drawn moves others
    rule: ModuleOptimizer | None = None  #: a caller's optimizer
    processes: Processes = field(default_factory=Processes)  #: who sums a part of every batch

    @property
    def identity(self) -> str:
        """What a checkpoint knows of the module and of the loss."""
        known = "" if self.rule is None else f", optimizer {self.rule.identity(self.run.steps)}"
        return (
            identity(
                self.summed, to_theta(self.initial, self.summed.parameters.device), self.formed
            )
            + known
        )

    @property
    def formed(self) -> tuple[Any, ...]:
        """Records of the form that the sums take."""
        return with_blank_keys(self.records) if self.summed.drawing is not None else self.records

    @property
    def loop(self) -> ExternalLoop:
        return ExternalLoop(
            self.run,
            self.summed.parameters.shapes,
            rule=self.rule,
            records=self.count,
            gather=None if self.processes.count == 1 else self.processes.add,
        )

    @property
    def count(self) -> int:
        """How many records there are: n, or another number where n is nominal."""
        return len(tree_leaves(self.records)[0]) if self.run.nominal else self.run.n

    @property
    def again_and_again(self) -> PreparedModule:
        """The same for sums at one parameters after the other, which repeat what they do; a
        recording would hold weights that are on the device one at a time."""
        repeated = None if self.summed.host else RecordedComputation(self.run.steps)
        return replace(self, summed=replace(self.summed, repeated=repeated))

    def execute(self, key: Key) -> np.ndarray:
        """Make all steps; the last iterate, or all of them for release="all"."""
        return run_to_end(self.iterate(key))

    def iterate(
        self,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
        draws: Draws | None = None,
        *,
        by_step: bool = False,
    ) -> Steps[np.ndarray]:
        """``execute`` in pauses, those of ``ExternalLoop.iterate``; ``draws``: exact noise of the
        sums."""
        device = self.summed.parameters.device  # of the parameters; gradients may have another
        constants = self.summed.parameters.copy_constants(self.summed.dtype)
        # one for all steps, because fresh memory is slow: a step is over when the next one asks for
        # its parameters
        held = torch.empty(self.initial.size, dtype=torch.float64, device=device)

        again, own = self.again_and_again, slice(self.processes.rank, None, self.processes.count)

        def sums(point: np.ndarray, places: np.ndarray, keys: np.ndarray | None) -> np.ndarray:
            numbers = torch.from_numpy(places[own])
            return again.total(point, constants, numbers, held, None if keys is None else keys[own])

        steps = replace(self.loop, draws=draws).iterate(
            self.initial, sums, key, progress, checkpoint, by_step=by_step
        )
        theta = yield from resume_within(partial(without_gradients, self.summed.device), steps)
        check_constants(self.summed, constants)
        return theta

    def total(
        self,
        point: np.ndarray,
        constants: State,
        numbers: torch.Tensor,
        held: torch.Tensor | None = None,
        keys: np.ndarray | None = None,
    ) -> np.ndarray:
        """The sum over the records of these numbers, at the parameters ``point``; both (size,). It
        lies in ``held``.

        ``keys``: of each of these records, where they draw something.
        """
        words = None if keys is None else keys_to_words(keys)
        parameters, device = self.summed.parameters, self.summed.parameters.device
        trained = parameters.tensors(to_theta(point, device), self.summed.dtype)
        total = (
            torch.empty(len(point), dtype=torch.float64, device=device) if held is None else held
        )
        if not len(numbers):
            total.zero_()  # otherwise the first chunk is written, all others are added
        by_name = dict(zip(parameters.names, total.split(parameters.sizes), strict=True))
        for place, (part, used) in enumerate(self._split(torch.arange(len(numbers)))):
            sums = self._chunk(
                trained, constants, numbers[part], used, None if words is None else words[part]
            )
            for name, each in sums:  # of a layer, before the next layer's is computed
                by_name[name].add_(each.to(device)) if place else by_name[name].copy_(each)
        if self.summed.host is not None:
            self.summed.host.let_go(trained)
        return total.cpu().numpy()

    def _split(self, numbers: torch.Tensor) -> Iterator[tuple[torch.Tensor, int | None]]:
        """A batch in chunks, and how many records are in each (None: all of it)."""
        if self.places is None:
            if len(numbers):
                yield from (
                    (part, None) for part in numbers.tensor_split(-(-len(numbers) // self.most))
                )
            return
        begin = 0
        for size, used in self.places.split(len(numbers)):
            part = numbers[begin : begin + used]
            begin += used
            yield torch.cat([part, part[:1].expand(size - used)]), used

    def _chunk(
        self,
        trained: State,
        constants: State,
        part: torch.Tensor,
        used: int | None,
        keys: torch.Tensor | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The sums over one chunk, one name after the other; what a module or a loss cannot take is
        said without the record."""
        try:
            device = self.summed.device
            records = take_records(self.records, part, device)
            records = records if keys is None else (*records, keys.to(device))
            yield from self.summed.iterate_sums(trained, constants, records, None, used)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError):
            raise InputError(
                "data",
                "must hold records that the module and the loss take, and hold one that raises "
                "an error there",
                None,
                "labels are integers from 0 to the number of outputs - 1: look for others, and for "
                "what is written in place",
            ) from None

    def many(self, keys: Key, absent: tuple[int, ...] = ()) -> np.ndarray:
        """The last iterate for every key, (models, size), in one vectorised computation; for tests
        and audits."""
        device, n = self.summed.parameters.device, self.count
        constants = self.summed.parameters.copy_constants(self.summed.dtype)
        parts = torch.arange(n).split(CHUNK)
        there = torch.ones(n, dtype=torch.bool)
        there[list(absent)] = False

        def sums(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
            theta, real = (
                to_theta(points, device),
                (torch.from_numpy(np.array(weights)) > 0) & there,
            )
            total = torch.zeros_like(theta)
            for part in parts:
                records = take_records(self.records, part, device)
                one = vmap(
                    lambda own, held, given=records: self.summed.chunk_sum(
                        own, constants, given, held
                    )
                )
                total = total + one(theta, real[:, part].to(device))
            return total.cpu().numpy()

        with full_precision(device), torch.no_grad():
            return self.loop.many(self.initial, sums, keys)


Arithmetic = Callable[[PreparedModule, Any], tuple[PreparedModule, Draws]]
"""From a run and its key to the same run with other sums, and their noise."""


def prepare(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: object,
    data: object,
    microbatch: int | None = None,
    optimizer: Make | None = None,
    augment: Augment | None = None,
    first: np.ndarray | None = None,
    *,
    exact: bool = False,
    device: torch.device | None = None,
) -> PreparedModule:
    """Check a run, a module, a loss and data, and put them together; nothing is executed on a
    record. ``first``: first parameters that take the place of the module's. ``exact``: sums will be
    exact, and then no bit of them depends on where a record lies. ``device``: where layers are
    computed one at a time, of a module that lies on the host."""
    check_process()
    parameters = check_training(run, model, microbatch)
    records = records_of(run, data, device or parameters.device)
    initial, summed, formed = try_on_synthetic(
        run, model, loss, parameters, records, augment, first, device
    )
    most, places = chunk(summed, microbatch), None
    if exact or batches_move(run):
        places = places_of(
            summed, formed, to_theta(initial, parameters.device), min(most, usual(run.divisor))
        )
        most = places.most
    return PreparedModule(
        run,
        summed,
        initial,
        records,
        most,
        places,
        ModuleOptimizer.of(
            optimizer, parameters, initial, epoch=run.batching.steps_per_epoch(run.n)
        ),
    )


def places_of(
    summed: PerRecord, records: tuple[Any, ...], theta: torch.Tensor, most: int
) -> ChunkSizes:
    """Chunks of at most ``most`` records whose bits depend on no place."""
    constants, device = summed.parameters.copy_constants(summed.dtype), summed.device

    def at(which: int) -> Callable[[Any], dict[str, Contribution]]:
        trained = summed.parameters.tensors(draw_parameters(theta, which), summed.dtype)
        return lambda given: summed.contributions(trained, constants, given)

    def several(varied: bool) -> Any:
        made = make_synthetic_records(records, summed.dtype, normal, 2 * TRIES, varied=varied)
        return tree_map(lambda a: a.to(device), made)

    with full_precision(device):
        try:
            made = several(device.type == "cpu")
            at(0)(made)
        except (RuntimeError, IndexError):  # some integer must be 0
            made = several(False)
        return ChunkSizes(
            [(at(i), tree_map(lambda a, i=i: a[2 * i : 2 * i + 2], made)) for i in range(TRIES)],
            most,
        ).within(most)


def chunk(summed: PerRecord, microbatch: int | None) -> int:
    """Records whose gradients are in memory at once: as many as the caller says, or as fit in
    ``MEMORY``."""
    if microbatch is not None:
        return min(microbatch, WIDE if summed.wide else CHUNK)
    several = summed.drawing is not None and summed.drawing.copies > 1  # whose mean is stored
    if summed.host is not None:  # what a record leaves at its layers is stored, and no gradient
        known = {layer.weight: math.prod(layer.output_shape) for layer in summed.layers}
    else:
        known = {} if several else {layer.weight: layer.stored for layer in summed.layers}
    stored = sum(
        known.get(name, size)
        for name, size in zip(summed.parameters.names, summed.parameters.sizes, strict=True)
    )
    return max(1, min(WIDE if summed.wide else CHUNK, MEMORY // max(stored, 1)))


@contextmanager
def without_gradients(device: torch.device) -> Generator[None]:
    """Full precision, and no graph of torch's own."""
    with full_precision(device), torch.no_grad():
        yield


Trained = tuple[Parameters, np.ndarray]
"""What is trained of a module, and its last iterate."""
EXACT = ", exact sums at any place"
"""What checkpoints know of exact sums."""


def iterate_module(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: object,
    data: object,
    key: Key | None = None,
    *,
    microbatch: int | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    executed_as: Arithmetic | None = None,
    optimizer: Make | None = None,
    augment: Augment | None = None,
    by_step: bool = False,
    processes: Processes | None = None,
) -> Steps[Trained]:
    """Execute ``run`` on ``loss(module(x), *rest)``, one record at a time, in pauses; to what is
    trained, and its last iterate.

    ``executed_as``: another arithmetic of the sums, and their noise (``exact``). ``optimizer``:
    what makes the steps. ``augment``: of what the module takes.

    **Guarantee:** exactly the run that is accounted: per-record clips, noise at every step, no
    other output. The module that was given is not changed.
    """
    given, processes = (
        (run, model, loss, data, microbatch, optimizer, augment),
        processes or Processes(),
    )
    exact, device = executed_as is not None, processes.layer_device
    prepared = prepare(*given, exact=exact, device=device)

    def records() -> Iterator[np.ndarray]:
        return (leaf.cpu().numpy() for leaf in tree_leaves(prepared.records))

    key, checkpoint, initial = begin_together(
        processes, run, records, key, checkpoint, prepared, EXACT if exact else ""
    )
    if not np.array_equal(initial, prepared.initial):
        prepared = prepare(*given, initial, exact=exact, device=device)
    prepared = replace(prepared, processes=processes)
    prepared, draws = (prepared, None) if executed_as is None else executed_as(prepared, key)
    steps = prepared.iterate(key, progress, checkpoint, draws, by_step=by_step)
    parameters = prepared.summed.parameters
    return (yield from map_steps(lambda theta: (parameters, theta), steps))


def fit_module(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: object,
    data: object,
    key: Key | None = None,
    **more: Any,
) -> Trained:
    """Make all steps of ``iterate_module``."""
    return run_to_end(iterate_module(run, model, loss, data, key, **more))


def iterate_in_pieces(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: object,
    source: Source,
    key: Key | None = None,
    *,
    microbatch: int | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    folder: Path | None = None,
    executed_as: Arithmetic | None = None,
    optimizer: Make | None = None,
    augment: Augment | None = None,
    by_step: bool = False,
    processes: Processes | None = None,
) -> Steps[Trained]:
    """As ``iterate_module``, on a source's records; ``folder``: for scratch files (see
    ``Scratch``).

    **Guarantee:** that of ``iterate_module``, with the draws and noise of a run in memory with this
    key. Exact sums have the bits that they have in memory, whichever records come in one piece.
    """
    given = run, model, loss, source, microbatch, optimizer, augment
    processes = processes or Processes()
    exact, layer_device = executed_as is not None, processes.layer_device
    prepared = prepare(*given, exact=exact, device=layer_device)
    key, checkpoint, initial = begin_together(
        processes, run, source.fingerprint, key, checkpoint, prepared, EXACT if exact else ""
    )
    if not np.array_equal(initial, prepared.initial):
        prepared = prepare(*given, initial, exact=exact, device=layer_device)
    prepared = replace(prepared, processes=processes)
    prepared, draws = (prepared, None) if executed_as is None else executed_as(prepared, key)
    summed = prepared.summed
    device, constants = summed.device, summed.parameters.copy_constants(summed.dtype)
    order, again = host_stream(key, ORDER), prepared.again_and_again

    def sums(point: np.ndarray, piece: Piece, keys: np.ndarray | None) -> np.ndarray:
        part = replace(again, records=tensors_of(piece))
        return part.total(point, constants, torch.arange(len(piece[0])), None, keys)

    part = (processes.rank, processes.count)
    own = (0, 1) if run.batching.streams == "in order" else part  # there each reads all batches
    with (
        closing(again_and_again(run, source, folder, part=own)) as records,
        closing(
            Passes(
                run,
                number_records(run, records.source),
                partial(checked_stream, run),
                order,
                folder,
                part=part,
            )
        ) as passes,
    ):
        steps = iterate_streamed(
            replace(prepared.loop, draws=draws),
            prepared.initial,
            sums,
            passes,
            key,
            progress,
            checkpoint,
            by_step=by_step,
        )
        steps = resume_within(partial(without_gradients, device), steps)
        trained = yield from map_steps(lambda theta: (summed.parameters, theta), steps)
    check_constants(summed, constants)
    return trained


def fit_in_pieces(
    run: Run,
    model: torch.nn.Module | Grouped,
    loss: object,
    source: Source,
    key: Key | None = None,
    **more: Any,
) -> Trained:
    """Make all steps of ``iterate_in_pieces``."""
    return run_to_end(iterate_in_pieces(run, model, loss, source, key, **more))


# Modules whose records are units of several rows, such as an author's texts: a unit's gradient is
# that of a mean.


class PerUnit(torch.nn.Module):
    """A module on protected units, each with several rows.

    Inputs and outputs have an axis of rows after the axis of records. `train` takes it together
    with a ``UnitLoss``. Outputs for single rows remain, in tuples, dictionaries and the output
    classes of Hugging Face models.

    A released model names parameters as ``module`` does. ``lastiterate.load(folder, like=module)``
    is therefore the model for single rows, with the same certificate.

    Parameters
    ----------
    module : torch.nn.Module
        Module on rows; it stays available as ``module``.

    Raises
    ------
    InputError
        If ``module`` is no module.

    Examples
    --------
    >>> import torch
    >>> from lastiterate.torch import PerUnit
    >>> PerUnit(torch.nn.Linear(3, 2))(torch.ones(5, 4, 3)).shape
    torch.Size([5, 4, 2])
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        if not isinstance(module, torch.nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("module", "must be a torch.nn.Module", type(module).__name__)
        self.module = module

    def forward(self, *inputs: object, **named: object) -> Any:
        units, rows = tree_leaves((inputs, named))[0].shape[:2]
        inputs, named = tree_map(lambda given: given.flatten(0, 1), (inputs, named))
        output = self.module(*inputs, **named)
        made = split_by_record(
            output, units * rows, lambda tensor: tensor.unflatten(0, (units, rows))
        )
        return _restore_class(output, made)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Take the names of the released model too, which are those of ``module``."""
        own = {name for name in state_dict if name.startswith(prefix)}
        if not any(name.startswith(prefix + WRAPPED) for name in own):
            for name in own:
                inner = name.removeprefix(prefix)
                state_dict[prefix + WRAPPED + inner] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *others)


Part = TypeVar("Part")
WRAPPED = "module."
"""What the names of parameters begin with in ``PerUnit``."""


COMPILED = "_orig_mod."
"""What they begin with in a module that ``torch.compile`` returned."""


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The module on rows where ``module`` runs it on units, or compiles it; any other as it is."""
    while prefix := _wrapper_prefix(module):
        module = getattr(module, prefix.removesuffix("."))
    return module


def _wrapper_prefix(module: torch.nn.Module) -> str:
    """What names of parameters begin with in a wrapper around a module; "" for any other module."""
    if isinstance(module, PerUnit):
        return WRAPPED
    return COMPILED if type(module).__name__ == "OptimizedModule" else ""


def answers_for_units(module: torch.nn.Module) -> bool:
    """Whether it takes units of several rows."""
    return any(isinstance(part, PerUnit) for part in module.modules())


def unwrap_names(module: torch.nn.Module, by_name: Mapping[str, Part]) -> dict[str, Part]:
    """What a module has, by the names in the module on rows."""
    named = dict(by_name)
    while prefix := _wrapper_prefix(module):
        named = {name.removeprefix(prefix): each for name, each in named.items()}
        module = getattr(module, prefix.removesuffix("."))
    return named


def _restore_class(output: object, parts: Any) -> Any:
    """Parts of an output by name in the output's own class, where torch looks into its objects."""
    if not isinstance(parts, dict) or type(output) is dict or type(output) not in SUPPORTED_NODES:
        return parts
    try:
        return cast("Callable[..., Any]", type(output))(**parts)
    except TypeError:  # a class that is made of something else
        return parts


def loss_of(loss: Loss | UnitLoss) -> Loss:
    """The loss of a record: of ``UnitLoss`` the mean over the rows that are there, as
    ``loss(output, present, *rest)``; any other as it is."""
    if not isinstance(loss, UnitLoss):
        return loss

    def mean(output: object, present: torch.Tensor, *rest: object) -> torch.Tensor:
        if present.shape != (loss.rows,):
            raise ValueError(
                f"present must be {loss.rows} numbers for each unit, not {tuple(present.shape)}"
            )
        each = vmap(loss.loss)(output, *rest)
        return torch.where(present > 0, each, 0.0).sum() / loss.rows

    return mean
