"""Check commit subjects: Conventional Commits, imperative, at most 72 characters.

python tools/check_commits.py            the commits since BASE, as ``make lint`` does
python tools/check_commits.py FILE       the message in a file, as the hook commit-msg does
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BASE = "4d436a90"
"""The last commit before subjects are checked."""
MERGED = ("4021f622aac4", "4959ef8cb1a1", "ee36f28d4a17")
"""Commits with a character or two too many that were merged before this check ran."""
LONGEST = 72
TYPES = ("feat", "fix", "docs", "test", "refactor", "perf", "style", "build", "ci", "chore")
SUBJECT = re.compile(rf"(?:{'|'.join(TYPES)}|revert)(?:\([a-z0-9_./, -]+\))?!?: (\S.*)")


def find_fault(subject: str) -> str:
    """Return what is wrong with a subject, or an empty string."""
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return ""
    found = SUBJECT.fullmatch(subject)
    if found is None:
        return f"write 'type(scope): imperative', where type is one of {', '.join(TYPES)}"
    if len(subject) > LONGEST:
        return f"has {len(subject)} characters; use at most {LONGEST}"
    if found[1].endswith("."):
        return "ends with a full stop; leave it out"
    first = found[1].split()[0]
    if re.fullmatch(r"[a-z]{3,}(ed|ing)", first) and first not in ("embed", "need", "bring"):
        return f"begins with {first!r}; use the imperative"
    return ""


def run_git(*words: str, folder: Path | None = None) -> str | None:
    """Return the output of a git command, or ``None`` where it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def read_subjects(folder: Path | None = None) -> list[str] | None:
    """Return the subjects since BASE, or ``None`` where the history does not hold BASE."""
    if run_git("merge-base", "--is-ancestor", BASE, "HEAD", folder=folder) is None:
        return None
    found = run_git("log", "--no-merges", "--format=%H %s", f"{BASE}..HEAD", folder=folder)
    if found is None:
        return None
    return [line.split(" ", 1)[1] for line in found.splitlines() if not line.startswith(MERGED)]


def main(arguments: list[str], folder: Path | None = None) -> int:
    """Print each faulty subject with its fault; return the exit code."""
    if arguments:
        lines = Path(arguments[0]).read_text(encoding="utf-8").splitlines()
        subjects = [next((line for line in lines if line and not line.startswith("#")), "")]
    else:
        read = read_subjects(folder)
        if read is None:
            print(f"commits: nothing checked, because this copy has no history since {BASE}")
            return 0
        subjects = read
    faults = [(subject, fault) for subject in subjects if (fault := find_fault(subject))]
    for subject, fault in faults:
        print(f"{subject}\n    {fault}")
    if not faults:
        print(f"commits: {len(subjects)} subjects checked")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
