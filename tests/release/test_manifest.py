"""Every file of a folder is compared, the page too; what nobody listed is named, and links are
refused."""

import contextlib
import json
import os
import random
import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import cli
from lastiterate.cli.train import write_report
from lastiterate.errors import InputError
from lastiterate.release.folder import clean, sha256
from lastiterate.release.verification import sign
from tiers import size

RUN = li.Run(
    n=60, steps=5, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
)
FILES = ("weights.safetensors", "model.json", "certificate.json", "manifest.json", "report.html")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    model = li.train(RUN, (rng.normal(size=(60, 2)), rng.integers(0, 2, 60)), delta=1e-5)
    stored = model.store(tmp_path_factory.mktemp("m") / "model")
    write_report(stored, model)
    return stored.path


def verify(where, *more):
    done = CliRunner().invoke(cli.app, ["verify", str(where), *map(str, more)])
    return done.exit_code, " ".join(done.output.split())


def test_a_folder_is_what_was_written(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    listed = json.loads((folder / "manifest.json").read_text())["sha256"]
    assert listed == {
        name: sha256((folder / name).read_bytes()) for name in FILES if name != "manifest.json"
    }
    assert li.verify(folder).holds and li.verify(folder).uncovered == () and verify(folder)[0] == 0


FLIPS = size(20, 300, "MUTANTS")
"""Bits of each file that are turned over, besides one of its first byte and one of its last."""


@pytest.mark.parametrize("name", FILES)
def test_every_edit_of_every_file_is_noticed(folder, tmp_path, name):
    copy, rng = shutil.copytree(folder, tmp_path / "c"), random.Random(name)
    content = (folder / name).read_bytes()
    for at in [0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(FLIPS))]:
        edited = bytearray(content)
        edited[at] = edited[at] ^ 1 << rng.randrange(8)
        (copy / name).write_bytes(bytes(edited))
        with contextlib.suppress(InputError):  # it cannot even be read
            assert not li.verify(copy).holds, (name, at)
    for blank in (content + b"\n", b" " + content, content.replace(b" ", b"  ", 1)):
        (copy / name).write_bytes(blank)
        with contextlib.suppress(InputError):
            assert not li.verify(copy).holds, (name, blank[:20])


def test_a_forged_page_does_not_hold_and_another_one_can_be_made(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "c")
    (copy / "report.html").write_text("<script>alert('epsilon 0.01')</script>")
    code, said = verify(copy)
    assert said.startswith("the page does not belong to the certificate, which holds")
    assert code == 1 and "report.html is not the file that manifest.json lists" in said
    (copy / "report.html").unlink()
    assert verify(copy)[0] == 0 and "report.html was removed" in verify(copy)[1]
    assert CliRunner().invoke(cli.app, ["report", str(copy)]).exit_code == 0
    assert li.verify(copy).holds and not li.verify(copy).uncovered


def test_other_files_are_named_and_the_certificate_holds(folder, tmp_path):
    """A card that was edited says nothing of the certificate; weights that were do."""
    hub = tmp_path / "hub"
    li.load(folder).to_huggingface(hub)
    card = (hub / "README.md").read_text()
    (hub / "README.md").write_text(card + "epsilon 0.01")
    code, said = verify(hub)
    assert said.startswith("README.md does not belong to the certificate, which holds")
    assert code == 1 and "README.md is not the file that manifest.json lists" in said
    code, said = report(hub, "--out", tmp_path / "mine.html")
    assert code == 1 and "README.md does not belong to the certificate, which holds" in said
    red = (tmp_path / "mine.html").read_text()
    assert "do not rely on it" in red and "Nothing supports that claim" not in red
    (hub / "README.md").unlink()
    code, said = verify(hub)
    lost = "the certificate holds, and files are missing or changed: README.md"
    assert code == 1 and said.startswith(lost)
    (hub / "README.md").write_text(card)
    assert verify(hub)[0] == 0
    for name in ("weights.safetensors", "model.json", "certificate.json"):
        content = (hub / name).read_bytes()
        (hub / name).write_bytes(content + b" ")
        (hub / "README.md").write_text(card + " ")
        with contextlib.suppress(InputError):
            assert not li.verify(hub).holds
            assert "which holds" not in verify(hub)[1] and "certificate holds" not in verify(hub)[1]
        (hub / name).write_bytes(content)


