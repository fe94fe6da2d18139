"""The parts of a report, in the order in which they are read."""

from __future__ import annotations

from typing import Any

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.explain import rounded_down, rounded_up
from lastiterate.markup import Markup, tag
from lastiterate.report import browser, charts, series
from lastiterate.report.changes import opening
from lastiterate.report.charts import Axis, Series
from lastiterate.report.subject import Subject
from lastiterate.report.words import LADDER, number, odds, share
from lastiterate.run.adjacency import records_moved
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Broken


def every(subject: Subject) -> list[Markup | str]:
    """All parts, for a certificate that holds."""
    return [*banners(subject), summary(subject), tradeoff(subject), steps(subject), verdicts(subject),
            evidence(subject), secrets(subject), execution(subject), word(subject), check(subject), downloads()]


def refused(subject: Subject) -> list[Markup]:
    """The only part for a certificate that does not hold: nothing else of it is worth reading."""
    claimed, delta = subject.body.get("epsilon"), subject.body.get("delta")
    return [_banner("bad", "This release does NOT verify: do not rely on it", [
        tag("ul", [tag("li", problem) for problem in subject.checked.problems]),
        tag("p", f"Its files claim epsilon {claimed} at delta {delta}. Nothing supports that claim.")])]


def _banner(kind: str, title: str, content: object) -> Markup:
    return tag("section", tag("h2", title), content, class_=f"banner {kind}", role="alert" if kind == "bad" else "note")


def banners(subject: Subject) -> list[Markup]:
    """What a reader must see first."""
    if subject.refuted:
        assert subject.audit is not None
        return [_banner("bad", "REFUTED: an audit contradicts this certificate", tag(
            "p", f"The attack {subject.audit['attack']} distinguished the two data sets more often than the "
                 f"certificate allows (this is wrong with probability {subject.audit['failure']:g} at most). Do not "
                 "release this model."))]
    if subject.body["epsilon"] is None:
        return [
            _banner(
                "bad", "Nothing certifies this run", tag("p", "No theorem gives a finite epsilon; section 4 says why.")
            )
        ]
    if subject.checked.condition or (isinstance(subject.certificate, Certificate) and _condition(subject)):
        return [_banner("warn", "Conditional: it rests on somebody's word", tag(
            "p", subject.checked.condition or _condition(subject)))]
    if subject.described:
        return [
            _banner(
                "good",
                "A run that is described",
                tag(
                    "p",
                    "The numbers follow from the description; they hold for whoever executes it exactly as it stands.",
                ),
            )
        ]
    return [
        _banner(
            "good",
            "Verified",
            tag(
                "p",
                "Everything was derived again: numbers, texts and files agree with what "
                "was certified. It is not signed here: lastiterate verify --key checks a "
                "signature, if there is one.",
            ),
        )
    ]


def _condition(subject: Subject) -> str:
    from lastiterate.accounting.explain import conditional_on

    return conditional_on(subject.certificate)


def summary(subject: Subject) -> Markup:
    body, stated = subject.body, subject.body["stated"]
    parts: list[Markup] = []
    if stated["right_guesses"] is not None:
        sentence = odds(stated["right_guesses"], body["adjacency"], stated["unit"]["rows"])
        parts.append(tag("p", tag("data", sentence, data_path="stated.right_guesses",
                                  value=repr(stated["right_guesses"])), class_="lead"))
    parts.append(tag("p", "epsilon ", number("epsilon", body["epsilon"]), " at delta ",
                     number("delta", body["delta"], f"{body['delta']:g}"), f" ({body['adjacency']})", class_="big"))
    rows: list[tuple[str, object]] = [("protected unit", stated["unit"]["words"]),
                                      ("neighbours", f"{body['adjacency']}: {stated['neighbours']}")]
    if body["epsilon_replace_one"] is not None and records_moved(body["adjacency"]) == 1:
        rows.append(("under replace-one", ["epsilon ", number("epsilon_replace_one", body["epsilon_replace_one"])]))
    if stated["mu"] is not None:
        least = stated["mu"]["for_delta_of_at_least"]
        rows.append(
            (
                "mu (Gaussian DP)",
                [
                    number("stated.mu.value", stated["mu"]["value"]),
                    " exactly"
                    if stated["mu"]["exact"]
                    else f": the closest Gaussian curve above, for delta of at least {least:g}",
                ],
            )
        )
    if body.get("theorem"):
        rows.append(("certified by", [f"{body['theorem']}: {TABLE[body['theorem']].citation}"]))
    table = tag("table", tag("caption", "epsilon at several deltas, rounded up"),
                tag("thead", tag("tr", tag("th", "delta", scope="col", class_="num"), tag("th", "epsilon", scope="col",
                                                                                         class_="num"))),
                tag("tbody", [tag("tr", tag("td", number(f"stated.guarantees.{i}.delta", row["delta"],
                                                         f"{row['delta']:g}"), class_="num"),
                                  tag("td", number(f"stated.guarantees.{i}.epsilon", row["epsilon"]), class_="num"))
                              for i, row in enumerate(stated["guarantees"])]))
    return _section("1. The guarantee", [*parts, _listed(rows), table])


