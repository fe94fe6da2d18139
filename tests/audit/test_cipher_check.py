"""The audit's own cipher has the published blocks, and an engine with another one is contradicted."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.audit import conformance, runner, worst_case
from lastiterate.audit.end_to_end import TrialPlan
from lastiterate.engine import random

ONES = 2**64 - 1


@pytest.mark.parametrize(
    ("word", "low", "high"),
    [(0, 0xE17EAE669C6CA96A, 0x5256A7D8FC10ECD4), (ONES, 0x570122872A881696, 0xA16A6732F6C7446E)],
)
def test_blocks_are_the_published_ones(word, low, high):
    """Known answers of Random123 for keys and counters of zeros, and of ones."""
    counter = np.array([word], np.uint64)
    found = conformance.threefry(np.full(4, word & 0xFFFFFFFF, np.uint32), counter, counter)
    assert [int(part[0]) for part in found] == [low, high]


@pytest.mark.parametrize("blocks", conformance.COUNTS)
@pytest.mark.parametrize(
    "change", [("TURNS", (*random.TURNS[:7], (18, 21))), ("PARITY", np.uint32(0x1BD11BDB))]
)
def test_another_cipher_is_noticed_for_few_blocks_and_for_many(monkeypatch, blocks, change):
    monkeypatch.setattr(conformance, "COUNTS", (blocks,))
    assert not conformance.cipher_violations()
    monkeypatch.setattr(
        conformance, "encrypt", random._encrypt_all
    )  # what is compiled knows the right constants
    monkeypatch.setattr(random, *change)
    assert conformance.cipher_violations() == (conformance.WORDS,)


def test_every_default_audit_looks(monkeypatch):
    monkeypatch.setattr(conformance, "encrypt", lambda key, first, second: (second, first))
    monkeypatch.setattr(runner.end_to_end, "check_entry_points", lambda *_, **__: ((), ()))
    monkeypatch.setattr(conformance, "violations", lambda *_: ())
    run = li.Run(
        n=4,
        steps=1,
        step_size=0.5,
        noise=li.GradientNoise(1.0),
        loss=li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.0, intercept=0.0),
    )
    task = runner._Task(
        run,
        (worst_case(run),),
        runner.default_train(run),
        TrialPlan(100, 50, 50, 1),
        li.account(run),
        0.05,
        1e-5,
        None,
    )
    assert task.as_described(exact=False) == ((conformance.WORDS,), ())
