"""A run from flags: the grammar of ``account`` and ``calibrate``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args

from lastiterate import limits
from lastiterate.errors import InputError
from lastiterate.run import serialization
from lastiterate.run.batching import Batching
from lastiterate.run.domains import Ball, Everywhere
from lastiterate.run.facts import LossFacts
from lastiterate.run.losses import KnownConstants
from lastiterate.run.noise import Correlated, GradientNoise, Langevin, Noise, NoiseMultiplier
from lastiterate.run.penalties import L1, ElasticNet, GroupLasso, L2Squared, NuclearNorm, Prox
from lastiterate.run.plugin_batching import PublicBlocks, describe_provider, find_plugins
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import (
    Constant,
    FixedStart,
    GaussianStart,
    InverseDecay,
    RelativeToSmooth,
    Start,
    StepSchedule,
    StepSize,
)
from lastiterate.run.updates import Update

WORDS = (
    "n",
    "steps",
    "step_size",
    "batch",
    "start",
    "momentum",
    "prox",
    "release",
    "adjacency",
    "correlated",
)
NUMBERS = (
    "noise_std",
    "sigma",
    "noise_multiplier",
    "sensitivity",
    "lipschitz",
    "smooth",
    "strong",
    "weak_convexity",
    "log_sobolev",
    "hoelder",
    "hoelder_exponent",
    "radius",
    "clip",
)
"""The flags that describe a run."""


def parse_number(flag: str, text: str, called: str = "a finite number") -> float:
    """A finite number; ``called``: what the flag takes, in words."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(flag, f"must be {called}", text)
    return value


def threshold(text: str | None) -> float | tuple[float, float] | None:
    """``PROBABILITY``, or ``ALARM:MISS``: the costs of a false alarm and of a miss."""
    if text is None:
        return None
    if text.endswith("%"):
        raise InputError(
            "--threshold",
            "must lie between 0 and 1",
            text,
            "write 0.05 for 5 %, or costs such as 1:20",
        )
    first, costs, second = text.partition(":")
    return (
        (parse_number("--threshold", first), parse_number("--threshold", second))
        if costs
        else parse_number("--threshold", first)
    )


def header(text: str | None) -> bool | None:
    """Whether the first row of a file is said to be a header; ``None`` where nothing is said."""
    if text not in (None, "yes", "no"):
        raise InputError("header", "must be yes or no", text)
    return None if text is None else text == "yes"


def class_weight(text: str | None) -> dict[str, float] | None:
    """``LABEL=WEIGHT,LABEL=WEIGHT``."""
    if text is None:
        return None
    if "=" not in text:
        raise InputError(
            "--class-weight",
            "must be LABEL=WEIGHT,LABEL=WEIGHT, of public numbers (balanced would count "
            "private labels)",
            text,
        )
    parts = [part.rpartition("=") for part in text.split(",")]
    return {label.strip(): parse_number("--class-weight", weight) for label, _, weight in parts}


BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20}
BYTES |= {"GiB": 2**30, "TiB": 2**40, "B": 1, "": 1}


def parse_bytes(flag: str, text: str) -> int:
    """Return a number of bytes, such as ``1GB`` or ``1.5 GiB``."""
    digits = text.rstrip("BGKMTik ")
    unit = BYTES.get(text[len(digits) :].strip())
    if unit is None:
        raise InputError(flag, "must be a number of bytes", text, "such as 1GB or 1500MB")
    return int(parse_number(flag, digits) * unit)


def parse_integer(flag: str, text: str) -> int:
    """Return an integer; 1e6 is one."""
    value = parse_number(flag, text, "an integer")
    if value != int(value):
        raise InputError(flag, "must be an integer", text)
    return int(value)


def _words(path: Path) -> list[str]:
    """The words of a text file, between spaces and at ends of lines."""
    try:
        return limits.content(path, "--step-size", limits.TEXT).decode().split()
    except UnicodeDecodeError:
        raise InputError(
            "--step-size", "must name a file of UTF-8 text after @", str(path)
        ) from None


def step_size(text: str) -> StepSize:
    """``NUMBER``, ``inverse-decay:BETA,STRONG``, ``relative:C`` (to a measured 1/smooth) or
    ``@FILE`` with one number per line.
    """
    if text.startswith("@"):
        path = Path(text[1:])
        if not path.is_file():
            raise InputError("--step-size", "must name an existing file after @", text[1:])
        return StepSchedule(tuple(parse_number("--step-size", line) for line in _words(path)))
    if text.startswith("inverse-decay:"):
        parts = text.removeprefix("inverse-decay:").split(",")
        if len(parts) != 2:
            raise InputError("--step-size", "must be inverse-decay:BETA,STRONG", text)
        return InverseDecay(*(parse_number("--step-size", part) for part in parts))
    if text.startswith("relative:"):
        return RelativeToSmooth(parse_number("--step-size", text.removeprefix("relative:")))
    return Constant(parse_number("--step-size", text))


