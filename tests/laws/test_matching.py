"""Whether a theorem applies to a run, and what follows: the table, units, exchanges, examples."""

import math
from dataclasses import replace
from types import MappingProxyType

import pytest

import lastiterate as li
from lastiterate import plugins
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.run.facts import Evidence, mint
from lastiterate.run.losses import loss_from_facts
from lastiterate.theorems import TABLE, find_theorem, theorem
from lastiterate.theorems.theorem import (
    EXAMPLE,
    EXAMPLE_FULL_BATCH,
    Applies,
    Assumption,
    Fails,
    Satisfied,
    Violated,
    check_assumptions,
    example_loss,
    gibbs_example,
    holds_with_zeroed_records,
    match,
)

COMPOSITION, POISSON = TABLE["composition-gdp"], TABLE["poisson-pld"]
DELAYED = TABLE["delayed-shifts-poisson"]


def poisson_run(loss=None, **changes):
    settings = dict(
        n=100,
        steps=3,
        step_size=0.5,
        noise=li.GradientNoise(0.3),
        batching=li.Poisson(0.1),
        loss=loss or li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0)),
    )
    return li.Run(**settings | changes)


# The table.


def test_examples_are_what_pages_say():
    facts = EXAMPLE.loss.facts()
    assert EXAMPLE.n == 1000 and EXAMPLE.steps == 1000 and EXAMPLE.blocks == 10
    assert EXAMPLE.first_step == 0.5 and EXAMPLE.temperature == 0.01**2
    assert EXAMPLE_FULL_BATCH.blocks == 1
    assert EXAMPLE_FULL_BATCH.noise == li.Langevin(0.01 / 3)
    assert [facts.fact(name, -1.0) for name in ("lipschitz", "smooth", "strong")] == [1, 1, 0]
    assert example_loss(smooth=None, hoelder=2.0, hoelder_exponent=0.5).facts() == li.LossFacts(
        lipschitz=1.0, strong=0.0, hoelder=2.0, hoelder_exponent=0.5
    )
    gibbs = gibbs_example(EXAMPLE)
    assert gibbs.loss.facts().fact("strong") == 0.02
    assert gibbs.start.std == pytest.approx(0.1, rel=1e-12)  # sqrt(2 * 0.01^2 / 0.02)


def test_a_statement_has_a_title_and_a_text():
    stated = replace(COMPOSITION, statement="\nA title\nof two lines.\n\nText.\n\nMore.\n")
    assert stated.title == "A title of two lines." and stated.text == "Text.\n\nMore."


def test_a_theorem_names_its_methods():
    free = tuple(each for each in COMPOSITION.assumptions if not each.of_method)
    with pytest.raises(TypeError, match="which methods it speaks of"):
        replace(COMPOSITION, assumptions=free)
    assert len(replace(COMPOSITION, assumptions=COMPOSITION.assumptions[:1]).assumptions) == 1


def test_the_table_has_every_name_once():
    names = list(TABLE)
    assert len(TABLE) == len(names) == len(set(names)) >= 41
    with pytest.raises(KeyError):
        TABLE["no-such-theorem"]


def test_a_plugin_is_a_theorem_with_a_name_of_its_own():
    value = replace(COMPOSITION, name="one-step")
    accepted = theorem._accept("one-step", value, "somebodys-theorems 1.0")
    assert accepted.origin == "somebodys-theorems 1.0" and accepted.name == "one-step"
    assert "somebodys-theorems 1.0" in accepted.mark and COMPOSITION.mark == ""
    for name, wrong in (
        ("one-step", "one-step"),
        ("two-steps", value),
        ("composition-gdp", COMPOSITION),
    ):
        with pytest.raises(InputError):
            theorem._accept(name, wrong, "somebodys-theorems 1.0")


def test_an_installed_plugin_is_named_before_it_is_allowed(monkeypatch):
    """Where its name is asked for, and no other theorem's."""
    installed = MappingProxyType({"one-step": (), "composition-gdp": ()})
    monkeypatch.setattr(plugins, "find_installed", lambda group: installed)
    assert find_theorem("composition-gdp") is COMPOSITION
    with pytest.raises(InputError, match="until plug-ins are allowed"):
        find_theorem("one-step")
    with pytest.raises(InputError, match="composition-gdp"):
        find_theorem("two-steps")
    monkeypatch.setattr(plugins, "are_allowed", lambda: True)
    with pytest.raises(InputError) as unknown:
        find_theorem("one-step")  # allowed, and yet not found
    assert "until plug-ins are allowed" not in str(unknown.value)


# Facts while records are zeroed.


def minted(evidence=Evidence.ASSUMED, **values):
    return li.LossFacts(**{name: mint(each, evidence, "a test") for name, each in values.items()})


