"""About fifty one-line bugs: see ``python -m benchmarks.audit.bugs --help``."""
