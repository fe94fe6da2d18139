"""How the run makes the guarantee hold: reasons, changes that would help, protocol of the audit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast, get_args

from lastiterate.accounting.certificate_subject import format_rounded_down, units
from lastiterate.analysis.step_map import to_accounted_run
from lastiterate.certificate_statement import SETTINGS
from lastiterate.errors import InputError
from lastiterate.features.map_registry import describe_maps, maps_from
from lastiterate.markup import Markup, tag
from lastiterate.planning.unlearning_plans import explain_caveat
from lastiterate.report import page_parts
from lastiterate.report.page_parts import LADDER, bullets, fold, make_table, number, section
from lastiterate.report.subject import ReportSource
from lastiterate.run.batching import Batching
from lastiterate.run.domains import Ball, Everywhere
from lastiterate.run.losses import KnownConstants
from lastiterate.run.noise import Correlated, GradientNoise, Langevin
from lastiterate.run.run import Run
from lastiterate.run.serialization import is_list, is_object
from lastiterate.run.step_sizes import Constant, FixedStart, GaussianStart
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Theorem, Violated, check_assumptions

# The one change of a run after which a theorem that fails would apply: tried, not guessed.

RIDGE = 0.01
"""The ridge that is tried where a loss has none."""
Change = tuple[str, Callable[[], Run]]


def changes(run: Run) -> Iterator[Change]:
    """Changes of one field, the smaller ones first; some cannot be made of every run."""
    loss = run.loss
    yield "release the last iterate only", lambda: replace(run, release="last")
    yield "leave momentum out", lambda: replace(run, optimizer=None)
    yield "leave the gradient clip out", lambda: replace(run, clip=None)
    yield "clip every record's gradient (at 1)", lambda: replace(run, clip=1.0)
    yield "use one step size", lambda: replace(run, step_size=Constant(run.first_step))
    smooth = loss.facts().fact("smooth")
    if smooth > 0:
        yield "shorten the step to 1/smooth", lambda: replace(run, step_size=Constant(1 / smooth))
    for word, wanted in (
        ("account for zero-out", "zero-out"),
        ("account for replace-one", "replace-one"),
    ):
        yield word, lambda wanted=wanted: replace(run, adjacency=wanted)
    if type(loss) is not KnownConstants and not loss.ridge:
        yield f"add a ridge of {RIDGE:g}", lambda: replace(run, loss=replace(loss, ridge=RIDGE))
    size = max(1, min(int(run.divisor), run.n - 1))
    size = size if size < run.n - 1 or run.n < 20 else run.n // 10
    for known in cast(tuple[type[Batching], ...], get_args(Batching)):
        try:
            kind = known.of_size(run.n, size)
        except InputError:
            continue  # n is too large for its rate
        shown = ":".join([kind.word, *(f"{value:g}" for value in vars(kind).values())])
        yield f"draw batches as {shown}", lambda kind=kind: replace(run, batching=kind)
    yield (
        "use Langevin noise of one temperature",
        lambda: replace(run, noise=Langevin(max(1e-6, run.temperature**0.5))),
    )
    yield (
        "let every step's noise be independent",
        lambda: replace(run, noise=GradientNoise(run.largest_noise)),
    )
    yield "let later steps take noise back", lambda: replace(run, noise=_with_correlated_noise(run))
    yield "project onto a ball of radius 1", lambda: replace(run, domain=Ball(1.0))
    yield "leave the projection out", lambda: replace(run, domain=Everywhere())
    yield "leave the penalty's proximal map out", lambda: replace(run, prox=None)
    yield "start at a fixed point", lambda: replace(run, start=FixedStart())
    yield "start at a Gaussian point", lambda: replace(run, start=GaussianStart(1.0))


def _with_correlated_noise(run: Run) -> Correlated:
    """Correlated noise of the same draws, its band a pass or a tenth of the run."""
    if not run.noise_unit:
        raise InputError(
            "noise", "has nothing to be a multiple of", None, "clip every record's gradient"
        )
    return Correlated(
        run.largest_noise * run.divisor / run.noise_unit,
        run.blocks if run.blocks > 1 else max(2, min(run.steps // 10, 100)),
    )


def find_opening(theorem: Theorem, run: Run) -> str | None:
    """The first change of one field after which all assumptions of ``theorem`` hold; ``None`` where
    none does."""
    for words, made in changes(run):
        try:
            other = made()
            read = to_accounted_run(other)
            if other != run and not any(
                isinstance(checked, Violated) for checked in check_assumptions(theorem, read)
            ):
                return words
        except InputError:  # that change cannot be made of this run
            continue
    return None


# The description of the run, the releaser's statement, checks in the browser, downloads.


def execution(subject: ReportSource) -> Markup | str:
    """How the run makes the guarantee hold."""
    stated = subject.body["stated"]
    if "contributions" not in stated:
        return ""
    how, batches, noise = stated["contributions"], stated["batches"], stated["noise"]

    def show_number(path: str, value: float | None, none: str) -> object:
        return none if value is None else number(f"stated.{path}", value, f"{value:.6g}")

    def show_count(path: str, value: int) -> object:
        return number(f"stated.{path}", value, str(value))

    rows: list[tuple[str, Any]] = [
        (
            "records and steps",
            [
                show_count("records", stated["records"]),
                f" {page_parts.name_counted(subject)}, ",
                show_count("steps", stated["steps"]),
                " steps, released: ",
                stated["release"],
            ],
        ),
        (
            "clipping norm",
            show_number(
                "contributions.clipping_norm",
                how["clipping_norm"],
                "none: the loss bounds gradients",
            ),
        ),
        (
            "sensitivity of a sum",
            show_number("contributions.sensitivity", how["sensitivity"], "unknown"),
        ),
        (
            "divisor",
            [show_number("contributions.divisor", how["divisor"], "-"), f": {how['divisor_is']}"],
        ),
        (
            "batches",
            [
                f"{batches['kind']}: {batches['words']}; ",
                *(  # drawn at every step, or all records: nothing that is counted off
                    []
                    if batches["blocks"] == 1
                    else [show_count("batches.blocks", batches["blocks"]), " in an epoch, "]
                ),
                "of expected size ",
                show_number("batches.expected_size", batches["expected_size"], "-"),
            ],
        ),
        (
            "noise",
            [
                f"{noise['kind']}, ",
                "the same at every step, "
                if noise["same_every_step"]
                else "the largest of all steps, ",
                "standard deviation of the mean gradient ",
                show_number("noise.std_of_mean_gradient", noise["std_of_mean_gradient"], "-"),
                ", multiplier ",
                show_number("noise.multiplier", noise["multiplier"], "-"),
            ],
        ),
    ]
    weights = describe_class_weights(subject)
    if weights:
        rows.append(("class weights in training", weights))
    if subject.predicts:
        rows.append(("predicts", subject.predicts))
    if subject.software:
        rows.append(
            (
                "recorded by the process that trained",
                tag(
                    "ul", [tag("li", f"{name}: {text}") for name, text in subject.software.items()]
                ),
            )
        )
    return tag("section", tag("h3", "How the run was described"), make_table(rows), class_="screen")


def describe_class_weights(subject: ReportSource) -> str:
    """Say what a record of each class counts in training; empty where all count alike."""
    weights = None if subject.run is None else subject.run.loss.class_weights
    if weights is None:
        return ""
    named = (subject.schema or {}).get("classes") or ()
    classes = named if len(named) == len(weights) else range(len(weights))
    return ", ".join(f"{name}: {weight:.6g}" for name, weight in zip(classes, weights, strict=True))


def word(subject: ReportSource) -> Markup | str:
    """The releaser's statement, marked as such."""
    schema = subject.schema
    parts: list[Markup] = []
    for name, value in subject.statement.items():
        parts += [tag("h3", name.replace("_", " ")), _render_value(value)]
    if schema is not None:
        parts += [
            tag("h3", "public facts about the data's columns (schema)"),
            tag("p", f"source: {schema.get('source') or 'not stated'}"),
            tag(
                "p",
                f"records become rows by: {describe_maps(maps_from(schema.get('features', ())))}",
            ),
            _columns(schema),
        ]
    return (
        tag(
            "section",
            tag("h3", "The releaser's statement: not derived, not checked"),
            parts,
            class_="word screen",
        )
        if parts
        else ""
    )


