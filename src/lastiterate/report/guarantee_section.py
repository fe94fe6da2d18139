"""The first page of a report: does it hold, what is guaranteed, how others compare."""

from __future__ import annotations

import math
from typing import Any

from lastiterate.accounting.certificate_subject import (
    UNNAMED,
    format_rounded_up,
    name_protected,
    name_record_unit,
    units,
)
from lastiterate.accounting.noise_calibration import LARGE_EPSILON
from lastiterate.accounting.unlearning import Unlearning
from lastiterate.markup import Markup, tag
from lastiterate.planning.unlearning_plans import describe_others, explain_caveat
from lastiterate.release.signatures import WRITTEN
from lastiterate.report.page_parts import (
    DEPLOYMENTS,
    LADDER,
    QUESTIONS,
    WEAKEST,
    bullets,
    counts_rows,
    describe_neighbours,
    describe_releases_together,
    describe_versions,
    fold,
    is_record,
    make_table,
    name_counted,
    name_protected_group,
    number,
    odds,
    round_up_hundredths,
    section,
    share,
)
from lastiterate.report.subject import ReportSource
from lastiterate.run.adjacency import ADJACENCIES, records_moved
from lastiterate.theorems import TABLE

# The first page: one row for each question about a release; "not stated" where nobody answered.

UNSTATED = tag("em", "not stated", class_="unstated")
"""Visible, so that nobody takes silence for an answer."""


def answers(subject: ReportSource) -> list[Markup]:
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
        parts += _describe_others(subject)
        parts.append(tag("p", describe_releases_together(subject)))
        parts += _compare_with_epsilon(body)
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
        ("Charged to a ledger before training", _describe_charge(subject)),
        ("Rests on", _rests(subject)),
        ("Taken on trust", bullets(list_trusted(subject))),
        ("Must stay secret", bullets(stated["secret"])),
        ("Signed", _describe_signature(subject)),
    ]
    return [*parts, make_table(rows, class_="facts")]


def _describe_others(subject: ReportSource) -> list[Markup]:
    """Say what holds for the people who stay in a model that forgot others."""
    forgetting = subject.certified.subject
    if not isinstance(forgetting, Unlearning):
        return []
    known = describe_others(forgetting, subject.delta)
    return [tag("p", f"This is about the removed records alone. Everybody else: {known}.")]


def _compare_with_epsilon(body: dict[str, Any]) -> list[Markup]:
    """Say what epsilon and delta alone would allow, where the whole curve allows less."""
    if body["epsilon"] is None or body["epsilon"] > LARGE_EPSILON:
        return []
    alone = (1 + body["delta"] * math.exp(-body["epsilon"])) / (1 + math.exp(-body["epsilon"]))
    if round_up_hundredths(alone) <= round_up_hundredths(body["stated"]["right_guesses"]):
        return []
    return [
        tag(
            "p",
            f"Epsilon {format_rounded_up(body['epsilon'])} at delta {body['delta']:g} alone would allow "
            f"{math.ceil(1000 * alone - 1e-9) / 10:g} of 100 times. This release allows less, because "
            "its whole curve is known.",
            class_="soft",
        )
    ]


def compare_with_published(subject: ReportSource) -> Markup:
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
            tag("td", name_protected_group(unit)),
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
        class_="deployments screen",  # on paper there is no room for others
    )


def _quote_statement(subject: ReportSource, name: str) -> object:
    text = subject.statement.get(name)
    return (
        UNSTATED
        if not text
        else [str(text), tag("span", " (the releaser's statement)", class_="soft")]
    )


def _describe_release(subject: ReportSource) -> str:
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
    return f"{what}; {run.steps} steps on {run.n} {name_counted(subject)}"


def _day(subject: ReportSource) -> object:
    day = subject.software.get(WRITTEN)
    return (
        UNSTATED
        if day is None
        else [
            f"certificate written on {day}",
            tag("span", " (by the clock of that machine)", class_="soft"),
        ]
    )


