"""Tables for other programs and papers: comma-separated values, and LaTeX with the package booktabs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Annotated

import typer

from lastiterate.errors import InputError

Csv = Annotated[bool, typer.Option("--csv", help="the table as comma-separated values, numbers in full")]
Latex = Annotated[bool, typer.Option("--latex", help="the table as LaTeX (package booktabs)")]
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a formula begins with, the wide forms of East Asian keyboards too; spreadsheets skip a tab or an end of line."""
_PLAIN_NUMBER = re.compile(r"[-+](?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
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
    """A line for the header and for every row; no cell is a formula."""
    return "".join(_line([_inert(cell) for cell in row]) for row in [header, *rows])


def _line(cells: Sequence[object]) -> str:
    """The cells of one line; one with a carriage return in it is quoted, or it would end the line for some readers."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(cells)  # what is in the terminator is quoted in cells
    return text.getvalue().removesuffix("\r\n") + "\n"


def _inert(cell: object) -> object:
    """A cell that a spreadsheet shows and does not execute: a text that begins like a formula gets an apostrophe."""
    if isinstance(cell, str) and cell.startswith(_FORMULA) and not _PLAIN_NUMBER.fullmatch(cell):
        return "'" + cell
    return cell


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
