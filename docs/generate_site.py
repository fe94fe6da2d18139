"""The report of the demo, and what makes the site readable from a folder of files and with a screen
reader (an mkdocs hook).

The report is made by the commands that a reader would type, so it is always of this version.
"""

from __future__ import annotations

import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

REPORT = "assets/example-report.html"
EMPTY_HEADING = re.compile(r"<th([^>]*)>\s*</th>")
"""The corner of a table, which heads nothing."""


@cache
def report() -> str:
    """The report of the demo, `lastiterate train digits --epsilon 1`."""
    from typer import main as commands

    from lastiterate.cli import app

    command = commands.get_command(app)
    with tempfile.TemporaryDirectory() as place:
        model, said = Path(place) / "digits-1", sys.stdout
        sys.stdout = sys.stderr
        words = ["train", "digits", "--epsilon", "1", "--out", str(model)]
        words += ["--trained-by", "the lastiterate authors", "--purpose", "an example of a report"]
        try:
            command(words, standalone_mode=False)
        finally:
            sys.stdout = said
        return (model / "report.html").read_text(encoding="utf-8")


def on_config(config: Any) -> Any:
    """Make no page for addresses that do not exist: it would load its style from the host's root."""
    config.theme.static_templates.discard("404.html")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the report; leave this file out of the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, REPORT, content=report()))
    files.remove(files.get_file_from_path("generate_site.py"))
    return files


def on_page_content(text: str, **_: Any) -> str:
    """Make a cell of every heading that is empty."""
    return EMPTY_HEADING.sub(r"<td\1></td>", text)


def on_post_page(output: str, **_: Any) -> str:
    """Give the search a name: the theme's dialog has none."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_post_build(config: Any) -> None:
    """Write the index of the search as a script, too: pages from files may load nothing else."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
