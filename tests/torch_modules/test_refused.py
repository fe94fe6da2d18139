"""What is no private training is refused in one sentence, by name and with a remedy, before
anything is executed."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.audit import audit
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.torch import DPNetClassifier, Grouped

N = 6
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % 3
RUN = li.Run(n=N, steps=2, step_size=0.3, noise=li.GradientNoise(0.2), clip=0.1)


def dense(*parts):
    return torch.nn.Sequential(torch.nn.Linear(4, 3), *parts)


def refused(model=None, loss=functional.cross_entropy, data=(X, Y), run=RUN, **given):
    with pytest.raises(InputError) as caught:
        li.train(run, data, model=dense() if model is None else model, loss=loss, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Centred(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.own = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.own(x - x.mean(0))


class Averaged(Centred):
    def forward(self, x):
        return self.own(x).mean(0)


class Noisy(Centred):
    def forward(self, x):
        return self.own(x + torch.randn_like(x))


class Counting(Centred):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return self.own(x)


class Detached(Centred):
    def forward(self, x):
        return self.own(x).detach()


class Last(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.own = torch.nn.LSTM(1, 3, batch_first=True)

    def forward(self, x):
        return self.own(x[:, :, None])[0][:, -1]


def integers():
    module = dense()
    module.register_parameter("table", torch.nn.Parameter(torch.arange(3), requires_grad=False))
    return module


def infinite():
    module = dense()
    with torch.no_grad():
        module[0].weight[0, 0] = torch.inf
    return module


def frozen():
    return dense().requires_grad_(False)


MODULES = {
    "batch norm": (
        dense(torch.nn.BatchNorm1d(3)),
        "BatchNorm1d at '1'\"; use lastiterate.torch.private",
    ),
    "batch norm without statistics": (
        dense(torch.nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        "BatchNorm1d",
    ),
    "synchronised": (dense(torch.nn.SyncBatchNorm(3)), "SyncBatchNorm"),
    "instance norm": (
        dense(torch.nn.InstanceNorm1d(3, track_running_stats=True)),
        "must not collect statistics",
    ),
    "dropout": (dense(torch.nn.AlphaDropout(0.5)), "AlphaDropout at '1'"),
    "random slopes": (dense(torch.nn.RReLU()), "must draw no random numbers"),
    "dropout in attention": (
        torch.nn.TransformerEncoderLayer(4, 2, 8),
        "MultiheadAttention at 'self_attn'",
    ),
    "dropout in a recurrent layer": (torch.nn.LSTM(4, 3, 2, dropout=0.1), "LSTM"),
    "recurrent without a rule": (Last(), "private_version"),
    "random pooling": (dense(torch.nn.FractionalMaxPool2d(2, 2)).eval(), "FractionalMaxPool2d"),
    "own noise": (Noisy(), "must draw no random numbers"),
    "centred by the batch": (Centred(), "a record's output depends on its batch"),
    "a mean inside": (Averaged(), "must answer for each record of a batch"),
    "counts": (
        Counting(),
        "must not write to its parameters or buffers in a forward pass, got 'seen'",
    ),
    "no gradient": (Detached(), "finite gradient"),
    "integers": (integers(), "table is none, got 'torch.int64'"),
    "not finite": (infinite(), "must have finite parameters"),
    "frozen": (frozen(), "must have parameters that are trained"),
    "lazy": (torch.nn.LazyLinear(3), "lazy module"),
    "on no device": (torch.nn.Linear(4, 3, device="meta"), "with numbers in them"),
    "other inputs": (torch.nn.Linear(5, 3), "must take a batch of records"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_refused_by_name(name):
    module, said = MODULES[name]
    assert said in refused(module), refused(module)


def test_switched_off_parts_are_taken():
    module = dense(torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.0)).eval()
    module[3].train()
    li.train(RUN, (X, Y), model=module, loss=functional.cross_entropy)


def test_a_part_that_is_switched_off_already_is_not_told_to_be():
    assert "leave that part out, or switch it off" in refused(Noisy())
    assert refused(Noisy().eval()).endswith("leave that part out.")


class Dropped(Centred):
    def forward(self, x):
        return functional.dropout(self.own(x), 0.2, training=self.training)


def test_functional_dropout_is_told_of_the_part_that_works():
    said = refused(Dropped())
    assert said.endswith(
        'randomness ..."; write dropout as a part torch.nn.Dropout, which draws under keys of '
        "every record's own, or switch it off with .eval()."
    )
    part = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.2))
    for module in (part, Dropped().eval()):
        li.train(RUN, (X, Y), model=module, loss=functional.cross_entropy)


class Encoder(Centred):
    def forward(self, x):
        return functional.mse_loss(self.own(x), x[:, :3])


def test_an_autoencoder_is_told_how_its_data_and_loss_are_given():
    said = refused(Encoder(), loss=lambda out: out, data=(X,))
    assert "its output has no batch axis; a loss that the module computes" in said
    assert "returns its reconstruction, with data=(x, x)." in said
    square = torch.nn.Linear(4, 4)
    said = refused(square, loss=functional.mse_loss, data=(X,))
    assert said.endswith("data=(x, y), or (x, x) where the module reconstructs x.")
    li.train(RUN, (X, X), model=square, loss=functional.mse_loss)


def test_a_label_beyond_the_outputs_is_told_of_the_range_and_not_shown():
    said = refused(data=(X, Y + 5))
    assert "labels are integers from 0 to the number of outputs - 1: look for others" in said
    assert "7" not in said


def test_losses_are_of_one_record():
    assert "one number for one record" in refused(loss=lambda out, y: out**2)
    assert "without a batch axis" in refused(loss=lambda out, y: out[:, 0].sum())
    assert "floating-point scalar" in refused(loss=lambda out, y: y)
    assert "must be a function" in refused(loss="cross_entropy")
    assert "not finite" in refused(loss=lambda out, y: torch.log(0 * out.sum()))
    assert "must have a gradient on one synthetic record" in refused(
        loss=lambda out, y: functional.nll_loss(
            out.expand(7, 3).log_softmax(-1).T.reshape(1, 3, 7, 1), y.expand(1, 7, 1)
        )
    ), "strides that torch cannot take"


def test_data_are_n_finite_records():
    module = dense()
    assert "n = 6 records" in refused(module, data=(X[:4], Y[:4]))
    long = torch.utils.data.TensorDataset(
        torch.from_numpy(np.tile(X, (2, 1))), torch.from_numpy(np.tile(Y, 2))
    )
    assert "n = 6 records, got 12" in refused(module, data=long)
    broken = X.copy()
    broken[3, 1] = np.nan
    message = refused(module, data=(broken, Y))
    assert "must be finite numbers" in message and "3" not in message, "no record is named"
    assert "must be a Dataset, a dictionary, or a tuple" in refused(module, data=X)
    assert "arrays of numbers" in refused(module, data=(X, np.array(list("abcdef"))))

    for lists in ({"input_ids": X.tolist()}, (X.tolist(), Y), (X, Y.tolist())):
        assert "must be tensors or arrays with the records along their first axis" in refused(
            module, data=lists
        )

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    assert "numbered items" in refused(module, data=Stream())
    elsewhere = torch.from_numpy(X).to("meta")
    assert "on the CPU or on the module's device" in refused(module, data=(elsewhere, Y))


def test_other_spellings_are_answered_in_a_sentence():
    """Tensors, state dicts and losses of torch where a module, or arrays, are asked for."""
    module, own = dense(), np.zeros((3, 4), np.float32)
    own_tensors = (
        module[0].weight,
        module.state_dict(),
        list(module.parameters()),
        module.parameters(),
    )
    for model in (*own_tensors, torch.nn.Linear):
        assert "give a torch.nn.Module itself" in refused(model, loss=lambda p, x, y: 0.0)
    assert "must take the parameters and one record" in refused(
        own, loss=lambda p, x, y: functional.cross_entropy(torch.as_tensor(p) @ x, y)
    )
    assert "must take the parameters and one record" in refused(
        own, loss=torch.nn.CrossEntropyLoss()
    )
    narrow = torch.from_numpy(X).bfloat16()
    assert "tensors that NumPy can read, got 'torch.bfloat16 on cpu'" in refused(
        own, lambda p, x, y: 0.0, (narrow, Y)
    )
    with pytest.raises(InputError, match="must be a tuple"):
        li.train(
            replace(RUN, loss=li.Logistic()),
            torch.utils.data.TensorDataset(narrow, torch.from_numpy(Y)),
        )
    assert "must have parameters" in refused(torch.nn.ReLU())


def test_items_of_a_dataset_have_one_shape():
    class Uneven(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            return torch.zeros(4 + i % 2), 0

    assert "items of the same parts and shapes" in refused(data=Uneven())


def test_nothing_is_paid_for_a_module_that_is_refused(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    before = (tmp_path / "l").read_bytes()
    for module, said in (
        (dense(torch.nn.BatchNorm1d(3)), "BatchNorm1d"),
        (frozen(), "are trained"),
    ):
        assert said in refused(module, ledger=ledger, dataset="d")
    assert (tmp_path / "l").read_bytes() == before


def test_shapes_are_looked_at_before_anything_is_paid(tmp_path):
    book = Ledger(tmp_path / "l")
    book.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    before = (tmp_path / "l").read_bytes()
    to_it = {"ledger": book, "dataset": "d", "epsilon": 1.0, "run": replace(RUN, noise=None)}
    tensors = torch.from_numpy(X[:4]), torch.from_numpy(Y[:4])
    for data in (
        (X[:4], Y[:4]),
        tensors,
        (X, Y[:4]),
        torch.utils.data.TensorDataset(*tensors),
        torch.utils.data.Subset(torch.utils.data.TensorDataset(*tensors), [0, 1]),
    ):
        assert "must have the run's n = 6 records" in refused(data=data, **to_it)
    net = DPNetClassifier(
        torch.nn.Linear(4, 2), classes=[0, 1, 2], epochs=1, ledger=book, dataset="d"
    )
    with pytest.raises(InputError, match="one output for each of 3 classes, got \\(2,\\)"):
        net.fit(X, Y)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "x.labels.npy", Y)
    said = refused(data=li.data.stream(tmp_path / "x.npy"), scratch=tmp_path / "none", **to_it)
    assert said.startswith("scratch must be a folder that can be written to")
    with pytest.raises(InputError, match="target must be numbers, or class indices"):
        li.train(
            li.Run(n=N, steps=2, step_size=0.3, loss=li.Softmax(classes=3)),
            (X, Y.astype(str)),
            epsilon=1.0,
            ledger=book,
            dataset="d",
        )
    assert (tmp_path / "l").read_bytes() == before


def test_weights_of_classes_that_a_mean_divides_out_are_refused():
    weight = torch.tensor([1.0, 5.0, 1.0])
    for loss in (
        torch.nn.CrossEntropyLoss(weight=weight),
        partial(functional.cross_entropy, weight=weight),
    ):
        assert "must not take a mean where classes have weights" in refused(loss=loss)
    summed = torch.nn.CrossEntropyLoss(weight=weight, reduction="sum")
    assert not torch.equal(
        *(
            li.train(RUN, (X, Y), model=dense_of_zeros(), loss=one, seed=0).state["weight"]
            for one in (summed, functional.cross_entropy)
        )
    )


def dense_of_zeros():
    own = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(own.weight)
    torch.nn.init.zeros_(own.bias)
    return own


def test_what_torch_says_of_shapes_and_types_of_targets_has_a_remedy():
    said = refused(
        torch.nn.Linear(4, 1),
        lambda o, y: functional.binary_cross_entropy_with_logits(o, y),
        (X, (Y > 1).astype(np.float32)),
    )
    assert "of one output give targets of shape (n, 1)" in said
    assert "class indices are integers" in refused(data=(X, Y.astype(np.float32)))
    assert refused(devices=2).startswith("devices must be 1 for torch models, got 2")


def test_runs_that_say_something_else_are_refused():
    assert "must be KnownConstants" in refused(run=replace(RUN, loss=li.Logistic()))
    assert "preprocessing" in refused(run=replace(RUN, preprocessing=(li.PrivateMean(1.0, 1.0),)))
    assert "must have parameters 0" in refused(run=replace(RUN, start=li.GaussianStart(1.0)))
    assert "microbatch" in refused(microbatch=0) and "microbatch" in refused(microbatch=True)
    boxed = replace(RUN, domain=li.domains.Ball(1.0))
    assert "must be 1 where the run has a domain" in refused(
        Grouped(dense(), {"0": 2.0}), run=boxed
    )
    for speeds, said in (({"head": 1.0}, "must name parameters"), ({"0": -1.0}, "numbers >= 0")):
        with pytest.raises(InputError, match=said):
            Grouped(dense(), speeds)
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module"):
        Grouped([dense()], {"0": 1.0})


def test_facts_of_a_linear_model_certify_no_module():
    """They were believed, and a row of 1e9 moved the module by 1e7."""
    given = li.KnownConstants(li.Logistic(row_norm=1.0, intercept=0.0).facts())
    with pytest.raises(li.NotCertified):
        li.train(
            replace(RUN, clip=None, loss=given),
            (X * 1e9, Y),
            model=dense(),
            loss=functional.cross_entropy,
        )


def test_what_opacus_leaves_behind_is_refused_with_a_remedy_that_works(tmp_path):
    opacus = pytest.importorskip("opacus", reason="Opacus is not installed")
    module = dense()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    wrapped = opacus.GradSampleModule(module)
    private = opacus.optimizers.DPOptimizer(
        torch.optim.RMSprop(module.parameters(), lr=0.02),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=N,
    )
    assert "to_standard_module()" in refused(torch.nn.Sequential(wrapped))
    assert "to_standard_module() of the module that make_private returned" in refused(module)
    for given in (private, lambda p: private):
        said = refused(optimizer=given)
        assert "DPOptimizer'; write lambda p: torch.optim.RMSprop(p, lr=0.02)." in said
    plain = li.train(RUN, (X, Y), model=dense(), loss=functional.cross_entropy)
    plain.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"give like\.to_standard_module\(\)"):
        li.load(tmp_path / "model", like=wrapped)
    again = dense()
    again.load_state_dict(module.state_dict())
    for model in (again, wrapped.to_standard_module(), module):
        assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())
        li.train(
            replace(RUN, step_size=1.0),
            (X, Y),
            model=model,
            loss=functional.cross_entropy,
            optimizer=lambda p: torch.optim.RMSprop(p, lr=0.02),
        )
    li.load(tmp_path / "model", like=module)


class Attention(torch.nn.Module):
    """Dropout of attention by a number that ``set_attn_implementation`` knows nothing of."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        x = x[:, None, :, None]
        p = self.p if self.training else 0.0
        return functional.scaled_dot_product_attention(x, x, x, dropout_p=p)[:, 0, :, 0]


