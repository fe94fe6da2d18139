"""Print the lines of code that docs/explanation/trust.md tells: no comments, docstrings, blanks."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "tests"))

from test_independence import AUTOMATIC, FILES, code_lines  # noqa: E402

PACKAGE = HERE.parent / "src" / "lastiterate"


def layers() -> dict[str, int]:
    """Lines of code of every part that one must believe, and pages of proofs."""
    proofs = [p for p in (HERE.parent / "docs" / "theorems").glob("*.md") if p.stem != "index"]
    execution = [*(PACKAGE / "engine").rglob("*.py"), *(PACKAGE / "run").rglob("*.py")]
    noise = [PACKAGE / "engine" / name for name in ("random.py", "exact_noise.py")]
    return {
        "pages of proofs": len(proofs),
        "the checker": sum(len(code_lines(path)) for path in FILES),
        "the checker, automatic plans": sum(
            len(code_lines(path)) for path in FILES if path.name in AUTOMATIC
        ),
        "the execution": sum(len(code_lines(path)) for path in execution),
        "the noise": sum(len(code_lines(path)) for path in noise),
    }


if __name__ == "__main__":
    for path in FILES:
        print(f"{len(code_lines(path)):6d}  {path.name}")
    for name, count in layers().items():
        print(f"{count:6d}  {name}")
