"""``load`` and ``verify``: a model folder read back, and its certificate derived again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.comparison import Checked
from lastiterate.errors import InputError
from lastiterate.release import folder as folders
from lastiterate.release.model_kinds import Kind, kind_of
from lastiterate.release.provenance import sign_folder, signature_problems
from lastiterate.release.released_model import Fitted
from lastiterate.run import serialization


def load(folder: str | Path, like: object = None) -> Fitted:
    """The model in a folder that ``save`` or ``lastiterate train`` wrote.

    ``like``: a structure whose places the arrays of a network take; without it they come in
    dictionaries and lists. Errors: files that do not fit together, that are damaged, or of an
    unknown kind.

    **Guarantee:** weights and description are those that the certificate was written for; the
    model's ``certificate`` is derived again from its run. ``verify`` says whether the written
    numbers hold.
    """
    stored = folders.read(folder)
    kind, damage = kind_of(stored.model, stored.certificate), stored.damage()
    if damage:
        raise InputError(
            "model",
            "does not fit its certificate",
            damage[0],
            "nothing is read from it; lastiterate verify lists everything",
        )
    delta = stored.certificate.get("delta")
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise InputError("certificate", "must state a delta strictly between 0 and 1", delta)
    word = stored.certificate.get("word")
    model = kind.read(stored, like)
    return model if word is None else model.saying(word)


def verify(
    path: str | Path, *, key: str | Path | None = None, chain: Iterable[str | Path] = ()
) -> Checked:
    """Derive a certificate again from what it certifies, and compare every number, text and file
    with it.

    ``path``: a model folder, or a single certificate (then no model is looked at). ``problems`` is
    empty where it holds, ``condition`` says what it assumes, ``uncovered`` which files of the
    folder were not written with it. A certificate that was re-issued as a whole cannot be
    distinguished from an honest one without a signature: ``key``, a public key, or ``chain``,
    certificates, ask for one (``lastiterate sign``).
    """
    chain = tuple(chain)
    place = folders.as_path(path, "path")
    if not place.is_dir():
        if key is not None or chain:
            raise InputError(
                "key", "is for a model folder: a single file is not signed", str(place)
            )
        body = serialization.read(place, "certificate")
        return Certificate.check(body)
    stored = folders.read(place)
    kind = kind_of(stored.model, stored.certificate)
    checked = Certificate.check(stored.certificate)
    signed = signature_problems(place, key=key, chain=chain) if key is not None or chain else ()
    changed, uncovered = folders.compared(place)
    problems = dict.fromkeys((*signed, *stored.damage(), *checked.problems, *changed))
    if not problems:  # a model that nobody can load is no release
        problems = dict.fromkeys(_unreadable(kind, stored))
        if (library := kind.missing()) is not None:
            uncovered = (
                *uncovered,
                f"whether the weights make a model, for {library} is not installed",
            )
    return replace(checked, problems=tuple(problems), uncovered=uncovered)


def _unreadable(kind: Kind, stored: folders.Stored) -> tuple[str, ...]:
    """Why the files do not make a model, though they fit one another."""
    try:
        if kind.missing() is None:
            kind.read(stored, None)
        else:
            stored.tensors()
    except InputError as error:
        return (str(error),)
    return ()


def sign(
    folder: str | Path,
    *,
    key: str | Path,
    certificate: str | Path | None = None,
    chain: Iterable[str | Path] = (),
) -> Path:
    """Sign a folder that verifies, through ``model-signing``, with a private key of your own; the
    signature's path.

    ``certificate``, ``chain``: a certificate of the key, and those that vouch for it.
    """
    if not folders.as_path(folder, "model").is_dir():
        raise InputError("model", "must be a folder that train wrote", str(folder))
    checked = verify(folder)
    if not checked.holds:
        raise InputError(
            "model",
            "must be a folder that verifies before it is signed",
            next(iter(checked.problems), None),
        )
    return sign_folder(folder, key=key, certificate=certificate, chain=chain)
