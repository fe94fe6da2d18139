"""`lastiterate report`: one offline HTML file about a release."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from lastiterate import limits
from lastiterate.accounting.verification import CheckResult
from lastiterate.errors import InputError
from lastiterate.markup import Markup, plain, tag
from lastiterate.release.folder import PAGE
from lastiterate.report import page_parts
from lastiterate.report.banners import (
    banners,
    refusal_section,
    warn_of_ledger,
    warn_of_persons,
    warn_of_unit,
)
from lastiterate.report.execution_section import (
    QUOTED,
    check,
    downloads,
    evidence,
    execution,
    ledger,
    secrets,
    verdicts,
    word,
)
from lastiterate.report.figures import NO_AUDIT, effects, steps, tradeoff
from lastiterate.report.guarantee_section import summary
from lastiterate.report.subject import ReportSource, read_verified

# The parts of a report, in the order in which they are read.


def every(subject: ReportSource) -> list[Markup | str]:
    """All parts, for a certificate that holds."""
    return [
        *warn_of_ledger(subject),
        *banners(subject),
        *warn_of_persons(subject),
        *warn_of_unit(subject),
        summary(subject),
        tradeoff(subject),
        steps(subject),
        verdicts(subject),
        secrets(subject),
        evidence(subject),
        execution(subject),
        ledger(subject),
        word(subject),
        effects(subject),
        check(subject),
        downloads(),
    ]


# ``lastiterate report``: one offline HTML file about a release, for people who did not train the
# model.  Nothing is loaded from anywhere: style and script are in the file, and a content security
# policy names them by their hashes, so that no other script could run in it. All texts are escaped
# by construction (``markup``).

HERE = Path(__file__).parent


@cache
def part(name: str) -> str:
    """Read a style sheet or script in this folder."""
    return (HERE / name).read_text(encoding="utf-8")


TITLE = "Privacy report: "
MADE_BY = "Made by lastiterate {}"
COUNTED = rf"<h3>{QUOTED}</h3>.{{1,2000}}?>number \d{{1,9}} of (\d{{1,9}}) that count, "
"""A page's quote of a ledger."""
LARGEST = 2**24
"""Bytes of a page that is compared; those that this library makes have less than 1,000,000."""


def is_page_of(
    folder: Path, checked: CheckResult, *, ledger: Path | None = None, audit: Path | None = None
) -> bool:
    """Whether the page in a folder is the one that this version makes of its other files, of which
    ``checked`` is the verification.

    A page that quotes a ledger needs the ``ledger``, as it was or with later charges.
    """
    text = _read_page(folder)
    releases = count_quoted_releases(folder)
    subjects = read_verified(
        folder,
        checked,
        audit=audit,
        ledger=None if releases is None else ledger,
        releases=releases,
    )
    return any(_is_made_from(text, subject) for subject in subjects)


def has_all_sources(folder: Path, *, ledger: Path | None, audit: Path | None) -> bool:
    """Whether a folder's page says that this version made it, and of nothing but what is named: a
    ledger, an audit. Another page than is made of these was changed."""
    from lastiterate import __version__

    text = _read_page(folder)
    return (
        MADE_BY.format(__version__) in text
        and (ledger is not None or count_quoted_releases(folder) is None)
        and (audit is not None or NO_AUDIT in text)
    )


def _read_page(folder: Path) -> str:
    """The text of a folder's page, empty where it is none."""
    try:
        return limits.content(folder / PAGE, PAGE, LARGEST).decode()
    except (InputError, UnicodeDecodeError):
        return ""


def count_quoted_releases(folder: Path) -> int | None:
    """How many charges of a ledger a folder's page counts; ``None`` where it quotes none."""
    found = re.search(COUNTED, _read_page(folder))
    return None if found is None else int(found[1])


def count_later_releases(folder: Path, checked: CheckResult, ledger: Path) -> int:
    """How many charges a ledger has that a folder's page does not count."""
    quote = read_verified(folder, checked, ledger=ledger)[0].ledger
    quoted = count_quoted_releases(folder)
    return 0 if quote is None or quoted is None else quote.releases - quoted


def _is_made_from(text: str, subject: ReportSource) -> bool:
    """Whether ``text`` is the subject's page, under the name that its folder had then, and before
    or after it was signed."""
    found = re.search(f"<title>{TITLE}([^<]*)</title>", text)
    if found is None:
        return False
    named = replace(subject, name=html.unescape(found[1]), signed=False)
    return text == page(named) or (subject.signed and text == page(replace(named, signed=True)))


def page(subject: ReportSource) -> str:
    """The whole page."""
    title = f"{TITLE}{subject.name}"
    made = every(subject) if subject.checked.holds else refusal_section(subject)
    body = [
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("h1", title)),
        tag("main", made, id="content"),
        _footer(),
    ]
    if subject.checked.holds:
        body += [_data(page_parts.data(subject)), Markup(f"<script>{part('page.js')}</script>")]
    return "<!DOCTYPE html>\n" + tag("html", _head(title), tag("body", body), lang="en") + "\n"


def _head(title: str) -> Markup:
    rules = (
        f"default-src 'none'; script-src {source_hash('page.js')}; style-src {source_hash('page.css')}; "
        f"img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return tag(
        "head",
        Markup('<meta charset="utf-8">'),
        tag("meta", http_equiv="Content-Security-Policy", content=rules),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        Markup(f"<style>{part('page.css')}</style>"),
    )


def source_hash(name: str) -> str:
    digest = hashlib.sha256(part(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _data(data: object) -> Markup:
    """JSON that cannot end its element: no character of markup is in it."""
    text = (
        plain(json.dumps(data, allow_nan=False))
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
    )
    return Markup(f'<script type="application/json" id="report-data">{text}</script>')


def _footer() -> Markup:
    from lastiterate import __version__

    paper = tag(
        "p",
        "On paper this is the summary. The page on a screen also has epsilon over steps, published "
        "deployments, what does not apply and why, the run, the releaser's statement, and checks "
        "that anybody can repeat.",
        class_="paper soft",
    )
    return tag(
        "footer",
        paper,
        tag(
            "p",
            f"{MADE_BY.format(__version__)} on the releaser's or the reader's machine; this "
            f"page loads nothing "
            "and sends nothing. A reader who does not trust the page runs ",
            tag("code", "lastiterate verify"),
            " on the folder: it derives every number again.",
            class_="soft",
        ),
    )
