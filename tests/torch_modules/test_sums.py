"""Sums of clipped per-record gradients: against gradients one by one, and where arithmetic is at
its worst."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.torch.module_training import prepare
from lastiterate.torch.record_gradients import CLIP_SHRINK, full_precision, to_theta
from lastiterate.torch.released_module import exactly

N = 6
Y = np.arange(N) % 3
RUN = li.Run(n=N, steps=2, step_size=0.3, noise=li.GradientNoise(0.2), clip=0.1)
EXACT = replace(RUN, loss=li.KnownConstants(li.LossFacts(smooth=9.0)))


class Functional(torch.nn.Module):
    """A weight that is used by a function, one that is used twice, one that is used as it is."""

    def __init__(self):
        super().__init__()
        self.once, self.twice = (
            torch.nn.Parameter(torch.randn(5, 4)),
            torch.nn.Parameter(torch.randn(5, 5)),
        )
        self.scale = torch.nn.Parameter(torch.randn(5))

    def forward(self, x):
        z = torch.tanh(functional.linear(x, self.once))
        z = torch.tanh(functional.linear(z, self.twice)) @ self.twice
        return (z * self.scale)[:, :3]


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = (
            torch.nn.Embedding(7, 4),
            torch.nn.MultiheadAttention(4, 2, batch_first=True),
        )
        self.norm, self.out = torch.nn.LayerNorm(4), torch.nn.Linear(4, 3)

    def forward(self, tokens):
        z = self.embedding(tokens)
        z = self.norm(z + self.attention(z, z, z, need_weights=False)[0])
        return self.out(z).mean(1)


class Encoder(torch.nn.Module):
    def __init__(self, frozen=False):
        super().__init__()
        self.body = torch.nn.TransformerEncoderLayer(
            4, 2, 8, dropout=0.0, batch_first=True
        ).requires_grad_(not frozen)
        self.out = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.body(x).mean(1))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = torch.nn.GRUCell(3, 4), torch.nn.Linear(4, 3)

    def forward(self, x):
        z = torch.zeros(len(x), 4, dtype=x.dtype)
        for step in range(x.shape[1]):
            z = self.cell(x[:, step], z)
        return self.out(z)


def sequential(*parts):
    return torch.nn.Sequential(*parts, torch.nn.Flatten(), torch.nn.LazyLinear(3))


MODULES = {
    "dense": (lambda: sequential(torch.nn.Linear(4, 5), torch.nn.ReLU()), (4,), 2),
    "no bias": (lambda: sequential(torch.nn.Linear(4, 5, bias=False), torch.nn.Tanh()), (4,), 2),
    "sequences": (lambda: sequential(torch.nn.Linear(4, 5), torch.nn.GELU()), (3, 4), 2),
    "images": (
        lambda: sequential(
            torch.nn.Conv2d(2, 4, 3, stride=2, padding=1),
            torch.nn.GroupNorm(2, 4),
            torch.nn.ReLU(),
            torch.nn.Conv2d(4, 4, (1, 2), dilation=(1, 2)),
            torch.nn.MaxPool2d(2),
        ),
        (2, 9, 8),
        4,
    ),
    "groups of channels": (
        lambda: sequential(
            torch.nn.Conv2d(4, 6, 3, groups=2, padding="same"),
            torch.nn.Tanh(),
            torch.nn.Conv2d(6, 2, 1, stride=2, bias=False),
        ),
        (4, 5, 6),
        3,
    ),
    "signals": (
        lambda: sequential(
            torch.nn.Conv1d(2, 3, 4, stride=2, padding=1, dilation=2, padding_mode="reflect"),
            torch.nn.Tanh(),
            torch.nn.Conv1d(3, 2, 2, padding="same"),
        ),
        (2, 16),
        3,
    ),
    "transposed, frozen batch norm": (
        lambda: sequential(
            torch.nn.ConvTranspose2d(2, 3, 2), torch.nn.BatchNorm2d(3).eval(), torch.nn.SiLU()
        ),
        (2, 4, 4),
        3,
    ),
    "transposed, in groups, normalised by instance": (
        lambda: sequential(
            torch.nn.ConvTranspose2d(
                4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2
            ),
            torch.nn.Tanh(),
            torch.nn.InstanceNorm2d(6, affine=True),
        ),
        (4, 3, 2),
        3,
    ),
    "signals that become longer": (
        lambda: sequential(
            torch.nn.ConvTranspose1d(2, 3, 4, stride=3, bias=False), torch.nn.LayerNorm([3, 13])
        ),
        (2, 4),
        3,
    ),
    "words with a filler": (
        lambda: sequential(torch.nn.Embedding(7, 4, padding_idx=3), torch.nn.Tanh()),
        None,
        2,
    ),
    "functions": (Functional, (4,), 1),
    "attention": (Attention, None, 3),
    "volumes": (lambda: sequential(torch.nn.Conv3d(1, 2, 2), torch.nn.Tanh()), (1, 2, 2, 3), 2),
    "a transformer layer": (Encoder, (3, 4), 5),
    "a frozen transformer layer": (lambda: Encoder(frozen=True).eval(), (3, 4), 1),
    "recurrent": (Recurrent, (2, 3), 1),
}


def data_for(shape):
    rng = np.random.default_rng(2)
    x = (
        rng.integers(0, 7, (N, 5))
        if shape is None
        else rng.normal(size=(N, *shape)).astype(np.float32)
    )
    return torch.from_numpy(x), torch.from_numpy(Y)


def one_by_one(module, loss, data, clip, dtype=torch.float64):
    """Every record's own gradient by plain differentiation, clipped; the sum, (size,) float64."""
    module = module.to(dtype)
    total = 0
    for x, y in zip(*data, strict=True):
        x = x.to(dtype) if x.is_floating_point() else x
        trained = [each for each in module.parameters() if each.requires_grad]
        found = torch.autograd.grad(loss(module(x[None])[0], y), trained, allow_unused=True)
        flat = torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).reshape(-1)
                for g, p in zip(found, trained, strict=True)
            ]
        )
        total = total + flat * min(1.0, clip / float(flat.norm()))
    return total


