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
from lastiterate.theorems.theorem import Applies, Fails
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
    return [
        unit * mp.sqrt(mp.mpf(PASSES - 1) / BLOCKS + mp.mpf(1) / (BLOCKS - j + 1)) for j in places
    ]


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


@pytest.mark.parametrize(
    "batch, adjacency", [case for case in CASES if "epsilon" in GOLDEN[case[0]][case[1]]]
)
def test_the_golden_numbers_with_40_digits(batch, adjacency):
    with mp.workdps(40):
        places, epsilon = mus(batch, adjacency), GOLDEN[batch][adjacency]["epsilon"]

        def delta(epsilon):
            return sum(gdp_delta(epsilon, mu) for mu in places) / len(places)

        assert delta(epsilon) <= DELTA < delta(epsilon - 2e-4)


def test_the_guide_says_what_is_certified():
    text = (Path(__file__).parents[2] / "docs" / "guides" / "adjacency.md").read_text()
    names = {
        "a secret block, drawn once": li.BallsInBins(100),
        "a secret block, drawn in each epoch": li.RandomAllocation(100),
        "Poisson": li.Poisson(0.1),
        "a new subset of fixed size": li.FixedSize(100),
    }
    for name, batching in names.items():
        cells = next(line for line in text.splitlines() if line.startswith(f"| {name} |")).split(
            "|"
        )[2:5]
        for adjacency, cell in zip(ADJACENCIES, cells, strict=True):
            if "refused" in cell:
                continue
            said, theorem = cell.strip().split(", ")
            found = li.account(replace(RUN, batching=batching, adjacency=adjacency))
            assert found.best(DELTA).theorem.name == theorem
            assert 0 <= float(said) - found.epsilon(DELTA) <= 0.02, "rounded up"


def test_replace_one_stands_beside_zero_out():
    for batch in ("cyclic", "permuted", "fixed", "poisson"):
        zero = li.account(replace(RUN, batching=BATCHES[batch]))
        swap = li.account(replace(RUN, batching=BATCHES[batch], adjacency="replace-one"))
        assert zero.replace_one_epsilon(DELTA) == swap.epsilon(DELTA)
        if (
            batch == "poisson"
        ):  # sampling theorems speak of one record: one is removed, another one added
            assert swap.epsilon(DELTA) < zero.group(2, DELTA)
            assert (
                swap.best(DELTA).theorem.name
                == zero.best(DELTA).theorem.name
                == "delayed-shifts-poisson"
            )
        assert swap.with_adjacency("zero-out").epsilon(DELTA) == zero.epsilon(DELTA)
    added = li.account(replace(RUN, batching=BATCHES["poisson"], adjacency="add-remove"))
    assert (
        added.with_adjacency("replace-one") is None and added.replace_one_epsilon(DELTA) == math.inf
    )
    assert (
        li.account(replace(RUN, batching=BATCHES["poisson"])).with_adjacency("add-remove") is None
    )


SAMPLED = [li.FixedSize(100), li.BallsInBins(100), li.RandomAllocation(100), li.Poisson(0.1)]
PREPARED = (li.PrivateMean(40.0, 1.0), li.PrivateCovariance(40.0, 0.35))


@pytest.mark.parametrize("batching", SAMPLED, ids=lambda batching: batching.word)
def test_exchanges_and_units_follow_from_one_row_with_its_preparation(batching):
    """Not from each part on its own: a unit's or an exchange's divergences of two parts only add by
    Renyi orders."""
    run = li.Run(
        n=1000,
        steps=10,  # as many kinds of parts as a longer run has
        step_size=1.0,
        noise=li.NoiseMultiplier(3.0),
        batching=batching,
        clip=0.3,
        loss=li.Softmax(classes=3),
        preprocessing=PREPARED,
    )
    rows = 3 if isinstance(batching, li.FixedSize) else 2
    one = li.account(run)
    swap = li.account(replace(run, adjacency="replace-one"))
    assert one.epsilon(DELTA) < swap.epsilon(DELTA) <= one.replace_one_epsilon(DELTA) * (1 + 1e-9)
    for certificate in (
        (swap,) if isinstance(batching, li.RandomAllocation | li.Poisson) else (one, swap)
    ):
        units = li.account(replace(certificate.run, rows_per_unit=rows))
        assert units.epsilon(DELTA) == pytest.approx(certificate.group(rows, DELTA), rel=1e-6)
        assert units.epsilon(DELTA) < 4.5 * certificate.epsilon(DELTA)
    if isinstance(
        batching, li.FixedSize | li.BallsInBins
    ):  # a file says the same of every batching, at its cost
        assert li.read_certificate(units.to_json(DELTA)) == units, (
            "an exchange of units is written and read"
        )


