"""The example plug-in, installed as a reader would: a theorem and a batching, used and marked."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate import plugins
from lastiterate.curves import Gdp
from lastiterate.engine.samplers import sampler_of
from lastiterate.errors import InputError, NotCertified
from lastiterate.run import plugin_batching
from support import call, install_plugin

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
BY = "by lastiterate-example 1.0, not reviewed by this project"
DELTA = 1e-5
ONE_STEP = li.Run(
    n=100,
    steps=1,
    step_size=0.5,
    clip=1.0,
    noise=li.Correlated(9.0, 2),
    batching=li.FixedSize(10),
)
"""A run that no theorem of the library certifies: noise that later steps would take back."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder that the example is installed into, without a network."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, folder / "source")  # a build writes into it
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", folder / "site", source],
        check=True,
    )
    return folder / "site"


@pytest.fixture
def example(site, monkeypatch):
    """The package on the path, and not imported yet."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "lastiterate_example", raising=False)
    monkeypatch.setattr(plugins, "_loaded", {})
    plugins.find_installed.cache_clear()
    importlib.invalidate_caches()
    yield lambda: importlib.import_module("lastiterate_example")
    plugins.find_installed.cache_clear()


def test_the_theorem_is_listed_marked_and_used_with_permission_alone(example):
    assert li.account(ONE_STEP).best(DELTA) is None and "lastiterate_example" not in sys.modules
    assert "one-step-gdp (upper" not in call("theorems").out
    assert f"one-step-gdp (upper, {BY})" in " ".join(
        call("theorems", "--allow-plugins").out.split()
    )
    assert f"Provided {BY}" in call("--allow-plugins", "theorems", "one-step-gdp").out
    with li.allow_plugins():
        certificate = li.account(ONE_STEP)
    assert certificate.best(DELTA).theorem.name == "one-step-gdp"
    plain = li.account(replace(ONE_STEP, noise=li.NoiseMultiplier(9.0), batching=li.Cyclic(10)))
    assert certificate.epsilon(DELTA) == pytest.approx(
        plain.curve("composition-gdp").epsilon(DELTA), rel=1e-6
    )


def test_account_and_verify_both_ways(example, tmp_path):
    run, path = tmp_path / "run.json", tmp_path / "certificate.json"
    run.write_text(ONE_STEP.to_json())
    assert call("account", run).code == 1
    shown = call("account", run, "--allow-plugins")
    assert shown.code == 0 and f"by one-step-gdp ({BY})" in " ".join(shown.out.split())
    with li.allow_plugins():
        path.write_text(li.account(ONE_STEP).to_json(DELTA))
    refused, checked = call("verify", path), call("verify", path, "--allow-plugins")
    assert refused.code == 2 and f"it rests on the theorem one-step-gdp: {BY}" in refused.err
    assert checked.code == 0 and f"theorem one-step-gdp: {BY}" in " ".join(checked.out.split())


def test_the_batching_is_refused_without_permission(example):
    with li.allow_plugins():
        run = li.Run(n=10, steps=2, step_size=0.1, batching=example().Strided(4))
        assert li.Run.from_json(run.to_json()) == run and run.blocks == 3
    with pytest.raises(InputError, match=r"'Strided'; where a plug-in provides it.*allow_plugins"):
        li.Run.from_json(run.to_json())
    refused = call("account", "--n", 10, *FEW, "--batch", "strided:4")
    assert refused.code == 2 and "must be full, cyclic:B" in refused.err
    listed = call("--allow-plugins", "account", "--batch", "list").out
    assert f"({BY})" in " ".join(listed.split()) and "strided:" in listed


def test_a_batching_without_an_entry_point_is_no_part_of_a_run():
    class Odd(plugin_batching.PublicBlocks):
        word = "odd"

        def divide(self, n):
            return np.zeros(n, int)

    with li.allow_plugins(), pytest.raises(InputError, match="needs an entry point"):
        li.Run(n=10, steps=2, step_size=0.1, batching=Odd(10))


@pytest.mark.parametrize(
    "cut, said",
    [
        (lambda n: np.arange(n) // 5, "blocks of 2 to 5"),
        (lambda n: np.arange(n) // 2 * 2, "blocks of 0 to 2"),
        (lambda n: np.arange(n) - 1, "gives a block"),
        (lambda n: np.arange(n - 1) // 4, "no integers of shape"),
        (lambda n: np.arange(n) / 4, "no integers of shape"),
        (lambda n: np.random.default_rng().permutation(n) // 4, "asked again"),
    ],
)
def test_a_cut_that_is_none_is_refused(example, monkeypatch, cut, said):
    with li.allow_plugins():
        kind = example().Strided
        monkeypatch.setattr(kind, "divide", lambda self, n: cut(n))
        plugin_batching._check_blocks.cache_clear()
        run = li.Run(n=12, steps=2, step_size=0.1, batching=kind(4))
        with pytest.raises(InputError, match=said):
            li.account(replace(run, noise=li.GradientNoise(1.0), clip=1.0))
    plugin_batching._check_blocks.cache_clear()


@pytest.mark.parametrize(
    "source, said",
    [
        ("class Mine(Cyclic): pass", "must name a frozen dataclass"),
        ("class Mine(PublicBlocks):\n    word = 'mine'", "must name a frozen dataclass"),
        (
            "@dataclass(frozen=True)\nclass Mine(PublicBlocks):\n    word = 'mine'\n"
            "    drawn = 'each step'",
            "must not answer what follows from its divide",
        ),
        (
            "@dataclass(frozen=True)\nclass Mine(PublicBlocks):\n    word = 'other'",
            "must be called",
        ),
        (
            "@dataclass(frozen=True)\nclass Cyclic(PublicBlocks):\n    word = 'mine'\nMine = Cyclic",
            "must have a name that no batching of this project has",
        ),
    ],
)
def test_what_is_no_batching_of_blocks_is_refused(tmp_path, monkeypatch, source, said):
    text = "from dataclasses import dataclass\nfrom lastiterate.run.batching import Cyclic\n"
    text += f"from lastiterate.run.plugin_batching import PublicBlocks\n{source}\n"
    install_plugin(tmp_path, monkeypatch, "mine", {"batchings": {"mine": "mine:Mine"}}, text)
    refused = call("--allow-plugins", "account", "--batch", "mine:4", "--n", 10, *FEW)
    assert refused.code == 2 and said in refused.err and "mine 1.0" in refused.err


FEW = ("--steps", 2, "--step-size", 0.1, "--noise-multiplier", 9, "--clip", 1)


@pytest.mark.parametrize("n, most", [(10, 100), (12, 100), (12, 2), (1, 5)])
def test_every_step_reads_the_records_of_its_block(example, n, most):
    with li.allow_plugins():
        batching = example().Strided(4)
    sampler = sampler_of(batching, n, most)
    plan, records = sampler.layout, np.arange(n)
    rows = np.zeros((plan.slots, n), np.float32)
    rows[plan.slot(records), records] = 1.0
    assert plan.slot(jnp.arange(n)).tolist() == plan.slot(records).tolist()
    data = jnp.asarray(rows.reshape(*plan.shape, n))
    for k in range(2 * batching.blocks(n)):
        held = sampler.batch_sum(lambda chunk: chunk.sum(0), data, jax.random.key(0), k)
        assert held.tolist() == (records % batching.blocks(n) == k % batching.blocks(n)).tolist()
    drawn = batching.draws(n, np.random.default_rng(0))
    assert [part.tolist() for part in drawn] == [
        records[records % len(drawn) == block].tolist() for block in range(len(drawn))
    ]


def test_the_batching_trains_is_certified_and_marked(example, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(103, 3))
    y = (x[:, 0] > 0).astype(int)
    with li.allow_plugins():
        run = li.Run(
            n=103,
            steps=20,
            step_size=0.5,
            batching=example().Strided(10),
            loss=li.Logistic(ridge=0.1),
        )
        model = li.train(run, (x, y), epsilon=4.0, delta=1e-4)
        assert (model.predict(x) == y).mean() > 0.5
        assert model.certificate.best(1e-4).theorem.origin == ""
        assert model.certificate.epsilon(1e-4) <= 4
        folder = model.save(tmp_path / "model")
        assert li.verify(folder).plugins == (f"batching strided: {BY}",)
    stored = json.loads((folder / "certificate.json").read_text())
    assert stored["plugins"] == [
        {"kind": "batching", "name": "strided", "by": "lastiterate-example 1.0"}
    ]
    assert f"batching strided: {BY}" in stored["caveats"]
    assert f"it rests on the batching strided: {BY}" in call("verify", folder).err
    assert call("verify", folder).code == 2 and call("verify", folder, "--allow-plugins").code == 0
    with pytest.raises(InputError, match=r"where a plug-in provides it.*allow_plugins"):
        li.load(folder)
    page, card = tmp_path / "page.html", tmp_path / "card"
    assert call("report", folder, "--out", page, "--allow-plugins").code == 0
    assert call("export", folder, "--to", "model-card", "--out", card, "--allow-plugins").code == 0
    shown = card.read_text() if card.is_file() else "".join(p.read_text() for p in card.iterdir())
    assert BY in page.read_text() and BY in shown


def test_an_audit_does_not_accuse_the_trainer(example):
    with li.allow_plugins():
        run = li.Run(
            n=11,
            steps=6,
            step_size=0.5,
            noise=li.NoiseMultiplier(1.5),
            batching=example().Strided(4),
            loss=li.Logistic(ridge=0.1),
        )
        report = li.audit.audit(run, trials=400, delta=1e-3, seed=1)
    assert not report.refuted and report.upper > 0 and not report.violations


def test_the_checker_does_not_know_the_batching(example):
    from lastiterate_check import check

    with li.allow_plugins():
        run = li.Run(n=10, steps=2, step_size=0.1, batching=example().Strided(4), clip=1.0)
        report = check.check(li.account(replace(run, noise=li.NoiseMultiplier(9.0))).to_dict(DELTA))
    assert report.verdict == check.NOT_COVERED
    assert any("batches of the kind Strided" in line for line in report.lines)


def test_its_own_tests_pass(site):
    """Laws of ``lastiterate.testing``, in a process that knows the package by its installation."""
    paths = [str(site), str(Path(li.__file__).parents[1])]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            EXAMPLE / "tests",
            "-c",
            EXAMPLE / "pyproject.toml",
            "-p",
            "no:cacheprovider",
        ],
        cwd=site,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


def test_a_wrong_theorem_is_found_by_the_laws_and_refused_at_issue(example, monkeypatch):
    from lastiterate.testing import check_theorem

    with li.allow_plugins():
        package = example()
        right = package.bound_one_step
        monkeypatch.setattr(
            package,
            "ONE_STEP",
            replace(package.ONE_STEP, bound=lambda run: Gdp(right(run).mu / 2)),
        )
        with pytest.raises(AssertionError, match=r"one-step-gdp.* lies below the exact"):
            check_theorem(package.ONE_STEP)
        run = replace(ONE_STEP, noise=li.NoiseMultiplier(9.0), batching=li.FullBatch())
        certificate = li.account(run)
        with pytest.raises(
            NotCertified, match=r"one-step-gdp certifies .* one of the two is false"
        ):
            certificate.to_dict(DELTA)