def summed(prepared, real=None, records=None):
    device = prepared.summed.parameters.device
    constants = prepared.summed.parameters.copy_constants(prepared.summed.dtype)
    records = prepared.records if records is None else records
    with full_precision(device):
        return prepared.summed.chunk_sum(
            to_theta(prepared.initial, device), constants, records, real
        )


@pytest.mark.parametrize("name", MODULES)
def test_clipped_sums_are_those_of_gradients_one_by_one(name):
    make, shape, known = MODULES[name]
    data, module = data_for(shape), make()
    with torch.no_grad():
        module(data[0])
    loss = functional.cross_entropy
    prepared = prepare(EXACT, module, loss, data)
    assert len(prepared.summed.layers) == known, "layers that are not recognised are slow"
    for clip in (0.1, 0.7, 100.0):
        own = replace(prepared, summed=replace(prepared.summed, clip=clip))
        expected = one_by_one(module, loss, data, clip * CLIP_SHRINK)
        torch.testing.assert_close(summed(own), expected, rtol=1e-9, atol=1e-11)
    single = prepare(RUN, module.float(), loss, data)
    expected = one_by_one(module, loss, data, 0.1)
    torch.testing.assert_close(summed(single), expected, rtol=1e-4, atol=1e-5)


def dense():
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))


def test_the_norm_of_one_clipped_gradient_stays_below_the_clip():
    for make, shape in ((dense, (4,)), (MODULES["images"][0], (2, 9, 8)), (Attention, None)):
        x, y = data_for(shape)
        module = make()
        with torch.no_grad():
            module(x)
        prepared = prepare(RUN, module, functional.cross_entropy, (x, y))
        for scale in (1e-3, 1.0, 1e3, 1e10):
            own = replace(
                prepared.summed, loss=lambda out, y, s=scale: s * functional.cross_entropy(out, y)
            )
            for place in range(3):
                norm = float(summed(replace(prepared, summed=own), torch.arange(N) == place).norm())
                assert norm <= 0.1 and (scale < 1 or norm > 0.1 * (1 - 2.0**-16))