def _unit(subject: ReportSource) -> object:
    said = subject.statement.get("unit")
    described = subject.body["stated"]["unit"]
    return [
        tag("p", _name_whom(described, subject.body["caveats"])),
        tag(
            "span",
            (
                f"{described['words']}; "
                if is_record(described)
                else f"all rows of one {described.get('name', UNNAMED)} together; "
            )
            + f"{subject.body['adjacency']}: {describe_neighbours(subject)}",
            class_="soft",
        ),
        tag("span", f" A unit is {said} (the releaser's statement).", class_="soft")
        if said
        else "",
        "" if is_record(described) else fold("In the certificate's words", described["words"]),
    ]


def _name_whom(described: dict[str, Any], caveats: list[str]) -> str:
    """Return who is protected in one sentence, and whether somebody bounded the rows."""
    whom = name_record_unit(caveats) or name_protected(described)
    shown = whom[0].upper() + whom[1:]
    if "name" in described:
        return f"{shown}. {_describe_kept_rows(described)}"
    if whom.startswith("one unit"):
        return (
            f"{shown}, if further rows were left out before training: that is the releaser's word."
        )
    return f"{shown}, not a person." if whom == "one row" else f"{shown}."


def _describe_kept_rows(described: dict[str, Any]) -> str:
    """Return that further rows of a named unit never reached the training."""
    rows, name = described["rows"], described["name"]
    kept = "1 row" if rows == 1 else f"at most {rows} rows"
    return f"Training used {kept} of each {name}; further rows were left out before it began."


def _from(subject: ReportSource) -> str:
    unit = subject.body["stated"]["unit"]
    question, other = QUESTIONS[subject.body["adjacency"]].replace("your", "a"), "record"
    if not is_record(unit):
        other = unit.get("name", UNNAMED)
        question = question.replace("a record was", f"one {other}'s rows were")
        question = question.replace("a record had", f"one {other}'s rows had")
    count = (
        f"how many rows one {other} has (the number of all rows is public, and whoever knows every "
        "other one subtracts), "
        if counts_rows(subject)
        else ""
    )
    return (
        f"anyone who sees what was released and wants to know {question}, even knowing the code, "
        f"all public "
        f"numbers and every other {other}. Not covered: {count}what the model says about people in general, "
        "and leaks of "
        "the data themselves"
    )


def _explain_meaning(subject: ReportSource) -> object:
    body, stated = subject.body, subject.body["stated"]
    if body["epsilon"] is None:
        return "nothing is guaranteed"
    parts: list[object] = []
    for i, row in enumerate(stated["true_positive_rates"]):
        if row["false_positive_rate"] == 0.01:
            parts.append(
                tag(
                    "p",
                    f"A test that flags 1 % of unused {name_protected_group(stated['unit'], many=True)} "
                    "finds at most ",
                    share(f"stated.true_positive_rates.{i}.at_most", row["at_most"]),
                    " of the used ones.",
                )
            )
    if body["epsilon_replace_one"] is not None and records_moved(body["adjacency"]) == 1:
        parts.append(
            tag(
                "p",
                f"Telling apart two versions of {describe_versions(subject)} (replace-one): epsilon ",
                number("epsilon_replace_one", body["epsilon_replace_one"]),
                f" at delta {body['delta']:g}.",
            )
        )
    if body["epsilon"] > LARGE_EPSILON:
        parts.append(
            tag("p", f"Epsilon above {LARGE_EPSILON:g} promises next to nothing.", class_="no")
        )
    return parts


def _accuracy(subject: ReportSource) -> object:
    lines = [tag("p", str(each)) for each in subject.accuracies]
    if any(not each.group for each in subject.accuracies):
        said = "One overall accuracy does not show whether a rare class is ever predicted."
        lines.append(tag("p", said, class_="soft"))
    said = subject.statement.get("accuracy")
    if said:
        lines.append(tag("p", str(said), tag("span", " (the releaser's statement)", class_="soft")))
    return lines or UNSTATED


def _describe_charge(subject: ReportSource) -> object:
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
            f"count; {line.together}" + (f"; {line.about_others}" if line.others else "")
        )
        return (
            [quoted, "; in addition the releaser states ", "; ".join(said)]
            if (said := _describe_other_charges(subject))
            else quoted
        )
    if said := _describe_other_charges(subject):
        return ["no ledger was quoted; the releaser states ", "; ".join(said)]
    return [UNSTATED, ": no ledger was quoted, and other releases of the same data add up"]