BATCHES = {kind.word: kind for kind in get_args(Batching)}
UPDATES = {kind.word: kind for kind in get_args(Update)}
_LETTERS = {"size": "B", "rate": "Q"}


def form(kind: type[Batching] | type[PublicBlocks] | type[Update]) -> str:
    """How a part is written: its word and its numbers: ``cyclic:B``."""
    names = ",".join(
        _LETTERS.get(item.name, item.name.upper())
        for item in fields(kind)
        if item.default is MISSING
    )
    return f"{kind.word}:{names}" if names else kind.word


BATCH_FORMS = [form(kind) for kind in BATCHES.values()]
UPDATE_FORMS = ["none", *(form(kind) for kind in UPDATES.values())]


def _part(flag: str, text: str, kinds: Mapping[str, Any], forms: list[str]) -> Any:
    """What ``word:number,number`` says; numbers that have a default may be left out."""
    word, _, rest = text.partition(":")
    given = rest.split(",") if rest else []
    of = fields(kinds[word]) if word in kinds else ()
    if word not in kinds or not sum(item.default is MISSING for item in of) <= len(given) <= len(
        of
    ):
        raise InputError(flag, f"must be {', '.join(forms[:-1])} or {forms[-1]}", text)
    readers: dict[str, Callable[[str, str], Any]] = {
        "int": parse_integer,
        "float": parse_number,
        "float | None": parse_number,
        "str": lambda _, part: part,
    }
    if any(_type_of(item) not in readers for item, _ in zip(of, given, strict=False)):
        raise InputError(
            flag,
            f"takes at most {sum(_type_of(item) in readers for item in of)} entries after {word}",
            text,
            "a JSON file of the run says the others",
        )
    return kinds[word](
        *(readers[_type_of(item)](flag, part) for item, part in zip(of, given, strict=False))
    )


def _type_of(item: Field[Any]) -> str:
    """The name of a field's type, however its module writes annotations."""
    return item.type.__name__ if isinstance(item.type, type) else str(item.type)


