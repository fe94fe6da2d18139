"""Replace the parts of a module that mix records or draw random numbers."""

# pyright: reportMissingImports=false
from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch.nn.utils.rnn import PackedSequence

from lastiterate.errors import InputError
from lastiterate.torch.module_requirements import (
    FUSED,
    MIXING,
    RANDOM,
    SPREAD,
    check_hooks,
    check_whole,
)

# Recurrent layers of ordinary operations, one time step after the other: ``torch.func.vmap`` takes
# them.


States = tuple[torch.Tensor, ...]
"""The hidden state of a layer, and of an LSTM its cell state, (batch, width) each."""

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""Parameters of a layer in one direction."""


class UnrolledRecurrence(torch.nn.Module):
    """``torch.nn.LSTM``, ``GRU`` or ``RNN`` with the very parameters of ``layer`` under their
    names, and its outputs.

    A state dictionary of one is a state dictionary of the other. Inputs are tensors: sequences of
    one length, filled up where they differ. Dropout between layers is left out.
    """

    def __init__(self, layer: torch.nn.RNNBase) -> None:
        super().__init__()
        self.mode, self.batch_first, self.num_layers = (
            layer.mode,
            layer.batch_first,
            layer.num_layers,
        )
        self.directions, self.hidden_size = 2 if layer.bidirectional else 1, layer.hidden_size
        self.proj_size = layer.proj_size
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self.train(layer.training)

    def extra_repr(self) -> str:
        return f"{self.mode}, {self.num_layers} layers, {self.directions} directions"

    def forward(self, values: torch.Tensor, first: object = None) -> tuple[torch.Tensor, Any]:
        """As the layer's: outputs of all time steps, and the last states of every layer and
        direction."""
        if isinstance(values, PackedSequence):
            raise InputError(
                "model",
                "must be given sequences as tensors, not packed ones",
                None,
                "fill them up to one length, and leave the rest out in the loss",
            )
        alone = values.dim() == 2
        values = (
            values.unsqueeze(0) if alone else values if self.batch_first else values.transpose(0, 1)
        )
        begins = self._begin(values, first, alone)
        ends = list[States]()
        for layer in range(self.num_layers):
            parts = list[torch.Tensor]()
            for direction in range(self.directions):
                number = layer * self.directions + direction
                states = tuple(each[number] for each in begins)
                outputs, end = self._through(
                    values, states, f"_l{layer}" + "_reverse" * direction, direction == 1
                )
                parts.append(outputs)
                ends.append(end)
            values = torch.cat(parts, dim=-1)
        last = tuple(torch.stack(each) for each in zip(*ends, strict=True))
        if alone:
            values, last = values.squeeze(0), tuple(each.squeeze(1) for each in last)
        else:
            values = values if self.batch_first else values.transpose(0, 1)
        return values, last if self.mode == "LSTM" else last[0]

    def _begin(self, values: torch.Tensor, first: Any, alone: bool) -> States:
        """The first states, (layers, batch, width) each: 0 where none are given."""
        if first is not None:
            given = first if self.mode == "LSTM" else (first,)
            return tuple(each.unsqueeze(1) for each in given) if alone else tuple(given)
        widths = (
            self.proj_size or self.hidden_size,
            *((self.hidden_size,) if self.mode == "LSTM" else ()),
        )
        return tuple(
            values.new_zeros(self.num_layers * self.directions, values.shape[0], width)
            for width in widths
        )

    def _through(
        self, values: torch.Tensor, states: States, end: str, backwards: bool
    ) -> tuple[torch.Tensor, States]:
        """One layer in one direction: outputs (batch, time, width), and the last states."""
        held: dict[str, torch.Tensor | None] = {
            name: self._parameters.get(name + end) for name in NAMES
        }
        weight = held["weight_ih"]
        assert weight is not None
        moved = functional.linear(
            values, weight, held["bias_ih"]
        )  # of all time steps at once: one use of the weight
        steps = range(values.shape[1])
        hidden = list[torch.Tensor]()
        for time in reversed(steps) if backwards else steps:
            states = self._step(moved[:, time], states, held)
            hidden.append(states[0])
        return torch.stack(hidden[::-1] if backwards else hidden, dim=1), states

    def _step(
        self, moved: torch.Tensor, states: States, held: dict[str, torch.Tensor | None]
    ) -> States:
        """One time step, from what the input contributes."""
        weight, projection = held["weight_hh"], held["weight_hr"]
        assert weight is not None
        own = functional.linear(states[0], weight, held["bias_hh"])
        hidden, *cell = recurrent_step(self.mode, moved, own, states)
        return hidden if projection is None else functional.linear(hidden, projection), *cell


def recurrent_step(mode: str, moved: torch.Tensor, own: torch.Tensor, states: States) -> States:
    """The next states, from what the input (``moved``) and the hidden state (``own``) contribute."""
    if mode == "LSTM":
        enter, forget, new, leave = (moved + own).chunk(4, dim=-1)
        cell = forget.sigmoid() * states[1] + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * cell.tanh(), cell
    if mode == "GRU":
        (reset, keep, new), (own_reset, own_keep, own_new) = (
            moved.chunk(3, dim=-1),
            own.chunk(3, dim=-1),
        )
        new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        keep = (keep + own_keep).sigmoid()
        return ((1 - keep) * new + keep * states[0],)
    return ((moved + own).relu() if mode == "RNN_RELU" else (moved + own).tanh(),)


CELLS = {torch.nn.LSTMCell: "LSTM", torch.nn.GRUCell: "GRU", torch.nn.RNNCell: "RNN"}


class UnrolledCell(torch.nn.Module):
    """``torch.nn.LSTMCell``, ``GRUCell`` or ``RNNCell`` with the very parameters of ``cell`` under
    their names, and its outputs."""

    weight_ih: torch.Tensor
    weight_hh: torch.Tensor
    bias_ih: torch.Tensor | None
    bias_hh: torch.Tensor | None

    def __init__(self, cell: torch.nn.RNNCellBase) -> None:
        super().__init__()
        relu = getattr(cell, "nonlinearity", "") == "relu"
        self.mode = CELLS[type(cell)] + ("_RELU" if relu else "")
        self.hidden_size = cell.hidden_size
        for name in NAMES[:4]:
            self.register_parameter(name, getattr(cell, name))
        self.train(cell.training)

    def extra_repr(self) -> str:
        return f"{self.mode}, hidden size {self.hidden_size}"

    def forward(self, values: torch.Tensor, first: Any = None) -> Any:
        """As the cell's: the next hidden state, and of an LSTM the next cell state."""
        if first is None:
            zeros = values.new_zeros(*values.shape[:-1], self.hidden_size)
            first = (zeros, zeros) if self.mode == "LSTM" else zeros
        states = first if self.mode == "LSTM" else (first,)
        moved = functional.linear(values, self.weight_ih, self.bias_ih)
        own = functional.linear(states[0], self.weight_hh, self.bias_hh)
        ends = recurrent_step(self.mode, moved, own, states)
        return ends if self.mode == "LSTM" else ends[0]


