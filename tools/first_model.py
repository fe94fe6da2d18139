"""The time from ``git clone`` to the first certified model of somebody's own CSV file, as a
newcomer gets there.

``python tools/first_model.py [REPOSITORY]`` clones into a temporary folder, installs into a fresh
environment (with the caches of pip that there are), writes a CSV file of 1,000 records, answers the
wizard of ``lastiterate schema`` through a pseudo-terminal, trains, verifies and predicts. It prints
the seconds of every step; exit code 1 if one fails.
"""

from __future__ import annotations

import os
import pty
import random
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUESTIONS = (
    (r"Which column is predicted\?", "bought"),
    (r"bought: every class", "no, yes"),
    (r"Where do these facts come from\?", "the form that customers fill in"),
    (r"(age|income): number, count,", "number"),
    (r"age: its public range", "18..100"),
    (r"income: its public range", "0..200000"),
    (r"are a few values far larger than most|may it be missing", "no"),
    (r"town: number, count,", "category"),
    (r"town: every category", "Bonn, Ulm, Kiel"),
)
"""What the wizard asks, and what is typed."""
SLOWEST = 60.0
"""Seconds without a question after which the wizard is taken to hang."""


def customers(path: Path, n: int = 1000) -> None:
    """Made-up records with something to learn."""
    chance = random.Random(0)
    lines = ["age,income,town,bought"]
    for _ in range(n):
        age, income = chance.randint(18, 95), chance.randint(5_000, 150_000)
        bought = "yes" if income / 3000 + age + chance.gauss(0, 15) > 85 else "no"
        lines.append(f"{age},{income},{chance.choice(('Bonn', 'Ulm', 'Kiel'))},{bought}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def play(command: list[str], folder: Path) -> int:
    """Run a command on a terminal of its own, and answer its questions; returns how many there
    were."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execv(command[0], command)
    seen, asked, asks = "", 0, time.monotonic()
    while True:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        if not ready:
            if time.monotonic() - asks > SLOWEST:
                raise SystemExit(f"no question that is known: {seen[-500:]}")
            continue
        try:
            part = os.read(terminal, 4096).decode()
        except OSError:  # how Linux says that the other side has closed
            break
        if not part:
            break
        seen += part
        found = next(
            (
                (match, answer)
                for pattern, answer in QUESTIONS
                if (match := re.search(pattern + r"[^\n]*: $", seen))
            ),
            None,
        )
        if found is not None:
            os.write(terminal, f"{found[1]}\n".encode())
            seen, asked, asks = "", asked + 1, time.monotonic()
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"the wizard failed: {seen}")
    return asked


def main(repository: str) -> None:
    """All steps, each with its seconds."""
    total = 0.0
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        clone, bin = home / "lastiterate", home / "venv" / "bin"
        command = str(bin / "lastiterate")

        def run(*words: str) -> None:
            done = subprocess.run(words, cwd=home, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")

        def install() -> None:
            run(sys.executable, "-m", "venv", str(home / "venv"))
            run(str(bin / "pip"), "install", "--quiet", str(clone))

        steps = {
            "git clone": lambda: run("git", "clone", "--quiet", repository, str(clone)),
            "pip install": install,
            "schema --wizard": lambda: play(
                [command, "schema", "my.csv", "--wizard", "--out", "my.toml"], home
            ),
            "train": lambda: run(
                command,
                "train",
                "my.csv",
                "--schema",
                "my.toml",
                "--epsilon",
                "1",
                "--out",
                "model",
            ),
            "verify": lambda: run(command, "verify", "model"),
            "predict": lambda: run(command, "predict", "model", "my.csv"),
        }
        customers(home / "my.csv")
        for step, act in steps.items():
            began = time.perf_counter()
            answers = act()
            seconds = time.perf_counter() - began
            total += seconds
            print(
                f"{step:16} {seconds:6.1f} s" + (f", {answers} answers" if answers else ""),
                flush=True,
            )
    print(f"{'together':16} {total:6.1f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parents[1]))
