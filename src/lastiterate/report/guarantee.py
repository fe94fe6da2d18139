"""The first page of a report: does it hold, what is guaranteed, how others compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lastiterate.accounting.calibration import LARGE_EPSILON
from lastiterate.accounting.subjects import UNNAMED
from lastiterate.markup import Markup, tag
from lastiterate.release.provenance import WRITTEN
from lastiterate.report.browser import (
    LADDER,
    QUESTIONS,
    banner,
    bullets,
    fold,
    make_table,
    number,
    odds,
    section,
    share,
)
from lastiterate.report.subject import Subject
from lastiterate.run.adjacency import ADJACENCIES, records_moved
from lastiterate.theorems import TABLE

# What epsilon others published for data of people, so that a reader has something to compare with.
# Only figures that their releasers published themselves. Units, neighbours and deltas differ, so
# that a smaller number is not by itself a stronger promise; the table says so.


@dataclass(frozen=True)
class Deployment:
    """``low`` to ``high``: epsilon as published; ``delta`` as text, "" where the announcement gives
    none."""

    name: str
    low: float
    high: float
    delta: str
    unit: str
    source: str


DEPLOYMENTS = (
    Deployment(
        "Language models of a keyboard (Gboard)",
        0.994,
        13.69,
        "1e-10",
        "one person",
        "Google Research, Advances in private training for production on-device language models, "
        "2024",
    ),
    Deployment(
        "A language model with open weights (VaultGemma)",
        2.0,
        2.0,
        "1.1e-10",
        "one sequence of 1,024 tokens",
        "VaultGemma Team, arXiv:2510.15001",
    ),
    Deployment(
        "Word suggestions in office programs (Assistive AI)",
        4.0,
        4.0,
        "below 1e\N{NON-BREAKING HYPHEN}7",
        "one person",
        "Microsoft 2020, as listed by OpenDP's deployments registry",
    ),
    Deployment(
        "Counts for redistricting, census of the United States 2020",
        19.61,
        19.61,
        "",
        "one person or housing unit",
        "U.S. Census Bureau, announcement of 9 June 2021",
    ),
)
"""The smallest upper end first."""


# The first page: one row for each question about a release; "not stated" where nobody answered.

UNSTATED = tag("em", "not stated", class_="unstated")
"""Visible, so that nobody takes silence for an answer."""


def answers(subject: Subject) -> list[Markup]:
    """The guarantee in a sentence and a number, and a row for each question."""
    body, stated = subject.body, subject.body["stated"]
    parts: list[Markup] = []
    if stated["right_guesses"] is not None:
        sentence = odds(stated["right_guesses"], body["adjacency"], stated["unit"]["rows"])
        parts.append(
            tag(
                "p",
                tag(
                    "data",
                    sentence,
                    data_path="stated.right_guesses",
                    value=repr(stated["right_guesses"]),
                ),
                class_="lead",
            )
        )
    parts.append(
        tag(
            "p",
            "epsilon ",
            number("epsilon", body["epsilon"]),
            " at delta ",
            number("delta", body["delta"], f"{body['delta']:g}"),
            f" ({body['adjacency']})",
            class_="big",
        )
    )
    rows: list[tuple[str, object]] = [
        ("Released", _describe_release(subject)),
        ("Trained by", _quote_statement(subject, "trained_by")),
        ("When", _day(subject)),
        ("What for", _quote_statement(subject, "purpose")),
        ("Protects", _unit(subject)),
        ("From", _from(subject)),
        ("What epsilon means", _explain_meaning(subject)),
        ("Accuracy", _accuracy(subject)),
        ("Charged before", _describe_charge(subject)),
        ("Rests on", _rests(subject)),
        ("Taken on trust", bullets(list_trusted(subject))),
        ("Must stay secret", bullets(stated["secret"])),
        ("Signed", _describe_signature(subject)),
    ]
    return [*parts, make_table(rows, class_="facts")]


def compare_with_published(subject: Subject) -> Markup:
    """Show the release among those that others published."""
    body = subject.body
    rows = [
        (
            one.high,
            (
                one.name,
                f"{one.low:g}" if one.low == one.high else f"{one.low:g} to {one.high:g}",
                one.delta or "not in the source",
                one.unit,
                one.source,
            ),
        )
        for one in DEPLOYMENTS
    ]
    cells = [
        (high, tag("tr", tag("th", cell[0], scope="row"), [tag("td", text) for text in cell[1:]]))
        for high, cell in rows
    ]
    if body["epsilon"] is not None and body["adjacency"] in ADJACENCIES:
        unit = body["stated"]["unit"]
        mine = tag(
            "tr",
            tag("th", "this release", scope="row"),
            tag("td", number("epsilon", body["epsilon"])),
            tag("td", number("delta", body["delta"], f"{body['delta']:g}")),
            tag("td", _name_unit(unit)),
            tag("td", "this certificate"),
            class_="mine",
        )
        cells.append((body["epsilon"], mine))
    head = tag(
        "tr",
        [
            tag("th", name, scope="col")
            for name in ("release", "epsilon", "delta", "protects", "source")
        ],
    )
    return tag(
        "table",
        tag(
            "caption",
            "Compared with published deployments. Units and neighbours differ: a smaller number "
            "is not by itself a stronger promise",
        ),
        tag("thead", head),
        tag("tbody", [row for _, row in sorted(cells, key=lambda pair: pair[0])]),
        class_="deployments",
    )


def _quote_statement(subject: Subject, name: str) -> object:
    text = subject.statement.get(name)
    return (
        UNSTATED
        if not text
        else [str(text), tag("span", " (the releaser's statement)", class_="soft")]
    )


def _describe_release(subject: Subject) -> str:
    run = subject.run
    if subject.described:
        return "nothing yet: a run that is described"
    what = (
        "the parameters after the last step, and nothing in between"
        if run is not None and run.release == "last"
        else "the parameters after every step"
        if run is not None
        else "one set of parameters"
    )
    if run is None:
        return what
    unit = subject.body["stated"]["unit"]
    counted = _name_unit(unit, many=True) if run.rows_per_unit == 1 else "records"
    return f"{what}; {run.steps} steps on {run.n} {counted}"


def _name_unit(unit: dict[str, Any], *, many: bool = False) -> str:
    """Return what the guarantee protects in two words: a record, or a unit with its name."""
    if unit["rows"] == 1 and "name" not in unit:
        return "records" if many else "one record"
    named = f" ({unit['name']})" if unit.get("name", UNNAMED) != UNNAMED else ""
    return f"{'units' if many else 'one unit'}{named}"


def _day(subject: Subject) -> object:
    day = subject.software.get(WRITTEN)
    return (
        UNSTATED
        if day is None
        else [
            f"certificate written on {day}",
            tag("span", " (by the clock of that machine)", class_="soft"),
        ]
    )


def _unit(subject: Subject) -> object:
    said = subject.statement.get("unit")
    words = subject.body["stated"]["unit"]["words"]
    return [
        words,
        f"; {subject.body['adjacency']}: {subject.body['stated']['neighbours']}",
        tag("span", f" A unit is {said} (the releaser's statement).", class_="soft")
        if said
        else "",
    ]


def _from(subject: Subject) -> str:
    question = QUESTIONS[subject.body["adjacency"]].replace("your", "a")
    return (
        f"anyone who sees what was released and wants to know {question}, even knowing the code, "
        f"all public "
        "numbers and every other record. Not covered: what the model says about people in general, "
        "and leaks of "
        "the data themselves"
    )


def _explain_meaning(subject: Subject) -> object:
    body, stated = subject.body, subject.body["stated"]
    if body["epsilon"] is None:
        return "nothing is guaranteed"
    parts: list[object] = []
    for i, row in enumerate(stated["true_positive_rates"]):
        if row["false_positive_rate"] == 0.01:
            parts.append(
                tag(
                    "p",
                    "A test that flags 1 % of unused records finds at most ",
                    share(f"stated.true_positive_rates.{i}.at_most", row["at_most"]),
                    " of the used ones.",
                )
            )
    if body["epsilon_replace_one"] is not None and records_moved(body["adjacency"]) == 1:
        parts.append(
            tag(
                "p",
                "Which of two versions of a record was used (replace-one): epsilon ",
                number("epsilon_replace_one", body["epsilon_replace_one"]),
                ".",
            )
        )
    if body["epsilon"] > LARGE_EPSILON:
        parts.append(
            tag("p", f"Epsilon above {LARGE_EPSILON:g} promises next to nothing.", class_="no")
        )
    return parts


def _accuracy(subject: Subject) -> object:
    lines = [tag("p", str(each)) for each in subject.accuracies]
    said = subject.statement.get("accuracy")
    if said:
        lines.append(tag("p", str(said), tag("span", " (the releaser's statement)", class_="soft")))
    return lines or UNSTATED


def _describe_charge(subject: Subject) -> object:
    line = subject.ledger
    if line is not None:
        if line.problems:
            return [
                tag("strong", "the ledger does not hold: ", line.problems[0]),
                "; nothing that it says counts",
            ]
        quoted = (
            f"ledger of {line.dataset} ({line.unit}): this is release {line.number} of "
            f"{line.releases} that "
            f"count, {line.together}"
        )
        return (
            [quoted, "; in addition the releaser states ", "; ".join(said)]
            if (said := _describe_other_charges(subject))
            else quoted
        )
    if said := _describe_other_charges(subject):
        return ["no ledger was quoted; the releaser states ", "; ".join(said)]
    return [UNSTATED, ": no ledger was quoted, and other releases of the same data add up"]


def _describe_other_charges(subject: Subject) -> list[str]:
    """What the releaser says was paid for, and was not."""
    return [
        f"{kind}: {'; '.join(subject.statement[name])}"
        for name, kind in (("charged", "paid for"), ("not_charged", "not paid for"))
        if subject.statement.get(name)
    ]


def _rests(subject: Subject) -> str:
    rests = subject.body["stated"]["rests_on"]
    kinds = [rung for rung in LADDER if any(fact["evidence"] == rung for fact in rests)]
    weakest = kinds[-1] if kinds else None
    theorem = subject.body.get("theorem")
    said = f"the theorem {theorem}" if theorem else "a proof of its own"
    return (
        said
        if weakest is None
        else f"{said}; its weakest fact is {weakest.lower()}: {LADDER[weakest]}"
    )


def list_trusted(subject: Subject) -> list[str]:
    """Return what nobody checked: conditions of the certificate, typed facts, rows per person."""
    body, stated = subject.body, subject.body["stated"]
    said_elsewhere = {*stated["secret"], *stated["charged"], *stated["not_charged"]}
    trusted = [text for text in body["caveats"] if text not in said_elsewhere]
    trusted += [
        f"{fact['what']} (assumed)" for fact in stated["rests_on"] if fact["evidence"] == "ASSUMED"
    ]
    trusted.append(describe_typed_facts(subject))
    trusted += [
        f"{fact['fact']}; source: {fact['source']} (the releaser's statement)"
        for fact in subject.statement.get("public_facts", ())
    ]
    return [*trusted, *_list_conditions_on_rows(subject)]


def describe_typed_facts(subject: Subject) -> str:
    """Return who vouches for ranges and classes."""
    if subject.schema is None:
        return (
            "ranges, classes and settings are public, and nobody read them off the data; no schema "
            "is in this release"
        )
    source = subject.schema.get("source")
    vouched = f"source: {source} (the releaser's statement)" if source else "source: not stated"
    return f"ranges and classes are public, and nobody read them off the data; {vouched}"


def _list_conditions_on_rows(subject: Subject) -> list[str]:
    """Return what must hold of a person's rows for the guarantee to be about that person."""
    unit = subject.body["stated"]["unit"]
    if "name" in unit:
        return [
            f"{unit['name']}: every row of a person has the same value, and no other row has it"
        ]
    if unit["rows"] > 1 or subject.body["adjacency"] not in ADJACENCIES:
        return []  # the caveats have the bound; who is forgotten is named by the request
    return ["nobody has more than one row: a person with k rows needs more than k times epsilon"]


