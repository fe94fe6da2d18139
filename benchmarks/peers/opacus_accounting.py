"""Opacus' accountants on the questions of accounting.py; a child of it. Needs ``pip install torch
opacus``."""

from __future__ import annotations

import time
from typing import Any

import opacus
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier

from benchmarks.peers.child_process import serve


def answer(
    *,
    factor: float,
    accountant: str,
    delta: float,
    steps: int,
    rate: float,
    z: float = 1.0,
    epsilon: float | None = None,
) -> dict[str, Any]:
    """Epsilon of ``steps`` steps with noise multiplier ``z``, or the multiplier that ``epsilon``
    asks for."""
    clock, processor = time.perf_counter(), time.process_time()
    if epsilon is None:
        found = create_accountant(accountant)
        found.history = [(z * factor, rate, steps)]
        value = found.get_epsilon(delta)
    else:
        value = get_noise_multiplier(
            target_epsilon=epsilon * factor,
            target_delta=delta,
            sample_rate=rate,
            steps=steps,
            accountant=accountant,
        )
    return {
        "answer": float(value),
        "clock": time.perf_counter() - clock,
        "processor": time.process_time() - processor,
    }


if __name__ == "__main__":
    serve({"opacus": opacus.__version__}, answer)
