"""Train one module in several processes that torch.distributed connects."""

# pyright: reportMissingImports=false
from __future__ import annotations

import atexit
import copy
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

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
from lastiterate.torch.module_requirements import check_hooks
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
    replicas, or a copy on the host of one that ``fully_shard`` sharded; one process where there is
    none.

    Errors: a launcher that sets some of its variables only; what cannot be copied.
    """
    processes, model = _join(), unwrap_replicas(model)
    if not find_sharded_parts(model):
        return processes, model
    whole: Any = model.module if isinstance(model, Grouped) else model
    try:
        processes.layer_device = check_sharded(whole)
        processes.check_same(model=f"sharded: {_describe_sharded(whole)}")
        plain = copy_to_host(whole)
    except BaseException as error:
        processes.__exit__(type(error), error, error.__traceback__)
        raise
    return processes, replace(model, module=plain) if isinstance(model, Grouped) else plain


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


# Modules that ``fully_shard`` sharded, into parts of which every process holds one. Its hooks gather the
# parts of a layer for a batch, and add up gradients of a batch: neither is per record, and hooks do
# not work under ``vmap``. So every process trains a copy on the host, without these hooks, and has
# one layer at a time on its device (``HostWeights``).


FSDP = "torch.distributed.fsdp"
FSDP_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
"""What ``fully_shard`` writes into parts of a module."""
BEFORE = "give the module before fully_shard"


def find_sharded_parts(model: Any) -> list[Any]:
    """The parts of a module to which ``fully_shard`` was applied."""
    module = model.module if isinstance(model, Grouped) else model
    parts = module.modules() if isinstance(module, torch.nn.Module) else ()
    return [part for part in parts if _class_before(part) is not None]


def _class_before(part: Any) -> type | None:
    """The class that a part had before ``fully_shard``; None of any other part."""
    if FSDP not in sys.modules:  # it takes seconds to import, and some builds of torch lack it
        return None
    from torch.distributed.fsdp import FSDPModule

    order = type(part).__mro__
    return order[2] if order[1] is FSDPModule else None


def check_sharded(module: torch.nn.Module) -> torch.device:
    """Refuse parts that cannot be put together in every process; return the device of this one."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    check_hooks(module)
    world, devices = distributed.get_world_size(), set[torch.device]()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise InputError(
                "model",
                "must have parameters with numbers in them",
                name,
                "call to_empty and initialise them first",
            )
        _check_mesh(_mesh_of(tensor), name, world)
    for part in find_sharded_parts(module):
        state, name = part._get_fsdp_state(), type(part).__name__
        devices.add(state._device)
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
            # parameters that are whole for a moment have no mesh themselves
            _check_mesh(None if group is None else group.mesh_info.mesh, name, world)
        policy = state._mp_policy
        if policy != MixedPrecisionPolicy(cast_forward_inputs=policy.cast_forward_inputs):
            raise InputError(
                "model",
                "must be sharded without a policy that casts: gradients are computed, clipped and "
                "added in single precision at least",
                str(policy),
                "leave mp_policy out, and write torch.autocast in forward",
            )
        if _has_own_copy(_class_before(part)):
            raise InputError(
                "model", "must have parts that are copied as torch copies modules", name, BEFORE
            )
    if len(devices) != 1:
        raise InputError("model", "must be sharded for one device in each process", None, BEFORE)
    return devices.pop()


def _check_mesh(mesh: Any, name: str, world: int) -> None:
    """Refuse a mesh, None of a plain tensor, that has not all processes along one axis."""
    if mesh is not None and (mesh.ndim != 1 or mesh.size() != world):
        raise InputError(
            "model",
            f"must be sharded over all {world} processes of the job, along one axis",
            f"a mesh of shape {tuple(mesh.shape)} for {name!r}",
            f"call fully_shard with mesh=init_device_mesh({mesh.device_type!r}, ({world},))",
        )


def _mesh_of(tensor: torch.Tensor) -> Any:
    """The mesh over which a tensor is sharded; None of a plain one."""
    from torch.distributed.tensor import DTensor

    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def _has_own_copy(kind: Any) -> bool:
    """Whether a class says itself how it is copied."""
    ways = ("__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")
    own = kind.__mro__[: kind.__mro__.index(torch.nn.Module)]
    return any(way in vars(base) for base in own for way in ways)


def _describe_sharded(module: torch.nn.Module) -> str:
    """The parameters in the order in which all processes put them together."""
    return str([(name, each.shape, str(each.dtype)) for name, each in module.named_parameters()])


