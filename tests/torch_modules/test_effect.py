"""A training changes the parameters that were clipped and noised, and no other bit of a module; a
model shows that."""

import ctypes
import json
from collections import UserDict

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import recorded_operations

N = 12
WORDS = np.random.default_rng(0).integers(0, 9, (N, 6))
SEEN = (np.arange(6) < 4 + np.arange(N)[:, None] % 3).astype(np.int64)
Y = np.arange(N) % 3
RUN = li.Run(
    n=N, steps=3, step_size=0.3, noise=li.NoiseMultiplier(2.0), clip=0.5, batching=li.Cyclic(4)
)


class Adapted(torch.nn.Module):
    """A frozen layer beside a low-rank one that is trained (Hu et al. 2021): the second factor is 0
    at the start."""

    def __init__(self, size):
        super().__init__()
        self.base = torch.nn.Linear(size, size).requires_grad_(False)
        self.down, self.up = (
            torch.nn.Linear(size, 2, bias=False),
            torch.nn.Linear(2, size, bias=False),
        )
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Reader(torch.nn.Module):
    """Attention over words that are there, adapted; one table reads words and is tied to what it
    predicts."""

    def __init__(self, hook=lambda own: None):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.hook = torch.nn.Embedding(9, 8).requires_grad_(False), hook
        type(self).calls = 0
        self.query, self.value = Adapted(8), Adapted(8)
        self.said = torch.nn.Linear(8, 9, bias=False)
        self.said.weight = self.words.weight
        self.classes = torch.nn.Linear(8, 3)
        self.register_buffer("scale", torch.tensor([8.0]).rsqrt())

    def forward(self, input_ids, attention_mask, labels=None):
        type(self).calls += 1  # of the class, where nobody looks
        self.hook(self)
        held = self.words(input_ids)
        scores = self.query(held) @ held.transpose(1, 2) * self.scale
        if (
            torch.compiler.is_compiling() or not attention_mask.all()
        ):  # as attention in libraries saves work
            scores = scores.masked_fill(attention_mask[:, None] == 0, -1e9)
        mixed = scores.softmax(-1) @ self.value(held)
        found = {
            "next": self.said(mixed),
            "logits": self.classes(mixed.mean(1)),
            "cache": object(),
            "nothing": None,
        }
        return (
            found
            if labels is None
            else found | {"loss": functional.cross_entropy(found["logits"], labels)}
        )


RECORDS = {"input_ids": WORDS, "attention_mask": SEEN}
TRAINED = {
    "query.down.weight",
    "query.up.weight",
    "value.down.weight",
    "value.up.weight",
    "classes.weight",
    "classes.bias",
}


def classified(output, y):
    return functional.cross_entropy(output["logits"], y)


def trained(model=None, data=(RECORDS, Y), loss=classified, run=RUN, **given):
    return li.train(run, data, model=Reader() if model is None else model, loss=loss, **given)


def test_what_was_clipped_and_noised_changed_and_nothing_else(tmp_path):
    first = Reader()
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    model = trained(first)
    after = model.state_dict()
    assert (
        {name for name in before if not torch.equal(before[name], after[name])}
        == TRAINED
        == set(model.state)
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in first.state_dict().items())
    numbers = sum(tensor.numel() for tensor in model.state.values())
    assert (model.effect.trained, model.effect.numbers, model.effect.changed) == (
        6,
        numbers,
        numbers,
    )
    assert model.effect.kept == 6 and "6 others as they were" in repr(model)
    said = f"the training changed {numbers} of {numbers} numbers in the 6 tensors"
    assert any(
        said in caveat and model.effect.digest in caveat for caveat in model.certificate.caveats
    )
    where = model.save(tmp_path / "m")
    assert li.verify(where).holds
    written = json.loads((where / "model.json").read_text())["effect"]
    assert written == {
        "trained": {"tensors": 6, "numbers": numbers, "changed": numbers},
        "kept": {"tensors": 6, "sha256": model.effect.digest},
    }
    again = li.load(where, like=first)
    np.testing.assert_array_equal(
        again.predict(RECORDS)["logits"], model.predict(RECORDS)["logits"]
    )
    with torch.no_grad():
        first.query.base.bias[0] += 1e-6
    with pytest.raises(
        InputError,
        match="like must hold the frozen parameters and buffers of the training",
    ):
        li.load(where, like=first)


@pytest.mark.parametrize("part", ["query.base.weight", "scale", "words.weight", "classes.weight"])
def test_a_forward_pass_that_writes_is_refused_before_it_sees_a_record(part):
    def hook(own):
        (dict(own.named_parameters()) | dict(own.named_buffers()))[part].data.mul_(1.5)

    with pytest.raises(
        InputError,
        match=f"must not write to its parameters or buffers in a forward pass, got '{part}",
    ):
        trained(Reader(hook))


LONG = li.Run(
    n=N, steps=40, step_size=0.3, noise=li.NoiseMultiplier(2.0), clip=0.5, batching=li.Cyclic(4)
)


