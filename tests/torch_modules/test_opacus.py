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
from lastiterate.torch.accountant import LoaderBatching, describe_loader, full_curve, poisson_curve

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
        num_workers=options.pop("workers", 0),
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
    steps.module = module
    return engine, steps, loader


def reference(rate, steps, z=Z):
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), steps)
    return PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event).get_epsilon(DELTA)


def test_poisson_batches_by_privacy_loss_distributions():
    engine, steps, loader = private()
    assert type(engine.accountant) is OpacusAccountant and len(engine.accountant) == 20
    with pytest.warns(
        UserWarning,
        match="epsilon is unproved: Poisson batches are assumed.* after make_private, call engine",
    ):
        assumed = engine.get_epsilon(DELTA)
    engine.accountant.watch(loader)
    with pytest.warns(UserWarning, match="unproved: 20 steps before watch.. .* one Poisson batch"):
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
    assert engine.accountant.poisson_epsilon(DELTA) == pytest.approx(
        reference(BATCH / N, 20), rel=0.03
    )
    assert found > 2 * engine.accountant.poisson_epsilon(DELTA), (
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
    engine.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)
    with pytest.raises(InputError, match="steps were made for which it drew none"):
        engine.accountant.curve()


def test_passes_side_by_side_are_refused():
    """Both may begin with the same record, in one step."""
    engine, steps, loader = private(poisson=False, passes=0)
    engine.accountant.watch(loader)
    pairs = zip(loader, loader, strict=True)
    next(pairs)
    for _ in range(2):
        engine.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)
    assert engine.accountant.passes == [0, 0]
    with pytest.raises(InputError, match="batches were added up"):
        engine.accountant.curve()
    with pytest.raises(InputError, match="one pass at a time"):
        next(pairs)
    assert full_curve([(Z, 0.1, 1)], 1, [0, 0]).mu == pytest.approx(
        full_curve([(Z / 2, 0.1, 1)], 1).mu
    ), "a state that was kept is charged for both"
    with pytest.raises(InputError, match="batches were added up"):
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
    step_by(engine.accountant, 2 * BATCH / N, loader, 1)
    with pytest.raises(InputError, match="may be in several that are added up"):
        engine.accountant.curve()


def step_by(accountant, rate, loader=(), steps=None):
    for _, _ in zip(
        range(len(loader) if steps is None else steps), loader or range(99), strict=False
    ):
        accountant.step(noise_multiplier=Z, sample_rate=rate)


def train(use, loader, steps, batches=None):
    """Do as ``use`` does with every batch."""
    for index, (x, y) in enumerate(loader):
        if index == batches:
            break
        use(steps, index, torch.nn.functional.mse_loss(steps.module(x), y))


def use_once(steps, _, loss):
    loss.backward()
    steps.step()
    steps.zero_grad()


def use_every_second(steps, index, loss):
    loss.backward()
    if index % 2:
        steps.step()
        steps.zero_grad()


def use_with_a_signal(steps, index, loss):
    loss.backward()
    steps.signal_skip_step(do_skip=index % 2 == 0)
    steps.step()
    steps.zero_grad()


def use_twice(steps, index, loss):
    steps.zero_grad()
    loss.backward(retain_graph=True)
    steps.step()
    steps.accountant.step(noise_multiplier=Z, sample_rate=BATCH / N)


def leave_out(steps, index, loss):
    loss.backward()
    if index != 4:
        steps.step()
    steps.zero_grad()


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize(
    "use, said",
    [
        (use_with_a_signal, "batches were added up before a step"),
        (leave_out, "or left out"),
        (use_twice, "for which it drew none"),
    ],
)
def test_a_watched_loader_has_one_step_for_every_batch(poisson, use, said):
    """Opacus' own count sees one batch where the signal adds up two: history (Z, 0.1, 5)."""
    engine, steps, loader = private(poisson=poisson, passes=0)
    steps.accountant = engine.accountant.watch(loader)
    train(use, loader, steps)
    again = OpacusAccountant()
    again.load_state_dict(engine.accountant.state_dict())
    for refuse in (
        lambda: engine.get_epsilon(DELTA),
        lambda: describe(engine, optimizer=steps, data_loader=loader, steps=5),
        again.curve,
    ):
        with pytest.raises(InputError, match=said):
            refuse()


