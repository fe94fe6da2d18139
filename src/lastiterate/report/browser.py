"""What a report's script reads: positions of the slider, closed forms to compute again, hashes, downloads."""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from typing import Any

from lastiterate.accounting.certificate import Certificate
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.mixtures import GdpMixture
from lastiterate.models.folder import HASHES, MODEL, WEIGHTS
from lastiterate.report import series
from lastiterate.report.subject import Subject

LONGEST = 300_000
"""Characters of a certificate that a page carries a copy of."""
NAMES = {HASHES[WEIGHTS]: WEIGHTS, HASHES[MODEL]: MODEL}


def data(subject: Subject) -> dict[str, Any]:
    """JSON-ready."""
    found = tests_of(subject)
    hashes = {name: subject.body[entry] for entry, name in NAMES.items() if subject.body.get(entry)}
    return {"tests": [vars(test) for test in found], "gaussian": closed_forms(subject), "hashes": hashes,
            "weights": subject.weights, "downloads": downloads(subject, found)}


@lru_cache(maxsize=4)
def tests_of(subject: Subject) -> tuple[series.Test, ...]:
    """What tests can reach, where something certifies."""
    if subject.curve is None:
        return ()
    whole = isinstance(subject.certificate, Certificate)
    lower = series.strongest(subject.certificate, subject.delta) if whole else None
    return series.tests(subject.curve, lower, subject.delta)


def downloads(subject: Subject, found: tuple[series.Test, ...]) -> dict[str, tuple[str, str]]:
    """Files that the page can save: name to text and type."""
    made: dict[str, tuple[str, str]] = {}
    if len(subject.text) <= LONGEST:
        made["certificate.json"] = subject.text, "application/json"
    if hasattr(subject.certificate, "cite"):
        made["references.bib"] = subject.certificate.cite(), "text/plain"
    if found:
        text = io.StringIO()
        rows = [("false_positive_rate", "true_positive_rate_at_most", "true_positive_rate_at_least"),
                *((test.rate, test.at_most, test.at_least) for test in found)]
        csv.writer(text, lineterminator="\n").writerows(rows)
        made["trade-off.csv"] = text.getvalue(), "text/csv"
    return made


def closed_forms(subject: Subject) -> list[dict[str, Any]]:
    """What the browser computes again, and the numbers it must find."""
    stated, curve = subject.body["stated"], subject.curve
    found: list[dict[str, Any]] = []
    if isinstance(curve, Gdp) and stated["mu"]:
        mu = stated["mu"]["value"]
        found += [{"kind": "rate", "what": f"true-positive rate at {row['false_positive_rate']:g}", "mu": mu,
                   "rate": row["false_positive_rate"], "stated": row["at_most"]}
                  for row in stated["true_positive_rates"]]
        found.append({"kind": "right", "what": "right guesses", "mu": mu, "stated": stated["right_guesses"]})
    elif isinstance(curve, GdpMixture) and subject.body["epsilon"] is not None:
        found.append({"kind": "mixture", "what": f"delta at epsilon {subject.body['epsilon']:.4g}",
                      "epsilon": curve.epsilon(subject.delta), "mus": curve.mus, "weights": curve.weights,
                      "stated": subject.delta})
    for row in stated["guarantees"] if stated["mu"] else []:
        whole = row["delta"] >= stated["mu"]["for_delta_of_at_least"] and row["epsilon"] is not None
        if whole:
            exact = stated["mu"]["exact"]
            found.append({"kind": "epsilon" if exact else "above", "what": f"epsilon at delta {row['delta']:g}",
                          "delta": row["delta"], "mu": stated["mu"]["value"], "stated": row["epsilon"]})
    return [*found, *_composition(subject)]


def _composition(subject: Subject) -> list[dict[str, Any]]:
    """Composition of equal Gaussian steps, where nothing else is charged."""
    run, stated = subject.run, subject.body["stated"]
    verdicts = subject.body.get("verdicts", [])
    charged = next((row["epsilon"] for row in verdicts if row["theorem"] == "composition-gdp"), None)
    if run is None or charged is None or run.prelude or not run.same_noise:
        return []
    how = stated["contributions"]
    return [{"kind": "composition", "what": "composition of all steps", "sensitivity": how["sensitivity"],
             "divisor": how["divisor"], "std": stated["noise"]["std_of_mean_gradient"], "steps": run.steps,
             "blocks": run.blocks, "rows": run.rows_per_unit, "delta": subject.delta, "stated": charged}]
