"""Every estimator of scikit-learn that fits others: refused, told, or known to fit ours once."""

import inspect
import json
import re
import sys
import warnings
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_halving_search_cv, enable_iterative_imputer  # noqa: F401
from sklearn.feature_selection import RFE, RFECV, SelectFromModel, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer
from sklearn.linear_model import RANSACRegressor
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    KFold,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.discovery import all_estimators

from lastiterate.errors import InputError, RepeatedFitWarning
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.estimators.pipelines import UnpaidStepWarning
from lastiterate.ledger.filters import GaussianFilter
from lastiterate.ledger.ledger import Ledger
from lastiterate.release import composition_reminder
from lastiterate.release.composition_reminder import Reminder

RANDOM = np.random.default_rng(5)
X = RANDOM.random((60, 3))
Y = (X[:, 0] > 0.5).astype(int)
THREE = np.digitize(X[:, 0], [0.3, 0.6])
TWO = np.stack([Y, 1 - Y], 1)
HOLED = np.where(RANDOM.random(X.shape) < 0.2, np.nan, X)
LOGISTIC = DPLogisticRegression(epsilon=5.0, row_norm=2.0, classes=[0, 1], algorithm="noisy-gd")
SIGNED = clone(LOGISTIC).set_params(classes=[-1, 1])
RIDGE = DPHuberRidge(epsilon=5.0, row_norm=2.0, target_range=(-1.0, 1.0), algorithm="noisy-gd")


def weights(fitted):
    return np.abs(fitted.model_.weights[0, :-1])


GRID, CUT = {"row_norm": [1.0, 2.0]}, KFold(2)

