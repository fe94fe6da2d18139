"""verify and predict on files that were edited, by somebody careless or by somebody who also fits
the hashes."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate import limits
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.release.folder import sha256
from support import call

RUN = li.Run(
    n=40, steps=5, step_size=0.5, noise=li.NoiseMultiplier(20.0), loss=li.Logistic(ridge=0.1)
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    assert call("train", "iris", "--epsilon", 3, "--time-budget", 2, "--out", folder / "m")[0] == 0
    rows = np.random.default_rng(0).random((3, 4))
    np.save(folder / "new.npy", rows)
    assert call("predict", folder / "m", folder / "new.npy")[0] == 0
    return folder


def refit(folder, name, change, fit_hashes=True):
    """Edit a file of a model folder, and fit the hashes if asked to."""
    text = (folder / name).read_text()
    edited = change(text)
    assert edited != text
    (folder / name).write_text(edited)
    if fit_hashes:
        body = json.loads((folder / "certificate.json").read_text())
        body["model_sha256"] = sha256((folder / "model.json").read_bytes())
        body["content_sha256"] = content_hash(body)
        (folder / "certificate.json").write_text(json.dumps(body))


@pytest.mark.parametrize(
    "name, change, fit, word",
    [
        ("model.json", lambda t: t + " ", False, "not the file that was certified"),
        (
            "model.json",
            lambda t: t.replace('"steps": ', '"steps": 1', 1),
            True,
            "describes another run",
        ),
        (
            "model.json",
            lambda t: t.replace('"kind": "linear"', '"kind": "[bold]x[/bold]"'),
            True,
            "[bold]x[/bold]",
        ),
        (
            "certificate.json",
            lambda t: t.replace('"epsilon": ', '"epsilon": 0.01, "epsilon": ', 1),
            False,
            "once",
        ),
        (
            "certificate.json",
            lambda t: t.replace('"epsilon": ', '"epsilon": 9', 1),
            False,
            "content hash",
        ),
        ("certificate.json", lambda t: "[" * 10_000 + "]" * 10_000, False, "nest"),
        ("certificate.json", lambda t: '{"run": ' * 60 + "1" + "}" * 60, False, "certified"),
    ],
    ids=range(7),
)
def test_predict_uses_no_model_whose_files_do_not_fit(model, tmp_path, name, change, fit, word):
    copy = shutil.copytree(model / "m", tmp_path / "m")
    refit(copy, name, change, fit)
    code, out, err = call("predict", copy, model / "new.npy")
    assert code == 2 and not out and err.startswith("error:") and word in err, err
    assert call("verify", copy)[0] in (1, 2)


def test_verify_says_on_what_condition_a_certificate_holds(tmp_path):
    loss = li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0))
    certificate = li.account(replace(RUN, loss=loss), min_evidence=li.Evidence.ASSUMED)
    path = tmp_path / "certificate.json"
    path.write_text(certificate.to_json(1e-5))
    code, out, _ = call("verify", path)
    assert code == 0 and "conditional on: " in out and "strong given by the caller (0)" in out
    assert "not signed" in out
    body = json.loads(call("verify", path, "--json")[1])
    assert body["holds"] and body["condition"].startswith("conditional on")
    path.write_text(li.account(RUN).to_json(1e-5))
    assert "onditional" not in call("verify", path)[1]


def test_a_certificate_of_nothing_claims_nothing(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(li.account(replace(RUN, noise=li.NoiseMultiplier(0.0))).to_json(1e-5))
    code, out, _ = call("verify", path)
    assert code == 0 and "holds: it certifies no epsilon" in out


def test_what_a_forger_writes_is_no_markup(tmp_path):
    body = json.loads(li.account(RUN).to_json(1e-5)) | {"[red]signed[/red]": True}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(body | {"content_sha256": content_hash(body)}))
    code, out, err = call("verify", path)
    assert code == 2 and "red" not in out + err and "certificate.schema.json" in err


def test_a_network_is_verified_but_predicts_in_python_only(tmp_path):
    run = li.Run(n=40, steps=2, step_size=0.1, clip=1.0)
    x = np.ones((40, 2))
    model = li.train(
        run, (x,), model={"w": np.zeros(2)}, loss=lambda p, x: (p["w"] @ x - 1.0) ** 2, epsilon=5.0
    )
    model.save(tmp_path / "m")
    np.save(tmp_path / "x.npy", x)
    assert call("verify", tmp_path / "m")[0] == 0
    code, _, err = call("predict", tmp_path / "m", tmp_path / "x.npy")
    assert code == 2 and "load it in Python with lastiterate.load" in err


def test_arguments_are_called_by_their_flags(model, tmp_path):
    code, _, err = call("train", "iris", "--epsilon", 3, "--out", model / "m")
    assert code == 2 and err.startswith("error: --out must not exist yet")
    code, _, err = call("train", "iris", "--epsilon", -3, "--row-norm", 2)
    assert code == 2 and err.startswith("error: --epsilon must be a positive")
    code, _, err = call("predict", tmp_path / "none", model / "new.npy")
    assert code == 2 and err.startswith("error: model must be a folder")
    code, _, err = call(
        "account", "--n", 10, "--steps", 2, "--step-size", 1, "--noise-std", 1, "--clip", -1
    )
    assert code == 2 and err.startswith("error: --clip"), err


@pytest.mark.parametrize("name", ["certificate.json", "model.json", "manifest.json"])
def test_a_text_without_an_end_is_refused_before_it_takes_all_memory(
    model, tmp_path, name, monkeypatch
):
    shutil.copytree(model / "m", tmp_path / "m")
    monkeypatch.setattr(limits, "TEXT", 2**20)
    with (tmp_path / "m" / name).open("ab") as file:
        file.truncate(2**20 + 1)
    code, out, err = call("verify", tmp_path / "m")
    assert code != 0 and "must be at most 1 MiB long" in out + err
    assert call("verify", "/dev/zero")[0] == 2


def test_too_little_memory_is_said_in_a_sentence(model, monkeypatch):
    def full(path):
        raise MemoryError

    monkeypatch.setattr("lastiterate.release.folder.read", full)
    code, _, said = call("verify", model / "m")
    assert code == 2 and said == "error: memory must be enough for this; nothing was released"


@pytest.mark.parametrize(
    ("more", "unit", "said"),
    [
        ({}, "", r"\(zero-out; replace-one [\d.]+\), for one row;"),
        ({"adjacency": "replace-one"}, "", r"\(replace-one\), for one row;"),
        (
            {"adjacency": "add-remove", "batching": li.Poisson(0.1)},
            "",
            r"\(add-remove\), for one row",
        ),
        ({"rows_per_unit": 5}, "", r"\(zero-out\S* .*\), for one unit with at most 5 rows;"),
        ({"rows_per_unit": 5}, "patient", r" for one patient with at most 5 rows;"),
        ({"rows_per_record": 3}, "patient", r" for one patient with at most 3 rows;"),
        ({}, "patient", r" for one patient with at most 1 row;"),
        ({}, "unit", r" for one unit with at most 1 row;"),
    ],
)
def test_verify_says_which_neighbours_and_whom_epsilon_is_about(tmp_path, more, unit, said):
    run = li.Run(
        **{"n": 100, "steps": 20, "step_size": 0.5, "noise": li.NoiseMultiplier(30.0), "clip": 1.0}
        | {"loss": li.Logistic()}
        | more
    )
    certificate = replace(li.account(run), unit=unit)
    (tmp_path / "c.json").write_text(certificate.to_json(1e-5))
    code, out, _ = call("verify", tmp_path / "c.json")
    epsilon = re.search(r"holds: epsilon ([\d.]+) at delta 1e-05 ", out)
    assert code == 0 and re.search(said, " ".join(out.split())), out
    exact = certificate.epsilon(1e-5)
    assert exact * (1 - 1e-9) <= float(epsilon[1]) <= exact * 1.002, "rounded up"
    shown = json.loads(call("verify", tmp_path / "c.json", "--json")[1])
    assert shown["adjacency"] == certificate.adjacency and shown["unit"] == (unit or None)
    assert shown["rows_per_unit"] == max(run.rows_per_unit, run.rows_per_record)
    assert (
        shown["epsilon_replace_one"] == json.loads(certificate.to_json(1e-5))["epsilon_replace_one"]
    )