def _describe_other_charges(subject: ReportSource) -> list[str]:
    """What the releaser says was paid for, and was not."""
    return [
        f"{kind}: {'; '.join(subject.statement[name])}"
        for name, kind in (("charged", "paid for"), ("not_charged", "not paid for"))
        if subject.statement.get(name)
    ]


def _rests(subject: ReportSource) -> str:
    rests = subject.body["stated"]["rests_on"]
    kinds = [rung for rung in LADDER if any(fact["evidence"] == rung for fact in rests)]
    weakest = kinds[-1] if kinds else None
    theorem = subject.body.get("theorem")
    said = f"the theorem {theorem}" if theorem else "a proof of its own"
    return said if weakest is None else f"{said}; {WEAKEST[weakest]}"


def list_trusted(subject: ReportSource) -> list[str]:
    """Return what nobody checked: conditions of the certificate, typed facts, rows per person."""
    body, stated = subject.body, subject.body["stated"]
    said_elsewhere = {*stated["secret"], *stated["charged"], *stated["not_charged"]}
    if "name" in (described := stated["unit"]):  # the trainer bounds the rows of a named unit
        said_elsewhere.add(units(described["rows"]))
    trusted = [
        explain_caveat(text, subject.certified, subject.delta)
        for text in body["caveats"]
        if text not in said_elsewhere
    ]
    trusted += [
        f"{fact['what']} (assumed)" for fact in stated["rests_on"] if fact["evidence"] == "ASSUMED"
    ]
    trusted.append(describe_typed_facts(subject))
    trusted += [
        f"{fact['fact']}; source: {fact['source']} (the releaser's statement)"
        for fact in subject.statement.get("public_facts", ())
    ]
    return [*trusted, *_list_conditions_on_rows(subject)]


def describe_typed_facts(subject: ReportSource) -> str:
    """Return who vouches for ranges and classes."""
    if subject.schema is None:
        return (
            "ranges, classes and settings are public, and nobody read them off the data; no schema "
            "is in this release"
        )
    source = subject.schema.get("source")
    vouched = f"source: {source} (the releaser's statement)" if source else "source: not stated"
    return f"ranges and classes are public, and nobody read them off the data; {vouched}"


def _list_conditions_on_rows(subject: ReportSource) -> list[str]:
    """Return what must hold of a person's rows for the guarantee to be about that person."""
    unit = subject.body["stated"]["unit"]
    if "name" in unit:
        return [
            f"{unit['name']}: every row of a person has the same value, and no other row has it"
        ]
    if (
        unit["rows"] > 1
        or subject.body["adjacency"] not in ADJACENCIES
        or name_record_unit(subject.body["caveats"])
    ):
        return []  # the caveats have the bound; who is forgotten is named by the request
    return ["nobody has more than one row: a person with k rows needs more than k times epsilon"]


def _describe_signature(subject: ReportSource) -> str:
    if subject.weights is None:
        return "no: a single file has no signature"
    if subject.signed:
        return (
            "a signature is in the same folder; lastiterate verify --key says whether it covers "
            "this page and whose it is"
        )
    return (
        "not yet, when this page was made. lastiterate verify --key says whether there is a "
        "signature now, and whose it is; it covers this page as well"
    )


# The first section: the guarantee, what others published, and other forms of it.


def summary(subject: ReportSource) -> Markup:
    """The first page, what others published, and the guarantee in other forms."""
    body, stated = subject.body, subject.body["stated"]
    rows: list[tuple[str, object]] = []
    if body.get("theorem"):
        named = TABLE[body["theorem"]]
        outside = f" ({named.mark})" if named.origin else ""
        rows.append(("certified by", [f"{named.name}{outside}: {named.citation}"]))
    if stated["mu"] is not None:
        least = stated["mu"]["for_delta_of_at_least"]
        exact = (
            " exactly"
            if stated["mu"]["exact"]
            else f": the closest Gaussian curve above, for delta of at least {least:g}"
        )
        rows.append(("mu (Gaussian DP)", [number("stated.mu.value", stated["mu"]["value"]), exact]))
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
        [*answers(subject), compare_with_published(subject), table, make_table(rows)],
    )