def _describe_signature(subject: Subject) -> str:
    if subject.weights is None:
        return "no: a single file has no signature"
    if subject.signed:
        return (
            "a signature is in the same folder; lastiterate verify --key says whether it covers "
            "this page and whose it is"
        )
    return (
        "not when this page was made; a later signature covers this page too, and lastiterate "
        "verify --key says "
        "whose it is"
    )


# What a reader must see first: whether it holds, and what is guaranteed.

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
        "page cannot vouch for itself: lastiterate verify compares it, and every other file of the "
        "folder, with the list "
        "that was written with them. Without a key neither shows who wrote them, and a folder that "
        "was issued again as a "
        "whole, with its page, looks the same: lastiterate verify --key checks a signature, if "
        "there is one."
    ),
)
"""What was checked, and what that does not show."""
ON_PAPER = (
    "This does not show that the run was executed as described, that typed ranges are public, or who "
    'wrote the certificate: see "Taken on trust" and the caveats in section 6.'
)
"""What a printed page says of its limits, where nothing unfolds."""


def refusal_section(subject: Subject) -> list[Markup]:
    """The only part for a certificate that does not hold: nothing else of it is worth reading."""
    claimed, delta = subject.body.get("epsilon"), subject.body.get("delta")
    return [
        banner(
            "bad",
            "This release does NOT verify: do not rely on it",
            [
                tag("ul", [tag("li", problem) for problem in subject.checked.problems]),
                tag(
                    "p",
                    f"Its files claim epsilon {claimed} at delta {delta}. Nothing supports that "
                    f"claim.",
                ),
            ],
        )
    ]


