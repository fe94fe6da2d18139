"""A module as a classifier of scikit-learn: protocol, pipelines, refusals."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold, cross_val_score
from sklearn.multiclass import OneVsOneClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import lastiterate as li
from lastiterate.errors import InputError, RepeatedFitWarning
from lastiterate.estimators.pipelines import UnpaidStepWarning
from lastiterate.release import composition_reminder
from lastiterate.torch import DPNetClassifier, Grouped

RNG = np.random.default_rng(0)
N = 120
X = RNG.normal(size=(N, 2))
Y = np.where(X[:, 0] > 0, "yes", "no")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())


def made(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(shape)), classes))


def classifier(**given):
    return DPNetClassifier(
        made, **{"epsilon": 50.0, "classes": ["no", "yes"], "batch_size": 40, "epochs": 5, **given}
    )


def test_it_learns_and_answers_as_scikit_learn_asks():
    net = classifier(random_state=1).fit(X, Y)
    assert (
        net.score(X, Y) > 0.8 and set(net.predict(X)) <= {"no", "yes"} and net.n_features_in_ == 2
    )
    proba = net.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    assert ((net.decision_function(X) > 0) == (net.predict(X) == "yes")).all()
    assert net.certificate_.epsilon(
        net.delta_
    ) <= 50.0 and net.run_.batching == li.RandomAllocation(40)
    assert net.run_.steps == 15 and net.run_.n == N
    again = clone(net)
    assert again.get_params()["epsilon"] == 50.0 and not hasattr(again, "fitted_")


def test_an_optimizer_is_refused_in_a_sentence():
    with pytest.raises(InputError, match=r"by plain steps of step_size; lastiterate.train.* takes"):
        classifier(optimizer=torch.optim.Adam)
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        classifier(epoch=3)
    assert "unsupported" not in classifier().get_params()


def test_a_refused_fit_leaves_the_classifier_as_it_was():
    net = classifier(random_state=1).fit(X, Y)
    before, places = net.predict(X), net.predict_proba(X)
    with pytest.raises(InputError, match="epsilon"):
        net.set_params(epsilon=-1.0, classes=["a", "b", "no", "yes"]).fit(np.tile(X, 2), Y)
    assert (
        (net.predict(X) == before).all()
        and (net.predict_proba(X) == places).all()
        and net.n_features_in_ == 2
    )


def test_three_classes_of_images_in_a_pipeline(tmp_path):
    images, labels = RNG.normal(size=(60, 1, 4, 4)), np.arange(60) % 3
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3)
    )
    net = classifier(classes=None, epochs=1)
    net.set_params(module=Grouped(module, {"2": 1.0}))
    with pytest.warns(UserWarning, match="labels found in y are treated as public"):
        pipeline = make_pipeline(FunctionTransformer(np.tanh), net).fit(images, labels)
    assert pipeline.predict_proba(images).shape == (60, 3) and pipeline[-1].decision_function(
        images
    ).shape == (60, 3)
    assert "set of labels" in " ".join(net.certificate_.caveats)
    assert torch.equal(net.module_[0].weight, module[0].weight) and not torch.equal(
        net.module_[2].weight, module[2].weight
    )
    assert li.verify(net.fitted_.save(tmp_path / "m")).holds


def test_cross_validation_says_that_fits_compose():
    with pytest.warns(RepeatedFitWarning), warnings.catch_warnings():
        warnings.filterwarnings("default", category=RepeatedFitWarning)
        cross_val_score(classifier(epochs=1), X, Y, cv=2)


def test_what_draws_records_around_a_net_is_refused_and_what_learns_from_it_is_named():
    for refused in (
        BaggingClassifier(classifier(epochs=1), 2),
        OneVsOneClassifier(classifier(epochs=1)),
    ):
        with pytest.raises(InputError, match=r"^(estimator|random_state) must "):
            refused.fit(X, Y)
    net = FrozenEstimator(classifier(epochs=1).fit(X, Y))
    with pytest.warns(UnpaidStepWarning, match="does not cover CalibratedClassifierCV"):
        CalibratedClassifierCV(net, cv=KFold(2)).fit(X, Y)


def test_bad_input():
    run = li.Run(n=5, steps=2, step_size=0.1, clip=1.0)
    for given, said in (
        ({"classes": ["yes"]}, "public classes"),
        ({"module": 3}, "function that makes one"),
        ({"run": run}, "n = 5"),
        ({"module": torch.nn.Linear(2, 1)}, "one output for each of 2"),
        ({"epsilon": -1.0}, "epsilon"),
    ):
        with pytest.raises(InputError, match=said):
            classifier().set_params(**given).fit(X, Y)
    with pytest.raises(InputError, match="sample_weight is not supported"):
        classifier().fit(X, Y, sample_weight=np.ones(N))


@pytest.mark.parametrize(
    "bad, word", [(np.ma.masked_array(X, X > 1), "mask"), (X + 1j, "imaginary")]
)
def test_masks_and_imaginary_parts_are_refused(bad, word):
    net = DPNetClassifier(made, classes=["no", "yes"], epochs=1)
    with pytest.raises(InputError, match=word):
        net.fit(bad, Y)
    net.fit(X, Y)
    for ask in (net.predict, net.predict_proba, net.fitted_.predict):
        with pytest.raises(InputError, match=word):
            ask(bad)


def test_a_class_is_no_module_and_a_label_is_named_once():
    with pytest.raises(InputError, match="got 'the class Linear'; give an instance"):
        classifier().set_params(module=torch.nn.Linear).fit(X, Y)
    with pytest.raises(InputError, match="classes must name every label once"):
        classifier(classes=["no", "yes", "yes"]).fit(X, Y)


def test_arrays_of_another_kind_are_refused_in_our_words():
    for rows, answers, said in (
        ({"a": X[:, 0]}, Y, "X must be rows of numbers .* got 'dict'; give an array of records"),
        (X, X[:, 0], r"y must hold classes .*, or train a regression with lastiterate.train"),
        (X, Y[:-1], "as many records in X as in y, got 120 and 119"),
    ):
        with pytest.raises(InputError, match=said):
            classifier().fit(rows, answers)
