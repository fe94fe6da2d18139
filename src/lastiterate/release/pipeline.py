"""The one way to a released model: refuse, charge, execute, certify."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lastiterate import interrupts
from lastiterate.accounting.certificate import support_caveats
from lastiterate.accounting.noise_calibration import check_within
from lastiterate.accounting.unlearning import may_forget
from lastiterate.engine.step_iterator import Steps, run_to_end
from lastiterate.errors import InputError, outside
from lastiterate.features.map_registry import list_providers
from lastiterate.release import composition_reminder, folder
from lastiterate.release.ledger_charge import Charging, weights_hash
from lastiterate.release.model_kinds import LINEAR, ModelKind
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.signatures import warn_of_dumps
from lastiterate.release.training_request import LazyRecords, TrainingRequest, is_source
from lastiterate.release.units import check_units
from lastiterate.run.preprocessing import TopEigenvalue
from lastiterate.run.updates import PostProcessing
from lastiterate.run.validation import check_kept, positive_integer

if TYPE_CHECKING:
    from rich.console import Console

# Every release goes through ``run_release``: refuse what does not fit, charge, execute, certify.
# Kinds of models (``model_kinds``) differ in what they refuse and how they execute.

SEED = "the caller gave the seed: whoever knows it can subtract the noise"


def run_release(kind: ModelKind, order: TrainingRequest) -> ReleasedModel:
    """The model that an order asks for; its line in the ledger is finished when the model is out
    (``finish``).

    **Guarantee:** everything that can be refused without a record's value is refused before the
    charge, and the charge comes before a value is looked at. The certificate speaks of the run that
    was executed.
    """
    return run_to_end(iterate_release(kind, order))


def iterate_release(kind: ModelKind, order: TrainingRequest) -> Steps[ReleasedModel]:
    """``run_release`` in the pauses of ``order.by_step``: everything that comes before the first
    step is done at the first one."""
    of_units = order.of_units  # a kind of model may replace the loss of a unit
    order = check_order(kind, order)
    key = order.draw_key()
    order.charging.of_units = of_units
    order.charging.charge(order.charged or order.certificate, order.size, delta=order.delta)
    order.charging.finished = order.processes.send(lambda: order.charging.finished)
    warn_of_dumps()
    with order.charging.use_records():
        order = order.open_data()
        if order.charging.finished is not None:
            return _find_earlier_model(kind, order, order.charging.finished)
        remembered = composition_reminder.REMINDER.begins(
            order.data,
            order.seed,
            tables=kind.tables or (kind.trained and not is_source(order.data)),
        )
        backend = kind.load()
        # pieces before the first step: a file that changes must not take a trained model with it
        digest = order.charging.compute_digest(_find_kept(kind, order)) if order.in_pieces else None
        model = (
            (yield from backend.iterate(order, key)) if order.by_step else backend.fit(order, key)
        )
    composition_reminder.REMINDER.after(remembered)
    if digest is None:  # behind what a checkpoint refuses
        digest = order.charging.compute_digest(_find_kept(kind, order))
    order.charging.remember(digest)
    added = (*order.caveats, *model.conditions, *(() if order.seed is None else (SEED,)))
    return replace(
        model,
        proof=replace(
            order.certificate,
            caveats=(*order.certificate.caveats, *added),
            unit="" if order.unit is None else order.unit_name,
        ),
    )


def _find_kept(kind: ModelKind, order: TrainingRequest) -> Any:
    """The records that the ledger keeps a digest of, for who forgets some of them later; ``None``
    where it keeps none. Pieces are read for it where the run may forget."""
    if order.kept is not None:
        return order.kept
    if not order.in_pieces:
        return order.data if kind.tables else None
    alone = order.processes.count == 1 and is_source(order.data) and kind is LINEAR
    return order.data if alone and not order.exact and may_forget(order.certificate.run) else None


def _find_earlier_model(kind: ModelKind, order: TrainingRequest, place: Path) -> ReleasedModel:
    """The model that an earlier process of this order wrote, before it was stopped; refused with
    other records."""
    from lastiterate.release.verification import load

    kept = _find_kept(kind, order)
    if kept is not None and order.processes.rank == 0:
        order.charging.check_same(kept)
    return load(place, like=order.model if order.charging.library and not kind.tables else None)


def check_order(kind: ModelKind, order: TrainingRequest) -> TrainingRequest:
    """The order with what it assumes; refused where its certificate exceeds its budget, or it
    cannot be executed."""
    order.certificate.check_lower_bounds(order.delta)
    if order.scratch is not None:
        _check_writable(order.scratch)
    if order.budget is not None:
        check_within(order.certificate, order.budget.epsilon, order.delta)
    if kind.subject == "run" and order.certificate.run.nominal:
        check_nominal(order)
    if kind.subject == "run" and order.charging.kept_in is not None:
        from lastiterate.engine.checkpoint import check_kept_run

        check_kept_run(order.certificate.run)
    if order.in_pieces:
        check_in_pieces(kind, order.devices)
    if order.in_pieces and kind.subject == "run":
        from lastiterate.engine.streaming.buffers import Devices
        from lastiterate.engine.streaming.source import check_streams

        check_streams(order.certificate.run, order.data if is_source(order.data) else None)
        shared = Devices(order.devices)
        shared.check_checkpoint(order.charging.kept_in)
        shared.check_records(order.certificate.run.n)
        order.processes.check_same(
            epsilon=f"{order.budget} {order.delta}",
            devices=str(order.devices),
            run=f"{order.certificate.run.to_json()} {order.exact}",
            schema=repr(order.schema),
        )
        order.processes.check_records(
            lambda: _fingerprint(order.data), getattr(order.data, "file_identity", "")
        )
    if not isinstance(order.data, LazyRecords) and not is_source(order.data):
        check_kept("data", order.data)
    caveats = order.caveats
    if order.schema is not None:
        caveats += tuple(part.words for part in list_providers(order.schema.features))
    if kind.subject == "run":
        run = order.certificate.run
        if (type(run.optimizer) is PostProcessing) != (order.optimizer is not None):
            raise InputError(
                "optimizer",
                "is needed where the run's update is PostProcessing, and for no other",
                None,
                "give train the optimizer, or leave the update to it",
            )
        caveats += check_units(run, order.trained_units, order.records if run.nominal else run.n)
    if kind.subject == "run" and not order.exact:
        caveats += support_caveats(order.certificate, order.delta)
    return kind.load().check(replace(order, caveats=caveats))


def _check_writable(folder: Path) -> None:
    """Refuse a folder for scratch files in which none can be made, before anything is paid."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            "scratch", "must be a folder that can be written to", str(folder), "name another one"
        )


