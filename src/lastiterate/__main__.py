"""``python -m lastiterate`` is the ``lastiterate`` command."""

from lastiterate.cli import main

if __name__ == "__main__":
    main()
