"""Executes a page as a reader would: its blocks in order, with one namespace and one folder;
compares what they print.

Python blocks: what a top-level statement prints must stand beside it (``print(x)  # 0.73``), or the
whole output in a text block below. Console blocks: ``lastiterate`` runs in this process, everything
else in bash; output stands below a line that begins with ``$``, or in a text block below. ``...``
stands for anything.
"""

import ast
import contextlib
import io
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

from typer.testing import CliRunner

from lastiterate.cli import app

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and what a text block right below it says that it
    prints."""

    language: str
    text: str
    printed: str | None


def blocks(page):
    """The blocks of a page that are executed, in order."""
    found, kept = list(BLOCK.finditer(page)), []
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block[1] == "text":
            continue
        follows = (
            after is not None
            and after[1] == "text"
            and not page[block.end() : after.start()].strip()
        )
        kept.append(Block(block[1], block[2], after[2] if follows else None))
    return kept


RANDOM = re.compile(r"(?<=test accuracy) +(?:0\.\d+|1\.0+)\b")
"""What the noise moves: a share of the test rows. The certificate beside it is compared to its last
digit."""


def check(expected, found, where):
    """``expected``, with ``...`` for anything, is what was printed; runs of white space count as
    one."""
    expected, found = RANDOM.sub(" NUMBER", expected), RANDOM.sub(" NUMBER", found)
    pieces = [re.escape(" ".join(piece.split())) for piece in expected.split("...")]
    pattern, text = r"\s*.*?\s*".join(pieces), " ".join(found.split())
    assert re.fullmatch(pattern, text, re.DOTALL), (
        f"{where}\nsays:    {' '.join(expected.split())}\nprinted: {text}"
    )


def run_python(block, names, where):
    """Execute a block statement by statement."""
    lines, whole = block.text.splitlines(), ""
    for statement in ast.parse(block.text).body:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(ast.Module([statement], []), where, "exec"), names)
        beside = " ".join(
            line.rsplit("  # ", 1)[1]
            for line in lines[statement.lineno - 1 : statement.end_lineno]
            if "print(" in line and "  # " in line
        )
        whole += out.getvalue()
        if block.printed is None and out.getvalue():
            assert beside, f"{where}: the page does not show that it prints {out.getvalue()}"
            check(beside, out.getvalue(), where)
    if block.printed is not None:
        check(block.printed, whole, where)


def commands(text):
    """Each command of a console block, with the output that stands below it (``None`` where nothing
    does)."""
    marked = any(line.startswith("$ ") for line in text.splitlines())
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if marked and not line.startswith("$ "):
            found[-1][1].append(line)
        elif line.strip():
            found.append((line.removeprefix("$ "), []))
    return [(command, "\n".join(shown) if shown else None) for command, shown in found]


def words_of(command):
    """Its words without comments, and the file that its output goes to."""
    words = shlex.split(command, comments=True)
    return (words[:-2], words[-1]) if len(words) > 2 and words[-2] == ">" else (words, None)


def run_command(command, folder, where):
    """Standard output of a command; one that fails must say so in the sentence that the page shows."""
    words, target = words_of(command)
    if words[:1] != ["lastiterate"] or "&&" in words:
        path = f"{sys.exec_prefix}/bin:/usr/bin:/bin"
        return subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={"PATH": path},
            check=True,
            text=True,
            capture_output=True,
        ).stdout
    done = CliRunner().invoke(app, words[1:])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code != 0:
        return f"{done.stdout}{done.stderr}"
    if target is None:
        return done.stdout
    (folder / target).write_text(done.stdout, encoding="utf-8")
    return ""
