"""The release document: what it says is the certificate's, what does not verify comes first,
nothing runs in it."""

import base64
import hashlib
import html
import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import cli, markup
from lastiterate.accounting import tradeoff_summary
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.accounting.tradeoff_summary import true_positive_rate
from lastiterate.curves.curve import UP
from lastiterate.curves.gaussian import Gdp
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.quote import Quote
from lastiterate.release.folder import format_manifest
from lastiterate.report import charts, execution_section, page, page_parts
from lastiterate.report.subject import ReportSource, read
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match

from . import browser as browsers

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--",
    "]]>",
    "' onload='alert(1)",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "a\x00b\u2028c",
    "&lt;b&gt;",
    "{{7*7}}",
)
RUN = li.Run(
    n=60, steps=40, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
)


def trained(**more):
    rng = np.random.default_rng(0)
    return li.train(
        replace(RUN, **more), (rng.normal(size=(60, 2)), rng.integers(0, 2, 60)), delta=1e-5
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A good release, a hostile one, a conditional run, a refuted release, one that was edited."""
    home = tmp_path_factory.mktemp("r")
    model = trained()
    _, refuted, edited = (model.save(home / name) for name in ("good", "refuted", "edited"))
    (refuted / "audit.json").write_text(
        json.dumps(
            {
                "attack": "projection",
                "trials": 2000,
                "failure": 0.05,
                "delta": 1e-5,
                "lower": 9.5,
                "ceiling": 12.0,
                "refuted": True,
                "verdict": "BUG: the certificate is refuted",
                "rates": [{"fpr_upper": 0.01, "fnr_upper": 0.1}],
            }
        )
    )
    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    li.train(RUN, data, delta=1e-5, secure_noise=True, seed=1).save(home / "exact")
    body = json.loads((edited / "certificate.json").read_text()) | {"epsilon": 0.01}
    (edited / "certificate.json").write_text(json.dumps(body))
    schema = Schema.from_dict(
        {
            "target": HOSTILE[1],
            "classes": [HOSTILE[0], HOSTILE[4]],
            "source": HOSTILE[2],
            "columns": {
                name: {"kind": "number", "low": 0, "high": 1}
                for name in HOSTILE
                if name != HOSTILE[1]
            },
        }
    )
    word = {
        "note": " ".join(HOSTILE),
        "charged": list(HOSTILE),
        "audit": {"protocol": HOSTILE[0], "result": {HOSTILE[1]: HOSTILE[0]}},
        "public_facts": [{"fact": HOSTILE[0], "source": HOSTILE[5]}],
    }
    replace(model, schema=schema, statement=word).save(home / "hostile")
    assumed = replace(
        RUN,
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.1)),
        batching=li.Permuted(10),
        noise=li.GradientNoise(0.5),
    )
    (home / "run.json").write_text(assumed.to_json())
    return home


def report(*arguments):
    done = CliRunner().invoke(cli.app, ["report", *map(str, arguments)])
    return done.exit_code, done.output


class Page(HTMLParser):
    """Tags with their attributes, and the texts of ``data`` elements."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.numbers, self.open = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "data":
            self.open = [dict(attrs), ""]

    def handle_data(self, data):
        if self.open:
            self.open[1] += data

    def handle_endtag(self, tag):
        if tag == "data":
            self.numbers.append(self.open)
            self.open = None


def follow(body, path):
    for key in path.split("."):
        body = body[int(key)] if isinstance(body, list) else body[key]
    return body


def check_numbers(numbers, body):
    """Every number is the certificate's, and what is shown of it is rounded to the safe side."""
    assert len(numbers) > 15
    for given, text in numbers:
        value = follow(body, given["data-path"])
        if value is None:
            assert text == "infinite"
            continue
        assert float(given["value"]) == value, given
        shown = float(re.search(r"\d[\d.e+-]*", text.split("most ")[-1])[0])
        exact = value * 100 if "%" in text or "of 100" in text else value
        lower = (
            given["data-path"].startswith("verdicts")
            and body["verdicts"][int(given["data-path"].split(".")[1])]["kind"] == "lower"
        )
        if lower:
            assert exact * 0.998 <= shown <= exact * (1 + 1e-9), given
        elif "of 100" in text:
            assert exact * (1 - 1e-9) <= shown <= exact + 1
        elif given["data-path"].startswith(
            ("stated.contributions", "stated.noise", "stated.batches", "stated.rests_on")
        ):
            assert shown == pytest.approx(exact, rel=1e-5)
        else:
            assert exact * (1 - 1e-9) <= shown <= exact * 1.002, given


@pytest.mark.parametrize("name", ["good", "hostile", "refuted"])
def test_every_number_on_the_page_is_the_certificates(folders, name):
    text = page.page(read(folders / name))
    check_numbers(Page(text).numbers, json.loads((folders / name / "certificate.json").read_text()))
    assert len(text.encode()) < 1_000_000


def test_numbers_of_a_run_that_is_only_described(folders):
    subject = read(folders / "run.json", min_evidence=li.Evidence.ASSUMED)
    check_numbers(Page(page.page(subject)).numbers, subject.body)


def test_a_page_loads_nothing_and_can_be_read_without_eyes(folders):
    parsed = Page(page.page(read(folders / "good")))
    for tag, attributes in parsed.tags:
        assert not {"src", "srcset", "action", "style"} & set(attributes), (tag, attributes)
        assert attributes.get("href", "#").startswith("#") and not any(
            key.startswith("on") for key in attributes
        )
        assert tag not in ("link", "img", "iframe", "object", "base")
    tags = [tag for tag, _ in parsed.tags]
    assert (
        dict(parsed.tags[0][1])["lang"] == "en"
        and tags.count("h1") == 1
        and tags.count("main") == 1
    )
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    labelled = {attributes["for"] for tag, attributes in parsed.tags if tag == "label"}
    assert {attributes["id"] for tag, attributes in parsed.tags if tag == "input"} <= labelled
    pictures = [
        attributes
        for tag, attributes in parsed.tags
        if tag == "svg" and "aria-hidden" not in attributes
    ]
    names = {attributes.get("id") for _, attributes in parsed.tags}
    assert len(pictures) == 2 and all(
        set(one["aria-labelledby"].split()) <= names for one in pictures
    )
    assert all(attributes.get("scope") for tag, attributes in parsed.tags if tag == "th")


QUESTIONS = (
    "Released",
    "Trained by",
    "When",
    "What for",
    "Protects",
    "From",
    "What epsilon means",
    "Accuracy",
    "Charged to a ledger before training",
    "Rests on",
    "Taken on trust",
    "Must stay secret",
    "Signed",
)


def rows_of(text):
    """Label and words of each row of the first page."""
    first = re.search(r'<table class="facts">(.*?)</table>', text, re.DOTALL)[1]
    pairs = re.findall(r"<tr><th scope=\"row\">(.*?)</th><td>(.*?)</td></tr>", first, re.DOTALL)
    return {label: html.unescape(re.sub("<[^>]+>", "", words)) for label, words in pairs}


def test_the_first_page_answers_an_officer(folders, tmp_path):
    found = rows_of(page.page(read(folders / "good")))
    assert tuple(found) == QUESTIONS
    assert all(found[name] == "not stated" for name in ("Trained by", "What for", "Accuracy"))
    assert found["Charged to a ledger before training"].startswith("not stated") and re.search(
        r"on \d{4}-\d\d-\d\d", found["When"]
    )
    said = {
        "trained_by": "the registry",
        "purpose": "planning beds",
        "accuracy": "0.91 on public data",
        "not_charged": ["a histogram"],
    }
    place = trained().with_statement(said).save(tmp_path / "said")
    assert li.verify(place).holds
    found = rows_of(page.page(read(place)))
    for name, entry in (
        ("Trained by", "trained_by"),
        ("What for", "purpose"),
        ("Accuracy", "accuracy"),
    ):
        assert found[name] == f"{said[entry]} (the releaser's statement)"
    assert "not paid for: a histogram" in found["Charged to a ledger before training"]
    (place / "model.sig").write_text("x")
    assert rows_of(page.page(replace(read(folders / "good"), signed=True)))["Signed"].startswith(
        "a signature is in the same folder"
    )
    assert read(place).signed is True


def test_the_first_page_says_what_nobody_checked(folders, tmp_path):
    """Conditions, typed facts with their source, and rows per person; never only "nothing"."""
    good = rows_of(page.page(read(folders / "good")))["Taken on trust"]
    assert good.startswith("holds if the run is executed exactly as described")
    assert "double precision" in good and "no schema is in this release" in good
    assert good.endswith("a person with k rows needs more than k times epsilon")
    assert "stay secret" not in good and "further fits" not in good, "other rows say these"
    columns = {"a": {"kind": "number", "low": 0, "high": 1}}
    schema = {"target": "y", "classes": ["no", "yes"], "columns": columns}
    fact = {"fact": "60 patients", "source": "the annual report"}
    for source, said in (
        ({"source": "the manual"}, "source: the manual (the releaser's statement)"),
        ({}, "source: not stated"),
    ):
        model = replace(trained(), schema=Schema.from_dict(schema | source))
        place = model.with_statement({"public_facts": [fact]}).save(tmp_path / said[8:11])
        found = rows_of(page.page(read(place)))["Taken on trust"]
        assert f"ranges and classes are public, and nobody read them off the data; {said}" in found
        assert "60 patients; source: the annual report (the releaser's statement)" in found
    one = read(folders / "good")
    named = {"name": "pid", "rows": 4, "words": "one unit (pid)"}
    several = {"rows": 4, "words": "4 rows"}
    for unit, last in ((named, "no other row has it"), (several, "no schema is in this release")):
        body = one.body | {"stated": one.body["stated"] | {"unit": unit}}
        found = rows_of(page.page(replace(one, body=body)))["Taken on trust"]
        assert found.endswith(last), "the trainer bounds rows of a named unit; a caveat has others"
    text = page.page(one)
    assert "nothing checks it): no fact of the proof; what people typed is in section 1" in text
    assumed = page.page(read(folders / "run.json", min_evidence=li.Evidence.ASSUMED))
    assert "(assumed)" in rows_of(assumed)["Taken on trust"]


def test_a_page_of_rows_warns_of_a_column_of_persons(folders, tmp_path):
    """Not where persons are protected, and not without such a column."""
    ids = {"kind": "id"}
    columns = {
        "a": {"kind": "number", "low": 0, "high": 1},
        "patient": ids,
        "town": {"kind": "category", "values": ["Bonn", "Ulm"]},
    }
    schema = {"target": "y", "classes": ["no", "yes"], "source": "", "columns": columns}
    place = replace(trained(), schema=Schema.from_dict(schema)).save(tmp_path / "m")
    subject = read(place)
    title = "Rows are protected one by one, and the table has a column of persons (patient)"
    text = page.page(subject)
    two = subject.certified.group(2, 1e-5)
    assert title in text and "lastiterate train --unit patient" in text
    assert "kind: category; values: Bonn, Ulm; outside: refuse" in text
    shown = re.search(r"2 rows of a person together: epsilon ([\d.]+) at delta 1e-05", text)
    assert two * (1 - 1e-9) <= float(shown[1]) <= two * 1.002
    assert text.index(title) < text.index("1. The guarantee")
    unit = {"name": "patient", "rows": 1, "words": "one unit (patient) with 1 row"}
    named = subject.body | {"stated": subject.body["stated"] | {"unit": unit}}
    assert "Rows are protected" not in page.page(replace(subject, body=named))
    assert "Rows are protected" not in page.page(read(folders / "good"))


@pytest.mark.parametrize(
    "unit, first, caveat",
    [
        ({"rows": 1}, "One row, not a person.", None),
        (
            {"rows": 1, "name": "patient"},
            "One patient with at most 1 row. Training used 1 row of each patient; further rows were",
            None,
        ),
        (
            {"rows": 5, "name": "patient"},
            "One patient with at most 5 rows. Training used at most 5 rows of each patient; further",
            "in the data (none of the data that were trained on has: train left further rows out)",
        ),
        (
            {"rows": 5},
            "One unit with at most 5 rows, if further rows were left out before training: that is",
            "in the data (that is the releaser's word)",
        ),
    ],
)
def test_who_bounded_the_rows_of_a_unit_has_one_wording(unit, first, caveat):
    """A named unit's bound is enforced by train; any other is somebody's word, here and in the
    caveats."""
    run = replace(RUN, rows_per_unit=unit["rows"])
    certificate = replace(li.account(run), unit=unit.get("name", ""))
    text = certificate.to_json(1e-5)
    checked = li.Certificate.check(json.loads(text))
    subject = ReportSource("m", json.loads(text), text, checked, certificate)
    made = page.page(subject)
    assert rows_of(made)["Protects"].startswith(first)
    plain, _, worded = rows_of(made)["Protects"].partition("In the certificate's words")
    counted = "patients" if unit == {"rows": 1, "name": "patient"} else "records"
    assert plain.endswith(f"the number of {counted} is public")
    assert ("batches draw" not in plain and worded != "") == (unit["rows"] > 1 or "name" in unit)
    trusted, bound = rows_of(made)["Taken on trust"], "holds if no unit has more rows in the data"
    assert (bound in trusted) == (unit["rows"] > 1 and "name" not in unit)
    assert caveat is None or caveat in html.unescape(made)


def test_the_page_says_what_epsilon_alone_would_allow(folders):
    one = read(folders / "good")
    epsilon, right = one.body["epsilon"], one.body["stated"]["right_guesses"]
    alone = (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))
    shown = re.search(r"alone would allow ([\d.]+) of 100 times", page.page(one))
    assert right < alone and 100 * alone <= float(shown[1]) <= 100 * alone + 0.1
    body = one.body | {"stated": one.body["stated"] | {"right_guesses": alone}}
    assert "alone would allow" not in page.page(replace(one, body=body))


