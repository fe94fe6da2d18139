"""``python -m lastiterate`` is the ``lastiterate`` command."""

import sys
from pathlib import Path

from lastiterate import interrupts


def main() -> None:
    """The command; a Ctrl-C is remembered from here on, also while its modules are imported."""
    interrupts.handle_interrupts()
    if sys.argv[1:] in (["--help"], ["-h"]) and write_overview():
        return
    from lastiterate.cli import main as command

    command()


def write_overview() -> bool:
    """Write the stored list of commands, for which none of them is imported; false where output
    cannot be written, which the application reports.
    """
    name = Path(sys.argv[0]).name
    name = "python -m lastiterate" if name == "__main__.py" else name
    text = Path(__file__).with_name("overview.txt").read_text("utf-8")
    try:
        sys.stdout.write(f"Usage: {name} {text}")
        sys.stdout.flush()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
