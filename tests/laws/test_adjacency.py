"""One run under three notions of neighbours, and the one place where constants are converted."""

import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import mpmath as mp
import pytest

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.run.adjacency import ADJACENCIES, convertible, records_moved
from lastiterate.run.facts import FLOAT_SLACK
from oracles.gaussian import gdp_delta

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "adjacency.toml").read_text())
DELTA, PASSES, BLOCKS, Z = GOLDEN["delta"], 20, 10, 2.0
BATCHES = {
    "cyclic": li.Cyclic(100),
    "permuted": li.Permuted(100),
    "fixed": li.FixedSize(100),
    "poisson": li.Poisson(0.1),
}
RUN = li.Run(
    n=1000,
    steps=PASSES * BLOCKS,
    step_size=li.Constant(4.0),
    noise=li.NoiseMultiplier(Z),
    loss=li.Logistic(row_norm=1.0, intercept=0.0),
)
CASES = [(batch, adjacency) for batch in BATCHES for adjacency in ADJACENCIES]


def mus(batch, adjacency):
    """mu of every place that the record may have, from the formulas beside the golden numbers."""
    unit = (2 if adjacency == "replace-one" else 1) * (1 + mp.mpf(FLOAT_SLACK)) / mp.mpf(Z)
    if batch in ("fixed", "poisson"):
        return [unit * mp.sqrt(PASSES * BLOCKS)]
    places = [BLOCKS] if batch == "cyclic" else range(1, BLOCKS + 1)
    return [unit * mp.sqrt(mp.mpf(PASSES - 1) / BLOCKS + mp.mpf(1) / (BLOCKS - j + 1)) for j in places]


@pytest.mark.parametrize("batch, adjacency", CASES)
def test_which_theorem_answers(batch, adjacency):
    expected = GOLDEN[batch][adjacency]
    if "refused" in expected:
        with pytest.raises(InputError, match=expected["refused"]) as refusal:
            replace(RUN, batching=BATCHES[batch], adjacency=adjacency)
        assert "zero-out" in str(refusal.value), "and says what to use instead"
        return
    found = li.account(replace(RUN, batching=BATCHES[batch], adjacency=adjacency))
    row = next(row for row in found.rows(DELTA) if row["theorem"] == expected["theorem"])
    assert row["applies"] and row["evidence"] == "ENFORCED"
    assert 0 <= expected["epsilon"] - row["epsilon"] < 1e-4, "rounded up in the last digit"
    assert found.epsilon(DELTA) <= row["epsilon"]
    if batch not in ("poisson", "fixed"):
        assert found.best(DELTA).theorem.name == expected["theorem"]


@pytest.mark.parametrize("batch, adjacency", [case for case in CASES if "epsilon" in GOLDEN[case[0]][case[1]]])
def test_the_golden_numbers_with_40_digits(batch, adjacency):
    with mp.workdps(40):
        places, epsilon = mus(batch, adjacency), GOLDEN[batch][adjacency]["epsilon"]

        def delta(epsilon):
            return sum(gdp_delta(epsilon, mu) for mu in places) / len(places)

        assert delta(epsilon) <= DELTA < delta(epsilon - 2e-4)


def test_replace_one_stands_beside_zero_out():
    for batch in ("cyclic", "permuted", "fixed", "poisson"):
        zero = li.account(replace(RUN, batching=BATCHES[batch]))
        swap = li.account(replace(RUN, batching=BATCHES[batch], adjacency="replace-one"))
        if batch == "poisson":  # sampling theorems speak of zero-out alone: one record is removed, another one added
            assert zero.replace_one_epsilon(DELTA) < min(zero.group(2, DELTA), swap.epsilon(DELTA))
            assert zero.best(DELTA).theorem.name == "poisson-pld"
        else:
            assert zero.replace_one_epsilon(DELTA) == swap.epsilon(DELTA)
        assert swap.under("zero-out").epsilon(DELTA) == zero.epsilon(DELTA)
    added = li.account(replace(RUN, batching=BATCHES["poisson"], adjacency="add-remove"))
    assert added.under("replace-one") is None and added.replace_one_epsilon(DELTA) == math.inf
    assert li.account(replace(RUN, batching=BATCHES["poisson"])).under("add-remove") is None


def test_the_conversion():
    assert [records_moved(a) for a in ("zero-out", "add-remove", "replace-one")] == [1, 1, 2]
    assert convertible("zero-out", "replace-one") and convertible("add-remove", "add-remove")
    with pytest.raises(InputError, match="one of zero-out, replace-one, add-remove"):
        replace(RUN, adjacency="swap")
    assert not convertible("add-remove", "replace-one") and not convertible("zero-out", "add-remove")
    given = li.Abstract(li.LossFacts(sensitivity=3.0))
    for adjacency, batching, value in (
        ("zero-out", li.Cyclic(100), 3.0),
        ("replace-one", li.Cyclic(100), 3.0),
        ("zero-out", li.FixedSize(100), 3.0),
        ("replace-one", li.FixedSize(100), 3.0),
        ("add-remove", li.Poisson(0.1), 3.0),
    ):
        run = replace(RUN, loss=given, batching=batching, adjacency=adjacency, noise=li.GradientNoise(1.0))
        assert run.facts().sensitivity.value == value, "a sensitivity is for the run's own adjacency"


def test_no_other_file_converts():
    """Outside ``adjacency.py`` nothing compares an adjacency, and so nothing can disagree with it."""
    source = Path(li.__file__).parent
    compared = re.compile(r"""adjacency\s*(==|!=|in)|(==|!=)\s*["'](zero-out|replace-one|add-remove)""")
    found = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        if path.name != "adjacency.py"
        for line in path.read_text().splitlines()
        if compared.search(line)
    ]
    assert found == ["accounting/certificate.py: if adjacency == self.run.adjacency:"]