@pytest.mark.parametrize(
    "unit, many, one",
    [
        ({"rows": 1}, "60 records", "one record"),
        ({"rows": 1, "name": "pid"}, "60 units (pid)", "one unit (pid)"),
        ({"rows": 4, "name": "pid"}, "60 units (pid)", "one unit (pid)"),
        ({"rows": 4, "name": "unit"}, "60 units", "one unit"),
    ],
)
def test_a_report_names_the_unit_that_it_counts(folders, unit, many, one):
    good = read(folders / "good")
    stated = good.body["stated"] | {"unit": unit | {"words": "words"}}
    text = page.page(replace(good, body=good.body | {"stated": stated}))
    assert rows_of(text)["Released"].endswith(f"; 40 steps on {many}")
    assert f"<td>{one}</td><td>this certificate</td>" in text


def test_a_page_of_units_speaks_of_units_and_of_their_delta(folders):
    """Nothing on it is about one record, and no epsilon is without its delta."""
    good = read(folders / "good")
    words = "one unit (patient) with at most 4 rows; batches draw units, n counts units"
    stated = good.body["stated"] | {"unit": {"rows": 4, "name": "patient", "words": words}}
    text = page.page(replace(good, body=good.body | {"stated": stated}))
    found = rows_of(text)
    assert found["Protects"].startswith("One patient with at most 4 rows. Training used at most 4")
    plain, worded = found["Protects"].split("In the certificate's words")
    assert "all rows of one patient together; zero-out: one patient's contribution" in plain
    assert "the number of patients is public" in plain and words == worded
    assert "whether one patient's rows were used, even" in found["From"]
    assert "every other patient. Not covered" in found["From"]
    meaning = found["What epsilon means"]
    assert "flags 1 % of unused units (patient) finds" in meaning
    other = format_rounded_up(good.body["epsilon_replace_one"])
    said = "Telling apart two versions of one patient's rows (at most 4) (replace-one): epsilon"
    assert f"{said} {other} at delta 1e-05." in meaning
    assert "share of unused units (patient) that a test flags" in text
    caption = "No test of whether one patient's rows (at most 4) were used does better"
    assert caption in html.unescape(text)
    own = rows_of(page.page(good))
    said = "Telling apart two versions of one record (replace-one): epsilon"
    assert f"{said} {other} at delta 1e-05." in own["What epsilon means"]
    assert "whether a record was used, even" in own["From"]
    proved = "; every fact that it needs is proved, or made true by the run itself"
    assert own["Rests on"].endswith(proved)
    assert "epsilon at delta 1e-05</th>" in page.page(good), "the head of the theorems' verdicts"
    forgotten = {"rows": 3, "words": "the 3 removed records together, and nobody else"}
    assert page_parts.name_versions(forgotten) == "one record"


