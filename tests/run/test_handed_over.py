"""A fact that somebody hands over is never stronger than tested, whichever way it comes into a run."""

import copy
import functools
import pickle
from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.analysis.step_map import to_accounted_run
from lastiterate.engine.trainer import Trainer
from lastiterate.run.losses import loss_from_facts

RUN = li.Run(n=1000, steps=200, step_size=0.5, noise=li.GradientNoise(0.05))
CLIPPED = replace(RUN, clip=1.0)
RIDGE = li.Logistic(row_norm=1.0, intercept=0.0, ridge=0.5)
PAID = replace(
    RUN,
    step_size=li.RelativeToSmooth(1.0),
    noise=li.NoiseMultiplier(5.0),
    preprocessing=(li.TopEigenvalue(5.0),),
    loss=li.Softmax(classes=3),
)
X = np.random.default_rng(0).normal(size=(20, 3))
X /= np.linalg.norm(X, axis=1)[:, None]
Y = np.arange(20) % 2


def logistic(theta, x, y):
    """With the ridge inside: what ``RIDGE`` says of its gradients and Hessian is true of it near 0."""
    return jnp.logaddexp(0.0, theta @ x) - y * (theta @ x) + 0.25 * theta @ theta


@functools.cache
def searched(facts):
    return li.audit.falsify(
        logistic, np.zeros(3), (X, Y), facts, radius=0.1, pairs=10, climbs=2
    ).facts


def held(facts):
    """The facts that are known, by name."""
    known = {item.name: getattr(facts, item.name) for item in fields(facts)}
    return {name: fact for name, fact in known.items() if fact is not None}


def asked(run):
    """The run, after something has read its facts and its steps."""
    assert run.facts() and len(run.step_sizes) == run.steps
    return run