def report(where, *more):
    done = CliRunner().invoke(cli.app, ["report", str(where), *map(str, more)])
    return done.exit_code, " ".join(done.output.split())


def list_page(folder):
    """Write the page's hash into the list, as a forger does."""
    listed = json.loads((folder / "manifest.json").read_text())["sha256"]
    listed["report.html"] = sha256((folder / "report.html").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({"sha256": listed}, indent=2) + "\n")


def test_a_changed_page_is_replaced_by_the_right_one(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "model")
    (copy / "report.html").write_text("<title>Privacy report: model</title> epsilon 0.01")
    code, said = report(copy)
    assert code == 0 and "report.html is not the file that manifest.json lists: it was rep" in said
    for name in FILES:
        assert (copy / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_list_of_a_folder_that_does_not_verify_stays(folder, tmp_path):
    """Otherwise the next verification would call the red page, or a forged one, right."""
    copy = shutil.copytree(folder, tmp_path / "c")
    listed = (copy / "manifest.json").read_bytes()
    (copy / "model.json").write_text((copy / "model.json").read_text() + " ")
    for more in ((), ("--force",)):
        assert report(copy, *more)[0] == 1
        assert "does NOT verify" in (copy / "report.html").read_text()
        assert (copy / "manifest.json").read_bytes() == listed
    assert verify(copy)[0] == 1
    (copy / "model.json").write_bytes((folder / "model.json").read_bytes())
    assert li.verify(copy).problems == ("report.html is not the file that manifest.json lists",)
    with pytest.raises(InputError, match="must be a folder that verifies"):
        sign(copy, key="no.pem")


def test_a_page_is_made_again_and_compared(folder, tmp_path):
    """Also in a folder of another name, signed or not, with an audit or not."""
    copy = shutil.copytree(folder, tmp_path / "other & name")
    same, other = "it was made again and is the same", "report.html was NOT checked"
    assert verify(copy)[0] == 0 and same in verify(copy)[1]
    (copy / "model.sig").write_text("{}")
    (copy / "audit.json").write_text("[]")
    assert same in verify(copy)[1] and other not in verify(copy)[1]
    shown = CliRunner().invoke(cli.app, ["verify", str(copy), "--json"])
    assert json.loads(shown.stdout)["page_checked"] is True
    honest = (copy / "report.html").read_text()
    for forged in (
        re.sub(r"\d+ of 100", "51 of 100", honest, count=1),
        honest + "<p>epsilon 0.01</p>",
        honest.replace("<title>", "<title >"),
    ):
        assert forged != honest
        (copy / "report.html").write_text(forged)
        list_page(copy)
        code, said = verify(copy)
        assert code == 1 and "report.html DIFFERS" in said and same not in said
        assert "--out mine.html" in said
        shown = CliRunner().invoke(cli.app, ["verify", str(copy), "--json"])
        assert json.loads(shown.stdout)["page_changed"] is True
    version = "Made by lastiterate "
    (copy / "report.html").write_text(honest.replace(version, f"{version}9."))
    list_page(copy)  # of another version, which nobody can compare here
    assert verify(copy)[0] == 0 and other in verify(copy)[1]
    (copy / "report.html").write_bytes(b"\xff")
    list_page(copy)
    shown = CliRunner().invoke(cli.app, ["verify", str(copy), "--json"])
    assert json.loads(shown.stdout)["page_checked"] is False
    (copy / "report.html").unlink()
    shown = CliRunner().invoke(cli.app, ["verify", str(copy), "--json"])
    assert json.loads(shown.stdout)["page_checked"] is None


def test_a_page_of_an_audit_in_the_folder_is_made_again(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "model")
    audit = {
        "attack": "projection",
        "trials": 200,
        "failure": 0.05,
        "delta": 1e-5,
        "lower": 0.0,
        "ceiling": 2.0,
        "refuted": False,
        "verdict": "no contradiction",
    }
    (copy / "audit.json").write_text(json.dumps(audit))
    assert report(copy, "--force")[0] == 0 and "made again and is the same" in verify(copy)[1]
    (copy / "audit.json").rename(tmp_path / "elsewhere.json")
    assert "It may show an audit (--audit FILE)" in verify(copy)[1]
    assert "made again and is the same" in verify(copy, "--audit", tmp_path / "elsewhere.json")[1]
    (copy / "audit.json").write_text(json.dumps(audit | {"trials": 900}))
    assert "report.html was NOT checked" in verify(copy)[1]


def test_a_signed_folder_keeps_its_page(folder, tmp_path):
    """Another page would break the signature; the listed one can be made again."""
    copy = shutil.copytree(folder, tmp_path / "model")
    (copy / "model.sig").write_text("{}")
    (copy / "report.html").write_text("changed")
    assert report(copy)[0] == 0 and "made again and is the same" in verify(copy)[1]
    assert report(copy, "--out", tmp_path / "mine.html")[0] == 0
    moved = copy.rename(tmp_path / "moved")
    listed = (moved / "manifest.json").read_bytes()
    code, said = report(moved, "--force")
    assert code == 2 and "must not be signed when its page is replaced" in said
    assert (moved / "manifest.json").read_bytes() == listed and li.verify(moved).holds


def test_what_was_added_is_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "c")
    (copy / "README.md").write_text("epsilon is 0.01")
    (copy / "evil\x1b[2J.txt").write_text("")
    found = li.verify(copy)
    assert found.holds and len(found.uncovered) == 2 and "README.md was added" in found.uncovered[0]
    code, said = verify(copy)
    assert (
        code == 0
        and "not covered: README.md was added" in said
        and "\x1b" not in said
        and "evil" in said
    )
    shown = CliRunner().invoke(cli.app, ["verify", str(copy), "--json"])
    assert len(json.loads(shown.stdout)["uncovered"]) == 2