def test_the_odds_are_followed_by_the_other_releases(folders):
    """On a page without a ledger, too; the odds are those of the ledger's budget, rounded up."""
    good = read(folders / "good")
    text = page.page(good)
    assert re.search(
        r'class="lead">.{0,300}of 100 times instead of 50\.</data></p><p>This is for this model '
        r"alone: other releases about the same people add up\.</p>",
        text,
    )
    budget = GaussianFilter.of(3.0, 1e-5)
    right = tradeoff_summary.bound_right_guesses(budget.total())
    assert right == (1 + budget.total().delta(0.0)) / 2 * UP
    quote = Quote(
        "ward",
        "patient",
        "zero-out",
        3,
        "2026-01-01",
        "",
        4,
        (),
        "budget",
        (),
        total="epsilon 3 at delta 1e-05",
        right=right,
    )
    text = page.page(replace(good, ledger=quote))
    most = math.ceil(100 * right)
    assert (
        "instead of 50.</data></p><p>This is for this model alone. For all 4 releases of ward "
        "together, the budget is epsilon 3 at delta 1e-05 (zero-out), and such a guess is right "
        f"at most {most} of 100 times.</p>" in text
    )


def test_a_page_tells_what_an_audit_left_out(folders):
    good = read(folders / "good")
    audit = json.loads((folders / "refuted" / "audit.json").read_text())
    audit |= {"lower": 0.1, "refuted": False, "verdict": "no contradiction"}
    audit |= {"not_executed": ["preprocessing (PrivateMean)", "rows_per_record (4)"]}
    audit |= {"upper": 0.93334, "upper_whole": 0.9999}
    stated = good.body["stated"] | {
        "unit": {"rows": 4, "name": "patient", "words": "one unit (patient)"}
    }
    text = page.page(replace(good, body=good.body | {"stated": stated}, audit=audit))
    for said in (
        "certified for what was executed: epsilon 0.9334 at delta 1e-05",
        "not executed: preprocessing (PrivateMean)",
        "not executed: rows_per_record (4)",
        "not attacked: the protection of one patient with all of its rows (at most 4): the models "
        "differ in one record",
    ):
        assert f"<li>{said}</li>" in text, said
    assert "not attacked" not in page.page(replace(good, audit=audit)), "it protects records"


