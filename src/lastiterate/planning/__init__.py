"""From public numbers and a budget to a run."""
