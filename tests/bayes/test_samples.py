"""Released samples: nothing without a certificate, the right law, and certificates that cannot be
edited."""

import json
import math

import numpy as np
import pytest

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.bayes import (
    ClippedRows,
    LinearModel,
    LinearPosterior,
    RatioDomain,
    RidgePosterior,
    certify,
    linear,
    posterior_subject,
    sample_posterior,
)
from lastiterate.bayes.linear import least_prior
from lastiterate.bayes.propose_test_release import GIVEN, SeededSource, SystemSource
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError

LINEAR = LinearPosterior(LinearModel(), RatioDomain(n=50, ratio=2.0, spread=0.5))
ROWS = ClippedRows(n=40, features=3, label_bound=2.0)
RIDGE = RidgePosterior(LinearModel(prior_precision=60.0), ROWS)


def records():
    rng = np.random.default_rng(3)
    x = rng.uniform(0.5, 1, 50)
    return x, x * (2 + rng.uniform(-0.5, 0.5, 50))


def test_samples_follow_the_posterior():
    x, y = records()
    generator = np.random.default_rng(0)
    drawn = np.array(
        [sample_posterior(LINEAR, x, y, generator=generator).value[0] for _ in range(400)]
    )
    mean, variance = LINEAR.model.posterior(x, y)
    units = (drawn - mean) / math.sqrt(variance)
    # 5 standard errors
    assert (
        abs(units.mean()) < 5 / 20
        and abs(units.var() - 1) < 5 * math.sqrt(2) / 20
        and units.std() > 0.5
    )
    rng = np.random.default_rng(1)
    # features that depend on each other, a prior weak enough for the data to shape the posterior
    rows, labels = (
        rng.normal(size=(40, 1)) + 0.3 * rng.normal(size=(40, 3)),
        rng.normal(size=40) * 3,
    )
    weak = RidgePosterior(LinearModel(prior_precision=2.0), ROWS)
    drawn = np.array(
        [sample_posterior(weak, rows, labels, generator=generator).value for _ in range(1500)]
    )
    centre, precision = linear.posterior(weak.model, *ROWS.clip(rows, labels))
    white = (drawn - centre) @ np.linalg.cholesky(precision)
    assert np.abs(white.mean(0)).max() < 5 / math.sqrt(1500)
    assert np.abs(np.cov(white.T) - np.eye(3)).max() < 5 * math.sqrt(2 / 1500)


def test_nothing_is_sampled_outside_the_domain(monkeypatch):
    def never(*_):
        raise AssertionError("randomness was used")

    monkeypatch.setattr(SeededSource, "normal", never)
    x, y = records()
    for bad in (np.append(y[:-1], 9.0), np.append(y[:-1], math.nan)):
        with pytest.raises(InputError, match="nothing is sampled"):
            sample_posterior(LINEAR, x, bad, generator=np.random.default_rng(0))
    few = LinearPosterior(LinearModel(), RatioDomain(n=1, ratio=2.0, spread=0.5))
    with pytest.raises(InputError, match="too small for the lemma"):
        sample_posterior(few, [0.5], [1.0], generator=np.random.default_rng(0))
    with pytest.raises(AssertionError, match="randomness was used"):
        sample_posterior(LINEAR, x, y, generator=np.random.default_rng(0))


def test_randomness_is_the_systems_unless_given():
    x, y = records()
    one, two = (sample_posterior(LINEAR, x, y) for _ in range(2))
    assert one.value[0] != two.value[0] and GIVEN not in one.certificate.caveats
    given = [sample_posterior(LINEAR, x, y, generator=np.random.default_rng(7)) for _ in range(2)]
    assert given[0].value[0] == given[1].value[0] and GIVEN in given[0].certificate.caveats


