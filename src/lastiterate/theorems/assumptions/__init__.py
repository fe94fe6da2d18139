"""The conditions that theorems choose from, each checkable on a run."""
