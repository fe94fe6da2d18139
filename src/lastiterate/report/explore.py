"""The explorer: its page, its loopback server and its answers."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast, get_args
from urllib.parse import SplitResult, parse_qs, urlsplit

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_subject import finite
from lastiterate.curves.curve import check_delta
from lastiterate.errors import InputError, NotCertified
from lastiterate.markup import Markup, tag
from lastiterate.report.figures import steps, tradeoff
from lastiterate.report.page import part, source_hash
from lastiterate.report.subject import ReportSource
from lastiterate.run import serialization
from lastiterate.run.batching import Batching
from lastiterate.run.facts import Evidence
from lastiterate.run.losses import HuberRidge, Logistic, Softmax
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.run import Run
from lastiterate.run.serialization import is_object
from lastiterate.run.validation import check_choice, is_finite
from lastiterate.theorems import TABLE, Theorem

# The explorer's answers: a run from a few numbers, what the theorems say of it, and how to write it
# elsewhere.  The accountant answers every question; the page only shows what it is given.


def _list_closed_forms() -> tuple[Theorem, ...]:
    """Return the theorems whose bounds are closed forms or short searches."""
    return tuple(theorem for theorem in TABLE.values() if theorem.family != "sampling")


"""The theorems whose numbers come at once."""
KINDS = {kind.word: kind for kind in get_args(Batching)}
LOSSES = ("logistic", "softmax of 10 classes", "huber-ridge")
WHOLE, NUMBERS = (
    {"n": 1e12, "batch": 1e12, "passes": 1e9},
    ("step", "ridge", "clip", "noise", "delta"),
)
"""Integers with their largest values, and other numbers."""
LEAST_DELTA = 1e-300
"""The smallest delta of a question; the logarithms of smaller ones leave the range of doubles."""
DEFAULT: dict[str, Any] = {
    "n": 6000,
    "batch": 300,
    "passes": 30,
    "step": 0.2,
    "ridge": 0.01,
    "clip": 1.0,
    "noise": 3.0,
    "delta": 1e-5,
    "batching": "permuted",
    "loss": "logistic",
    "adjacency": "zero-out",
}
"""What the page begins with."""


@dataclass(frozen=True)
class ExploreRequest:
    """A question: the run that the fields describe, and delta."""

    run: Run
    delta: float

    @property
    def sampled(self) -> bool:
        """Whether more than closed forms speak of the run."""
        batching = self.run.batching
        return batching.drawn not in ("never", "once") or batching.independent


def read(fields: object) -> ExploreRequest:
    """The question in the page's fields; ``InputError`` for anything else."""
    if not is_object(fields) or set(fields) != set(DEFAULT):
        raise InputError("fields", "must be those of the page", None)
    given = cast(dict[str, Any], fields)
    for name in (*WHOLE, *NUMBERS):
        value = given[name]
        if value is None:
            raise InputError(name, "must be a number", None, "fill in the field")
        if not is_finite(value):
            raise InputError(name, "must be a number", value)
        if name in WHOLE and (value != int(value) or not 1 <= value <= WHOLE[name]):
            raise InputError(name, f"must be an integer from 1 to {WHOLE[name]:g}", value)
    for name, known in (("batching", KINDS), ("loss", LOSSES)):
        check_choice(name, given[name], known)
    check_delta(given["delta"])
    if given["delta"] < LEAST_DELTA:
        raise InputError("delta", f"must be at least {LEAST_DELTA:g}", given["delta"])
    if given["batching"] != "full" and given["batch"] > given["n"]:
        raise InputError(
            "batch",
            "must be at most n, the number of records",
            given["batch"],
            f"n is {int(given['n']):,}",
        )
    try:
        return ExploreRequest(_run(given), float(given["delta"]))
    except InputError as error:
        raise _translate(error, given) from None


FIELDS = {"step_size": "step"}
"""Arguments of a run that are called otherwise on the page."""
MOST_STEPS = 10**9
"""Steps of a run, at most."""


