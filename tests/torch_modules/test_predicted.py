"""``predict`` takes what ``train`` takes; what it cannot take is answered in a sentence."""

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch.utils.data import DataLoader, TensorDataset

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import DatasetPieces, DPNetClassifier, Grouped

N = 8
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
IDS = np.arange(2 * N).reshape(N, 2) % 5
Y = np.arange(N) % 3
RUN = li.Run(n=N, steps=2, step_size=0.3, noise=li.GradientNoise(0.2), clip=1.0)


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.own = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3)

    def forward(self, ids):
        return self.own(self.table(ids).mean(1))


class Both(Words):
    def forward(self, x, ids):
        return self.own(x + self.table(ids).mean(1))


class Named(Both):
    """Answers with names as well."""

    def forward(self, x, ids):
        return {"logits": super().forward(x, ids)}


def entropy(out, y):
    return functional.cross_entropy(out["logits"] if isinstance(out, dict) else out, y)


INPUTS = {
    "array": (lambda: torch.nn.Linear(4, 3), X),
    "tensor": (lambda: torch.nn.Linear(4, 3), torch.from_numpy(X)),
    "double": (lambda: torch.nn.Linear(4, 3), X.astype(np.float64)),
    "ids": (Words, IDS),
    "short ids": (Words, IDS.astype(np.int32)),
    "tuple": (Both, (X, IDS)),
    "dictionary": (Both, {"x": X, "ids": IDS}),
    "tensors": (Both, {"ids": torch.from_numpy(IDS), "x": torch.from_numpy(X)}),
    "named": (Named, {"x": X, "ids": IDS}),
}


@pytest.mark.parametrize("name", INPUTS)
def test_what_is_trained_on_is_predicted(name):
    made, x = INPUTS[name]
    model = li.train(RUN, (x, Y), model=made(), loss=entropy, seed=0)
    found = model.predict(x)
    found = found["logits"] if name == "named" else found
    assert isinstance(found, np.ndarray) and found.shape == (N, 3)
    parts = x if isinstance(x, tuple) else x.values() if isinstance(x, dict) else (x,)
    names = x if isinstance(x, dict) else range(len(parts))
    given = {name: torch.as_tensor(part)[3:4] for name, part in zip(names, parts, strict=True)}
    given = {
        name: part.float() if part.is_floating_point() else part for name, part in given.items()
    }
    with torch.no_grad():
        alone = model.module(**given) if isinstance(x, dict) else model.module(*given.values())
    np.testing.assert_allclose(found[3:4], alone["logits"] if name == "named" else alone, atol=1e-6)


def test_a_dataset_is_predicted_by_the_first_part_of_its_items():
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    model = li.train(RUN, data, model=torch.nn.Linear(4, 3), loss=entropy, seed=0)
    assert np.array_equal(model.predict(data), model.predict(X))


@pytest.fixture(scope="module")
def linear():
    return li.train(RUN, (X, Y), model=torch.nn.Linear(4, 3), loss=entropy)


@pytest.mark.parametrize(
    "x, said",
    [
        ("text", "tensors or arrays of numbers"),
        (
            DataLoader(TensorDataset(torch.zeros(3, 4))),
            "got 'object'; of a DataLoader give each",
        ),
        (X[0], r"for each of which the module answers; give a single record as x\[None\]"),
        (X[0, 0], "along the first axis"),
        ({}, "along the first axis"),
        (X[:, :2], "records that the module takes"),
        (((X, X), Y), "hold the 1 parts"),
        ({"other": X}, "records that the module takes"),
        ((X, Y[:3]), "as many in every part"),
        (None, "of numbers"),
        ((), "along the first axis"),
        ((X, np.array(["a"] * N)), "of numbers"),
    ],
)
def test_what_cannot_be_predicted_is_said(linear, x, said):
    with pytest.raises(li.InputError, match=said) as caught:
        linear.predict(x)
    assert "\n" not in str(caught.value)


class Masked(Both):
    """Takes its second part or leaves it."""

    def forward(self, x, ids=None):
        return self.own(x) if ids is None else super().forward(x, ids)


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": X[i], "ids": Z[i]}, Y[i]


