"""Charge one fit to a ledger and checkpoint it; what the ledger leaves for it."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import shlex
import shutil
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from lastiterate import interrupts
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_subject import to_unit_name
from lastiterate.atomic_files import is_taken
from lastiterate.errors import BudgetWarning, InputError, outside
from lastiterate.ledger.budget_check import LineCheckpoints, is_other_unit
from lastiterate.ledger.database import Unreachable
from lastiterate.ledger.ledger import Ledger, check_charges
from lastiterate.ledger.quote import describe_second_name
from lastiterate.release import folder
from lastiterate.release.allowance import Allowance, Charged
from lastiterate.release.units import Units, find_id_columns, find_unit_column

if TYPE_CHECKING:
    from lastiterate.data.schema import Schema
    from lastiterate.engine.checkpoint import Checkpoint, Key
    from lastiterate.ledger.budget_check import Release, Total
    from lastiterate.release.released_model import ReleasedModel


# Charge one fit to a ledger and checkpoint it. The order matters: the release is charged, and
# said to have touched records, before a record is read; then a checkpoint binds the run's key to
# that line of the ledger. A fit that is killed after its charge resumes from its checkpoint under
# the same line: it is charged once.


EVERY = 60.0
"""Seconds between checkpoints."""
AT_ONCE = 4096
"""Records whose digest is taken at once."""


@final
@dataclass(kw_only=True)
class Charging:
    """One fit's line in ``ledger`` against ``dataset``, and its checkpoint; either may be absent.

    ``place``: the folder that the model is written to; ``earlier``: the one that the same command
    would have written before. ``library``: whether ``lastiterate.train`` writes it, which calls it
    ``out`` and writes no page. ``finished``: the one of them that holds the model, where a process
    of this fit was stopped behind it: nothing is trained then, and nothing is charged.
    ``described``: whether the caller describes the run, and may change its batches.
    ``of_units``: whether the caller says whose every row is, so that what is certified protects all
    rows of a unit, called ``unit`` where it has a name. ``id_columns``: those that the caller might
    have named for that.

    **Guarantee:** ``charge`` comes before a record is read, and refuses what the budget does not
    hold.
    """

    ledger: Ledger | None = None
    dataset: str | None = None
    purpose: str = "train"
    kept_in: Path | None = None
    every: float = EVERY
    key: Key | None = None
    place: Path | None = None
    earlier: Path | None = None
    of_units: bool = False
    unit: str = ""
    id_columns: tuple[str, ...] = ()
    library: bool = False
    described: bool = False
    finished: Path | None = field(init=False, default=None)
    checkpoint: Checkpoint | None = field(init=False, default=None)
    _held: Path | None = field(init=False, default=None, repr=False)
    _token: str = field(init=False, default="", repr=False)
    _charged: bool = field(init=False, default=False, repr=False)

    def __enter__(self) -> Charging:
        return self

    def __exit__(self, *_: object) -> None:
        """Give the reserved space back: the model is written now, or never."""
        if self._held is not None:
            with interrupts.later():
                shutil.rmtree(self._held, ignore_errors=True)

    def allowance(self) -> Allowance | None:
        """What the ledger leaves for this release, for the planner; ``None`` without a ledger. A
        fit that resumes from a checkpoint is planned as it was before it was charged."""
        if self.ledger is None:
            return None
        token = self._checkpoint_token() or (
            "" if self._stopped is None else self._stopped[1].token
        )
        total = self.ledger.total(self.dataset)
        check_charges(self.ledger, total)
        return self._allowance_of(total, token)

    def _allowance_of(self, total: Total, token: str = "") -> Allowance:
        left = Allowance.of(total, token, of_units=self.of_units, id_columns=self.id_columns)
        return replace(left, described=self.library or self.described)

    def name_unit(self, units: Units | None, schema: Schema | None) -> None:
        """Take over whose rows a file's are; refuse what ``check_unit`` refuses."""
        self.of_units, self.id_columns = units is not None, find_id_columns(schema)
        self.unit = "" if units is None else to_unit_name(units.column)
        if units is not None:
            self.check_unit(units.column, schema)

    def check_unit(self, column: str, schema: Schema | None) -> None:
        """Refuse another column than the one that has the name of the ledger's unit."""
        if self.ledger is None or schema is None:
            return
        total = self.ledger.total(self.dataset)
        named = tuple(described.name for described in schema.columns)
        right = find_unit_column(named, total.unit)
        if not (right is None or total.of_rows or column == right):
            raise InputError(
                "unit",
                f"must be {right}: this budget is per {total.unit}, and the data have that column",
                column,
                f"the budget of {total.dataset} is per {total.unit}, of at most {total.rows} rows: "
                f"give unit={shlex.quote(right)}, or make a ledger per {column}; nothing "
                "was charged",
            )

    def _checkpoint_token(self) -> str:
        from lastiterate.engine import checkpoint as sealed

        return (
            ""
            if self.kept_in is None or not self.kept_in.exists()
            else sealed.token_of(self.kept_in)
        )

    @cached_property
    def _stopped(self) -> tuple[Path, Release, str | None] | None:
        """The folder of a model whose process was stopped before it had ended, its line, and the
        digest of its data.

        It has not ended where the line is not released, a command's page is missing, or the
        checkpoint is still there.
        """
        if self.ledger is None:
            return None
        dataset, kept = self.ledger.total(self.dataset).dataset, self._checkpoint_token()
        for path in (self.place, self.earlier):
            stored = None if path is None else folder.whole(path)
            known = (
                None
                if stored is None
                else self.ledger.find_announced(stored.hashes[folder.WEIGHTS])
            )
            if stored is None or known is None:
                continue
            line = known[0]
            whole = self.library or folder.holds(stored.path, folder.PAGE)
            ended = line.state != "touched" and not kept and whole
            if (
                (line.dataset, line.purpose) == (dataset, self.purpose)
                and kept in ("", line.token)
                and not ended
            ):
                return stored.path, *known
        return None

    def check_place(self) -> None:
        """Refuse a folder that is there, unless it may be the one of a process of this fit that was
        stopped."""
        if self.place is None or not is_taken(self.place):
            return
        again = (
            self.kept_in is not None
            and self.kept_in.exists()
            and folder.whole(self.place) is not None
        )
        if not again and (self._stopped is None or self._stopped[0] != self.place):
            self._check_free(self.place)

    def _check_free(self, place: Path) -> None:
        """Refuse a folder that is there, in the words of whoever named it."""
        if self.library:
            folder.free(
                place,
                "out",
                "nothing was charged; lastiterate.load reads a model, another one needs another "
                "folder",
            )
        folder.free(place)

    def without_checkpoint(self, why: str) -> None:
        """Refuse a checkpoint where none would be kept."""
        if self.kept_in is not None:
            raise InputError("checkpoint", f"is not kept {why}", str(self.kept_in), "leave it out")

    def charge(self, charged: Charged, size: int = 0, *, delta: float) -> None:
        """Charge the release of ``charged``, once, and open its checkpoint; called before records
        are read.

        ``delta``: of the release's own statement, for what a refusal says. ``size``: bytes that the
        model takes at ``place``, about; a disk that has no space for them is noticed here.
        """
        if self._charged:
            return
        interrupts.check()
        with interrupts.later():
            self._take(charged, size, delta)
        self._charged = True

    @contextmanager
    def use_records(self) -> Generator[None]:
        """Work on records that were paid for: a refusal from now on says that the charge stays."""
        try:
            yield
        except InputError as error:
            if self.ledger is None:
                raise
            raise error.with_clause("records were read, and the ledger keeps the charge") from None

    def _take(self, charged: Charged, size: int, delta: float) -> None:
        """Space, the charge and the checkpoint, in this order; all of it happens where any does."""
        if self._stopped is not None and self._stopped[1].run == hash_description(charged):
            self.finished, self._token = self._stopped[0], self._stopped[1].token
            interrupts.say(f"the model is complete, at {self.finished}")
            return
        if self.place is not None:
            self._check_model(self.place, charged)
            self._held = folder.reserve_space(self.place, size)
        if self.kept_in is not None:
            from lastiterate.engine import checkpoint as sealed

            self.key = sealed.read_key() if self.key is None else self.key
            if self.key is None:
                raise InputError(
                    "checkpoint",
                    "needs a key: without one nothing is written",
                    str(self.kept_in),
                    sealed.HELP,
                )
            self._token = self._checkpoint_token()
        if self.ledger is not None:
            if self.kept_in is not None and self.kept_in.exists() and not self._token:
                raise InputError(
                    "checkpoint",
                    "was begun without a ledger",
                    str(self.kept_in),
                    "resume it without one",
                )
            self._charge(self.ledger, charged, delta)
            again = (
                ""
                if self.kept_in is None
                else ", and the same command resumes from its checkpoint without another"
            )
            interrupts.say(f"nothing was released; the ledger keeps the charge{again}")
        elif self._token:
            raise InputError(
                "checkpoint",
                "was begun under a ledger",
                str(self.kept_in),
                "resume with that ledger and its data set: the release is a line of it",
            )
        if self.kept_in is not None:
            self.checkpoint = self._open_checkpoint()

    def _check_model(self, place: Path, charged: Charged) -> None:
        """Refuse an existing folder, unless it holds a model of the run that resumes from a
        checkpoint: the same weights will come out."""
        stored = None if self.kept_in is None or not self.kept_in.exists() else folder.whole(place)
        subject = None if stored is None else Certificate.from_dict(stored.certificate).subject
        if subject is None or hash_of(subject.describe_charge()) != hash_description(charged):
            self._check_free(place)

    def _charge(self, ledger: Ledger, charged: Charged, delta: float) -> None:
        total = ledger.total(self.dataset)
        allowance = self._allowance_of(total)
        states = {release.token: release.state for release in total.releases}
        if self._token not in states:
            allowance.check(charged, delta, total, forgets=self.purpose == "forget")
        if (size := allowance.size_for(charged)) > 1:
            warnings.warn(
                f"the budget of {total.dataset} is per {total.unit}, of at most {total.rows} rows: "
                f"the "
                f"ledger is charged for a group of {size}, more than the certificate of this "
                f"release says",
                BudgetWarning,
                stacklevel=outside(),
            )
        if is_other_unit(self.unit, total.unit):
            warnings.warn(
                f"the budget of {total.dataset} is per {total.unit}, and this release protects all "
                f"rows of one {self.unit}: it protects one {total.unit} only if nobody has two",
                BudgetWarning,
                stacklevel=outside(),
            )
        if second := describe_second_name(ledger, total):
            warnings.warn(second, BudgetWarning, stacklevel=outside())
        run = hash_description(charged)
        lost = [
            release.number
            for release in total.releases
            if (release.run, release.purpose, release.state) == (run, self.purpose, "touched")
            and release.token != self._token
        ]
        if lost and not self._token:
            warnings.warn(
                f"line {lost[-1]} of the ledger was charged for the same fit, and left no model or "
                "is still running: this is a second charge. checkpoint= continues a fit that was "
                "stopped without one",
                BudgetWarning,
                stacklevel=outside(),
            )
        if not self._token:
            token = secrets.token_hex(16)
            if self.kept_in is not None:
                self._claim(self.kept_in, token)
            self._token = token
        ledger.reserve(
            total.dataset,
            allowance.curve(charged),
            adjacency=total.adjacency,
            run=hash_description(charged),
            purpose=self.purpose,
            token=self._token,
            rows=None,
        )
        if (
            states.get(self._token) != "released"
        ):  # a process that was stopped behind that: the same model comes out
            ledger.touch(self._token)

    def _claim(self, checkpoint: Path, token: str) -> None:
        """Claim the checkpoint before the charge, so that a run that is killed right after the
        charge resumes under the same line."""
        from lastiterate.engine import checkpoint as sealed

        assert self.key is not None
        sealed.claim(checkpoint, self.key, token)

    def compute_digest(self, data: object) -> str | None:
        """Return the digest of the records that were trained on, keyed by this charge; ``None``
        without one, or without records."""
        if self.ledger is None or not self._charged or data is None:
            return None
        return compute_keyed_digest(self._token, data)

    def remember(self, digest: str | None) -> None:
        """Keep a digest in the ledger: who forgets some of the records later must have the same."""
        if self.ledger is not None and digest is not None:
            self.ledger.remember(self._token, digest)

    def check_same(self, data: object) -> None:
        """Refuse records that are not those of the model that an earlier process of this fit wrote."""
        assert self._stopped is not None
        path, line, digest = self._stopped
        if digest is not None and not hmac.compare_digest(
            compute_keyed_digest(line.token, data), digest
        ):
            raise InputError(
                "data",
                "must be those of the model of an earlier run that was stopped before it ended",
                str(path),
                "for another model name another folder",
            )

    def compare(self, model: ReleasedModel | None, data: object) -> None:
        """Refuse what is not as the ledger knows it of ``model``: the data set that paid, what was
        certified, the data."""
        assert self.ledger is not None
        known = None if model is None else self.ledger.find_release(weights_hash(model))
        if model is None or known is None:
            raise InputError(
                "ledger",
                "must be the one that the model was charged to, and know its data",
                None,
                "name that ledger; it knows the data of runs that may forget, of one process",
            )
        release, digest = known
        if (named := self.ledger.total(self.dataset).dataset) != release.dataset:
            raise InputError(
                "dataset",
                "must be the one that the model was charged to",
                named,
                f"its people are those who pay: give dataset={release.dataset!r}",
            )
        if release.run != hash_of(model.certificate.subject.describe_charge()):
            raise InputError(
                "ledger",
                "has a line of these weights that is about another run",
                release.number,
                "the certificate or the ledger was changed",
            )
        if not hmac.compare_digest(compute_keyed_digest(release.token, data), digest):
            raise InputError(
                "data",
                "must be those that the model was trained on, without the records that it forgot "
                "before: the ledger knows others",
                None,
                "give the same records, in the same order; where training kept one row of each "
                "person, name their column (lastiterate forget --unit COLUMN)",
            )

    def _open_checkpoint(self) -> Checkpoint:
        from lastiterate.engine.checkpoint import Checkpoint

        assert self.kept_in is not None and self.key is not None
        if self.ledger is None:
            return Checkpoint(self.kept_in, self.key, self.every)
        line = LineCheckpoints(self.ledger.path, self._token)
        return Checkpoint(self.kept_in, self.key, self.every, self._token, line)

    def announce(self, model: ReleasedModel) -> None:
        """Refuse a model that the ledger would not call released, and say that it is the one that
        is written next; a ledger that cannot be asked now does not hinder it."""
        if self.ledger is not None and self._charged:
            with suppress(Unreachable):
                self.ledger.announce(self._token, weights_hash(model))

    def release(self, model: ReleasedModel | None) -> None:
        """Say in the ledger that the model is out."""
        if self.ledger is not None and self._charged and model is not None:
            self.ledger.release(self._token, weights_hash(model))

    def discard(self) -> None:
        """Delete the checkpoint, the last step of a release: until then the same command ends what
        was stopped."""
        if self.checkpoint is not None:
            self.checkpoint.finish()
        elif self.finished is not None and self.kept_in is not None:
            from lastiterate.engine import checkpoint as sealed

            sealed.remove(self.kept_in)

    def finish(self, model: ReleasedModel | None) -> None:
        """The model is out: say so in the ledger, and delete the checkpoint."""
        self.release(model)
        self.discard()


