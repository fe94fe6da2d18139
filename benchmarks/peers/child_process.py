"""Other libraries run in interpreters of their own: JSON lines to and from a child process.
Standard library only.

An interpreter is named by an option, ``--opacus-python PYTHON``, or by an environment variable,
``OPACUS_PYTHON``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Library:
    """A library with an environment of its own: what a child imports there, and what pip installs
    there."""

    name: str
    modules: tuple[str, ...]
    install: str

    def option(self, given: argparse.ArgumentParser) -> None:
        """Add ``--NAME-python``; its default is the environment variable ``NAME_PYTHON``."""
        given.add_argument(
            f"--{self.name}-python",
            metavar="PYTHON",
            default=os.environ.get(self._variable),
            help=f"interpreter of an environment with: pip install {self.install}",
        )

    def python(self, asked: argparse.Namespace) -> str | None:
        """The interpreter, tried out; ``None``, with a word on standard error, where none is named.

        Ends the program with one sentence where the interpreter is missing or cannot import the
        library.
        """
        python = getattr(asked, f"{self.name}_python")
        if not python:
            print(
                f"{self.name} is left out: name an interpreter by --{self.name}-python or "
                f"{self._variable} "
                f"(pip install {self.install})",
                file=sys.stderr,
            )
            return None
        try:
            tried = subprocess.run(
                [python, "-W", "ignore", "-c", f"import {', '.join(self.modules)}"],
                capture_output=True,
                text=True,
                env=environment(python),
            )
        except OSError as error:
            sys.exit(
                f"--{self.name}-python: {python} cannot be run ({error.strerror}); "
                f"make an environment with: pip install {self.install}"
            )
        if tried.returncode:
            reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
            sys.exit(
                f"--{self.name}-python: {python} ends with {reason}; install there: pip install "
                f"{self.install}"
            )
        return python

    @property
    def _variable(self) -> str:
        return f"{self.name.upper()}_PYTHON"


OPACUS = Library("opacus", ("torch", "opacus"), "torch opacus")
JAX_PRIVACY = Library("jaxprivacy", ("jax_privacy", "optax"), "jax-privacy optax")
TORCH = Library("torch", ("torch",), "torch")
INTERPRET = Library("interpret", ("interpret.privacy",), "interpret-core==0.7.8")
DIFFPRIVLIB = Library(
    "diffprivlib", ("sklearn", "diffprivlib.models"), "diffprivlib 'scikit-learn<1.6'"
)


def environment(python: str) -> dict[str, str]:
    """The parent's variables; its PYTHONPATH only for its own interpreter."""
    return {
        key: value
        for key, value in os.environ.items()
        if key != "PYTHONPATH" or python == sys.executable
    }


ROOT = Path(__file__).parents[2]


class Child:
    """A module of this folder, run by ``python``; its first line says what it is, then it answers
    line by line."""

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        command = [python, "-W", "ignore", "-m", f"benchmarks.peers.{script}", *arguments]
        self.script = script
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(python),
        )
        self.about = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(
                f"{self.script} ended without an answer, exit status {self._process.wait()}; "
                f"its reason stands above"
            )
        return json.loads(line)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send one question and wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"{self.script}: {answer['error']}")
        return answer

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # the child reads its last line and leaves
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(about: dict[str, Any], answer: Callable[..., dict[str, Any]]) -> None:
    """What a child does: say what it is, then answer every line of standard input until it is
    closed.

    Anything else that a library prints goes to standard error.
    """
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps(about), file=out, flush=True)
    for line in sys.stdin:
        try:
            found = answer(**json.loads(line))
        except Exception as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=out, flush=True)