def _translate(error: InputError, given: dict[str, Any]) -> InputError:
    """Return the refusal of a run in the page's words."""
    if error.argument == "steps":
        n, passes = int(given["n"]), int(given["passes"])
        return InputError(
            "passes",
            f"times n / batch must be at most {MOST_STEPS:,} steps",
            passes,
            f"take a batch of at least {-(-n // (MOST_STEPS // passes)):,}, or fewer epochs",
        )
    return InputError(FIELDS.get(error.argument, error.argument), error.rule.removesuffix("."))


def _run(given: dict[str, Any]) -> Run:
    n, size, passes = (int(given[name]) for name in WHOLE)
    batching = KINDS[given["batching"]].of_size(n, size)
    per_pass = (
        batching.blocks(n)
        if batching.blocks(n) > 1
        else max(1, round(n / batching.expected_batch(n)))
    )
    ridge, clip = float(given["ridge"]), float(given["clip"])
    loss = {
        "logistic": lambda: Logistic(ridge=ridge),
        "softmax of 10 classes": lambda: Softmax(classes=10, ridge=ridge),
        "huber-ridge": lambda: HuberRidge(residual_clip=1.0, ridge=ridge),
    }[given["loss"]]()
    return Run(
        n=n,
        steps=passes * per_pass,
        step_size=float(given["step"]),
        noise=NoiseMultiplier(float(given["noise"])),
        batching=batching,
        clip=clip or None,
        adjacency=given["adjacency"],
        loss=loss,
    )


def answer(fields: object, *, rows: str) -> dict[str, Any]:
    """What the page shows. ``rows``: "closed" for closed forms alone, "all", or "curves" for the
    pictures as well.

    ``final``: whether a later answer could differ.
    """
    asked = read(fields)
    theorems = _list_closed_forms() if rows == "closed" else tuple(TABLE.values())
    proof = Certificate.of(asked.run, theorems, Evidence.ENFORCED)
    best, epsilon = proof.best(asked.delta), proof.epsilon(asked.delta)
    shown: dict[str, Any] = {
        "epsilon": finite(epsilon),
        "delta": asked.delta,
        "theorem": None if best is None or math.isinf(epsilon) else best.theorem.name,
        "lower": finite(proof.lower(asked.delta)),
        "multiplier": asked.run.noise.z,  # pyright: ignore
        "std": asked.run.first_noise,
        "steps": asked.run.steps,
        "final": rows != "closed" or not asked.sampled,
        "why_not": "" if math.isfinite(epsilon) else _explain_infinite(asked.run, proof, best),
        "others": [
            [
                row["theorem"],
                row["kind"],
                row["epsilon"] if row["epsilon"] is None else finite(row["epsilon"]),
            ]
            for row in proof.rows(asked.delta)
            if row["applies"]
        ],
    }
    if rows == "curves":
        shown["curves"] = _curves(asked, proof)
    else:
        shown["copies"] = copies(asked)
    return shown


def _explain_infinite(run: Run, proof: Certificate, best: object) -> str:
    """Return why no theorem gives a finite epsilon."""
    if best is None:
        return proof.why_not()
    if not run.first_noise:
        return "no theorem: without noise nothing hides a record"
    return "no theorem: those that apply give no finite epsilon"


NUMBERED = re.compile(r"(<h2[^>]*>)[0-9]+\. ")
"""A heading with its number in a report, which this page does not have."""


def _curves(asked: ExploreRequest, certificate: Certificate) -> Markup:
    """The report's own pictures of the run."""
    from lastiterate.accounting.certificate_json import CheckResult

    text = certificate.to_json(asked.delta)
    subject = ReportSource(
        "run",
        json.loads(text),
        text,
        CheckResult((), None, asked.delta),
        certificate,
        described=True,
    )
    pictures = tag("div", tradeoff(subject, moving=False), steps(subject))
    return Markup(NUMBERED.sub(r"\1", str(pictures)))