def test_dropout_inside_of_attention_is_refused_by_its_place():
    said = refused(dense(Attention(0.5)))
    assert "\"Attention at '1'\"; dropout is fused into its attention: set the prob" in said
    for model in (dense(Attention(0.0)), dense(Attention(0.5)).eval()):
        li.train(RUN, (X, Y), model=model, loss=functional.cross_entropy)


@pytest.mark.parametrize(
    "raised", [RuntimeError, ValueError("\nsecond line")], ids=["none", "late"]
)
def test_a_loss_that_raises_without_a_message_is_refused_by_the_error_s_name(raised):
    """Modules and networks alike; the first line of nothing is an error of its own."""

    def loss(*_):
        raise raised

    name = raised.__name__ if isinstance(raised, type) else type(raised).__name__
    run, x, y = li.Run(n=50, steps=2, step_size=0.1, clip=1.0), np.ones((50, 3)), np.ones(50)
    for records, model in (
        ((torch.ones(50, 3), torch.ones(50)), torch.nn.Linear(3, 1)),
        ((x, y), {"w": np.zeros(3)}),
    ):
        with pytest.raises(InputError, match=rf"loss must take .* got '{name}'"):
            li.train(run, records, model=model, loss=loss, epsilon=1.0, delta=1e-4)


WEIGHTS = torch.tensor([1.0, 20.0, 1.0])


