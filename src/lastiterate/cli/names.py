"""The one table between names in Python, which all messages of the library use, and flags, which the terminal shows."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

from lastiterate.cli.flags import BATCHES, NUMBERS, UPDATES, WORDS, form

ARGUMENTS = {
    "folder": "out", "batching": "batch", "batch size": "batch", "rate of poisson batches": "batch",
    "start std": "start", "update": "momentum", "noise std": "noise_std", "weight of l1": "prox",
    "mean number of runs": "mean_runs", "Run.release": "release", "Run.adjacency": "adjacency",
    "strong of inverse-decay": "step_size",
}
"""Arguments whose flag has another name; all others have a flag of their own name, or none."""

VALUES = {
    "at_least=Evidence.ASSUMED": "--trust-constants",
    "secure_noise=True": "--secure-noise",
    "start=Fixed()": "--start fixed",
    "start=GaussianStart(STD)": "--start gaussian:STD",
    "domain=Ball(RADIUS)": "--radius RADIUS",
    "noise=Langevin(SIGMA)": "--sigma SIGMA",
    "noise=GradientNoise(STD)": "--noise-std STD",
    "noise=NoiseMultiplier(Z)": "--noise-multiplier Z",
    "noise=Correlated(Z, BAND)": "--noise-multiplier Z --correlated BAND",
    "filter=GaussianFilter(MU, FAILURE)": "--filter gaussian --failure FAILURE",
    "schema_template(file, header=False, columns=NAME:KIND,...)":
        "lastiterate schema FILE --header no --columns NAME:KIND,...",
    "header=True": "--header yes",
    "header=False": "--header no",
    "unpacked_limit(BYTES)": "--unpacked-limit BYTES",
} | {f"{name}={kind.__name__}({','.join(written.split(':')[1:])})": f"{flag} {written}"
     for name, flag, kinds in (("batching", "--batch", BATCHES), ("update", "--momentum", UPDATES))
     for kind in kinds.values() for written in [form(kind)]}
"""What is said in another way on the command line; words in capitals stand for any value."""


def _pattern(written: str) -> re.Pattern[str]:
    """What matches an entry of ``VALUES``, with a named group for each word in capitals."""
    head, opening, rest = written.partition("(")
    return re.compile(r"(?<!\w)" + re.escape(head + opening) + re.sub(r"[A-Z]+", lambda word: f"(?P<{word[0]}>[^(),]+)",
                                                         rest.replace(")", r"\)")) + r"(?!\w)")


_PATTERNS = [(_pattern(written), flag) for written, flag in VALUES.items()]


def _filled(written: str, match: re.Match[str]) -> str:
    """A flag with the values that were found for its words in capitals."""
    values = match.groupdict()
    return re.sub(r"\b[A-Z]+\b", lambda word: values.get(word[0]) or word[0], written)


def in_flags(text: str, given: Collection[str] = ()) -> str:
    """Words for Python callers in those of the command line: ``clip=1.0`` is ``--clip 1.0``.

    ``given``: the parameters of the command that speaks, which have flags beside those that describe a run.
    """
    for pattern, written in _PATTERNS:
        text = pattern.sub(partial(_filled, written), text)
    flags = {*given, *WORDS, *NUMBERS}
    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in flags:
            return match[0]
        return f"--{name.replace('_', '-')}" + ("" if value in ("", "True") else f" {value}")

    return re.sub(r"\b([a-z_]+)=(?!=)([^\s,;)]*)", flag, text)


def flag_of(argument: str, given: Collection[str]) -> str:
    """The flag that gives an argument, where the command has one; ``given``: the names of the command's parameters."""
    name = ARGUMENTS.get(argument, argument)
    flag = next((known for known in (name, f"{name}s") if known in given), None)  # or one that lists several
    return argument if flag is None else f"--{flag.replace('_', '-')}"
