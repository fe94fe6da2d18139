"""The operating system's random bits, replaced by a stream of each test's name.

Keys of trainings come from ``os.urandom``, so a test that fits a model under a secret key and then
looks at its accuracy would fail on one machine in a hundred. In ``make test`` a test draws the same
keys on every machine: bits of a counter hashed with its name. ``LASTITERATE_TEST_SEED`` sets
another seed (a test that fails under some seeds needs a wider margin), and the exhaustive tier and
tests marked ``system_entropy`` have the system's own bits. Child processes always do.
"""

import contextlib
import hashlib
import os
import threading

from tiers import EXHAUSTIVE

SEED = os.environ.get("LASTITERATE_TEST_SEED", "system" if EXHAUSTIVE else "0")


class NamedEntropy:
    """Random bytes that a name determines; the system's while there is no name."""

    def __init__(self):
        self._system = os.urandom
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._name: str | None = None
        self._count = 0

    def __call__(self, size):
        """``size`` random bytes, as ``os.urandom`` gives them."""
        if self._name is None or os.getpid() != self._process:
            return self._system(size)
        with self._lock:
            self._count += 1
            text = f"{SEED} {self._name} {self._count}"
        return hashlib.shake_256(text.encode()).digest(size)

    def start(self, name):
        """Begin the stream of a name; None gives the system's bits back."""
        with self._lock:
            self._name, self._count = (None if SEED == "system" else name), 0

    @contextlib.contextmanager
    def within(self, name):
        """The stream of another name for a while, and then on with the one before."""
        before = self._name, self._count
        self.start(name)
        try:
            yield
        finally:
            self._name, self._count = before