@pytest.mark.parametrize("name", [*FILES, "more"])
def test_links_and_folders_are_refused(folder, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "c")
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(folder / (name if name != "more" else "model.json"))
    found = li.verify(copy)
    assert not found.holds and f"{name} is a link, not a file of its own" in found.problems
    (copy / name).unlink()
    if name in FILES[:3]:
        with pytest.raises(InputError, match="misses the file"):
            li.verify(copy)
    elif name == "manifest.json":
        assert li.verify(copy).problems == ("manifest.json is missing",)
    (copy / "inner").mkdir()
    if name == "more":
        assert li.verify(copy).problems == ("inner is a folder, not a file of its own",)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"sha256": {}}, "must fit manifest.schema.json"),
        ({"sha256": {"model.json": "0"}}, "must fit manifest.schema.json"),
        ({"sha256": {"model.json": "0" * 64}, "more": 1}, "must fit manifest.schema.json"),
        ([], "must fit manifest.schema.json"),
    ],
)
def test_manifests_that_do_not_fit_their_schema_are_named(folder, tmp_path, body, said):
    copy = shutil.copytree(folder, tmp_path / "c")
    (copy / "manifest.json").write_text(json.dumps(body))
    (problem,) = li.verify(copy).problems
    assert said in problem


def reissued(folder, **changed):
    """Files changed by somebody who also writes a certificate and a list that fit."""
    from lastiterate.accounting.certificate_json import content_hash
    from lastiterate.release import folder as manifest

    for name, content in changed.items():
        (folder / {"weights": "weights.safetensors", "model": "model.json"}[name]).write_bytes(
            content
        )
    body = json.loads((folder / "certificate.json").read_text())
    body["weights_sha256"] = sha256((folder / "weights.safetensors").read_bytes())
    body["model_sha256"] = sha256((folder / "model.json").read_bytes())
    (folder / "certificate.json").write_text(
        json.dumps(body | {"content_sha256": content_hash(body)}, indent=2)
    )
    files = {
        name: (folder / name).read_bytes()
        for name in FILES
        if name != "manifest.json" and (folder / name).exists()
    }
    (folder / "manifest.json").write_bytes(manifest.format_manifest(files))
    return folder


