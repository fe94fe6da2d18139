"""Recurrent layers of ordinary operations, one time step after the other: ``torch.func.vmap`` takes them."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch.nn.utils.rnn import PackedSequence

from lastiterate.errors import InputError

States = tuple[torch.Tensor, ...]
"""The hidden state of a layer, and of an LSTM its cell state, (batch, width) each."""

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""Parameters of a layer in one direction."""


class UnrolledRecurrence(torch.nn.Module):
    """``torch.nn.LSTM``, ``GRU`` or ``RNN`` with the very parameters of ``layer`` under their names, and its outputs.

    A state dictionary of one is a state dictionary of the other. Inputs are tensors: sequences of one length, filled up
    where they differ. Dropout between layers is left out.
    """

    def __init__(self, layer: torch.nn.RNNBase) -> None:
        super().__init__()
        self.mode, self.batch_first, self.num_layers = layer.mode, layer.batch_first, layer.num_layers
        self.directions, self.hidden_size = 2 if layer.bidirectional else 1, layer.hidden_size
        self.proj_size = layer.proj_size
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self.train(layer.training)

    def extra_repr(self) -> str:
        return f"{self.mode}, {self.num_layers} layers, {self.directions} directions"

    def forward(self, values: torch.Tensor, first: object = None) -> tuple[torch.Tensor, Any]:
        """As the layer's: outputs of all time steps, and the last states of every layer and direction."""
        if isinstance(values, PackedSequence):
            raise InputError("model", "must be given sequences as tensors, not packed ones", None,
                             "fill them up to one length, and leave the rest out in the loss")
        alone = values.dim() == 2
        values = values.unsqueeze(0) if alone else values if self.batch_first else values.transpose(0, 1)
        begins = self._begin(values, first, alone)
        ends = list[States]()
        for layer in range(self.num_layers):
            parts = list[torch.Tensor]()
            for direction in range(self.directions):
                number = layer * self.directions + direction
                states = tuple(each[number] for each in begins)
                outputs, end = self._through(values, states, f"_l{layer}" + "_reverse" * direction, direction == 1)
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
        widths = (self.proj_size or self.hidden_size, *((self.hidden_size,) if self.mode == "LSTM" else ()))
        return tuple(values.new_zeros(self.num_layers * self.directions, values.shape[0], width) for width in widths)

    def _through(self, values: torch.Tensor, states: States, end: str, backwards: bool) -> tuple[torch.Tensor, States]:
        """One layer in one direction: outputs (batch, time, width), and the last states."""
        held: dict[str, torch.Tensor | None] = {name: self._parameters.get(name + end) for name in NAMES}
        weight = held["weight_ih"]
        assert weight is not None
        moved = functional.linear(values, weight, held["bias_ih"])  # of all time steps at once: one use of the weight
        steps = range(values.shape[1])
        hidden = list[torch.Tensor]()
        for time in reversed(steps) if backwards else steps:
            states = self._step(moved[:, time], states, held)
            hidden.append(states[0])
        return torch.stack(hidden[::-1] if backwards else hidden, dim=1), states

    def _step(self, moved: torch.Tensor, states: States, held: dict[str, torch.Tensor | None]) -> States:
        """One time step, from what the input contributes."""
        weight, projection = held["weight_hh"], held["weight_hr"]
        assert weight is not None
        own = functional.linear(states[0], weight, held["bias_hh"])
        if self.mode == "LSTM":
            enter, forget, new, leave = (moved + own).chunk(4, dim=-1)
            cell = forget.sigmoid() * states[1] + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            return (hidden if projection is None else functional.linear(hidden, projection)), cell
        if self.mode == "GRU":
            (reset, keep, new), (own_reset, own_keep, own_new) = moved.chunk(3, dim=-1), own.chunk(3, dim=-1)
            new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
            keep = (keep + own_keep).sigmoid()
            return ((1 - keep) * new + keep * states[0],)
        return ((moved + own).relu() if self.mode == "RNN_RELU" else (moved + own).tanh(),)
