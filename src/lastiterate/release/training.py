"""`train`: from a described run and data to a released model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, cast

from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.noise_calibration import (
    calibrate,
    calibrate_exactly,
    warn_of_stated_noise,
)
from lastiterate.certificate_statement import check_statement
from lastiterate.engine.step_iterator import StepIterator
from lastiterate.errors import InputError, NotCertified
from lastiterate.lazy import accept_old_names
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.task import automatic_delta
from lastiterate.release.folder import to_path
from lastiterate.release.jax_processes import join_devices, warn_of_launcher
from lastiterate.release.ledger_charge import EVERY, Charging, make_charging
from lastiterate.release.model_kinds import ModelKind, kind_for
from lastiterate.release.pipeline import check_in_pieces, finish, iterate_to_end, steps_bar
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.training_request import (
    Budget,
    Processes,
    Progress,
    TrainingRequest,
    is_source,
)
from lastiterate.release.units import UnitLoss
from lastiterate.run.facts import Evidence
from lastiterate.run.losses import HuberRidge
from lastiterate.run.methods import ExponentialAverage, NoisySGD, TailAverage
from lastiterate.run.run import RecordAugmentation, Run
from lastiterate.run.updates import PostProcessing, UpdateRule
from lastiterate.run.validation import check_kept, integer, relative_weights, to_float

# An augmentation as a certificate calls it.

LONGEST = 60
"""Characters of a function's name that are kept."""


def name_augmentation(augment: Callable[[Any, Any], Any] | None) -> list[str]:
    """Return the name of a caller's augmentation, or none without one; refuse other objects."""
    if augment is None:
        return []
    if not callable(augment):
        raise InputError(
            "augment", "must be a function of a key and one record", type(augment).__name__
        )
    name = str(getattr(augment, "__name__", type(augment).__name__))[:LONGEST]
    return [name if name.isprintable() and name else "augmentation"]


# What the arguments of ``train`` add to the description of its run.


def with_average(run: Run, average: TailAverage | ExponentialAverage) -> Run:
    """The run that releases an average."""
    if type(average) not in (TailAverage, ExponentialAverage):
        raise InputError(
            "average", "must be a TailAverage or an ExponentialAverage", type(average).__name__
        )
    if run.method not in (NoisySGD(), average):
        raise InputError(
            "average",
            "is of noisy steps whose last iterate would be released otherwise",
            type(run.method).__name__,
            "leave it out, or use method=NoisySGD()",
        )
    return replace(run, method=average)


def with_class_weights(run: Run, given: object) -> Run:
    """The run whose classes have these weights."""
    count = run.loss.target_classes
    named = len(cast("Mapping[object, object]", given)) if isinstance(given, Mapping) else 0
    count = max(2, named) if count is None else count
    weights = relative_weights(cast(object, given), range(count))
    if isinstance(run.loss, HuberRidge) or run.loss.class_weights not in (None, weights):
        raise InputError(
            "class_weight", "must be that of the run, or left to it", weights, "leave it out"
        )
    return replace(run, loss=replace(run.loss, class_weights=weights))


def with_record_draws(
    run: Run, kind: ModelKind, model: object, loss: object, augment: object, copies: int | None
) -> Run:
    """The run that says what its records draw."""
    names = kind.load().draws(model, loss, augment)
    if not names and copies is not None:
        raise InputError(
            "copies", "are of records that draw something", copies, "add augment=, or leave it out"
        )
    if run.augmentation is None and names:
        return replace(
            run,
            augmentation=RecordAugmentation(" and ".join(names), 1 if copies is None else copies),
        )
    if run.augmentation is not None and copies not in (None, run.augmentation.copies):
        raise InputError(
            "copies", f"must be those of the run, {run.augmentation.copies}", copies, "leave it out"
        )
    return run


# ``train``: one function from a described run and data to a released model; JAX is loaded late.