class WeightedLoss(torch.nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.own = torch.nn.CrossEntropyLoss(weight=WEIGHTS, **given)

    def forward(self, output, y):
        return self.own(output, y)


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, y: functional.cross_entropy(output, y, weight=WEIGHTS),
        lambda output, y: functional.nll_loss(output.log_softmax(-1), y, WEIGHTS),
        lambda output, y: functional.cross_entropy(output, y, WEIGHTS, True),
        WeightedLoss(),
        lambda output, y: WeightedLoss()(output, y),
        lambda output, y: functional.cross_entropy(output[None], y[None], weight=WEIGHTS),
    ],
)
def test_weights_that_a_mean_of_one_record_divides_out_are_refused_inside_of_a_loss(loss):
    assert 'write reduction="sum" next to the weights' in refused(loss=loss)


@pytest.mark.filterwarnings("ignore:this seed")
def test_both_remedies_for_such_weights_train_otherwise_than_without_weights():
    def bias(loss, **given):
        return li.train(RUN, (X, Y), model=dense(), loss=loss, seed=3, **given).state["0.bias"]

    torch.manual_seed(0)
    plain = bias(lambda output, y: functional.cross_entropy(output, y))
    for one in (
        bias(WeightedLoss(reduction="sum")),
        bias(
            lambda output, y: functional.cross_entropy(output, y), class_weight={0: 1, 1: 20, 2: 1}
        ),
    ):
        assert not torch.equal(one, plain)


