"""Train one module in several processes that torch.distributed connects."""

# pyright: reportMissingImports=false
from __future__ import annotations

import atexit
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from lastiterate.engine.checkpoint import Checkpoint, FollowedCheckpoint, versions
from lastiterate.engine.checkpoint import Key as Secret
from lastiterate.engine.random import Key, fresh_key
from lastiterate.errors import InputError
from lastiterate.release.jax_processes import check_variables
from lastiterate.release.training_request import Processes, TrainingRequest, is_source
from lastiterate.run.run import Run
from lastiterate.torch.gradient_graphs import identity
from lastiterate.torch.module_optimizer import ModuleOptimizer, name_of
from lastiterate.torch.parameters import Grouped
from lastiterate.torch.record_gradients import PerRecord, full_precision, to_theta
from lastiterate.torch.records import whole
from lastiterate.torch.trial_training import digest
from lastiterate.torch.vectorisation_checks import draw_parameters, make_synthetic_records, normal

# Every process has the module and the records. Each computes the clipped gradients of its own
# positions of every batch, one ``all_reduce`` adds up the sums, and the rest of a step, its noise
# too, is the same computation from the same key in each of them: noise is added once.

Value = TypeVar("Value")
SAME = "start every process with one script and the same arguments"
REMEDIES = {
    "model": "call torch.manual_seed before you build the module, or give it in "
    "DistributedDataParallel, which sends the parameters of process 0",
    "data": "let every process read the same records in the same order",
    "processes": "start them on machines of one kind, with the same versions of all libraries and "
    "the same OMP_NUM_THREADS",
}
"""What to do about an argument that differs between processes, where ``SAME`` does not say it."""
CHECKSUM = 2**62 - 1


def join_processes(model: object) -> tuple[Processes, Any]:
    """The processes that a launcher started to train ``model``, and the module inside of its
    replicas; one process where there is none.

    Errors: a launcher that sets some of its variables only.
    """
    return _join(), unwrap_replicas(model)


