"""What a reader must see first: whether it holds, and what is guaranteed."""

from __future__ import annotations

from lastiterate.markup import Markup, tag
from lastiterate.report.frames import banner, folded, listed, section
from lastiterate.report.front_page import answers, beside
from lastiterate.report.subject import Subject
from lastiterate.report.words import number
from lastiterate.theorems import TABLE

CONSISTENT = ("Every number was derived again when this page was made, and agrees with the certificate.", (
    "What was stated beside the numbers (added caveats, the releaser's statement, software) is taken as written. No "
    "model was looked at, and who wrote the certificate is not shown."))
VERIFIED = ("When this page was made, every number was derived again; certificate, weights and model agree.", (
    "What was stated beside the numbers (added caveats, the releaser's statement, software) is taken as written. The "
    "page cannot vouch for itself: lastiterate verify compares it, and every other file of the folder, with the list "
    "that was written with them. Without a key neither shows who wrote them, and a folder that was issued again as a "
    "whole, with its page, looks the same: lastiterate verify --key checks a signature, if there is one."))
"""What was checked, and what that does not show."""


def refused(subject: Subject) -> list[Markup]:
    """The only part for a certificate that does not hold: nothing else of it is worth reading."""
    claimed, delta = subject.body.get("epsilon"), subject.body.get("delta")
    return [banner("bad", "This release does NOT verify: do not rely on it", [
        tag("ul", [tag("li", problem) for problem in subject.checked.problems]),
        tag("p", f"Its files claim epsilon {claimed} at delta {delta}. Nothing supports that claim.")])]


def banners(subject: Subject) -> list[Markup]:
    """What a reader must see first."""
    if subject.refuted:
        assert subject.audit is not None
        return [banner("bad", "REFUTED: an audit contradicts this certificate", tag(
            "p", f"The attack {subject.audit['attack']} distinguished the two data sets more often than the "
                 f"certificate allows (this is wrong with probability {subject.audit['failure']:g} at most). Do not "
                 "release this model."))]
    if subject.body["epsilon"] is None:
        return [
            banner(
                "bad", "Nothing certifies this run", tag("p", "No theorem gives a finite epsilon; section 4 says why.")
            )
        ]
    if condition := subject.checked.condition or subject.certified.condition:
        return [banner("warn", "Conditional: it rests on an assumption", tag(
            "p", condition))]
    if subject.described:
        return [
            banner(
                "good",
                "A run that is described",
                tag(
                    "p",
                    "The numbers follow from the description; they hold for whoever executes it exactly as it stands.",
                ),
            )
        ]
    checked, limits = VERIFIED if subject.weights else CONSISTENT
    return [banner("good", "Verified", [tag("p", checked), folded("What this does not show", tag("p", limits))])]


def summary(subject: Subject) -> Markup:
    """The first page, what others published, and the guarantee in other forms."""
    body, stated = subject.body, subject.body["stated"]
    rows: list[tuple[str, object]] = []
    if stated["mu"] is not None:
        least = stated["mu"]["for_delta_of_at_least"]
        exact = " exactly" if stated["mu"]["exact"] else \
            f": the closest Gaussian curve above, for delta of at least {least:g}"
        rows.append(("mu (Gaussian DP)", [number("stated.mu.value", stated["mu"]["value"]), exact]))
    if body.get("theorem"):
        rows.append(("certified by", [f"{body['theorem']}: {TABLE[body['theorem']].citation}"]))
    table = tag("table", tag("caption", "epsilon at several deltas, rounded up"),
                tag("thead", tag("tr", tag("th", "delta", scope="col", class_="num"), tag("th", "epsilon", scope="col",
                                                                                         class_="num"))),
                tag("tbody", [tag("tr", tag("td", number(f"stated.guarantees.{i}.delta", row["delta"],
                                                         f"{row['delta']:g}"), class_="num"),
                                  tag("td", number(f"stated.guarantees.{i}.epsilon", row["epsilon"]), class_="num"))
                              for i, row in enumerate(stated["guarantees"])]), class_="narrow")
    return section("1. The guarantee", [*answers(subject), beside(subject), listed(rows), table])
