"""Descriptions that are given other arguments than they have say so in one sentence, as for a wrong value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from lastiterate.errors import InputError

OF_TRAIN = frozenset({"epsilon", "delta", "seed", "secure_noise", "optimizer", "average", "augment", "copies",
                      "microbatch", "unit", "ledger", "devices"})
"""What is said when a run is trained, and is no part of its description."""


def checks_arguments(kind: type) -> None:
    """Let a class refuse missing and unknown arguments with an ``InputError``; of others nothing is looked at."""
    made: Callable[..., None] = getattr(kind, "__init__")  # noqa: B009  # pyright: of an instance it would be unsafe

    @wraps(made)
    def init(self: object, *args: Any, **named: Any) -> None:
        try:
            made(self, *args, **named)
        except TypeError:
            _check(kind, inspect.signature(made), args, named)
            raise

    setattr(kind, "__init__", init)  # noqa: B010


def _check(kind: type, signature: inspect.Signature, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Refuse arguments that do not fit."""
    own = [each for each in signature.parameters.values() if each.name != "self"]
    positions = sum(each.kind is not inspect.Parameter.KEYWORD_ONLY for each in own)
    written = f"{kind.__name__}({', '.join(_form(each) for each in own)})"
    for name in named:
        if name not in signature.parameters:
            raise InputError(name, f"is no argument of {kind.__name__}", None,
                             "give it to train" if name in OF_TRAIN else f"write {written}")
    if len(args) > positions:
        raise InputError(kind.__name__, f"takes {positions} arguments without a name", len(args), f"write {written}")
    given = {each.name for each in own[:len(args)]} | set(named)
    for each in own:
        if each.default is each.empty and each.name not in given:
            raise InputError(f"{kind.__name__}.{each.name}", "must be given", None, f"write {written}")


def _form(argument: inspect.Parameter) -> str:
    needed = argument.default is argument.empty
    return argument.name if needed and argument.kind is not argument.KEYWORD_ONLY else f"{argument.name}=..."
