"""The first screen of docs/leaderboard.md and its JSON, from benchmarks/board.jsonl.

leaderboard_page.py writes both.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Any

MEASURES = {"accuracy": 1, "auroc": 1, "log_loss": -1}
"""What is compared, and whether more (1) or less (-1) is better."""
NAMES = {
    "lastiterate": "lastiterate",
    "dp-ebm": "DP-EBM",
    "opacus": "Opacus, tuned on the test part",
    "diffprivlib": "diffprivlib, tuned on the test part",
    "objective": "objective perturbation",
    "none": "no privacy, plain columns",
    "none-mapped": "no privacy, the same map",
    "best": "best possible",
}
EPSILONS = (0.3, 1.0, 3.0, 8.0)
LAST = ("randhie", "fair")
COLOUR = "#b45309"
PUBLISHED = (
    (
        "MNIST",
        "3",
        "accuracy .987",
        "Tramer and Boneh, ICLR 2021 (arXiv:2011.11660), scattering and a network",
    ),
    ("MNIST", "1", "accuracy .9817", "DPSUR, Fu et al., VLDB 2024 (arXiv:2311.14056), a network"),
    (
        "PneumoniaMNIST",
        "no privacy",
        "accuracy .854, AUROC .944",
        "Yang et al., Scientific Data 2023 (arXiv:2110.14795), ResNet-18 on 28 x 28",
    ),
    ("PneumoniaMNIST", "no privacy", "accuracy .946", "the same, Google AutoML Vision"),
)
HEAD = """# Leaderboard

`DPLogisticRegression` as it comes (`features="auto"`, calibrated probabilities, nothing chosen) beside other ways to
spend the same budget: delta 1e-5, the same records and splits for all. Medians over seeds 0, 1, ..., whose number
stands in the tables of every budget, with the range between the quartiles where there are at least three. Sets with a
test part of their own (Adult, synthetic tables, PneumoniaMNIST, MNIST, CIFAR-10 features) keep it, and seeds vary the
noise; of the others every seed draws a fifth. DP-EBM is interpret 0.7.8 with its defaults, two classes only, and gets
the same public ranges, categories and logarithmic scales; Opacus (DP-SGD) and diffprivlib are tuned on the test part,
which nobody may do with private data, and see the rows of our maps less their exact mean. Neighbours are zero-out for
us, add-remove for DP-EBM and Opacus; diffprivlib promises pure epsilon-DP. Seconds are of a fit, the map included, on
two loaded cores, for orientation. Two methods are compared by the mean difference over the seeds that both have: where
it is not larger than its standard error, paired by seed, they are a *tie*; where they share one seed, its sign decides.
Written by `python tools/leaderboard_page.py` from `benchmarks/board.jsonl` (`python -m benchmarks.utility.board
DATA_DIR --log benchmarks/board.jsonl`), figures in [leaderboard.json](leaderboard.json).

Nothing was chosen on these sets: constants follow from synthetic families, other ones than the synthetic tables here.
*RAND health insurance* and *Fair's survey* were named beforehand and fitted once, after everything else stood still.
That log loss of *iris* rose with the budget was seen here. What mends it, a public factor for scores of too few records
to calibrate (`AssumedSlope`), was chosen on the planner's reference problem and synthetic tables; a first form of it
was given up after it had made *digits* much worse here (.265 to .602 at epsilon 1). The 14 pairs of set and budget
without calibration were fitted again with the second: mean log loss is lower in 6 (*few records* at 0.3: 1.01 to .78;
*iris* at 3: .48 to .37) and higher in 8, where classes hardly overlap (*digits* at 1: .28 to .35).
That plans were far behind on *wine* at 0.3 was seen here, too. On synthetic tables of such sizes a private mean of the
rows was mostly noise and did harm; when plans go without it was chosen there (`benchmarks.utility.noisy_means`).
*Wine* and *iris* at 0.3, the two cells where that changes the plan, were then fitted again, once (medians .556 to .819
and .750 to .833).

Since then the planner weighs noise that cancels in memory, too, and takes it where budgets are large. What it changes
at 3 and 8 was fitted again, once, on every set but MNIST and the two that are looked at once; of those the plan is
another one for Fair's survey at 8. Seconds are from machines that differ by a
factor of two to three.

