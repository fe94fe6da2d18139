"""A checkpoint knows the module and the loss that it was begun with; what torch cannot trace has
none."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.engine import checkpoint
from lastiterate.engine.streaming.buffers import Arrays
from support import refuse_unpaid

N = 12
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % 3
RUN = li.Run(
    n=N, steps=6, step_size=0.3, noise=li.GradientNoise(0.2), clip=1.0, batching=li.Cyclic(6)
)


class Scaled(torch.nn.Module):
    """Its forward pass follows a number, a tensor that is no buffer, and a mode, none of them a
    parameter."""

    def __init__(self, factor=1.0, held=1.0, twice=False):
        super().__init__()
        torch.manual_seed(0)
        self.own, self.factor, self.twice = torch.nn.Linear(4, 3), factor, twice
        self.held = [torch.full((3,), held)]
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x):
        out = self.own(x) * self.factor * self.held[0] + self.shift
        return out + self.own(x).tanh() if self.twice else out


class Straight(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, slope):
        return slope * ctx.factor, None


def shifted():
    found = Scaled()
    found.shift[0] = 1e-6
    return found


def by_straight(factor):
    return lambda out, y: functional.cross_entropy(Straight.apply(out, factor), y)


ENTROPY = functional.cross_entropy
OTHERS = {
    "loss": (
        (Scaled(), ENTROPY),
        (Scaled(), lambda out, y: functional.cross_entropy(out, y, label_smoothing=0.1)),
    ),
    "factor": ((Scaled(), ENTROPY), (Scaled(factor=1.01), ENTROPY)),
    "held tensor": ((Scaled(), ENTROPY), (Scaled(held=1.01), ENTROPY)),
    "buffer": ((Scaled(), ENTROPY), (shifted(), ENTROPY)),
    "forward": ((Scaled(), ENTROPY), (Scaled(twice=True), ENTROPY)),
    "backward": ((Scaled(), by_straight(1.0)), (Scaled(), by_straight(2.0))),
}
KINDS = {"memory": {}, "exact": {"secure_noise": True}, "stream": {}}


@pytest.mark.parametrize(
    "other, kind",
    [(other, "memory") for other in OTHERS] + [("factor", "exact"), ("factor", "stream")],
)
def test_no_other_module_or_loss_goes_on(other, kind, kept, interrupted):
    data, more = Arrays((X, Y)) if kind == "stream" else (X, Y), KINDS[kind] | kept
    (module, loss), (second, another) = OTHERS[other]
    with interrupted(3) as progress:
        li.train(RUN, data, model=module, loss=loss, progress=progress, **more)
    before = kept["checkpoint"].read_bytes()
    with pytest.raises(li.InputError, match="another loss, model or optimizer"):
        li.train(RUN, data, model=second, loss=another, **more)
    assert kept["checkpoint"].read_bytes() == before
    li.train(RUN, data, model=module, loss=loss, **more)
    assert not Path(kept["checkpoint"]).exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [0, 3])
def test_a_module_without_a_seed_resumes_from_its_own_first_parameters(
    kind, done, kept, interrupted, monkeypatch
):
    """To the bit: whoever draws other first parameters makes no second release with this noise."""
    data, more = Arrays((X, Y)) if kind == "stream" else (X, Y), KINDS[kind] | {"seed": 3}

    def net(seed):
        torch.manual_seed(seed)
        return torch.nn.Linear(X.shape[1], 3)

    whole = li.train(RUN, data, model=net(0), loss=ENTROPY, **more)
    with monkeypatch.context() as patched:
        if not done:  # killed before the first step: only the beginning is kept
            patched.setattr(checkpoint.Checkpoint, "due", False)
        with interrupted(3) as progress:
            li.train(RUN, data, model=net(0), loss=ENTROPY, progress=progress, **more, **kept)
    with pytest.warns(UserWarning, match="it continues from its own"):
        again = li.train(RUN, data, model=net(1), loss=ENTROPY, **more, **kept)
    for name, tensor in whole.state.items():
        assert torch.equal(again.state[name], tensor)
        assert torch.equal(again.module.get_parameter(name), tensor)
    assert again.effect == whole.effect and not Path(kept["checkpoint"]).exists()
    with interrupted(3) as progress:
        li.train(RUN, data, model=net(0), loss=ENTROPY, progress=progress, **more, **kept)
    x = X + 1
    with pytest.raises(li.InputError, match=r"other data, .*with a new charge where a ledger pays"):
        li.train(
            RUN,
            Arrays((x, Y)) if kind == "stream" else (x, Y),
            model=net(0),
            loss=ENTROPY,
            **more,
            **kept,
        )


def test_what_has_no_trace_has_no_checkpoint(kept, tmp_path):
    class Untraced(Scaled):
        def forward(self, x):
            from torch.fx.experimental.proxy_tensor import get_proxy_mode

            assert get_proxy_mode() is None, "not here"
            return super().forward(x)

    said = r"checkpoint needs a module and a loss that torch can trace.*leave it out"
    with refuse_unpaid(tmp_path, said) as charged:
        li.train(RUN, (X, Y), model=Untraced(), loss=ENTROPY, **charged, **kept)
    assert not Path(kept["checkpoint"]).exists()
    li.train(RUN, (X, Y), model=Untraced(), loss=ENTROPY, **charged)