def make_charging(
    *,
    ledger: Ledger | str | Path | None = None,
    dataset: str | None = None,
    purpose: str = "train",
    checkpoint: str | Path | None = None,
    every: float = EVERY,
    key_file: str | Path | None = None,
    place: Path | None = None,
    earlier: Path | None = None,
    library: bool = False,
) -> Charging:
    """What callers say, checked: paths as text, a data set only with a ledger, a key only with a
    checkpoint, and a folder that is free, or was written by a process that was stopped."""
    if ledger is None and dataset is not None:
        raise InputError(
            "dataset",
            "names a data set of a ledger",
            dataset,
            "name the ledger too, or leave it out",
        )
    if checkpoint is None and key_file is not None:
        raise InputError(
            "checkpoint_key", "is for a checkpoint", str(key_file), "name the checkpoint's file too"
        )
    key = None
    if key_file is not None:
        from lastiterate.engine.checkpoint import read_key

        key = read_key(folder.to_path(key_file, "checkpoint_key"))
    book = (
        ledger
        if isinstance(ledger, Ledger) or ledger is None
        else Ledger(folder.to_path(ledger, "ledger"))
    )
    where = None if checkpoint is None else folder.to_path(checkpoint, "checkpoint")
    if where is not None and (where.is_dir() or not where.parent.is_dir()):
        raise InputError(
            "checkpoint",
            "must be a file in a folder that exists",
            str(where),
            "name a file in that folder" if where.is_dir() else "make the folder first",
        )
    if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("checkpoint_every", "must be a number of seconds >= 0", every)
    charging = Charging(
        ledger=book,
        dataset=dataset,
        purpose=purpose,
        kept_in=where,
        every=every,
        key=key,
        place=place,
        earlier=earlier,
        library=library,
    )
    charging.check_place()
    return charging