def unwrap_replicas(model: Any) -> Any:
    """The module inside of ``DistributedDataParallel``; any other as it is."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _join() -> Processes:
    if not distributed.is_available():
        return Processes()
    if not distributed.is_initialized():
        if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
            return Processes()
        check_variables()
        with _explain_loss():
            distributed.init_process_group("gloo")
        atexit.register(_leave_job)
    return SeveralProcesses() if distributed.get_world_size() > 1 else Processes()


def _leave_job() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


class SeveralProcesses(Processes):
    """All processes of a job as this one sees them, in a group of its own.

    **Guarantee:** processes meet in the same order, and each meeting begins with a word by which
    one that fails tells all others: each of them then ends in the same sentence. One that is lost
    closes its connections, which ends all others too.
    """

    def __init__(self, group: Any = None) -> None:
        self._meeting = False
        self._device = torch.device("cpu")
        self._sums: Any = None
        with _explain_loss():
            self._group: Any = distributed.new_group(backend="gloo") if group is None else group
        self.rank = distributed.get_rank(self._group)
        self.count = distributed.get_world_size(self._group)

    def __exit__(self, kind: type[BaseException] | None, error: Any, _: object) -> None:
        """Leave, and tell the others of an error, unless it came out of a meeting."""
        if self._group is None:
            return
        try:
            if error is not None and kind is not GeneratorExit and not self._meeting:
                with suppress(InputError), self._meet():
                    self._agree(error=error)
        finally:
            self._leave()

    def use_device(self, device: torch.device) -> None:
        """Add sums up by NCCL where the module is on a GPU."""
        if device.type == "cuda" and distributed.is_nccl_available():
            self._device = device
            with self._meet():
                torch.cuda.set_device(device)
                ranks = distributed.get_process_group_ranks(self._group)
                self._sums = distributed.new_group(ranks, backend="nccl")

    def check_same(self, **facts: str) -> None:
        with self._meet():
            self._agree()
            every = self._gather(facts)
            for name in facts:
                for other, theirs in enumerate(every):
                    if theirs[name] != every[0][name]:
                        raise InputError(
                            name,
                            f"must be the same in every process, and process {other} has another "
                            "than process 0; nothing was released",
                            None,
                            REMEDIES.get(name, SAME),
                        )

    def send(self, make: Callable[[], Value]) -> Value:
        value = make() if self.rank == 0 else None
        with self._meet():
            self._agree()
            return self._broadcast(value)

    def add(self, point: np.ndarray, own: np.ndarray) -> np.ndarray:
        with self._meet():
            self._agree(point)
            total = torch.from_numpy(own).to(self._device)
            self._reduce(total, distributed.ReduceOp.SUM, self._sums)
            return total.cpu().numpy()

    @contextmanager
    def _meet(self) -> Generator[None]:
        """Remember that others wait here: an error needs no word then, it ends them."""
        self._meeting = True
        with _explain_loss():
            yield
        self._meeting = False

    def _agree(self, point: np.ndarray | None = None, error: BaseException | None = None) -> None:
        """Return where no process has failed and all have one point; end in one sentence elsewhere."""
        words = 0 if point is None else int(point.view(np.int64).sum()) & CHECKSUM
        word = torch.tensor([error is not None, words, -words])
        self._reduce(word, distributed.ReduceOp.MAX)
        failed, most, least = word.tolist()
        if failed:
            failures = self._gather(None if error is None else _describe_failure(self.rank, error))
            raise InputError(*next(each for each in failures if each is not None))
        if most != -least:
            raise InputError(
                "processes",
                "must have the same parameters in every step, and their bits differ; nothing was "
                "released",
                None,
                REMEDIES["processes"],
            )

    def _reduce(self, tensor: torch.Tensor, how: Any, group: Any = None) -> None:
        """Put into ``tensor`` the sum or the maximum of those of all processes."""
        distributed.all_reduce(tensor, how, group=self._group if group is None else group)

    def _gather(self, value: object) -> list[Any]:
        """The values of all processes, by rank."""
        held: list[Any] = [None] * self.count
        distributed.all_gather_object(held, value, group=self._group)
        return held

    def _broadcast(self, value: Any) -> Any:
        """The value of the first process."""
        held = [value]
        distributed.broadcast_object_list(held, group=self._group, group_src=0)
        return held[0]

    def _leave(self) -> None:
        """Close the connections to the others."""
        for group in (self._sums, self._group):
            if group is not None and distributed.is_initialized():
                with suppress(RuntimeError, ValueError):
                    distributed.destroy_process_group(group)
        self._group = self._sums = None


@contextmanager
def _explain_loss() -> Generator[None]:
    """Say in one sentence that another process is gone."""
    try:
        yield
    except InputError:
        raise
    except (RuntimeError, ValueError):
        raise InputError(
            "processes",
            "must all take part to the end, and one of them stopped or cannot be reached; nothing "
            "was released",
            None,
            "look at what it printed, and start all of them again",
        ) from None


def _describe_failure(rank: int, error: BaseException) -> tuple[str, str]:
    """An error as the other processes raise it; of one that is no refusal its type alone, because
    its text may show a record."""
    if isinstance(error, InputError):
        return error.argument, error.rule.removesuffix(".")
    return (
        "processes",
        f"must all take part to the end, and {type(error).__name__} ended process {rank}; nothing "
        "was released",
    )


# What processes compare: before the charge all that is public, and records behind it.


def check_public(
    order: TrainingRequest,
    rule: ModuleOptimizer | None,
    tried: tuple[PerRecord, np.ndarray, tuple[Any, ...]] | None,
) -> None:
    """Refuse processes that were given different runs, models or forms of data; nothing is charged
    yet, and no value of a record is looked at.

    ``tried``: the sums, the first parameters and the form of records, where they are known before a
    record is read."""
    processes = order.processes
    if not isinstance(processes, SeveralProcesses):
        return
    module = order.model.module if isinstance(order.model, Grouped) else order.model
    speeds = sorted(order.model.speeds.items()) if isinstance(order.model, Grouped) else ""
    tensors = {name: each.detach() for name, each in module.named_parameters()}
    trained = [name for name, each in module.named_parameters() if each.requires_grad]
    device = next(iter(tensors.values())).device
    processes.check_same(
        run=f"{order.certificate.run.to_json()} {order.exact} {order.by_step} {order.seed}",
        epsilon=f"{order.budget} {order.delta}",
        processes=f"{versions()} {torch.__version__} {sys.version} {_describe_machine(device)}",
        model=f"{type(module)} {trained} {speeds} {digest(tensors | dict(module.named_buffers()))}",
        data=_describe_form(order.data),
        loss="" if tried is None else _describe_program(*tried),
        optimizer="" if rule is None else _describe_optimizer(rule, order.certificate.run.steps),
    )
    processes.use_device(device)


def _describe_machine(device: torch.device) -> str:
    """What may change the last bits of a gradient."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{device.type} {card} {capability} {torch.get_num_threads()}"


