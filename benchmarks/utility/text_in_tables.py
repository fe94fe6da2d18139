"""What text and curves bring and cost next to each other, on synthetic tables.

    python -m benchmarks.utility.text_in_tables [--seeds 4] [--records 5000]

Six numbers and one category have effects of their own. The text says nothing, or has two of eight
words that tell for a class, or 20 of 720 words of which every one has a small effect; "rare" tables
have about 4 % of the second class, and "lines" have effects that are straight lines. Printed
is the AUROC on 4,000 fresh records of ``DPLogisticRegression`` at epsilon 1, delta 1e-5, zero-out.
"""

from __future__ import annotations

import argparse
import itertools
import random
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from lastiterate.data.schema import Schema
from lastiterate.estimators import DPLogisticRegression

TEST, NUMBERS, JOBS = 4000, 6, "abcde"
KINDS = (
    "says nothing",
    "two words",
    "many words",
    "says nothing, rare",
    "two words, rare",
    "says nothing, rare, lines",
)
WAYS = ("plain, no text", "curves, no text", "curves, 32 for text", "auto")
TELLING = (
    "win prize money now offer free cash click",
    "meeting report lunch thanks budget team call notes",
)
FILLING = (
    "the a and for with on in at of to is was called said that came back today again form paid "
    "invoice desk office letter sent later early"
)
MANY = [
    "".join(parts)
    for parts in itertools.product(
        ("ba", "ke", "lo", "mi", "ru", "ta", "se", "no", "vi", "du"),
        ("r", "st", "nt", "l", "mp", "g", "x", "ck"),
        ("a", "en", "ing", "ed", "ly", "or", "is", "um", "ot"),
    )
]
Columns = dict[str, Any]


def make_table(n: int, kind: str, seed: int) -> tuple[Columns, np.ndarray]:
    """Columns by name, and classes (n,)."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    x, job = rng.uniform(0, 100, (n, NUMBERS)), rng.integers(0, len(JOBS), n)
    if "lines" in kind:
        score = (x[:, 0] - 50) / 15 + (x[:, 1] - 50) / 20 + (x[:, 2] - 50) / 25
    else:
        score = (x[:, 0] - 50) / 25 + (x[:, 1] - 50) / 40 + np.abs(x[:, 2] - 50) / 20
    score += (job == 2) - (6.0 if "rare" in kind else 2.2)
    if "many words" in kind:
        weights = rng.normal(size=len(MANY))
        drawn = [draw.choices(range(len(MANY)), k=20) for _ in range(n)]
        score += 1.5 * np.array([weights[each].sum() for each in drawn]) / 20**0.5
        text = [" ".join(MANY[i] for i in each) for each in drawn]
    else:
        side = rng.integers(0, 2, n)
        telling, filling = [words.split() for words in TELLING], FILLING.split()
        score += 3.0 * (side - 0.5) * ("two words" in kind)
        text = [
            " ".join(draw.choices(telling[one], k=2) + draw.choices(filling, k=8)) for one in side
        ]
    numbers = {f"x{i}": x[:, i] for i in range(NUMBERS)}
    chance = 1 / (1 + np.exp(-score))
    labels = np.where(rng.uniform(size=n) < chance, "yes", "no")
    return {**numbers, "job": np.array(list(JOBS))[job], "note": text}, labels


def describe_table(way: str) -> Schema:
    """The schema with its maps, and with its text or without."""
    columns: dict[str, object] = {
        f"x{i}": {"kind": "number", "low": 0, "high": 100} for i in range(NUMBERS)
    }
    columns["job"] = {"kind": "category", "values": list(JOBS)}
    columns["note"] = {"kind": "ignore" if "no text" in way else "text"}
    facts: dict[str, object] = {"target": "label", "classes": ["no", "yes"], "columns": columns}
    if "32" in way:
        facts["features"] = ["curves", {"type": "HashedWords", "buckets": 32}]
    return Schema.from_dict(facts)


def measure(n: int, kind: str, way: str, seed: int) -> tuple[float, int]:
    """AUROC on fresh records, and columns of a row."""
    table, labels = make_table(n + TEST, kind, seed)
    parts: Any = (
        {name: column[part] for name, column in table.items()}
        for part in (slice(n), slice(n, None))
    )
    train, test = parts
    features = way.split(",")[0] if "no text" in way else "auto"
    model = DPLogisticRegression(
        epsilon=1.0, delta=1e-5, schema=describe_table(way), features=features
    )
    model.fit(train, labels[:n])
    return (
        float(roc_auc_score(labels[n:] == "yes", model.predict_proba(test)[:, 1])),
        model.model_.weights.shape[1] - 1,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--records", type=int, nargs="+", default=[5000])
    asked = parser.parse_args()
    for n, kind, way in itertools.product(asked.records, KINDS, WAYS):
        scores = [measure(n, kind, way, seed) for seed in range(asked.seeds)]
        each = " ".join(f"{score:.3f}" for score, _ in scores)
        mean = np.mean([score for score, _ in scores])
        print(
            f"{n:6} {kind:25} {way:20} {scores[0][1]:4} columns  {mean:.3f}  ({each})", flush=True
        )


if __name__ == "__main__":
    main()
