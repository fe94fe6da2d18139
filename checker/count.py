"""Print the lines of code of the checker by file: no comments, no docstrings, no blank lines."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "tests"))

from test_independence import AUTOMATIC, FILES, code_lines  # noqa: E402

if __name__ == "__main__":
    rows = {path.name: len(code_lines(path)) for path in FILES}
    for name, count in rows.items():
        print(f"{count:6d}  {name}")
    print(f"{sum(rows.values()):6d}  in {len(rows)} files")
    print(f"{sum(rows[name] for name in AUTOMATIC):6d}  for the automatic plans")