def test_paper_has_the_limits_of_what_was_verified(folders):
    """What prints: the banner's limits, the row of trusted facts and all caveats."""
    text = page.page(read(folders / "good"))
    assert f'<p class="paper">{html.escape(page.ON_PAPER)}</p>' in text
    (opened,) = re.findall(r'<section[^>]*aria-labelledby="part-5"[^>]*>', text)
    assert "screen" not in opened


def test_no_page_of_before_stays_in_a_folder_that_fails(folders, tmp_path):
    place = trained().save(tmp_path / "m")
    assert report(place)[0] == 0 and "Verified" in (place / "report.html").read_text()
    assert report(place)[0] == 2, "a page that is right is not replaced"
    edited = json.loads((place / "certificate.json").read_text()) | {"epsilon": 0.01}
    (place / "certificate.json").write_text(json.dumps(edited))
    code, said = report(place, "--out", tmp_path / "other.html")
    assert code == 1 and "report.htmlisolderandmaynotsayso" in "".join(said.split())  # wrapped
    code, said = report(place)
    shown = (place / "report.html").read_text()
    assert code == 1 and "does NOT verify" in shown and "Verified" not in shown
    code, said = report(place, "--out", tmp_path / "third.html")
    assert code == 1 and "older" not in said
    (tmp_path / "kept.html").write_text("mine")
    assert report(place, "--out", tmp_path / "kept.html")[0] == 2
    assert (tmp_path / "kept.html").read_text() == "mine"


def test_theorems_that_do_not_apply_fold_away(folders):
    text = page.page(read(folders / "good"))
    body = json.loads((folders / "good" / "certificate.json").read_text())
    fails = [row["theorem"] for row in body["verdicts"] if not row["applies"]]
    shown, hidden = text.split(f"<summary>{len(fails)} theorems do not apply")
    assert all(f">{name}</th>" not in shown and f">{name}</th>" in hidden for name in fails)
    assert all(f">{row['theorem']}</th>" in shown for row in body["verdicts"] if row["applies"])


@pytest.mark.parametrize("low, high", [(0.9, 1.1), (0.3, 2.5), (1, 500), (1e-9, 1e9), (5, 5.01)])
@pytest.mark.parametrize("log", [False, True])
def test_an_axis_has_more_than_one_tick(low, high, log):
    ticks = charts.Axis("x", low, high, log=log).ticks()
    assert 2 <= len(ticks) <= 12 and len({f"{tick:g}" for tick in ticks}) == len(ticks)
    assert all(low - 1e-6 * (high - low) <= tick <= high + 1e-6 * (high - low) for tick in ticks)


def test_what_does_not_verify_comes_first_and_alone(folders):
    code, said = report(folders / "edited", "--out", folders / "edited.html")
    text = (folders / "edited.html").read_text()
    assert code == 1 and "does not hold" in said and "<main" in text
    assert (
        text.index("does NOT verify") < text.index("content hash does not match")
        and "<h2 id=" not in text
    )
    assert Page(text).numbers == [] and "report-data" not in text


def test_a_refuted_certificate_says_so_and_exits_1(folders):
    code, said = report(folders / "refuted", "--out", folders / "refuted.html")
    assert code == 1 and "refutes" in said and "REFUTED" in (folders / "refuted.html").read_text()
    code, said = report(folders / "good", "--out", folders / "good.html")
    assert code == 0 and (folders / "good.html").stat().st_mode & 0o777 == 0o600
    code, said = report(folders / "good", "--out", folders / "good.html")
    assert code == 2 and "--out must not exist yet" in said and "--force" in said
    (folders / "good.html").write_text("old")
    code, _ = report(folders / "good", "--out", folders / "good.html", "--force")
    assert code == 0 and "Verified" in (folders / "good.html").read_text()
    assert report(folders / "good", "--force")[0] == report(folders / "good", "--force")[0] == 0
    assert (
        li.verify(folders / "good").holds
        and report(folders / "good", "--out", folders, "--force")[0] == 2
    )
    code, said = report(folders / "run.json", "--trust-constants", "--out", folders / "run.html")
    assert code == 0 and "Conditional" in (folders / "run.html").read_text()
    code, said = report(folders / "run.json", "--out", folders / "none.html")
    assert code == 0 and "Nothing certifies" in (folders / "none.html").read_text()


@pytest.mark.parametrize(
    "audit",
    [
        [],
        {"refuted": True},
        {"refuted": 1},
        {
            "refuted": False,
            "trials": 1,
            "failure": 0.1,
            "delta": 0.1,
            "lower": 0,
            "ceiling": 1,
            "attack": "a",
            "verdict": "v",
            "rates": [{"fpr_upper": 2, "fnr_upper": 0}],
        },
    ],
)
def test_what_is_no_audit_is_refused(folders, tmp_path, audit):
    (tmp_path / "a.json").write_text(json.dumps(audit))
    with pytest.raises(InputError, match="audit"):
        read(folders / "good", audit=tmp_path / "a.json")