QUOTED = "The ledger that it was charged to, when this page was made"
"""The heading of a ledger's line, which pages without a ledger do not have."""


def ledger(subject: ReportSource) -> Markup | str:
    """The line of a ledger that the model was charged to, read when the report was made."""
    quote = subject.ledger
    if quote is None:
        return ""
    rows: list[tuple[str, Any]] = [
        ("data set", quote.dataset),
        ("protected unit", quote.unit),
        (
            "line",
            f"number {quote.number} of {quote.releases} that count, {quote.day}, {quote.adjacency}",
        ),
        ("all releases on it", quote.together),
        *(
            (f"left of the {name}", f"{format_rounded_down(100 * left)} %")
            for name, left in quote.left
        ),
        (
            "recomputed",
            bullets(list(quote.problems))
            if quote.problems
            else "every charge covers its curve, and no budget is exceeded",
        ),
    ]
    return tag(
        "section",
        tag("h3", QUOTED),
        make_table(rows),
        tag(
            "p",
            "Its line has the hash of these weights and of this run. A ledger is a file that is "
            "not "
            "signed.",
            class_="soft",
        ),
        class_="banner bad" if quote.problems else "ledger",
    )


def _render_value(value: object) -> Markup:
    if is_object(value):
        return make_table([(str(key), _render_value(inner)) for key, inner in value.items()])
    if is_list(value):
        return tag("ul", [tag("li", _render_value(inner)) for inner in value])
    return tag("span", value)