def _section(title: str, content: object, **more: object) -> Markup:
    slug = title.split(".")[0]
    return tag("section", tag("h2", title, id=f"part-{slug}"), content, aria_labelledby=f"part-{slug}", **more)


def _listed(rows: list[tuple[str, Any]]) -> Markup:
    return tag("table", tag("tbody", [tag("tr", tag("th", label, scope="row"), tag("td", value))
                                      for label, value in rows]))


def tradeoff(subject: Subject, *, moving: bool = True) -> Markup:
    """What a test that looks at the release can find out. ``moving``: with the slider, and what an audit found."""
    title = "2. What a test can find out"
    found, stated = browser.tests_of(subject), subject.body["stated"]
    if not found:
        return _section(title, tag("p", "Nothing is certified, so nothing is excluded."))
    upper = ((0.0, found[0].at_most), *((test.rate, test.at_most) for test in found))
    lines = [Series("excluded above: certified bound", "certified", upper, shade="above"),
             Series("chance", "chance", ((0.0, 0.0), (1.0, 1.0)))]
    reached = [(test.rate, test.at_least) for test in found if test.at_least is not None]
    if reached:
        lines.insert(1, Series("reached by some loss of the class (exact witness)", "lower", tuple(reached)))
    audited = [(rate["fpr_upper"], 1 - rate["fnr_upper"]) for rate in (subject.audit or {}).get("rates", [])]
    if audited:
        lines.append(Series("audit, with its confidence", "audit", tuple(audited), marks=True))
    picture = charts.chart(
        "True-positive rate over false-positive rate", "The line of the certified bound: no test lies above it. The "
        "table below has the numbers.", Axis("false-positive rate (share of unused records that a test flags)", 0, 1),
        Axis("true-positive rate (share of used records)", 0, 1), lines, name="tradeoff")
    slider = tag("p", tag("label", "False-positive rate: ", for_="rate"), tag(
        "input", type="range", id="rate", min=0, max=len(found) - 1, step=1, value=len(found) // 2), class_="noprint")
    said = tag("output", "", id="rate-said", for_="rate", aria_live="polite")
    rows = [
        tag(
            "tr",
            tag(
                "td",
                number(
                    f"stated.true_positive_rates.{i}.false_positive_rate",
                    row["false_positive_rate"],
                    f"{100 * row['false_positive_rate']:g} %",
                ),
                class_="num",
            ),
            tag("td", share(f"stated.true_positive_rates.{i}.at_most", row["at_most"]), class_="num"),
        )
        for i, row in enumerate(stated["true_positive_rates"])
    ]
    table = tag("table", tag("caption", "No test of whether a record was used does better, whatever it knows"),
                tag("thead", tag("tr", tag("th", "false-positive rate", scope="col", class_="num"),
                                 tag("th", "true-positive rate at most", scope="col", class_="num"))),
                tag("tbody", rows))
    return _section(title, [picture, slider, tag("p", said), table, _audited(subject)] if moving else [picture, table])


def _audited(subject: Subject) -> Markup:
    audit = subject.audit
    if audit is None:
        return tag("p", "No audit was given for this report.", class_="soft")
    return tag(
        "p",
        f"Audit ({audit['attack']}, {audit['trials']:g} models per data set): {audit['verdict']}. It showed "
        f"epsilon of at least {rounded_down(audit['lower'])} at delta {audit['delta']:g}, and could have "
        f"shown {rounded_up(audit['ceiling'])}; wrong with probability at most {audit['failure']:g}. The "
        "audit's numbers are the word of whoever ran it.",
        class_="word",
    )


STYLES = {"last iterate": "last iterate", "sampling": "sampling", "composition": "composition", "lower bound": "lower"}


def steps(subject: Subject) -> Markup:
    """Epsilon over steps."""
    title = "3. Epsilon over steps"
    if not isinstance(subject.certificate, Certificate):
        return _section(title, tag("p", "This release has one guarantee as a whole; it is not accounted step by step."))
    lines = series.over_steps(subject.certificate, subject.delta)
    if not any(line.kind == "upper" for line in lines):
        return _section(title, tag("p", "Nothing certifies this run at any number of steps."))
    values = [epsilon for line in lines for epsilon in line.epsilons if epsilon > 0]
    run = subject.certificate.run
    x, y = (
        Axis("steps", 1, max(2, run.steps), log=True),
        Axis(f"epsilon at delta = {subject.delta:g}", min(values) / 1.3, max(values) * 1.3, log=True),
    )
    drawn = [Series(line.name if line.kind == "upper" else "some loss of the class leaks this much", STYLES[line.name],
                    tuple(zip(map(float, line.steps), line.epsilons, strict=True)),
                    shade="below" if line.kind == "lower" else None) for line in lines]
    picture = charts.chart("Epsilon over the number of steps", "Upper bounds of composition, sampling and the last "
                           "iterate, above the lower bound; the run stops at its last step.", x, y, drawn, name="steps",
                           stop=(run.steps, f"this run: {run.steps}"))
    counts = sorted({count for line in lines for count in line.steps})
    cells = [tag("tr", tag("th", f"{count}", scope="row", class_="num"), [
        tag("td", _at(line, count), class_="num") for line in lines]) for count in counts]
    table = tag("details", tag("summary", "The numbers of this picture"), tag(
        "table", tag("thead", tag("tr", tag("th", "steps", scope="col", class_="num"), [
            tag("th", line.name, scope="col", class_="num") for line in lines])), tag("tbody", cells)))
    return _section(title, [picture, table])


def _at(line: series.Line, count: int) -> str:
    found = dict(zip(line.steps, line.epsilons, strict=True)).get(count)
    return "-" if found is None else rounded_down(found) if line.kind == "lower" else rounded_up(found)


def verdicts(subject: Subject) -> Markup:
    """Every theorem: what it says, or why it fails and what would open it."""
    title = "4. Every theorem's verdict"
    listed = subject.body.get("verdicts")
    if listed is None or subject.run is None:
        return _section(title, tag("p", "This kind of release has a proof of its own; see the caveats."))
    rows = [
        tag(
            "tr",
            tag("th", row["theorem"], scope="row"),
            tag("td", row["kind"]),
            tag("td", _verdict_number(i, row), class_="num"),
            tag("td", _verdict_words(subject, row)),
        )
        for i, row in sorted(enumerate(listed), key=lambda pair: (not pair[1]["applies"], pair[1]["epsilon"] or 0.0))
    ]
    return _section(
        title,
        tag(
            "table",
            tag(
                "caption",
                "Upper bounds can certify; lower bounds say what no analysis can beat; claimed ones are "
                "unproved or refuted, and never certify",
            ),
            tag(
                "thead",
                tag(
                    "tr",
                    [
                        tag("th", name, scope="col")
                        for name in ("theorem", "kind", "epsilon", "why, and what would open it")
                    ],
                ),
            ),
            tag("tbody", rows),
            class_="verdicts",
        ),
    )


def _verdict_number(i: int, row: dict[str, Any]) -> object:
    if not row["applies"]:
        return "-"
    shown = number(f"verdicts.{i}.epsilon", row["epsilon"], down=row["kind"] == "lower")
    return ["at least ", shown] if row["kind"] == "lower" else shown


def _verdict_words(subject: Subject, row: dict[str, Any]) -> object:
    if row["applies"]:
        return f"applies, on {row['evidence'].lower()} facts"
    theorem, run = TABLE[row["theorem"]], subject.run
    assert run is not None
    change = opening(theorem, run)
    broken = sum(isinstance(one.check(run), Broken) for one in theorem.assumptions)
    opened = f"The one change that would open it: {change}." if change else \
        f"No single change that was tried opens it ({broken} conditions fail)."
    return [tag("ul", [tag("li", reason) for reason in row["reasons"]]), opened]


def evidence(subject: Subject) -> Markup:
    """What the guarantee rests on, the strongest evidence first."""
    rests = subject.body["stated"]["rests_on"]
    entries: list[Markup] = []
    for rung, meaning in LADDER.items():
        facts = [(i, fact) for i, fact in enumerate(rests) if fact["evidence"] == rung]
        listed = [tag("li", f"{fact['what']}: ", number(f"stated.rests_on.{i}.value", fact["value"],
                                                       f"{fact['value']:.6g}" if fact["value"] is not None else None))
                  for i, fact in facts]
        entries.append(tag("li", tag("strong", rung.lower()), f" ({meaning}): ",
                           tag("ul", listed) if listed else "nothing", class_=rung.lower()))
    return _section("5. What it rests on", tag("ul", entries, class_="ladder"))


def secrets(subject: Subject) -> Markup:
    """What must stay secret, and what no theorem covers."""
    stated = subject.body["stated"]
    return _section("6. What must stay secret, and what is not covered", [
        tag("h3", "Must stay secret"), _bullets(stated["secret"]), tag("h3", "Charged"), _bullets(stated["charged"]),
        tag("h3", "Not charged"), _bullets(stated["not_charged"]), tag("h3", "Caveats"),
        _bullets(subject.body["caveats"])])


def _bullets(texts: list[str]) -> Markup:
    return tag("ul", [tag("li", text) for text in texts])


def execution(subject: Subject) -> Markup | str:
    """How the run makes the guarantee hold."""
    stated = subject.body["stated"]
    if "contributions" not in stated:
        return ""
    how, batches, noise = stated["contributions"], stated["batches"], stated["noise"]

    def shown(path: str, value: float | None, none: str) -> object:
        return none if value is None else number(f"stated.{path}", value, f"{value:.6g}")

    rows: list[tuple[str, Any]] = [
        (
            "records and steps",
            [
                number("stated.records", stated["records"], str(stated["records"])),
                " records, ",
                number("stated.steps", stated["steps"], str(stated["steps"])),
                " steps, released: ",
                stated["release"],
            ],
        ),
        (
            "clipping norm",
            shown("contributions.clipping_norm", how["clipping_norm"], "none: the loss bounds gradients"),
        ),
        ("sensitivity of a sum", shown("contributions.sensitivity", how["sensitivity"], "unknown")),
        ("divisor", [shown("contributions.divisor", how["divisor"], "-"), f": {how['divisor_is']}"]),
        (
            "batches",
            [
                f"{batches['kind']}: {batches['words']}; ",
                number("stated.batches.blocks", batches["blocks"], str(batches["blocks"])),
                " in a pass, of expected size ",
                shown("batches.expected_size", batches["expected_size"], "-"),
            ],
        ),
        (
            "noise",
            [
                f"{noise['kind']}, ",
                "the same at every step, " if noise["same_every_step"] else "at the first step, ",
                "standard deviation of the mean gradient ",
                shown("noise.std_of_mean_gradient", noise["std_of_mean_gradient"], "-"),
                ", multiplier ",
                shown("noise.multiplier", noise["multiplier"], "-"),
            ],
        ),
    ]
    software = subject.body.get("software")
    if software:
        rows.append(("recorded by the process that trained", tag("ul", [tag("li", f"{name}: {text}")
                                                                        for name, text in software.items()])))
    return tag("section", tag("h3", "How the run was described"), _listed(rows))


def word(subject: Subject) -> Markup | str:
    """The releaser's word, marked as such."""
    said, schema = subject.body.get("word"), subject.schema
    parts: list[Markup] = []
    for name, value in (said or {}).items():
        parts += [tag("h3", name.replace("_", " ")), _said(value)]
    if schema is not None:
        parts += [tag("h3", "public facts about the data's columns (schema)"), tag(
            "p", f"source: {schema.get('source') or 'not stated'}"), _columns(schema)]
    return tag("section", tag("h3", "The releaser's word: not derived, not checked"), parts, class_="word") if parts \
        else ""


def _said(value: Any) -> Markup:
    if isinstance(value, dict):
        return _listed([(str(key), _said(inner)) for key, inner in value.items()])
    if isinstance(value, list):
        return tag("ul", [tag("li", _said(inner)) for inner in value])
    return tag("span", value)


def _columns(schema: dict[str, Any]) -> Markup:
    rows = [(name, ", ".join(f"{key}: {inner}" for key, inner in entry.items()) if isinstance(entry, dict) else entry)
            for name, entry in list(schema.get("columns", {}).items())[:200]]
    classes = schema.get("classes")
    return _listed(
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
    ]
    return _section("7. Check it here", parts)


def downloads() -> Markup:
    """Files to save."""
    names = ("certificate.json", "references.bib", "trade-off.csv")
    return _section(
        "8. Downloads",
        tag("p", [tag("button", name, type="button", data_download=name) for name in names]),
        class_="noprint",
    )


