"""Runs on data larger than memory: read in contiguous pieces, sorted in encrypted scratch files."""