@pytest.mark.parametrize(
    "weights",
    [
        np.full((1, 3), np.nan),
        np.array([[1.0, np.inf, 0.0]]),
        np.ones((1, 3), np.int64),
        np.ones((1, 3), np.float32),
        np.ones((2, 3)),
        b"not arrays",
        b"",
    ],
    ids=repr,
)
def test_files_that_fit_one_another_and_make_no_model_do_not_hold(folder, tmp_path, weights):
    from safetensors.numpy import save

    copy = shutil.copytree(folder, tmp_path / "c")
    assert li.verify(reissued(copy)).holds, (
        "an honest re-issue holds, as only a signature could tell"
    )
    content = weights if isinstance(weights, bytes) else save({"weights": weights})
    found = li.verify(reissued(copy, weights=content))
    assert not found.holds and len(found.problems) == 1 and verify(copy)[0] == 1


def test_a_preparation_of_another_shape_makes_no_model(tmp_path):
    """Two rows for a mean would be added to two records, and to no other number of them."""
    from safetensors.numpy import load, save

    rows = np.random.default_rng(0).normal(size=(40, 3))
    run = li.Run(
        n=40,
        steps=2,
        step_size=0.3,
        noise=li.GradientNoise(0.5),
        loss=li.Logistic(),
        preprocessing=(li.PrivateMean(5.0, 1.0),),
    )
    where = tmp_path / "model"
    li.train(run, (rows, np.arange(40) % 2)).save(where)
    assert li.verify(reissued(where)).holds
    tensors = load((where / "weights.safetensors").read_bytes())
    for shape in ((2, 3), (3, 3), (1, 4)):
        content = save(tensors | {"prepared_0": np.zeros(shape)})
        assert not li.verify(reissued(where, weights=content)).holds, shape


def test_three_classes_of_a_schema_need_three_answers(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "c")
    schema = {
        "target": "y",
        "source": "",
        "columns": {},
        "classes": ["a", "b", "c"],
        "array": {"low": 0.0, "high": 1.0, "outside": "clip"},
    }
    model = json.loads((copy / "model.json").read_text())
    two = reissued(
        copy,
        model=json.dumps(
            model | {"schema": schema | {"classes": ["0", "1"]}, "answers": {"labels": ["0", "1"]}}
        ).encode(),
    )
    assert li.verify(two).holds
    found = li.verify(reissued(copy, model=json.dumps(model | {"schema": schema}).encode()))
    assert not found.holds and "classes, or the range, of the model's schema" in found.problems[0]


def test_another_process_takes_no_file_out_of_a_folder_that_is_being_written(
    folder, tmp_path, monkeypatch
):
    """It saves under the same name at this moment, and removes what processes that were killed left
    there."""
    moved = os.rename

    def rename(draft, where):
        clean(where)
        moved(draft, where)

    monkeypatch.setattr("lastiterate.release.folder.os.rename", rename)
    found = li.load(folder).save(tmp_path / "m")
    assert li.verify(found).holds and [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_removed_page_that_a_signature_covers_is_not_made_again(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "c")
    (copy / "report.html").unlink()
    assert "lastiterate report makes it again" in " ".join(li.verify(copy).uncovered)
    (copy / "model.sig").write_text("{}")
    assert "copy it from the folder as it was sent" in " ".join(li.verify(copy).uncovered)
