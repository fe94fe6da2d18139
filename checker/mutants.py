"""Mutants of either program's formulas: how many does the other one notice?

    nice python checker/mutants.py [COUNT] [SEED] [both|checker|lastiterate]

A mutant changes one operator or one constant of one formula. Where that moves an epsilon of the
panel (true certificates of the corpus) by more than 1 %, it counts, and it is caught where the two
programs then disagree on some certificate: the checker does not show what is stated, or shows at
least 1 % less.
"""

from __future__ import annotations

import ast
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
SLOW = (
    "restarted",
    "delayed",
    "poisson-long",
    "replace-one",
    "allocated-last",
    "million",
    "tiny",
    "perturbed",
    "set-",
    "algorithm-",
)
RELEVANT = {
    "restarts.py": ("restarted-poisson", "restarted-subsets", "delayed", "subsets"),
    "mechanisms.py": ("perturbed", "langevin", "sgld", "snapshots"),
}
"""Certificates that a mutant is compared on: those that its file is for, else all quick ones."""
CPU_SECONDS = 20
OURS = (
    "curves.py",
    "losses.py",
    "sampling.py",
    "shifts.py",
    "run.py",
    "theorems.py",
    "subjects.py",
    "mechanisms.py",
    "restarts.py",
)
THEIRS = ("curves", "analysis", "theorems", "run")
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
ISSUE = """
import json, sys
import lastiterate as li
out = {}
for name, body in json.load(open(sys.argv[1])).items():
    try:
        evidence = li.Evidence[body["at_least"]]
        run = li.Run.from_dict(body["run"])
        out[name] = li.account(run, at_least=evidence).curve(body["theorem"]).epsilon(body["delta"])
    except Exception:
        out[name] = None
print(json.dumps(out))
"""
CHECK = """
import json, sys
from lastiterate_check.subjects import curve_of
out = {}
for name, body in json.load(open(sys.argv[1])).items():
    try:
        out[name] = curve_of(body, None, []).epsilon(body["delta"], body["epsilon"])
    except Exception:
        out[name] = None
print(json.dumps(out))
"""


def panel(words: tuple[str, ...] | None = None) -> dict[str, dict]:
    """True certificates whose name has one of the words; by default all quick ones."""
    index = json.loads((CORPUS / "index.json").read_text())

    def wanted(name: str) -> bool:
        return any(x in name for x in words) if words else not any(x in name for x in SLOW)

    names = [name for name, row in index.items() if row["true"] and wanted(name)]
    return {n: json.loads((CORPUS / "certificates" / f"{n}.json").read_text()) for n in names}


def sites(tree: ast.AST) -> list[ast.AST]:
    """Operators and constants inside functions that could be a formula's."""
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if (isinstance(node, ast.BinOp) and type(node.op) in SWAPS) or (
                    isinstance(node, ast.Constant)
                    and type(node.value) in (int, float)
                    and node.value
                ):
                    found.append(node)
    return found


def mutated(text: str, rng: random.Random) -> str | None:
    """The text with one operator or constant changed."""
    tree = ast.parse(text)
    options = sites(tree)
    if not options:
        return None
    node = rng.choice(options)
    if isinstance(node, ast.BinOp):
        node.op = SWAPS[type(node.op)]()
    else:
        node.value = (
            node.value + 1 if type(node.value) is int else node.value * rng.choice((0.5, 1.1, 2.0))
        )
    return ast.unparse(tree)


def numbers(script: str, path: Path, listed: Path) -> dict[str, float | None] | None:
    """The epsilons that a program computes, or nothing where it does not run."""
    env = {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": ""}
    try:
        told = subprocess.run(
            [sys.executable, "-c", script, str(listed)],
            env=env,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)),
        )
        return json.loads(told.stdout) if told.returncode == 0 else None
    except ValueError:
        return None


def main() -> None:
    """Draw mutants of both programs, alternately, and count."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    side = sys.argv[3] if len(sys.argv) > 3 else "both"
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        shutil.copytree(HERE.parent / "src", base / "theirs")
        shutil.copytree(HERE / "src", base / "ours")
        ours = sorted(p for p in (base / "ours").rglob("*.py") if p.name in OURS)
        theirs = sorted(p for p in (base / "theirs").rglob("*.py") if p.parent.name in THEIRS)
        panels = {}
        for name, words in {"": None, **RELEVANT}.items():
            listed = base / f"panel-{name}.json"
            listed.write_text(json.dumps(panel(words)))
            stated = numbers(ISSUE, base / "theirs", listed)
            own = numbers(CHECK, base / "ours", listed)
            agree = [
                n for n in stated if stated[n] and own[n] and 0.99 < own[n] / stated[n] <= 1.001
            ]
            panels[name] = listed, stated, own, agree
            print(f"{len(agree)} of {len(stated)} certificates agree {name}", flush=True)
        tally = {"drawn": 0, "moved": 0, "caught": 0}
        for place in range(count):
            mine = side == "checker" or (side == "both" and place % 2 == 0)
            path = rng.choice(ours if mine else theirs)
            key = path.name if mine and path.name in RELEVANT else ""
            listed, stated, own, agree = panels[key]
            text = path.read_text()
            changed = mutated(text, rng)
            if changed is None:
                continue
            path.write_text(changed)
            found = numbers(CHECK if mine else ISSUE, base / ("ours" if mine else "theirs"), listed)
            path.write_text(text)
            tally["drawn"] += 1
            if found is None:
                continue  # it does not run: nobody needs a second program to notice
            before = own if mine else stated
            moved = [n for n in agree if found[n] and abs(found[n] / before[n] - 1) > 0.01]
            if not moved:
                continue
            pairs = [
                (found[n], stated[n]) if mine else (own[n], found[n]) for n in agree if found[n]
            ]
            caught = any(not 0.99 < checked / written <= 1.001 for checked, written in pairs)
            tally["moved"] += 1
            tally["caught"] += caught
            print("caught" if caught else "MISSED", path.name, len(moved), tally, flush=True)
        print(tally)


if __name__ == "__main__":
    main()