def test_what_an_audit_left_out_is_a_list_of_texts(folders, tmp_path):
    whole = json.loads((folders / "refuted" / "audit.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(whole | {"upper": None, "not_executed": []}))
    assert read(folders / "good", audit=tmp_path / "a.json").audit["upper"] is None
    for wrong in (
        {"not_executed": "rows"},
        {"not_attacked": [1]},
        {"upper": "0.1"},
        {"upper_whole": True},
    ):
        (tmp_path / "a.json").write_text(json.dumps(whole | wrong))
        with pytest.raises(InputError, match="must be what lastiterate audit --json printed"):
            read(folders / "good", audit=tmp_path / "a.json")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_stay_texts(text):
    made = markup.tag("p", text, title=text)
    parsed = Page(made)
    assert [tag for tag, _ in parsed.tags] == ["p"] and list(parsed.tags[0][1]) == ["title"]
    assert parsed.tags[0][1]["title"] == markup.plain(text) and not re.search(
        "[\x00\u2028\u202e]", made
    )
    for bad in ("onclick", "ON", "a b", "x>"):
        with pytest.raises(ValueError, match="no attribute"):
            markup.tag("p", **{bad: "x"})


def test_hostile_names_add_no_element(folders):
    text = page.page(read(folders / "hostile"))
    parsed = Page(text)
    assert [tag for tag, _ in parsed.tags].count("script") == 2 and "img" not in {
        tag for tag, _ in parsed.tags
    }
    assert not any(key.startswith("on") for _, attributes in parsed.tags for key in attributes)
    data = re.search(r'id="report-data">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in data and HOSTILE[0] in json.loads(data)["downloads"]["certificate.json"][
        0
    ].replace("\\", "")


@pytest.mark.parametrize("batching", [li.FullBatch(), li.Permuted(100), li.Cyclic(100)])
def test_what_some_loss_reaches_lies_below_what_is_certified(batching):
    run = li.Run(
        n=1000,
        steps=100,
        step_size=0.5,
        noise=li.NoiseMultiplier(4.0),
        loss=li.Logistic(ridge=0.01),
        batching=batching,
    )
    found = li.account(run)
    curve, lower = found.curve(found.best(1e-5)), charts.strongest(found, 1e-5)
    tests = charts.tests(curve, lower, 1e-5)
    assert all(test.rate <= test.at_least <= test.at_most for test in tests)
    assert max(test.at_least - test.rate for test in tests) > 0.02


def test_what_a_gaussian_pair_reaches_is_close_to_its_curve():
    mu = 1.3
    deltas = [Gdp(mu).delta(epsilon) for epsilon in charts.GRID]
    for rate in (1e-3, 0.01, 0.1, 0.3):
        exact = true_positive_rate(Gdp(mu), rate, 1e-5)
        close = 0.9 if rate < 0.2 else 0.8  # where slopes are below 1 it is a straight line
        assert close * exact <= charts.bound_power(deltas, rate) <= exact
    assert charts.bound_power([0.0] * len(charts.GRID), 0.2) == pytest.approx(0.2)


def test_lines_over_steps_end_at_the_certificate():
    run = replace(RUN, steps=300)
    found = li.account(run)
    lines = {line.name: line for line in charts.chart_steps(found, 1e-5)}
    assert lines["composition"].steps[-1] == 300 and set(lines) == {
        "last iterate",
        "composition",
        "lower bound",
    }
    assert min(
        line.epsilons[-1] for line in lines.values() if line.kind == "upper"
    ) == found.epsilon(1e-5)
    assert lines["lower bound"].epsilons[-1] == found.lower(1e-5)


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("poisson-pld", "poisson"),
        ("shifted-interpolation-permuted", "permuted"),
        ("composition-gdp", None),
    ],
)
def test_the_change_that_opens_a_theorem_does(name, wanted):
    found = execution_section.find_opening(TABLE[name], RUN)
    if wanted is None:
        return
    assert wanted in found
    made = next(made for words, made in execution_section.changes(RUN) if words == found)()
    assert isinstance(match(TABLE[name], made), Applies)
    momentum = replace(RUN, optimizer=li.Nesterov())
    assert (
        execution_section.find_opening(TABLE["shifted-interpolation"], momentum)
        == "leave momentum out"
    )


@pytest.mark.parametrize(
    "method",
    [
        {
            "method": li.ObjectivePerturbation(3),
            "loss": li.Logistic(ridge=0.05),
            "steps": 200,
            "step_size": 0.4,
        },
        {
            "method": li.VarianceReduced(3, 1.0),
            "loss": li.Logistic(cap=0.3),
            "batching": li.Poisson(0.2),
        },
    ],
    ids=["minimiser", "snapshots"],
)
def test_a_run_of_another_method_has_a_page(tmp_path, method):
    """Rows about other methods are asked for their method alone: what they need of a step is not
    there."""
    text = page.page(read(trained(**method).save(tmp_path / "m")))
    assert "it speaks of steps that each have noise of a known size" in text


@pytest.mark.parametrize(
    ("batching", "said"),
    [
        (li.Poisson(0.5), "Poisson: a fresh secret draw at every step; of expected size 30"),
        (li.Cyclic(20), "3 in an epoch, of expected size 20"),
    ],
    ids=["drawn", "counted off"],
)
def test_only_batches_that_make_up_an_epoch_are_counted(batching, said, tmp_path):
    text = page.page(read(trained(batching=batching).save(tmp_path / "m")))
    text = re.sub(r"<[^>]+>", "", text)
    assert said in " ".join(text.split()) and " 1 in an epoch" not in text


def test_a_report_on_steps_that_follow_a_measured_smoothness(tmp_path):
    """Every row's conditions are asked of the run that theorems read."""
    loss = replace(RUN.loss, cap=0.1)
    trained(
        step_size=li.RelativeToSmooth(1.5), loss=loss, preprocessing=(li.TopEigenvalue(20.0),)
    ).save(tmp_path / "model")
    shown = page.page(read(tmp_path / "model"))
    assert "conditions fail" in str(shown) and "langevin-linear" in str(shown)


needs_browser = pytest.mark.skipif(
    browsers.installed() is None,
    reason="no Chromium is installed: the page's script and what it shows are not tested",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = browsers.Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def shown(browser, folders, name, **more):
    file = folders / f"shown-{name}.html"
    if not file.exists():
        file.write_text(page.page(read(folders / name, **more)), encoding="utf-8")
    browser.open(file)
    return file


NUMBERS = (
    "[...document.querySelectorAll('data')]"
    ".map(d => [{'data-path': d.dataset.path, value: d.value}, d.innerText])"
)


@needs_browser
def test_a_good_release_in_the_browser(browser, folders, tmp_path):
    shown(browser, folders, "good")
    body = json.loads((folders / "good" / "certificate.json").read_text())
    check_numbers(browser.value(NUMBERS), body)
    assert browser.value("document.querySelector('.banner').innerText").startswith("Verified")
    said = browser.value("document.getElementById('recomputed-verdict').innerText")
    rows = browser.value(
        "[...document.querySelectorAll('#recomputed tr')].map(r => r.lastChild.innerText)"
    )
    assert "agree with the certificate" in said and len(rows) >= 6 and set(rows) == {"agrees"}
    browser.picture(tmp_path / "good.png")
    assert (tmp_path / "good.png").stat().st_size > 50_000 and browser.complaints() == []


WIDE = "document.documentElement.scrollWidth"
BROKEN = """[...document.querySelectorAll('h1, h2, h3, th')].filter(e => e.offsetParent).flatMap(e => {
  const walk = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), broken = [];
  for (let node; (node = walk.nextNode());) for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
    const range = document.createRange();
    range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
    if (range.getClientRects().length > 1) broken.push(word[0]);
  }
  return broken;
})"""


@needs_browser
@pytest.mark.parametrize("width", [360, 800])
def test_nothing_is_cut_or_broken_on_a_narrow_screen(browser, folders, width):
    """No row's heading breaks inside a word, and nobody scrolls sideways."""
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=True,
    )
    try:
        shown(browser, folders, "good")
        assert browser.value(WIDE) <= width and browser.value(BROKEN) == []
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


