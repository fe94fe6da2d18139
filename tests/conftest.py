"""Shared by all tests: the oracles are importable, warnings about labels are quiet, compiled programs are kept.

Most of the time of a test is XLA's. What it compiles is kept in pytest's cache (``pytest --cache-clear`` forgets it)
for other test files, child processes and the next session; JAX's key is the whole program, its options and versions.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config):
    """Before JAX is imported anywhere, and for child processes too."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("compiled")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