def test_weights_that_a_mean_does_not_divide_out_are_taken():
    """Of several labels in a record, and of probabilities as labels."""

    class Pixels(Centred):
        def forward(self, x):
            return self.own(x)[:, :, None].expand(-1, -1, 4)

    labels, shares = np.arange(4 * N).reshape(N, 4) % 3, np.eye(3, dtype=np.float32)[Y]

    def several(output, y):
        return functional.cross_entropy(output[None], y[None], weight=WEIGHTS)

    class Plain(Centred):
        def forward(self, x):
            return self.own(x)

    li.train(RUN, (X, labels), model=Pixels(), loss=several)
    li.train(
        RUN,
        (X, shares),
        model=Plain(),
        loss=lambda output, y: functional.cross_entropy(output, y, weight=WEIGHTS),
    )


def test_a_group_whose_learning_rate_is_always_0_is_refused_and_may_be_frozen():
    def still(p):
        return torch.optim.SGD([{"params": p[:2], "lr": 0.0}, {"params": p[2:]}], lr=0.1)

    def warm(p):
        return torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(p, lr=0.1), float)

    run, model = replace(RUN, step_size=1), dense(torch.nn.Linear(3, 3))
    said = refused(model, run=run, optimizer=still)
    assert "got '0.weight'; freeze it in the module with requires_grad_(False)" in said
    li.train(run, (X, Y), model=model, loss=functional.cross_entropy, optimizer=warm)
    model[0].requires_grad_(False)
    li.train(
        run,
        (X, Y),
        model=model,
        loss=functional.cross_entropy,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )


