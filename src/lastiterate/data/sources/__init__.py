"""Data files that are read piece by piece, in public order, as often as a run needs them."""
