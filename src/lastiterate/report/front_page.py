"""The first page: what an officer asks of a release, each question in a row, "not stated" where nobody answered."""

from __future__ import annotations

from lastiterate.accounting.budgets import LARGE_EPSILON
from lastiterate.markup import Markup, tag
from lastiterate.release.software import WRITTEN
from lastiterate.report.deployments import DEPLOYMENTS
from lastiterate.report.frames import bullets, listed
from lastiterate.report.subject import Subject
from lastiterate.report.words import LADDER, QUESTIONS, number, odds, share
from lastiterate.run.adjacency import ADJACENCIES, records_moved

UNSTATED = tag("em", "not stated", class_="unstated")
"""Visible, so that nobody takes silence for an answer."""


def answers(subject: Subject) -> list[Markup]:
    """The guarantee in a sentence and a number, and a row for each question."""
    body, stated = subject.body, subject.body["stated"]
    parts: list[Markup] = []
    if stated["right_guesses"] is not None:
        sentence = odds(stated["right_guesses"], body["adjacency"], stated["unit"]["rows"])
        parts.append(tag("p", tag("data", sentence, data_path="stated.right_guesses",
                                  value=repr(stated["right_guesses"])), class_="lead"))
    parts.append(tag("p", "epsilon ", number("epsilon", body["epsilon"]), " at delta ",
                     number("delta", body["delta"], f"{body['delta']:g}"), f" ({body['adjacency']})", class_="big"))
    rows: list[tuple[str, object]] = [
        ("Released", _released(subject)), ("Trained by", _said(subject, "trained_by")), ("When", _day(subject)),
        ("What for", _said(subject, "purpose")), ("Protects", _unit(subject)), ("From", _from(subject)),
        ("What epsilon means", _meaning(subject)), ("Accuracy", _accuracy(subject)),
        ("Charged before", _charged(subject)), ("Rests on", _rests(subject)),
        ("Must stay secret", bullets(stated["secret"])), ("Signed", _signed(subject))]
    return [*parts, listed(rows, class_="facts")]


def beside(subject: Subject) -> Markup:
    """This release among those that others published."""
    body = subject.body
    rows = [(one.high, (one.name, f"{one.low:g}" if one.low == one.high else f"{one.low:g} to {one.high:g}",
                        one.delta or "not in the source", one.unit, one.source)) for one in DEPLOYMENTS]
    cells = [(high, tag("tr", tag("th", cell[0], scope="row"), [tag("td", text) for text in cell[1:]]))
             for high, cell in rows]
    if body["epsilon"] is not None and body["adjacency"] in ADJACENCIES:
        unit = body["stated"]["unit"]
        mine = tag("tr", tag("th", "this release", scope="row"), tag("td", number("epsilon", body["epsilon"])),
                   tag("td", number("delta", body["delta"], f"{body['delta']:g}")),
                   tag("td", "one record" if unit["rows"] == 1 and "name" not in unit else "one unit"),
                   tag("td", "this certificate"), class_="mine")
        cells.append((body["epsilon"], mine))
    head = tag("tr", [tag("th", name, scope="col") for name in ("release", "epsilon", "delta", "protects", "source")])
    return tag("table", tag("caption", "Beside published deployments. Units and neighbours differ: a smaller number is "
                            "not by itself a stronger promise"), tag("thead", head),
               tag("tbody", [row for _, row in sorted(cells, key=lambda pair: pair[0])]), class_="beside")


def _said(subject: Subject, name: str) -> object:
    text = subject.statement.get(name)
    return UNSTATED if not text else [str(text), tag("span", " (the releaser's statement)", class_="soft")]


def _released(subject: Subject) -> str:
    run = subject.run
    if subject.described:
        return "nothing yet: a run that is described"
    what = "the parameters after the last step, and nothing in between" if run is not None and run.release == "last" \
        else "the parameters after every step" if run is not None else "one set of parameters"
    return what if run is None else f"{what}; {run.steps} steps on {run.n} records"


