"""A description is what it is: subclasses and look-alikes are refused wherever a run is put
together or used."""

from dataclasses import fields, replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate import InputError
from lastiterate.engine.trainer import Trainer
from lastiterate.run.run import DESCRIPTIONS
from oracles.descriptions import BASE, PARTS, holding


def fields_of(part):
    return {item.name: getattr(part, item.name) for item in fields(part) if item.init}


def lying_subclass(part, **overridden):
    return type(f"Lying{type(part).__name__}", (type(part),), overridden)(**fields_of(part))


class LookAlike:
    """Answers every question as another object does."""

    def __init__(self, part):
        self.__dict__.update(fields_of(part))
        self._part = part

    def __getattr__(self, name):
        return getattr(self._part, name)


def test_every_kind_of_description_has_an_example():
    assert set(PARTS) == {kind for kinds in DESCRIPTIONS.values() for kind in kinds}


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("liar", (lying_subclass, LookAlike), ids=("subclass", "look-alike"))
def test_liars_are_refused_in_a_run(part, liar):
    field = next(name for name, kinds in DESCRIPTIONS.items() if type(part) in kinds)
    with pytest.raises(InputError, match=rf"Run\.{field} must be one of .*got '(Lying|LookAlike)"):
        replace(
            holding(part),
            **{field: (liar(part),) if field in ("preprocessing", "counts") else liar(part)},
        )


def test_a_schedule_that_overrides_one_reader_is_refused():
    """It was executed with steps of 5.0, and certified at epsilon 13.14 where 31.43 is true."""

    class Faster(li.InverseDecay):
        def at(self, step):
            return 5.0

        def sizes(self, first, last):
            return np.full(last - first, 5.0)

    run = dict(n=1000, steps=100, noise=li.Langevin(0.05), loss=li.Logistic(ridge=0.1))
    with pytest.raises(
        InputError, match=r"step_size must be one of Constant, InverseDecay, .* got 'Faster'"
    ):
        li.Run(step_size=Faster(2.0, 0.1), **run)
    li.account(li.Run(step_size=li.InverseDecay(2.0, 0.1), **run))


@pytest.mark.parametrize("liar", (lying_subclass, LookAlike))
def test_liars_are_refused_among_constants(liar):
    facts, fact = li.LossFacts(lipschitz=1.0), li.Fact(1.0)
    with pytest.raises(InputError, match=r"KnownConstants\.constants must be one of LossFacts"):
        li.KnownConstants(liar(facts))
    with pytest.raises(InputError, match=r"LossFacts\.lipschitz must be a number"):
        li.LossFacts(lipschitz=liar(fact))
    proved = lying_subclass(fact)
    object.__setattr__(proved, "evidence", li.Evidence.PROVED)
    with pytest.raises(InputError, match=r"LossFacts\.lipschitz must be a number"):
        li.LossFacts(lipschitz=proved)


USES = {
    "account": li.account,
    "calibrate": lambda run: li.calibrate(run, epsilon=1.0, delta=1e-5),
    "train": Trainer,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("liar", (lying_subclass, LookAlike))
def test_liars_are_refused_as_runs(use, liar):
    honest = replace(BASE, clip=None, loss=li.Logistic())
    use(honest)
    with pytest.raises(InputError, match="run must be a Run itself"):
        use(liar(honest))


def test_a_lying_number_is_stored_as_the_number_that_was_checked():
    class Twice(float):
        def __mul__(self, other):
            return 2 * float(self) * other

    with pytest.raises(InputError, match="must be a number"):
        li.GradientNoise(Twice(1.0))
    with pytest.raises(InputError, match="must be one of"):
        replace(BASE, adjacency=type("Word", (str,), {})("zero-out"))
