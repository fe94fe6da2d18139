"""Accuracy: the automatic plan, fixed plans, and other ways to spend the same budget."""