def copies(asked: ExploreRequest) -> dict[str, str]:
    """The run as Python, as a command and as JSON: each gives the same run."""
    run = asked.run
    parts = [
        f"n={run.n}",
        f"steps={run.steps}",
        f"step_size={run.first_step!r}",
        f"noise=li.{run.noise!r}",
        f"batching=li.{run.batching!r}",
        f"clip={run.clip!r}",
        f"adjacency={run.adjacency!r}",
        f"loss=li.{run.loss!r}",
    ]
    text = run.to_json()
    return {
        "python": "import lastiterate as li\n\nrun = "
        f"li.Run({', '.join(parts)})\nprint(li.account(run).explain("
        f"{asked.delta!r}))\n",
        "cli": f"cat > run.json <<'END'\n{text}\nEND\nlastiterate account run.json --delta "
        f"{asked.delta!r}\n",
        "json": text + "\n",
    }


# The explorer's page and its server: the loopback alone, one page, one question, nothing read from
# disk.

LONGEST = 4096
"""Bytes of a question."""
PATIENCE = 10
"""Seconds that a connection may be silent before it has sent its question, or taken its answer."""
SLIDERS = {
    "n": ("records n", 1.3, 7.0, True),
    "batch": ("batch b", 0.0, 6.0, True),
    "passes": ("epochs", 0.0, 4.0, True),
    "step": ("step size", -4.0, 1.0, True),
    "ridge": ("ridge", -6.0, 0.0, True),
    "clip": ("clipping norm", -3.0, 2.0, True),
    "noise": ("noise multiplier", -2.0, 3.0, True),
    "delta": ("delta", -12.0, -2.0, True),
}
"""Label, ends in powers of ten."""


