"""What a report's script reads, the frames of its parts, and its plain sentences."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lastiterate.accounting.certificate_subject import (
    UNNAMED,
    describe_whole_unit,
    format_rounded_down,
    format_rounded_up,
    has_later_releases,
)
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.renyi import Rdp
from lastiterate.markup import Markup, tag
from lastiterate.release.folder import HASHES, MODEL, WEIGHTS
from lastiterate.report import charts
from lastiterate.report.subject import ReportSource

# Data for the script of a report: positions of the slider, closed forms to compute again, hashes,
# downloads.

LONGEST = 300_000
"""Characters of a certificate that a page carries a copy of."""
NAMES = {HASHES[WEIGHTS]: WEIGHTS, HASHES[MODEL]: MODEL}


def data(subject: ReportSource) -> dict[str, Any]:
    """JSON-ready."""
    tests = tests_of(subject)
    hashes = {name: subject.body[entry] for entry, name in NAMES.items() if subject.body.get(entry)}
    return {
        "delta": subject.delta,
        "tests": [vars(test) for test in tests],
        "gaussian": list_closed_forms(subject),
        "hashes": hashes,
        "weights": subject.weights,
        "members": name_protected_group(subject.body["stated"]["unit"], many=True),
        "downloads": downloads(subject, tests),
    }


@lru_cache(maxsize=4)
def tests_of(subject: ReportSource) -> tuple[charts.Test, ...]:
    """What tests can reach, where something certifies."""
    if subject.curve is None:
        return ()
    return charts.tests(
        subject.curve, charts.strongest(subject.certified, subject.delta), subject.delta
    )


def downloads(subject: ReportSource, tests: tuple[charts.Test, ...]) -> dict[str, tuple[str, str]]:
    """Files that the page can save: name to text and type."""
    made: dict[str, tuple[str, str]] = {}
    if len(subject.text) <= LONGEST:
        made["certificate.json"] = subject.text, "application/json"
    made["references.bib"] = subject.certified.cite(), "text/plain"
    if tests:
        text = io.StringIO()
        rows = [
            ("false_positive_rate", "true_positive_rate_at_most", "true_positive_rate_at_least"),
            *((test.rate, test.at_most, test.at_least) for test in tests),
        ]
        csv.writer(text, lineterminator="\n").writerows(rows)
        made["trade-off.csv"] = text.getvalue(), "text/csv"
    return made


def list_closed_forms(subject: ReportSource) -> list[dict[str, Any]]:
    """What the browser computes again, and the numbers it must find."""
    stated, curve = subject.body["stated"], subject.curve
    forms: list[dict[str, Any]] = []
    if isinstance(curve, Gdp) and stated["mu"]:
        mu = stated["mu"]["value"]
        forms += [
            {
                "kind": "rate",
                "what": f"true-positive rate at {row['false_positive_rate']:g}",
                "mu": mu,
                "rate": row["false_positive_rate"],
                "stated": row["at_most"],
            }
            for row in stated["true_positive_rates"]
        ]
        forms.append(
            {"kind": "right", "what": "right guesses", "mu": mu, "stated": stated["right_guesses"]}
        )
    elif isinstance(curve, GdpMixture) and subject.body["epsilon"] is not None:
        forms.append(
            {
                "kind": "mixture",
                "what": f"delta at epsilon {subject.body['epsilon']:.4g}",
                "epsilon": curve.epsilon(subject.delta),
                "mus": curve.mus,
                "weights": curve.weights,
                "stated": subject.delta,
            }
        )
    elif isinstance(curve, Rdp):
        forms += _renyi(subject, curve)
    for row in stated["guarantees"] if stated["mu"] else list[Any]():
        whole = row["delta"] >= stated["mu"]["for_delta_of_at_least"] and row["epsilon"] is not None
        if whole:
            exact = stated["mu"]["exact"]
            forms.append(
                {
                    "kind": "epsilon" if exact else "above",
                    "what": f"epsilon at delta {row['delta']:g}",
                    "delta": row["delta"],
                    "mu": stated["mu"]["value"],
                    "stated": row["epsilon"],
                }
            )
    return [*forms, *_composition(subject)]


def _renyi(subject: ReportSource, curve: Rdp) -> list[dict[str, Any]]:
    """Epsilon from Renyi divergences: a line in the order, a table, or (exact noise) the steps
    themselves."""
    rows = [row for row in subject.body["stated"]["guarantees"] if row["epsilon"] is not None]
    if curve.orders:
        return (
            []
            if math.isfinite(curve.slope)
            else [
                {
                    "kind": "renyi-table",
                    "what": f"epsilon at delta {row['delta']:g}",
                    "delta": row["delta"],
                    "orders": curve.orders,
                    "values": curve.values,
                    "stated": row["epsilon"],
                }
                for row in rows[:2]
            ]
        )
    forms = [
        {
            "kind": "renyi",
            "what": f"epsilon at delta {row['delta']:g}",
            "delta": row["delta"],
            "slope": curve.slope,
            "stated": row["epsilon"],
        }
        for row in rows
    ]
    run = subject.run
    if (
        subject.certified.subject.composes_steps
        and run is not None
        and run.same_noise
        and not run.preprocessing
    ):
        how = subject.body["stated"]["contributions"]
        forms.append(
            {
                "kind": "renyi-steps",
                "what": f"epsilon of all steps together at delta {subject.delta:g}",
                "delta": subject.delta,
                "sensitivity": how["sensitivity"],
                "divisor": how["divisor"],
                "steps": run.steps,
                "std": subject.body["stated"]["noise"]["std_of_mean_gradient"],
                "blocks": run.blocks,
                "stated": subject.body["epsilon"],
            }
        )
    return forms


def not_computed(subject: ReportSource) -> str:
    """What the browser leaves to ``lastiterate verify``, in words."""
    kinds = {each["kind"] for each in list_closed_forms(subject)}
    theorem = subject.body.get("theorem")
    if "renyi-steps" in kinds or (theorem == "composition-gdp" and "composition" in kinds):
        return "Nothing of epsilon is left out: it was computed from noise, sensitivity and steps."
    derived = f"follows from the run by the theorem {theorem}" if theorem else "is proved"
    if "epsilon" in kinds:
        what = (
            f"how mu {derived}: this page takes mu as the certificate states it, and epsilon "
            "follows from mu"
        )
    elif "mixture" in kinds:
        what = (
            f"how the curve {derived}: this page takes the curve that was derived when it was "
            "made, and epsilon follows from that curve"
        )
    elif kinds & {"renyi", "renyi-table"}:
        what = "how the Renyi divergences follow from what is certified: this page starts from them"
    else:
        what = "epsilon itself, which is computed numerically" + (
            f" by the theorem {theorem}" if theorem else ""
        )
    return f"Not computed again here: {what}. lastiterate verify derives all of it."


def _composition(subject: ReportSource) -> list[dict[str, Any]]:
    """Composition of equal Gaussian steps, where nothing else is charged."""
    run, stated = subject.run, subject.body["stated"]
    verdicts = subject.body.get("verdicts", [])
    charged = next(
        (row["epsilon"] for row in verdicts if row["theorem"] == "composition-gdp"), None
    )
    if run is None or charged is None or run.preprocessing or not run.same_noise:
        return []
    if has_later_releases(run):
        return []
    how = stated["contributions"]
    return [
        {
            "kind": "composition",
            "what": f"composition of all steps, epsilon at delta {subject.delta:g}",
            "sensitivity": how["sensitivity"],
            "divisor": how["divisor"],
            "std": stated["noise"]["std_of_mean_gradient"],
            "steps": run.steps,
            "blocks": run.blocks,
            "rows": run.rows_per_unit,
            "delta": subject.delta,
            "stated": charged,
        }
    ]


# Frames of the parts of a report.


def section(title: str, content: object, **more: object) -> Markup:
    slug = title.split(".")[0]
    return tag(
        "section",
        tag("h2", title, id=f"part-{slug}"),
        content,
        aria_labelledby=f"part-{slug}",
        **more,
    )


def make_table(rows: list[tuple[str, Any]], *, class_: str = "facts") -> Markup:
    return tag(
        "table",
        tag(
            "tbody",
            [tag("tr", tag("th", label, scope="row"), tag("td", value)) for label, value in rows],
        ),
        class_=class_,
    )


def fold(title: str, content: object) -> Markup:
    """What most readers do not need: closed until it is asked for."""
    return tag("details", tag("summary", title), content)


def bullets(texts: list[str]) -> Markup:
    return tag("ul", [tag("li", text) for text in texts])


def banner(kind: str, title: str, content: object) -> Markup:
    return tag(
        "section",
        tag("h2", title),
        content,
        class_=f"banner {kind}",
        role="alert" if kind == "bad" else "note",
    )


# Sentences of a report that people read before any formula.

LADDER = {
    "ENFORCED": "made true by what the run itself does: clipping, projecting, drawing batches",
    "PROVED": "follows from other facts by a cited lemma",
    "PAID": "measured on the private data by a mechanism that epsilon pays for",
    "TESTED": "survived a search for a counterexample; not proved",
    "ASSUMED": "stated by somebody; nothing checks it",
}
"""The ladder of evidence, as a report shows it, and what each rung means."""
QUESTIONS = {
    "zero-out": "whether your record was used",
    "replace-one": "which of two versions of your record was used",
    "add-remove": "whether your record was among the data",
    "forgotten": "whether the removed record had ever been used",
}


def round_up_hundredths(value: float) -> int:
    """How often of 100 times, rounded up."""
    return min(100, math.ceil(100 * value - 1e-9))


def odds(right: float, adjacency: str, rows: int) -> str:
    """The guarantee in odds."""
    question = (
        QUESTIONS[adjacency]
        if rows == 1
        else QUESTIONS[adjacency]
        .replace("record", f"records (up to {rows})")
        .replace("was", "were")
    )
    return (
        f"Someone who guesses {question}, knowing everything else, is right at most "
        f"{round_up_hundredths(right)} of 100 "
        "times instead of 50."
    )


def describe_releases_together(subject: ReportSource) -> str:
    """Return what the odds of one model leave out: the other releases of its data."""
    quote = subject.ledger
    if quote is None or quote.problems:
        return "This is for this model alone: other releases about the same people add up."
    if quote.releases == 1:
        return (
            f"This is for this model alone, the only release charged to {quote.dataset} so far: "
            "other releases about the same people add up."
        )
    same = quote.adjacency == subject.body["adjacency"]
    guess = "such a guess" if same else f"a guess {QUESTIONS[quote.adjacency]}"
    row = " for a single row" if quote.unproven else ""
    unknown = f"; no total is known for a {quote.unit}" if quote.unproven else ""
    return (
        f"This is for this model alone. For all {quote.releases} releases of {quote.dataset} "
        f"together, the budget{row} is {quote.total} ({quote.adjacency}), and {guess} is right at "
        f"most {round_up_hundredths(quote.right)} of 100 times{unknown}."
    )


def name_protected_group(unit: dict[str, Any], *, many: bool = False) -> str:
    """Return what the guarantee protects in two words: a record, or a unit with its name."""
    if is_record(unit):
        return "records" if many else "one record"
    named = f" ({unit['name']})" if unit.get("name", UNNAMED) != UNNAMED else ""
    return f"{'units' if many else 'one unit'}{named}"


def is_record(unit: dict[str, Any]) -> bool:
    """Whether the guarantee is about records, one or those removed, and not about a unit's rows."""
    return "name" not in unit and (unit["rows"] == 1 or unit["words"].startswith("the "))