MOST_GROUPS, LEAST_CHANNELS = 32, 4
"""Groups of a normalisation at most, and channels in one of them at least (Wu and He 2018 have 32
and 16)."""


class PrivateVersion(NamedTuple):
    """A module that can be trained privately, with a list of its changes.

    Parameters
    ----------
    module : torch.nn.Module
        Changed copy.
    changed : tuple of str
        One line for every changed part.

    See Also
    --------
    private_version : Make it.

    Examples
    --------
    >>> import torch
    >>> from lastiterate.torch import private_version
    >>> private_version(torch.nn.Linear(3, 2)).changed
    ()
    """

    module: torch.nn.Module
    changed: tuple[str, ...]


def private_version(module: torch.nn.Module) -> PrivateVersion:
    """Copy a module without parts that mix records or hide gradients.

    Batch normalisation becomes group normalisation within a record, with the same weights and
    without collected statistics, so predictions change. Dropout is switched off, inside of
    attention too: probabilities that a part keeps as a number become 0. Instance
    normalisation collects no statistics. LSTM, GRU and RNN, and their cells, become layers of
    ordinary operations with the same parameters and, up to rounding, the same outputs. Copies to
    several devices are removed.

    Parameters
    ----------
    module : torch.nn.Module
        Module; it stays as it is.

    Returns
    -------
    PrivateVersion
        Changed copy, and one line for every change.

    Raises
    ------
    InputError
        If ``module`` is no module, has a lazy part without parameters, is shared with other
        processes, or has hooks on gradients, which a copy would lose.

    Examples
    --------
    >>> import torch
    >>> from lastiterate.torch import private_version
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8))
    >>> private_version(net).changed
    ('1: BatchNorm1d is GroupNorm(1, 8)',)
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            "module", "must be a torch.nn.Module", type(module).__name__, "give the module itself"
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, torch.nn.UninitializedParameter | torch.nn.UninitializedBuffer):
            raise InputError(
                "module",
                "must have parts that have seen a batch",
                name,
                "run a lazy module on a synthetic batch first",
            )
    changed = list[str]()
    if isinstance(module, SPREAD):
        changed.append(f"{type(module).__name__}: the module inside of it")
        module = module.module
    check_whole(module)
    check_hooks(module)
    own = copy.deepcopy(module)
    done = dict[int, torch.nn.Module]()
    for name, part in list(own.named_modules(remove_duplicate=False)):
        if id(part) not in done:
            done[id(part)] = new = _replace_part(part)
            for said in (_describe_change(part, new), _stop_dropping(new)):
                if said is not None:
                    changed.append(f"{name or 'the module'}: {said}")
        if done[id(part)] is not part:
            parent, _, last = name.rpartition(".")
            if name:
                setattr(own.get_submodule(parent), last, done[id(part)])
            else:
                own = done[id(part)]
    return PrivateVersion(own, tuple(changed))


def _replace_part(part: torch.nn.Module) -> torch.nn.Module:
    """What stands in the place of a part."""
    if isinstance(part, FUSED) and type(part) in FUSED:  # a subclass may do anything else
        return UnrolledRecurrence(part)
    if type(part) in CELLS:
        assert isinstance(part, torch.nn.RNNCellBase)
        return UnrolledCell(part)
    return _to_group_norm(part) if isinstance(part, MIXING) else part


def _describe_change(part: torch.nn.Module, new: torch.nn.Module) -> str | None:
    """What was changed about a part, which is changed where it may stay."""
    if isinstance(new, torch.nn.GroupNorm) and new is not part:
        return f"{type(part).__name__} is GroupNorm({new.num_groups}, {new.num_channels})"
    if isinstance(new, UnrolledRecurrence) and isinstance(part, FUSED):
        dropped = ", without its dropout" if part.dropout > 0 and part.num_layers > 1 else ""
        return f"{type(part).__name__} is made of ordinary operations, one time step after the other{dropped}"
    if isinstance(new, UnrolledCell) and new is not part:
        return f"{type(part).__name__} is made of ordinary operations"
    if isinstance(part, torch.nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:
        part.track_running_stats, part.running_mean, part.running_var = False, None, None
        return f"{type(part).__name__} collects no statistics"
    if isinstance(part, RANDOM) and part.training:
        part.eval()
        if hasattr(part, "p"):  # attention may read it, and draw by itself
            vars(part)["p"] = 0.0
        return f"{type(part).__name__} is switched off"
    return None


def _stop_dropping(part: torch.nn.Module) -> str | None:
    """Set the probabilities of dropout that a part keeps as numbers to 0, as attention does; which
    they are."""
    held = [
        name
        for name, value in vars(part).items()
        if part.training and "drop" in name and isinstance(value, float) and value > 0
    ]
    for name in held:
        vars(part)[name] = 0.0
    return (
        f"{type(part).__name__} has {', '.join(f'{name}=0.0' for name in held)}" if held else None
    )


def _to_group_norm(part: torch.nn.Module) -> torch.nn.GroupNorm:
    """Group normalisation in the place of batch normalisation; of one number for a channel, over
    all of them."""
    assert isinstance(part, MIXING)
    channels = part.num_features
    alone = isinstance(part, torch.nn.BatchNorm1d)
    groups = (
        1
        if alone
        else max(
            g
            for g in range(1, MOST_GROUPS + 1)
            if channels % g == 0 and (g == 1 or channels // g >= LEAST_CHANNELS)
        )
    )
    norm = torch.nn.GroupNorm(groups, channels, part.eps, affine=part.affine)
    if part.affine:
        norm.weight, norm.bias = part.weight, part.bias
    return norm.train(part.training)