REFUSED, REPEATED, ONCE, LEARNS, NEVER = "refused", "repeated", "once", "learns", "never"
TABLE = {
    "AdaBoostClassifier": (REFUSED, lambda: AdaBoostClassifier(LOGISTIC, n_estimators=2).fit(X, Y)),
    "AdaBoostRegressor": (REFUSED, lambda: AdaBoostRegressor(RIDGE, n_estimators=2).fit(X, Y)),
    "BaggingClassifier": (REFUSED, lambda: BaggingClassifier(LOGISTIC, 2).fit(X, Y)),
    "BaggingRegressor": (REFUSED, lambda: BaggingRegressor(RIDGE, 2, bootstrap=False).fit(X, Y)),
    "CalibratedClassifierCV": (LEARNS, lambda: CalibratedClassifierCV(LOGISTIC, cv=CUT).fit(X, Y)),
    "ClassifierChain": (REPEATED, lambda: ClassifierChain(LOGISTIC).fit(X, TWO)),
    "ColumnTransformer": (NEVER, None),
    "FeatureUnion": (NEVER, None),
    "FixedThresholdClassifier": (
        ONCE,
        lambda: FixedThresholdClassifier(LOGISTIC, threshold=0.4).fit(X, Y),
    ),
    "FrozenEstimator": (ONCE, lambda: FrozenEstimator(clone(LOGISTIC).fit(X, Y)).fit(X, Y)),
    "GridSearchCV": (REPEATED, lambda: GridSearchCV(RIDGE, GRID, cv=CUT).fit(X, Y)),
    "HalvingGridSearchCV": (
        REPEATED,
        lambda: HalvingGridSearchCV(RIDGE, GRID, cv=CUT, random_state=0).fit(X, Y),
    ),
    "HalvingRandomSearchCV": (
        REPEATED,
        lambda: HalvingRandomSearchCV(RIDGE, GRID, cv=CUT, n_candidates=2, random_state=0).fit(
            X, Y
        ),
    ),
    "IterativeImputer": (REFUSED, lambda: IterativeImputer(RIDGE, max_iter=1).fit(HOLED)),
    "MultiOutputClassifier": (REPEATED, lambda: MultiOutputClassifier(LOGISTIC).fit(X, TWO)),
    "MultiOutputRegressor": (REPEATED, lambda: MultiOutputRegressor(RIDGE).fit(X, TWO)),
    "OneVsOneClassifier": (REFUSED, lambda: OneVsOneClassifier(LOGISTIC).fit(X, THREE)),
    "OneVsRestClassifier": (REPEATED, lambda: OneVsRestClassifier(LOGISTIC).fit(X, THREE)),
    "OutputCodeClassifier": (
        REPEATED,
        lambda: OutputCodeClassifier(SIGNED, random_state=0).fit(X, THREE),
    ),
    "Pipeline": (ONCE, lambda: Pipeline([("last", LOGISTIC)]).fit(X, Y)),
    "RANSACRegressor": (REFUSED, lambda: RANSACRegressor(RIDGE, min_samples=20).fit(X, Y)),
    "RFE": (
        REPEATED,
        lambda: RFE(RIDGE, n_features_to_select=1, importance_getter=weights).fit(X, Y),
    ),
    "RFECV": (REPEATED, lambda: RFECV(RIDGE, cv=CUT, importance_getter=weights).fit(X, Y)),
    "RandomizedSearchCV": (
        REPEATED,
        lambda: RandomizedSearchCV(RIDGE, GRID, n_iter=2, cv=CUT).fit(X, Y),
    ),
    "RegressorChain": (REPEATED, lambda: RegressorChain(RIDGE).fit(X, TWO)),
    "SelectFromModel": (REPEATED, lambda: SelectFromModel(RIDGE).fit(X, Y)),
    "SelfTrainingClassifier": (
        REFUSED,
        lambda: SelfTrainingClassifier(LOGISTIC).fit(X, np.where(Y, 1, -1)),
    ),
    "SequentialFeatureSelector": (
        REPEATED,
        lambda: SequentialFeatureSelector(RIDGE, n_features_to_select=1, cv=CUT).fit(X, Y),
    ),
    "StackingClassifier": (
        LEARNS,
        lambda: StackingClassifier([("one", LOGISTIC)], cv=CUT).fit(X, Y),
    ),
    "StackingRegressor": (LEARNS, lambda: StackingRegressor([("one", RIDGE)], cv=CUT).fit(X, Y)),
    "TransformedTargetRegressor": (ONCE, lambda: TransformedTargetRegressor(RIDGE).fit(X, Y)),
    "TunedThresholdClassifierCV": (
        LEARNS,
        lambda: TunedThresholdClassifierCV(LOGISTIC, cv=CUT).fit(X, Y),
    ),
    "VotingClassifier": (REPEATED, lambda: VotingClassifier([("one", LOGISTIC)]).fit(X, Y)),
    "VotingRegressor": (REPEATED, lambda: VotingRegressor([("one", RIDGE)]).fit(X, Y)),
}
"""What happens to every one of them; ``NEVER``: it holds transformers, which ours are not."""
TREES = {
    "IsolationForest",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "RandomTreesEmbedding",
    "ExtraTreesClassifier",
    "ExtraTreesRegressor",
    "GradientBoostingClassifier",
    "GradientBoostingRegressor",
}
"""Ensembles of trees that they make themselves."""
HOLDS = {
    "estimator",
    "base_estimator",
    "estimators",
    "regressor",
    "final_estimator",
    "transformers",
    "steps",
    "transformer_list",
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has not fitted yet."""
    monkeypatch.setattr(composition_reminder, "REMINDER", Reminder())


def told(call):
    """Kinds of the warnings of ours that a call gives, and their text."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return {
        w.category: str(w.message)
        for w in found
        if w.category in (RepeatedFitWarning, UnpaidStepWarning)
    }


def test_the_table_knows_every_estimator_that_fits_others():
    known = {
        name
        for name, kind in all_estimators()
        if issubclass(kind, MetaEstimatorMixin)
        or HOLDS & set(inspect.signature(kind.__init__).parameters)
    }
    assert (
        known | {"IterativeImputer", "HalvingGridSearchCV", "HalvingRandomSearchCV"}
        == set(TABLE) | TREES
    )


@pytest.mark.parametrize("name", [name for name, (kind, _) in TABLE.items() if kind == REFUSED])
def test_what_resamples_weights_chooses_or_seeds_is_refused(name):
    with pytest.raises(
        ValueError, match=r"^(estimator|random_state) must |does.*n.t support sample_weight"
    ) as refused:
        TABLE[name][1]()
    assert name in str(refused.value) or not isinstance(refused.value, InputError)


@pytest.mark.parametrize(
    "name", [name for name, (kind, _) in TABLE.items() if kind in (REPEATED, LEARNS, ONCE)]
)
def test_what_fits_again_or_learns_is_told(name):
    kind, call = TABLE[name]
    wanted = {
        REPEATED: {RepeatedFitWarning},
        LEARNS: {RepeatedFitWarning, UnpaidStepWarning},
        ONCE: set(),
    }[kind]
    assert set(told(call)) == wanted


