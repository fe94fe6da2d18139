"""Any differentiable model: a loss of one record over parameters in any nested structure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.checkpoint import Keeper
from lastiterate.engine.dense import clipped_sum
from lastiterate.engine.fingerprint import fingerprint
from lastiterate.engine.gaussian_noise import Key, fresh_key
from lastiterate.engine.loop import drawn_once
from lastiterate.engine.operations import check_operations
from lastiterate.engine.prepare import hidden
from lastiterate.engine.process import check_process
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.structure import numbered
from lastiterate.engine.traced import alone, program
from lastiterate.engine.trainer import Loop, Progress
from lastiterate.errors import InputError
from lastiterate.run.facts import CHUNK
from lastiterate.run.run import Run
from lastiterate.run.starts import GaussianStart

RecordLoss = Callable[..., jax.Array]
"""``loss(params, *record)``: one number for one record."""
MICROBATCH = 32
"""Records whose gradients are in memory at once, where the caller does not say."""


@dataclass(frozen=True)
class Form:
    """Structure, shapes and dtypes of parameters; all of them lie in one float64 vector while the run goes on.

    Where there are several vectors, (..., size), every array has their axes in front.

    Leaves that are no arrays, such as activation functions, stay as they are (``fixed``: ``None`` for an array).
    """

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    fixed: tuple[Any, ...]

    @classmethod
    def of(cls, params: Any) -> Form:
        leaves, tree = jax.tree.flatten(params)
        arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
        if not arrays:
            raise InputError("params", "must hold at least one array", type(params).__name__)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if hasattr(leaf, "dtype"):
                _check_array(jax.tree_util.keystr(path) or "the array", leaf)
        fixed = tuple(None if hasattr(leaf, "dtype") else leaf for leaf in leaves)
        return cls(tree, tuple(np.shape(leaf) for leaf in arrays), tuple(str(leaf.dtype) for leaf in arrays), fixed)

    @property
    def size(self) -> int:
        return sum(map(math.prod, self.shapes))

    def vector(self, params: Any) -> jax.Array:
        """All entries, (size,) float64."""
        arrays = [leaf for leaf in jax.tree.leaves(params) if hasattr(leaf, "dtype")]
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float64) for leaf in arrays])

    def arrays(self, theta: Any, *, exact: bool) -> list[Any]:
        """The arrays as gradients are computed with them: float32 at least, or all float64."""
        return self._cut(theta, ["float64" if exact else str(jnp.promote_types(dtype, "float32"))
                                 for dtype in self.dtypes])

    def released(self, theta: np.ndarray) -> list[Any]:
        """The arrays in the precision that they came in."""
        return self._cut(theta, self.dtypes)

    def _cut(self, theta: Any, dtypes: Sequence[str]) -> list[Any]:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        xp: Any = np if isinstance(theta, np.ndarray) else jnp
        return [part.reshape((*theta.shape[:-1], *shape)).astype(dtype) for part, shape, dtype
                in zip(xp.split(theta, ends, axis=-1), self.shapes, dtypes, strict=True)]

    def whole(self, arrays: Any) -> Any:
        """Parameters as the loss takes them, around their arrays."""
        rest = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(rest) if leaf is None else leaf for leaf in self.fixed])


def _check_array(name: str, leaf: Any) -> None:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise InputError("params", f"must be floating-point arrays, and {name} is not", str(leaf.dtype),
                         "keep counters, keys and indices out of what is trained: of a module of Equinox train the "
                         "first half of equinox.partition(module, equinox.is_inexact_array), and combine both in the "
                         "loss")
    if not np.isfinite(np.asarray(leaf, np.float64)).all():
        raise InputError("params", "must be finite at the start", name)


@numbered
@dataclass(frozen=True)
class PerExample:
    """Per-example gradients of any loss, clipped; a chunk is records (pytrees of (m, ...)) and which are real, (m,).

    **Guarantee:** every record's gradient is scaled to norm at most ``clip`` by its own computed norm (one that is not
    finite counts as 0, without a clip too), and chunks of at most ``CHUNK`` records are summed in at least single
    precision (see ``FLOAT_SLACK``). With ``exact`` everything that depends on the parameters is float64, for theorems
    about a hidden state.
    """

    loss: RecordLoss
    form: Form
    clip: float | None
    exact: bool
    most: int
    ridge: float = 0.0

    def chunk_sum(self, theta: jax.Array, chunk: Any) -> jax.Array:
        """Sum of the (clipped) gradients of the real records, (size,) float64."""
        records, real = real_records(chunk)
        records = in_precision(records, exact=self.exact)
        arrays = self.form.arrays(theta, exact=self.exact)
        found = clipped_sum(self._of_arrays, self.clip, arrays, records, real)
        return jnp.where(real.any(), self.form.vector(found), 0.0)

    def _of_arrays(self, arrays: Any, *record: Any) -> jax.Array:
        return self.loss(self.form.whole(arrays), *record)

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        return self.form.vector([function(array) for array in self.form.arrays(theta, exact=True)])


def real_records(chunk: Any) -> tuple[Any, jax.Array]:
    """The records of a chunk and which are real: empty slots hold a copy of the first record, so that no loss is
    computed on values that no record has."""
    records, real = chunk[:-1], chunk[-1] > 0
    return jax.tree.map(lambda a: jnp.where(real.reshape((-1,) + (1,) * (a.ndim - 1)), a, a[:1]), records), real


def in_precision(records: Any, *, exact: bool) -> Any:
    """Records as the loss takes them: floating-point numbers are float64 where the parameters are."""
    def cast(a: Any) -> Any:
        return a.astype("float64") if exact and jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(cast, records)


def fit_network(run: Run, loss: RecordLoss, params: Any, data: tuple[Any, ...], key: Key | None = None, *,
                microbatch: int | None = None, progress: Progress | None = None, keeper: Keeper | None = None,
                executed_as: Callable[[Loop, Key], Loop] | None = None) -> Any:
    """Execute ``run`` on ``loss(params, *record)``; the last parameters, structured like ``params``.

    ``params``: public first parameters. ``data``: arrays or pytrees of arrays whose first axis are the records, such as
    (x, y). For release="all" every array has the steps as its first axis. ``key``: for tests and audits only.
    ``keeper``: checkpoints, which know the data, the first parameters and the traced gradient of the loss.
    ``executed_as``: another arithmetic for the same loop (``exact_records``).

    **Guarantee:** exactly the run that is accounted: per-example clips, noise at every step, no other output.
    """
    with jax.enable_x64(True):
        loop, initial, arranged = prepared(run, loss, params, data, microbatch)
        if keeper is not None:
            assert isinstance(loop.objective, PerExample)
            exactly = "" if executed_as is None else ", exact sums"
            key = keeper.begin(run, jax.tree.leaves((data, initial)), key, identity(loop.objective, data) + exactly)
        key = fresh_key() if key is None else key
        loop = loop if executed_as is None else executed_as(loop, key)
        arranged = drawn_once(loop.program, arranged, key)
        released = loop.execute(initial, arranged, key, progress, keeper)
        form = Form.of(params)
        return form.whole(form.released(released))


def prepared(run: Run, loss: RecordLoss, params: Any, data: tuple[Any, ...],
             microbatch: int | None = None) -> tuple[Loop, jax.Array, Any]:
    """The loop of a run on a network, its first parameters as one vector, and the records arranged in public order."""
    check_process()
    records = tuple(data)
    check_records(run, records)
    objective = objective_of(run, loss, params, records, microbatch)
    return Loop(run, objective), objective.form.vector(params), arrange_records(run, records, objective.most)


def objective_of(run: Run, loss: RecordLoss, params: Any, records: tuple[Any, ...],
                 microbatch: int | None = None) -> PerExample:
    """The per-example gradients of a loss at parameters like ``params``; of ``records`` shapes and dtypes count."""
    form = Form.of(params)
    if run.prelude:
        raise InputError("prelude", "prepares the rows of linear models only", type(run.prelude[0]).__name__,
                         "leave it out")
    most = min(MICROBATCH if microbatch is None else microbatch, CHUNK)
    if most < 1:
        raise InputError("microbatch", "must be a positive whole number", microbatch)
    if isinstance(run.start, GaussianStart) and bool(form.vector(params).any()):
        raise InputError("params", "must be 0 where the run starts at random", None, "or use start=Fixed()")
    exact = hidden(run)
    check_loss(loss, form, exact, records)
    check_gradient(loss, form, params, exact, records)
    return PerExample(loss, form, run.clip, exact, most)


def identity(objective: PerExample, records: tuple[Any, ...]) -> str:
    """What a checkpoint knows of a loss and of the structure of its parameters; of ``records`` shapes and types count.
    """
    form, exact = objective.form, objective.exact
    first = in_precision(jax.tree.map(lambda a: np.zeros_like(np.asarray(a)[0]), records), exact=exact)
    gradient = jax.grad(lambda arrays, record: objective.loss(form.whole(arrays), *record))
    closed, _ = program(gradient, form.arrays(np.zeros(form.size), exact=exact), first)
    return fingerprint(closed, str(form.tree), form.shapes, form.dtypes, exact)


def check_fits(run: Run, loss: RecordLoss, params: Any, data: tuple[Any, ...], microbatch: int | None) -> None:
    """Refuse what cannot be trained, by the shapes of the records alone: before a record is read, or paid for."""
    check_shapes(run, data)
    with jax.enable_x64(True):
        blank = jax.tree.map(lambda a: np.zeros((1, *np.shape(a)[1:]), np.asarray(a).dtype), tuple(data))
        objective_of(run, loss, params, blank, microbatch)


def check_records(run: Run, data: tuple[Any, ...]) -> None:
    """Refuse data whose first axis does not hold the run's n records, or that holds numbers that are not finite."""
    check_shapes(run, data)
    for leaf in jax.tree.leaves(data):
        check_finite(leaf)