def test_batches_that_are_added_up_are_refused_where_nothing_is_watched():
    """Opacus itself refuses them for Poisson batches alone."""
    engine, steps, loader = private(poisson=False, passes=0)
    train(use_every_second, loader, steps)
    for refuse in (
        lambda: engine.get_epsilon(DELTA),
        lambda: describe(engine, optimizer=steps, data_loader=loader, steps=5),
    ):
        with pytest.raises(InputError, match="batches were added up before a step"):
            refuse()


@pytest.mark.parametrize("poisson", [True, False])
def test_two_batches_in_one_are_refused(poisson):
    """Whether they are of one pass, of two, or were kept."""
    for draw in (
        lambda loader: iter(loader),
        lambda loader: (next(iter(loader)) for _ in range(9)),
        lambda loader: iter(list(loader)),
    ):
        engine, steps, loader = private(poisson=poisson, passes=0)
        engine.accountant.watch(loader)
        batches = draw(loader)
        (x, y), (others, targets) = next(batches), next(batches)
        x, y = torch.cat([x, others]), torch.cat([y, targets])
        use_once(steps, 0, torch.nn.functional.mse_loss(steps.module(x), y))
        assert engine.accountant.history == [(Z, BATCH / N, 1)]
        with pytest.raises(InputError, match="batches were added up before a step"):
            engine.accountant.curve()


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_are_split_are_one(poisson, workers):
    """The manager of memory signals too; a pass that is left within a batch would add its part to
    the next one."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    engine, steps, loader = private(poisson=poisson, passes=0, workers=workers)
    engine.accountant.watch(loader)
    with (
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=steps) as parts,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        train(use_once, parts, steps)
        train(use_once, parts, steps)
        assert len(engine.accountant) == 20 and engine.get_epsilon(DELTA) > 0
        assert describe(engine, optimizer=steps, data_loader=loader).steps == 20
        for part, (x, y) in enumerate(parts):
            if part and steps._is_last_step_skipped:
                break
            use_once(steps, 0, torch.nn.functional.mse_loss(steps.module(x), y))
        train(use_once, parts, steps)
        with pytest.raises(InputError, match="batches were added up before a step"):
            engine.get_epsilon(DELTA)


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_may_be_left(poisson, workers):
    engine, steps, loader = private(poisson=poisson, passes=0, workers=workers)
    engine.accountant.watch(loader)
    for batches in (3, 1, None, None):
        train(use_once, loader, steps, batches)
        next(iter(loader))
    assert len(engine.accountant) == 24
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        assert engine.get_epsilon(DELTA) > 0
    assert not any("unproved" in str(warning.message) for warning in raised)


def test_batches_of_workers_that_no_step_used_are_said():
    engine, steps, loader = private(passes=0, workers=1)
    engine.accountant.watch(loader)
    train(use_once, loader, steps, 9)
    with pytest.warns(UserWarning, match="unproved: 1 batches that were read in the last pass"):
        engine.get_epsilon(DELTA)
    train(use_once, loader, steps)
    with pytest.raises(InputError, match="or left out"):
        engine.get_epsilon(DELTA)


def test_a_loader_that_nobody_reads_is_refused():
    """As the one that was given to make_private, where another one came back."""
    engine, steps, loader = private(passes=0)
    engine.accountant.watch(torch.utils.data.DataLoader(loader.dataset, batch_size=BATCH))
    train(use_once, loader, steps)
    with pytest.raises(InputError, match=r"watch the loader that make_private returned"):
        engine.get_epsilon(DELTA)


def test_stages_with_poisson_batches_of_different_sizes_add_up():
    """Every stage's loader is watched; a run describes one of them."""
    engine, steps, loader = private(passes=1)
    second = private(passes=0, batch=12)
    step_by(engine.accountant, 0.2, steps=5)
    engine.accountant.watch(loader)
    with pytest.raises(InputError, match=r"0.1 and 0.2, got '0.1'; watch .* of every stage"):
        engine.get_epsilon(DELTA)
    engine.accountant.watch(second[2])
    one = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(Z)), 10)
    two = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(Z)), 5)
    expected = (
        PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
        .compose(one)
        .compose(two)
        .get_epsilon(DELTA)
    )
    assert expected < engine.get_epsilon(DELTA) < 1.2 * expected
    with pytest.raises(InputError, match="describe every stage"):
        describe(engine, optimizer=steps, data_loader=loader)
    runs = (
        describe(engine, optimizer=steps, data_loader=loader, steps=10),
        describe(engine, optimizer=second[1], data_loader=second[2], steps=5),
    )
    together = li.curves.compose(*(li.account(run).curve() for run in runs))
    assert expected < together.epsilon(DELTA) < 1.2 * expected


