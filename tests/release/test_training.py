"""li.train, li.load, li.verify: one way for linear models and networks, and what they refuse."""

import json
import pickle
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.engine import execute, key_from_seed
from lastiterate.engine.network import fit_network
from lastiterate.errors import InputError, NotCertified
from lastiterate.release import composition_reminder, model_kinds, network_model
from lastiterate.release.folder import sha256
from lastiterate.release.model_kinds import ModelKind, register
from lastiterate.release.pipeline import SEED

RNG = np.random.default_rng(3)
N, D = 60, 4
X = RNG.normal(size=(N, D)).astype(np.float32) / 4
Y = (X[:, 0] > 0).astype(int)
LOGISTIC = li.Run(
    n=N, steps=20, step_size=0.5, batching=li.Permuted(20), loss=li.Logistic(ridge=0.1)
)
NETWORK = li.Run(n=N, steps=4, step_size=0.2, clip=1.0, batching=li.Cyclic(20))
FIRST = {"in": RNG.normal(size=(3, D)).astype(np.float32), "out": [np.zeros((2, 3)), np.zeros(2)]}


def forward(params, x):
    return params["out"][0] @ jnp.tanh(params["in"] @ x) + params["out"][1]


def loss(params, x, y):
    return -jax.nn.log_softmax(forward(params, x))[y]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has not fitted yet."""
    monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())


@pytest.fixture(scope="module")
def linear():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return li.train(LOGISTIC, (X, Y), epsilon=500.0, delta=1e-5)


@pytest.fixture(scope="module")
def network():
    return li.train(NETWORK, (X, Y), model=FIRST, loss=loss, epsilon=8.0)


def test_a_run_without_noise_is_calibrated_and_executed(linear, network):
    for model, epsilon in ((linear, 500.0), (network, 8.0)):
        assert model.certificate.run.noise is not None and model.certificate.run == model.run
        assert 0.99 * epsilon < model.certificate.epsilon(model.delta) <= epsilon
        assert "60" in repr(model) and len(repr(model)) < 150
    assert network.delta == 1e-5 and any(
        "first parameters" in text for text in network.certificate.caveats
    )
    assert (linear.predict(X) == Y).mean() > 0.7, "it learns"
    assert np.allclose(linear.probabilities(X).sum(1), 1) and set(linear.predict(X)) <= {0, 1}


@pytest.mark.parametrize(
    "name, y",
    [
        ("Softmax", np.arange(N) % 3),
        ("HuberRidge", X[:, 0]),
    ],
)
def test_every_linear_loss_needs_neither_model_nor_loss(name, y):
    given = {"classes": 3} if name == "Softmax" else {}
    run = replace(
        LOGISTIC, loss=getattr(li, name)(ridge=0.1, **given), noise=li.NoiseMultiplier(0.01)
    )
    model = li.train(run, (X, y))
    assert model.run is run and model.certificate.run is run, (
        "a run with noise is executed as it is"
    )
    assert model.predict(X).shape == (N,) and model.delta == 1e-5
    if name == "HuberRidge":
        assert np.corrcoef(model.predict(X), y)[0, 1] > 0.9 and model.probabilities(X).shape == (
            N,
            0,
        )


def test_an_epsilon_replaces_the_noise_that_is_described(linear):
    loud = replace(LOGISTIC, noise=li.NoiseMultiplier(1000.0))
    assert li.train(loud, (X, Y), epsilon=500.0, delta=1e-5).run == linear.run


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_of_a_launcher_that_train_alone_are_warned(monkeypatch, variable):
    monkeypatch.setenv(variable, "4")
    with pytest.warns(li.errors.RepeatedFitWarning, match=rf"started 4 processes \({variable}=4\)"):
        li.train(LOGISTIC, (X, Y), epsilon=8.0, delta=1e-5)
    with pytest.warns(li.errors.RepeatedFitWarning, match=f"{variable}=4"):
        li.estimators.DPLogisticRegression(row_norm=3.0, classes=[0, 1]).fit(X, Y)


def test_seeds_repeat_and_are_told():
    one, two = (li.train(LOGISTIC, (X, Y), epsilon=5.0, seed=7) for _ in range(2))
    assert (one.scores(X) == two.scores(X)).all() and SEED in one.certificate.caveats
    three, four = (
        li.train(NETWORK, (X, Y), model=FIRST, loss=loss, epsilon=5.0, seed=7) for _ in range(2)
    )
    assert (three.params["in"] == four.params["in"]).all() and SEED in three.certificate.caveats
    assert SEED not in li.train(LOGISTIC, (X[::-1], Y), epsilon=5.0).certificate.caveats


def test_the_run_that_is_certified_is_the_run_that_is_executed():
    model = li.train(LOGISTIC, (X, Y), epsilon=5.0, seed=7)
    assert (
        execute(model.certificate.run, X, Y, key_from_seed(7)).weights == model.released.weights
    ).all()
    model = li.train(NETWORK, (X, Y), model=FIRST, loss=loss, epsilon=5.0, seed=7, microbatch=3)
    again = fit_network(model.certificate.run, loss, FIRST, (X, Y), key_from_seed(7), microbatch=3)
    jax.tree.map(np.testing.assert_array_equal, model.params, again)


def test_the_second_fit_is_told():
    run = replace(LOGISTIC, noise=li.NoiseMultiplier(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", li.errors.RepeatedFitWarning)
        li.train(run, (X, Y))
        with pytest.raises(li.errors.RepeatedFitWarning):
            li.train(run, (X, Y))


def refused(*args, run=LOGISTIC, kind=InputError, **kwargs):
    with pytest.raises(kind) as caught:
        li.train(run, *args, **kwargs)
    assert kind is not InputError or "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_trained_is_told_in_one_sentence():
    assert "epsilon is needed where the run has no noise" in refused((X, Y))
    assert "loss of the run must be a linear one" in refused((X, Y), run=NETWORK, epsilon=1.0)
    assert "model is needed together with a loss" in refused((X, Y), loss=loss, epsilon=1.0)
    assert "must be KnownConstants" in refused((X, Y), model=FIRST, loss=loss, epsilon=1.0)
    assert "must be a function" in refused((X, Y), run=NETWORK, model=FIRST, epsilon=1.0)
    assert "microbatch" in refused((X, Y), epsilon=1.0, microbatch=3)
    assert "data must be (x, y)" in refused((X, Y, Y), epsilon=1.0)
    assert "x must be a table" in refused((X[0], Y), epsilon=1.0)
    assert "tuple" in refused(X, epsilon=1.0)
    assert "n = 60" in refused((X[:9], Y[:9]), epsilon=1.0)
    assert "class indices" in refused((X, Y + 1), epsilon=1.0)
    assert "release must be 'last'" in refused(
        (X, Y), run=replace(LOGISTIC, release="all"), epsilon=1.0
    )
    for name, value in (("epsilon", "1"), ("epsilon", True), ("delta", "auto"), ("seed", 1.5)):
        assert refused((X, Y), **{"epsilon": 1.0, name: value}).startswith(name)
    assert "run must be a Run" in refused((X, Y), run=LOGISTIC.to_dict(), epsilon=1.0)
    assert "epsilon" in refused((X, Y), epsilon=-1.0) and "delta" in refused(
        (X, Y), epsilon=1.0, delta=2.0
    )
    assert "infinite" in refused(
        (X, Y), run=replace(LOGISTIC, noise=li.NoiseMultiplier(0.0)), kind=NotCertified
    )


class Module:
    """What a model of another library looks like: an object without arrays that JAX knows."""


def test_models_of_other_libraries_are_refused_until_their_package_registers(monkeypatch, tmp_path):
    monkeypatch.setattr(model_kinds, "KINDS", dict(model_kinds.KINDS))
    data = (X, Y)
    given = {"run": NETWORK, "loss": loss, "epsilon": 1.0}
    assert "got 'Module'; models of other libraries" in refused(data, model=Module(), **given)
    assert "structure of NumPy or JAX arrays" in refused(data, model={"a": 1.0}, **given)
    seen = []
    fitted = li.train(NETWORK, data, model=FIRST, loss=loss, epsilon=1.0)
    home = SimpleNamespace(
        knows=lambda model: isinstance(model, Module),
        check=lambda order: order,
        draws=lambda model, loss, augment: [],
        fit=lambda order, key: [seen.append(order), fitted][1],
    )
    monkeypatch.setitem(__import__("sys").modules, "another_package", home)
    register(ModelKind("module", "another_package"))
    li.train(NETWORK, data, model=Module(), loss=loss, epsilon=1.0, seed=4, microbatch=2)
    (order,) = seen
    assert (
        order.certificate.epsilon(1e-5) <= 1.0
        and order.loss is loss
        and (order.seed, order.microbatch) == (4, 2)
    )
    register(ModelKind("module", "another_package"))
    with pytest.raises(InputError, match="name of its own"):
        register(ModelKind("linear", "another_package"))


def test_linear_models_travel(linear, tmp_path):
    where = linear.save(str(tmp_path / "new" / "m"))
    assert (
        isinstance(where, Path)
        and li.verify(str(where)).holds
        and li.verify(where / "certificate.json").holds
    )
    for again in (li.load(str(where)), li.load(where), pickle.loads(pickle.dumps(linear))):
        assert (
            type(again) is type(linear)
            and again.run == linear.run
            and again.certificate == linear.certificate
        )
        assert (again.scores(X) == linear.scores(X)).all() and (
            again.predict(X) == linear.predict(X)
        ).all()
    twice = li.load(where).save(tmp_path / "copy")
    assert (twice / "model.json").read_bytes() == (where / "model.json").read_bytes()
    assert (twice / "certificate.json").read_bytes() == (where / "certificate.json").read_bytes()
    with pytest.raises(InputError, match="folder must not exist yet"):
        linear.save(where)
    with pytest.raises(InputError, match="for networks"):
        li.load(where, like=FIRST)
    with pytest.raises(InputError, match="4 features"):
        linear.predict(X[:, :3])
    with pytest.raises(InputError, match="must be a path"):
        linear.save(None)


def test_networks_travel(network, tmp_path):
    where = network.save(tmp_path / "m")
    assert li.verify(where).holds
    plain, shaped = li.load(where), li.load(where, like=FIRST)
    for again in (plain, shaped):
        assert again.certificate == network.certificate and again.run == network.run
        jax.tree.map(np.testing.assert_array_equal, again.params, network.params)
        assert jax.tree.map(lambda a: str(a.dtype), again.params) == jax.tree.map(
            lambda a: str(a.dtype), FIRST
        )
    found = plain.predict(X, forward)
    assert np.allclose(found, network.predict(X, forward)) and found.shape == (N, 2)
    with pytest.raises(InputError, match="forward is needed"):
        plain.predict(X)
    for like in ({"in": FIRST["in"]}, FIRST | {"in": np.zeros((4, D))}, np.zeros(3)):
        with pytest.raises(InputError, match="like must have arrays"):
            li.load(where, like=like)


class Layer(NamedTuple):
    weight: object
    act: object


@jax.tree_util.register_pytree_with_keys_class
class Callable:
    """Parameters that are a function, as those of Equinox are."""

    names: ClassVar = ("w", "b")

    def __init__(self, w, b):
        self.w, self.b = w, b

    def __call__(self, x):
        return self.w @ x + self.b

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in self.names], None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


STRUCTURES = (
    np.arange(3.0),
    [np.zeros((2, 0)), np.ones(())],
    {"a": {"b": (jnp.ones(2, jnp.bfloat16), np.float16([1, 2]))}, "act": jnp.tanh},
    {3: np.ones(1), 1: {"b": np.zeros(2)}},
    (Layer(np.ones(2), jnp.tanh), Layer(np.zeros((2, 2)), "name")),
    Callable(np.ones((2, 2)), np.zeros(2)),
    {2.5: np.ones(1), 1.5: np.zeros(2)},
)


@pytest.mark.parametrize("params", STRUCTURES, ids=range(len(STRUCTURES)))
def test_any_structure_of_arrays_is_stored_and_comes_back(params):
    leaves, tensors = network_model.describe_arrays(params)
    leaves = json.loads(json.dumps(leaves))
    same = network_model.restore_arrays(params, leaves, tensors)
    assert jax.tree.structure(same) == jax.tree.structure(params)
    for one, two in zip(jax.tree.leaves(same), jax.tree.leaves(params), strict=True):
        assert one is two or (
            one.dtype == two.dtype and one.shape == np.shape(two) and (one == two).all()
        )
    plain = network_model.rebuilt(leaves, tensors)
    arrays = [leaf for leaf in jax.tree.leaves(params) if hasattr(leaf, "dtype")]
    assert sorted(map(np.size, jax.tree.leaves(plain))) == sorted(map(np.size, arrays))


def test_attributes_and_gaps_of_lists_are_named():
    params = (Layer(np.ones(2), jnp.tanh), jnp.tanh, np.zeros(1))
    plain = network_model.rebuilt(*network_model.describe_arrays(params))
    assert (
        list(plain[0]) == ["weight"]
        and plain[1] is None
        and (plain[2] == 0).all()
        and len(plain) == 3
    )


def test_parameters_that_are_a_function_predict(tmp_path):
    params = Callable(np.zeros((2, D)), np.zeros(2))
    model = li.train(
        NETWORK,
        (X, Y),
        model=params,
        loss=lambda p, x, y: -jax.nn.log_softmax(p(x))[y],
        epsilon=8.0,
    )
    where = model.save(tmp_path / "m")
    found = li.load(where, like=params)
    assert np.allclose(found.predict(X), X @ model.params.w.T + model.params.b, atol=1e-5)
    assert set(li.load(where).params) == {"w", "b"}


DAMAGED = (
    None, [], {}, [{}], [3], [{"path": [], "dtype": "float32", "array": "9"}],
    [{"path": [["key", "a"]], "dtype": "float32", "array": "0"}] * 2,
    [{"path": [["key", "a"]], "dtype": "float32", "array": "0"}],
    [{"path": [["key", "a"]], "dtype": dtype, "array": str(i)} for i, dtype in enumerate(("float32", "wide"))],
    [{"path": [["key", str(i)]], "dtype": dtype, "array": str(i)} for i, dtype in enumerate(("float32", "wide"))],
    [{"path": [["key", str(i)]], "dtype": dtype, "array": str(i)} for i, dtype in enumerate(("float32", "int32"))],
    [{"path": [["index", i * 10**9]], "dtype": "float32", "array": str(i)} for i in range(2)],
    [{"path": [["index", bool(i)]], "dtype": "float32", "array": str(i)} for i in range(2)],
    [{"path": [["call", i]], "dtype": "float32", "array": str(i)} for i in range(2)],
    [{"path": [["key", [i]]], "dtype": "float32", "array": str(i)} for i in range(2)],
    [{"path": [["key", "a"]] * (i + 1), "dtype": "float32", "array": str(i)} for i in range(2)],
    [{"path": [["key", "a"]] * (2 - i), "dtype": "float32", "array": str(i)} for i in range(2)],
    [{"path": [["key", "a"]] * i, "dtype": "float32", "array": str(i)} for i in range(2)],
    [{"path": [["key", "a"], ["index", 0]][i:i + 1], "dtype": "float32", "array": str(i)} for i in range(2)],
)  # fmt: skip


@pytest.mark.parametrize("leaves", DAMAGED, ids=range(len(DAMAGED)))
def test_places_that_no_structure_has_are_refused(leaves):
    tensors = {"0": np.ones(2, np.float32), "1": np.zeros(2, np.float32)}
    with pytest.raises(InputError, match="parameters of the model"):
        network_model.rebuilt(leaves, tensors)


def test_all_iterates_of_a_network_are_stored_but_do_not_predict(tmp_path):
    run = replace(NETWORK, release="all")
    model = li.train(run, (X, Y), model=FIRST, loss=loss, epsilon=8.0)
    found = li.load(model.save(tmp_path / "m"))
    assert found.params["in"].shape == (run.steps, 3, D)
    remedy = r"jax.tree.map\(lambda a: a\[step - 1\], model.params\)"
    with pytest.raises(
        InputError, match=f"release must be 'last'.* one of the iterates .*{remedy}"
    ):
        found.predict(X, forward)
    last = jax.tree.map(lambda a: a[run.steps - 1], found.params)
    assert forward(last, X[0]).shape == forward(FIRST, X[0]).shape


def forged(folder, **edits):
    """Entries of model.json changed by somebody who also writes fitting hashes."""
    model = json.loads((folder / "model.json").read_text())
    model.update(edits)
    text = json.dumps(model).encode()
    (folder / "model.json").write_bytes(text)
    body = json.loads((folder / "certificate.json").read_text())
    body["model_sha256"] = sha256(text)
    body["content_sha256"] = content_hash(body)
    (folder / "certificate.json").write_text(json.dumps(body))


@pytest.mark.parametrize(
    "edits, word",
    [
        ({"kind": "another"}, "known kind"),
        ({"kind": ["linear"]}, "known kind"),
        ({"kind": "posterior-sample"}, "about a problem"),
        ({"kind": "network"}, "parameters of the model"),
        ({"format": 1}, "format 3"),
        ({"run": LOGISTIC.to_dict()}, "describes another run"),
        ({"run": None}, "describes another run"),
        ({"answers": {"labels": ["a", "b", "c"]}}, "one label for each"),
        ({"answers": {"labels": ["a", ["b"]]}}, "answers"),
        ({"answers": {"range": [1, 0]}}, "answers"),
        ({"answers": 3}, "answers"),
        ({"schema": {"columns": 3}}, "columns"),
        ({"schema": []}, "schema"),
        ({"schema": {"columns": {}, "classes": "ab"}}, "classes"),
    ],
)
def test_a_folder_that_does_not_fit_together_is_not_loaded(linear, tmp_path, edits, word):
    where = linear.save(tmp_path / "m")
    forged(where, **edits)
    with pytest.raises(InputError, match=word) as caught:
        li.load(where)
    assert "\n" not in str(caught.value)
    if edits == {"run": None}:
        with pytest.raises(InputError, match=r"model\.schema\.json"):
            li.verify(where)
    elif "another run" in word:
        assert any(word in problem for problem in li.verify(where).problems)


@pytest.mark.parametrize(
    "name, change",
    [
        (
            "certificate.json",
            lambda text: text.replace(b'"epsilon":', b'"epsilon": 0.01, "epsilon":', 1),
        ),
        ("model.json", lambda text: text.replace(b'"kind"', b'"kind": "network", "kind"', 1)),
        ("model.json", lambda text: text.replace(b'"format": 3', b'"format": NaN', 1)),
        ("model.json", lambda text: b"[" * 100_000 + b"]" * 100_000),
        ("model.json", lambda text: b"[]"),
        ("certificate.json", lambda text: b"\xff" + text),
        ("certificate.json", lambda text: text.replace(b'"run":', b'"problem": {}, "run":', 1)),
        ("certificate.json", lambda text: text.replace(b'"run":', b'"ran":', 1)),
    ],
    ids=range(8),
)
def test_json_of_two_meanings_is_refused_by_load_and_verify(linear, tmp_path, name, change):
    where = linear.save(tmp_path / "m")
    text = (where / name).read_bytes()
    assert change(text) != text
    (where / name).write_bytes(change(text))
    for call in (li.load, li.verify):
        with pytest.raises(InputError) as caught:
            call(where)
        assert "\n" not in str(caught.value)


def test_missing_and_foreign_files(linear, tmp_path):
    where = linear.save(tmp_path / "m")
    for name in ("certificate.json", "model.json", "weights.safetensors"):
        copy = shutil.copytree(where, tmp_path / name)
        (copy / name).unlink()
        with pytest.raises(InputError, match=f"misses the file {name}"):
            li.load(copy)
    weights = b"not tensors at all"
    (where / "weights.safetensors").write_bytes(weights)
    with pytest.raises(InputError, match="not the file that was certified"):
        li.load(where)
    body = json.loads((where / "certificate.json").read_text()) | {
        "weights_sha256": sha256(weights)
    }
    (where / "certificate.json").write_text(
        json.dumps(body | {"content_sha256": content_hash(body)})
    )
    with pytest.raises(InputError, match="safetensors"):
        li.load(where)
    for path in (tmp_path / "none", 3, None):
        with pytest.raises(InputError):
            li.load(path)
        with pytest.raises(InputError):
            li.verify(path)


def test_a_loaded_certificate_is_derived_again(linear, tmp_path):
    """A forged number with fitting hashes is loaded, because nothing relies on it, and refused when
    it is asked for."""
    where = linear.save(tmp_path / "m")
    body = json.loads((where / "certificate.json").read_text()) | {"epsilon": 0.01}
    (where / "certificate.json").write_text(
        json.dumps(body | {"content_sha256": content_hash(body)})
    )
    found = li.load(where)
    with pytest.raises(InputError, match="does not hold"):
        _ = found.certificate
    assert li.verify(where).problems == (
        "epsilon is not what follows from the run",
        "certificate.json is not the file that manifest.json lists",
    )


def test_verify_says_what_a_certificate_is_conditional_on(tmp_path):
    facts = li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0)
    run = replace(NETWORK, clip=None, loss=li.KnownConstants(facts), noise=li.GradientNoise(1.0))
    model = li.train(run, (X, Y), model=FIRST, loss=loss, min_evidence=li.Evidence.ASSUMED)
    found = li.verify(model.save(tmp_path / "m"))
    assert (
        found.condition.startswith("conditional on: ")
        and "strong given by the caller (0)" in found.condition
    )
    assert found.holds and "lipschitz given by the caller" in found.condition
    plain = li.train(NETWORK, (X, Y), model=FIRST, loss=loss, epsilon=1.0)
    assert li.verify(plain.save(tmp_path / "n")).condition == ""


def test_a_bar_shows_steps_on_standard_error(capsys):
    run = li.Run(n=12, steps=4, step_size=0.1, noise=li.GradientNoise(0.5), loss=li.Logistic())
    x, y = np.eye(12), np.arange(12) % 2
    li.train(run, (x, y), seed=5, progress=True)
    shown = capsys.readouterr()
    assert "training" in shown.err and "4/4" in shown.err and not shown.out
    li.train(run, (x, y), seed=5, progress=False)
    assert not capsys.readouterr().err