def check_shapes(run: Run, data: tuple[Any, ...]) -> None:
    """Refuse data whose first axis does not hold the run's n records."""
    leaves = jax.tree.leaves(data)
    for leaf in leaves:
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != run.n:
            raise InputError("data", f"must have the run's n = {run.n} records along the first axis of every array",
                             np.shape(leaf))
    if not leaves:
        raise InputError("data", "must hold at least one array", None)


def check_finite(values: Any) -> None:
    """Refuse numbers that are not finite."""
    if jnp.issubdtype(np.asarray(values).dtype, jnp.inexact) and not np.isfinite(values).all():
        raise InputError("data", "must be finite numbers", "NaN or infinity", "fill or drop those values first")


def check_loss(loss: RecordLoss, form: Form, exact: bool, data: tuple[Any, ...]) -> None:
    """Refuse what is not one number for one record."""
    arrays = form.arrays(np.zeros(form.size), exact=exact)
    first = in_precision(jax.tree.map(lambda a: np.asarray(a)[0], data), exact=exact)
    try:
        closed, found = jax.make_jaxpr(lambda arrays, *record: loss(form.whole(arrays), *record),
                                       return_shape=True)(arrays, *first)
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        half = "'NoneType'" in str(error)  # of equinox.partition, which leaves None for what is in the other one
        raise InputError("loss", "must take the parameters and one record (without a batch axis)",
                         str(error).splitlines()[0][:120],
                         "put the halves of a module together with equinox.combine first" if half else "") from None
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise InputError("loss", "must treat every record alone, and this one asks for an axis over records, as batch "
                         "normalisation does", str(error).splitlines()[0][:80], "use group normalisation") from None
    if not hasattr(found, "shape") or found.shape != () or not jnp.issubdtype(found.dtype, jnp.floating):
        said = getattr(found, "shape", type(found).__name__)
        raise InputError("loss", "must return one number for one record, a floating-point scalar", said,
                         "take no mean over a batch: the trainer hands it one record at a time")
    check_operations(closed.jaxpr)


