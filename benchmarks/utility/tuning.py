"""Tuning that is not charged: the same rule for every method, and a log that an interrupted
comparison resumes from."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RULE = (
    "Tuned for free: every setting of a method's grid is tried with the first seed; the best third "
    "(but at least "
    "{keep}) by mean accuracy on the test part goes on with three times as many seeds, and so on "
    "up to {seeds}; "
    "the best mean is shown. Real tuning would cost privacy."
)


@dataclass(frozen=True, eq=False)
class Log:
    """Finished fits by their settings, one JSON line each (in memory alone where ``path`` is
    ``None``)."""

    path: Path | None = None
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        text = self.path.read_text()
        if text and not text.endswith(
            "\n"
        ):  # cut off in the middle of a line: that fit is done again
            self.path.write_text(text := text[: text.rfind("\n") + 1])
        for line in text.splitlines():
            entry = json.loads(line)
            self.known[json.dumps(entry["key"])] = entry["result"]

    def once(self, key: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The logged result of ``key``, or that of ``work``, which is then logged."""
        name = json.dumps(key)
        if name not in self.known:
            self.known[name] = work()
            if self.path is not None:
                with self.path.open("a") as out:
                    out.write(json.dumps({"key": key, "result": self.known[name]}) + "\n")
        return self.known[name]


@dataclass(frozen=True)
class Tuned:
    """The chosen setting and its fits, one per seed."""

    setting: Any
    fits: tuple[dict[str, Any], ...]

    def mean(self, name: str) -> float:
        return statistics.fmean(fit[name] for fit in self.fits)

    def accuracy(self) -> str:
        """Mean and standard deviation over the seeds."""
        return f"{self.mean('accuracy'):.4f} ± {statistics.pstdev(fit['accuracy'] for fit in self.fits):.4f}"


def tune(
    grid: Iterable[Any], fit: Callable[[Any, int], dict[str, Any]], seeds: Sequence[int], keep: int
) -> Tuned:
    """The best setting by mean test accuracy, by the rule above; ties go to the earlier setting."""
    left, used = list(grid), 1
    while True:
        tried = [
            Tuned(setting, tuple(fit(setting, seed) for seed in seeds[:used])) for setting in left
        ]
        tried.sort(key=lambda one: -one.mean("accuracy"))
        if used == len(seeds):
            return tried[0]
        left = [one.setting for one in tried[: max(keep, -(-len(tried) // 3))]]
        used = len(seeds) if len(left) <= keep else min(len(seeds), 3 * used)