def test_a_sensitivity_of_exchanges_says_nothing_about_one_record():
    given = li.KnownConstants(li.LossFacts(sensitivity=2.0))
    single = li.KnownConstants(li.LossFacts(lipschitz=1.0))
    run = li.Run(
        n=1000,
        steps=40,
        step_size=1.0,
        noise=li.GradientNoise(0.03),
        adjacency="replace-one",
        batching=li.Poisson(0.1),
        loss=given,
    )
    sampled = [
        li.account(replace(run, loss=loss), min_evidence=li.Evidence.ASSUMED)
        .verdict("poisson-pld")
        .result
        for loss in (given, single)
    ]
    assert isinstance(sampled[0], Fails) and "state lipschitz" in sampled[0].reasons[0]
    assert isinstance(sampled[1], Applies)


def test_an_exchange_keeps_no_curvature_that_is_the_records_own():
    """Between two records there is none: what is stated of both need not hold for the data without
    either."""
    run = li.Run(
        n=6,
        steps=8,
        step_size=0.5,
        noise=li.GradientNoise(1.0),
        batching=li.RandomAllocation(3),
        adjacency="replace-one",
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.9)),
    )
    flat = replace(run, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0)))
    name = "restarted-allocation-pld"
    curved, plain = (
        li.account(one, min_evidence=li.Evidence.ASSUMED).verdict(name).result
        for one in (run, flat)
    )
    assert isinstance(curved, Fails) and isinstance(plain, Applies)


def test_the_conversion():
    assert [records_moved(a) for a in ("zero-out", "add-remove", "replace-one")] == [1, 1, 2]
    assert convertible("zero-out", "replace-one") and convertible("add-remove", "add-remove")
    with pytest.raises(InputError, match="one of zero-out, replace-one, add-remove"):
        replace(RUN, adjacency="swap")
    assert not convertible("add-remove", "replace-one") and not convertible(
        "zero-out", "add-remove"
    )
    given = li.KnownConstants(li.LossFacts(sensitivity=3.0))
    for adjacency, batching, value in (
        ("zero-out", li.Cyclic(100), 3.0),
        ("replace-one", li.Cyclic(100), 3.0),
        ("zero-out", li.FixedSize(100), 3.0),
        ("replace-one", li.FixedSize(100), 3.0),
        ("add-remove", li.Poisson(0.1), 3.0),
    ):
        run = replace(
            RUN, loss=given, batching=batching, adjacency=adjacency, noise=li.GradientNoise(1.0)
        )
        assert run.facts().sensitivity.value == value, (
            "a sensitivity is for the run's own adjacency"
        )


def test_no_other_file_converts():
    """Outside ``adjacency.py`` nothing compares an adjacency, and so nothing can disagree with it:
    but for two subjects of certificates, which ask whether it is their own, a page, which asks
    whether a ledger counts by it too, and audits, which are to disagree
    where it is wrong, as are the laws of ``lastiterate.testing``."""
    source = Path(li.__file__).parent
    compared = re.compile(
        r"""adjacency\s*(==|!=|in)|(==|!=)\s*["'](zero-out|replace-one|add-remove)"""
    )
    found = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        if path.name != "adjacency.py" and path.parent.name != "testing"
        for line in path.read_text().splitlines()
        if compared.search(line)
    ]
    assert sorted(found) == [
        "accounting/accounted_run.py: if adjacency == self.run.adjacency:",
        "accounting/unlearning.py: return self if adjacency == ADJACENCY else None",
        'audit/canaries.py: return run.adjacency == "replace-one"',
        "cli/verify.py: if checked.adjacency != ADJACENCY or not path.is_dir():",
        'cli/verify.py: if neighbours != "replace-one" and other is not None:',
        "planning/plan_request.py: if self.adjacency in run.batching.adjacencies",
        'report/page_parts.py: same = quote.adjacency == subject.body["adjacency"]',
    ]