def _fingerprint(data: Any) -> Iterable[Any]:
    """Arrays that are equal for equal data."""
    import jax

    if isinstance(data, LazyRecords) or is_source(data):
        return data.fingerprint()
    parts = (np.asarray(part) for part in jax.tree.leaves(data))
    return (part.astype(str) if part.dtype == object else part for part in parts)


def check_nominal(order: TrainingRequest) -> None:
    """Refuse what would follow from the true number of records where the public n is nominal."""
    if order.in_pieces:
        raise InputError(
            "data",
            "must be in the memory of one device under add-remove: what is read in pieces is cut "
            "by the number of records, which nothing may follow from",
            None,
            "use zero-out, where n is public",
        )
    if any(isinstance(part, TopEigenvalue) for part in order.certificate.run.preprocessing):
        raise InputError(
            "preprocessing",
            "must have no top eigenvalue under add-remove: its largest value follows from how "
            "many records there are",
            "TopEigenvalue",
            "give the step sizes themselves",
        )


def check_in_pieces(kind: ModelKind, devices: object) -> None:
    """Refuse records that are read in pieces, or that devices share, where one device needs the
    whole data."""
    positive_integer("devices", devices)
    if devices != 1 and not kind.shared:
        raise InputError(
            "devices",
            f"must be 1 for {kind.name} models",
            devices,
            "linear models and losses written with JAX share batches",
        )
    if not kind.streams:
        raise InputError(
            "data",
            f"must be in the memory of one device for {kind.name} models",
            None,
            "linear models and losses written with JAX read them in pieces, and on several devices",
        )