def check_gradient(loss: RecordLoss, form: Form, params: Any, exact: bool, data: tuple[Any, ...]) -> None:
    """Refuse a loss without finite gradients at the first parameters, by made-up records: zeros, ones, normal numbers.

    During training a record whose gradient is not finite counts as 0, because a run that ended would reveal it.
    This check has seen no record, and so reveals nothing.
    """
    rng = np.random.default_rng(0)
    arrays = form.arrays(form.vector(params), exact=exact)

    def finite(make: Callable[[tuple[int, ...]], Any]) -> bool:
        def made(values: Any) -> Any:
            number = jnp.issubdtype(values.dtype, jnp.floating)
            return np.asarray(make(values.shape[1:]) if number else np.zeros(values.shape[1:])).astype(values.dtype)

        record = in_precision(jax.tree.map(lambda a: made(np.asarray(a)), data), exact=exact)
        gradient = jax.grad(lambda arrays, record: loss(form.whole(arrays), *record))
        found = alone(gradient, arrays, record)(arrays, record)
        return all(bool(jnp.isfinite(array).all()) for array in found)

    if not any(finite(make) for make in (lambda shape: rng.normal(size=shape), np.ones, np.zeros)):
        raise InputError("loss", "must have a finite gradient at the first parameters, and has none on made-up records",
                         "not finite", "look for logarithms and roots of 0; nothing was trained")


def arrange_records(run: Run, data: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    """Leaves (blocks, chunks, m, ...), or (n, ...) where batches are drawn, and behind them which slots are real."""
    plan = sampler_of(run.batching, run.n, most).layout
    slots = plan.slot(np.arange(run.n))

    def arranged(values: Any) -> jax.Array:
        values = np.asarray(values)
        if plan.slots == run.n:
            return jnp.asarray(values.reshape(*plan.shape, *values.shape[1:]))
        padded = np.zeros((plan.slots, *values.shape[1:]), values.dtype)
        padded[slots] = values
        return jnp.asarray(padded.reshape(*plan.shape, *values.shape[1:]))

    return (*jax.tree.map(arranged, data), arranged(np.ones(run.n, np.uint8)))