@pytest.mark.parametrize(
    ("facts", "used", "held"),
    [
        (minted(strong=0.5, smooth=1.0), ("strong",), False),
        (minted(strong=0.0, smooth=1.0), ("strong", "smooth"), True),
        (minted(strong=0.5, smooth=1.0), ("smooth", "strong"), False),
        (minted(strong=0.5, smooth=1.0), ("smooth",), True),
        (minted(strong=0.5, smooth=1.0), (), True),
        (minted(weak_convexity=0.5), ("weak_convexity",), False),
        (minted(weak_convexity=0.0), ("weak_convexity",), True),
        (minted(log_sobolev=0.5), ("log_sobolev",), False),
        (minted(log_sobolev=0.0), ("log_sobolev",), True),
        (minted(Evidence.TESTED, strong=0.5), ("strong",), False),
        (minted(Evidence.PAID, strong=0.5), ("strong",), True),
        (minted(Evidence.PROVED, strong=0.5), ("strong",), True),
    ],
)
def test_stated_curvature_is_lost_with_a_record(facts, used, held):
    run = poisson_run(loss_from_facts(facts))
    assert holds_with_zeroed_records(run, [getattr(facts, name) for name in used]) == held


def test_curvature_of_a_ridge_stays():
    loss = li.Logistic(ridge=0.3)
    run = poisson_run(loss)
    assert holds_with_zeroed_records(run, (loss.facts().strong, loss.facts().smooth))


# Matching.


def test_a_method_is_checked_before_all_else():
    asked = []

    def assumption(name, result, of_method):
        def check(run):
            asked.append(name)
            return result

        return Assumption(name, "a test", check, of_method)

    def check(method):
        asked.clear()
        parts = (
            assumption("size", Violated("no size"), False),
            assumption("method", method, True),
            assumption("kind", Satisfied(), True),
        )
        return check_assumptions(replace(COMPOSITION, assumptions=parts), EXAMPLE), asked

    assert check(Satisfied()) == (
        [Satisfied(), Satisfied(), Violated("no size")],
        ["method", "kind", "size"],
    )
    assert check(Violated("another")) == ([Violated("another"), Satisfied()], ["method", "kind"])


def test_a_bound_follows_only_where_all_assumptions_hold():
    assert isinstance(match(COMPOSITION, EXAMPLE), Applies)
    unknown = replace(EXAMPLE, loss=li.KnownConstants())
    failed = match(COMPOSITION, unknown)
    assert isinstance(failed, Fails) and len(failed.reasons) == 1
    for wrong in (
        replace(COMPOSITION, kind="lower"),
        replace(TABLE["quadratic-witness"], kind="upper"),
    ):
        with pytest.raises(TypeError, match="a row of kind"):
            match(wrong, EXAMPLE)


def test_a_lower_bound_is_no_curve():
    found = match(TABLE["quadratic-witness"], EXAMPLE)
    with pytest.raises(TypeError, match="a lower bound is not a curve"):
        found.curve  # noqa: B018
    assert found.evidence is Evidence.ASSUMED
    assert match(TABLE["quadratic-witness"], replace(EXAMPLE, rows_per_unit=3)).bound == found.bound


def test_units_are_groups_of_records():
    single = match(COMPOSITION, EXAMPLE).curve
    for size in (1, 2, 3):
        found = match(COMPOSITION, replace(EXAMPLE, rows_per_unit=size)).curve
        assert isinstance(found, Gdp) and found.mu == pytest.approx(size * single.mu, rel=1e-10)


def test_units_need_facts_that_hold_with_zeroed_records():
    sure = replace(EXAMPLE, rows_per_unit=2)
    stated = replace(sure, loss=example_loss(strong=0.5))
    by_shifts = TABLE["shifted-interpolation"]
    assert isinstance(match(by_shifts, sure), Applies)
    assert isinstance(match(COMPOSITION, stated), Applies), "it rests on no curvature"
    failed = match(by_shifts, stated)
    assert isinstance(failed, Fails) and "for units of 2 rows" in failed.reasons[0]
    assert isinstance(match(by_shifts, replace(stated, rows_per_unit=1)), Applies)


def test_an_exchange_is_two_single_changes():
    """One record is zeroed, then replaced; units of two records are groups of exchanges."""
    zeroed = match(POISSON, poisson_run()).curve
    exchanged = match(POISSON, poisson_run(adjacency="replace-one"))
    assert exchanged.curve == zeroed.replace_one_curve() != zeroed
    units = match(POISSON, poisson_run(adjacency="replace-one", rows_per_unit=2))
    assert units.curve == zeroed.replace_one_curve().group(2)
    assert match(POISSON, poisson_run(rows_per_unit=2)).curve == zeroed.group(2)


@pytest.mark.parametrize(
    ("about", "run"),
    [
        (replace(POISSON, kind="claimed"), poisson_run()),
        (POISSON, poisson_run(li.KnownConstants(li.LossFacts(sensitivity=1.0)))),
        (POISSON, poisson_run(batching=li.FixedSize(10))),
        (POISSON, poisson_run(li.KnownConstants())),
        (DELAYED, poisson_run(example_loss(strong=0.5))),
    ],
    ids=["no upper bound", "stated for exchanges", "other batches", "unknown", "stated curvature"],
)
def test_exchanges_do_not_follow(about, run):
    assert isinstance(match(about, replace(run, adjacency="replace-one")), Fails)


