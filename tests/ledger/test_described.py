"""What a ledger's line is about: two releases of different guarantees never have the same hash."""

import hashlib
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.accounting.private_selection import Selection
from lastiterate.bayes import posterior_subject
from lastiterate.bayes.linear import ClippedRows, LinearModel, RatioDomain
from lastiterate.bayes.posterior_subject import LinearPosterior, RidgePosterior
from lastiterate.curves.selection import NegativeBinomial, PoissonRuns
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.ledger_charge import hash_description
from lastiterate.release.noisy_accuracy import CountCharge
from lastiterate.report import subject
from lastiterate.run import facts
from lastiterate.run.noisy_counts import NoisyCount

RUN = li.Run(
    n=60,
    steps=30,
    step_size=0.3,
    noise=li.NoiseMultiplier(2.0),
    batching=li.Cyclic(20),
    clip=1.0,
    loss=li.Softmax(classes=3, ridge=1e-2),
)
GIVEN = replace(RUN, loss=li.KnownConstants(li.LossFacts(lipschitz=0.5, smooth=1.0, strong=0.0)))
TESTED = replace(
    RUN,
    loss=li.KnownConstants(li.LossFacts(lipschitz=facts.TestedFact(0.5, "searched").stands_for())),
)
RUNS = {
    "plain": RUN,
    "replace-one": replace(RUN, adjacency="replace-one"),
    "several rows": replace(RUN, rows_per_unit=3),
    "means of rows": replace(RUN, rows_per_record=3),
    "prepared": replace(RUN, preprocessing=(li.PrivateMean(5.0, 1.0),)),
    "prepared twice": replace(
        RUN, preprocessing=(li.PrivateMean(5.0, 1.0), li.PrivateCovariance(5.0))
    ),
    "all iterates": replace(RUN, release="all"),
    "heavy ball": replace(RUN, optimizer=li.HeavyBall(0.5)),
    "one more step": replace(RUN, steps=31),
    "a network": replace(RUN, loss=li.KnownConstants()),
    "constants": GIVEN,
    "tested constants": TESTED,
}
PROBLEM = LinearPosterior(
    LinearModel(), RatioDomain(n=1001, ratio=5.0, spread=0.7, x_low=0.4, x_high=0.9)
)
RIDGE = RidgePosterior(LinearModel(prior_precision=4.0), ClippedRows(n=40, features=3))
TRIED = Selection((RUN, replace(RUN, steps=20)), NegativeBinomial(1.0, 0.1), 10, 3.0)
CERTIFICATES = {
    **{name: li.account(run) for name, run in RUNS.items()},
    **{
        f"{name}, exact": li.Certificate(ExactRun(run))
        for name, run in RUNS.items()
        if run not in (GIVEN, TESTED)
    },
    "counted": li.account(replace(RUN, counts=(NoisyCount(5.0, 20, "apart"),))),
    "constants, trusted": li.account(GIVEN, min_evidence=li.Evidence.ASSUMED),
    "tested constants, trusted": li.account(TESTED, min_evidence=li.Evidence.TESTED),
    "tested constants, as assumed": li.account(TESTED, min_evidence=li.Evidence.ASSUMED),
    "posterior": posterior_subject.certify(PROBLEM, "replace-one"),
    "posterior, zero-out": posterior_subject.certify(PROBLEM, "zero-out"),
    "ridge posterior": posterior_subject.certify(RIDGE, "replace-one"),
    "ridge posterior, zero-out": posterior_subject.certify(RIDGE, "zero-out"),
    "selection": li.Certificate(TRIED),
    "selection, another law": li.Certificate(replace(TRIED, law=PoissonRuns(10.0))),
    "selection, finer scores": li.Certificate(replace(TRIED, unit=2)),
    "selection of one": li.Certificate(replace(TRIED, candidates=(RUN,))),
}


def test_no_two_guarantees_have_one_hash():
    hashes = {name: hash_description(found) for name, found in CERTIFICATES.items()}
    for (one, first), (two, second) in combinations(hashes.items(), 2):
        assert first != second, (one, two)
    run = CERTIFICATES["counted"].run
    assert (
        hash_description(CountCharge(run, run.counts[-1], run.adjacency)) not in hashes.values()
    ), "a count alone"


@pytest.mark.parametrize("name", ["plain", "posterior", "constants"])
def test_what_was_not_told_apart_costs_differently(name):
    """The same run with rounded and with exact noise, a sample for other neighbours, constants that
    are believed."""
    other = {
        "plain": "plain, exact",
        "posterior": "posterior, zero-out",
        "constants": "constants, trusted",
    }[name]
    assert CERTIFICATES[name].epsilon(1e-5) != CERTIFICATES[other].epsilon(1e-5)


@pytest.mark.parametrize("found", CERTIFICATES.values(), ids=CERTIFICATES)
def test_a_certificate_that_is_read_back_is_about_the_same(found):
    if found.epsilon(1e-5) < np.inf:
        stored = json.loads(found.to_json(1e-5))
        assert hash_description(li.Certificate.from_dict(stored)) == hash_description(found)


def test_lines_of_ordinary_runs_are_still_about_them():

    for name in RUNS:
        before = hashlib.sha256(
            json.dumps(RUNS[name].to_dict(), sort_keys=True).encode()
        ).hexdigest()
        assert hash_description(CERTIFICATES[name]) == before


def test_a_release_with_exact_noise_is_known_by_its_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter.of(30.0, 1e-5))
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (60, 4)).astype(np.float32), np.arange(60) % 3
    model = li.train(RUN, (x, y), secure_noise=True, ledger=ledger.path, dataset="a")
    (line,) = ledger.total().releases
    assert (
        line.run
        == hash_description(CERTIFICATES["plain, exact"])
        != hash_description(CERTIFICATES["plain"])
    )
    assert subject.read(model.save(tmp_path / "m"), ledger=ledger).ledger.number == line.number
    with pytest.raises(InputError, match="was begun by another run"):
        ledger.reserve(
            "a",
            CERTIFICATES["plain, exact"].curve(),
            adjacency="zero-out",
            purpose="train",
            run=hash_description(CERTIFICATES["plain"]),
            token=line.token,
        )
