"""Plug-ins: theorems, batchings, feature maps and readers that other packages offer by entry points.

A registry asks ``find`` or ``find_all`` for the plug-ins of its group, and gets none before somebody
allows them. What comes from one is marked with its package wherever a guarantee is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Literal, TypeVar

from lastiterate.errors import InputError, first_line

Group = Literal["theorems", "batchings", "features", "readers"]
KINDS: Mapping[Group, str] = {
    "theorems": "theorem",
    "batchings": "batching",
    "features": "feature map",
    "readers": "reader",
}
"""The groups of entry points, ``lastiterate.GROUP``, and what each of their objects is."""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Outside:
    """A part of a guarantee that another package provides: its group, its name, and ``by`` whom,
    such as "somebodys-theorems 1.0"."""

    group: Group
    name: str
    by: str

    @property
    def words(self) -> str:
        """The mark that certificates, cards and pages carry."""
        return f"{KINDS[self.group]} {self.name}: {mark(self.by)}"

    def to_dict(self) -> dict[str, str]:
        """JSON-ready: an entry of a written certificate's ``plugins``."""
        return {"kind": KINDS[self.group], "name": self.name, "by": self.by}


def mark(by: str) -> str:
    """Say who provides a part that no reviewer of this project has seen."""
    return f"by {by}, not reviewed by this project"


def is_mark(text: str) -> bool:
    """Whether a caveat is the mark of a plug-in."""
    kinds = tuple(f"{kind} " for kind in KINDS.values())
    return text.startswith(kinds) and text.endswith(mark("").removeprefix("by "))


# Permission.

_allowed = False


class Permission:
    """Return value of `allow_plugins`; as a context manager, it ends the permission with its block."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        global _allowed
        _allowed = self._before


def allow_plugins() -> Permission:
    """Let theorems, batchings, feature maps and readers of other installed packages take part.

    Without it, nothing of a plug-in is imported, and no result depends on which packages are
    installed. It is one switch for the process, and no argument of every function: a theorem of a
    plug-in is asked in `account`, `calibrate`, `train`, `verify` and `load` alike, and worker
    threads see it too.

    Returns
    -------
    Permission
        Context manager that ends the permission with its block; without ``with`` it stays.

    See Also
    --------
    account : Certify a run with every theorem whose assumptions hold.
    verify : Derive a written certificate again.

    Notes
    -----
    **Guarantee:** a certificate to which a plug-in contributed names its package and version, and
    says that this project has not reviewed it. `verify` refuses such a certificate without
    permission, because it cannot check it. docs/guides/plug-ins shows how to write one.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=5, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    >>> with li.allow_plugins():
    ...     certificate = li.account(run)
    >>> certificate.epsilon(1e-5) <= li.account(run).epsilon(1e-5)
    True
    """
    global _allowed
    before, _allowed = _allowed, True
    find_installed.cache_clear()
    return Permission(before)


def are_allowed() -> bool:
    """Whether plug-ins may be imported."""
    return _allowed


# Entry points: what is installed is read from metadata, and imported when it is asked for.


@cache
def find_installed(group: Group) -> Mapping[str, tuple[metadata.EntryPoint, ...]]:
    """The entry points of a group by name; nothing is imported.

    A name that two packages claim has two; both are kept for the error that names them.
    """
    found: dict[str, dict[str, metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=f"lastiterate.{group}"):
        found.setdefault(point.name, {})[_package_of(point)] = point
    return {name: tuple(points.values()) for name, points in found.items()}


def _package_of(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed package"


def describe_unused(group: Group) -> tuple[str, ...]:
    """Name what is installed and may not be imported, each with its package."""
    if _allowed:
        return ()
    return tuple(
        Outside(group, name, _package_of(point)).words
        for name, points in find_installed(group).items()
        for point in points
    )


Accept = Callable[[str, object, str], Value]
"""From the entry point's name, the object and its package to what a registry uses; it raises
``InputError`` where the object is nothing that the registry can use."""
_loaded: dict[tuple[Group, str, str, str], object] = {}


def find(group: Group, name: str, accept: Accept[Value]) -> Value | None:
    """Return the plug-in called ``name``; ``None`` where there is none, or none may be imported."""
    if not _allowed or name not in find_installed(group):
        return None
    point, *others = find_installed(group)[name]
    if others:
        raise InputError(
            "plug-in",
            "must have a name of its own, and two packages provide the "
            f"{KINDS[group]} {name}: " + " and ".join(map(_package_of, (point, *others))),
            None,
            "uninstall one",
        )
    package = _package_of(point)
    key = (group, name, point.value, package)
    if key not in _loaded:
        _loaded[key] = _import(group, point, package, accept)
    return _loaded[key]  # pyright: ignore[reportReturnType]


def find_all(group: Group, accept: Accept[Value]) -> dict[str, Value]:
    """Return every plug-in of a group by name; none where they may not be imported."""
    if not _allowed:
        return {}
    found = {name: find(group, name, accept) for name in find_installed(group)}
    return {name: value for name, value in found.items() if value is not None}


def _import(group: Group, point: metadata.EntryPoint, package: str, accept: Accept[Value]) -> Value:
    """Import and check one plug-in; whatever goes wrong in it is an error that names its package."""
    try:
        return accept(point.name, point.load(), package)
    except (Exception, SystemExit) as error:
        raise InputError(
            "plug-in",
            f"must work, and the {KINDS[group]} {point.name} of {package} does not "
            f"({type(error).__name__}: {first_line(Exception(str(error)))})",
            None,
            f"ask its author, or uninstall {package.split()[0]}",
        ) from error


# Written certificates that rest on plug-ins.


def check_named(listed: object) -> tuple[Outside, ...]:
    """Return the plug-ins that a written certificate names; refuse it where one of them cannot be
    asked again."""
    if not isinstance(listed, list):
        raise InputError("certificate", "must list its plug-ins", type(listed).__name__)
    groups: dict[str, Group] = {kind: group for group, kind in KINDS.items()}
    named: list[Outside] = []
    for entry in listed:  # pyright: ignore[reportUnknownVariableType]
        match entry:
            case {"kind": str(kind), "name": str(name), "by": str(by)} if kind in groups:
                named.append(Outside(groups[kind], name, by))
            case _:
                raise InputError("certificate", "must name kind, name and package of a plug-in")
    for part in named:
        _check_available(part)
    return tuple(named)


def _check_available(part: Outside) -> None:
    if not _allowed:
        raise refuse_unchecked(part.words)
    here = [_package_of(point) for point in find_installed(part.group).get(part.name, ())]
    if part.by not in here:
        raise InputError(
            "certificate",
            f"cannot be checked: it rests on the {part.words}, and "
            f"{' and '.join(here) or 'no such package'} is installed",
            None,
            f"install {part.by}",
        )


def refuse_unchecked(words: str) -> InputError:
    """Return the refusal of what cannot be checked without a plug-in, by its mark."""
    return InputError(
        "certificate",
        f"cannot be checked: it rests on the {words}",
        None,
        "install that package and let its code run: lastiterate.allow_plugins()",
    )