@needs_browser
def test_it_prints_on_two_pages(browser, folders):
    shown(browser, folders, "good")
    printed = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= 2
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        paper = browser.value("document.body.innerText")
        missing = [text for text in read(folders / "good").body["caveats"] if text not in paper]
        assert missing == [] and page.ON_PAPER in paper
        unbroken = "[...document.querySelectorAll('table.narrow')].map(t => getComputedStyle(t)"
        assert set(browser.value(f"{unbroken}.breakInside)")) == {"avoid"}
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


@needs_browser
def test_a_page_of_persons_with_ledger_and_audit_prints_on_two_pages(browser, folders, tmp_path):
    good = read(folders / "good")
    audit = json.loads((folders / "refuted" / "audit.json").read_text())
    audit |= {"lower": 0.1, "refuted": False, "verdict": "no contradiction", "upper": 0.93}
    parts = [f"preprocessing (part {number} of the preparation)" for number in range(6)]
    unit = {"rows": 4, "name": "patient", "words": "one unit (patient) with at most 4 rows"}
    stated = good.body["stated"] | {"unit": unit}
    quote = Quote(
        dataset="ward",
        unit="person",
        adjacency="zero-out",
        number=3,
        day="2026-01-01",
        run="",
        releases=4,
        left=(("squared mu", 0.5), ("failure probability", 0.99)),
        together="budget: epsilon 3 at delta 1e-05; spent: 48.96 %, which is epsilon 1.996",
        problems=(),
        others=("clinic", "surgery"),
        total="epsilon 3 at delta 1e-05",
        right=0.64,
    )
    full = replace(
        good,
        body=good.body | {"stated": stated},
        audit=audit | {"not_executed": parts},
        ledger=quote,
    )
    file = tmp_path / "full.html"
    file.write_text(page.page(full), encoding="utf-8")
    browser.open(file)
    printed = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= 2
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        paper = browser.value("document.body.innerText")
        kept = [*parts, "this model protects one patient", *good.body["caveats"]]
        assert [text for text in kept if text not in paper] == []
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


@needs_browser
def test_a_cruder_bound_is_said_to_be_one(browser, folders):
    """A Gaussian curve above does not agree with epsilon: it does not contradict it."""
    run = replace(RUN, batching=li.RandomAllocation(6), clip=1.0)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    li.train(run, data, delta=1e-5, seed=2).save(folders / "drawn")
    shown(browser, folders, "drawn")
    said = browser.value("document.getElementById('recomputed-verdict').innerText")
    epsilon = read(folders / "drawn").body["epsilon"]
    assert re.search(
        rf"a cruder bound of epsilon, [\d.]+, does not contradict {epsilon:.4g}\.", said
    )
    rows = browser.value(
        "[...document.querySelectorAll('#recomputed tr')].map(r => [r.children[2].innerText, "
        "r.lastChild.innerText])"
    )
    crude = [verdict for number, verdict in rows if number.startswith("at most")]
    assert crude and set(crude) == {"cruder, does not contradict"}
    assert all(verdict == "agrees" for number, verdict in rows if "at most" not in number)
    look = "[...document.querySelectorAll('#recomputed tr')].map(r => r.lastChild.className)"
    assert set(browser.value(look)) == {"ok", "soft"}, "a cruder bound is no green tick"
    screen = {"width": 375, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.call("Emulation.setDeviceMetricsOverride", **screen)
    try:
        cells = BROKEN.replace("'h1, h2, h3, th'", "'#recomputed td'")
        assert browser.value(cells) == [] and browser.value(WIDE) <= 375
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


CONTRAST = """(() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!c.startsWith('rgba(0, 0, 0, 0')) return c; } return 'rgb(255, 255, 255)'; };
  return Math.min(...[...document.querySelectorAll('p, td, th, h1, h2, li, summary, text, em')].map(e => {
    const style = getComputedStyle(e), two = light(behind(e));
    const one = light(e.tagName === 'text' ? style.fill : style.color);
    return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05); }));
})()"""


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_both_colour_schemes(browser, folders, scheme):
    """Contrast of 4.5 at least (WCAG 2.1, AA), on what lies behind it."""
    browser.call(
        "Emulation.setEmulatedMedia",
        media="",
        features=[{"name": "prefers-color-scheme", "value": scheme}],
    )
    try:
        shown(browser, folders, "good")
        paper = browser.value("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert browser.value(CONTRAST) >= 4.5
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])


OF_MU = "this page takes mu as the certificate states it, and epsilon follows from mu"
"""What a page says where it computed epsilon from a stated mu alone."""


