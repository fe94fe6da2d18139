"""A model folder read back (``load``), and its certificate derived again (``verify``)."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lastiterate import limits, plugins
from lastiterate.errors import InputError
from lastiterate.release import folder as folders
from lastiterate.release.model_kinds import ModelKind, kind_of
from lastiterate.release.released_model import ReleasedModel
from lastiterate.release.signatures import sign_folder, signature_problems
from lastiterate.run import serialization

if TYPE_CHECKING:
    from lastiterate.accounting.certificate_json import CheckResult

MLMODEL = "MLmodel"
"""The file of an MLflow model that describes it."""
CARRIERS = {
    ".onnx": ("lastiterate.release.onnx_model", "verify_onnx"),
    ".safetensors": ("lastiterate.release.verification", "verify_safetensors"),
    ".skops": ("lastiterate.estimators.released_estimators", "verify_skops"),
    ".joblib": ("lastiterate.estimators.released_estimators", "verify_joblib"),
}
"""Endings of files that carry a release: the module that knows them, and its function that
verifies one."""


def load(folder: str | Path, like: object = None) -> ReleasedModel:
    """Read a model from a folder that ``save`` or ``lastiterate train`` wrote.

    Parameters
    ----------
    folder : path
        Folder of the model.
    like : nested arrays or torch.nn.Module, optional
        Structure that a network's arrays take; without it they come in dictionaries and lists.

    Returns
    -------
    Fitted
        Released model with ``certificate``, ``predict`` and ``save``.

    Raises
    ------
    InputError
        If files are missing or damaged, do not fit together, or are of an unknown kind.

    See Also
    --------
    verify : Derive the certificate again and compare every number.

    Notes
    -----
    **Guarantee:** weights and description are those that the certificate was written for. The
    model's ``certificate`` is derived again from its run.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import lastiterate as li
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = (x[:, 0] > 0).astype(int)
    >>> run = li.Run(n=200, steps=10, step_size=0.5, loss=li.Logistic(row_norm=2.0, ridge=0.1))
    >>> model = li.train(run, (x, y), epsilon=1.0, delta=1e-4)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     loaded = li.load(model.save(f"{parent}/model"))
    >>> bool((loaded.predict(x) == model.predict(x)).all())
    True
    """
    return _load(folders.read(folder), like)


def load_files(files: Mapping[str, bytes]) -> ReleasedModel:
    """``load`` of the three files of a folder, by name."""
    return _load(folders.parse(files), None)


def _load(stored: folders.StoredModel, like: object) -> ReleasedModel:
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
    return model if word is None else model.with_statement(word)


def verify(
    path: str | Path, *, key: str | Path | None = None, chain: Iterable[str | Path] = ()
) -> CheckResult:
    """Derive a certificate again from its subject, and compare every number, text and file.

    Parameters
    ----------
    path : path
        Model folder, an ONNX, safetensors, skops or joblib file or an MLflow model that
        ``lastiterate export`` wrote, or a single certificate; for the latter no model is read.
    key : path, optional
        Public key that must have signed the folder.
    chain : iterable of path, default ()
        Certificates of an authority that must vouch for the signature.

    Returns
    -------
    Checked
        ``holds``; ``problems``, empty where the certificate holds; ``condition``, the assumption;
        ``uncovered``, files of the folder that were not written with it.

    Raises
    ------
    InputError
        If the path cannot be read, or ``key`` or ``chain`` are given for a single file.

    See Also
    --------
    load : Read the model.

    Notes
    -----
    A certificate that was issued again as a whole cannot be distinguished from an honest one
    without a signature (``lastiterate sign``). docs/explanation/trust says what that means for an
    auditor.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=5, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "certificate.json")
    ...     _ = path.write_text(li.account(run).to_json(1e-5))
    ...     honest = li.verify(path)
    ...     _ = path.write_text(path.read_text().replace('"steps": 5', '"steps": 4'))
    ...     changed = li.verify(path)
    >>> honest.holds, changed.holds
    (True, False)
    """
    chain = tuple(chain)
    place = folders.to_path(path, "path")
    if place.suffix in CARRIERS and place.is_file() and key is None and not chain:
        module, function = CARRIERS[place.suffix]
        return getattr(import_module(module), function)(place)
    if (place / MLMODEL).is_file():
        if key is not None or chain:
            raise InputError(
                "key",
                "is for a model folder",
                str(place),
                f"name the one within: {place / 'model'}",
            )
        return import_module("lastiterate.release.mlflow_model").verify_mlflow(place)
    if not place.is_dir():
        if key is not None or chain:
            raise InputError(
                "key", "is for a model folder: a single file is not signed", str(place)
            )
        from lastiterate.accounting.certificate import Certificate

        body = serialization.read(place, "certificate")
        _check_schemas(body, None)
        return Certificate.check(body)
    return verify_folder(place, key=key, chain=chain)


def verify_folder(
    place: Path,
    *,
    key: str | Path | None = None,
    chain: tuple[str | Path, ...] = (),
    page: bool = True,
) -> CheckResult:
    """Verify a model folder; ``page``: whether its page must be the one that its list has."""
    stored = folders.read(place)
    checked = _check_certificate(stored)
    signed = signature_problems(place, key=key, chain=chain) if key is not None or chain else ()
    changed, uncovered = folders.compare_files(place)
    if not page:
        changed = tuple(problem for problem in changed if problem != folders.PAGE_DIFFERS)
    problems = (*signed, *stored.damage(), *checked.problems, *changed)
    return _check_model(stored, replace(checked, unsigned=tuple(signed)), problems, uncovered)


def verify_files(files: Mapping[str, bytes]) -> CheckResult:
    """Verify the three files of a release that another file carries."""
    stored = folders.parse(files)
    checked = _check_certificate(stored)
    return _check_model(stored, checked, (*stored.damage(), *checked.problems))


def _check_certificate(stored: folders.StoredModel) -> CheckResult:
    """Compare the certificate with what follows from its subject.

    Errors: files of other forms, and of a plug-in that is not allowed.
    """
    from lastiterate.accounting.certificate import Certificate

    _check_schemas(stored.certificate, stored.model)
    kind_of(stored.model, stored.certificate)
    checked = Certificate.check(stored.certificate)
    for text in checked.plugins:
        if text.startswith(plugins.KINDS["features"]) and not plugins.are_allowed():
            raise plugins.refuse_unchecked(text)
    return checked


def _check_model(
    stored: folders.StoredModel,
    checked: CheckResult,
    problems: Iterable[str],
    uncovered: tuple[str, ...] = (),
) -> CheckResult:
    """The result with all ``problems``, and whether the files make a model where there are none."""
    kind, problems = kind_of(stored.model, stored.certificate), dict.fromkeys(problems)
    uncovered = (*checked.uncovered, *uncovered)
    if not problems:  # a model that nobody can load is no release
        problems = dict.fromkeys(_unreadable(kind, stored))
        if (library := kind.find_missing_library()) is not None:
            uncovered = (
                *uncovered,
                f"whether the weights make a model, for {library} is not installed",
            )
    return replace(checked, problems=tuple(problems), uncovered=uncovered)


def _check_schemas(certificate: Mapping[str, object], model: Mapping[str, object] | None) -> None:
    """Refuse files that do not fit the schemas; a certificate of another format has none."""
    from lastiterate.accounting import certificate_json
    from lastiterate.accounting.certificate_subject import FORMAT

    if certificate.get("format") == FORMAT:
        certificate_json.check_schema(certificate, "certificate")
    if model is not None:
        certificate_json.check_schema(model, "model")


def _unreadable(kind: ModelKind, stored: folders.StoredModel) -> tuple[str, ...]:
    """Why the files do not make a model, though they fit one another."""
    try:
        if kind.find_missing_library() is None:
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
    """Sign a folder that verifies, and return the path of the signature.

    ``key``: a private key, used through ``model-signing``. ``certificate``, ``chain``: a
    certificate of the key, and those that vouch for it.
    """
    if not folders.to_path(folder, "model").is_dir():
        raise InputError("model", "must be a folder that train wrote", str(folder))
    checked = verify(folder)
    if not checked.holds:
        raise InputError(
            "model",
            "must be a folder that verifies before it is signed",
            next(iter(checked.problems), None),
        )
    return sign_folder(folder, key=key, certificate=certificate, chain=chain)


# Models of every kind as one safetensors file that carries its release.

ENTRIES = (folders.MODEL, folders.CERTIFICATE)


def to_safetensors(files: Mapping[str, bytes]) -> bytes:
    """Return the weights of a release with model, certificate and privacy as the file's metadata."""
    from safetensors.numpy import save

    stored = folders.parse(files)
    texts = {name: files[name].decode() for name in ENTRIES}
    return save(stored.tensors(), texts | folders.state_privacy(stored.certificate))


