"""What Opacus executes, accounted and described: Poisson loaders, shuffling ones, events of
dp-accounting."""

import warnings
from dataclasses import dataclass, replace

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import OpacusAccountant, describe
from lastiterate.torch.accountant import full_curve, poisson_curve

opacus = pytest.importorskip("opacus", reason="Opacus is not installed")

N, BATCH, Z, DELTA = 60, 6, 1.2, 1e-5


def private(
    poisson=True,
    optimizer=torch.optim.SGD,
    passes=2,
    accountant="lastiterate",
    drop_last=False,
    **options,
):
    data = torch.utils.data.TensorDataset(torch.randn(N, 3), torch.randn(N, 1))
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=options.pop("batch", BATCH),
        drop_last=drop_last,
        shuffle=options.pop("shuffle", True),
    )
    module = torch.nn.Linear(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = opacus.PrivacyEngine(accountant=accountant)
        module, steps, loader = engine.make_private(
            module=module,
            optimizer=optimizer(module.parameters(), lr=0.1, **options),
            data_loader=loader,
            noise_multiplier=Z,
            max_grad_norm=0.5,
            poisson_sampling=poisson,
        )
        for _ in range(passes):
            for x, y in loader:
                steps.zero_grad()
                torch.nn.functional.mse_loss(module(x), y).backward()
                steps.step()
    return engine, steps, loader


def reference(rate, steps, z=Z):
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), steps)
    return PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event).get_epsilon(DELTA)


def test_poisson_batches_by_privacy_loss_distributions():
    engine, steps, loader = private()
    assert type(engine.accountant) is OpacusAccountant and len(engine.accountant) == 20
    with pytest.warns(UserWarning, match="Poisson batches are assumed"):
        assumed = engine.get_epsilon(DELTA)
    engine.accountant.watch(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = engine.get_epsilon(DELTA)
    expected = reference(BATCH / N, 20)
    assert found == assumed and expected < found < 1.03 * expected
    run = describe(engine, optimizer=steps, data_loader=loader)
    assert run == li.Run(
        n=N,
        steps=20,
        step_size=0.1,
        noise=li.NoiseMultiplier(Z),
        clip=0.5,
        batching=li.Poisson(BATCH / N),
        adjacency="add-remove",
    )
    assert li.account(run).epsilon(DELTA) == pytest.approx(found, rel=1e-3)


def test_a_loader_that_shuffles_is_charged_in_full():
    engine, steps, loader = private(poisson=False)
    engine.accountant.watch(loader)
    with pytest.warns(UserWarning, match=r"charged in full, epsilon .* would claim"):
        found = engine.get_epsilon(DELTA)
    run = describe(engine, optimizer=steps, data_loader=loader)
    assert run.batching == li.Reshuffled(BATCH) and run.adjacency == "zero-out"
    assert li.account(run).epsilon(DELTA) == pytest.approx(found, rel=1e-6)
    assert engine.accountant.claimed(DELTA) == pytest.approx(reference(BATCH / N, 20), rel=0.03)
    assert found > 2 * engine.accountant.claimed(DELTA), (
        "the common practice understates by that much"
    )


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_of_which_few_batches_are_read_is_charged(shuffle):
    """Each of 15 passes may have begun with the same record: 15 steps cost what they cost without
    batches."""
    engine, steps, loader = private(poisson=False, passes=0, shuffle=shuffle)
    engine.accountant.watch(loader).watch(loader)
    resumed = OpacusAccountant()
    for _ in range(15):
        for _ in loader:
            engine.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)
            break
    resumed.load_state_dict(engine.accountant.state_dict())
    resumed.watch(private(poisson=False, passes=0)[2])
    with pytest.raises(InputError, match="whole passes"):
        describe(engine, optimizer=steps, data_loader=loader)
    for accountant in (engine.accountant, resumed):
        assert (
            accountant.curve().mu
            == full_curve([(Z, 0.1, 15)], 1).mu
            > 2.7 * full_curve([(Z, 0.1, 15)], 10).mu
        )
    for _ in range(2):
        for _ in loader:
            engine.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)
    assert engine.accountant.curve().mu == pytest.approx(full_curve([(Z, 0.1, 17)], 1).mu)
    for _ in range(10):  # of batches that were kept, or by who does not iterate
        engine.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)
    assert engine.accountant.curve().mu == pytest.approx(full_curve([(Z, 0.1, 18)], 1).mu)