def _day(subject: Subject) -> object:
    day = subject.software.get(WRITTEN)
    return UNSTATED if day is None else [f"certificate written on {day}", tag(
        "span", " (by the clock of that machine)", class_="soft")]


def _unit(subject: Subject) -> object:
    said = subject.statement.get("unit")
    words = subject.body["stated"]["unit"]["words"]
    return [words, f"; {subject.body['adjacency']}: {subject.body['stated']['neighbours']}",
            tag("span", f" A unit is {said} (the releaser's statement).", class_="soft") if said else ""]


def _from(subject: Subject) -> str:
    question = QUESTIONS[subject.body["adjacency"]].replace("your", "a")
    return (f"anyone who sees what was released and wants to know {question}, even knowing the code, all public "
            "numbers and every other record. Not covered: what the model says about people in general, and leaks of "
            "the data themselves")


def _meaning(subject: Subject) -> object:
    body, stated = subject.body, subject.body["stated"]
    if body["epsilon"] is None:
        return "nothing is guaranteed"
    parts: list[object] = []
    for i, row in enumerate(stated["true_positive_rates"]):
        if row["false_positive_rate"] == 0.01:
            parts.append(tag("p", "A test that flags 1 % of unused records finds at most ",
                             share(f"stated.true_positive_rates.{i}.at_most", row["at_most"]), " of the used ones."))
    if body["epsilon_replace_one"] is not None and records_moved(body["adjacency"]) == 1:
        parts.append(tag("p", "Which of two versions of a record was used (replace-one): epsilon ",
                         number("epsilon_replace_one", body["epsilon_replace_one"]), "."))
    if body["epsilon"] > LARGE_EPSILON:
        parts.append(tag("p", f"Epsilon above {LARGE_EPSILON:g} promises next to nothing.", class_="no"))
    return parts


def _accuracy(subject: Subject) -> object:
    lines = [tag("p", str(each)) for each in subject.accuracies]
    said = subject.statement.get("accuracy")
    if said:
        lines.append(tag("p", str(said), tag("span", " (the releaser's statement)", class_="soft")))
    return lines or UNSTATED


def _charged(subject: Subject) -> object:
    line = subject.ledger
    if line is not None:
        if line.problems:
            return [tag("strong", "the ledger does not hold: ", line.problems[0]), "; nothing that it says counts"]
        quoted = (f"ledger of {line.dataset} ({line.unit}): this is release {line.number} of {line.releases} that "
                  f"count, {line.together}")
        return [quoted, "; beside it the releaser states ", "; ".join(said)] if (said := _stated(subject)) else quoted
    if said := _stated(subject):
        return ["no ledger was quoted; the releaser states ", "; ".join(said)]
    return [UNSTATED, ": no ledger was quoted, and other releases of the same data add up"]


def _stated(subject: Subject) -> list[str]:
    """What the releaser says was paid for, and was not."""
    return [f"{kind}: {'; '.join(subject.statement[name])}" for name, kind in (
        ("charged", "paid for"), ("not_charged", "not paid for")) if subject.statement.get(name)]


def _rests(subject: Subject) -> str:
    rests = subject.body["stated"]["rests_on"]
    kinds = [rung for rung in LADDER if any(fact["evidence"] == rung for fact in rests)]
    weakest = kinds[-1] if kinds else None
    theorem = subject.body.get("theorem")
    said = f"the theorem {theorem}" if theorem else "a proof of its own"
    return said if weakest is None else f"{said}; its weakest fact is {weakest.lower()}: {LADDER[weakest]}"


def _signed(subject: Subject) -> str:
    if subject.weights is None:
        return "no: a single file has no signature"
    if subject.signed:
        return ("a signature lies beside this page; lastiterate verify --key says whether it covers this page and "
                "whose it is")
    return ("not when this page was made; a later signature covers this page too, and lastiterate verify --key says "
            "whose it is")
