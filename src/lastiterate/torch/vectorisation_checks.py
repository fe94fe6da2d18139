"""Checks that a vectorised gradient has the bits of one that is computed alone; sizes of chunks."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from traceback import walk_tb
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.errors import InputError, first_line
from lastiterate.torch.layers import Padded
from lastiterate.torch.parameter_contributions import Contribution
from lastiterate.torch.parameters import State
from lastiterate.torch.record_gradients import PerRecord, cast_records

# Whether a module computes in fewer bits than single precision, and how far its results may then
# differ by rounding.
#
# A module may cast by itself: with ``torch.autocast`` inside of its forward pass, or tensor by
# tensor. Its parameters are still those of the run, in single precision at least, and so are
# gradients by them: norms, clips and sums lose nothing.


ROUNDINGS = 16
"""Results may differ by so many times the spacing of their numbers, or by ``LEAST``; never by more
than ``MOST``."""
LEAST, MOST = 1e-3, 0.125


class Rounding(TorchFunctionMode):
    """``seen``: whether anything that depends on what is differentiated by became less precise than
    double."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        self.seen = self.seen or any(
            isinstance(value, torch.Tensor)
            and value.requires_grad
            and torch.finfo(value.dtype).bits < 64
            for value in tree_leaves(answer)
        )
        return answer


class Coarsest(TorchDispatchMode):
    """``spacing``: relative, of the coarsest floating-point numbers that any operation inside made."""

    def __init__(self) -> None:
        super().__init__()
        self.spacing = 0.0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        for value in tree_leaves(answer):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.spacing = max(self.spacing, torch.finfo(value.dtype).eps)
        return answer

    @property
    def tolerance(self) -> float:
        """Relative, of results that are equal but for rounding."""
        return min(MOST, max(LEAST, ROUNDINGS * self.spacing))

    def check_double(self, *, rounded: bool) -> None:
        """Refuse fewer bits where everything that depends on parameters must be double precision;
        ``rounded``: some of it has fewer."""
        if self.coarse or rounded:
            raise InputError(
                "model",
                "must be computed in double precision where theorems compare one step at two "
                "different parameters, and it casts to fewer bits by itself",
                f"spacing {self.spacing:g}",
                "leave the cast out, or batches in order without constants and a bounded domain",
            )

    @property
    def coarse(self) -> bool:
        """Whether rounding alone may differ by more than ``LEAST``."""
        return self.tolerance > LEAST


# Chunks in which every record's gradient has the same bits, whatever its position and the other
# records are. Where batches are drawn, a record that is in one moves others to other positions, and
# to chunks of other sizes. In single precision their gradients could round differently there, by an
# amount that no theorem covers and that a network may enlarge without bound. The order in which a
# kernel adds depends on shapes and positions alone, never on the values, and another order shows in
# the last bits of nearly every sum; so synthetic records show beforehand which sizes change
# nothing.


TRIES = 4
"""Pairs of synthetic records, each at parameters of its own: few sums of a small module reach its
gradients."""
STEP = 16
"""Sizes of chunks are multiples of this, or the largest one."""
OVERHEAD = 2**20
"""Numbers of contributions that cost about as much as what Python does for a chunk."""
Contributions = Callable[[Any], dict[str, Contribution]]
"""From records (m, ...) to what they contribute."""