def counts_rows(subject: ReportSource) -> bool:
    """Whether rows are the records of a unit of several: their number is public then."""
    return subject.run is not None and subject.run.rows_per_unit > 1


def name_counted(subject: ReportSource) -> str:
    """Return what n counts: records, or the units that are records."""
    unit = subject.body["stated"]["unit"]
    return "records" if counts_rows(subject) else name_protected_group(unit, many=True)


def describe_versions(subject: ReportSource) -> str:
    """Return how two versions of the protected data differ, and what both share."""
    same = ", with as many rows in both" if counts_rows(subject) else ""
    return f"{name_versions(subject.body['stated']['unit'])}{same}"


def name_versions(unit: dict[str, Any]) -> str:
    """Return what distinguishes two versions: a record, or the rows of a unit."""
    if is_record(unit):
        return "one record"
    return f"one {unit.get('name', UNNAMED)}'s rows (at most {unit['rows']})"


def describe_neighbours(subject: ReportSource) -> str:
    """Return the neighbours in words, which name the unit where it is not a record."""
    stated, run = subject.body["stated"], subject.run
    unit, words = stated["unit"], stated["neighbours"]
    if is_record(unit):
        return words
    name = unit.get("name", UNNAMED)
    counts_units = run is not None and not counts_rows(subject)
    return words.replace(
        "record" if counts_units else "one record", name if counts_units else f"one {name}"
    )


