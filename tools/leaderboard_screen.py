"""The first screen of docs/leaderboard.md and its JSON, from benchmarks/board.jsonl, and the
comparison of maps of images, from benchmarks/colour_images.jsonl.

leaderboard_page.py writes both files.
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
ROOT = Path(__file__).parents[1]
IMAGES = {
    "superclasses": "Natural images of 20 classes",
    "pneumonia": "PneumoniaMNIST",
    "mnist": "MNIST",
}
MAPS = {
    "patches": "patches",
    "patches-unmirrored": "patches, not mirrored",
    "scattering": "scattering",
    "scattering-mirrored": "scattering, mirrored",
    "pixels": "pixels",
    "network": "Opacus' example network",
}
SEEDS = 5
"""Seeds of a comparison of maps; the board has more of the automatic map."""
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

`DPLogisticRegression` with its defaults and nothing tuned, next to other ways to spend the same budget. Delta is 1e-5,
and all methods see the same records and splits. The numbers are medians over seeds, recorded in November 2026.
"""
PROTOCOL = """
## How it was measured

- **Splits.** Adult, synthetic tables, PneumoniaMNIST, MNIST and CIFAR-10 features keep their own test part, and seeds
  vary the noise. Of the other sets each seed draws a fifth.
- **Neighbours.** Zero-out for lastiterate, add-remove for DP-EBM and Opacus. diffprivlib promises pure epsilon-DP.
- **DP-EBM** is interpret 0.7.8 with its defaults, for two classes. It gets the same public ranges, categories and
  logarithmic scales.
- **Opacus and diffprivlib** are tuned on the test part, which nobody may do with private data. They see the rows of our
  maps less their exact mean. The best setting of the first seed's grid is extended to its neighbours until none is
  better; the best three see the other seeds. Some cells are of an earlier grid without that extension: seeds 0 to 2 of
  *products* (but at 0.3), *waves*, *rare positives*, PneumoniaMNIST, *categories* at 8, digits (but at 8), and the
  others at budgets other than 1. At epsilon 1 the extension gained up to .0034 of accuracy, .064 on CIFAR-10 features.
- **Ties.** Two methods are compared by the mean difference over common seeds. A difference that is not larger than its
  standard error, paired by seed, is a *tie*.
- **Nothing was chosen on these sets**, with two exceptions that were seen here and mended on synthetic tables: the log
  loss of few records (a public factor for scores), and plans with a noisy mean on *wine* and *iris* at 0.3.
  *RAND health insurance* and *Fair's survey* were named beforehand and fitted once.
- **Seconds** are those of a fit with its map, on loaded machines that differ by a factor of two to three.
- diffprivlib on MNIST and CIFAR-10 features is shown at epsilon 1, one seed. Fits on MNIST at 0.3 and 3 in another
  environment (.116 and .167) do not agree with .584 at 1 and were left out.

`python tools/leaderboard_page.py` writes this page from `benchmarks/board.jsonl`
(`python -m benchmarks.utility.board DATA_DIR --log benchmarks/board.jsonl`). The figures are in
[leaderboard.json](leaderboard.json).
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


WHY = """*Few records* has 1,000 records and effects that are waves. Curves need more budget than these records have, so
the automatic map is plain, and no straight line shows a wave. The same rows without privacy reach an AUROC of .661. At
epsilon 0.3 there is not enough for calibrated probabilities either."""


def against_others(entries: list[dict[str, Any]]) -> list[str]:
    """How often each other private method is behind, and on which sets at epsilon 1 it is not."""
    lines = ["\n## Against the others\n"]
    for rival in ("objective", "opacus", "diffprivlib"):
        said, found = compared(entries, rival)
        where = [
            f"{title} ({', '.join(others)})" for title, epsilon, others in found if epsilon == 1
        ]
        lines.append(
            f"- {NAMES[rival]}: {said}. Not better at epsilon 1 on "
            + (", ".join(where) if where else "no set")
            + "."
        )
    return [*lines, "", OTHERS]


OTHERS = """Objective perturbation is one of this library's algorithms (`algorithm="objective-perturbation"`), here
without calibration. It is ahead where signals are weak and budgets large
(`python -m benchmarks.utility.weak_signals`). How strong a signal is, is not public, so the planner cannot know. If you
know that signals are weak, name the algorithm."""


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


def compare_maps(logs: list[Path]) -> list[str]:
    """Accuracies of images by every map, and by a network: means and standard deviations."""
    cells = defaultdict[tuple[str, str, float], dict[int, float]](dict)
    for log in logs:
        for fit in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
            if fit["set"] in IMAGES and fit["epsilon"] is not None and fit["seed"] < SEEDS:
                name = fit["map"] if fit["method"] == "lastiterate" else fit["method"]
                name = "pixels" if name == "plain" else name
                seeds = cells[fit["set"], name, fit["epsilon"]]
                seeds.setdefault(fit["seed"], fit["accuracy"])  # the first log that has it
    budgets = " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS)
    lines = [IMAGES_HEAD, f"| set | rows | {budgets} |", "|---|---|" + "---|" * len(EPSILONS)]
    for short, title in IMAGES.items():
        for name, words in MAPS.items():
            found = [list(cells[short, name, epsilon].values()) for epsilon in EPSILONS]
            if any(found):
                lines.append(f"| {title} | {words} | {' | '.join(map(spread_of, found))} |")
    return lines


def spread_of(accuracies: list[float]) -> str:
    """Mean and standard deviation, and how many seeds, where they are not all."""
    if len(accuracies) < 2:
        return ""
    said = f"{mean(accuracies):.4f} ± {stdev(accuracies):.4f}"
    return said + f" ({len(accuracies)})" * (len(accuracies) != SEEDS)


IMAGES_HEAD = """
## Maps of images

Accuracy of `DPLogisticRegression` with its defaults on rows of public maps: means over five seeds with standard
deviations. A number in parentheses counts the seeds where they are fewer. The defaults take patches for natural
images, scattering for MNIST, and for PneumoniaMNIST pixels at epsilon 0.3 and scattering from 1 on. The network is
trained by Opacus without tuning, and counts add-remove.

The constants of patches were chosen on the natural images, so expect less of patches on other photographs.
`python -m benchmarks.utility.colour_images DATA_DIR --log benchmarks/colour_images.jsonl` measures them.
"""


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
            *compare_maps(
                [ROOT / "benchmarks" / f"{name}.jsonl" for name in ("colour_images", "board")]
            ),
            *published(),
            PROTOCOL,
            *every_budget(entries),
        ]
    )