class Scaled(torch.nn.Module):
    """Divides by what it looks up in the batch, in the input or in a hidden layer."""

    def __init__(self, mix, hidden):
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
        self.mix, self.hidden = mix, hidden

    def forward(self, x):
        x = x if self.hidden else self.mix(x)
        held = self.one(x).relu()
        return self.two(self.mix(held) if self.hidden else held)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    "mix",
    [
        lambda a: a / a.abs().max(),
        lambda a: a / (a.amax() + 1),
        lambda a: a / a.abs().max().clamp(min=5),
        lambda a: a.cumsum(0),
        lambda a: a + 1e-3 * a[:1],
        lambda a: a.softmax(0),
    ],
)
def test_a_module_that_looks_at_its_batch_is_refused(mix, hidden):
    for seed in range(3):
        torch.manual_seed(seed)
        assert "a record's output depends on its batch" in refused(Scaled(mix, hidden))


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(
    "mix",
    [
        lambda a: a / (a.abs().amax(1, keepdim=True) + 1e-3),
        lambda a: functional.layer_norm(a, a.shape[1:]),
        lambda a: a.cumsum(1),
        lambda a: a.exp(),
    ],
)
def test_a_module_that_looks_at_one_record_is_not(mix, hidden):
    li.train(RUN, (X, Y), model=Scaled(mix, hidden), loss=functional.cross_entropy)