def test_a_gradient_that_is_not_finite_counts_as_zero():
    x, y = data_for((4,))

    def loss(out, y):
        return (out**2).sum() + functional.cross_entropy(out, y)

    for clip in (0.1, None):
        run = replace(RUN, clip=clip, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0)))
        prepared = prepare(run, torch.nn.Linear(4, 3), loss, (x, y))
        # finite itself, and its gradient is not, or not even the output; or a sum of many such
        # gradients is not
        for size in (1e30, 3e38) if clip else (1e30, 3e38, 1e18):
            hurt = x.clone()
            hurt[2] = size
            found, expected = (
                summed(prepared, records=(hurt, y)),
                summed(prepared, torch.arange(N) != 2),
            )
            assert torch.isfinite(found).all()
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_records_that_are_not_in_the_batch_add_nothing():
    prepared = prepare(RUN, dense(), functional.cross_entropy, data_for((4,)))
    every = sum(summed(prepared, torch.arange(N) == place) for place in range(N))
    torch.testing.assert_close(every, summed(prepared), rtol=1e-5, atol=1e-7)
    assert not summed(prepared, torch.zeros(N, dtype=torch.bool)).any()


def test_sums_keep_single_precision_whatever_the_process_has_set():
    """With automatic casts switched on every bit stays the same; bfloat16 would be wrong by one
    part in 500."""
    prepared = prepare(RUN, dense(), functional.cross_entropy, data_for((4,)))
    quiet, cast = summed(prepared), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hurried = summed(prepared)
            with full_precision(torch.device("cpu")):
                assert torch.get_float32_matmul_precision() == "highest"
                assert not torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium", (
            "what the process had set is put back"
        )
    finally:
        torch.set_float32_matmul_precision(cast)
    assert torch.equal(quiet, hurried)


def test_scales_below_single_precision_do_not_round_up():
    """Gradients near the end of single precision under a small clip: subnormal scales would be too
    large."""
    x, y = data_for((4,))
    prepared = prepare(RUN, torch.nn.Linear(4, 3), functional.cross_entropy, (x, y))
    for slope, record in ((3e37, 1.0), (1e-30, 1e30)):
        for step in range(12):
            clip = 1e-3 * 1.1**step if slope > 1 else 1e-11 * 1.1**step

            def scaled(out, _, slope=slope):
                return slope * (out * torch.tensor([1.0, 0.3, -0.7])).sum()

            own = replace(prepared.summed, loss=scaled, clip=clip)
            found = summed(replace(prepared, summed=own), torch.arange(N) == 0, (x * record, y))
            assert float(found.norm()) <= clip, (slope, clip, float(found.norm()) / clip)


class Sly(torch.nn.Module):
    """Mixes records only in batches of three and more, where the check on made-up records does not
    look."""

    def __init__(self):
        super().__init__()
        self.own = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.own(x - x.mean(0) if len(x) > 2 else x)


def test_no_module_can_mix_records():
    """Every record passes alone, whatever a module does with a batch."""
    x, y = data_for((4,))
    module = Sly()
    prepared = prepare(EXACT, module, functional.cross_entropy, (x, y))
    other = x.clone()
    other[1:] *= -3
    one = torch.arange(N) == 0
    assert torch.equal(summed(prepared, one), summed(prepared, one, (other.double(), y)))
    torch.testing.assert_close(
        summed(prepared), one_by_one(module, functional.cross_entropy, (x, y), 0.1 * CLIP_SHRINK)
    )


