"""What a long category and a date cost that say nothing, on the synthetic tables of ``text_in_tables``.

    python -m benchmarks.utility.long_columns [--seeds 4] [--records 5000]

Six numbers and a short category have effects of their own. A category of 60 values, a date of four
years, or both are added, drawn at random. Printed is the AUROC on 4,000 fresh records of
``DPLogisticRegression`` at epsilon 1, delta 1e-5, zero-out.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.utility.text_in_tables import JOBS, NUMBERS, TEST, make_table
from lastiterate.data.schema import Schema
from lastiterate.estimators import DPLogisticRegression

KINDS = ("says nothing", "says nothing, rare", "says nothing, rare, lines")
ADDED = ((), ("cause",), ("date",), ("cause", "date"))
CAUSES = [f"C{i:02}" for i in range(60)]
DAYS = np.arange("2021-01-01", "2025-01-01", dtype="datetime64[D]").astype(str)
EXTRA = {
    "cause": {"kind": "category", "values": CAUSES},
    "date": {"kind": "date", "first": DAYS[0], "last": DAYS[-1]},
}


def measure(n: int, kind: str, added: tuple[str, ...], features: str, seed: int) -> float:
    """AUROC on fresh records."""
    table, labels = make_table(n + TEST, kind, seed)
    rng = np.random.default_rng(seed + 1000)
    table |= {"cause": rng.choice(CAUSES, n + TEST), "date": rng.choice(DAYS, n + TEST)}
    columns: dict[str, object] = {
        f"x{i}": {"kind": "number", "low": 0, "high": 100} for i in range(NUMBERS)
    }
    columns |= {"job": {"kind": "category", "values": list(JOBS)}, "note": {"kind": "ignore"}}
    columns |= {name: EXTRA[name] if name in added else {"kind": "ignore"} for name in EXTRA}
    schema = Schema.from_dict({"target": "label", "classes": ["no", "yes"], "columns": columns})
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, schema=schema, features=features)
    model.fit({name: column[:n] for name, column in table.items()}, labels[:n])
    chances = model.predict_proba({name: column[n:] for name, column in table.items()})[:, 1]
    return float(roc_auc_score(labels[n:] == "yes", chances))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--records", type=int, default=5000)
    asked = parser.parse_args()
    for kind, features, added in itertools.product(KINDS, ("plain", "auto"), ADDED):
        scores = [measure(asked.records, kind, added, features, i) for i in range(asked.seeds)]
        each = " ".join(f"{score:.3f}" for score in scores)
        named = " and ".join(added) or "neither"
        print(f"{kind:26} {features:6} {named:15} {np.mean(scores):.3f}  ({each})", flush=True)


if __name__ == "__main__":
    main()
