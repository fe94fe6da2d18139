"""What a reader must see first: whether it holds, and what is guaranteed."""

from __future__ import annotations

from lastiterate.markup import Markup, tag
from lastiterate.report.frames import banner, listed, section
from lastiterate.report.subject import Subject
from lastiterate.report.words import number, odds
from lastiterate.run.adjacency import records_moved
from lastiterate.theorems import TABLE

CONSISTENT = (
    "Every number was derived again when this page was made, and agrees with the certificate. What was stated beside "
    "them (added caveats, the releaser's statement, software) is taken as written. No model was looked at, and who "
    "wrote the certificate is not shown."
)
VERIFIED = (
    "When this page was made, every number was derived again, and the certificate, the weights and the model's "
    "description agreed; what was stated beside them (added caveats, the releaser's statement, software) is taken as "
    "written. The page cannot vouch for itself: lastiterate verify compares it, and every other "
    "file of the folder, with the list that was written with them. Without a key neither shows who wrote them, and a "
    "folder that was issued again as a whole, with its page, looks the same: lastiterate verify --key checks a "
    "signature, if there is one."
)


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
        return [banner("warn", "Conditional: it rests on somebody's word", tag(
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
    return [
        banner(
            "good",
            "Verified",
            tag(
                "p",
                VERIFIED if subject.weights else CONSISTENT,
            ),
        )
    ]


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
    return section("1. The guarantee", [*parts, listed(rows), table])