def first_words(kind: object) -> str:
    """The first paragraph of a docstring, as one line without markup."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split()).replace("``", "")


def list_batches() -> dict[str, str]:
    """How batches are written, each with what it is."""
    own = {form(kind): first_words(kind) for kind in BATCHES.values()}
    return own | {
        form(kind): f"{first_words(kind)} ({describe_provider(kind)})"
        for kind in find_plugins().values()
    }


def list_penalties() -> dict[str, str]:
    """How penalties are written, each with what it is."""
    return {"none": "no penalty"} | {
        PROX_FORMS[name]: first_words(kind) for name, kind in PROXES.items()
    }


def parse_batching(text: str) -> Batching:
    """One of ``BATCH_FORMS``, or of the forms of plug-ins."""
    outside = {} if text.partition(":")[0] in BATCHES else find_plugins()
    forms = BATCH_FORMS + [form(kind) for kind in outside.values()]
    return _part("--batch", text, BATCHES | outside, forms)


def update(text: str | None) -> Update | None:
    """One of ``UPDATE_FORMS``."""
    return None if text in (None, "none") else _part("--momentum", text, UPDATES, UPDATE_FORMS)


def start(text: str) -> Start:
    """``fixed | gaussian:STD``."""
    if text == "fixed":
        return FixedStart()
    if text.startswith("gaussian:"):
        return GaussianStart(parse_number("--start", text.removeprefix("gaussian:")))
    raise InputError("--start", "must be fixed or gaussian:STD", text)


PROX_FORMS = {
    "l1": "l1:W",
    "l2-squared": "l2-squared:W",
    "elastic-net": "elastic-net:L1,L2",
    "group-lasso": "group-lasso:W",
    "nuclear-norm": "nuclear-norm:W",
}
PROXES = {
    "l1": L1,
    "l2-squared": L2Squared,
    "elastic-net": ElasticNet,
    "group-lasso": GroupLasso,
    "nuclear-norm": NuclearNorm,
}


def prox(text: str | None) -> Prox | None:
    """``l1:W | l2-squared:W | elastic-net:L1,L2 | group-lasso:W | nuclear-norm:W``."""
    if text is None or text == "none":
        return None
    kind, _, rest = text.partition(":")
    weights = [parse_number("--prox", part) for part in rest.split(",")] if rest else []
    if kind not in PROXES or len(weights) != (2 if kind == "elastic-net" else 1):
        raise InputError(
            "--prox",
            f"must be {', '.join([*PROX_FORMS.values()][:-1])} or {PROX_FORMS['nuclear-norm']}",
            text,
        )
    return PROXES[kind](*weights)


def parse_correlated(text: str, multiplier: float | None, *, needed: bool) -> Correlated:
    """``BAND``, ``BAND,POWER`` or ``BAND,POWER,DECAY``, of a noise multiplier (that a search may
    find).
    """
    band, *rest = text.split(",")
    if len(rest) > 2:
        raise InputError("--correlated", "must be BAND, BAND,POWER or BAND,POWER,DECAY", text)
    if multiplier is None and needed:
        raise InputError(
            "--correlated", "needs the size of its draws", text, "add --noise-multiplier Z"
        )
    return Correlated(
        1.0 if multiplier is None else multiplier,
        parse_integer("--correlated", band),
        *(parse_number("--correlated", part) for part in rest),
    )


def noise(
    std: float | None,
    sigma: float | None,
    multiplier: float | None,
    band: str | None = None,
    *,
    needed: bool,
) -> Noise | None:
    """Exactly one of the three noise flags (or none, where a search will find it); ``band``: of
    correlated noise.
    """
    given: list[Noise] = []
    if std is not None:
        given.append(GradientNoise(std))
    if sigma is not None:
        given.append(Langevin(sigma))
    if band is not None:
        given.append(parse_correlated(band, multiplier, needed=needed))
    elif multiplier is not None:
        given.append(NoiseMultiplier(multiplier))
    if not given and not needed:
        return None
    if len(given) != 1:
        raise InputError(
            "noise",
            "takes exactly one of --noise-std, --sigma and --noise-multiplier",
            f"{len(given)} of them",
        )
    return given[0]


def _read(file: Path) -> Run:
    body = serialization.loads(serialization.content(file, "run file"), "run")
    if isinstance(body, dict) and "verdicts" in body:
        raise InputError(
            "run file",
            "must describe a run and nothing else, and this is a certificate",
            str(file),
            'lastiterate verify and report read certificates; its entry "run" is a run',
        )
    return Run.from_dict(body)


def describe(file: Path | None, flags: dict[str, Any], *, searched: str = "") -> Run:
    """The run in a JSON file, or the one that the flags describe; ``searched`` (noise or steps) may
    be left out.
    """
    if searched == "steps" and flags.get("steps") is None and file is None:
        flags = flags | {"steps": "1"}
    given = sorted(name for name, value in flags.items() if value is not None)
    if file is not None:
        if given:
            raise InputError(
                f"--{given[0].replace('_', '-')}",
                "cannot be combined with a run file",
                None,
                "edit the file, or use flags alone",
            )
        if not file.is_file():
            raise InputError("run file", "must be an existing file", str(file))
        return _read(file)
    for name in ("n", "steps", "step_size"):
        if flags.get(name) is None:
            raise InputError(
                f"--{name.replace('_', '-')}",
                "is needed to describe a run",
                None,
                "give it, or pass a run's JSON file",
            )
    constants = {
        name: flags.get(name)
        for name in (
            "sensitivity",
            "lipschitz",
            "smooth",
            "strong",
            "weak_convexity",
            "log_sobolev",
            "hoelder",
            "hoelder_exponent",
        )
    }
    radius = flags.get("radius")
    return Run(
        n=parse_integer("--n", flags["n"]),
        steps=parse_integer("--steps", flags["steps"]),
        step_size=step_size(flags["step_size"]),
        noise=noise(
            flags.get("noise_std"),
            flags.get("sigma"),
            flags.get("noise_multiplier"),
            flags.get("correlated"),
            needed=searched != "noise",
        ),
        batching=parse_batching(flags.get("batch") or "full"),
        start=start(flags.get("start") or "fixed"),
        domain=Everywhere() if radius is None else Ball(radius),
        clip=flags.get("clip"),
        optimizer=update(flags.get("momentum")),
        prox=prox(flags.get("prox")),
        release=flags.get("release") or "last",
        adjacency=flags.get("adjacency") or "zero-out",
        loss=KnownConstants(LossFacts(**constants)),
    )
