"""Text on a terminal: whatever files and arguments hold, no character of it steers the terminal or turns its text."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text


class Terminal(Console):
    """A console whose texts are ``visible``: everything that is printed on it goes through here."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def visible(text: str) -> str:
    """The text with every character that is not printable as an escape, such as ``\\x1b``; line breaks and tabs stay.

    Escape sequences, bells and overrides of the direction of text are not printable.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)
