"""Correlated noise on the command line: the flag describes it, a search finds its size, mistakes
are one sentence."""

import json

import pytest

import lastiterate as li
from lastiterate.analysis.shifts import shift_in_draws
from tests.cli.test_algorithm import called

RUN = ("--n", "60", "--steps", "12", "--step-size", "0.1", "--clip", "1", "--batch", "cyclic:20")


@pytest.mark.parametrize(
    ("text", "noise"),
    [
        ("3", li.Correlated(2.0, 3)),
        ("3,0.7", li.Correlated(2.0, 3, 0.7)),
        ("1,0.5,0.9", li.Correlated(2.0, 1, 0.5, 0.9)),
    ],
)
def test_the_flag_describes_the_noise(text, noise):
    found = json.loads(
        called(
            "account",
            *RUN,
            "--noise-multiplier",
            2,
            "--correlated",
            text,
            "--delta",
            "1e-3",
            "--json",
        ).stdout
    )
    assert li.Run.from_dict(found["run"]).noise == noise and found["theorem"] == "correlated-gdp"


def test_a_search_finds_its_size():
    found = json.loads(
        called(
            "calibrate", *RUN, "--correlated", 3, "--epsilon", 1, "--delta", "1e-3", "--json"
        ).stdout
    )
    noise = li.Run.from_dict(found["run"]).noise
    assert noise.band == 3 and found["epsilon"] <= 1.0 < 1.001 * found["epsilon"]
    assert noise.z > shift_in_draws(noise, 3, 12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--correlated", "3"), "needs the size of its draws"),
        (("--correlated", "1,2,3,4"), "BAND,POWER,DECAY"),
        (("--correlated", "x", "--noise-multiplier", "2"), "must be an integer"),
        (("--correlated", "3", "--noise-multiplier", "2", "--noise-std", "1"), "exactly one of"),
        (("--correlated", "3,1.5", "--noise-multiplier", "2"), "power"),
    ],
)
def test_mistakes_are_one_sentence(words, message):
    found = called("account", *RUN, *words)
    assert found.exit_code == 2 and message in " ".join(found.stderr.split()) and not found.stdout


def test_the_named_algorithm_is_trained_and_its_certificate_holds(tmp_path):
    out = tmp_path / "model"
    found = called("train", "wine", "--epsilon", 4, "--algorithm", "correlated-sgd", "--out", out)
    assert found.exit_code == 0 and "correlated-gdp" in found.output, found.output
    (certificate,) = (json.loads(path.read_text()) for path in out.glob("cert*.json"))
    assert certificate["run"]["noise"]["type"] == "Correlated" and certificate["epsilon"] <= 4
    assert called("verify", out).exit_code == 0
    changed = json.loads(next(out.glob("cert*.json")).read_text())
    changed["run"]["noise"]["band"] = (
        1  # as if noise were independent: less is moved, and epsilon would be smaller
    )
    next(out.glob("cert*.json")).write_text(json.dumps(changed))
    assert called("verify", out).exit_code == 1


def test_exact_noise_is_refused_with_the_reason(tmp_path):
    found = called(
        "train",
        "wine",
        "--epsilon",
        4,
        "--algorithm",
        "correlated-sgd",
        "--secure-noise",
        "--out",
        tmp_path / "model",
    )
    assert found.exit_code == 2 and "integer number of grid steps" in " ".join(found.stderr.split())
    assert not (tmp_path / "model").exists()