def test_workers_are_recognised_by_what_they_execute():
    """A worker has scikit-learn's function on its stack, and no ensemble: here threads, and
    processes likewise."""
    with parallel_config(backend="threading"):
        for refused in (
            OneVsOneClassifier(LOGISTIC, n_jobs=2),
            BaggingClassifier(LOGISTIC, 2, n_jobs=2),
        ):
            with pytest.raises(InputError):
                refused.fit(X, THREE if isinstance(refused, OneVsOneClassifier) else Y)
        assert UnpaidStepWarning in told(
            lambda: CalibratedClassifierCV(LOGISTIC, cv=CUT, n_jobs=2).fit(X, Y)
        )


def test_a_refused_fit_has_not_charged_anything(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.add("people", unit="record", adjacency="zero-out", filter=GaussianFilter(9.0))
    charged = clone(LOGISTIC).set_params(ledger=ledger, dataset="people")
    with pytest.raises(InputError):
        OneVsOneClassifier(charged).fit(X, THREE)
    assert not ledger.total("people").releases


def test_a_first_estimator_of_gradient_boosting_is_not_known():
    with pytest.raises(
        InputError, match="GradientBoostingClassifier is not known to hand every record on once"
    ):
        GradientBoostingClassifier(init=LOGISTIC, n_estimators=1).fit(X, Y)


def test_a_module_that_nobody_knows_is_refused():
    """As one that a later scikit-learn may bring."""
    new = ModuleType("sklearn.ensemble._new")
    exec("def fit(estimator, X, y):\n    return estimator.fit(X, y)", vars(new))
    with pytest.raises(
        InputError, match=r"sklearn.ensemble._new is not known to hand every record on once"
    ):
        new.fit(clone(LOGISTIC), X, Y)
    assert "sklearn.ensemble._new" not in sys.modules


def test_a_splitter_that_names_a_record_twice_is_refused():
    drawn = np.sort(RANDOM.integers(0, 60, 60))
    with pytest.raises(ValueError, match="names a record twice"):
        cross_val_score(RIDGE, X, Y, cv=[(drawn, np.arange(60))], error_score="raise")
    mask = np.arange(60) % 2 == 0
    assert set(
        told(
            lambda: cross_val_score(RIDGE, X, Y, cv=[(np.flatnonzero(mask), np.flatnonzero(~mask))])
        )
    ) == {RepeatedFitWarning}


def test_seeds_are_set_by_their_owner_alone():
    from sklearn.ensemble._base import _set_random_states

    search = DPSearchCV(RIDGE, GRID)
    for estimator in (clone(LOGISTIC), clone(RIDGE), search, make_pipeline(clone(RIDGE))):
        with pytest.raises(InputError, match="random_state must not be set by an ensemble"):
            _set_random_states(estimator, 3)
    assert clone(LOGISTIC).set_params(random_state=3).random_state == 3
    assert make_pipeline(clone(RIDGE)).set_params(dphuberridge__random_state=3)[0].random_state == 3
    search.set_params(estimator__row_norm=1.5, random_state=4)
    assert search.random_state == 4 and search.estimator.row_norm == 1.5


def test_what_learns_from_a_frozen_estimator_is_told():
    frozen = FrozenEstimator(clone(LOGISTIC).fit(X, Y))
    for learner, name in (
        (CalibratedClassifierCV(frozen, cv=CUT), "CalibratedClassifierCV"),
        (
            TunedThresholdClassifierCV(frozen, cv="prefit", refit=False),
            "TunedThresholdClassifierCV",
        ),
        (StackingClassifier([("one", frozen)], cv="prefit"), "StackingClassifier"),
    ):
        found = told(lambda learner=learner: learner.fit(X, Y))
        assert name in found[UnpaidStepWarning] and "not paid for" in found[UnpaidStepWarning]
        assert not told(lambda learner=learner: learner.predict(X)), (
            "predictions alone teach nobody"
        )
    assert not told(lambda: FixedThresholdClassifier(frozen).fit(X, Y).predict(X))


def test_a_learner_around_the_estimator_is_not_told_of_scaling():
    found = told(lambda: CalibratedClassifierCV(LOGISTIC, cv=CUT).fit(X, Y))
    assert "scaling" not in found[UnpaidStepWarning]


def test_another_library_s_wrapper_is_named_and_its_sampler_refused():
    class Wrapper(ClassifierMixin, BaseEstimator):
        def __init__(self, inner=LOGISTIC):
            self.inner = inner

        def fit(self, X, y):
            self.inner_ = clone(self.inner).fit(X, y)
            return self

    class Sampler(BaseEstimator):
        def fit_resample(self, X, y):
            return np.repeat(X, 2, 0), np.repeat(y, 2)

    class Sampled(BaseEstimator):
        def __init__(self, steps):
            self.steps = steps

        def fit(self, X, y):
            self.steps[-1][1].fit(*self.steps[0][1].fit_resample(X, y))

    found = told(lambda: Wrapper().fit(X, Y))
    assert (
        "Wrapper is fitting the estimator: the certificate holds only if"
        in found[UnpaidStepWarning]
    )
    with pytest.raises(InputError, match="Sampler draws or makes records"):
        Sampled([("more", Sampler()), ("last", clone(LOGISTIC))]).fit(X, Y)


RECODERS = {
    **{
        f'cross_val_predict(method="{method}")': lambda one, x, y, method=method: cross_val_predict(
            one, x, y, cv=2, method=method
        )
        for method in ("predict_proba", "predict_log_proba", "decision_function")
    },
    "VotingClassifier": lambda one, x, y: VotingClassifier([("one", one)]).fit(x, y),
    "StackingClassifier": lambda one, x, y: StackingClassifier([("one", one)], cv=2).fit(x, y),
    "OneVsRestClassifier": lambda one, x, y: OneVsRestClassifier(one).fit(x, y),
    "OutputCodeClassifier": lambda one, x, y: OutputCodeClassifier(one, random_state=1).fit(x, y),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("classes", [("no", "yes"), ("b", "a", "c"), (7, 5)])
@pytest.mark.parametrize("who", RECODERS)
@pytest.mark.parametrize("by_schema", [True, False])
def test_labels_that_scikit_learn_recoded_name_it_and_a_remedy_that_works(who, classes, by_schema):
    """It fits on 0 to k - 1 in place of the caller's labels, and the message says what to give."""
    x = np.random.default_rng(0).uniform(0, 1, (240, 1))
    y = np.array(classes)[(x[:, 0] * len(classes)).astype(int)]
    rule = {"kind": "number", "low": 0, "high": 1}
    facts = {"target": "y", "classes": list(classes), "columns": {"x": rule}}
    table, how = ({"x": x[:, 0]}, {"schema": facts}) if by_schema else (x, {"classes": classes})
    table = pd.DataFrame(table) if by_schema else table

    def estimator(**given):
        return DPLogisticRegression(epsilon=9, row_norm=1.0, algorithm="noisy-gd", **given)

    with pytest.raises(InputError) as refused:
        RECODERS[who](estimator(**how), table, y)
    said = str(refused.value)
    assert f"and {who} of scikit-learn hands them on as numbers from " in said
    listed, as_it_is = str(sorted(classes)), "and y as it is" in said
    assert as_it_is == (who in ("OneVsRestClassifier", "OutputCodeClassifier"))
    assert as_it_is or f"and y as np.searchsorted({listed}, y)." in said
    stated = re.search(r"classes ?= ?(\[.*?\]), and y", said)[1]
    if by_schema:
        assert f"give the estimator a copy of the schema with classes = {stated}" in said
        how = {"schema": facts | {"classes": json.loads(stated)}}
    else:
        how = {"classes": json.loads(stated)}
    RECODERS[who](estimator(**how), table, y if as_it_is else np.searchsorted(sorted(classes), y))


def test_a_label_that_is_none_is_not_blamed_on_scikit_learn():
    """Codes of another caller, and numbers beyond the codes, keep their own message."""
    x = np.linspace(0, 1, 40)[:, None]
    one = DPLogisticRegression(row_norm=1.0, classes=["no", "yes"])
    for fit in (one.fit, lambda x, y: cross_val_predict(one, x, y, cv=2)):
        with pytest.raises(InputError, match=r"where y counts them from 0, np.array\(\['no'"):
            fit(x, np.arange(40) % 2)
    made = DPLogisticRegression(row_norm=1.0, classes=[0, 1])
    with pytest.raises(InputError, match="add the missing label to classes="):
        VotingClassifier([("one", made)]).fit(x, np.arange(40) % 4)