@needs_browser
def test_renyi_curves_are_computed_again_from_the_run(browser, folders):
    """Exact noise: noise, sensitivity and steps give epsilon; what a page leaves out it says."""
    shown(browser, folders, "exact")
    rows = browser.value(
        "[...document.querySelectorAll('#recomputed tr')].map(r => r.lastChild.innerText)"
    )
    assert (
        len(rows) >= 6
        and rows[:5] == ["agrees"] * 5
        and set(rows[5:])
        <= {
            "agrees",
            "cruder, does not contradict",
        }
    )
    said = browser.value("document.getElementById('recomputed-verdict').innerText")
    assert said.endswith("agree with the certificate."), "a cruder bound adds nothing to epsilon"
    assert "Nothing of epsilon is left out" in browser.value(
        "document.getElementById('not-recomputed').innerText"
    )
    claimed = read(folders / "exact").body["epsilon"]
    again = "window.lastiterateReport.renyiEpsilon(1e-5, {})"
    slope = read(folders / "exact").certificate.curve().slope
    assert browser.value(again.format(slope)) == pytest.approx(claimed, rel=1e-6)
    assert browser.value(again.format(slope * 1.01)) > claimed * 1.001
    shown(browser, folders, "good")
    assert OF_MU in browser.value("document.getElementById('not-recomputed').innerText")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loss": li.Logistic()}, "Nothing of epsilon is left out"),
        ({}, f"how mu follows from the run by the theorem shifted-interpolation: {OF_MU}"),
        (
            {"loss": li.Logistic(), "preprocessing": (li.PrivateMean(20.0, 1.0),)},
            f"how mu follows from the run by the theorem composition-gdp: {OF_MU}",
        ),
        (
            {"loss": li.Logistic(), "counts": (li.NoisyCount(40.0, 20),)},
            f"how mu follows from the run by the theorem composition-gdp: {OF_MU}",
        ),
        ({"probability_calibration": li.Calibration(30.0)}, OF_MU),
        (
            {"batching": li.Permuted(6)},
            "how the curve follows from the run by the theorem shifted-interpolation-permuted: "
            "this page takes the curve that was derived when it was made, and epsilon follows",
        ),
        (
            {"batching": li.RandomAllocation(6)},
            "epsilon itself, which is computed numerically by the theorem random-allocation-pld",
        ),
    ],
)
def test_the_page_says_what_of_epsilon_it_did_not_compute(tmp_path, changed, said):
    """Every number that it computes follows from what it starts from, and agrees."""
    run = li.Run(
        **{
            **dict(n=60, steps=10, step_size=0.5, loss=li.Logistic(ridge=0.05)),
            **dict(noise=li.NoiseMultiplier(6.0)),
            **changed,
        }
    )
    body = li.account(run).to_dict(1e-5)
    (tmp_path / "certificate.json").write_text(json.dumps(body))
    subject = read(tmp_path / "certificate.json")
    assert said in page_parts.not_computed(subject)
    forms = page_parts.list_closed_forms(subject)
    exactly = [one for one in forms if one["kind"] == "epsilon"]
    for one in exactly:
        assert Gdp(one["mu"]).epsilon(one["delta"]) == pytest.approx(one["stated"], rel=1e-6)
    assert ("epsilon itself" in page_parts.not_computed(subject)) == (
        not exactly and not any(one["kind"] == "mixture" for one in forms)
    )
    for one in forms:
        if one["kind"] == "composition":
            each = one["rows"] * one["sensitivity"] / (one["divisor"] * one["std"])
            mu = each * math.sqrt(math.ceil(one["steps"] / one["blocks"]))
            assert Gdp(mu).epsilon(one["delta"]) == pytest.approx(one["stated"], rel=1e-6)


def test_an_epsilon_beyond_exp_bounds_no_test():
    assert (
        tradeoff_summary.test_bound(1e4, 0.0, 0.1)
        == 1.0
        > tradeoff_summary.test_bound(1.0, 0.0, 0.1)
    )


def test_an_audit_is_compared_with_what_was_fixed_before_training(folders):
    settings = {"attack": "projection", "trials": 2000, "seed": 3, "failure": 0.05, "delta": 1e-5}
    body = {"word": {"audit": {"protocol": "one attack", "settings": settings}}}
    audit = settings | {"lower": 0.1}
    assert execution_section.departures(settings, audit) == []
    said = str(execution_section.render_protocol(body, audit))
    assert "very settings" in said and "Anybody can repeat" in said
    for name, other in (("trials", 500), ("seed", None), ("attack", "likelihood")):
        found = execution_section.departures(settings, audit | {name: other})
        assert found == [f"{name}: {other!r} instead of {settings[name]!r}"]
        assert "DEPARTS" in str(execution_section.render_protocol(body, audit | {name: other}))
    assert (
        "was not given" in str(execution_section.render_protocol(body, None))
        and execution_section.render_protocol({}, None) == ""
    )
    assert execution_section.settings_hash(settings) == execution_section.settings_hash(
        dict(reversed(settings.items()))
    )
    found = trained()
    model = li.train(
        RUN, (np.zeros((60, 2)), np.arange(60) % 2), delta=1e-5, statement=body["word"]
    )
    place = model.save(folders / "fixed")
    assert li.verify(place).holds and execution_section.settings_hash(settings) in page.page(
        read(place)
    )
    assert execution_section.command(settings).startswith(
        "lastiterate audit MODEL_DIR --attack projection --trials 2000"
    )
    stored = json.loads((place / "certificate.json").read_text())
    stored["word"]["audit"]["settings"]["trials"] = 10
    (place / "certificate.json").write_text(json.dumps(stored))
    assert not li.verify(place).holds  # settings that were changed afterwards
    for wrong in ({"attack": "x", "trials": 5}, settings | {"trials": 1.5}, settings | {"more": 1}):
        with pytest.raises(InputError, match="settings"):
            found.with_statement({"audit": {"protocol": "p", "settings": wrong}})


@needs_browser
def test_the_slider_moves_by_keyboard_and_says_the_certified_rates(browser, folders):
    shown(browser, folders, "good")
    tests = charts.tests(read(folders / "good").curve, None, 1e-5)
    browser.value("document.getElementById('rate').focus()")
    before = browser.value("document.getElementById('rate-said').innerText")
    browser.press("ArrowRight", 39)
    after = browser.value("document.getElementById('rate-said').innerText")
    test = tests[int(browser.value("document.getElementById('rate').value"))]
    said = float(re.search(r"at most ([\d.]+) %", after)[1])
    assert before != after and 100 * test.at_most * (1 - 1e-9) <= said <= 100 * test.at_most * 1.001
    assert browser.value("document.getElementById('rate').getAttribute('aria-valuetext')") == after
    assert (
        browser.value("document.getElementById('tradeoff-cursor').getAttribute('visibility')")
        == "visible"
    )


