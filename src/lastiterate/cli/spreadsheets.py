"""Tables for other programs and papers: comma-separated values, and LaTeX with the package booktabs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Annotated

import typer

from lastiterate.errors import InputError

Csv = Annotated[bool, typer.Option("--csv", help="the table as comma-separated values, numbers in full")]
Latex = Annotated[bool, typer.Option("--latex", help="the table as LaTeX (package booktabs)")]
Header = Sequence[str]
Rows = Sequence[Sequence[object]]
_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
            ">": r"\textgreater{}", **{letter: "\\" + letter for letter in "&%$#_{}"}}


def one_form(**asked: bool) -> None:
    """Refuse two forms at once."""
    given = [name for name, wanted in asked.items() if wanted]
    if len(given) > 1:
        raise InputError(given[1], "cannot be combined with another form of output", None,
                         "name one of " + ", ".join(f"--{name}" for name in asked))


def as_csv(header: Header, rows: Rows) -> str:
    """A line for the header and for every row."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def as_latex(header: Header, rows: Rows) -> str:
    """A ``tabular`` of texts; columns of numbers are aligned right, and every character is printed as it is."""
    body = [list(row) for row in rows]
    columns = "".join("r" if all(_number(row[i]) for row in body) else "l" for i in range(len(header)))
    lines = [" & ".join(map(_cell, row)) + r" \\" for row in body]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(_cell, header)) + r" \\",
                      r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


def _number(value: object) -> bool:
    try:
        return value is None or isinstance(float(str(value)), float)
    except ValueError:
        return False


def _cell(value: object) -> str:
    text = "--" if value is None else " ".join(str(value).split())
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
