"""Released models as estimators of scikit-learn, and in skops and joblib files that verify."""

import io
import json
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas
import pytest
import skops.io
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.bayes.linear import ClippedRows, LinearModel
from lastiterate.bayes.posterior_subject import RidgePosterior, sample_posterior
from lastiterate.cli import app
from lastiterate.errors import InputError
from lastiterate.estimators import (
    DPHuberRidge,
    DPLogisticRegression,
    ReleasedClassifier,
    ReleasedRegressor,
    list_trusted_types,
)
from lastiterate.estimators.released_estimators import to_joblib, to_skops
from lastiterate.release.posterior import FittedSample

RNG = np.random.default_rng(0)
ROWS = 300
X = RNG.normal(size=(ROWS, 4))
CANARY = 73.0912345
TABLE = pandas.DataFrame(
    {
        "age": [CANARY, *RNG.uniform(18, 90, ROWS - 1)],
        "job": ["canary-job", *RNG.choice(["cook", "nurse"], ROWS - 1)],
        "note": ["canary-note", *RNG.choice(["much pain", "none"], ROWS - 1)],
    }
)
SCHEMA = {
    "target": "ill",
    "classes": ["yes", "no"],
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100},
        "job": {"kind": "category", "values": ["cook", "nurse"], "outside": "zero"},
        "note": {"kind": "text"},
    },
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of a table with words, which another process could have written."""
    labels = np.where(TABLE["age"] > 50, "yes", "no")
    trained = DPLogisticRegression(schema=SCHEMA, features="words").fit(TABLE, labels)
    return trained.fitted_.save(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def written(table: Path) -> dict[str, bytes]:
    """Its files by their ending, written by the command line."""
    made = {}
    for form, ending in (("skops", ".skops"), ("sklearn", ".joblib")):
        out = table.parent / f"m{ending}"
        done = CliRunner().invoke(app, ["export", str(table), "--to", form, "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert "released_estimators.ReleasedClassifier" in done.output or form == "sklearn"
        made[ending] = out.read_bytes()
    return made


def read(content: bytes, ending: str) -> Any:
    if ending == ".joblib":
        return joblib.load(io.BytesIO(content))
    unknown = skops.io.get_untrusted_types(data=content)
    assert len(unknown) == 1 and set(unknown) < set(list_trusted_types())
    return skops.io.loads(content, trusted=unknown)


ENDINGS = pytest.mark.parametrize("ending", [".skops", ".joblib"])


@ENDINGS
def test_a_folder_becomes_an_estimator(ending: str, table: Path, written: dict[str, bytes]) -> None:
    model, estimator = li.load(table), read(written[ending], ending)
    rows = li.features.SchemaTransformer(model.schema).transform(TABLE)
    assert estimator.classes_.tolist() == ["no", "yes"]
    assert estimator.predict(TABLE).tolist() == model.predict(rows).tolist()
    chances = model.probabilities(rows)[:, ::-1]  # the schema has yes first
    assert (estimator.predict_proba(TABLE) == chances).all()
    assert estimator.certificate_.epsilon(1e-5) == model.certificate.epsilon(1e-5)
    assert skops.io.loads(skops.io.dumps(estimator), trusted=list_trusted_types())
    assert li.verify(table.parent / f"m{ending}").epsilon == li.verify(table).epsilon
    kept = (table / "certificate.json").read_bytes()
    assert estimator.__getstate__()["files"]["certificate.json"] == kept  # not issued again
    for secret in (b"canary", np.float64(CANARY).tobytes(), np.float32(CANARY).tobytes()):
        assert secret not in written[ending]


def test_it_is_an_estimator_that_nothing_fits(table: Path) -> None:
    released = ReleasedClassifier(li.load(table))
    with pytest.raises(InputError, match=r"fit is not for a released model.*new release"):
        released.fit(TABLE, None)
    assert (clone(released).predict(TABLE) == released.predict(TABLE)).all()
    pipeline = make_pipeline(FunctionTransformer(), released)
    assert (pipeline.predict(TABLE) == released.predict(TABLE)).all()
    assert released.score(TABLE, released.predict(TABLE)) == 1.0
    with pytest.raises(InputError, match="is one for ReleasedClassifier"):
        ReleasedRegressor(li.load(table)).predict(TABLE)
    with pytest.raises(InputError, match=r"must be a released model.*lastiterate.load"):
        ReleasedClassifier(str(table)).predict(TABLE)


def test_regressions_and_samples(tmp_path: Path) -> None:
    trained = DPHuberRidge(row_norm=2.0, target_range=(-3, 3)).fit(X, X[:, 0])
    problem = RidgePosterior(
        LinearModel(prior_precision=40.0), ClippedRows(n=ROWS, features=4, row_norm=1.0)
    )
    drawn = sample_posterior(problem, X, X[:, 0])
    sample = FittedSample(proof=drawn.certificate, delta=1e-5, problem=problem, value=drawn.value)
    for name, model in (("ridge", trained.fitted_), ("sample", sample)):
        for where in (
            model.to_skops(tmp_path / f"{name}.skops"),
            model.to_sklearn(tmp_path / f"{name}.joblib"),
        ):
            assert li.verify(where).holds
            found = read(where.read_bytes(), where.suffix)
            assert isinstance(found, ReleasedRegressor)
            np.testing.assert_allclose(found.predict(X), model.predict(X), atol=1e-12)


@ENDINGS
def test_every_change_is_found(ending: str, written: dict[str, bytes], tmp_path: Path) -> None:
    content, file = written[ending], tmp_path / f"m{ending}"

    def holds(changed: bytes) -> bool:
        file.write_bytes(changed)
        try:
            return li.verify(file).holds
        except InputError:
            return False

    assert holds(content)
    assert not holds(content + b"\0") and not holds(b"\0" + content)
    certificate, weights = content.index(b'"epsilon": '), content.index(b'{"weights":')
    for place in (certificate + 13, weights + 200, *range(0, len(content), len(content) // 24)):
        changed = bytearray(content)
        changed[place] ^= 1
        assert not holds(bytes(changed)), place


def test_a_release_with_another_estimator_is_no_release(
    written: dict[str, bytes], tmp_path: Path
) -> None:
    """Other types in the schema of a skops file, more members, and packed ones."""
    source = zipfile.ZipFile(io.BytesIO(written[".skops"]))
    members = {name: source.read(name) for name in source.namelist()}
    schema = json.loads(members["schema.json"])

    def write(members: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> Path:
        with zipfile.ZipFile(tmp_path / "m.skops", "w", packing) as file:
            for name, content in members.items():
                file.writestr(zipfile.ZipInfo(name), content, packing)
        return tmp_path / "m.skops"

    assert li.verify(write(members)).holds
    other = json.dumps(schema | {"__module__": "os", "__class__": "system"}, indent=2).encode()
    for changed in (members | {"schema.json": other}, members | {"more.bin": b"x"}):
        checked = li.verify(write(changed))
        assert not checked.holds and "holds more, or other code" in checked.problems[0]
    with pytest.raises(InputError, match="skops file that lastiterate wrote"):
        li.verify(write(members, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize("end", ["skops", "joblib"])
def test_a_file_of_a_fitted_estimator_is_told_of_the_one_that_verifies(
    end: str, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    estimator = DPLogisticRegression(row_norm=2.0, classes=[0, 1], algorithm="noisy-gd")
    estimator.fit(rows, np.arange(60) % 2)
    own = tmp_path / f"own.{end}"
    dump = skops.io.dump if end == "skops" else joblib.dump
    dump(estimator, own)
    method = {"skops": "to_skops", "joblib": "to_sklearn"}[end]
    with pytest.raises(InputError, match=rf"fitted_\.{method}\(FILE\) of a fitted estimator"):
        li.verify(own)
    made = getattr(estimator.fitted_, method)(tmp_path / f"made.{end}")
    assert li.verify(made).holds


class Trap:
    def __init__(self, files: dict[str, bytes], mark: Path) -> None:
        self.files, self.mark = files, mark

    def __reduce__(self) -> Any:
        return Path.write_text, (self.mark, "executed"), {"files": self.files}


def test_verify_executes_nothing(table: Path, tmp_path: Path) -> None:
    files = pickle.loads(to_joblib(li.load(table).files())).__getstate__()["files"]
    mark, file = tmp_path / "mark", tmp_path / "m.joblib"
    file.write_bytes(pickle.dumps(Trap(files, mark), protocol=4))
    checked = li.verify(file)
    assert not checked.holds and not mark.exists()
    done = CliRunner().invoke(app, ["verify", str(file)])
    assert done.exit_code == 1 and "do not load it" in " ".join(done.output.split())
    with pytest.raises(AttributeError):
        joblib.load(file)
    assert mark.exists()  # what it would have done


def test_what_cannot_be_written_is_refused(table: Path, tmp_path: Path) -> None:
    run = li.Run(n=ROWS, steps=2, step_size=0.1, clip=1.0, noise=li.NoiseMultiplier(9.0))
    with warnings.catch_warnings(action="ignore"):
        network = li.train(
            run,
            (X, X[:, 0]),
            model={"w": np.zeros(4)},
            loss=lambda model, x, y: (x @ model["w"] - y) ** 2,
        )
    for write in (network.to_skops, network.to_sklearn):
        ending = ".skops" if write == network.to_skops else ".joblib"
        with pytest.raises(InputError, match=r"linear one or a posterior sample.*safetensors"):
            write(tmp_path / f"n{ending}")
        with pytest.raises(InputError, match=f"must end in {ending}"):
            write(tmp_path / "n.bin")
    for form, ending in (("skops", ".skops"), ("sklearn", ".joblib")):
        out = tmp_path / "m.bin"
        done = CliRunner().invoke(app, ["export", str(table), "--to", form, "--out", str(out)])
        assert done.exit_code == 2 and f"must end in {ending}" in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
    for ending in (".skops", ".joblib"):
        for content in (b"", b"nothing", pickle.dumps({"files": {}})):
            (tmp_path / f"a{ending}").write_bytes(content)
            with pytest.raises(InputError, match="file that lastiterate wrote"):
                li.verify(tmp_path / f"a{ending}")


def test_the_files_are_the_same_every_time(table: Path) -> None:
    files = li.load(table).files()
    for make in (to_skops, to_joblib):
        assert make(files) == make(dict(reversed(files.items())))
