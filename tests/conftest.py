"""Shared by all tests: the oracles are importable, warnings about labels are quiet, compiled programs are kept.

Most of the time of a test is XLA's. What it compiles is kept in pytest's cache (``pytest --cache-clear`` forgets it)
for other test files, child processes and the next session; JAX's key is the whole program, its options and versions.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
# before JAX is imported anywhere
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(HERE.parent / ".pytest_cache" / "d" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


import pytest  # noqa: E402

sys.path.insert(1, str(HERE.parent))  # benchmarks, whose bugs are audited


@pytest.fixture
def patched():
    """Apply one-line bugs, ``patched(module, name, value)``; the trainer's programs are compiled anew, and afterwards.
    """
    from contextlib import ExitStack

    from benchmarks.audit.bugs.bug import patched as with_patches

    with ExitStack() as stack:
        yield lambda *patch: stack.enter_context(with_patches(patch))