def _list_texts(fact: object) -> str:
    """A public fact; of a list, its entries."""
    return ", ".join(map(str, fact)) if is_list(fact) else str(fact)


def _columns(schema: dict[str, Any]) -> Markup:
    rows = [
        (
            name,
            "; ".join(f"{key}: {_list_texts(inner)}" for key, inner in entry.items())
            if is_object(entry)
            else entry,
        )
        for name, entry in list(schema.get("columns", {}).items())[:200]
    ]
    classes = schema.get("classes")
    return make_table(
        [
            *rows,
            *(
                [(f"classes of {schema.get('target')}", ", ".join(map(str, classes)))]
                if classes
                else []
            ),
        ]
    )


def check(subject: ReportSource) -> Markup:
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
        tag(
            "p",
            tag(
                "output",
                "The browser runs no script: nothing was computed again.",
                id="recomputed-verdict",
            ),
        ),
        tag(
            "table",
            tag(
                "thead",
                tag(
                    "tr",
                    [
                        tag("th", name, scope="col")
                        for name in ("number", "certificate", "this page", "outcome")
                    ],
                ),
            ),
            tag("tbody", "", id="recomputed"),
            class_="again",
        ),
        tag("p", page_parts.not_computed(subject), id="not-recomputed"),
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


# An audit compared with the protocol that was fixed before training: the differences, and how to
# repeat it.  The settings are in the certificate, which its content hash covers: who changes them
# afterwards changes the certificate. An audit trains on synthetic data, so that anybody who has the
# folder can repeat one with a fixed seed.


