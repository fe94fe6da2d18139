"""Shared by all tests: the oracles are importable, warnings about labels are quiet."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