def test_exchanges_follow_without_stated_curvature():
    run = poisson_run(adjacency="replace-one")
    assert isinstance(match(DELAYED, run), Applies)
    assert isinstance(match(POISSON, poisson_run(example_loss(strong=0.5))), Applies)


# The examples.

FULL_BATCHES = {
    "composition-langevin",
    "bounded-domain-convex",
    "langevin-linear",
    "langevin-lsi",
    "langevin-squared-norm",
    "langevin-strongly-convex",
    "langevin-lower-bound",
    "sgld-lsi",
    "sgld-strongly-convex",
    "objective-perturbation",
}
"""Examples with full batches; all others read a hundred records at a step."""
QUICK = (
    "composition-gdp",
    "hoelder-bounded-domain",
    "sgld-strongly-convex-batch",
    "objective-perturbation",
    "balls-in-bins-pld",
    "shifted-interpolation-permuted",
)
"""One theorem of every family whose bound is found at once."""


def test_examples_describe_what_pages_say():
    for name in QUICK:
        assert isinstance(match(TABLE[name], TABLE[name].example), Applies)
    read = {name: each.example.divisor for name, each in TABLE.items()}
    assert read == {name: 1000 if name in FULL_BATCHES else 100 for name in TABLE}
    bounded = TABLE["lipschitz-bounded-domain"].example
    assert bounded.loss.facts() == li.LossFacts(lipschitz=0.001, smooth=1.0, strong=0.0)
    rough = TABLE["hoelder-bounded-domain"].example
    assert rough.loss.facts() == li.LossFacts(lipschitz=0.01, hoelder=0.01, hoelder_exponent=0.5)
    assert bounded.domain == rough.domain == li.domains.Ball(0.01)
    solved = TABLE["objective-perturbation"].example
    assert solved.method == li.ObjectivePerturbation(6, 0.3)


EPSILONS = {
    "composition-gdp": 33.10373233595,
    "composition-langevin": 32.62253118861,
    "correlated-gdp": 6.156890767392,
    "bounded-domain-convex": 9.370883408819,
    "cyclic-weakly-convex": 8.306468629056,
    "cyclic-weakly-convex-bounded": 13.20671224047,
    "lipschitz-bounded-domain": 3.870218884194,
    "hoelder-bounded-domain": 0.5612849328811,
    "pabi-convex": 7.911501075735,
    "smooth-bounded-domain": 19.01491742836,
    "langevin-linear": 32.62253118861,
    "langevin-lsi": 17.72322219331,
    "langevin-squared-norm": 1.44540834319,
    "langevin-strongly-convex": 17.72322219331,
    "sgld-lsi": 17.72322219331,
    "sgld-lsi-sampled": 4.710063001046,
    "sgld-strongly-convex": 17.72322219331,
    "sgld-strongly-convex-batch": 54.17311408379,
    "sgld-strongly-convex-sampled": 4.710063001046,
    "objective-perturbation": 2.042508254153,
    "variance-reduction": 8.316328608191,
    "delayed-shifts-allocated": 7.634397364231,
    "delayed-shifts-fixed-size": 10.08850766642,
    "delayed-shifts-poisson": 7.889218175961,
    "restarted-allocation-pld": 8.059141233982,
    "restarted-fixed-size": 14.38329497476,
    "restarted-poisson-pld": 8.279322928139,
    "balls-in-bins-pld": 30.80354572641,
    "fixed-size-amplified": 14.38329497278,
    "poisson-pld": 8.279322928139,
    "poisson-rdp": 8.946956799839,
    "random-allocation-pld": 8.059141233982,
    "shifted-interpolation": 7.911501075735,
    "shifted-interpolation-allocated": 7.639404725783,
    "shifted-interpolation-bins": 7.616192499316,
    "shifted-interpolation-permuted": 7.616192499312,
    "shifted-interpolation-reshuffled": 7.639404725787,
    "langevin-lower-bound": 7.051221726102,
    "linear-witness": 7.769859154077,
    "quadratic-witness": 7.511275891704,
    "linear-response-witness": 7.52527144821,
}
CLOSED = ("composition", "langevin-l", "langevin-s", "sgld", "pabi", "cyclic", "correlated")
"""Begin the names of theorems whose curves are closed forms."""


def test_every_example_has_its_number():
    """As they were computed before, so that no change of a bound or an example passes unnoticed."""
    assert set(EPSILONS) == set(TABLE)


@pytest.mark.parametrize("name", EPSILONS)
def test_epsilon_of_an_example(name):
    found = match(TABLE[name], TABLE[name].example).bound.epsilon(1e-5)
    assert found == pytest.approx(EPSILONS[name], rel=1e-9 if name.startswith(CLOSED) else 1e-6)
    assert math.isfinite(found)
