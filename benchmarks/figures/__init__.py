"""The pictures of README and documentation; see docs/figures."""