def describe_audit_gaps(subject: ReportSource) -> list[str]:
    """Return what an audit did not do: parts of the run, and units of several rows."""
    audit, unit = subject.audit, subject.body["stated"]["unit"]
    if audit is None:
        return []
    skipped, missing = audit.get("not_executed"), audit.get("not_attacked")
    several = unit["rows"] > 1 and not is_record(unit)
    if missing is None:  # of a version that did not write it
        single = skipped is None or any(text.startswith("rows_per_") for text in skipped)
        missing = [describe_whole_unit()] if single and several else []
    if several:
        missing = [
            describe_whole_unit(unit) if text == describe_whole_unit() else text for text in missing
        ]
    executed = list[str]()
    if audit.get("upper_whole") is not None and audit.get("upper") is not None:
        bound = f"epsilon {format_rounded_up(audit['upper'])} at delta {audit['delta']:g}"
        executed = [f"certified for what was executed: {bound}"]
    return [
        *executed,
        *(f"not executed: {text}" for text in skipped or ()),
        *(f"not attacked: {text}" for text in missing),
    ]


WEAKEST = {
    "ENFORCED": "the run itself makes every fact true that it needs: by clipping, projecting, "
    "drawing batches",
    "PROVED": "every fact that it needs is proved, or made true by the run itself",
    "PAID": "a fact that it needs was measured on the private data, and epsilon pays for that",
    "TESTED": "a fact that it needs was tested, not proved: no counterexample was found",
    "ASSUMED": "a fact that it needs is somebody's statement, and nothing checks it",
}
"""What a guarantee rests on, by its weakest fact."""


def number(
    path: str, value: float | None, text: str | None = None, *, down: bool = False
) -> Markup:
    """A number of the certificate: as it is stored, where it stands there, and as it is shown."""
    if value is None:
        return tag("data", "infinite", data_path=path, value="null")
    shown = (
        text
        if text is not None
        else format_rounded_down(value)
        if down
        else format_rounded_up(value)
    )
    return tag("data", shown, data_path=path, value=repr(value))


def share(path: str, value: float) -> Markup:
    """A probability in percent, rounded up."""
    return tag("data", f"{percent(value)} %", data_path=path, value=repr(value))


def percent(value: float) -> str:
    """A probability in percent without its sign, four digits, rounded up."""
    return format_rounded_up(min(value * 100, 100.0)) if value > 0 else "0"


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