def test_passes_side_by_side_are_charged_and_refused():
    """Both may begin with the same record, in one step, or in two: of noise Z they cost at most
    what Z / 2 costs."""
    engine, steps, loader = private(poisson=False, passes=0)
    engine.accountant.watch(loader)
    pairs = zip(loader, loader, strict=True)
    next(pairs)
    for _ in range(2):
        engine.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)
    assert engine.accountant.passes == [0, 0]
    assert engine.accountant.curve().mu == pytest.approx(full_curve([(Z / 2, 0.1, 1)], 1).mu)
    with pytest.raises(InputError, match="one pass at a time"):
        next(pairs)
    with pytest.raises(InputError, match="whole passes"):
        describe(engine, optimizer=steps, data_loader=loader)


def test_passes_that_are_over_before_a_step_are_not_charged():
    """Who looks at a batch, or scores the records, between two passes takes no step with them."""
    engine, steps, loader = private(poisson=False, passes=0)
    engine.accountant.watch(loader)
    next(iter(loader))
    for _ in range(2):
        assert len(list(loader)) == 10
        for _ in loader:
            engine.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)
    assert engine.accountant.curve().mu == full_curve([(Z, 0.1, 20)], 10).mu
    assert describe(engine, optimizer=steps, data_loader=loader).steps == 20


@pytest.mark.parametrize("poisson", [True, False])
def test_batches_that_are_added_up_are_refused(poisson):
    engine, _, loader = private(poisson=poisson, passes=0)
    engine.accountant.watch(loader)
    engine.accountant.step(noise_multiplier=Z, sample_rate=2 * BATCH / N)
    with pytest.raises(InputError, match="may be in several that are added up"):
        engine.accountant.curve()


def test_the_order_of_the_data_and_batches_that_are_left_out():
    engine, steps, loader = private(poisson=False, shuffle=False, passes=1)
    assert describe(engine, optimizer=steps, data_loader=loader).batching == li.Cyclic(BATCH)
    engine, steps, loader = private(poisson=False, drop_last=True, batch=7)
    run = describe(engine, optimizer=steps, data_loader=loader)
    assert run.n == 56 and run.steps == 16 and run.blocks == 8


def test_another_noise_in_the_middle():
    accountant = OpacusAccountant()
    for z in (1.0, 1.0, 2.0, 2.0, 2.0):
        accountant.step(noise_multiplier=z, sample_rate=0.5)
    assert accountant.history == [(1.0, 0.5, 2), (2.0, 0.5, 3)] and len(accountant) == 5
    full = full_curve(accountant.history, 2)
    assert full.mu == pytest.approx(np.sqrt(1 + 1 / 4 + 1 / 4) * 1.0098, rel=1e-4), (
        "passes (1, 1), (2, 2), (2,)"
    )
    assert full_curve([(2.0, 0.5, 1), (1.0, 0.5, 3)], 2).mu == pytest.approx(
        np.sqrt(2) * 1.0098, rel=1e-4
    )
    two = poisson_curve([(2.0, 0.5, 1), (4.0, 0.25, 1)]).epsilon(DELTA)  # two rates are convolved
    assert two > poisson_curve([(2.0, 0.5, 1)]).epsilon(DELTA)
    assert (
        poisson_curve([(0.0, 0.5, 1)]).epsilon(DELTA)
        == np.inf
        == full_curve([(0.0, 0.5, 1)], 2).epsilon(DELTA)
    )
    assert poisson_curve([]).epsilon(DELTA) == full_curve([], 2).epsilon(DELTA) == 0
    again = OpacusAccountant()
    again.load_state_dict(accountant.state_dict())
    assert again.history == accountant.history


