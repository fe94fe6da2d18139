"""The coloured boxes on top of a report: whether it holds, and what limits it."""

from __future__ import annotations

import math
import shlex

from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.ledger.budget import is_other_unit
from lastiterate.markup import Markup, tag
from lastiterate.release.folder import NOT_CERTIFIED, describe_failure
from lastiterate.report.page_parts import banner, bullets, fold
from lastiterate.report.subject import ReportSource
from lastiterate.run.adjacency import ADJACENCIES
from lastiterate.run.serialization import is_object

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