Since then whitened rows may keep their lengths. That changes 12 of the 44 pairs of table and budget, which were fitted
again, once, and once more when scores of such rows had got a shorter reach for the calibration (chosen on the tables of
`benchmarks.utility.probabilities`): log loss is lower in 9 (*wine* at 0.3: .481 to .461, *iris* at 8: .194 to .138,
Adult at 8: .3082 to .3066) and higher in 3 (*few records* at 1: .656 to .665, *rare positives* at 3 and 8 by .0003).

Since then 20 passes are weighed beside 50 where they save half a second. MNIST and CIFAR-10 features were fitted again,
MNIST with ten seeds for three: at 0.3 accuracy went from .9752 to .9745 and from .7900 to .7875, elsewhere it is the
same within .0002.

Rivals that are tuned on the test part have ten seeds on tables: the best setting of the first seed's grid goes on to
its neighbours until none is better, and the best three settings see the other seeds. Seeds 0 to 2 of *products* (but
at 0.3), *waves*, *rare positives*, PneumoniaMNIST, *categories* at 8 and digits (but at 8), and of the others at
other budgets than 1, are of the first grid, whose edge was often the best setting. (At 1 going on gained up to .0034
of accuracy, *lines* .7614 to .7648, Adult .8551 to .8582, and .064 on CIFAR-10 features, where 20 passes of 20
batches reached .7985 in another experiment of `benchmarks/RESULTS.md`; *wine* at 0.3 rose from .70 to .90 by steps of
a thirtieth.) The most accurate setting is chosen: its log loss need not be the best one. On CIFAR-10 features rivals
have three seeds; on MNIST Opacus and we have ten, objective perturbation two. diffprivlib on MNIST and CIFAR-10
features is shown at epsilon 1, one seed: fits on MNIST at 0.3 and 3 in another environment reached .116 and .167, which
do not go with .584 at 1 and were left out.
"""


def summary(log: Path) -> list[dict[str, Any]]:
    """One entry for every set, method and epsilon: medians, quartiles, seeds; the best possible
    where it is known."""
    groups = defaultdict[tuple[str, str, float | None], list[dict[str, Any]]](list)
    for line in log.read_text(encoding="utf-8").splitlines():
        fit = json.loads(line)
        groups[fit["set"], fit["method"], fit["epsilon"]].append(fit)
        if "best possible" in fit:
            groups[fit["set"], "best", None] = [fit | fit["best possible"] | {"seconds": 0.0}]
    found = []
    for (short, method, epsilon), fits in groups.items():
        title = fits[0]["title"].removesuffix(" pixels/255")
        entry: dict[str, Any] = {
            "set": short,
            "title": title,
            "n": fits[0]["n"],
            "method": method,
            "epsilon": epsilon,
            "seeds": len({fit["seed"] for fit in fits}),
        }
        for name in MEASURES:
            values = [fit[name] for fit in fits]
            entry[name] = round(median(values), 4)
            if len(values) >= 3:
                low, _, high = quantiles(values, n=4, method="inclusive")
                entry[f"{name}_spread"] = round(high - low, 4)
        entry["seconds"] = round(
            median(fit["seconds"] + fit.get("map_seconds", 0.0) for fit in fits), 3
        )
        if (
            epsilon is not None
            and method != "lastiterate"
            and (short, "lastiterate", epsilon) in groups
        ):
            entry["behind"] = paired(groups[short, "lastiterate", epsilon], fits)
        found.append(entry)
    return found


def paired(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> dict[str, list[float | None]]:
    """How far others are behind us by every measure: the mean over common seeds, and its standard
    error if there are at least two."""
    by_seed = {fit["seed"]: fit for fit in ours}
    pairs = [(by_seed[fit["seed"]], fit) for fit in theirs if fit["seed"] in by_seed]
    found: dict[str, list[float | None]] = {}
    for name, sign in MEASURES.items():
        apart = [sign * (mine[name] - fit[name]) for mine, fit in pairs]
        error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else None
        found[name] = [round(mean(apart), 5), None if error is None else round(error, 5)]
    return found


def verdict(behind: list[float | None]) -> str:
    """Who is ahead by more than a standard error: ``better`` (we are), ``worse``, or a ``tie``."""
    difference, error = behind[0] or 0.0, behind[1] or 0.0
    return "tie" if abs(difference) <= error else "better" if difference > 0 else "worse"


def cell(entry: dict[str, Any] | None) -> str:
    """Accuracy, AUROC and log loss; bold where better than ours by more than a standard error, in
    italics in a tie."""
    if entry is None:
        return ""
    marks = {
        name: {"worse": "**", "tie": "*"}.get(verdict(pair), "")
        for name, pair in entry.get("behind", {}).items()
    }
    numbers = {
        name: f"{entry[name]:.4f}"[1:] if 0 <= entry[name] < 1 else f"{entry[name]:.3f}"
        for name in MEASURES
    }
    return " / ".join(
        f"{marks.get(name, '')}{number}{marks.get(name, '')}" for name, number in numbers.items()
    )


def first_screen(entries: list[dict[str, Any]], epsilon: float = 1.0) -> list[str]:
    """All sets at one budget."""
    methods = ("lastiterate", "dp-ebm", "opacus", "objective", "none", "none-mapped", "best")
    lines = [
        f"## At epsilon {epsilon:g}: accuracy / AUROC / log loss\n",
        "Of the other private methods, a number in "
        "**bold** is better than that of lastiterate, one in *italics* is a tie.\n",
        "| set | n | " + " | ".join(NAMES[method] for method in methods) + " |",
        "|---|---|" + "---|" * len(methods),
    ]
    for short in dict.fromkeys(entry["set"] for entry in entries):
        here = {
            entry["method"]: entry
            for entry in entries
            if entry["set"] == short and entry["epsilon"] in (epsilon, None)
        }
        some = next(iter(here.values()))
        lines.append(
            f"| {some['title']}{' (looked at once)' if short in LAST else ''} | {some['n']} | "
            + " | ".join(cell(here.get(method)) for method in methods)
            + " |"
        )
    return lines


def compared(
    entries: list[dict[str, Any]], rival: str
) -> tuple[str, list[tuple[str, float, list[str]]]]:
    """In how many cells (set, budget, measure) we are better than a rival, and those where we are
    not."""
    counts, found = Counter[str](), list[tuple[str, float, list[str]]]()
    for entry in entries:
        if entry["method"] != rival or "behind" not in entry:
            continue
        verdicts = {name: verdict(pair) for name, pair in entry["behind"].items()}
        counts.update(verdicts.values())
        others = [
            f"{name.replace('_', ' ')} {said}"
            for name, said in verdicts.items()
            if said != "better"
        ]
        if others:
            found.append((entry["title"], entry["epsilon"], others))
    return (
        f"better in {counts['better']} of {counts.total()} cells (set, budget, measure), a tie in "
        f"{counts['tie']}, "
        f"worse in {counts['worse']}"
    ), found


def against_boosting(entries: list[dict[str, Any]]) -> list[str]:
    """Where DP-EBM is not behind, and why."""
    said, found = compared(entries, "dp-ebm")
    lines = ["\n## Against DP-EBM\n", f"{said[0].upper()}{said[1:]}."]
    if found:
        lines += [
            "\nNot better:\n",
            *(
                f"- {title}, epsilon {epsilon:g}: {', '.join(others)}"
                for title, epsilon, others in found
            ),
            "",
            WHY,
        ]
    return lines


WHY = """*Few records* (1,000 records, effects that are waves): curves need records times mu of 60 for each number of a
record to stand out of the noise, and get 89 and 268 for six numbers at these budgets. The automatic map is therefore
plain, and no straight line shows a wave: the same rows without privacy reach an AUROC of .661. At epsilon 0.3 there is
not enough for calibrated probabilities either (records times mu below 200), so that they are too steep, also after the
public factor, and their log loss is worse than that of a constant (.693)."""


def against_others(entries: list[dict[str, Any]]) -> list[str]:
    """How often each other private method is behind, and on which sets at epsilon 1 it is not."""
    lines = ["\n## Against the others\n"]
    for rival in ("objective", "opacus", "diffprivlib"):
        said, found = compared(entries, rival)
        where = [
            f"{title} ({', '.join(others)})" for title, epsilon, others in found if epsilon == 1
        ]
        lines.append(
            f"- {NAMES[rival]}: {said}; not better at epsilon 1 on "
            + (", ".join(where) if where else "no set")
            + "."
        )
    return [*lines, "", OTHERS]


OTHERS = """Objective perturbation is one of this library's algorithms (`algorithm="objective-perturbation"`), here
without calibration. *Why it is ahead where it is*, on synthetic tables alone (`benchmarks.utility.weak_signals`: 8,000
records, scores with a standard deviation of 0.8 / 1.5 / 3; both calibrated; log loss above the best possible one): at
epsilon 1 the blocks of the automatic plan lose .0082 / .0090 / .0121 and the perturbed objective .0120 / .0152 / .0214,
at epsilon 8 .0070 / .0074 / .0085 and .0056 / .0065 / .0077. The planner predicts .0019 and .0113, then .0002 and
.0003: it counts noise and what is not learnt, which is nearly everything at small budgets, and not that records are a
sample, which is nearly everything at large ones (.005 without privacy). Contributions that are clipped to a tenth have
a ninth more of that on the planner's reference problem, and a ridge takes part of it off. How much is a matter of how
strong the signal is, which is not public: on 8,000 Gaussian rows at epsilon 1 a ridge of .01 loses .0064 against .0107
of the blocks where scores are 0.8 wide, and .0327 against .0146 where they are 3 wide. Both sets that were looked at
once have weak signals (AUROC .67 and .76 without privacy). A planner that counts the sample was tried on 29 drawn
problems of six synthetic families: it took the perturbed objective on 12, where log loss was lower on 4 (by .004 at
most), higher on 4 (by .017 at most, where classes hardly overlap) and the same on 4, and accuracy higher on 7 (by .002
at most) and lower on 3 (by .005 at most). That is no gain to rely on, and the plan stays. Whoever knows that signals
are weak names the algorithm."""


def published() -> list[str]:
    """Other people's figures, in another colour."""
    lines = [
        f'\n## <span style="color:{COLOUR}">Published figures</span>\n',
        "Not run by us, and not on our splits or seeds.\n",
        "| set | epsilon | figure | source |",
        "|---|---|---|---|",
    ]
    return lines + [
        f'| {short} | {epsilon} | <span style="color:{COLOUR}">{figure}</span> | {source} |'
        for short, epsilon, figure, source in PUBLISHED
    ]