def test_a_module_that_looks_at_the_words_of_its_batch_is_refused():
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.last = torch.nn.Embedding(9, 8), torch.nn.Linear(8, 3)

        def forward(self, x):
            held = self.words(x)
            return self.last((held / held.abs().max()).mean(1))

    words = np.random.default_rng(0).integers(0, 9, (N, 5))
    assert "a record's output depends on its batch" in refused(Words(), data=(words, Y))


def test_an_embedding_that_renormalises_is_refused_with_a_remedy_that_works():
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words = torch.nn.Embedding(9, 8, max_norm=1.0)
            self.last = torch.nn.Linear(8, 3)

        def forward(self, x):
            return self.last(self.words(x).mean(1))

    words, model = np.random.default_rng(0).integers(0, 9, (N, 5)), Words()
    assert "set max_norm=None of an embedding" in refused(model, data=(words, Y))
    model.words.max_norm = None
    li.train(RUN, (words, Y), model=model, loss=functional.cross_entropy)


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, slope):
        return slope * (ctx.saved_tensors[0] > 0)


class ClampedInOne(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    backward = Clamped.backward


class ClampedWithRule(Clamped):
    generate_vmap_rule = True


def test_a_function_of_the_callers_needs_a_rule_and_a_context_of_its_own():
    class Applied(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def forward(self, x):
            return self.function.apply(x)

    for function in (Clamped, ClampedInOne):
        said = refused(dense(Applied(function)))
        assert "generate_vmap_rule = True and a setup_context(ctx, inputs, output)" in said
    li.train(RUN, (X, Y), model=dense(Applied(ClampedWithRule)), loss=functional.cross_entropy)


def test_a_tensor_that_becomes_a_number_is_found_where_it_does():
    seen = []

    def logged(output, y):
        value = functional.cross_entropy(output, y)
        seen.append(value.item())
        seen.clear()
        return value

    def listed(output, y):
        value = functional.cross_entropy(output, y)
        value.tolist()
        return value

    class Multiplied(Centred):
        def forward(self, x):
            return self.own(x) * self.own.weight.sum().item()

    for loss in (logged, listed):
        said = refused(loss=loss)
        assert said.startswith("loss must") and "may not be logged; progress=True" in said
    said = refused(Multiplied())
    assert said.startswith("model must") and "make no numbers of tensors" in said

    def branching(output, y):
        value = functional.cross_entropy(output, y)
        return value if value > 1 else 2 * value

    assert refused(loss=branching).endswith("write torch.where in the place of if.")


def test_labels_in_a_column_are_named_where_a_loss_of_the_callers_gets_them():
    said = refused(loss=lambda output, y: functional.cross_entropy(output, y), data=(X, Y[:, None]))
    assert "write target.squeeze(-1)" in said and "contiguous" not in said
    li.train(
        RUN,
        (X, Y[:, None]),
        model=dense(),
        loss=lambda output, y: functional.cross_entropy(output, y.squeeze(-1)),
    )


class TwoInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, u, v):
        return self.one(u) + self.two(v)


def test_several_inputs_are_a_tuple_of_their_own():
    assert "data=((u, v), y)" in refused(TwoInputs(), data=(X, X, Y))
    li.train(RUN, ((X, X), Y), model=TwoInputs(), loss=functional.cross_entropy)


def test_a_rule_of_the_run_is_not_an_optimizer_of_train():
    for rule in (li.HeavyBall(0.9), li.Nesterov(), li.Adam()):
        said = refused(optimizer=rule)
        assert f"write Run(optimizer={rule!r})" in said
    rule = li.HeavyBall(beta=0.9)
    li.train(replace(RUN, optimizer=rule), (X, Y), model=dense(), loss=functional.cross_entropy)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: torch.optim.SGD(p, lr=float("nan")), "finite learning rate, got 'lr=nan'"),
        (lambda p: torch.optim.Adam(p, lr=-1), "rate: -1'; give it settings that torch takes"),
    ],
)
def test_a_learning_rate_that_is_none_is_named(make, said):
    assert said in refused(run=replace(RUN, step_size=1), optimizer=make)