SOURCES = {
    "linear loss": RIDGE.facts(),
    "clipped run": CLIPPED.facts(),
    "linear run": replace(RUN, loss=RIDGE).facts(),
    "paid run": to_accounted_run(PAID).loss.facts(),
    "verdict of a certificate": li.LossFacts(
        lipschitz=li.account(replace(RUN, loss=RIDGE)).verdict("composition-gdp").result.facts[0]
    ),
}
WAYS = {
    "constructor": li.KnownConstants,
    "every fact by itself": lambda facts: li.KnownConstants(li.LossFacts(**held(facts))),
    "replace in the facts": lambda facts: li.KnownConstants(replace(li.LossFacts(), **held(facts))),
    "replace in the loss": lambda facts: replace(li.KnownConstants(), constants=facts),
    "copied facts": lambda facts: li.KnownConstants(copy.deepcopy(copy.copy(facts))),
    "pickled facts": lambda facts: li.KnownConstants(pickle.loads(pickle.dumps(facts))),
    "a copied loss": lambda facts: copy.copy(loss_from_facts(facts)),
    "a deep copy of the loss": lambda facts: copy.deepcopy(loss_from_facts(facts)),
    "a pickled loss": lambda facts: pickle.loads(pickle.dumps(loss_from_facts(facts))),
    "a pickled run": lambda facts: (
        pickle.loads(pickle.dumps(asked(replace(RUN, loss=loss_from_facts(facts))))).loss
    ),
    "a run's JSON": lambda facts: (
        li.Run.from_json(replace(RUN, loss=loss_from_facts(facts)).to_json()).loss
    ),
    "falsify": lambda facts: li.KnownConstants(searched(replace(facts, lipschitz=2.0))),
    "falsify, kept in pieces": lambda facts: li.KnownConstants(
        li.LossFacts(**held(searched(replace(facts, lipschitz=2.0))))
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("facts", SOURCES.values(), ids=SOURCES)
def test_no_way_keeps_more_than_tested(facts, way):
    strong = [name for name, fact in held(facts).items() if fact.evidence > li.Evidence.TESTED]
    assert strong, "the source has something to lose"
    loss = way(facts)
    kept = held(loss.facts())
    assert set(strong) & set(kept), "it is the evidence that is lost, not the number"
    for name, fact in kept.items():
        assert fact.evidence <= li.Evidence.TESTED
        if name in strong and name != "lipschitz":  # which the search is given anew
            assert fact.value == getattr(facts, name).value and getattr(facts, name).why in fact.why
    for run in (replace(RUN, loss=loss), replace(RUN, loss=loss, rows_per_unit=2)):
        assert li.account(run).epsilon(1e-5) == np.inf
    with pytest.raises(li.NotCertified):
        ExactRun(replace(RUN, loss=loss))


def test_a_ridge_that_is_handed_over_contracts_nothing():
    """It was certified at 0.17, where every step has to be charged."""
    given = li.LossFacts(
        **{name: getattr(RIDGE.facts(), name) for name in ("lipschitz", "smooth", "strong")}
    )
    run = replace(CLIPPED, loss=li.KnownConstants(given))
    assert li.account(run).epsilon(1e-5) == li.account(CLIPPED).epsilon(1e-5) > 1
    flat = replace(CLIPPED, loss=RIDGE)
    assert li.account(flat).epsilon(1e-5) < 0.2, "for the loss itself it does"


def test_nothing_is_trained_on_facts_of_another_loss():
    """A row of 1e9 moved the model by 1e7 under "enforced facts"."""
    run = replace(
        RUN, n=20, loss=li.KnownConstants(li.Logistic(row_norm=1.0, intercept=0.0).facts())
    )
    with pytest.raises(li.NotCertified):
        li.train(run, (X * 1e9, Y), model=np.zeros(3), loss=logistic)


COPIES = {
    "pickle": lambda held: pickle.loads(pickle.dumps(held)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize(
    "run", (replace(RUN, loss=RIDGE), CLIPPED, PAID), ids=("linear", "clipped", "paid")
)
def test_copies_of_honest_certificates_are_the_same(run, again):
    found = replace(li.account(run), caveats=("the caller gave the seed",))
    copied = again(found)
    assert (
        copied == found and copied.verify() and copied.epsilon(1e-5) == found.epsilon(1e-5) < np.inf
    )
    assert again(run) == run and again(run.facts()) == run.facts()


@pytest.mark.parametrize(
    "again", (COPIES["pickle"], COPIES["deepcopy"]), ids=("pickle", "deepcopy")
)
def test_a_pickled_certificate_says_what_its_json_says(again):
    """Certificates of earlier versions, whose facts were believed, are derived again."""
    run = replace(RUN, loss=loss_from_facts(RIDGE.facts()))
    laundered = li.account(run)
    assert laundered.epsilon(1e-5) < 1
    copied = again(laundered)
    assert (
        copied.epsilon(1e-5) == li.account(li.Run.from_json(run.to_json())).epsilon(1e-5) == np.inf
    )
    assert copied.verify() and again(copied) == copied


def test_what_was_tested_stays_tested_and_can_be_verified():
    facts = searched(li.LossFacts(lipschitz=2.0, smooth=1.0, strong=0.0))
    run = replace(RUN, loss=li.KnownConstants(facts))
    found = li.account(run, min_evidence=li.Evidence.TESTED)
    assert found.epsilon(1e-5) < np.inf == li.account(run).epsilon(1e-5)
    assert (
        li.Run.from_json(run.to_json()) == run and li.read_certificate(found.to_json(1e-5)) == found
    )
    assert all(again(found) == found and again(run) == run for again in COPIES.values())
    assert "survived 10 random pairs" in found.all_caveats()[0]
    forged = run.to_json().replace('"type": "TestedFact"', '"type": "ProvedFact"')
    with pytest.raises(li.InputError, match='unknown "type"'):
        li.Run.from_json(forged)
    Trainer(replace(run, clip=1.0))
