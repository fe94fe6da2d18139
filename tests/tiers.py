"""Two sizes of the same tests: what ``make test`` draws, and what ``make test-exhaustive`` draws.

The exhaustive tier is the same files with ``LASTITERATE_EXHAUSTIVE=1``: larger counts (``size``)
and the cases that are marked ``exhaustive`` (``unless``). docs/contributing/tests.md lists what is there
alone, and why.
"""

import os

import pytest

EXHAUSTIVE = os.environ.get("LASTITERATE_EXHAUSTIVE", "") not in ("", "0")


def size(quick, whole, name):
    """``quick`` draws in ``make test``, ``whole`` in the exhaustive tier; ``LASTITERATE_name`` is
    asked first."""
    asked = os.environ.get(f"LASTITERATE_{name}")
    return int(asked) if asked else whole if EXHAUSTIVE else quick


def unless(kept, cases):
    """The cases as parameters: those for which ``kept(case)`` is false run in the exhaustive tier
    alone."""
    return [
        case
        if kept(case)
        else pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive
        )
        for case in cases
    ]