def test_a_long_chunk_is_summed_within_the_allowance():
    """256 clipped gradients that nearly cancel: the error of the sum is far below the allowance for
    one record."""
    n = 256
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(n, 64)).astype(np.float32))
    data, run = (x, torch.arange(n) % 2), replace(RUN, n=n)
    module = torch.nn.Linear(64, 2)
    prepared = prepare(run, module, functional.cross_entropy, data)
    assert (
        prepared.most
        == n
        == prepare(run, module, functional.cross_entropy, data, microbatch=1000).most
    )
    found = summed(prepared, torch.ones(n, dtype=torch.bool))
    expected = one_by_one(module, functional.cross_entropy, data, 0.1 * CLIP_SHRINK)
    assert float((found - expected).norm()) < 0.1 * FLOAT_SLACK / 10


@pytest.mark.parametrize("exact", [False, True], ids=["real arithmetic", "exact sums"])
@pytest.mark.parametrize("name", ["dense", "images"])
def test_clipped_gradients_are_multiplied_by_the_weights_of_classes(name, exact):
    make, shape, _ = MODULES[name]
    torch.manual_seed(0)
    module, weights = make(), (1.0, 0.05, 0.4)
    x = torch.randn(N, *shape) * torch.tensor([0.01, 1, 30] * 2).view(-1, *[1] * len(shape))
    target = np.array([0, 1, 2, 2, 0, 1])
    module(x)
    sums = []
    for given in (weights, None):
        run = replace(RUN, clip=2.0, loss=li.KnownConstants(class_weights=given))
        made = prepare(run, module, functional.cross_entropy, (x, target))
        made = exactly(made, key_from_seed(0))[0] if exact else made
        constants = made.summed.parameters.copy_constants(made.summed.dtype)
        with torch.no_grad():
            each = [made.total(made.initial, constants, torch.tensor([i])).copy() for i in range(N)]
            whole = made.total(made.initial, constants, torch.arange(N)).copy()
        np.testing.assert_allclose(whole, np.sum(each, axis=0), rtol=1e-5, atol=1e-6)
        sums.append(np.array(each))
    counted = np.array(weights)[target]
    np.testing.assert_allclose(sums[0], sums[1] * counted[:, None], rtol=1e-5, atol=1e-6)
    lengths = np.linalg.norm(sums[0], axis=1)
    assert (
        (lengths <= 2 * counted + 1e-6).all()
        and (lengths < 1.9 * counted).any()
        and lengths[5] > 0.09
    )


def test_weights_of_classes_are_refused_where_a_record_has_none():
    torch.manual_seed(0)
    x, module = np.ones((N, 4), np.float32), torch.nn.Linear(4, 3)
    for second in (np.linspace(0, 1, N), np.arange(N), np.eye(3)[Y]):
        with pytest.raises(li.InputError, match="class ind"):
            li.train(
                RUN,
                (x, second),
                model=module,
                loss=lambda out, y: (out * y).sum(),
                delta=1e-3,
                class_weight={0: 1, 1: 2, 2: 3},
            )
    binary, net = (np.arange(N) % 2).astype(np.float32), torch.nn.Linear(4, 1)

    def weighted(y):
        return li.train(
            RUN,
            (torch.from_numpy(x), y),
            model=net,
            loss=lambda out, y: functional.binary_cross_entropy_with_logits(out[0], y.float()),
            delta=1e-3,
            class_weight={0: 1, 1: 9},
        )

    floats = torch.from_numpy(binary)
    said = r"'float32 of shape \(n\)'; give integers: y.long\(\) .* clip comes after them, and may"
    with pytest.raises(li.InputError, match=said):
        weighted(floats)
    assert weighted(floats.long()).run.loss.class_weights == (pytest.approx(1 / 9), 1.0)
    with pytest.raises(li.InputError, match=r"shape \(n, 1\)'; leave it out"):
        weighted(floats[:, None])
    with pytest.raises(li.InputError, match="class ind"):
        li.train(
            RUN,
            {"input": x},
            model=module,
            loss=lambda out: out.sum(),
            delta=1e-3,
            class_weight={0: 1, 1: 2},
        )
    model = li.train(
        RUN,
        torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(Y)),
        model=module,
        loss=functional.cross_entropy,
        delta=1e-3,
        class_weight={0: 1, 1: 2, 2: 4},
    )
    assert model.run.loss.class_weights == (0.25, 0.5, 1.0)
    for short in (
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.uint16,
    ):  # bytes are no mask, and torch takes few others
        data = torch.from_numpy(x), torch.from_numpy(Y).to(short)
        again = li.train(model.run, data, model=module, loss=functional.cross_entropy, delta=1e-3)
        assert again.run == model.run


