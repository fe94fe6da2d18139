"""A file name occurs once, and no file outside the tests looks like a test."""

from collections import Counter
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
COMMON = {"__init__.py", "__main__.py"}


def test_every_file_name_occurs_once():
    names = Counter(path.name for path in SOURCES.rglob("*.py"))
    assert not [name for name, count in names.items() if count > 1 and name not in COMMON]
    assert not [name for name in names if name.startswith("test_") or name.endswith("_test.py")]
