"""Measurements, run from the root of the repository by ``python -m benchmarks.FOLDER.NAME``;
numbers in RESULTS.md."""