class Short(torch.nn.Module):
    """A forward pass in bfloat16, by automatic casts of its own or by hand."""

    def __init__(self, inner, *, automatic=True):
        super().__init__()
        self.inner, self.automatic = inner, automatic

    def forward(self, x):
        if self.automatic:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return self.inner(x).float()
        cast = {name: tensor.to(torch.bfloat16) for name, tensor in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, cast, (x.to(torch.bfloat16),)).float()


@pytest.mark.parametrize("batching", [li.Cyclic(3), li.Poisson(0.5)], ids=["in order", "drawn"])
@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("name", ["dense", "images"])
def test_a_forward_pass_in_bfloat16_is_clipped_and_added_in_single_precision(
    name, automatic, batching
):
    make, shape, _ = MODULES[name]
    torch.manual_seed(0)
    inner, x = make(), torch.randn(N, *shape) * 3
    inner(x)
    run = replace(RUN, clip=0.5, batching=batching)
    made, plain = (
        prepare(run, module, functional.cross_entropy, (x, Y))
        for module in (Short(inner, automatic=automatic), inner)
    )
    if automatic:
        assert len(made.summed.layers) == len(
            plain.summed.layers
        )  # no gradient is stored that was not
    sums = []
    for one in (made, plain):
        constants = one.summed.parameters.copy_constants(one.summed.dtype)
        with torch.no_grad():
            each = np.array(
                [one.total(one.initial, constants, torch.tensor([i])).copy() for i in range(N)]
            )
            whole = one.total(one.initial, constants, torch.arange(N)).copy()
            parts = one.summed.contributions(
                one.summed.parameters.tensors(
                    to_theta(one.initial, torch.device("cpu")), one.summed.dtype
                ),
                constants,
                one.records,
            )
        assert all(part.dtype == torch.float32 for held in parts.values() for part in held.parts)
        assert (np.linalg.norm(each, axis=1) <= 0.5).all() and np.linalg.norm(
            each, axis=1
        ).max() > 0.499
        np.testing.assert_allclose(whole, each.sum(0), atol=3e-7)
        sums.append(each)
    assert 0 < np.abs(sums[0] - sums[1]).max() < 0.03


def test_bfloat16_is_refused_where_everything_must_be_double_precision():
    torch.manual_seed(0)
    with pytest.raises(li.InputError, match="casts to fewer bits"):
        prepare(
            EXACT,
            Short(torch.nn.Linear(4, 3), automatic=False),
            functional.cross_entropy,
            (torch.ones(N, 4), Y),
        )


@pytest.mark.parametrize("short", [torch.float32, torch.complex64], ids=["real", "complex"])
def test_parameters_in_single_precision_are_refused_where_theorems_compare_steps(short):
    class Single(torch.nn.Module):
        def __init__(self, given):
            super().__init__()
            self.own, self.given = torch.nn.Linear(4, 3), given

        def forward(self, x):
            given = [part.to(self.given or x.dtype) for part in (x, self.own.weight)]
            return functional.linear(*given).real.to(x.dtype) + self.own.bias

    run = replace(RUN, step_size=0.01, loss=li.KnownConstants(li.LossFacts(smooth=9.0)))
    x = np.ones((N, 4), np.float32)
    assert prepare(run, Single(None), functional.cross_entropy, (x, Y)).summed.exact
    with pytest.raises(li.InputError, match="must be computed in double precision"):
        prepare(run, Single(short), functional.cross_entropy, (x, Y))