def every_budget(entries: list[dict[str, Any]]) -> list[str]:
    """A table for every set: methods by budgets."""
    lines = list[str]()
    for short in dict.fromkeys(entry["set"] for entry in entries):
        here = [entry for entry in entries if entry["set"] == short]
        lines += [
            f"\n## {here[0]['title']}, every budget\n",
            f"n = {here[0]['n']}.\n",
            "| epsilon | method | accuracy | AUROC | log loss | seconds | seeds |",
            "|---|---|---|---|---|---|---|",
        ]
        order = {method: place for place, method in enumerate(NAMES)}
        for entry in sorted(here, key=lambda e: (e["epsilon"] or 99.0, order[e["method"]])):
            numbers = [
                f"{entry[name]:.4f}"
                + (f" ({entry[f'{name}_spread']:.4f})" if f"{name}_spread" in entry else "")
                for name in MEASURES
            ]
            budget = "" if entry["epsilon"] is None else f"{entry['epsilon']:g}"
            lines.append(
                f"| {budget} | {NAMES[entry['method']]} | "
                + " | ".join(numbers)
                + f" | {entry['seconds']:.2g} | {entry['seeds']} |"
            )
    return lines


def screen(entries: list[dict[str, Any]]) -> str:
    """The whole first part of the page."""
    return "\n".join(
        [
            HEAD,
            *first_screen(entries),
            *against_boosting(entries),
            *against_others(entries),
            *published(),
            *every_budget(entries),
        ]
    )
