"""Old public names work, warn, and mean the new ones; files keep their keys and tags."""

import json

import numpy as np
import pytest

import lastiterate as li

RENAMED = {
    "Abstract": "KnownConstants",
    "Descent": "NoisySGD",
    "PerturbedMinimiser": "ObjectivePerturbation",
    "RecordDraws": "RecordAugmentation",
    "kept_rows": "select_unit_rows",
    "Fixed": "FixedStart",
    "Steps": "StepSchedule",
}


@pytest.mark.parametrize("old", RENAMED)
def test_a_renamed_name_warns_and_is_the_new_one(old):
    with pytest.warns(DeprecationWarning, match=f"{old} is called {RENAMED[old]}"):
        assert getattr(li, old) is getattr(li, RENAMED[old])
    assert old not in dir(li) and old not in li.__all__


def test_a_renamed_function_of_posterior_samples_warns():
    with pytest.warns(DeprecationWarning, match="clipped_sgld_run is called make_clipped_sgld_run"):
        assert li.bayes.clipped_sgld_run is li.bayes.make_clipped_sgld_run


def test_old_arguments_and_attributes_of_a_run():
    usual = {"n": 9, "steps": 1, "step_size": 0.5, "loss": li.Logistic()}
    with pytest.warns(DeprecationWarning, match="called preprocessing"):
        old = li.Run(**usual, prelude=(li.UnitRows(),))
    assert old == li.Run(**usual, preprocessing=(li.UnitRows(),))
    with pytest.warns(DeprecationWarning, match="Run.prelude is called preprocessing"):
        assert old.prelude == (li.UnitRows(),)
    draws = li.RecordAugmentation("shake", 2)
    network = {**usual, "loss": li.KnownConstants(), "clip": 1.0}
    with pytest.warns(DeprecationWarning, match="called augmentation"):
        assert li.Run(**network, record_draws=draws).augmentation == draws
    with pytest.warns(DeprecationWarning, match="called optimizer"):
        old = li.Run(**usual, update=li.HeavyBall(0.5))
    assert old == li.Run(**usual, optimizer=li.HeavyBall(0.5))
    with pytest.warns(DeprecationWarning, match="Run.update is called optimizer"):
        assert old.update == li.HeavyBall(0.5)
    with pytest.warns(DeprecationWarning, match="called probability_calibration"):
        old = li.Run(**usual, calibration=li.AssumedSlope(0.5))
    assert old == li.Run(**usual, probability_calibration=li.AssumedSlope(0.5))
    with pytest.warns(DeprecationWarning, match="Run.calibration is called probability_"):
        assert old.calibration == li.AssumedSlope(0.5)
    with pytest.raises(li.InputError, match="prelude"):
        li.Run(**usual, prelude=(li.UnitRows(),), preprocessing=(li.SquareRoots(),))


def test_evidence_had_another_name():
    run = li.Run(n=100, steps=9, step_size=0.5, loss=li.Logistic(), noise=li.NoiseMultiplier(9.0))
    with pytest.warns(DeprecationWarning, match=r"account\(at_least=\) is called min_evidence"):
        old = li.account(run, at_least=li.Evidence.ASSUMED)
    assert old == li.account(run, min_evidence=li.Evidence.ASSUMED) != li.account(run)
    with pytest.warns(DeprecationWarning, match="at_least is called min_evidence"):
        assert old.at_least is li.Evidence.ASSUMED
    assert old.to_dict(1e-5)["at_least"] == "ASSUMED"


def test_files_keep_their_keys_and_types():
    perturbed = li.Run(
        n=99,
        steps=50,
        step_size=0.5,
        loss=li.Logistic(ridge=0.1),
        method=li.ObjectivePerturbation(3),
        noise=li.NoiseMultiplier(3.0),
    )
    network = li.Run(
        n=9,
        steps=1,
        step_size=0.5,
        loss=li.KnownConstants(),
        clip=1.0,
        augmentation=li.RecordAugmentation("shake", 2),
    )
    for run in (perturbed, network):
        assert li.Run.from_json(run.to_json()) == run
    body = json.loads(network.to_json())
    assert body["loss"]["type"] == "Abstract" and body["method"]["type"] == "Descent"
    assert body["record_draws"]["type"] == "RecordDraws" and body["prelude"] == []
    assert body["update"] is None and body["calibration"] is None
    assert body["start"]["type"] == "Fixed"
    listed = li.Run(n=9, steps=2, step_size=[0.2, 0.1])
    assert listed.to_dict()["step_size"]["type"] == "Steps"
    assert li.Run.from_json(listed.to_json()) == listed
    assert json.loads(perturbed.to_json())["method"]["type"] == "PerturbedMinimiser"
    with pytest.raises(li.InputError, match="unknown"):
        li.Run.from_dict(body | {"loss": {"type": "KnownConstants"}})
    with pytest.raises(li.InputError, match="unknown field"):
        li.Run.from_dict(body | {"preprocessing": []})
    stated = li.account(perturbed).to_dict(1e-4)["stated"]["noise"]["kind"]
    assert stated == "PerturbedMinimiser"


def test_epochs_were_called_passes():
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = (x[:, 0] > 0).astype(int)
    run = li.Run(n=200, steps=10, step_size=0.5, loss=li.Logistic(row_norm=2.0, ridge=0.1))
    model = li.train(run, (x, y), epsilon=1.0, delta=1e-4, seed=1)
    asked = {"remove": [3], "epsilon": 0.5, "delta": 1e-4, "seed": 1}
    with pytest.warns(DeprecationWarning, match=r"forget\(passes=\) is called epochs"):
        old = li.forget(model, x, y, passes=40, **asked)
    new = li.forget(model, x, y, epochs=40, **asked)
    assert np.array_equal(old.predict(x), new.predict(x))


def test_the_network_classifier_counts_epochs():
    pytest.importorskip("torch")
    import torch
    from sklearn.base import clone

    from lastiterate.torch import DPNetClassifier

    with pytest.warns(DeprecationWarning, match="called epochs"):
        net = DPNetClassifier(torch.nn.Linear(3, 2), passes=4)
    assert net.get_params()["epochs"] == 4 and "passes" not in net.get_params()
    assert clone(net).epochs == 4
    with pytest.warns(DeprecationWarning, match="called epochs"):
        assert net.passes == 4


def test_old_methods_warn_and_call_the_new_ones():
    run = li.Run(n=100, steps=9, step_size=0.5, loss=li.Logistic())
    with pytest.warns(DeprecationWarning, match="Run.shortened is called truncate"):
        assert run.shortened(4) == run.truncate(4)
    written = li.account(li.Run(**vars_of(run), noise=li.NoiseMultiplier(5.0))).to_dict(1e-5)
    with pytest.warns(DeprecationWarning, match="Certificate.derived is called from_stored"):
        assert li.Certificate.derived(written).run == li.Certificate.from_stored(written).run


def vars_of(run):
    return {"n": run.n, "steps": run.steps, "step_size": 0.5, "loss": run.loss}