def test_opacus_calibrates_with_it():
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        z = get_noise_multiplier(
            target_epsilon=3.0,
            target_delta=DELTA,
            sample_rate=0.1,
            steps=20,
            accountant="lastiterate",
            epsilon_tolerance=0.3,
        )
    assert 2.6 < reference(0.1, 20, z) <= 3.0


def test_other_optimizers_count_every_iterate():
    engine, steps, loader = private(optimizer=torch.optim.Adam, passes=1)
    assert describe(engine, optimizer=steps, data_loader=loader).release == "all"
    engine, steps, loader = private(passes=1, momentum=0.9)
    assert describe(engine, optimizer=steps, data_loader=loader).release == "all"


def test_events_of_dp_accounting_and_plans_that_hold_them():
    @dataclass
    class Plan:
        dp_event: object

    step = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0))
    run = li.Run(
        n=500,
        steps=30,
        step_size=1.0,
        noise=li.NoiseMultiplier(2.0),
        clip=1.0,
        batching=li.Poisson(0.1),
        release="all",
        adjacency="add-remove",
    )
    assert describe(Plan(dp.SelfComposedDpEvent(step, 30)), n=500) == run
    assert describe(dp.ComposedDpEvent([step] * 30), n=500) == run
    full = describe(dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 5), n=500)
    assert full == replace(run, steps=5, batching=li.FullBatch(), adjacency="zero-out")
    fixed = describe(dp.SampledWithoutReplacementDpEvent(500, 50, dp.GaussianDpEvent(2.0)))
    assert fixed == replace(run, steps=1, batching=li.FixedSize(50), adjacency="replace-one")


def test_configurations_of_jax_privacy_for_keras():
    @dataclass
    class DPKerasConfig:  # the fields of the class of that name
        epsilon: float = 1.0
        delta: float = 1e-5
        clipping_norm: float = 0.7
        batch_size: int = 50
        gradient_accumulation_steps: int = 1
        train_steps: int = 30
        train_size: int = 500
        noise_multiplier: float | None = 2.0

    run = describe(DPKerasConfig())
    assert (run.n, run.steps, run.clip, run.batching) == (500, 30, 0.7, li.Poisson(0.1))
    assert describe(DPKerasConfig(noise_multiplier=None)).noise is None
    with pytest.raises(InputError, match="step with every batch"):
        describe(DPKerasConfig(gradient_accumulation_steps=2))


def test_what_is_not_known_is_refused():
    engine, steps, loader = private(passes=1)
    with pytest.raises(InputError, match="data_loader is needed"):
        describe(engine, optimizer=steps)
    with pytest.raises(InputError, match="optimizer must be what make_private returned"):
        describe(engine, optimizer=steps.original_optimizer, data_loader=loader)
    data = loader.dataset
    for sampler in (
        torch.utils.data.RandomSampler(data, replacement=True),
        torch.utils.data.SubsetRandomSampler(range(5)),
    ):
        with pytest.raises(InputError, match="every record once in a pass"):
            engine.accountant.watch(
                torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
            )
    with pytest.raises(InputError, match="must be a torch DataLoader"):
        engine.accountant.watch([1, 2])
    engine.accountant.watch(private(passes=0, batch=10)[2])
    with pytest.raises(InputError, match="rates that were counted"):
        engine.get_epsilon(DELTA)
    step = dp.GaussianDpEvent(1.0)
    for event, said in (
        (dp.LaplaceDpEvent(1.0), "Gaussian steps"),
        (object(), "PrivacyEngine"),
        (dp.ComposedDpEvent([step, dp.GaussianDpEvent(2.0)]), "equal steps"),
    ):
        with pytest.raises(InputError, match=said):
            describe(event, n=5)
    with pytest.raises(InputError, match="n is needed"):
        describe(step)
    with pytest.raises(InputError, match="must be given"):
        fresh = private(passes=0)
        describe(fresh[0], optimizer=fresh[1], data_loader=fresh[2])