def banners(subject: Subject) -> list[Markup]:
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


def summary(subject: Subject) -> Markup:
    """The first page, what others published, and the guarantee in other forms."""
    body, stated = subject.body, subject.body["stated"]
    rows: list[tuple[str, object]] = []
    if stated["mu"] is not None:
        least = stated["mu"]["for_delta_of_at_least"]
        exact = (
            " exactly"
            if stated["mu"]["exact"]
            else f": the closest Gaussian curve above, for delta of at least {least:g}"
        )
        rows.append(("mu (Gaussian DP)", [number("stated.mu.value", stated["mu"]["value"]), exact]))
    if body.get("theorem"):
        rows.append(("certified by", [f"{body['theorem']}: {TABLE[body['theorem']].citation}"]))
    table = tag(
        "table",
        tag("caption", "epsilon at several deltas, rounded up"),
        tag(
            "thead",
            tag(
                "tr",
                tag("th", "delta", scope="col", class_="num"),
                tag("th", "epsilon", scope="col", class_="num"),
            ),
        ),
        tag(
            "tbody",
            [
                tag(
                    "tr",
                    tag(
                        "td",
                        number(f"stated.guarantees.{i}.delta", row["delta"], f"{row['delta']:g}"),
                        class_="num",
                    ),
                    tag(
                        "td", number(f"stated.guarantees.{i}.epsilon", row["epsilon"]), class_="num"
                    ),
                )
                for i, row in enumerate(stated["guarantees"])
            ],
        ),
        class_="narrow",
    )
    return section(
        "1. The guarantee",
        [*answers(subject), compare_with_published(subject), make_table(rows), table],
    )
