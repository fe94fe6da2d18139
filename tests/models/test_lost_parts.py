"""What conversions and seeds would lose without a word is refused, or warned of."""

import warnings

import numpy as np
import pytest

import lastiterate as li
from lastiterate.bayes.ridge import ClippedRows
from lastiterate.errors import InputError, RepeatedFitWarning
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression

RUN = li.Run(n=40, steps=3, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05))
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 2)), RNG.integers(0, 2, 40)
MASKED, IMAGINARY = np.ma.masked_array(X, X > 1), X + 1j
CALLS = {
    "train x": lambda bad: li.train(RUN, (bad, Y), delta=1e-5),
    "train y": lambda bad: li.train(RUN, (X, bad[:, 0]), delta=1e-5),
    "network": lambda bad: li.train(li.Run(n=40, steps=2, step_size=0.1, clip=1.0), ({"a": bad},), model=np.zeros(2),
                                    loss=lambda p, r: (p @ r["a"]) ** 2, epsilon=5.0),
    "classifier": lambda bad: DPLogisticRegression(row_norm=1.0, classes=[0, 1]).fit(bad, Y),
    "regressor": lambda bad: DPHuberRidge(row_norm=1.0, target_range=(0, 1)).fit(X, bad[:, 0]),
    "predict": lambda bad: li.train(RUN, (X, Y), delta=1e-5).predict(bad),
    "posterior": lambda bad: ClippedRows(n=40, features=2).clip(bad, Y),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("bad, word", [(MASKED, "mask"), (IMAGINARY, "imaginary")], ids=["mask", "imaginary"])
def test_masks_and_imaginary_parts_are_refused(name, bad, word):
    with pytest.raises(InputError, match=word):
        CALLS[name](bad)


def test_a_record_beyond_double_precision_is_clipped_like_any_other():
    far = X.astype(np.longdouble)
    far[0, 0] = np.longdouble("1e400") if np.finfo(np.longdouble).max > 1e400 else np.longdouble(1e308)
    assert np.isfinite(li.train(RUN, (far, Y), delta=1e-5).released.weights).all()
    far[0, 0] = np.inf
    with pytest.raises(InputError, match="finite"):
        li.train(RUN, (far, Y), delta=1e-5)


def test_no_warning_depends_on_how_large_a_record_is():
    rows = X.copy()
    rows[0] = 1.7e308
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = ClippedRows(n=40, features=2).clip(rows, Y)
    assert np.allclose(found[0], 0.5**0.5) and (np.linalg.norm(found, axis=1) <= 1 + 1e-12).all()


def test_a_seed_that_is_used_for_other_data_has_a_warning_of_its_own():
    def seen(x, seed):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            li.train(RUN, (x, Y), delta=1e-5, seed=seed)
        return any("this seed was used" in str(w.message) and w.category is RepeatedFitWarning for w in caught)

    other = X.copy()
    other[7] = 0.0
    assert not seen(X, 77) and not seen(X, 77) and not seen(other, 78)
    assert seen(other, 77), "one record differs: the difference of both models has no noise"
