"""Natural mistakes in the arguments of public functions are one sentence each, before anything is
charged."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.data import stream
from lastiterate.estimators import DPLogisticRegression

N = 12
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N) % 2
RUN = li.Run(n=N, steps=2, step_size=0.3, noise=li.GradientNoise(0.5), loss=li.Logistic())
NETWORK = li.Run(n=N, steps=2, step_size=0.3, noise=li.GradientNoise(0.5), clip=1.0)


def sentence(said, called):
    with pytest.raises(li.InputError, match=said) as caught:
        called()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"progress": "yes"}, "progress must be"),
        ({"min_evidence": "enforced"}, "min_evidence must be an Evidence"),
        ({"microbatch": "32"}, "microbatch must be"),
        ({"microbatch": True}, "microbatch must be"),
        ({"scratch": 3}, "scratch must be a path"),
        ({"ledger": 3}, "ledger must be a path"),
        ({"checkpoint": 3}, "checkpoint must be a path"),
        ({"epsilon": "1"}, "epsilon must be a number"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"devices": "2"}, "devices must be"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"secure_noise": "no"}, "secure_noise must be True or False"),
    ],
)
def test_arguments_of_train(given, said):
    sentence(said, lambda: li.train(RUN, (X, Y), **given))


@pytest.mark.parametrize(
    "epsilon", [np.int64(2), np.float32(2.0), np.float64(2.0)], ids=lambda value: value.dtype.name
)
def test_numbers_of_numpy_are_numbers(epsilon):
    run = li.Run(n=N, steps=2, step_size=0.3, loss=li.Logistic())
    model = li.train(run, (X, Y), epsilon=epsilon, delta=1e-5, seed=np.int64(3))
    assert 1.9 < model.certificate.epsilon(1e-5) <= 2


def test_generated_records_are_a_number_and_a_function_that_makes_tuples():
    sentence(
        "n must be an integer between 1",
        lambda: li.data.Generated(300.0, lambda first, count: (X, Y)),
    )
    sentence(
        "n must be an integer between 1",
        lambda: li.data.Generated(0, lambda first, count: (X, Y)),
    )
    sentence("make must be a function of the first", lambda: li.data.Generated(N, None))
    sentence(
        "make must return a tuple of arrays of 12 records, got 'NoneType'",
        lambda: list(li.data.Generated(N, lambda first, count: None).pieces(N)),
    )


def test_a_checkpoint_key_in_the_place_of_its_file_is_not_shown(tmp_path):
    with pytest.raises(
        li.InputError, match="checkpoint key must be a readable text file; write"
    ) as caught:
        li.train(RUN, (X, Y), checkpoint=tmp_path / "c", checkpoint_key="5e" * 32)
    assert "5e5e" not in str(caught.value)


def test_a_checkpoint_is_a_file_in_a_folder_that_exists(tmp_path):
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    for where, said in (
        (tmp_path, "checkpoint must be a file"),
        (tmp_path / "no" / "c", "a folder that exists"),
    ):
        sentence(
            said, lambda where=where: li.train(RUN, (X, Y), checkpoint=where, checkpoint_key=key)
        )
    sentence(
        "not a folder",
        lambda: li.train(RUN, (X, Y), checkpoint=tmp_path / "c", checkpoint_key=tmp_path),
    )
    sentence(
        "checkpoint_every must be a number",
        lambda: li.train(
            RUN, (X, Y), checkpoint=tmp_path / "c", checkpoint_key=key, checkpoint_every="60"
        ),
    )


@pytest.mark.parametrize("classes", ["a,b", "ab", b"ab", 2, [[0, 1]]])
def test_classes_are_a_sequence(classes):
    model = DPLogisticRegression(row_norm=1.0, classes=classes)
    sentence("classes must be a sequence of labels", lambda: model.fit(X, Y))


def test_progress_of_an_estimator_is_a_function():
    model = DPLogisticRegression(row_norm=1.0, classes=[0, 1])
    sentence("progress must be a function", lambda: model.fit(X, Y, progress=True))


def test_arrays_are_no_stream():
    sentence("path must be a file", lambda: stream((X, Y)))


@pytest.mark.parametrize(
    "x, forward, said",
    [
        (X, "forward", "forward must be a function"),
        (X[:, :2], None, "records that the forward pass takes"),
        (None, None, "x must be arrays"),
        ((X, X[:3]), None, "x must be arrays"),
        ("text", None, "x must be arrays"),
        ((X, Y), None, r"of records \(x, y\) give x"),
        ({"x": [object()]}, None, "x must be arrays"),
        (
            li.data.Generated(N, lambda first, count: (X[first : first + count],)),
            None,
            "x must be arrays",
        ),
    ],
)
def test_predictions_of_networks(x, forward, said):
    model = li.train(
        NETWORK, (X, Y), model=np.zeros(3), loss=lambda p, x, y: (p @ x - y) ** 2, seed=0
    )
    assert model.predict(X.tolist(), lambda p, x: p @ x).shape == (N,)
    assert model.predict((X, Y), lambda p, record: p @ record[0]).shape == (N,), (
        "a structure is given as one"
    )
    sentence(said, lambda: model.predict(x, (lambda p, x: p @ x) if forward is None else forward))
