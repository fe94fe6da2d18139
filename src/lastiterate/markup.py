"""HTML and SVG by construction: every text is escaped, so that no string of anybody's can become
markup."""

from __future__ import annotations

import re
from html import escape

_NAME = re.compile(r"^[a-z][a-zA-Z0-9-]*$")
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)
"""Characters that HTML forbids, or that turn the direction of the text around them."""
VOID = ("input", "meta", "br", "line", "path", "circle", "rect", "polyline")
"""Elements without content."""


class Markup(str):
    """HTML that this module made."""

    __slots__ = ()


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """An element; texts are escaped, ``Markup`` is kept. ``None`` and ``False`` attributes are left
    out.

    ``class_`` and ``for_`` are written without the line, other underlines become hyphens.

    **Guarantee:** whatever the texts and attribute values are, the element has exactly this name,
    these attributes and this content.
    """
    given = "".join(
        _attribute(key, value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not content:
        return Markup(
            f"<{name}{given}>" if name in ("input", "meta", "br") else f"<{name}{given}/>"
        )
    return Markup(f"<{name}{given}>{join(content)}</{name}>")


def join(content: object) -> Markup:
    """One piece of HTML from texts, markup, and lists of them."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, list | tuple):
        return Markup("".join(join(part) for part in content))  # pyright: ignore
    return Markup("" if content is None else escape(plain(str(content)), quote=True))


def plain(text: str) -> str:
    """The text with characters replaced that no page may hold."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _NAME.match(name) or name.startswith("on"):
        raise ValueError(f"no attribute of a page: {key}")
    return f" {name}" if value is True else f' {name}="{escape(plain(str(value)), quote=True)}"'


def table(rows: list[tuple[object, object]]) -> Markup:
    """A small table of labels and values, for notebooks."""
    left = "text-align:left"
    cells = [
        tag("tr", tag("th", label, style=left, scope="row"), tag("td", value, style=left))
        for label, value in rows
    ]
    return tag("table", tag("tbody", cells))