def test_modules_have_no_private_score_and_say_what_scores_them():
    model = li.train(RUN, (X, Y), model=dense(), loss=functional.cross_entropy)
    with pytest.raises(AttributeError, match="linear models only; compare predict with the labels"):
        model.private_score(X, Y, epsilon=0.1)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = model.nothing


def test_an_audit_of_a_run_with_a_callers_optimizer_attacks_its_noisy_steps():
    def adam(p):
        return torch.optim.Adam(p, lr=0.1)

    model = li.train(
        replace(RUN, step_size=1, steps=1),
        (X, Y),
        model=dense(),
        loss=functional.cross_entropy,
        optimizer=adam,
    )
    found = audit(model.run, trials=100, seed=1)
    plain = audit(replace(model.run, optimizer=None), trials=100, seed=1)
    assert found.verdict == plain.verdict == "no contradiction"
    assert (found.lower, found.upper) == (plain.lower, plain.upper)
    assert found.not_executed[0] == "optimizer (PostProcessing)"
    assert "rule (Adam) is not executed: it sees noisy sums alone" in found.caveats[1]


def test_an_output_object_is_refused_with_a_loss_that_takes_it():
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Named(Centred):
        def forward(self, x):
            return outputs.SequenceClassifierOutput(logits=self.own(x))

    assert "cross_entropy(output.logits, y)" in refused(Named())
    li.train(
        RUN,
        (X, Y),
        model=Named(),
        loss=lambda output, y: functional.cross_entropy(output.logits, y),
    )


def test_an_error_of_the_callers_module_keeps_its_remedy():
    class Raises(Centred):
        def forward(self, x):
            raise InputError("sequences", "must be tensors " + 200 * "x", None, "fill them up")

    assert refused(Raises()).endswith("fill them up.")


@pytest.mark.parametrize(
    ("wrong", "said", "right"),
    [
        (
            lambda o, y: -torch.log_softmax(o, dim=1)[y],
            "write dim=-1",
            lambda o, y: -torch.log_softmax(o, dim=-1)[y],
        ),
        (
            lambda o, y: -torch.log_softmax(o, -1)[0, y],
            "leave the index of the record out",
            lambda o, y: -torch.log_softmax(o, -1)[y],
        ),
        (
            lambda o, y: functional.cross_entropy(o.logits, y),
            "give the loss the output itself",
            functional.cross_entropy,
        ),
    ],
)
def test_a_loss_written_for_batches_is_told_what_to_write(wrong, said, right):
    assert said in refused(loss=wrong)
    assert li.train(RUN, (X, Y), model=dense(), loss=right).state


def test_a_model_that_computes_no_loss_asks_for_labels_among_its_inputs():
    class Optional(Centred):
        def forward(self, x, labels=None):
            logits = self.own(x)
            loss = None if labels is None else functional.cross_entropy(logits, labels)
            return {"loss": loss, "logits": logits}

    said = refused(Optional(), data=({"x": X}, Y), loss=lambda output, y: output["loss"])
    assert "labels are among its inputs" in said
    given = ({"x": X, "labels": Y},)
    assert li.train(RUN, given, model=Optional(), loss=lambda output: output["loss"]).state
