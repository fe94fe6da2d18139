"""Optimizers and schedules of torch on a module: post-processing of noisy gradients, stated, kept
and charged."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import lastiterate as li
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.torch import Grouped, PerEpoch
from lastiterate.torch.module_optimizer import ModuleOptimizer
from lastiterate.torch.parameters import Parameters
from tiers import unless

N = 24
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % 3
PLAIN = li.Run(
    n=N,
    steps=8,
    step_size=1.0,
    noise=li.GradientNoise(0.2),
    clip=0.7,
    batching=li.RandomAllocation(8),
)
LOSS = torch.nn.functional.cross_entropy


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    ).double()


def train(optimizer: Any, run: li.Run = PLAIN, **more: Any) -> Any:
    return li.train(
        run,
        more.pop("data", (X, Y)),
        model=more.pop("model", module()),
        loss=LOSS,
        seed=2,
        optimizer=optimizer,
        **more,
    )


def adamw(p: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(p, lr=0.05, weight_decay=0.1)


def scheduled(p: Any) -> Any:
    return lr_scheduler.LambdaLR(torch.optim.SGD(p, lr=0.5, momentum=0.9), lambda k: 1 / (1 + k))


@pytest.mark.parametrize(
    "update, optimizer",
    [
        (li.Adam(), lambda p: torch.optim.Adam(p, lr=1.0)),
        (li.HeavyBall(0.9), lambda p: torch.optim.SGD(p, 1.0, 0.9)),
    ],
    ids=["adam", "heavy ball"],
)
@pytest.mark.parametrize(
    "change", [{}, {"release": "all"}, {"domain": li.domains.Ball(2.0)}], ids=str
)
def test_an_optimizer_is_the_rule_of_its_name(update: Any, optimizer: Any, change: dict[str, Any]):
    ours, theirs = (
        train(None, replace(PLAIN, optimizer=update, **change)),
        train(optimizer, replace(PLAIN, **change)),
    )
    for name, tensor in ours.state.items():
        np.testing.assert_allclose(theirs.state[name].numpy(), tensor.numpy(), rtol=1e-7, atol=1e-9)


def test_a_schedule_is_that_of_the_run():
    rates = tuple(0.5 / (1 + k) for k in range(PLAIN.steps))
    ours = train(None, replace(PLAIN, step_size=li.StepSchedule(rates)))
    theirs = train(
        lambda p: lr_scheduler.LambdaLR(torch.optim.SGD(p, lr=0.5), lambda k: 1 / (1 + k))
    )
    for name, tensor in ours.state.items():
        np.testing.assert_allclose(theirs.state[name].numpy(), tensor.numpy(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "batching, epochs",
    [
        (li.RandomAllocation(8), [0, 0, 0, 1, 1, 1, 2, 2]),
        (li.Poisson(0.4), [0, 0, 0, 1, 1, 2, 2, 2]),  # 2.5 steps
        (li.FullBatch(), [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
    ids=["blocks", "poisson", "full"],
)
def test_a_scheduler_per_epoch_is_stepped_after_every_epoch(batching: Any, epochs: list[int]):
    run = replace(PLAIN, batching=batching)
    ours = train(None, replace(run, step_size=li.StepSchedule(tuple(0.5 * 0.7**k for k in epochs))))
    theirs = train(PerEpoch(lambda p: lr_scheduler.StepLR(torch.optim.SGD(p, lr=0.5), 1, 0.7)), run)
    assert theirs.certificate.run.optimizer == li.PostProcessing("SGD, StepLR each epoch")
    for name, tensor in ours.state.items():
        np.testing.assert_allclose(theirs.state[name].numpy(), tensor.numpy(), rtol=1e-7, atol=1e-9)


def test_a_refused_schedule_is_not_paid_for_and_its_remedies_work(tmp_path: Path):
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    before = (tmp_path / "l").read_bytes()

    def pasted(p: Any) -> Any:
        return lr_scheduler.StepLR(torch.optim.SGD(p, lr=0.5), 1, 0.05)

    with pytest.raises(InputError, match="move nothing"):
        train(pasted, ledger=ledger, dataset="d")
    assert (tmp_path / "l").read_bytes() == before
    counted = train(lambda p: lr_scheduler.StepLR(torch.optim.SGD(p, lr=0.5), 3, 0.05))
    named = train(PerEpoch(pasted))
    for name, tensor in counted.state.items():
        assert torch.equal(tensor, named.state[name])
    for given in (pasted([torch.nn.Parameter(torch.ones(1))]), lr_scheduler.StepLR):
        with pytest.raises(InputError, match=r"make must be a function .*PerEpoch\(lambda p"):
            PerEpoch(given)  # type: ignore[arg-type]


class OwnSchedule(lr_scheduler.StepLR):
    pass


def test_a_checkpoint_names_the_scheduler_that_it_does_not_know(tmp_path: Path):
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "key").chmod(0o600)
    kept = {"checkpoint": tmp_path / "c", "checkpoint_key": tmp_path / "key"}
    said = (
        r"needs a scheduler whose class is one of torch.optim.lr_scheduler, .* 'OwnSchedule'; "
        "write it as LambdaLR with a function of the step, or leave the checkpoint out"
    )
    with pytest.raises(InputError, match=said):
        train(lambda p: OwnSchedule(torch.optim.SGD(p, lr=0.5), 3), **kept)
    train(lambda p: lr_scheduler.LambdaLR(torch.optim.SGD(p, lr=0.5), lambda k: 0.9**k), **kept)


def test_a_schedule_of_epochs_that_hardly_begins_is_warned_of():
    run = replace(PLAIN, batching=li.RandomAllocation(8))
    epochs = PLAIN.steps / 3

    def cosine(period: int) -> PerEpoch:
        return PerEpoch(
            lambda p: lr_scheduler.CosineAnnealingLR(torch.optim.SGD(p, lr=0.5), T_max=period)
        )

    said = f"T_max=40.* counts epochs, and the run has {epochs:.4g}: .*write T_max in epochs"
    with pytest.warns(UserWarning, match=said):
        train(cosine(40), run)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*counts epochs")
        train(cosine(int(2 * epochs)), run)


def test_every_run_of_a_rule_begins_at_the_beginning_of_its_schedule():
    """An optimizer that remembers no numbers looks the same after a run as before it."""
    rule = ModuleOptimizer(
        lambda p: lr_scheduler.StepLR(torch.optim.SGD(p, lr=1.0), 1, 0.1), ((2,),)
    )
    for _ in range(2):
        theta, memory, moved = np.zeros(2), rule.init(np.zeros(2)), []
        for k in range(3):
            direction, memory = rule.update(np.ones(2), memory, theta, k)
            moved.append(direction[0])
            theta = theta - direction
        assert moved == pytest.approx([1.0, 0.1, 0.01])


def test_the_run_says_it_and_it_is_calibrated_saved_verified_and_loaded(tmp_path: Path):
    model = train(scheduled, replace(PLAIN, noise=None), epsilon=2.0, delta=1e-5)
    assert model.run.optimizer == li.PostProcessing("SGD, LambdaLR")
    folder = model.save(tmp_path / "model")
    assert li.verify(folder).holds
    again = li.load(folder, like=module())
    assert any(
        text.startswith("update: post-processing, stated: SGD, LambdaLR")
        for text in again.certificate.all_caveats()
    )
    assert again.run == model.run and again.certificate.epsilon(1e-5) <= 2.0


OPTIMIZERS = {
    "adamw": adamw,
    "schedule": scheduled,
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "one cycle": lambda p: lr_scheduler.OneCycleLR(
        torch.optim.SGD(p, lr=0.1, momentum=0.9), 0.5, total_steps=8
    ),
    "chained": lambda p: lr_scheduler.SequentialLR(
        o := torch.optim.RAdam(p, lr=0.1),
        [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 5)],
        milestones=[3],
    ),
    "groups": lambda p: torch.optim.SGD(
        [{"params": p[:2], "lr": 0.5}, {"params": p[2:], "lr": 0.1}], momentum=0.5
    ),
    "per epoch": PerEpoch(
        lambda p: lr_scheduler.StepLR(torch.optim.SGD(p, lr=0.5, momentum=0.5), 1, 0.5)
    ),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, t0=2),
}


KEPT = ("adamw", "chained", "groups", "per epoch", "asgd")
"""Tensors of every parameter, schedules within a schedule, groups, epochs, and numbers that change
the step; others have no other kind of state."""


CASES = [("adamw", Arrays((X, Y))), *((name, (X, Y)) for name in OPTIMIZERS)]


@pytest.mark.parametrize("name, data", unless(lambda case: case[0] in KEPT, CASES))
def test_an_interrupted_run_goes_on_with_the_state_of_its_optimizer(
    kept: dict[str, Any], name: str, data: Any, interrupted: Any
):
    make, more = OPTIMIZERS[name], {"data": data}
    whole = train(make, **more)
    with interrupted(4) as progress:
        train(make, progress=progress, **more, **kept)
    with pytest.raises(InputError, match=r"another (run|loss, model or optimizer)"):
        train(lambda p: torch.optim.SGD(p, lr=0.123), **more, **kept)
    again = train(make, **more, **kept)
    assert all(torch.equal(again.state[name], tensor) for name, tensor in whole.state.items())
    assert not torch.equal(whole.state["0.weight"], module()[0].weight)


def test_exact_noise_takes_one():
    assert train(adamw, secure_noise=True).exact


def test_a_schedule_that_differs_at_one_step_is_another_one(kept: dict[str, Any], interrupted: Any):
    def later(p: Any) -> Any:
        return lr_scheduler.LambdaLR(
            torch.optim.SGD(p, lr=0.5, momentum=0.9), lambda k: 1 / (1 + k) + (k == 7) / 10
        )

    with interrupted(4) as progress:
        train(scheduled, progress=progress, **kept)
    with pytest.raises(InputError, match=r"another (run|loss, model or optimizer)"):
        train(later, **kept)


def test_so_is_one_whose_tensor_differs_in_digits_that_torch_does_not_show():
    def identity(rate: float) -> str:
        parameters = Parameters.of(module())
        made = ModuleOptimizer.of(
            lambda p: torch.optim.Adam(p, lr=torch.tensor(rate)),
            parameters,
            parameters.vector(module()),
        )
        assert made is not None
        return made.identity(3)

    assert repr(torch.tensor(0.10001)) == repr(torch.tensor(0.10004))
    assert identity(0.10001) != identity(0.10004) and identity(0.1) == identity(0.1)


class Own(torch.optim.SGD):
    pass


class Random(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        torch.randn(3)
        return super().step(closure)


def hooked(p: Any) -> torch.optim.Optimizer:
    found = adamw(p)
    found.register_step_pre_hook(lambda *_: None)
    return found


REFUSED = {
    "closures": (lambda p: torch.optim.LBFGS(p), "gradients alone"),
    "a measured loss": (
        lambda p: lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(p, 0.1)),
        "must not follow",
    ),
    "an optimizer that is bound": (
        torch.optim.SGD(module().parameters(), 0.1),
        "must be a function",
    ),
    "a class": (torch.optim.Adam, r"'the class Adam'; write lambda p: torch.optim.Adam\(p, lr=1e"),
    "other parameters": (
        lambda p: torch.optim.SGD(module().parameters(), 0.1),
        r"is handed, and no other, got '4 of which 0 were handed'; build it from the list .*p\[:2\]",
    ),
    "some of them": (lambda p: torch.optim.SGD(p[:2], 0.1), "every parameter that it is handed"),
    "no optimizer": (lambda p: None, "must be a torch.optim.Optimizer"),
    "coupled decay": (lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1), "coupled"),
    "coupled decay in momentum": (
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1),
        "coupled",
    ),
    "random numbers": (lambda p: Random(p, 0.1), "no random numbers"),
    "hooks": (hooked, "no hooks"),
    "sparse": (lambda p: torch.optim.SparseAdam(p), "gradients alone"),
    "a schedule that ends before the run": (
        lambda p: lr_scheduler.OneCycleLR(torch.optim.SGD(p, 0.1), 0.1, PLAIN.steps - 3),
        "each of the run's 8 steps, and OneCycleLR ends, got 'an error after step 6'",
    ),
    "a schedule of epochs": (
        lambda p: lr_scheduler.StepLR(torch.optim.SGD(p, 0.1), 1, 0.01),
        "StepLR falls below that at step 3'; a scheduler is stepped once per step.*PerEpoch",
    ),
    "a schedule of epochs that falls too fast": (
        PerEpoch(lambda p: lr_scheduler.StepLR(torch.optim.SGD(p, 0.1), 1, 1e-4)),
        "StepLR falls below that at step 4'; let it fall more slowly",
    ),
    "epochs of an optimizer": (
        PerEpoch(lambda p: torch.optim.SGD(p, 0.1)),  # type: ignore[arg-type, return-value]
        "must be a scheduler around an optimizer .* 'SGD'; leave PerEpoch out",
    ),
    "a cosine of epochs": (
        lambda p: lr_scheduler.CosineAnnealingLR(torch.optim.SGD(p, 0.1), T_max=3),
        "8 steps, 2.667 epochs, got 'CosineAnnealingLR turns 2 times'; a scheduler is stepped once",
    ),
    "cycles of epochs": (
        lambda p: lr_scheduler.CyclicLR(torch.optim.SGD(p, 0.1), 0.01, 0.1, step_size_up=1),
        "CyclicLR turns 6 times.*PerEpoch.*a rate that is meant to turn so often is a LambdaLR",
    ),
    "restarts of epochs": (
        lambda p: lr_scheduler.CosineAnnealingWarmRestarts(torch.optim.SGD(p, 0.1), T_0=2),
        "CosineAnnealingWarmRestarts turns 6 times",
    ),
    "a table of rates that is too short": (
        lambda p: lr_scheduler.LambdaLR(torch.optim.SGD(p, 0.1), [1.0, 0.5, 0.2, 0.1].__getitem__),
        "each of the run's 8 steps, and LambdaLR ends, got 'an error after step 4'",
    ),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_is_refused_before_anything_is_trained(refused: str):
    optimizer, said = REFUSED[refused]
    with pytest.raises(InputError, match=said):
        train(optimizer)


def test_a_schedule_as_long_as_the_run_is_taken_and_a_refused_one_is_not_paid_for(tmp_path: Path):
    for each in (PLAIN.steps - 1, PLAIN.steps):  # torch looks up one rate more than it uses
        assert train(
            lambda p, each=each: lr_scheduler.OneCycleLR(
                torch.optim.SGD(p, 0.1), 0.1, total_steps=each + 1
            )
        )
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    before = (tmp_path / "l").read_bytes()
    with pytest.raises(InputError, match="OneCycleLR ends"):
        train(
            lambda p: lr_scheduler.OneCycleLR(torch.optim.SGD(p, 0.1), 0.1, 3),
            ledger=ledger,
            dataset="d",
        )
    assert (tmp_path / "l").read_bytes() == before


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=8),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
        lambda o: lr_scheduler.LinearLR(o, total_iters=2),
        lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 + k % 2),
    ],
)
def test_a_schedule_that_counts_steps_is_taken(schedule: Any):
    made = train(lambda p: schedule(torch.optim.SGD(p, lr=0.1, momentum=0.5)))
    assert made.certificate.run.update.name.startswith("SGD, ")


LR = lr_scheduler
LONG = replace(PLAIN, steps=40, batching=li.RandomAllocation(2))  # 12 steps an epoch, 3.3 epochs
WRITTEN_FOR_EPOCHS = {
    "milestones": (lambda o: LR.MultiStepLR(o, [2, 3], 0.1), "0.01 of its largest from step 4 to"),
    "a function": (
        lambda o: LR.LambdaLR(o, lambda e: 1 if e < 2 else 0.5),
        "0.5 .* from step 3 to",
    ),
    "milestones of a longer run": (lambda o: LR.MultiStepLR(o, [4, 8, 12], 0.1), "from step 13 to"),
    "a line": (
        lambda o: LR.LinearLR(o, 1.0, 0.1, total_iters=3),
        "LinearLR is at 0.1 of .* step 4",
    ),
    "halved": (lambda o: LR.StepLR(o, 3, 0.5), "StepLR falls 13 times, to 0.00012 of its largest"),
    "steps of a function": (lambda o: LR.LambdaLR(o, lambda e: 0.5 ** (e // 3)), "falls 13 times"),
    "a warm-up and milestones": (
        lambda o: LR.SequentialLR(
            o, [LR.LinearLR(o, 0.1, total_iters=1), LR.MultiStepLR(o, [1, 2], 0.1)], [1]
        ),
        "SequentialLR is at 0.01 of its largest from step 4 to the end",
    ),
    "a warm-up and a cosine": (
        lambda o: LR.SequentialLR(
            o, [LR.LinearLR(o, 0.1, total_iters=1), LR.CosineAnnealingLR(o, 3)], [1]
        ),
        "SequentialLR turns 13 times",
    ),
}


@pytest.mark.parametrize("name", WRITTEN_FOR_EPOCHS)
def test_a_schedule_of_epochs_is_refused_before_it_is_paid_for_and_its_remedy_works(
    name: str, tmp_path: Path
):
    schedule, said = WRITTEN_FOR_EPOCHS[name]
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    before = (tmp_path / "l").read_bytes()

    def make(p: Any) -> Any:
        return schedule(torch.optim.SGD(p, lr=0.1, momentum=0.5))

    remedy = "'; .*count steps in it, 12 for an epoch, or write .*PerEpoch"
    with pytest.raises(InputError, match=said + "[^']*" + remedy):
        train(make, LONG, ledger=ledger, dataset="d")
    assert (tmp_path / "l").read_bytes() == before
    assert train(PerEpoch(make), LONG)
    assert train(make, replace(LONG, batching=li.FullBatch()))  # where an epoch is a step


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: LR.LinearLR(o, 0.01, total_iters=2),
        lambda o: LR.LambdaLR(o, lambda k: min(1.0, k / 2)),
        lambda o: LR.MultiStepLR(o, [20, 30], 0.1),
        lambda o: LR.MultiStepLR(o, [14], 0.1),
        lambda o: LR.MultiStepLR(o, [39], 1e-4),
        lambda o: LR.StepLR(o, 12, 0.1),
        lambda o: LR.StepLR(o, 2, 0.96),
        lambda o: LR.ExponentialLR(o, 0.9),
        lambda o: LR.LambdaLR(o, lambda k: 1 / (1 + k)),
        lambda o: LR.PolynomialLR(o, 40, 2.0),
        lambda o: LR.OneCycleLR(o, 0.1, total_steps=41),
        lambda o: LR.CosineAnnealingLR(o, 40),
        lambda o: LR.SequentialLR(
            o, [LR.ConstantLR(o, 0.1, total_iters=4), LR.CosineAnnealingLR(o, 36)], [4]
        ),
    ],
)
def test_a_schedule_of_many_steps_is_taken(schedule: Any):
    assert train(lambda p: schedule(torch.optim.SGD(p, lr=0.1)), LONG)


@pytest.mark.parametrize(
    "schedule, said",
    [
        (lambda o: LR.MultiStepLR(o, [20, 30], 0.1), "milestones=20"),
        (lambda o: LR.OneCycleLR(o, 0.1, total_steps=41), "total_steps=41"),
        (lambda o: LR.PolynomialLR(o, 40), "total_iters=40"),
    ],
)
def test_a_schedule_of_steps_in_epochs_is_warned_of(schedule: Any, said: str):
    with pytest.warns(UserWarning, match=f"{said}.* counts epochs, and the run has 3.333"):
        train(PerEpoch(lambda p: schedule(torch.optim.SGD(p, lr=0.1))), LONG)


def test_a_step_size_next_to_an_optimizer_is_shown():
    with pytest.raises(
        InputError, match=r"step_size must be 1 .*, got 0.5; give the learning rate"
    ):
        train(adamw, replace(PLAIN, step_size=0.5))


def test_so_is_one_of_epochs_where_an_epoch_is_a_step_or_is_said():
    def cosine(p: Any) -> Any:
        return lr_scheduler.CosineAnnealingLR(torch.optim.SGD(p, lr=0.1), T_max=3)

    train(cosine, replace(PLAIN, batching=li.FullBatch()))
    train(PerEpoch(cosine))


def test_an_optimizer_is_named_and_tried_for_the_parameters_that_it_gets():
    matrices = torch.nn.Linear(4, 3, bias=False).double()
    assert train(
        lambda p: torch.optim.SGD([each for each in p if each.ndim == 2], 0.1), model=matrices
    ).certificate
    assert train(
        lambda p: torch.optim.SGD([{"params": [p[0], p[3]]}, {"params": p[1:3], "lr": 0.05}], 0.1)
    ).certificate


def test_what_the_run_says_is_taken_and_what_is_harmless(kept: dict[str, Any]):
    coupled = replace(PLAIN, optimizer=li.PostProcessing("Adam", "coupled"))
    assert train(lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1), coupled).run == coupled
    assert train(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1))  # the same as decay apart
    assert train(lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1))
    assert train(lambda p: torch.optim.Rprop(p, lr=0.1)).run.optimizer == li.PostProcessing(
        "Rprop"
    )  # state
    assert train(lambda p: Own(p, lr=0.1)).run.optimizer == li.PostProcessing("Own")
    with pytest.raises(InputError, match=r"needs an optimizer whose class is one of torch.optim"):
        train(lambda p: Own(p, lr=0.1), **kept)
    with pytest.raises(InputError, match="speeds"):
        train(adamw, model=Grouped(module(), {"0": 0.5, "2": 1.0}))
    frozen = train(adamw, model=Grouped(module(), {"2": 1.0}))
    assert set(frozen.state) == {"2.weight", "2.bias"}


def test_a_run_that_names_another_optimizer_is_refused_with_its_own():
    def make(p):
        return torch.optim.Adam(p, lr=0.1)

    other = replace(PLAIN, optimizer=li.PostProcessing("SGD"))
    with pytest.raises(InputError, match=r"must be the one that is given, Adam") as said:
        train(make, other)
    written = str(said.value).split("write Run(optimizer=")[1].removesuffix(").")
    assert train(make, replace(PLAIN, optimizer=eval(written))).run.optimizer.name == "Adam"
    unnamed = replace(PLAIN, optimizer=li.PostProcessing())
    assert train(make, unnamed).run == unnamed


def test_coupled_decay_is_told_the_name_of_its_optimizer():
    def make(p):
        return torch.optim.Adam(p, lr=0.1, weight_decay=0.1)

    with pytest.raises(InputError, match="weight decay") as said:
        train(make)
    written = str(said.value).split("or say Run(optimizer=")[1].removesuffix(").")
    assert train(make, replace(PLAIN, optimizer=eval(written))).run.optimizer.decay == "coupled"
