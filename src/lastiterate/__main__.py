"""``python -m lastiterate`` is the ``lastiterate`` command."""

from lastiterate import interrupts


def main() -> None:
    """The command; a Ctrl-C is remembered from here on, also while its modules are imported."""
    interrupts.handle_interrupts()
    from lastiterate.cli import main as command

    command()


if __name__ == "__main__":
    main()