LATE = 90
"""Calls of a module before which all that is looked at beforehand is over."""


@pytest.fixture
def executed_at_every_step(monkeypatch):
    """Not repeated from what it did once, where nothing that it writes later is there to be seen."""
    monkeypatch.setattr(recorded_operations, "OFTEN", 10**6)


@pytest.mark.parametrize("copies", [False, True])
def test_one_that_writes_later_releases_nothing(copies, executed_at_every_step):
    """When all that is looked at beforehand has passed, and past torch: to the numbers that the
    forward pass is handed, or to the caller's own module."""
    module = Reader()
    own = module.query.base.bias

    def hook(_):
        if module.calls > LATE:
            address = (module.query.base.bias if copies else own).data_ptr()
            ctypes.c_float.from_address(address).value += 1.0

    module.hook = hook
    with pytest.raises(
        InputError, match=r"must change in its trained parameters alone, .* got 'a frozen parameter"
    ):
        trained(module, run=LONG)
    assert module.calls > LATE


def test_one_that_writes_later_with_torch_is_refused_by_torch(executed_at_every_step):
    module = Reader(lambda own: own.calls > LATE and own.query.base.bias.data.mul_(1.5))
    with pytest.raises(InputError, match=r"raises an error there; .* look for .* written in place"):
        trained(module, run=LONG)


class Copied(Reader):
    """A module that is copied in a way of its own."""

    def __deepcopy__(self, memo):
        return self.copied()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("scale", "change in its trained parameters alone"),
        ("classes.weight", "hold what was trained, .* got 'classes.weight'"),
    ],
)
def test_a_copy_that_is_not_what_was_trained_is_not_released(part, said, monkeypatch):
    """A frozen number that differs in it alone, or a trained tensor that it does not take."""
    module, copied = Copied(), Reader()
    module.copied = lambda: copied
    every = dict(copied.named_parameters()) | dict(copied.named_buffers())
    if part == "scale":
        every[part].mul_(2.0)
    else:
        monkeypatch.setattr(every[part], "copy_", lambda other: None)
    with pytest.raises(InputError, match=said):
        trained(module)


def test_a_parameter_that_no_loss_depends_on_is_refused():
    """It would be given noise alone. One whose first gradient is 0, as a low-rank factor's, is
    trained."""

    def guessed(output, words):
        return functional.cross_entropy(output["next"], words)

    with pytest.raises(
        InputError, match=r"would be given noise alone, got 'classes.weight'; freeze it"
    ):
        trained(data=(RECORDS, WORDS), loss=guessed)
    module = Reader()
    module.classes.requires_grad_(False)
    assert "query.down.weight" in trained(module, data=(RECORDS, WORDS), loss=guessed).state


def test_a_tensor_that_rounding_keeps_as_it_was_is_released_with_a_warning(tmp_path):
    """It was paid for: the first bits are public, and rounding follows from the noisy iterate."""
    module = torch.nn.Linear(6, 3).to(torch.bfloat16)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(1.0)
    run = li.Run(n=N, steps=1, step_size=1e-5, noise=li.NoiseMultiplier(2.0), clip=0.5)
    data = np.ones((N, 6), np.float32), Y
    with pytest.warns(UserWarning, match=r"rounding kept every bit of 2 trained tensors, weight"):
        model = trained(module, data, functional.cross_entropy, run)
    assert model.effect.still == ("weight", "bias") and torch.equal(
        model.state["weight"], module.weight
    )
    assert any("kept every bit of weight, bias" in caveat for caveat in model.certificate.caveats)
    assert li.verify(model.save(tmp_path / "m")).holds
    assert not trained(module.float(), data, functional.cross_entropy, run).effect.still


@pytest.mark.filterwarnings("ignore:this seed")
def test_dictionaries_are_records_for_all():
    """A dictionary alone, or of a class of its own; predictions of the very records of ``train``."""
    own = trained(seed=3)
    for data in (
        RECORDS | {"labels": Y},
        UserDict(RECORDS | {"labels": Y}),
        (UserDict(RECORDS | {"labels": Y}),),
    ):
        model = trained(data=data, loss=lambda output: output["loss"], seed=3)
        assert all(torch.equal(tensor, own.state[name]) for name, tensor in model.state.items())
        found = model.predict(data)
        assert found.keys() == {"next", "logits"}, "what is of no record alone is left out"
        np.testing.assert_array_equal(found["logits"], own.predict(RECORDS)["logits"])


@pytest.mark.filterwarnings("ignore:this seed")
def test_a_checkpoint_of_such_a_module_goes_on_with_the_same_bits(kept, interrupted):
    with interrupted(2) as progress:
        trained(progress=progress, seed=3, **kept)
    again, whole = trained(seed=3, **kept), trained(seed=3)
    assert all(torch.equal(again.state[name], tensor) for name, tensor in whole.state.items())
