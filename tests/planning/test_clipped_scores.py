"""The public factor for scores of clipped contributions, against trainings that clip them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

import lastiterate as li
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.predicted_risk import MARGIN, public_slope, slope_of
from lastiterate.planning.task import Task


@pytest.mark.parametrize("clip", [0.1, 0.3])
def test_the_factor_is_halfway_to_that_of_a_long_training_on_clipped_residuals(clip: float) -> None:
    rng = np.random.default_rng(0)
    score = MARGIN * rng.normal(size=50_000)
    y = rng.random(50_000) < expit(score)
    steep = 1.0
    for _ in range(400):
        steep -= 2 * float((score * np.clip(expit(steep * score) - y, -clip, clip)).mean()) / clip
    assert slope_of(clip) ** 2 == pytest.approx(1 / steep, abs=0.02)


def test_what_is_not_clipped_is_not_steep() -> None:
    run = li.Run(
        n=100,
        steps=3,
        step_size=0.1,
        noise=li.NoiseMultiplier(1.0),
        loss=li.Logistic(intercept=0.0),
    )
    assert public_slope(run) == slope_of(1.0) == 1.0
    for close in (replace(run, clip=0.1), replace(run, loss=li.Logistic(cap=0.1))):
        assert public_slope(close) == slope_of(0.1)
    assert 0 < slope_of(1e-4) < slope_of(0.1) < slope_of(0.5) < 1


@pytest.mark.parametrize("classes", [2, 3])
def test_too_few_records_get_a_public_factor_and_more_are_measured(classes: int) -> None:
    def found(n: int, calibrated: bool = True) -> object:
        asked = PlanRequest(Task(n, 5, classes, calibrated=calibrated), 1.0, 1e-5, "zero-out", 60.0)
        return asked.with_calibration(replace(asked.empty, clip=asked.clip)).probability_calibration

    assert found(300) == li.AssumedSlope(slope_of(0.3))
    assert isinstance(found(30_000), li.Calibration)
    assert found(300, calibrated=False) is None
