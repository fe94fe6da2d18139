"""`lastiterate report`: one offline HTML file about a release."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

from lastiterate import limits
from lastiterate.accounting.certificate_json import CheckResult
from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.errors import InputError
from lastiterate.ledger.budget_check import is_other_unit
from lastiterate.markup import Markup, plain, tag
from lastiterate.release.folder import NOT_CERTIFIED, PAGE, describe_failure
from lastiterate.report import page_parts
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
from lastiterate.report.page_parts import banner, bullets, fold
from lastiterate.report.subject import ReportSource, read_verified
from lastiterate.run.adjacency import ADJACENCIES
from lastiterate.run.serialization import is_object

# The coloured boxes on top of a report: whether it holds, and what limits it.

CONSISTENT = (
    "Every number was derived again when this page was made, and agrees with the certificate.",
    (
        "What was stated in addition to the numbers (added caveats, the releaser's statement, "
        "software) is taken as written. No "
        "model was looked at, and who wrote the certificate is not shown."
    ),
)
VERIFIED = (
    "When this page was made, every number was derived again; certificate, weights and model "
    "agree.",
    (
        "What was stated in addition to the numbers (added caveats, the releaser's statement, "
        "software) is taken as written. The "
        "page cannot vouch for itself: make your own with lastiterate report MODEL_DIR --out "
        "mine.html, and compare every file of the folder with the list that was written with them "
        "by lastiterate verify. Without a key neither shows who wrote them, and a folder that "
        "was issued again as a "
        "whole, with its page, looks the same: lastiterate verify --key checks a signature, if "
        "there is one."
    ),
)
"""What was checked, and what that does not show."""
ON_PAPER = (
    "This does not show that the run was executed as described, that typed ranges are public, or who "
    'wrote the certificate: see "Taken on trust" and the caveats in section 5.'
)
"""What a printed page says of its limits, where nothing unfolds."""


def refusal_section(subject: ReportSource) -> list[Markup]:
    """The only part for a certificate that does not hold: nothing else of it is worth reading."""
    claimed, delta = subject.body.get("epsilon"), subject.body.get("delta")
    failure = describe_failure(subject.checked.problems, subject.checked.unsigned)
    return [
        banner(
            "bad",
            "This release does NOT verify: do not rely on it",
            [
                tag("ul", [tag("li", problem) for problem in subject.checked.problems]),
                tag(
                    "p",
                    f"Its files claim epsilon {claimed} at delta {delta}. "
                    + (
                        "Nothing supports that claim."
                        if failure == NOT_CERTIFIED
                        else f"{failure[0].upper()}{failure[1:]}."
                    ),
                ),
            ],
        )
    ]


def banners(subject: ReportSource) -> list[Markup]:
    """What a reader must see first."""
    if subject.refuted:
        assert subject.audit is not None
        return [
            banner(
                "bad",
                "REFUTED: an audit contradicts this certificate",
                tag(
                    "p",
                    f"The attack {subject.audit['attack']} distinguished the two data sets more "
                    f"often than the "
                    "certificate allows (this is wrong with probability "
                    f"{subject.audit['failure']:g} at most). Do not "
                    "release this model.",
                ),
            )
        ]
    if subject.body["epsilon"] is None:
        return [
            banner(
                "bad",
                "Nothing certifies this run",
                tag("p", "No theorem gives a finite epsilon; section 4 says why."),
            )
        ]
    if condition := subject.checked.condition or subject.certified.condition:
        return [banner("warn", "Conditional: it rests on an assumption", tag("p", condition))]
    if subject.described:
        return [
            banner(
                "good",
                "A run that is described",
                tag(
                    "p",
                    "The numbers follow from the description; they hold for whoever executes it "
                    "exactly as it stands.",
                ),
            )
        ]
    checked, limits = VERIFIED if subject.weights else CONSISTENT
    return [
        banner(
            "good",
            "Verified",
            [
                tag("p", checked),
                fold("What this does not show", tag("p", limits)),
                tag("p", ON_PAPER, class_="paper"),
            ],
        )
    ]


def warn_of_ledger(subject: ReportSource) -> list[Markup]:
    """Warn first where the ledger that the page quotes does not hold."""
    if subject.ledger is None or not subject.ledger.problems:
        return []
    return [
        banner(
            "bad",
            "The ledger does not hold",
            [
                tag(
                    "p",
                    "The ledger that this page quotes was changed or is damaged: nothing is known "
                    "of all releases together. What follows is for this model alone.",
                ),
                bullets(list(subject.ledger.problems)),
            ],
        )
    ]


def warn_of_unit(subject: ReportSource) -> list[Markup]:
    """Warn where the model protects other units than those that the ledger's budget is for."""
    name = subject.body["stated"]["unit"].get("name", "")
    if subject.ledger is None or not is_other_unit(name, subject.ledger.unit):
        return []
    unit = subject.ledger.unit
    return [
        banner(
            "warn",
            f"The ledger's budget is per {unit}, and this model protects one {name}",
            tag(
                "p",
                f"It protects one {unit}, and the ledger's figures hold, only if no {unit} has two: "
                "nothing in these files shows that.",
            ),
        )
    ]


def warn_of_persons(subject: ReportSource) -> list[Markup]:
    """Warn where rows are protected one by one and the table has a column of identifiers."""
    body, schema = subject.body, subject.schema
    described = body["stated"]["unit"]
    columns: dict[str, object] = {} if schema is None else schema.get("columns", {})
    ids = [
        name for name, entry in columns.items() if is_object(entry) and entry.get("kind") == "id"
    ]
    if (
        not ids
        or subject.refuted
        or body["epsilon"] is None
        or described["rows"] > 1
        or "name" in described
        or body["adjacency"] not in ADJACENCIES
    ):
        return []
    one = len(ids) == 1
    named = f"a column of persons ({ids[0]})" if one else f"columns of ids ({', '.join(ids)})"
    two = subject.certified.group(2, subject.delta)
    known = (
        f"2 rows of a person together: epsilon {format_rounded_up(two)} at delta {subject.delta:g}"
        if math.isfinite(two)
        else "for 2 rows of a person together nothing is certified"
    )
    return [
        banner(
            "warn",
            f"Rows are protected one by one, and the table has {named}",
            tag(
                "p",
                f"{known[0].upper()}{known[1:]}; k rows: more than k times the epsilon of one. ",
                tag("code", f"lastiterate train --unit {shlex.quote(ids[0]) if one else 'COLUMN'}"),
                " protects all rows of a person together",
                "." if one else ", if that column names the person.",
            ),
        )
    ]


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