Z = np.roll(IDS, 1)
PIECES = li.data.Generated(
    N, lambda first, count: (X[first : first + count], Y[first : first + count])
)
STORED = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
SAME = {
    "one part": (
        lambda: torch.nn.Linear(4, 3),
        X,
        [(X, Y), (torch.from_numpy(X), Y), (X,), STORED, PIECES, DatasetPieces(STORED)],
    ),
    "two parts": (Masked, (X, Z), [((X, Z), Y), ((torch.from_numpy(X), Z),)]),
    "by name": (
        Masked,
        {"x": X, "ids": Z},
        [({"x": X, "ids": Z}, Y), ({"ids": Z, "x": X},), Items()],
    ),
}
WRONG = {
    "one part": [],
    "two parts": [X, (X, Z, Y), ((X, Z, Y), Y)],
    "by name": [X, (X, Y), (X, Z)],
}


@pytest.mark.parametrize("name", SAME)
def test_records_are_predicted_as_the_training_took_them_or_without_the_rest(name, tmp_path):
    """What a tuple of arrays is follows from the training, in a folder as well; what could be read
    in two ways is refused: a module with an optional input would answer without it."""
    made, x, others = SAME[name]
    model = li.train(RUN, (x, Y), model=made(), loss=entropy)
    again = li.load(model.save(tmp_path / "m"), like=made())
    for one in (model, again):
        found = one.predict(x)
        for given in others:
            assert np.array_equal(one.predict(given), found)
        for given in WRONG[name]:
            with pytest.raises(
                li.InputError, match=r"that the module was trained on|by whose names"
            ):
                one.predict(given)


def test_a_classifier_keeps_whole_numbers_for_a_table_alone():
    words = DPNetClassifier(Words(), run=RUN, epsilon=5.0, classes=[0, 1, 2], random_state=0).fit(
        IDS, Y
    )
    assert words.predict(IDS).shape == (N,)
    plain = DPNetClassifier(
        torch.nn.Linear(2, 3), run=RUN, epsilon=5.0, classes=[0, 1, 2], random_state=0
    )
    assert plain.fit(IDS, Y).predict(IDS).shape == (N,)


class Brief(Words):
    """Computes in half of the bits, and has a parameter without an axis."""

    def __init__(self):
        super().__init__()
        self.heat = torch.nn.Parameter(torch.tensor(1.0))
        self.table.weight.requires_grad_(False)  # read times 0, which no record moves

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.own(x) * self.heat + 0 * self.table.weight.sum()


def test_short_numbers_and_a_parameter_of_one_number():
    for module in (Brief(), torch.nn.Linear(4, 3).bfloat16()):
        model = li.train(RUN, (X, Y), model=module, loss=functional.cross_entropy, seed=0)
        assert model.predict(X).shape == (N, 3) and model.predict(X).dtype == np.float32
    heat = li.train(RUN, (X, Y), model=Brief(), loss=functional.cross_entropy, seed=0).state["heat"]
    assert heat.shape == () and heat != 1


def test_a_folder_is_read_into_what_was_trained(tmp_path):
    grouped = Grouped(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)), {"1": 1.0})
    model = li.train(RUN, (X, Y), model=grouped, loss=functional.cross_entropy, seed=0)
    again = li.load(model.save(tmp_path / "m"), like=grouped)
    assert np.array_equal(again.predict(X), model.predict(X))
    with pytest.raises(InputError, match="folder must be one that can be made"):
        model.save(tmp_path / "m" / "model.json" / "other")


class BatchScaled(torch.nn.Module):
    """Divides by the maximum of its batch, in evaluation mode only: nobody sees it beforehand."""

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.map(x if self.training else x / x.abs().max())


def test_a_module_that_mixes_records_later_is_asked_for_one_at_a_time():
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    run = li.Run(n=300, steps=1, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(3.0))
    y = np.arange(300) % 2
    model = li.train(run, (x, y), model=BatchScaled(), loss=torch.nn.functional.cross_entropy)
    with pytest.warns(UserWarning, match="predict asks it for one record at a time"):
        found = model.predict(x)
    with torch.no_grad():
        model.module.eval()
        alone = [model.module(torch.from_numpy(x[i : i + 1])).numpy() for i in range(len(x))]
    np.testing.assert_array_equal(found, np.concatenate(alone))