@needs_browser
def test_dropped_weights_are_recognised(browser, folders, tmp_path):
    shown(browser, folders, "good")
    weights = folders / "good" / "weights.safetensors"
    browser.drop("#drop", weights)
    browser.until("document.getElementById('drop-said').innerText.includes('SHA-256')")
    said = browser.value(
        "[document.getElementById('drop-said').innerText, "
        "document.getElementById('drop-said').className]"
    )
    assert said[0].startswith("This is weights.safetensors") and said[1] == "ok"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in said[0]
    (tmp_path / "other.safetensors").write_bytes(weights.read_bytes()[:-1] + b"\x01")
    browser.choose("#pick", tmp_path / "other.safetensors")
    browser.until("document.getElementById('drop-said').innerText.includes('NOT')")
    assert browser.value("document.getElementById('drop-said').className") == "no"


@needs_browser
def test_the_page_counts_like_the_library(browser, folders):
    """Written apart from it: the Gaussian curve, and SHA-256 for browsers without SubtleCrypto."""
    shown(browser, folders, "good")
    grid = [(e, mu) for e in (0.0, 0.1, 1.0, 3.0, 9.0) for mu in (0.05, 0.4, 1.0, 3.0, 8.0)]
    found = browser.value(
        f"{json.dumps(grid)}.map(([e, m]) => lastiterateReport.gaussianDelta(e, m))"
    )
    for (epsilon, mu), delta in zip(grid, found, strict=True):
        assert delta == pytest.approx(Gdp(mu).delta(epsilon), rel=1e-8, abs=1e-15), (epsilon, mu)
    assert browser.value("lastiterateReport.gaussianEpsilon(1e-6, 1)") == pytest.approx(
        Gdp(1.0).epsilon(1e-6), rel=1e-9
    )
    for size in (0, 1, 55, 56, 63, 64, 65, 1000):
        data = bytes(i * 7 % 256 for i in range(size))
        assert (
            browser.value(f"lastiterateReport.plainSha256(new Uint8Array({list(data)}))")
            == hashlib.sha256(data).hexdigest()
        ), size


@needs_browser
def test_downloads_are_the_files_of_the_release(browser, folders, tmp_path):
    shown(browser, folders, "good")
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for name in ("certificate.json", "references.bib"):
        browser.value(f"document.querySelector('button[data-download=\"{name}\"]').click()")
        browser.until("true")
        for _ in range(200):
            if (tmp_path / name).exists() and (tmp_path / name).stat().st_size:
                break
            browser.value("new Promise(done => setTimeout(done, 20))")
    assert (tmp_path / "certificate.json").read_bytes() == (
        folders / "good" / "certificate.json"
    ).read_bytes()
    assert "@misc{" in (tmp_path / "references.bib").read_text()


@needs_browser
@pytest.mark.parametrize(
    "name, more, words, colour",
    [
        ("run.json", {"min_evidence": li.Evidence.ASSUMED}, "Conditional", "rgb(138, 75, 0)"),
        ("refuted", {}, "REFUTED", "rgb(163, 0, 0)"),
        ("edited", {}, "This release does NOT verify", "rgb(163, 0, 0)"),
    ],
)
def test_warnings_come_first_and_in_their_colour(
    browser, folders, tmp_path, name, more, words, colour
):
    shown(browser, folders, name, **more)
    first = "document.querySelector('main').firstElementChild"
    assert browser.value(f"{first}.innerText").startswith(words)
    assert browser.value(f"getComputedStyle({first}).borderTopColor") == colour
    browser.picture(tmp_path / f"{name}.png")
    assert (tmp_path / f"{name}.png").stat().st_size > 15_000 and browser.complaints() == []
    if name == "refuted":
        assert browser.value("document.querySelectorAll('#tradeoff circle.mark').length") == 1


@needs_browser
def test_hostile_names_run_nothing(browser, folders):
    shown(browser, folders, "hostile")
    assert (
        browser.complaints() == []
        and browser.value("document.querySelectorAll('img, script').length") == 2
    )
    assert HOSTILE[0] in browser.value("document.querySelector('section.word').innerText")
    blocked = browser.value(
        "new Promise(done => { const s = document.createElement('script'); s.textContent = "
        "'window.x = 1';"
        " document.body.append(s); setTimeout(() => done(window.x === undefined), 50); })"
    )
    assert blocked, "the content policy lets no other script run"
    assert math.isfinite(browser.value("document.body.getBoundingClientRect().width"))


@pytest.mark.parametrize(
    ("change", "bad"), [({}, False), ({"lower": 9.5}, True), ({"refuted": True}, True)]
)
def test_an_audit_that_shows_more_than_the_certificate_refutes_it(tmp_path, change, bad):
    """Whatever it says of itself."""
    where = trained().save(tmp_path / "m")
    report = {
        "attack": "projection",
        "trials": 2000,
        "failure": 0.05,
        "delta": 1e-5,
        "lower": 0.1,
        "ceiling": 12.0,
        "refuted": False,
        "verdict": "no contradiction",
    }
    (where / "audit.json").write_text(json.dumps(report | change))
    assert read(where).refuted == bad


def test_an_audit_of_another_run_is_refused(tmp_path):
    one, other = (trained(steps=steps).save(tmp_path / str(steps)) for steps in (20, 21))
    told = CliRunner().invoke(
        cli.app, ["audit", str(one), "--seed", "1", "--trials", "200", "--json"]
    )
    (tmp_path / "audit.json").write_text(told.stdout)
    assert not read(one, audit=tmp_path / "audit.json").refuted
    with pytest.raises(InputError, match="audit is of another run than the certificate's"):
        read(other, audit=tmp_path / "audit.json")


def test_a_page_gives_reasons_of_its_own(folders, tmp_path):
    """Those of another version are not compared, and anybody may have written them."""
    copy = shutil.copytree(folders / "good", tmp_path / "m")
    body = json.loads((copy / "certificate.json").read_text()) | {"library": "lastiterate 0.0.9"}
    failing = next(row for row in body["verdicts"] if row["reasons"])
    own, failing["reasons"] = failing["reasons"][0], ["this model is harmless"]
    body["content_sha256"] = content_hash(body)
    (copy / "certificate.json").write_text(json.dumps(body))
    listed = json.loads((copy / "manifest.json").read_text())["sha256"]
    files = {name: (copy / name).read_bytes() for name in listed if (copy / name).exists()}
    (copy / "manifest.json").write_bytes(format_manifest(files))
    text = page.page(read(copy))
    assert "Verified" in text
    assert "<li>this model is harmless" not in text and f"<li>{own[:20]}" in text