def copy_to_host(module: torch.nn.Module) -> torch.nn.Module:
    """A plain copy of a module that ``fully_shard`` sharded: classes, hooks and attributes are those
    from before, and parameters and buffers lie whole on the CPU. All processes make it together;
    the module stays as it is."""
    copied = dict[int, Any]()
    for tensor in (*module.parameters(), *module.buffers()):
        copied[id(tensor)] = _gather_tensor(tensor)
    parts = list(module.modules())
    for part in parts:
        kind: Any = _class_before(part) or type(part)
        if kind is not type(part) or _drop_hooks(vars(part))[1]:
            copied[id(part)] = kind.__new__(kind)
    for part in parts:
        if id(part) in copied:
            # a part that another one refers to is copied with it
            vars(copied[id(part)]).update(copy.deepcopy(_drop_traces(vars(part)), copied))
    plain = copy.deepcopy(module, copied)
    for part in plain.modules():
        for mark in FSDP_MARKS:
            vars(part).pop(mark, None)
    return plain


def _gather_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A whole copy of a tensor on the CPU."""
    held, mesh = tensor.detach(), _mesh_of(tensor)
    if mesh is not None:  # on the mesh's device, where processes can exchange them
        held = cast("Any", held.to(mesh.device_type)).full_tensor()
    held = held.to("cpu", copy=True)
    if not isinstance(tensor, torch.nn.Parameter):
        return held
    return torch.nn.Parameter(held, requires_grad=tensor.requires_grad)


def _drop_traces(held: dict[str, Any]) -> dict[str, Any]:
    """What a module holds without what ``fully_shard`` wrote there."""
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY

    others = {
        name: each
        for name, each in _drop_hooks(held)[0].items()
        if name not in ("_compiled_call_impl", *FSDP_MARKS) and not _is_of_fsdp(each)
    }
    for name in {STATE_KEY, REGISTRY_KEY} & others.keys():  # by functions, and by their names
        kept = {
            api: each
            for api, each in others.pop(name).items()
            if getattr(api, "__name__", api) != "fully_shard"
        }
        others |= {name: kept} if kept else {}
    return others


def _drop_hooks(held: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """What a module holds without hooks of FSDP, and the numbers of those."""
    hooks = {name: each for name, each in held.items() if _holds_hooks(name, each)}
    dropped = [
        number
        for each in hooks.values()
        for number, hook in each.items()
        if callable(hook) and _is_of_fsdp(hook)
    ]
    others = {
        name: type(each)((number, hook) for number, hook in each.items() if number not in dropped)
        for name, each in hooks.items()
    }
    return held | others, dropped


def _holds_hooks(name: str, value: object) -> bool:
    return "_hooks" in name and isinstance(value, dict)


def _is_of_fsdp(hook: Any) -> bool:
    """Whether FSDP's code defines a function, bound or wrapped."""
    function = getattr(hook, "hook", hook)  # of a wrapper that ``torch.nn.Module`` makes
    function = getattr(function, "func", getattr(function, "__func__", function))
    homes = (
        getattr(function, "__module__", None),
        getattr(function, "__globals__", {}).get("__name__"),
    )
    return callable(hook) and any(str(home).startswith(FSDP) for home in homes)


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
                    if theirs.get(name) != every[0].get(name):
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
    if order.exact and processes.layer_device is not None:
        raise InputError(
            "secure_noise",
            "must be False for a module that fully_shard sharded, because exact sums hold every "
            "record's whole gradient",
            True,
            f"leave it out, or {BEFORE}",
        )
    if not isinstance(processes, SeveralProcesses):
        return
    module = order.model.module if isinstance(order.model, Grouped) else order.model
    speeds = sorted(order.model.speeds.items()) if isinstance(order.model, Grouped) else ""
    tensors = {name: each.detach() for name, each in module.named_parameters()}
    trained = [name for name, each in module.named_parameters() if each.requires_grad]
    device = next(iter(tensors.values())).device
    computed = processes.layer_device or device
    processes.check_same(
        run=f"{order.certificate.run.to_json()} {order.exact} {order.by_step} {order.seed}",
        epsilon=f"{order.budget} {order.delta}",
        processes=f"{versions()} {torch.__version__} {sys.version} {_describe_machine(computed)}",
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
    if summed.device.type != "cpu":
        return ""
    records = make_synthetic_records(prepared.formed, summed.dtype, normal, 2, varied=False)
    with full_precision(device), torch.no_grad():
        theta = draw_parameters(to_theta(prepared.initial, device))
        constants = summed.parameters.copy_constants(summed.dtype)
        return hashlib.sha256(
            summed.chunk_sum(theta, constants, records).numpy().tobytes()
        ).hexdigest()
