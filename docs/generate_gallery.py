"""A page per example of ``docs/gallery``: its code, what it printed, its picture, the file (an
mkdocs hook).

Nothing is written by hand but the examples themselves: they run while the page is made.
"""

from __future__ import annotations

import contextlib
import io
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

GALLERY = Path(__file__).parent / "gallery"


class Made(NamedTuple):
    """``title``: its first line; ``printed``: what it said; ``picture``: as PNG."""

    title: str
    source: str
    printed: str
    picture: bytes


@cache
def made(name: str) -> Made:
    """One example, executed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    source, said, picture = (
        (GALLERY / f"{name}.py").read_text(encoding="utf-8"),
        io.StringIO(),
        io.BytesIO(),
    )
    plt.close("all")
    with contextlib.redirect_stdout(said):
        exec(compile(source, f"{name}.py", "exec"), {"__name__": "__main__"})
    plt.gcf().savefig(picture, dpi=110, bbox_inches="tight")
    plt.close("all")
    return Made(source.split('"""')[1].strip(), source, said.getvalue(), picture.getvalue())


def names() -> list[str]:
    """Every example."""
    return sorted(path.stem for path in GALLERY.glob("*.py"))


def page(name: str) -> str:
    """One example, in Markdown."""
    found = made(name)
    title, _, rest = found.title.partition(": ")
    return (
        f"# {title}\n\n{rest[:1].upper()}{rest[1:]}\n\n![{found.title}]({name}.png)\n\n"
        "[Download "
        f"{name}.py]({name}.py)\n\n```python\n{found.source}```\n\n```text\n{found.printed}```\n"
    )


def overview() -> str:
    """All examples with their pictures."""
    parts = [
        f"## [{made(name).title.partition(': ')[0]}]({name}.md)\n\n{made(name).title.partition(': ')[2]}\n\n"
        f"[![{made(name).title}]({name}.png)]({name}.md)"
        for name in names()
    ]
    return (
        "# Gallery\n\nExamples of a few lines, executed when these pages were made.\n\n"
        + "\n\n".join(parts)
        + "\n"
    )


def on_config(config: Any) -> Any:
    """Put the gallery behind the tutorials."""
    config.nav.insert(
        2, {"Gallery": ["gallery/index.md", *(f"gallery/{name}.md" for name in names())]}
    )
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add pages and pictures; the examples themselves are files of the site already."""
    from mkdocs.structure.files import File

    pages: dict[str, str | bytes] = {"gallery/index.md": overview()}
    pages |= {f"gallery/{name}.md": page(name) for name in names()}
    pages |= {f"gallery/{name}.png": made(name).picture for name in names()}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    files.remove(files.get_file_from_path("generate_gallery.py"))
    return files
