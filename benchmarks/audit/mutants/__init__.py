"""Bugs that nobody lists: single changes of the sources that execute and release, drawn by a seed."""