@accept_old_names("train", at_least="min_evidence")
def train(
    run: Run,
    data: object,
    *,
    model: object = None,
    loss: Callable[..., Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    seed: int | None = None,
    microbatch: int | None = None,
    optimizer: object = None,
    average: TailAverage | ExponentialAverage | None = None,
    augment: Callable[[Any, Any], Any] | None = None,
    copies: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    min_evidence: Evidence = Evidence.ENFORCED,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY,
    checkpoint_key: str | Path | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    secure_noise: bool = False,
    unit: object = None,
    statement: dict[str, Any] | None = None,
    scratch: str | Path | None = None,
    devices: int = 1,
    out: str | Path | None = None,
) -> ReleasedModel:
    """Calibrate a run to a budget, execute it on data, and release a certified model.

    Parameters
    ----------
    run : Run
        Description of the training.
    data : tuple of array_like, or Dataset, or source of records
        Private records. Linear models take ``(x, y)`` with rows (n, d) and class indices or numbers
        (n,). Other models take arrays, or structures of arrays, with the records along the first
        axis; modules also take tensors or a ``Dataset``. ``lastiterate.data.stream`` makes a source
        of data larger than memory.
    model : nested arrays or torch.nn.Module, optional
        First parameters, chosen without the data: any nested structure of floating-point arrays for
        a JAX loss, or a module. Linear models take none. Of a module after ``fully_shard`` each
        device holds one layer at a time, and the host memory of each process all parameters.
    loss : callable, optional
        ``loss(params, *record)`` of one record, written with JAX; with a ``key`` argument it also
        gets a key of the record's own. For a module: ``loss(output, *rest)``. Linear models take
        none.
    epsilon : float, optional
        Budget, in natural logarithms. The run is executed with the least noise that keeps it, and
        a stated noise that would keep a smaller epsilon is warned of.
        Required where the run has no noise; without it the run is executed as it is.
    delta : float, optional
        Budget; by default a power of ten of at most 1/(10 n).
    seed : int, optional
        Seed for tests only; it becomes a caveat of the certificate. By default the system's
        randomness is used.
    microbatch : int, optional
        Number of records whose gradients are in memory at once. It changes nothing else.
    optimizer : object, optional
        Optimiser of the noisy mean gradients instead of the run's update, with its own step sizes;
        the run's step size is 1. It is an optax gradient transformation for a JAX loss, and for a
        module a function from parameters to a ``torch.optim.Optimizer`` or a scheduler around one.
        Every iterate is charged.
    average : TailAverage or ExponentialAverage, optional
        Average of iterates to release instead of the last one. Every iterate is charged.
    augment : callable, optional
        ``augment(key, x)``: a random form of a record's first part, drawn for every record and
        step. The key is JAX's for a JAX loss, and a `lastiterate.torch.RecordKey` for a module.
    copies : int, optional
        Number of draws per record, averaged before clipping; 1 by default.
    class_weight : dict of int to float, optional
        Public weight of every class index. Only ratios count: a contribution is clipped first, and
        then multiplied by at most 1.
    min_evidence : Evidence, default Evidence.ENFORCED
        Weakest evidence of the facts that the certificate may rest on.
    progress : callable or bool, optional
        ``progress(steps_done, steps, seconds)``, called from time to time; True shows a bar.
    checkpoint : path, optional
        File for the encrypted state. The same call resumes from it with the same bits, and deletes
        it at the end.
    checkpoint_every : float, default 60
        Seconds between checkpoints.
    checkpoint_key : path, optional
        File with the key of the checkpoint; by default the key is taken from the environment.
    ledger : Ledger or path, optional
        Ledger (``lastiterate ledger make``) that is charged before ``data`` are read.
    dataset : str, optional
        Name of the data set in the ledger.
    secure_noise : bool, default False
        Whether to use exact sums and exact discrete noise. Every step is charged, and the
        certificate covers the arithmetic.
    unit : array_like, shape (n,), optional
        Identifier of the protected unit of every row. No unit may have more rows than
        ``rows_per_unit``; `select_unit_rows` selects them. With ``rows_per_record`` the first rows of
        every unit are used.
    statement : dict, optional
        Statement of the releaser, written into the certificate.
    scratch : path, optional
        Folder for encrypted temporary files of data larger than memory.
    devices : int, default 1
        Number of JAX devices that share the records of every batch. Noise is added once.
    out : path, optional
        Folder that the model is saved to as soon as it is made. A folder that exists is refused
        before anything is charged. If an earlier process of the same call was killed after it
        wrote the model, that model is returned, and nothing is charged again.

    Returns
    -------
    Fitted
        Released model with ``certificate``, ``predict`` and ``save``.

    Raises
    ------
    NotCertified
        If no theorem certifies the run on facts of ``min_evidence``, before training.
    InputError
        If input is bad, the budget does not suffice, or the run diverges. Nothing is released.

    See Also
    --------
    load : Read a saved model.
    lastiterate.estimators : Estimators that plan the run themselves.
    lastiterate.jax.private : The same steps, in a loop of your own.
    lastiterate.torch.make_private : The same steps of a module, in a loop of your own.

    Notes
    -----
    **Guarantee:** the certificate is about the executed run, and about this release only.

    Under ``torchrun`` every process makes the same call with a module, and they train it together:
    noise is added once, the first process alone has ``ledger``, ``checkpoint`` and ``out``, and all
    return the model. So do processes that ``lastiterate.distributed.join`` connected, without a
    module, with ``devices`` above 1.

    Examples
    --------
    >>> import numpy as np
    >>> import lastiterate as li
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> run = li.Run(n=200, steps=10, step_size=0.5, loss=li.Logistic(row_norm=2.0, ridge=0.1))
    >>> model = li.train(run, (x, y), epsilon=1.0, delta=1e-4)
    >>> model.certificate.epsilon(1e-4) <= 1.0
    True
    >>> model.predict(x).shape
    (200,)
    """
    processes, model = _join_processes(model, devices)
    with processes:
        kind, order, said = make_request(
            run,
            data,
            model=model,
            loss=loss,
            epsilon=epsilon,
            delta=delta,
            seed=seed,
            microbatch=microbatch,
            optimizer=optimizer,
            average=average,
            augment=augment,
            copies=copies,
            class_weight=class_weight,
            min_evidence=min_evidence,
            progress=progress,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            checkpoint_key=checkpoint_key,
            ledger=ledger,
            dataset=dataset,
            secure_noise=secure_noise,
            unit=unit,
            statement=statement,
            scratch=scratch,
            devices=devices,
            out=out,
            processes=processes,
        )
        first = processes.rank == 0
        bar = steps_bar("training") if progress is True and first else None
        with bar or nullcontext(progress if callable(progress) else None) as shown:
            return finish(kind, replace(order, progress=shown), said)


class TrainingOptions(TypedDict, total=False):
    """The arguments of ``train`` that a loop of the caller's own takes too."""

    epsilon: float | None
    delta: float | None
    seed: int | None
    microbatch: int | None
    optimizer: object
    average: TailAverage | ExponentialAverage | None
    augment: Callable[[Any, Any], Any] | None
    copies: int | None
    class_weight: Mapping[int, float] | None
    min_evidence: Evidence
    checkpoint: str | Path | None
    checkpoint_every: float
    checkpoint_key: str | Path | None
    ledger: Ledger | str | Path | None
    dataset: str | None
    secure_noise: bool
    unit: object
    statement: dict[str, Any] | None
    scratch: str | Path | None
    devices: int
    out: str | Path | None


def begin_steps(
    called: str,
    run: Run,
    data: object,
    model: object,
    loss: Callable[..., Any],
    options: TrainingOptions,
    *,
    kinds: str,
    more: str,
) -> StepIterator[ReleasedModel]:
    """Check, and charge, a release whose steps a caller's loop takes; it stands before the first.

    ``called``: the argument that holds the model. ``kinds``: the name of the kind of model that the
    loop trains. ``more``: how the caller takes a step.
    """
    try:
        processes, model = _join_processes(model, options.get("devices", 1))
        with ExitStack() as stack:
            stack.enter_context(processes)
            kind, order, said = make_request(
                run, data, model=model, loss=loss, processes=processes, **options
            )
            if kind.name != kinds:
                raise InputError(
                    "model",
                    "must be a torch.nn.Module"
                    if kinds == "torch"
                    else "must be a nested structure of NumPy or JAX arrays",
                    type(model).__name__,
                    "lastiterate.jax.private is for losses of JAX, lastiterate.torch.make_private for "
                    "modules",
                )
            steps = iterate_to_end(kind, replace(order, by_step=True), said)
            stack.pop_all()  # the steps leave the processes
        return StepIterator(steps, order.certificate.run, more)
    except InputError as error:
        if error.argument != "model":
            raise
        raise InputError(called, error.rule.removesuffix(".")) from None


def _join_processes(model: object, devices: object) -> tuple[Processes, object]:
    """Return the processes that train ``model`` together, and the model inside of their replicas."""
    try:
        kind = kind_for(model)
    except InputError:  # ``make_request`` refuses it
        return Processes(), model
    if kind.processes:
        return kind.load().join_processes(model)
    found = join_devices(devices) if kind.shared else Processes()
    if found.count == 1:
        warn_of_launcher()
    return found, model


def check_options(function: str, options: Mapping[str, object]) -> None:
    """Refuse what is no argument of ``train``, and what a loop has itself."""
    if "progress" in options:
        raise InputError(
            "progress",
            "is for train, and a loop of your own sees its steps",
            None,
            "print done and steps",
        )
    for name in options:
        if name not in TrainingOptions.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def make_request(
    run: Run,
    data: object,
    *,
    model: object = None,
    loss: Callable[..., Any] | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    seed: int | None = None,
    microbatch: int | None = None,
    optimizer: object = None,
    average: TailAverage | ExponentialAverage | None = None,
    augment: Callable[[Any, Any], Any] | None = None,
    copies: int | None = None,
    class_weight: Mapping[int, float] | None = None,
    min_evidence: Evidence = Evidence.ENFORCED,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY,
    checkpoint_key: str | Path | None = None,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    secure_noise: bool = False,
    unit: object = None,
    statement: dict[str, Any] | None = None,
    scratch: str | Path | None = None,
    devices: int = 1,
    out: str | Path | None = None,
    processes: Processes | None = None,
) -> tuple[ModelKind, TrainingRequest, dict[str, Any] | None]:
    """Check the arguments of ``train``; the kind of model, its release, and the releaser's statement.

    ``progress`` is only checked. ``processes``: who trains together, of which the first has the
    ledger, the checkpoint and the folder.
    """
    _check_arguments(
        run,
        epsilon=epsilon,
        delta=delta,
        seed=seed,
        secure_noise=secure_noise,
        progress=progress,
        min_evidence=min_evidence,
        microbatch=microbatch,
    )
    if isinstance(optimizer, UpdateRule):
        raise InputError(
            "optimizer",
            "must be one of torch or optax, and this rule is a part of the run",
            optimizer,
            f"write Run(optimizer={optimizer!r}), and leave it out of train",
        )
    kind = _kind_for(model, loss)
    run = run if average is None else with_average(run, average)
    run = (
        run
        if optimizer is None or run.optimizer is not None
        else replace(run, optimizer=PostProcessing(kind.load().name_optimizer(optimizer, model)))
    )
    run = run if class_weight is None else with_class_weights(run, class_weight)
    run = with_record_draws(run, kind, model, loss, augment, copies)
    said = None if statement is None else check_statement(statement)
    _check_data(kind, data, devices)
    stated = automatic_delta(run.n) if delta is None else delta
    certificate = _certify_run(run, kind, epsilon, stated, None if secure_noise else min_evidence)
    processes = Processes() if processes is None else processes
    charging = (
        make_charging(
            ledger=ledger,
            dataset=dataset,
            checkpoint=checkpoint,
            every=checkpoint_every,
            key_file=checkpoint_key,
            place=None if out is None else to_path(out, "out"),
            library=True,
        )
        if processes.rank == 0
        else Charging(library=True)
    )
    order = TrainingRequest(
        data=data,
        budget=None if epsilon is None else Budget(epsilon, stated, run.adjacency),
        proof=certificate,
        delta=stated,
        model=model,
        loss=loss,
        exact=secure_noise,
        seed=seed,
        microbatch=microbatch,
        optimizer=optimizer,
        augment=augment,
        charging=charging,
        processes=processes,
        devices=devices,
        unit=unit,
        scratch=None if scratch is None else to_path(scratch, "scratch"),
        caveats=(loss.caveat,) if isinstance(loss, UnitLoss) else (),
    )
    return kind, order, said


def _check_arguments(
    run: Run,
    *,
    epsilon: float | None,
    delta: float | None,
    seed: int | None,
    secure_noise: bool,
    progress: Progress | bool | None,
    min_evidence: Evidence,
    microbatch: int | None,
) -> None:
    """Refuse arguments of another type."""
    if type(run) is not Run:
        raise InputError(
            "run",
            "must be a Run",
            type(run).__name__,
            "describe one with lastiterate.Run(n=..., ...)",
        )
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if value is not None:
            to_float(name, value)
    if seed is not None and integer("seed", seed) < 0:
        raise InputError("seed", "must be an integer >= 0", seed)
    if not isinstance(secure_noise, bool):  # pyright: ignore
        raise InputError("secure_noise", "must be True or False", secure_noise)
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise InputError(
            "progress",
            "must be True, or a function of steps done, steps in all and seconds",
            progress,
            "leave it out for none",
        )
    if type(min_evidence) is not Evidence:
        raise InputError(
            "min_evidence",
            "must be an Evidence",
            min_evidence,
            "write lastiterate.Evidence.ENFORCED",
        )
    if microbatch is not None:
        integer("microbatch", microbatch)


def _check_data(kind: ModelKind, data: object, devices: int) -> None:
    """Refuse containers that the kind of model does not take."""
    check_kept("data", data)
    if is_source(data) or devices != 1:
        check_in_pieces(kind, devices)
    if kind.containers or is_source(data):
        return
    if not isinstance(data, tuple):
        raise InputError(
            "data",
            "must be a tuple: (x, y), or what the loss takes after the parameters",
            type(data).__name__,
            "write (x, y)",
        )
    check_tensors(cast("tuple[Any, ...]", data))


def check_tensors(data: tuple[Any, ...]) -> None:
    """Refuse tensors of torch that NumPy cannot read, where no torch module is trained."""
    for part in data:
        if type(part).__module__.split(".")[0] == "torch" and hasattr(part, "numpy"):
            try:
                check_kept("data", part.numpy())
            except (TypeError, RuntimeError):
                raise InputError(
                    "data",
                    "must be arrays, or tensors that NumPy can read",
                    f"{part.dtype} on {part.device}",
                    "write tensor.detach().cpu().float()",
                ) from None


def _kind_for(model: object, loss: object) -> ModelKind:
    """The kind of model that is asked for; anything else is refused."""
    if model is None and loss is not None:
        raise InputError(
            "model",
            "is needed together with a loss: the first parameters",
            None,
            "a linear model needs neither, its loss belongs to the run",
        )
    return kind_for(model)


def _certify_run(
    run: Run, kind: ModelKind, epsilon: float | None, delta: float, min_evidence: Evidence | None
) -> Certificate:
    """Return the certificate of the run that will be executed; nothing is trained without one.

    ``min_evidence`` is ``None`` with exact noise.
    """
    if min_evidence is None and kind.exactly is None:
        raise InputError(
            "secure_noise",
            "is not for models of this kind: their gradients are not summed exactly",
            kind.name,
            "leave it out",
        )
    if epsilon is not None:
        found = (
            calibrate_exactly(run, epsilon=epsilon, delta=delta)
            if min_evidence is None
            else calibrate(run, epsilon=epsilon, delta=delta, min_evidence=min_evidence)
        )
        warn_of_stated_noise(run, found, epsilon, delta)
        return found
    if run.noise is None:
        raise InputError(
            "epsilon", "is needed where the run has no noise", None, "state a budget, or the noise"
        )
    if min_evidence is None:
        return Certificate(ExactRun(run))
    certificate = account(run, min_evidence=min_evidence)
    if not math.isfinite(certificate.epsilon(delta)):
        raise NotCertified(certificate.nearest())
    return certificate
