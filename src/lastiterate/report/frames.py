"""The frames that parts of a report are put in."""

from __future__ import annotations

from typing import Any

from lastiterate.markup import Markup, tag


def section(title: str, content: object, **more: object) -> Markup:
    slug = title.split(".")[0]
    return tag("section", tag("h2", title, id=f"part-{slug}"), content, aria_labelledby=f"part-{slug}", **more)


def listed(rows: list[tuple[str, Any]], *, class_: str = "facts") -> Markup:
    return tag("table", tag("tbody", [tag("tr", tag("th", label, scope="row"), tag("td", value))
                                      for label, value in rows]), class_=class_)


def folded(title: str, content: object) -> Markup:
    """What most readers do not need: closed until it is asked for."""
    return tag("details", tag("summary", title), content)


def bullets(texts: list[str]) -> Markup:
    return tag("ul", [tag("li", text) for text in texts])


def banner(kind: str, title: str, content: object) -> Markup:
    return tag("section", tag("h2", title), content, class_=f"banner {kind}", role="alert" if kind == "bad" else "note")
