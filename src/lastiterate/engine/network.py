"""Any differentiable model: a loss of one record over parameters in any nested structure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.clipped_gradients import (
    arithmetic,
    assemble_sums,
    one_by_one,
    sum_clipped,
    sum_clipped_parts,
)
from lastiterate.engine.linear_gradients import counts, hidden_state
from lastiterate.engine.loop import arrange_once
from lastiterate.engine.noise import register_pytree
from lastiterate.engine.optimizers import GradientTransformation, OptimizerRule, is_coupled, rule_of
from lastiterate.engine.parameters import Form
from lastiterate.engine.random import Key, fresh_key
from lastiterate.engine.record_loss import (
    ARRAYS,
    BLANK,
    Augment,
    DrawingLoss,
    RecordLoss,
    blame_augmentation,
    cast_records,
    check_classes,
    check_gradient,
    check_loss,
    check_records,
    check_shapes,
    prepare_loss,
    repeat_for_keys,
)
from lastiterate.engine.samplers import layout_of
from lastiterate.engine.step_iterator import Steps, map_steps, resume_within, run_to_end
from lastiterate.engine.tracing import equations, fingerprint, program
from lastiterate.engine.trainer import Loop, Progress, check_process
from lastiterate.errors import InputError
from lastiterate.run.facts import CHUNK
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import GaussianStart
from lastiterate.run.validation import Weights

# Class indices beyond the end of an array, of which JAX takes another entry, or NaN, without a
# word.

LOOKUPS = {"gather", "dynamic_slice"}


@dataclass(eq=False)
class LabelCheck:
    """Refuse records (x, y, ...) whose largest integer y lies beyond what a loss looks up with it.

    Where every array that is looked up in is longer, nothing is executed; otherwise the loss is, on
    that y with zeros for the rest. What JAX cannot check passes, and so do negative numbers, which
    losses use for "none". Records may come in pieces: only what exceeds all before is looked at.
    """

    loss: RecordLoss
    form: Form
    exact: bool
    largest: int = -1

    def __call__(self, records: tuple[Any, ...]) -> None:
        labels: Any = records[1] if len(records) > 1 else None
        if (
            not isinstance(labels, ARRAYS)
            or labels.ndim != 1
            or labels.dtype.kind not in "iu"
            or not labels.size
        ):
            return
        largest = np.asarray(labels).max()
        if largest <= self.largest:
            return
        with jax.enable_x64(True):
            self._look_up(records, largest)
        self.largest = int(largest)

    def _look_up(self, records: tuple[Any, ...], label: np.integer[Any]) -> None:
        blank = cast_records(
            jax.tree.map(lambda a: np.zeros_like(np.asarray(a)[0]), records), exact=self.exact
        )
        given: Any = (
            self.form.arrays(np.zeros(self.form.size), exact=self.exact),
            (blank[0], label, *blank[2:]),
        )

        def value(arrays: Any, record: Any) -> Any:
            return self.loss(self.form.whole(arrays), *record)

        traced: Any = jax.make_jaxpr(value)(*given)  # pyright: ignore
        sizes: list[int] = [
            size
            for eqn in equations(traced)
            if eqn.primitive.name in LOOKUPS
            for size in eqn.invars[0].aval.shape
        ]
        if label < min(sizes, default=math.inf):
            return
        try:
            found, _ = jax.jit(checkify.checkify(value, errors=checkify.index_checks))(*given)
        except (
            NotImplementedError,
            ValueError,
        ):  # of operations that checkify does not follow, as jax.checkpoint
            return
        if found.get() is not None:
            raise InputError(
                "data",
                "must have class indices that the loss knows, and one lies beyond an array's end, "
                "where JAX takes another entry",
                None,
                "encode labels as 0, 1, ... first",
            )


# Any differentiable model: a loss of one record over parameters in any nested structure.

EXACT = ", exact sums of chunks"
"""What checkpoints know of exact sums."""
Execution = Callable[..., Steps[np.ndarray]]
"""From a loop, first parameters (size,), records, key, progress, checkpoint and whether every step
is a pause to the steps of the run in another arithmetic."""
MICROBATCH = 32
"""Records whose gradients are in memory at once, where the caller does not say."""


@register_pytree
@dataclass(frozen=True)
class PerExample:
    """Per-example gradients of any loss, clipped; a chunk is records (pytrees of (m, ...)) and
    which are real, (m,).

    ``copies``: of every record, whose keys are its last part (0: records draw nothing); their mean
    is clipped. ``weights``: of classes, by which clipped gradients are multiplied; a record's
    second part is its class.

    **Guarantee:** every record's gradient is scaled to norm at most ``clip`` by its own computed
    norm (one that is not finite counts as 0, without a clip too), and chunks of at most ``CHUNK``
    records are summed in at least single precision (see ``FLOAT_SLACK``). With ``exact`` everything
    that depends on the parameters is float64, for theorems about a hidden state. ``alone``: records
    of a chunk are read one by one, so that no bit of a gradient depends on its position, as
    wherever batches move.
    """

    loss: RecordLoss
    form: Form
    clip: float | None
    exact: bool
    most: int
    copies: int = 0
    weights: Weights = None
    alone: bool = False
    ridge: float = 0.0

    def chunk_sum(self, theta: jax.Array, chunk: tuple[Any, ...]) -> jax.Array:
        """Sum of the (clipped) gradients of the real records, (size,) float64."""
        arrays = self.form.arrays(theta, exact=self.exact)
        if self.alone:
            parts = one_by_one(partial(self._read, sum_clipped_parts, arrays), chunk)
            return self.form.vector(assemble_sums(arrays, *parts, jnp.float64))
        return jnp.where(
            chunk[-1].max() > 0, self.form.vector(self._read(sum_clipped, arrays, chunk)), 0.0
        )

    def _read(self, how: Callable[..., Any], arrays: object, chunk: tuple[Any, ...]) -> Any:
        """``sum_clipped`` or ``sum_clipped_parts`` of a chunk."""
        records, real = real_records(chunk)
        counted = None if self.weights is None else counts(self.weights, records[1])
        records = cast_records(records, exact=self.exact)
        records = repeat_for_keys(records) if self.copies else records
        return how(self._of_arrays, self.clip, arrays, records, real, self.copies or 1, counted)

    def _of_arrays(self, arrays: list[Any], *record: object) -> jax.Array:
        return self.loss(self.form.whole(arrays), *record)

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        return self.form.vector([function(array) for array in self.form.arrays(theta, exact=True)])


def real_records(chunk: tuple[Any, ...]) -> tuple[Any, jax.Array]:
    """The records of a chunk and which are real: empty slots hold a copy of the first record, so
    that no loss is computed on values that no record has."""
    records, real = chunk[:-1], chunk[-1] > 0
    return jax.tree.map(
        lambda a: jnp.where(real.reshape((-1,) + (1,) * (a.ndim - 1)), a, a[:1]), records
    ), real


def fit_network(
    run: Run,
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    key: Key | None = None,
    **more: Any,
) -> Any:
    """Execute ``run`` on ``loss(params, *record)``; the last parameters, structured like
    ``params``.

    ``params``: public first parameters. ``data``: arrays or pytrees of arrays whose first axis are
    the records, such as (x, y). For release="all" every array has the steps as its first axis.
    ``key``: for tests and audits only. ``more``: as in ``iterate_network``.

    **Guarantee:** exactly the run that is accounted: per-example clips, noise at every step, no
    other output.
    """
    return run_to_end(iterate_network(run, loss, params, data, key, **more))


def iterate_network(
    run: Run,
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    key: Key | None = None,
    *,
    microbatch: int | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    executed_as: Execution | None = None,
    optimizer: GradientTransformation | None = None,
    augment: Augment | None = None,
    by_step: bool = False,
) -> Steps[Any]:
    """``fit_network`` in pauses, those of ``Loop.iterate``.

    ``checkpoint``: checkpoints, which know the data and the traced gradient of the loss, and keep
    the first parameters. ``executed_as``: another arithmetic of the same steps (``exactly``).
    ``optimizer``: what makes the steps. ``augment``: ``augment(key, x)``, before the loss.
    """

    def iterate() -> Steps[Any]:
        loop, initial, columns = _describe_loop(
            run, loss, params, data, microbatch, optimizer, augment
        )
        assert isinstance(loop.objective, PerExample)
        begun = key
        if checkpoint is not None:
            assert loop.rule is None or isinstance(loop.rule, OptimizerRule)
            known = identity(loop.objective, data, loop.rule)
            known += "" if executed_as is None else EXACT
            begun = checkpoint.begin(run, jax.tree.leaves(data), key, known, np.asarray(initial))
            initial = jnp.asarray(checkpoint.initial)
        begun = fresh_key() if begun is None else begun
        if executed_as is None:
            arranged = arrange_records(run, columns, loop.objective.most)
            arranged = arrange_once(loop.program, arranged, begun)
            steps = loop.iterate(initial, arranged, begun, progress, checkpoint, by_step=by_step)
        else:
            steps = executed_as(
                loop, np.asarray(initial), tuple(data), begun, progress, checkpoint, by_step
            )
        return (yield from map_steps(Form.of(params).from_vector, steps))

    return resume_within(partial(jax.enable_x64, True), iterate())


def prepare_loop(
    run: Run,
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    microbatch: int | None = None,
    optimizer: GradientTransformation | None = None,
    augment: Augment | None = None,
) -> tuple[Loop, jax.Array, Any]:
    """The loop of a run on a network, its first parameters as one vector, and the records arranged
    in public order."""
    loop, initial, columns = _describe_loop(run, loss, params, data, microbatch, optimizer, augment)
    return loop, initial, arrange_records(run, columns, loop.objective.most)


def _describe_loop(
    run: Run,
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    microbatch: int | None,
    optimizer: GradientTransformation | None,
    augment: Augment | None,
) -> tuple[Loop, jax.Array, tuple[Any, ...]]:
    """``prepare_loop`` before records are arranged; with their indices where they draw something."""
    check_process()
    records = tuple(data)
    check_records(run, records)
    objective = objective_of(run, loss, params, records, microbatch, augment)
    if run.augmentation is None:
        LabelCheck(loss, objective.form, objective.exact)(records)
    rule = rule_of(optimizer, objective.form, params)
    columns = (
        records
        if run.augmentation is None
        else (*records, np.arange(len(jax.tree.leaves(records)[0])))
    )
    return Loop(run, objective, rule=rule), objective.form.vector(params), columns


def objective_of(
    run: Run,
    loss: RecordLoss,
    params: object,
    records: tuple[Any, ...],
    microbatch: int | None = None,
    augment: Augment | None = None,
) -> PerExample:
    """The per-example gradients of a loss at parameters like ``params``; of ``records`` shapes and
    dtypes count."""
    form = Form.of(params)
    if run.preprocessing:
        raise InputError(
            "preprocessing",
            "prepares the rows of linear models only",
            type(run.preprocessing[0]).__name__,
            "leave it out",
        )
    most = min(MICROBATCH if microbatch is None else microbatch, CHUNK)
    if most < 1:
        raise InputError("microbatch", "must be a positive integer", microbatch)
    if isinstance(run.start, GaussianStart) and bool(form.vector(params).any()):
        raise InputError(
            "params", "must be 0 where the run starts at random", None, "or use start=FixedStart()"
        )
    check_classes(run, records)
    copies = 0 if run.augmentation is None else run.augmentation.copies
    loss, records = prepare_loss(run, loss, augment, records, exact=hidden_state(run))
    plain = replace(loss, augment=None) if isinstance(loss, DrawingLoss) else loss
    there = len(jax.tree.leaves(records)[0])
    n = there if run.nominal and there > 1 else run.n  # one record alone has the form of all
    with blame_augmentation(
        augment, lambda: check_loss(plain, form, hidden_state(run), records, n)
    ):
        check_loss(loss, form, hidden_state(run), records, n)
    check_gradient(loss, form, params, hidden_state(run), records)
    exact, alone = arithmetic(run, loss, form, records)
    return PerExample(loss, form, run.clip, exact, most, copies, run.loss.class_weights, alone)


def identity(
    objective: PerExample, records: tuple[Any, ...], rule: OptimizerRule | None = None
) -> str:
    """Return a checkpoint's identity of a loss, of the structure of its parameters and of an
    optimizer; of ``records`` only shapes and types count."""
    form, exact = objective.form, objective.exact
    records = (*records, BLANK) if objective.copies else records
    first = cast_records(
        jax.tree.map(lambda a: np.zeros_like(np.asarray(a)[0]), records), exact=exact
    )
    gradient = jax.grad(lambda arrays, record: objective.loss(form.whole(arrays), *record))
    closed, _ = program(gradient, form.arrays(np.zeros(form.size), exact=exact), first)
    known = "" if rule is None else f", optimizer {rule.identity}"
    return (
        fingerprint(closed, str(form.tree), form.shapes, form.dtypes, exact, objective.alone)
        + known
    )


def check_fits(
    run: Run,
    loss: RecordLoss,
    params: object,
    data: tuple[Any, ...],
    microbatch: int | None,
    optimizer: GradientTransformation | None = None,
    augment: Augment | None = None,
) -> None:
    """Refuse what cannot be trained, by the shapes of the records alone: before a record is read,
    or paid for."""
    check_shapes(run, data)
    with jax.enable_x64(True):
        blank = jax.tree.map(
            lambda a: np.zeros((1, *np.shape(a)[1:]), np.asarray(a).dtype), tuple(data)
        )
        form = objective_of(run, loss, params, blank, microbatch, augment).form
        rule_of(optimizer, form, params, tried=0 if is_coupled(run) else run.steps)


def arrange_records(run: Run, data: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    """Leaves (blocks, chunks, m, ...), or (n, ...) where batches are drawn, and behind them which
    slots are real."""
    count = len(jax.tree.leaves(data)[0])
    plan = layout_of(run, count, most)
    slots = plan.slot(np.arange(count))

    def arrange_array(values: np.ndarray) -> jax.Array:
        values = np.asarray(values)
        if plan.slots == count and np.array_equal(slots, np.arange(count)):
            return jnp.asarray(values.reshape(*plan.shape, *values.shape[1:]))
        padded = np.zeros((plan.slots, *values.shape[1:]), values.dtype)
        padded[slots] = values
        return jnp.asarray(padded.reshape(*plan.shape, *values.shape[1:]))

    return (*jax.tree.map(arrange_array, data), arrange_array(np.ones(count, np.uint8)))