class ChunkSizes:
    """Sizes of chunks, at most ``most``, that give synthetic records the same bits at every
    position: in each of ``tries``, two records.

    **Guarantee:** batches are cut into chunks of such sizes only, so that a record's gradient is a
    function of that record and of the parameters, bit by bit, whatever else is in the batch.
    """

    def __init__(self, tries: Sequence[tuple[Contributions, Any]], most: int) -> None:
        self._tries, self.most = tries, most
        self._known = dict[int, bool]()
        self._empty, self._numbers = (
            Counter[int](),
            0,
        )  # empty places by sizes; numbers that a record contributes
        self._bits = dict[tuple[int, int], list[torch.Tensor]]()

    def holds(self, size: int) -> bool:
        """Whether every place of a chunk of ``size`` records gives the bits that the first size
        that was tried gave."""
        if size not in self._known:
            self._known[size] = all(
                self._try_size(size, which) for which in range(len(self._tries))
            )
        return self._known[size]

    def within(self, most: int) -> ChunkSizes:
        """The same for chunks of at most ``most`` records: of half as many where those do not hold,
        and so on. Chunks of one record always do."""
        places = ChunkSizes(self._tries, most)
        return places if most == 1 or places.holds(most) else self.within(most // 2)

    def split(self, count: int) -> Iterator[tuple[int, int]]:
        """Chunks for a batch of ``count`` records: their sizes, and how many records are in each;
        the rest is empty."""
        chunks = -(-count // self.most)
        while count > 0:
            wanted = min(self.most, -(-count // (chunks * STEP)) * STEP)
            size = wanted if self._worth(wanted) and self.holds(wanted) else self.most
            yield size, min(count, size)
            count, chunks = count - size, max(1, chunks - 1)

    def _worth(self, size: int) -> bool:
        """Whether the places that chunks of the largest size have left empty, where this one was
        wanted, have cost as much as its trial does."""
        self._empty[size] += self.most - size
        trial = 2 * len(self._tries) * (OVERHEAD + size * self._numbers)
        return size in self._known or self._empty[size] * self._numbers >= trial

    def _try_size(self, size: int, which: int) -> bool:
        contributions, pair = self._tries[which]
        turns = list[list[list[torch.Tensor]]]()
        for turn in range(2):
            places = (torch.arange(size) + turn) % 2
            records = tree_map(lambda a, at=places: a.index_select(0, at.to(a.device)), pair)
            given = contributions(records)
            parts = [part for each in given.values() for part in (*each.parts, each.squares())]
            self._numbers = sum(part[0].numel() for part in parts)
            # rows of the first record, and of the second
            turns.append([[part[number ^ turn :: 2] for part in parts] for number in range(2)])
            if size > 1 and not all(bool(each.squares().any()) for each in given.values()):
                return False  # a gradient that is 0 says nothing
        for number in range(2):
            rows = [
                torch.cat([turn[number][i] for turn in turns]) for i in range(len(turns[0][number]))
            ]
            kept = self._bits.setdefault((which, number), [part[:1] for part in rows])
            for part, bits in zip(rows, kept, strict=True):
                if not bool(torch.isfinite(part).all()) or not torch.equal(
                    part, bits.expand_as(part)
                ):
                    return False
        return True


def usual(expected: float) -> int:
    """A size that seldom leaves a batch of ``expected`` records in more than one chunk."""
    return math.ceil((expected + 4 * math.sqrt(expected) + 1) / STEP) * STEP


def draw_parameters(theta: torch.Tensor, which: int = 0) -> torch.Tensor:
    """Draw parameters near the first ones, so that no sum is 0 where those are; others for every
    ``which``."""
    generator = torch.Generator().manual_seed(1 + which)
    noise = torch.randn(theta.shape, dtype=theta.dtype, generator=generator).to(theta.device)
    return theta + 0.1 * noise


# Gradients of synthetic records: vectorised ones must be those that every record has alone.


COARSE = 0.5
"""How far, of their length, gradients may be moved by rounding to half precision."""
VECTORISED = 3
"""Synthetic records that are vectorised together."""
POINTS = 8
"""Parameters at which a gradient is looked at before it is taken for one that no record moves."""
LOUD = 2.0**10
"""By how much other records are multiplied, to show what a record gets of them in its last bits."""


def make_synthetic_records(
    records: tuple[Any, ...],
    dtype: torch.dtype,
    make: Callable[[torch.Tensor], torch.Tensor],
    count: int,
    *,
    varied: bool = False,
) -> Any:
    """``count`` records of the same shapes and types: integers are 0, or 0 and 1 where they are
    ``varied``, by turns or at random, all else is what ``make`` fills in."""

    def one(values: torch.Tensor) -> torch.Tensor:
        if not values.is_floating_point():
            integers = torch.zeros((count, *values.shape[1:]), dtype=values.dtype)
            if varied and integers.dim() > 1:  # of several, some are 0 in every record, and some 1
                return torch.randint(
                    0, 2, integers.shape, generator=torch.Generator().manual_seed(3)
                ).to(values.dtype)
            integers[1::2] = 1 if varied else 0
            return integers
        return make(torch.zeros((count, *values.shape[1:]), dtype=dtype))

    return tree_map(one, records)


def normal(values: torch.Tensor) -> torch.Tensor:
    return torch.randn(values.shape, dtype=values.dtype, generator=torch.Generator().manual_seed(0))


def _of_both_signs(values: torch.Tensor) -> torch.Tensor:
    """Normal numbers; none is negative in every other record, for losses that take logarithms or
    roots."""
    numbers = normal(values)
    numbers[::2] = numbers[::2].abs()
    return numbers


def check_alone(
    summed: PerRecord, theta: torch.Tensor, constants: State, records: tuple[Any, ...]
) -> float:
    """Refuse a module or a loss that mixes records when it is vectorised: on synthetic records
    every gradient must be the one that the record has alone, computed without ``vmap``, at
    parameters near the first ones, where none is 0 by chance. Return how far, relatively, rounding
    may move a gradient."""
    trained = {
        name: tensor.detach()
        for name, tensor in summed.parameters.tensors(draw_parameters(theta), summed.dtype).items()
    }
    for varied in (
        (True, False) if theta.device.type == "cpu" else (False,)
    ):  # elsewhere a bad index ends the process
        several = make_synthetic_records(
            records, summed.dtype, _of_both_signs, VECTORISED, varied=varied
        )
        several = tree_map(lambda a: a.to(theta.device), several)
        try:
            with Coarsest() as seen, Rounding() as short:
                alone = [
                    _alone(summed, trained, constants, tree_map(lambda a, at=i: a[at], several))
                    for i in range(VECTORISED)
                ]
            break
        except (RuntimeError, IndexError) as error:
            if not varied:
                raise InputError(
                    "model",
                    "and its loss must have a gradient on one synthetic record",
                    first_line(error),
                    _gradient_remedy(str(error)),
                ) from error
    if summed.exact:
        seen.check_double(rounded=short.seen)
    try:
        with Padded() as lookups:
            together = replace(summed, layers=()).contributions(trained, constants, several)
    except RuntimeError as error:
        raise InputError(
            _caller(error),
            "must be one that torch.func.vmap takes, without random numbers or changes in place",
            first_line(error),
            _vectorisation_remedy(summed.module, str(error)),
        ) from None
    lookups.check()
    for i, one in enumerate(alone if not seen.coarse else ()):
        size = max(float(slope.abs().max()) if slope.numel() else 0.0 for slope in one.values())
        for name, slope in one.items() if math.isfinite(size) else ():
            if not torch.allclose(
                together[name].each()[i], slope, rtol=LEAST, atol=LEAST * size / 10 + 1e-9
            ):
                raise _batch_dependence_error(summed)
    if seen.coarse:  # rounding turns units on and off
        wanted = torch.cat([one[name] for one in alone for name in one])
        given = torch.cat([together[name].each()[i] for i, one in enumerate(alone) for name in one])
        if float((given - wanted).norm()) > COARSE * float(wanted.norm()):
            raise _batch_dependence_error(summed)
    if (
        seen.coarse or theta.device.type == "cpu"
    ):  # elsewhere sums may have another order every time
        _check_bits(summed, trained, constants, several)
    return seen.tolerance


def _gradient_remedy(said: str) -> str:
    """What to do about a loss or a module that has a value on one record, and no gradient."""
    if "sparse" in said:
        return "build the embedding with sparse=False"
    if "size mismatch" in said:
        return (
            "labels of shape (n, 1) reach a loss of your own as they are: write target.squeeze(-1) "
            "in it, or give labels of shape (n,)"
        )
    return "where torch asks for contiguous tensors, call .contiguous() before it"


def _caller(error: Exception) -> str:
    """Whether the model raised an error, or the loss, which is called after it."""
    frames = walk_tb(error.__traceback__)
    inside = any(frame.f_code is PerRecord.call.__code__ for frame, _ in frames)
    return "model" if inside else "loss"


def _vectorisation_remedy(module: torch.nn.Module, said: str) -> str:
    """What to do about what ``torch.func.vmap`` does not take."""
    if "random operation" in said:
        return (
            "write dropout as a part torch.nn.Dropout, which draws under keys of every record's "
            "own, or switch it off with .eval()"
        )
    if "autograd.Function" in said or "vmap support" in said:
        return (
            "give the autograd.Function the line generate_vmap_rule = True and a "
            "setup_context(ctx, inputs, output) of its own, next to a forward without ctx"
        )
    if ".item()" in said or "data pointer" in said:
        return (
            "make no numbers of tensors there (.item(), float(), .tolist(), .numpy(), print): losses "
            "of records are private and may not be logged; progress=True shows the steps, and "
            "predict on public records how good the model is"
        )
    if "control flow" in said:
        return "write torch.where in the place of if"
    if any(type(part).__module__.startswith("peft.tuners.adalora") for part in module.modules()):
        return (
            "AdaLoRA adds a penalty to a loss that the model computes: use LoraConfig, or give the "
            "labels to a loss of your own, as data=(inputs, labels)"
        )
    return (
        "lastiterate.torch.private_version(module) exchanges recurrent layers; a "
        "smaller microbatch is for what checkpointed layers are"
    )


def _check_bits(summed: PerRecord, trained: State, constants: State, several: object) -> None:
    """Refuse a record whose gradient at one position has other bits among its own copies than among
    loud records: the order in which a kernel adds depends on shapes and positions alone, never on
    the values."""
    plain = replace(summed, layers=())
    for place in (0, VECTORISED - 1):
        own = tree_map(lambda a, at=place: a[at : at + 1].expand_as(a).contiguous(), several)
        loud = tree_map(
            lambda a, b, at=place: (
                torch.cat([a[:at] * LOUD, b[at : at + 1], a[at + 1 :] * LOUD])
                if a.is_floating_point()
                else a
            ),
            several,
            own,
        )
        try:
            one, two = (plain.contributions(trained, constants, records) for records in (own, loud))
        except InputError:
            raise
        except (RuntimeError, ValueError) as error:
            raise InputError(
                "loss",
                "must have a value for every record: one that raises ends the run, and shows that "
                "such a record is there",
                first_line(error),
                "leave checks of values out, as validate_args=False of a distribution does",
            ) from error
        for name in one:
            if not torch.equal(
                one[name].each()[place].nan_to_num(), two[name].each()[place].nan_to_num()
            ):
                raise _batch_dependence_error(summed)


def _batch_dependence_error(summed: PerRecord) -> InputError:
    return InputError(
        "model",
        "must treat every record alone, and a record's gradient depends on those that it is "
        "vectorised with",
        type(summed.module).__name__,
        "look for functions with a vmap of their own",
    )


def _alone(
    summed: PerRecord, trained: State, constants: State, record: tuple[Any, ...]
) -> dict[str, torch.Tensor]:
    """One record's gradients by name, (entries,) float64, without ``vmap``."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in trained.items()}
    with torch.enable_grad():
        value = summed.value(constants | leaves, cast_records(record, summed.dtype))
        slopes = (
            torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
            if value.requires_grad
            else [None] * len(leaves)
        )
    return {
        name: (torch.zeros_like(leaf) if slope is None else slope).double().reshape(-1)
        for (name, leaf), slope in zip(leaves.items(), slopes, strict=True)
    }


def constant_gradients(
    summed: PerRecord, theta: torch.Tensor, constants: State, records: tuple[Any, ...]
) -> list[str]:
    """List the parameters by which all synthetic records have one gradient, bit for bit, at several
    points."""

    def list_remaining(varied: bool) -> list[str]:
        several = make_synthetic_records(
            records, summed.dtype, _of_both_signs, VECTORISED, varied=varied
        )
        several, names = (
            tree_map(lambda a: a.to(theta.device), several),
            list(summed.parameters.names),
        )
        for which in range(POINTS):
            if names:
                at = {
                    name: tensor.detach()
                    for name, tensor in summed.parameters.tensors(
                        draw_parameters(theta, which), summed.dtype
                    ).items()
                }
                first, *rest = (
                    _alone(summed, at, constants, tree_map(lambda a, i=i: a[i], several))
                    for i in range(VECTORISED)
                )
                names = [
                    name
                    for name in names
                    if all(torch.equal(first[name], other[name]) for other in rest)
                ]
        return names

    try:
        return list_remaining(theta.device.type == "cpu")  # elsewhere a bad index ends the process
    except (RuntimeError, IndexError):  # some integer must be 0
        return list_remaining(False)