def use_another_loader(engine, steps, loader):
    """The optimizer of the first stage on the loader of the second, of five times the rate."""
    other = private(passes=0, batch=30)[2]
    engine.accountant.watch(other)
    train(use_once, other, steps)


def change_the_rate(engine, steps, loader):
    loader.batch_sampler.sample_rate = 0.5
    train(use_once, loader, steps, 3)


def change_the_norm_within_a_batch(engine, steps, loader):
    train(use_once, loader, steps, 1)
    batches = iter(loader)
    steps.signal_skip_step(True)
    use_once(steps, 0, torch.nn.functional.mse_loss(*map_batch(steps, next(batches))))
    steps.signal_skip_step(False)
    steps.max_grad_norm = 0.01
    use_once(steps, 0, torch.nn.functional.mse_loss(*map_batch(steps, next(batches))))


def map_batch(steps, batch):
    return steps.module(batch[0]), batch[1]


@pytest.mark.parametrize(
    "use, said",
    [
        (use_another_loader, "drawn at a larger rate than counted"),
        (change_the_rate, "drawn at a larger rate than counted"),
        (change_the_norm_within_a_batch, "noise was added in units of another norm"),
    ],
)
def test_a_step_that_is_counted_too_small_is_refused(use, said):
    engine, steps, loader = private(passes=0)
    engine.accountant.watch(loader)
    use(engine, steps, loader)
    again = OpacusAccountant()
    again.load_state_dict(engine.accountant.state_dict())
    for refuse in (
        lambda: engine.get_epsilon(DELTA),
        lambda: describe(engine, optimizer=steps, data_loader=loader, steps=1),
        again.curve,
    ):
        with pytest.raises(InputError, match=said):
            refuse()


def test_a_clipping_norm_may_change_where_a_step_clips_and_adds_noise_at_once():
    engine, steps, loader = private(passes=0)
    engine.accountant.watch(loader)
    for norm in (0.5, 0.25):
        steps.max_grad_norm = norm
        train(use_once, loader, steps)
    assert engine.get_epsilon(DELTA) == pytest.approx(reference(BATCH / N, 20), rel=0.03)


@pytest.mark.parametrize("kind, norms", [("ghost", (0.5, 0.05)), ("per layer", (0.05,))])
def test_noise_and_clips_have_one_norm(kind, norms):
    """Ghost clipping reads the module's own norm, clips per layer a list of them."""
    data = torch.utils.data.TensorDataset(torch.randn(N, 3), torch.randn(N, 1))
    module, own = torch.nn.Linear(3, 1), {"clipping": "per_layer", "max_grad_norm": [0.3, 0.4]}
    ghost = {"grad_sample_mode": "ghost", "criterion": torch.nn.MSELoss(), "max_grad_norm": 0.5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = opacus.PrivacyEngine(accountant="lastiterate")
        module, steps, *rest, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
            noise_multiplier=Z,
            **(ghost if kind == "ghost" else own),
        )
    loss = (*rest, torch.nn.functional.mse_loss)[0]
    engine.accountant.watch(loader)

    for norm in norms:
        assert engine.get_epsilon(DELTA) >= 0
        steps.max_grad_norm = norm
        for x, y in loader:
            steps.zero_grad()
            loss(module(x), y).backward()
            steps.step()
    with pytest.raises(InputError, match="noise was added in units of another norm"):
        engine.get_epsilon(DELTA)


