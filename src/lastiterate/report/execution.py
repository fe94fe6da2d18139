"""How the run makes the guarantee hold, the releaser's statement, what the page checks, files to save."""

from __future__ import annotations

from typing import Any

from lastiterate.features.map_table import described, maps_from
from lastiterate.markup import Markup, tag
from lastiterate.report import browser
from lastiterate.report.frames import bullets, listed, section
from lastiterate.report.subject import Subject
from lastiterate.report.words import number
from lastiterate.run.strict_json import is_list, is_object


def execution(subject: Subject) -> Markup | str:
    """How the run makes the guarantee hold."""
    stated = subject.body["stated"]
    if "contributions" not in stated:
        return ""
    how, batches, noise = stated["contributions"], stated["batches"], stated["noise"]

    def shown(path: str, value: float | None, none: str) -> object:
        return none if value is None else number(f"stated.{path}", value, f"{value:.6g}")

    def counted(path: str, value: int) -> object:
        return number(f"stated.{path}", value, str(value))

    rows: list[tuple[str, Any]] = [
        ("records and steps", [counted("records", stated["records"]), " records, ", counted("steps", stated["steps"]),
                               " steps, released: ", stated["release"]]),
        ("clipping norm", shown("contributions.clipping_norm", how["clipping_norm"],
                                "none: the loss bounds gradients")),
        ("sensitivity of a sum", shown("contributions.sensitivity", how["sensitivity"], "unknown")),
        ("divisor", [shown("contributions.divisor", how["divisor"], "-"), f": {how['divisor_is']}"]),
        ("batches", [f"{batches['kind']}: {batches['words']}; ", counted("batches.blocks", batches["blocks"]),
                     " in a pass, of expected size ", shown("batches.expected_size", batches["expected_size"], "-")]),
        ("noise", [f"{noise['kind']}, ", "the same at every step, " if noise["same_every_step"] else
                   "the largest of all steps, ", "standard deviation of the mean gradient ",
                   shown("noise.std_of_mean_gradient", noise["std_of_mean_gradient"], "-"), ", multiplier ",
                   shown("noise.multiplier", noise["multiplier"], "-")]),
    ]
    if subject.software:
        rows.append(("recorded by the process that trained", tag("ul", [tag("li", f"{name}: {text}")
                                                                        for name, text in subject.software.items()])))
    return tag("section", tag("h3", "How the run was described"), listed(rows), class_="screen")


def word(subject: Subject) -> Markup | str:
    """The releaser's statement, marked as such."""
    schema = subject.schema
    parts: list[Markup] = []
    for name, value in subject.statement.items():
        parts += [tag("h3", name.replace("_", " ")), _said(value)]
    if schema is not None:
        parts += [tag("h3", "public facts about the data's columns (schema)"), tag(
            "p", f"source: {schema.get('source') or 'not stated'}"), tag(
            "p", f"records become rows by: {described(maps_from(schema.get('features', ())))}"), _columns(schema)]
    return tag("section", tag("h3", "The releaser's statement: not derived, not checked"), parts,
               class_="word screen") if parts else ""


def ledger(subject: Subject) -> Markup | str:
    """The line of a ledger that the model was charged to, read when the report was made."""
    quote = subject.ledger
    if quote is None:
        return ""
    rows: list[tuple[str, Any]] = [
        ("data set", quote.dataset), ("protected unit", quote.unit),
        ("line", f"number {quote.number} of {quote.releases} that count, {quote.day}, {quote.adjacency}"),
        ("all releases on it", quote.together),
        *((f"left of the {name}", f"{100 * left:.4g} %") for name, left in quote.left),
        ("recomputed", bullets(list(quote.problems)) if quote.problems else
         "every charge covers its curve, and no budget is exceeded"),
    ]
    return tag("section", tag("h3", "The ledger that it was charged to, when this page was made"), listed(rows),
               tag("p", "Its line has the hash of these weights and of this run. A ledger is a file that is not "
                   "signed.", class_="soft"), class_="banner bad" if quote.problems else "ledger")


def _said(value: object) -> Markup:
    if is_object(value):
        return listed([(str(key), _said(inner)) for key, inner in value.items()])
    if is_list(value):
        return tag("ul", [tag("li", _said(inner)) for inner in value])
    return tag("span", value)


def _columns(schema: dict[str, Any]) -> Markup:
    rows = [(name, ", ".join(f"{key}: {inner}" for key, inner in entry.items()) if is_object(entry) else entry)
            for name, entry in list(schema.get("columns", {}).items())[:200]]
    classes = schema.get("classes")
    return listed(
        [*rows, *([(f"classes of {schema.get('target')}", ", ".join(map(str, classes)))] if classes else [])]
    )


def check(subject: Subject) -> Markup:
    """Weights are hashed here, closed forms are computed again."""
    parts: list[Markup] = []
    if subject.weights:
        parts += [
            tag(
                "p",
                "Drop ",
                tag("code", subject.weights),
                " here, or choose it; it is hashed on this machine and goes nowhere.",
            ),
            tag(
                "div",
                tag("label", "The file of the weights: ", for_="pick"),
                tag("input", type="file", id="pick"),
                id="drop",
                class_="noprint",
            ),
            tag("output", "", id="drop-said", for_="pick", aria_live="polite"),
            tag("p", "certified SHA-256: ", tag("code", subject.body["weights_sha256"])),
        ]
    parts += [
        tag("h3", "Computed again by this page"),
        tag("p", tag("output", "The browser runs no script: nothing was computed again.", id="recomputed-verdict")),
        tag(
            "table",
            tag(
                "thead",
                tag("tr", [tag("th", name, scope="col") for name in ("number", "certificate", "this page", "")]),
            ),
            tag("tbody", "", id="recomputed"),
        ),
        tag("p", browser.not_computed(subject), id="not-recomputed"),
    ]
    return section("7. Check it here", parts, class_="screen")


def downloads() -> Markup:
    """Files to save."""
    names = ("certificate.json", "references.bib", "trade-off.csv")
    return section(
        "8. Downloads",
        tag("p", [tag("button", name, type="button", data_download=name) for name in names]),
        class_="noprint",
    )