@cache
def page() -> str:
    """The page: sliders and answers, script and style in it by their hashes."""
    rows = [_slider(name, *SLIDERS[name][:3]) for name in SLIDERS]
    rows += [
        _choice("batching", "batches", KINDS),
        _choice("loss", "loss", LOSSES),
        _choice("adjacency", "adjacency", ("zero-out", "replace-one", "add-remove")),
    ]
    answers = [
        _answer("epsilon at most", "epsilon", "big"),
        _answer("certified by", "theorem"),
        _answer("for one record, at delta", "at-delta"),
        _answer("no proof for this class of losses can go below", "lower"),
        _answer("noise multiplier", "multiplier"),
        _answer("steps", "steps-said"),
    ]
    copying = [
        tag("button", f"copy as {word}", type="button", data_copy=key)
        for key, word in (("python", "Python"), ("cli", "CLI"), ("json", "JSON"))
    ]
    body = tag(
        "main",
        tag("h1", "What would this run be certified with?"),
        tag("form", rows, id="fields"),
        tag("p", "", id="error", class_="no", role="alert"),
        tag(
            "section",
            tag("table", tag("tbody", answers)),
            tag(
                "p",
                "A record is a row, or a person where the run takes persons as records. What train "
                "measures besides (means, covariances, calibration) is part of a model's epsilon "
                "and not of this one.",
            ),
            tag("details", tag("summary", "all that applies"), tag("ul", "", id="others")),
            id="answer",
            aria_live="polite",
            aria_label="answer",
        ),
        tag("p", copying, tag("output", "", id="copy-said")),
        tag("label", "text to copy", for_="copied"),
        tag("textarea", "", id="copied", rows=6, cols=80, readonly=True),
        tag("div", "", id="curves"),
        id="content",
    )
    rules = (
        f"default-src 'none'; connect-src 'self'; script-src {source_hash('explore.js')}; style-src "
        f"{source_hash('page.css')}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    head = tag(
        "head",
        Markup('<meta charset="utf-8">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "lastiterate explore"),
        Markup(f"<style>{part('page.css')}</style>"),
    )
    html = tag(
        "html", head, tag("body", body, Markup(f"<script>{part('explore.js')}</script>")), lang="en"
    )
    return f"{rules}\n<!DOCTYPE html>\n{html}\n"


def _slider(name: str, label: str, low: float, high: float) -> Markup:
    value = DEFAULT[name]
    return tag(
        "p",
        tag("label", f"{label}: ", for_=name),
        tag("input", type="number", id=name, name=name, value=value, step="any", data_number="1"),
        tag(
            "input",
            type="range",
            min=low,
            max=high,
            step=0.001,
            value=f"{math.log10(value):.3f}",
            data_mirror=name,
            data_log="1",
            aria_label=f"{label}, logarithmic",
        ),
    )


def _choice(name: str, label: str, values: Any) -> Markup:
    return tag(
        "p",
        tag("label", f"{label}: ", for_=name),
        tag(
            "select",
            [
                tag("option", value, value=value, selected=value == DEFAULT[name])
                for value in values
            ],
            id=name,
            name=name,
        ),
    )


def _answer(label: str, name: str, look: str | None = None) -> Markup:
    return tag(
        "tr", tag("th", label, scope="row"), tag("td", tag("output", "", id=name, class_=look))
    )


class Handler(BaseHTTPRequestHandler):
    """Answers the page's own questions; others get nothing.

    **Guarantee:** a request that names another host than the loopback's, or that another page sent,
    is refused: pages elsewhere cannot ask.
    """

    server_version, sys_version = "lastiterate", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        """The page."""
        place = self._address()
        if place is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "the address must be one of this server")
            return
        if not self._ours() or place.path != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "there is one page, at /")
            return
        rules, _, text = page().partition("\n")
        self._send(
            HTTPStatus.OK,
            text.encode(),
            "text/html; charset=utf-8",
            {"Content-Security-Policy": rules},
        )

    def do_POST(self) -> None:
        """One question."""
        place, length = self._address(), self.headers.get("Content-Length", "")
        rows = "" if place is None else parse_qs(place.query).get("rows", [""])[0]
        known = (
            place is not None and place.path == "/answer" and rows in ("closed", "all", "curves")
        )
        digits = length.isascii() and length.isdigit() and len(length) <= 8
        if (
            not self._ours()
            or not known
            or self.headers.get("Content-Type") != "application/json"
            or not digits
            or (int(length) > LONGEST)
        ):
            self._refuse(
                HTTPStatus.BAD_REQUEST,
                f"a question is JSON of at most {LONGEST} bytes, sent by the page",
            )
            return
        try:
            body = self.rfile.read(int(length))
        except OSError:  # nothing more comes
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT, f"a question must arrive within {PATIENCE} seconds"
            )
            return
        try:
            found = json.dumps(
                answer(serialization.loads(body, "question"), rows=rows), allow_nan=False
            )
        except (InputError, NotCertified) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except (ArithmeticError, ValueError):
            self._refuse(
                HTTPStatus.BAD_REQUEST, "these numbers are too large or too small to compute with"
            )
        else:
            self._send(HTTPStatus.OK, found.encode(), "application/json", {})

    def _address(self) -> SplitResult | None:
        """The address that is asked for, or nothing where it is none."""
        try:
            return urlsplit(self.path)
        except ValueError:
            return None

    def _ours(self) -> bool:
        port = cast(ThreadingHTTPServer, self.server).server_port
        known = {f"127.0.0.1:{port}", f"localhost:{port}"}
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in known and (
            origin is None or origin in {f"http://{name}" for name in known}
        )

    def _send(self, status: HTTPStatus, body: bytes, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **more,
        }.items():
            self.send_header(name, value)
        with suppress(OSError):  # a page that has moved on does not wait for its answer
            self.end_headers()
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Say in one sentence why there is no answer; the connection ends."""
        self.close_connection = True
        self._send(
            status,
            json.dumps({"error": sentence}).encode(),
            "application/json",
            {"Connection": "close"},
        )

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses by itself, such as a request that is no HTTP, in the
        same form."""
        self.request_version = (
            "HTTP/1.0"  # whatever was asked for: without one there would be no status
        )
        self._refuse(HTTPStatus(code), (message or HTTPStatus(code).phrase)[:200])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def warm() -> None:
    """Load what answers about drawn batches need, by a short run, so that the first one comes as
    soon as later ones."""
    answer(DEFAULT | {"batching": "poisson", "passes": 1}, rows="all")


def serve(port: int = 0) -> ThreadingHTTPServer:
    """A server on the loopback; ``port`` 0 takes a free one. ``serve_forever`` runs it."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError("port", "must be free", port, error.strerror or "") from None