@pytest.mark.parametrize("poisson", [True, False])
def test_a_kept_state_knows_how_its_batches_were_drawn(poisson):
    """Steps of whole passes that go on with Poisson batches would be taken for Poisson ones."""
    engine, steps, loader = private(poisson=poisson, passes=0)
    engine.accountant.watch(loader)
    train(use_once, loader, steps)
    first, second = OpacusAccountant(), OpacusAccountant()
    other = private(poisson=not poisson, passes=0)[2]
    second.watch(other)
    for resume in (
        lambda: first.load_state_dict(engine.accountant.state_dict()) or first.watch(other),
        lambda: second.load_state_dict(engine.accountant.state_dict()),
    ):
        with pytest.raises(InputError, match="must draw as the one that was watched before"):
            resume()
    first.watch(loader)
    assert first.curve().epsilon(DELTA) == engine.accountant.curve().epsilon(DELTA)


def test_lengths_that_opacus_rounds_down_are_taken():
    """1 / (1 / 93) is less than 93: Opacus counts a rate of 1/92 there, which is more."""
    loader = private(passes=0, batch=1)[2]
    assert describe_loader(loader).rates == {1 / 60}
    loader.batch_sampler.sample_rate = 1 / 93
    assert replace(describe_loader(loader), batches=92).rates == {1 / 93, 1 / 92}


def test_stages_that_shuffle_have_an_engine_each():
    first, second = (private(poisson=False, passes=0, batch=size) for size in (6, 12))
    for engine, _, loader in (first, second):
        engine.accountant.watch(loader)
        step_by(engine.accountant, 1 / len(loader), loader)
    with pytest.raises(
        InputError, match="whole passes, got 'Poisson batches'; use an engine for each"
    ):
        first[0].accountant.watch(private(passes=0)[2])
    together = li.curves.compose(first[0].accountant.curve(), second[0].accountant.curve())
    one = full_curve([(Z, 0.1, 10)], 10)
    assert together.epsilon(DELTA) == pytest.approx(li.curves.compose(one, one).epsilon(DELTA))
    first[0].accountant.watch(second[2])
    with pytest.raises(InputError, match="shuffle need an engine each"):
        first[0].get_epsilon(DELTA)


def test_two_batches_in_one_step_are_no_batch_of_another_stage():
    """Twice the rate of one loader is that of another one, but a record may be in both batches."""
    engine, steps, loader = private(passes=0)
    engine.accountant.watch(loader).watch(private(passes=0, batch=12)[2])
    module = torch.nn.Linear(3, 1)
    for parameter, own in zip(steps.params, module.parameters(), strict=True):
        parameter.grad_sample = [torch.ones(2, *own.shape)] * 2
        parameter.summed_grad = None
    steps.step()
    assert engine.accountant.history == [(Z, 2 * BATCH / N, 1)]
    again = OpacusAccountant()
    again.load_state_dict(engine.accountant.state_dict())
    again.watch(private(passes=0, batch=12)[2])
    for accountant in (engine.accountant, again):
        with pytest.raises(InputError, match=r"added up .*step\(\) after every backward"):
            accountant.curve()