def test_system_numbers_have_their_laws():
    source = SystemSource()
    normal = source.normal(20_000)
    laplace = np.array([source.laplace(2.0) for _ in range(20_000)])
    assert abs(normal.mean()) < 6 / math.sqrt(20_000) and abs(normal.var() - 1) < 6 * math.sqrt(
        2 / 20_000
    )
    assert abs((normal > 1.0).mean() - 0.158655) < 6 * math.sqrt(0.16 * 0.84 / 20_000)
    # |Laplace(2)| is exponential of mean 2; six standard errors
    assert (
        abs(np.abs(laplace).mean() - 2) < 12 / math.sqrt(20_000)
        and abs((laplace > 0).mean() - 0.5) < 0.022
    )
    assert abs((np.abs(laplace) > 4).mean() - math.exp(-2)) < 6 * math.sqrt(0.117 / 20_000)


@pytest.mark.parametrize("problem", [LINEAR, RIDGE])
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_certificates_verify_and_travel(problem, adjacency):
    found = certify(problem, adjacency)
    assert found.verify() and found.epsilon(1e-5) == problem.curve(adjacency).epsilon(1e-5) > 0
    assert found.delta(found.epsilon(1e-5)) <= 1e-5 * (1 + 1e-6)
    text = found.to_json(1e-5)
    assert Certificate.from_json(text) == found
    body = json.loads(text)
    assert (
        body["adjacency"] == adjacency
        and body["epsilon"] == found.epsilon(1e-5)
        and len(body["caveats"]) == 4
    )
    assert body["epsilon_replace_one"] == certify(problem).epsilon(1e-5)
    other = certify(problem, "zero-out" if adjacency == "replace-one" else "replace-one")
    assert found.with_adjacency(other.adjacency) == other


def test_edited_certificates_are_refused():
    text = certify(LINEAR).to_json(1e-5)
    body = json.loads(text)
    changes = [
        {"epsilon": 0.1},
        {"epsilon_replace_one": 0.1},
        {"delta": 1e-3},
        {"caveats": body["caveats"][1:]},
        {"problem": body["problem"] | {"domain": body["problem"]["domain"] | {"n": 5000}}},
        {
            "curve": body["curve"]
            | {"renyi_divergences": [v / 2 for v in body["curve"]["renyi_divergences"]]}
        },
        {"adjacency": "zero-out"},
        {"adjacency": "add-remove"},
        {"problem": "RidgePosterior"},
        {"problem": body["problem"] | {"type": "RidgePosterior"}},
        {"problem": body["problem"] | {"type": []}},
        {"problem": body["problem"] | {"model": [1.0]}},
        {"delta": "1e-5"},
        {"caveats": None},
        {"adjacency": ["zero-out"]},
        {"note": "fine"},
        {"content_sha256": "0"},
    ]
    for change in changes:
        with pytest.raises(InputError, match=r"certificate|problem|adjacency"):
            Certificate.from_json(json.dumps(body | change))
    for change in (
        {"epsilon": 0.1},
        {"delta": 1e-3},
        {"note": "fine"},
        {"epsilon_replace_one": 0.1},
        {"format": body["format"] + 1},
    ):
        edited = body | change
        with pytest.raises(InputError, match="does not hold"):  # re-hashed by whoever edited it
            Certificate.from_json(json.dumps(edited | {"content_sha256": content_hash(edited)}))
    for broken in ("{", "[]", "{}", text.replace('"epsilon"', '"epsilon": 0.01, "epsilon"', 1)):
        with pytest.raises(
            InputError, match=r"one that lastiterate wrote|complete JSON|every key once"
        ):
            Certificate.from_json(broken)
    lighter = posterior_subject.certify(LINEAR)
    whole = lighter.curve()
    vars(lighter.subject)["curves"] = (
        Rdp(orders=whole.orders, values=tuple(v / 2 for v in whole.values)),
    )
    assert lighter.epsilon(1e-5) < whole.epsilon(1e-5) and not lighter.verify()
    with pytest.raises(InputError, match="replace-one or zero-out"):
        certify(LINEAR, "add-remove")


def test_from_a_budget_to_a_release():
    model = least_prior(ROWS, epsilon=2.0, delta=1e-5)
    rng = np.random.default_rng(5)
    made = sample_posterior(
        RidgePosterior(model, ROWS), rng.normal(size=(40, 3)), rng.normal(size=40)
    )
    assert made.value.shape == (3,) and made.certificate.epsilon(1e-5) <= 2.0