def finish(
    kind: ModelKind, order: TrainingRequest, statement: dict[str, Any] | None = None
) -> ReleasedModel:
    """``run_release``, for models that are out when they are in the caller's hands, or in the
    folder that the caller named."""
    return run_to_end(iterate_to_end(kind, order, statement))


def iterate_to_end(
    kind: ModelKind, order: TrainingRequest, statement: dict[str, Any] | None = None
) -> Steps[ReleasedModel]:
    """``finish`` in the pauses of ``iterate_release``."""
    with order.processes as processes, order.charging as charging:
        model = yield from iterate_release(kind, order)
        if statement is not None and charging.finished is None:
            model = model.with_statement(statement)
        with interrupts.later():
            if charging.place is not None:
                _write_to(charging.place, model, charging)
            charging.finish(model)
        processes.send(lambda: None)  # the others return it when it is out
    return model


def _write_to(place: Path, model: ReleasedModel, charging: Charging) -> None:
    """Write the model that a caller of ``train`` paid for, and warn where it went elsewhere or was
    there."""
    if charging.finished is not None:
        warnings.warn(
            f"{charging.finished} was written by an earlier process of this call, which was stopped "
            "before it ended: nothing was trained or charged again",
            stacklevel=outside(),
        )
        return
    charging.announce(model)
    stored, why = store_paid(model, place)
    if why:
        warnings.warn(
            f"out={str(place)!r} could not be written ({why}); the model was saved at "
            f"{stored.path}: move it from there",
            stacklevel=outside(),
        )


def store_paid(model: ReleasedModel, place: Path) -> tuple[folder.StoredModel, str]:
    """Write a model that was paid for to ``place``, or else to a new temporary folder; with the
    reason, or "".

    A folder with these weights is left as it is: an earlier process of this fit wrote it.
    """
    there = folder.whole(place)
    if there is not None and there.hashes[folder.WEIGHTS] == weights_hash(model):
        return there, ""
    try:
        return model.store(place), ""
    except (OSError, InputError) as error:
        why = (
            error.strerror or str(error)
            if isinstance(error, OSError)
            else error.rule.removesuffix(".")
        )
        return model.store(Path(tempfile.mkdtemp(prefix="lastiterate-")) / place.name), why


# Bars of steps and time while a model is trained; nothing in them depends on the data.


@contextmanager
def steps_bar(
    what: str, console: Console | None = None
) -> Generator[Callable[[int, int, float], None]]:
    """Show a bar of steps, by default on standard error.

    The bar is a function of steps done, steps in all and seconds; in a notebook it is a line.
    """
    with progress_bars(what, console) as (bar, _):
        yield bar


@contextmanager
def progress_bars(
    what: str, console: Console | None = None
) -> Generator[tuple[Callable[[int, int, float], None], Callable[[int, int], None] | None]]:
    """Show the bar of ``steps_bar``, and on a terminal another one while records are read.

    ``what``: the word before the bar, such as "training". ``console``: where it is shown, by
    default standard error. The second bar is a function of the records read and of all; it is
    ``None`` where there is no terminal.
    """
    line = notebook_progress(what)
    if line is not None:
        yield line, None
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True) if console is None else console,
    ) as bar:
        rows = bar.add_task("reading records", total=None, visible=False)
        task = bar.add_task(what, total=None, visible=False)  # until the data are read

        def show_steps(done: int, steps: int, seconds: float) -> None:
            bar.update(task, completed=done, total=steps, visible=True)

        def show_rows(done: int, count: int) -> None:
            bar.update(rows, completed=done, total=count, visible=True)

        yield show_steps, show_rows if bar.console.is_terminal else None


def notebook_progress(what: str) -> Callable[[int, int, float], None] | None:
    """Return the function that shows steps and seconds in one line of a notebook, and updates it.

    ``None`` outside of notebooks.
    """
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    display, shown = cast(Any, import_module("IPython.display")).display, list[Any]()

    def show(done: int, steps: int, seconds: float) -> None:
        said = {"text/plain": f"{what}: {done} of {steps} steps, {seconds:.1f} s"}
        if shown:
            shown[0].update(said, raw=True)
        else:
            shown.append(display(said, raw=True, display_id=True))

    return show
