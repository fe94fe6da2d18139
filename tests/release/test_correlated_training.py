"""A user's few lines with correlated noise: calibrated, executed, certified and verified for every
kind of model."""

import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.explain import explain_gain

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(0, 2, 60)
RUN = dict(
    n=60,
    steps=12,
    step_size=0.2,
    clip=1.0,
    noise=li.Correlated(1.0, 4, 0.6),
    batching=li.Cyclic(20),
)


def linear(run, **more):
    return li.train(li.Run(**RUN, loss=li.Logistic()), (X, Y), **more)


def network(run, **more):
    first = {"a": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}
    return li.train(
        run,
        (X, Y),
        model=first,
        loss=lambda p, x, y: (jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2,
        **more,
    )


def module(run, **more):
    torch = pytest.importorskip("torch")
    return li.train(
        run, (X, Y), model=torch.nn.Linear(4, 2), loss=torch.nn.CrossEntropyLoss(), **more
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("trained", [linear, network, module])
def test_a_budget_is_kept_and_the_certificate_verified(trained, tmp_path):
    model = trained(li.Run(**RUN), epsilon=2.0, delta=1e-4, seed=1)
    certificate = model.certificate
    assert (
        certificate.epsilon(1e-4) <= 2.0 and certificate.best(1e-4).theorem.name == "correlated-gdp"
    )
    assert type(certificate.subject.run.noise) is li.Correlated and certificate.verify()
    model.save(tmp_path / "model")
    assert li.verify(tmp_path / "model")


@pytest.mark.parametrize("trained", [linear, network, module])
def test_exact_noise_is_refused(trained):
    with pytest.raises(
        (li.InputError, li.NotCertified), match=r"take noise back|not an integer number"
    ):
        trained(li.Run(**RUN), epsilon=2.0, delta=1e-4, secure_noise=True)


@pytest.mark.parametrize("batching", [li.FullBatch(), li.Cyclic(20), li.Permuted(20)], ids=str)
def test_no_secret_is_said_to_lower_the_price(batching):
    found = li.calibrate(
        li.Run(**RUN | {"batching": batching}, loss=li.Logistic()), epsilon=2.0, delta=1e-4
    )
    assert explain_gain(li.account(found.run), 1e-4) == (
        "correlated-gdp charges epsilon 2: every step counts in full, as if all iterates were "
        "published; certified is the release of the final model alone"
    )


def test_sampled_batches_are_not_trained():
    run = li.Run(**RUN | {"batching": li.Poisson(0.3)}, loss=li.Logistic())
    with pytest.raises(li.NotCertified, match="same place of every pass"):
        li.train(run, (X, Y), epsilon=2.0, delta=1e-4)
