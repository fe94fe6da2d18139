"""Public weights of classes: what a description accepts, and where they come from."""

import pytest

import lastiterate as li
from lastiterate.run.validation import relative_weights

LOSSES = {
    "logistic": lambda weights: li.Logistic(class_weights=weights),
    "softmax": lambda weights: li.Softmax(classes=2, class_weights=weights),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "weights",
    [
        (1.0, 10.0),
        (0.5, 0.9),
        (0.0, 1.0),
        (-1.0, 1.0),
        (1.0,),
        (1.0, 1.0, 1.0),
        (float("nan"), 1.0),
    ],
)
def test_weights_that_no_bound_covers_are_refused(loss: str, weights: tuple[float, ...]) -> None:
    with pytest.raises(li.InputError, match="class_weights must hold 2 numbers"):
        LOSSES[loss](weights)


def test_weights_are_part_of_a_run_and_of_its_file() -> None:
    loss = li.Softmax(classes=3, class_weights=(0.25, 1.0, 0.5))
    run = li.Run(n=100, steps=3, step_size=0.1, noise=li.GradientNoise(0.2), clip=1.0, loss=loss)
    assert li.Run.from_json(run.to_json()) == run
    assert '"class_weights"' in run.to_json()
    assert run.loss.facts() == li.Softmax(classes=3).facts()  # of the class that counts most


@pytest.mark.parametrize(
    ("given", "labels", "found"),
    [
        ({0: 1, 1: 4}, (0, 1), (0.25, 1.0)),
        ({"no": 3, "yes": 3}, ("no", "yes"), None),
        (None, (0, 1), None),
        ({1: 2, 0: 1}, ("0", "1"), (0.5, 1.0)),
        ({"a": 5, "b": 1, "c": 10}, ("a", "b", "c"), (0.5, 0.1, 1.0)),
    ],
)
def test_only_ratios_count(given: object, labels: tuple[object, ...], found: object) -> None:
    assert relative_weights(given, labels) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("balanced", "'balanced' would count private labels"),
        ([1, 2], "must be a dictionary"),
        ({0: 1}, "one weight for each of the classes"),
        ({0: 1, 1: 2, 2: 3}, "one weight for each of the classes"),
        ({0: 1, 1: 0}, "positive numbers"),
        ({0: 1, 1: -2}, "positive numbers"),
        ({0: 1, 1: float("inf")}, "positive"),
        ({0: 1, 1: float("nan")}, "positive"),
        ({0: 1, 1: 1e-10}, "billionth"),
        ({0: 1, 1: "2"}, "must be a number"),
        ({0: 1, 1: 2, "1": 3}, "one weight for each of the classes"),
    ],
)
def test_what_is_no_public_weighting_is_refused(given: object, words: str) -> None:
    with pytest.raises(li.InputError, match=words):
        relative_weights(given, (0, 1))


def test_numbers_have_no_classes_to_weigh() -> None:
    with pytest.raises(li.InputError, match="class_weight is for classes"):
        relative_weights({0: 1}, ())
