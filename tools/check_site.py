"""Check the accessibility of the documentation and of the pages that the library makes.

    pip install 'lastiterate[docs]' 'playwright>=1.50' 'axe-playwright-python>=0.1.7'
    make docs
    python tools/check_site.py site            every page of the site, then the library's own
    python tools/check_site.py site index.html guides/data.html

Every page is opened from its file (``file://``) in Chromium without a window and looked at by axe
(WCAG 2.2 A and AA, and axe's good practices) in two views: 1280 pixels wide in the light scheme,
and 360 pixels wide in the dark one. A page that scrolls to the side at 360 pixels is a finding,
and so is a request to another machine, a search without a result, or a report that takes more than
two pages of paper.

The library's own pages are a report (on screen and on paper), the page of a refused folder, and
``lastiterate explore``. Exit code 1 where there is a finding.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SHEETS = 2
"""Pages of paper that a report may take."""
QUERY = "shifted interpolation"
"""Words that the search must find, as a person types them."""


EXPLORER = "explore"


class View(NamedTuple):
    """How a page is looked at."""

    name: str
    width: int
    scheme: str
    media: str = "screen"


SCREENS = (View("wide", 1280, "light"), View("narrow", 360, "dark"))
PAPER = View("paper", 794, "light", "print")


class Finding(NamedTuple):
    """A rule that a page breaks, with the first of its elements."""

    page: str
    view: str
    rule: str
    count: int
    first: str


def list_violations(page: Page, name: str, view: View, axe: Axe) -> Iterator[Finding]:
    """Ask axe about the page as it is."""
    found: dict[str, Any] = axe.run(page).response
    for each in found["violations"]:
        nodes = each["nodes"]
        said = " / ".join(nodes[0].get("failureSummary", "").split("\n")[1:2])
        yield Finding(name, view.name, each["id"], len(nodes), f"{nodes[0]['target']} {said}")


def look(page: Page, name: str, address: str, view: View, axe: Axe) -> Iterator[Finding]:
    """Open a page and look at it in one view."""
    page.emulate_media(media=view.media, color_scheme=view.scheme)  # pyright: ignore
    page.set_viewport_size({"width": view.width, "height": 900})
    page.goto(address)
    if name == EXPLORER:
        page.wait_for_selector("#curves svg", timeout=120_000)
    yield from list_violations(page, name, view, axe)
    wide = page.evaluate("document.documentElement.scrollWidth")
    if view.media == "screen" and wide > view.width:
        yield Finding(name, view.name, "scrolls-to-the-side", 1, f"{wide} pixels")


def check_search(page: Page, name: str, axe: Axe) -> Iterator[Finding]:
    """Type into the search of the open page, look at its results, and follow the first."""
    try:
        page.click("input.md-search__input", timeout=20_000)
        page.keyboard.type(QUERY)
        first = page.wait_for_selector(".md-search-result__link", timeout=20_000)
        leads = first and first.get_attribute("href")
        yield from list_violations(page, name, SCREENS[0], axe)
        page.press("input.md-search__input", "Enter")
        page.wait_for_url(f"**/{str(leads).split('/')[-1]}", timeout=20_000)
    except Exception as error:  # whatever the browser says, it is the finding
        yield Finding(name, "wide", "search", 1, str(error).splitlines()[0])


def check_paper(page: Page, name: str, folder: Path) -> Iterator[Finding]:
    """Print the open page, and count its sheets."""
    page.emulate_media(media="print")
    made = page.pdf(path=folder / "paper.pdf", prefer_css_page_size=True)
    sheets = len(re.findall(rb"/Type\s*/Page\b(?!s)", made))
    if not 0 < sheets <= SHEETS:
        yield Finding(name, "paper", "sheets", sheets, f"{sheets} pages of paper")


@contextmanager
def explorer() -> Iterator[str]:
    """Serve the explorer and yield its address."""
    from lastiterate.report.explore import serve

    server = serve(0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def make_reports(folder: Path) -> Iterator[Path]:
    """Train the bundled digits; yield the report of the release and the one of a damaged copy."""
    from lastiterate.__main__ import main as lastiterate

    def run(*words: str, code: int = 0) -> None:
        sys.argv = ["lastiterate", *words]
        try:
            lastiterate()
        except SystemExit as end:
            if (end.code or 0) != code:
                raise

    model = folder / "digits"
    run("train", "digits", "--epsilon", "1", "--out", str(model))
    yield model / "report.html"
    copy = folder / "damaged"
    shutil.copytree(model, copy)
    weights = next(iter(copy.glob("*.safetensors")))
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    run("report", str(copy), "--out", str(folder / "damaged.html"), code=1)
    yield folder / "damaged.html"


def check(site: Path, names: Sequence[str], own: bool) -> list[Finding]:
    """Look at every page; print findings as they come."""
    findings, axe, elsewhere = list[Finding](), Axe(), list[str]()

    def note(found: Iterator[Finding]) -> None:
        for each in found:
            findings.append(each)
            print(
                f"{each.page}, {each.view}: {each.rule} ({each.count}), first {each.first}",
                flush=True,
            )

    with sync_playwright() as play, tempfile.TemporaryDirectory() as place:
        browser = play.chromium.launch(
            executable_path=next(filter(None, map(shutil.which, BROWSERS)), None),
            args=["--no-sandbox"],
        )
        page = browser.new_page()
        page.on("request", lambda asked: elsewhere.append(asked.url))

        def show(name: str, address: str, views: Sequence[View] = SCREENS) -> None:
            elsewhere.clear()
            for view in views:
                note(look(page, name, address, view, axe))
            own_places = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:")
            for url in elsewhere:
                if not url.startswith(own_places):
                    note(iter([Finding(name, "any", "request-elsewhere", 1, url)]))

        for name in names:
            show(name, (site / name).resolve().as_uri())
        if names:
            page.emulate_media(media="screen", color_scheme="light")
            page.set_viewport_size({"width": SCREENS[0].width, "height": 900})
            page.goto((site / names[0]).resolve().as_uri())
            note(check_search(page, names[0], axe))
        if own:
            folder = Path(place)
            for path in make_reports(folder):
                show(path.name, path.as_uri(), (*SCREENS, PAPER))
                note(check_paper(page, path.name, folder))
            with explorer() as address:
                show(EXPLORER, address)
        browser.close()
    return findings


def main(words: Sequence[str] | None = None) -> int:
    """Check a site; 1 where there is a finding."""
    parser = argparse.ArgumentParser(description="Check the accessibility of every page.")
    parser.add_argument("site", type=Path, help="the folder that `make docs` has made")
    parser.add_argument("page", nargs="*", help="pages of it; all of them and the library's own")
    given = parser.parse_args(words)
    names = given.page or sorted(
        path.relative_to(given.site).as_posix() for path in given.site.rglob("*.html")
    )
    findings = check(given.site, names, own=not given.page)
    rules = Counter[str]()
    for each in findings:
        rules[each.rule] += each.count
    print(f"{len(names)} pages of the site, {len(findings)} findings: {dict(rules)}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