def verify_safetensors(path: Path) -> CheckResult:
    """Verify the release in a safetensors file, and that its arrays are the certified ones."""
    from safetensors import numpy as safetensors

    content = limits.content(path, "model", limits.FOLDER)
    try:
        texts = _read_metadata(content)
        files = {name: texts[name].encode() for name in ENTRIES}
        files[folders.WEIGHTS] = safetensors.save(safetensors.load(content))
    except Exception:  # the format's parser raises several kinds on damaged bytes
        raise InputError(
            "model",
            "must be a safetensors file that lastiterate wrote, with its release in the metadata",
            str(path),
            "lastiterate export MODEL_DIR --to safetensors writes one",
        ) from None
    checked = verify_files(files)
    if not checked.holds:
        return checked
    certificate = serialization.loads(files[folders.CERTIFICATE], folders.CERTIFICATE)
    stated = folders.state_privacy(certificate)
    problems = [
        f"the entry {name} of the metadata is not what the certificate says"
        for name, text in stated.items()
        if texts.get(name) != text
    ]
    strange = sorted(set(texts) - set(stated) - set(ENTRIES))
    uncovered = [f"the metadata's {' and '.join(strange)}"] if strange else []
    return replace(checked, problems=tuple(problems), uncovered=(*checked.uncovered, *uncovered))


def _read_metadata(content: bytes) -> dict[str, str]:
    """The texts in the header of a safetensors file: 8 bytes of its length, then JSON.

    Errors: names that stand twice, of which readers show different ones.
    """
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length], object_pairs_hook=_refuse_repeats)
    return {name: str(text) for name, text in header["__metadata__"].items()}


def _refuse_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found
