"""Step sizes and noise come from one place: nobody outside of ``run`` reads the numbers that they
are made of."""

import re
from pathlib import Path

import lastiterate as li

SOURCE = Path(li.__file__).parent
PARTS = re.compile(r"(step_size|noise|schedule|size)\.(value|values|beta|strong|std|sigma|z)\b")
ALLOWED = {
    "cli/tables.py": "prints the description itself",
    "report/explore.py": "prints the description itself",
}


def test_nobody_else_knows_the_formulas_of_schedules_and_noise():
    found = {
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "run" and str(path.relative_to(SOURCE)) not in ALLOWED
        for line in path.read_text(encoding="utf-8").splitlines()
        if PARTS.search(line) and not line.lstrip().startswith((">>>", "..."))
    }
    assert found == set()
