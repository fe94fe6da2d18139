"""What a predicted risk means for answers and for probabilities, against simulated scores."""

from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.planning.predicted_risk import MARGIN, STEEP, predict_scores

RUN = li.Run(
    n=1000,
    steps=3,
    step_size=0.1,
    noise=li.NoiseMultiplier(1.0),
    loss=li.Logistic(),
    probability_calibration=li.Calibration(5.0),
)


def sigma(score: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-score))


@pytest.mark.parametrize("variance", [0.0, 0.3, 2.0])
def test_accuracy_is_that_of_scores_with_errors(variance: float) -> None:
    rng = np.random.default_rng(0)
    score = MARGIN * rng.normal(size=10**6)
    error = np.sqrt(variance) * rng.normal(size=10**6)
    right, best = (
        np.where(seen > 0, sigma(score), sigma(-score)).mean() for seen in (score + error, score)
    )
    found = predict_scores(RUN, 0.25 / 2 * variance)
    assert found is not None
    assert (
        found.accuracy == pytest.approx(best - right, abs=6e-4)
        and found.log_loss == 0.25 / 2 * variance
    )


def test_probabilities_that_are_not_calibrated_are_too_steep() -> None:
    score = MARGIN * np.random.default_rng(1).normal(size=10**6)
    loss = [
        -(
            sigma(score) * np.log(sigma(c * score)) + sigma(-score) * np.log(sigma(-c * score))
        ).mean()
        for c in (STEEP, 1.0)
    ]
    found = predict_scores(replace(RUN, probability_calibration=None), 0.01)
    assert found is not None and found.log_loss - 0.01 == pytest.approx(loss[0] - loss[1], rel=0.02)


def test_less_risk_is_better_answers_and_numbers_have_none() -> None:
    lost = [predict_scores(RUN, risk).accuracy for risk in (0.0, 1e-3, 1e-2, 0.1, 10.0)]  # type: ignore[union-attr]
    assert lost[0] == 0 and (np.diff(lost) > 0).all() and lost[-1] < 0.5
    many = replace(RUN, loss=li.Softmax(classes=10))
    assert predict_scores(many, 0.1).accuracy == pytest.approx(predict_scores(RUN, 0.025).accuracy)  # type: ignore
    assert (
        predict_scores(replace(RUN, loss=li.HuberRidge(), probability_calibration=None), 0.1)
        is None
    )