def read_settings(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of the audit that a certificate was written with, or ``None``."""
    return body.get("word", {}).get("audit", {}).get("settings")


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the settings as canonical JSON: what may be published before training."""
    return hashlib.sha256(
        json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def departures(settings: Mapping[str, Any], audit: Mapping[str, Any]) -> list[str]:
    """Where an audit did something else than was fixed, in words."""
    return [
        f"{name}: {audit.get(name)!r} instead of {settings[name]!r}"
        for name in SETTINGS
        if name in settings and audit.get(name) != settings[name]
    ]


def command(settings: Mapping[str, Any]) -> str:
    """What repeats the audit."""
    flags = " ".join(f"--{name} {settings[name]}" for name in SETTINGS if name in settings)
    return f"lastiterate audit MODEL_DIR {flags} --json"


def render_protocol(body: Mapping[str, Any], audit: Mapping[str, Any] | None) -> Markup | str:
    """What a report says of the protocol."""
    settings = read_settings(body)
    if settings is None:
        return (
            ""
            if audit is None
            else tag("p", "No settings of an audit were fixed in the certificate.", class_="soft")
        )
    parts = [
        tag(
            "p",
            "Settings fixed in the certificate (SHA-256 ",
            tag("code", settings_hash(settings)),
            "): ",
            ", ".join(f"{name} {settings[name]}" for name in SETTINGS if name in settings),
            ". Anybody can repeat it: ",
            tag("code", command(settings)),
        )
    ]
    if audit is None:
        parts.append(tag("p", "Its result was not given for this report.", class_="no"))
    elif deviations := departures(settings, audit):
        parts.append(
            tag(
                "p",
                "The audit DEPARTS from what was fixed: " + "; ".join(deviations) + ".",
                class_="no",
            )
        )
    else:
        parts.append(tag("p", "The audit has these very settings.", class_="ok"))
    return tag("div", parts)


# Every theorem's verdict, what the guarantee rests on, what must stay secret.


def verdicts(subject: ReportSource) -> Markup:
    """Every theorem: what it says, or why it fails and which change would make it apply."""
    title = "4. Every theorem's verdict"
    listed: list[dict[str, Any]] | None = subject.body.get("verdicts")
    if listed is None or subject.run is None:
        return section(
            title, tag("p", "This kind of release has a proof of its own; see the caveats.")
        )
    # of another version they are not compared: the page gives the reasons that are derived here
    reasons = {one["theorem"]: one["reasons"] for one in subject.certified.rows(subject.delta)}
    listed = [row | {"reasons": reasons[row["theorem"]]} for row in listed]
    ordered = sorted(
        enumerate(listed), key=lambda pair: (not pair[1]["applies"], pair[1]["epsilon"] or 0.0)
    )
    applies = [pair for pair in ordered if pair[1]["applies"]]
    fails = [pair for pair in ordered if not pair[1]["applies"]]
    caption = (
        "Upper bounds can certify; lower bounds say what no analysis can beat; claimed ones are "
        "unproved or "
        "refuted, and never certify"
    )
    return section(
        title,
        [
            _table(subject, applies, "rests on", caption)
            if applies
            else tag("p", "No theorem applies to this run."),
            fold(
                f"{len(fails)} theorems do not apply: why, and which single change would make them",
                _table(subject, fails, "why, and what would change it", None),
            )
            if fails
            else "",
        ],
    )


def _table(
    subject: ReportSource, pairs: list[tuple[int, dict[str, Any]]], last: str, caption: str | None
) -> Markup:
    rows = [
        tag(
            "tr",
            tag("th", row["theorem"], scope="row"),
            tag("td", row["kind"]),
            tag("td", _verdict_number(i, row), class_="num"),
            tag("td", _verdict_words(subject, row)),
        )
        for i, row in pairs
    ]
    head = tag(
        "tr",
        [
            tag("th", name, scope="col")
            for name in ("theorem", "kind", f"epsilon at delta {subject.delta:g}", last)
        ],
    )
    return tag(
        "table",
        "" if caption is None else tag("caption", caption),
        tag("thead", head),
        tag("tbody", rows),
        class_="verdicts",
    )


def _verdict_number(i: int, row: dict[str, Any]) -> object:
    if not row["applies"]:
        return "-"
    shown = number(f"verdicts.{i}.epsilon", row["epsilon"], down=row["kind"] == "lower")
    return ["at least ", shown] if row["kind"] == "lower" else shown


def _verdict_words(subject: ReportSource, row: dict[str, Any]) -> object:
    if row["applies"]:
        return f"{row['evidence'].lower()} facts"
    theorem, run = TABLE[row["theorem"]], subject.run
    assert run is not None
    change = find_opening(theorem, run)
    broken = sum(
        isinstance(checked, Violated)
        for checked in check_assumptions(theorem, to_accounted_run(run))
    )
    failing = "1 condition fails" if broken == 1 else f"{broken} conditions fail"
    opened = (
        f"One change would make it apply: {change}."
        if change
        else f"No single change that was tried makes it apply ({failing})."
    )
    return [tag("ul", [tag("li", reason) for reason in row["reasons"]]), opened]


def evidence(subject: ReportSource) -> Markup:
    """What the guarantee rests on, the strongest evidence first."""
    rests = subject.body["stated"]["rests_on"]
    entries: list[Markup] = []
    for rung, meaning in LADDER.items():
        facts = [(i, fact) for i, fact in enumerate(rests) if fact["evidence"] == rung]
        listed = [
            tag(
                "li",
                f"{fact['what']}: ",
                number(
                    f"stated.rests_on.{i}.value",
                    fact["value"],
                    f"{fact['value']:.6g}" if fact["value"] is not None else None,
                ),
            )
            for i, fact in facts
        ]
        entries.append(
            tag(
                "li",
                tag("strong", rung.lower()),
                f" ({meaning}): ",
                tag("ul", listed) if listed else _describe_empty_rung(rung),
                class_=rung.lower(),
            )
        )
    return section("6. What it rests on", tag("ul", entries, class_="ladder"), class_="screen")


def _describe_empty_rung(rung: str) -> str:
    """Return what a rung without facts says; people typed more than the proof assumes, and
    epsilon pays for more than its facts."""
    return {
        "PAID": 'no fact of the proof; all that epsilon pays for is in section 5, "Charged"',
        "ASSUMED": 'no fact of the proof; what people typed is in section 1, "Taken on trust"',
    }.get(rung, "nothing")


def secrets(subject: ReportSource) -> Markup:
    """What must stay secret, and what no theorem covers."""
    stated = subject.body["stated"]
    return section(
        "5. What must stay secret, and what is not covered",
        [
            tag("div", tag("h3", "Must stay secret"), bullets(stated["secret"]), class_="screen"),
            tag("div", tag("h3", "Charged"), bullets(stated["charged"]), class_="half"),
            tag("div", tag("h3", "Not charged"), bullets(stated["not_charged"]), class_="half"),
            tag("h3", "Caveats"),
            bullets([_explain_caveat(subject, text) for text in subject.body["caveats"]]),
        ],
    )


def _explain_caveat(subject: ReportSource, text: str) -> str:
    """Return a caveat as it is written; of a bound on rows, whether somebody made it true."""
    described = subject.body["stated"]["unit"]
    if text != units(described["rows"]):
        return explain_caveat(text, subject.certified, subject.delta)
    if "name" in described:
        return f"{text} (none of the data that were trained on has: train left further rows out)"
    return f"{text} (that is the releaser's word)"