def test_adaptive_clipping_is_refused_at_the_first_step():
    """The share of clipped records is divided by how many were drawn: no theorem covers that."""
    module, data = torch.nn.Linear(3, 1), torch.utils.data.TensorDataset(torch.randn(N, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = opacus.PrivacyEngine(accountant="lastiterate")
        module, steps, _ = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
            noise_multiplier=Z,
            max_grad_norm=0.5,
            clipping="adaptive",
            target_unclipped_quantile=0.5,
            clipbound_learning_rate=0.2,
            max_clipbound=10.0,
            min_clipbound=0.1,
            unclipped_num_std=5.0,
        )
        module(torch.randn(4, 3)).sum().backward()
    with pytest.raises(InputError, match=r'AdaClipDPOptimizer\'; give .*clipping="flat"'):
        steps.step()
    assert len(engine.accountant) == 0


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.randn(N, 3))

    def __len__(self):
        return N


SAMPLERS = {
    "a subset": (
        lambda data: torch.utils.data.SubsetRandomSampler(range(30)),
        r"Subset\(data, indices\) write DataLoader",
    ),
    "a share": (
        lambda data: torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0),
        "one share of the records.*train in one process",
    ),
    "fewer": (
        lambda data: torch.utils.data.RandomSampler(data, num_samples=20),
        "num_samples = 20 of 60 records .* without num_samples",
    ),
    "more": (
        lambda data: torch.utils.data.RandomSampler(data, num_samples=90),
        "reads some again",
    ),
    "replaced": (
        lambda data: torch.utils.data.RandomSampler(data, replacement=True),
        "several times in one pass",
    ),
    "weighted": (
        lambda data: torch.utils.data.WeightedRandomSampler([1.0] * N, N),
        "several times in one pass",
    ),
    "another": (lambda data: list(range(N)), "not known here"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_are_refused_with_their_own_reason(name):
    make, said = SAMPLERS[name]
    data = torch.utils.data.TensorDataset(torch.randn(N, 3))
    loader = torch.utils.data.DataLoader(data, batch_size=5, sampler=make(data))
    with pytest.raises(InputError, match=said):
        OpacusAccountant().watch(loader)


def test_what_the_refusals_of_samplers_name_is_taken():
    data = torch.utils.data.TensorDataset(torch.randn(N, 3))
    for given, n in ((data, N), (torch.utils.data.Subset(data, range(30)), 30)):
        loader = torch.utils.data.DataLoader(given, batch_size=5, shuffle=True)
        assert describe_loader(loader) == LoaderBatching(li.Reshuffled(5), n, n // 5)
    with pytest.raises(InputError, match=r"numbered items.*'Stream'; a stream decides itself"):
        OpacusAccountant().watch(torch.utils.data.DataLoader(Stream(), batch_size=5))
    with pytest.raises(InputError, match=r"got 'no batches'.*DataLoader"):
        OpacusAccountant().watch(torch.utils.data.DataLoader(data, batch_size=None))
    with pytest.raises(InputError, match="60 records'; leave drop_last out"):
        OpacusAccountant().watch(torch.utils.data.DataLoader(data, batch_size=99, drop_last=True))


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


@pytest.mark.parametrize(
    "optimizer, options, update, step_size",
    [
        (torch.optim.Adam, {"betas": (0.8, 0.99)}, li.Adam(0.8, 0.99), 0.1),
        (torch.optim.SGD, {"momentum": 0.9}, li.HeavyBall(0.9), 0.1),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, li.PostProcessing("SGD"), 1.0),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}, li.PostProcessing("SGD"), 1.0),
        (torch.optim.SGD, {"weight_decay": 0.1}, li.PostProcessing("SGD"), 1.0),
        (torch.optim.Adam, {"amsgrad": True}, li.PostProcessing("Adam"), 1.0),
        (torch.optim.AdamW, {}, li.PostProcessing("AdamW"), 1.0),
    ],
)
def test_other_optimizers_are_said_and_count_every_iterate(optimizer, options, update, step_size):
    engine, steps, loader = private(optimizer=optimizer, passes=1, **options)
    run = describe(engine, optimizer=steps, data_loader=loader)
    assert (run.optimizer, run.step_size, run.release) == (update, li.Constant(step_size), "all")
    plain = replace(run, optimizer=None, step_size=0.1)
    assert li.account(run).epsilon(DELTA) == li.account(plain).epsilon(DELTA)


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