def weights_hash(model: ReleasedModel) -> str:
    """SHA-256 of a model's file of weights."""
    from safetensors.numpy import save

    return hashlib.sha256(save(model.contents()[1])).hexdigest()


def compute_keyed_digest(key: str, data: Any) -> str:
    """HMAC-SHA256 of records, in double precision and in order; ``data``: a tuple of arrays (n,
    ...), or a source of their pieces, which is read once for every array.

    **Guarantee:** without the key, a random token of the ledger's line that is in no model folder,
    nobody can find out whether a guess of the records is right.
    """
    mac = hmac.new(key.encode(), digestmod=hashlib.sha256)
    for shape, pieces in _list_arrays(data):
        mac.update(f"{shape}".encode())
        for piece in pieces:
            mac.update(np.ascontiguousarray(piece, dtype=np.float64).tobytes())
    return mac.hexdigest()


def _list_arrays(data: Any) -> Iterator[tuple[tuple[int, ...], Iterable[np.ndarray]]]:
    """The shape and the pieces of every array."""
    if hasattr(data, "pieces"):
        held = getattr(data, "first", None)
        for which, part in enumerate(next(iter(data.pieces(1))) if held is None else held):
            pieces = (piece[which] for piece in data.pieces(AT_ONCE))
            yield (len(data), *part.shape[1:]), pieces
        return
    for part in map(np.asarray, data):
        yield part.shape, (part[first : first + AT_ONCE] for first in range(0, len(part), AT_ONCE))


def hash_description(charged: Charged) -> str:
    """SHA-256 of what its numbers follow from: a line of a ledger has it."""
    return hash_of(charged.describe())


def hash_of(description: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a description."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