def _describe_form(data: Any) -> str:
    """The kind of data, and how many records of which shapes they are."""
    if is_source(data) or isinstance(data, torch.utils.data.Dataset):
        return f"{type(data)} {len(data)}"  # pyright: ignore

    def describe_part(part: Any) -> str:
        return f"{type(part)} {np.shape(part)} {getattr(part, 'dtype', '')}"

    return str(tree_map(describe_part, whole(data)))


def _describe_program(summed: PerRecord, initial: np.ndarray, records: tuple[Any, ...]) -> str:
    """The traced gradient of one record; "" of code that torch cannot trace."""
    try:
        return identity(summed, to_theta(initial, summed.parameters.device), records)
    except InputError:
        return ""


def _describe_optimizer(rule: ModuleOptimizer, steps: int) -> str:
    """Classes and settings at every step; names of classes that are not torch's own."""
    try:
        return rule.identity(steps)
    except InputError:
        return name_of(rule.make, rule.shapes)


def begin_together(
    processes: Processes,
    run: Run,
    records: Callable[[], Iterable[Any]],
    key: Key | None,
    checkpoint: Checkpoint | None,
    prepared: Any,
    arithmetic: str = "",
) -> tuple[Key, Any, np.ndarray]:
    """Return the key of the first process, for all of them, with which the run begins or resumes
    from its checkpoint; the checkpoint; and the first parameters.

    ``prepared``: the module as ``prepare`` gives it. ``arithmetic``: what distinguishes that of the
    sums. Errors: processes that read other records,
    or whose gradients have other bits."""
    if processes.count > 1:
        secret = Secret(processes.send(lambda: os.urandom(32)))
        processes.check_same(
            data=secret.digest(records()),
            processes=f"{prepared.most} {_compute_synthetic_sum(prepared)}",
        )

    def begin() -> tuple[Key, np.ndarray | None, Any]:
        if checkpoint is None:
            return fresh_key() if key is None else key, None, None
        known = prepared.identity + arithmetic
        own = checkpoint.begin(run, records(), key, known, prepared.initial)
        return own, checkpoint.initial, checkpoint.state

    key, initial, state = processes.send(begin)
    if initial is None:
        return key, None, prepared.initial
    processes.kept = checkpoint or FollowedCheckpoint(initial, state)
    return key, processes.kept, initial


def _compute_synthetic_sum(prepared: Any) -> str:
    """The bits of a sum of gradients of synthetic records; "" on a GPU, where they may differ from
    call to call."""
    summed = prepared.summed
    device = summed.parameters.device
    if device.type != "cpu":
        return ""
    records = make_synthetic_records(prepared.formed, summed.dtype, normal, 2, varied=False)
    with full_precision(device), torch.no_grad():
        theta = draw_parameters(to_theta(prepared.initial, device))
        constants = summed.parameters.copy_constants(summed.dtype)
        return hashlib.sha256(
            summed.chunk_sum(theta, constants, records).numpy().tobytes()
        ).hexdigest()
