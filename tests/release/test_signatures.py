"""Signatures by OpenSSF's library: any later change is found, and so is a folder that was issued
again as a whole."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import cli
from lastiterate.errors import InputError
from lastiterate.release.signatures import PASSWORD, SIGNATURE
from lastiterate.release.verification import sign

RUN = li.Run(
    n=60, steps=5, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
)


def keys(home, name, password=None):
    made = ec.generate_private_key(ec.SECP256R1())
    sealed = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password)
    )
    (home / f"{name}.pem").write_bytes(
        made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
    )
    (home / f"{name}.pub").write_bytes(
        made.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return home / f"{name}.pem", home / f"{name}.pub"


def trained(seed):
    rng = np.random.default_rng(seed)
    return li.train(RUN, (rng.normal(size=(60, 2)), rng.integers(0, 2, 60)), delta=1e-5)


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    home = tmp_path_factory.mktemp("s")
    where = trained(0).save(home / "m")
    private, public = keys(home, "mine")
    sign(where, key=private)
    return where, private, public


def test_a_signed_folder_verifies_wherever_it_lies(signed, tmp_path):
    where, _, public = signed
    moved = shutil.copytree(where, tmp_path / "elsewhere")
    assert li.verify(moved, key=public).holds and li.verify(moved).holds
    done = CliRunner().invoke(cli.app, ["verify", str(moved), "--key", str(public)])
    assert done.exit_code == 0 and "signed by the holder" in " ".join(done.output.split())
    plain = CliRunner().invoke(cli.app, ["verify", str(moved)])
    assert plain.exit_code == 0 and "No signature was checked" in plain.output


def test_a_folder_that_was_issued_again_as_a_whole_is_found(signed, tmp_path):
    """All hashes fit, because somebody wrote a whole new release: only the signature shows it."""
    where, _, public = signed
    again = trained(1).save(tmp_path / "again")
    assert li.verify(again).holds and "not signed" in li.verify(again, key=public).problems[0]
    shutil.copy(where / SIGNATURE, again / SIGNATURE)
    found = li.verify(again, key=public)
    assert not found.holds and "not that of these files" in found.problems[0]
    done = CliRunner().invoke(cli.app, ["verify", str(again), "--key", str(public)])
    assert done.exit_code == 1


@pytest.mark.parametrize(
    "change",
    ["weights.safetensors", "certificate.json", "added", ".gitignore", "missing", SIGNATURE],
)
def test_any_change_after_signing_is_found(signed, tmp_path, change):
    where, _, public = signed
    copy = shutil.copytree(where, tmp_path / "c")
    if change == "missing":
        (copy / "extra.txt").write_text("x")
        (copy / SIGNATURE).write_text("{}")
    elif change == SIGNATURE:
        body = json.loads((copy / SIGNATURE).read_text())
        body["dsseEnvelope"]["payload"] = body["dsseEnvelope"]["payload"][:-8] + "AAAAAAA="
        (copy / SIGNATURE).write_text(json.dumps(body))
    elif (copy / change).exists():
        (copy / change).write_bytes((copy / change).read_bytes() + b" ")
    else:
        (copy / change).write_text("x")
    assert any(
        "not that of these files" in problem for problem in li.verify(copy, key=public).problems
    )


def test_a_signature_that_does_not_fit_is_no_fault_of_the_certificate(signed, tmp_path):
    """The headline says which of both fails, and files that were added are named."""
    where, _, public = signed
    copy = shutil.copytree(where, tmp_path / "c")
    (copy / "notes.txt").write_text("")

    def verify(*more):
        done = CliRunner().invoke(cli.app, ["verify", str(copy), "--key", str(public), *more])
        return done.exit_code, " ".join(done.output.split())

    code, said = verify()
    assert code == 1 and said.startswith("the folder has no valid signature - the signature is not")
    assert (
        "not covered: notes.txt was added" in said and "the certificate does not hold" not in said
    )
    (copy / SIGNATURE).unlink()
    code, said = verify()
    assert code == 1 and "signature - the folder is not signed not covered: notes.txt was" in said
    (copy / "model.json").write_bytes((copy / "model.json").read_bytes() + b" ")
    assert verify()[0] == 1 and verify()[1].startswith("the certificate does not hold - the folder")


def test_another_key_does_not_verify(signed, tmp_path):
    where, _, _ = signed
    _, other = keys(tmp_path, "other")
    assert not li.verify(where, key=other).holds
    (tmp_path / "no.pub").write_text("nonsense")
    with pytest.raises(InputError, match="key must be a public key"):
        li.verify(where, key=tmp_path / "no.pub")
    with pytest.raises(InputError, match="for a model folder"):
        li.verify(where / "certificate.json", key=other)


@pytest.mark.parametrize("wrong", ["another key", "another release", "no signature at all"])
def test_a_mismatch_is_one_sentence_and_no_dump(signed, tmp_path, wrong):
    """The library's own message lists both folders' hashes: nothing of it is shown."""
    where, _, public = signed
    copy = shutil.copytree(where, tmp_path / "m")
    if wrong == "another key":
        public = keys(tmp_path, "other")[1]
    elif wrong == "another release":
        copy = trained(3).save(tmp_path / "again")
        shutil.copy(where / SIGNATURE, copy / SIGNATURE)
    else:
        (copy / SIGNATURE).write_text('{"a": [1')
    done = CliRunner().invoke(cli.app, ["verify", str(copy), "--key", str(public)])
    said = " ".join((done.stdout + done.stderr).split())
    assert (
        done.exit_code == 1
        and said.count("the signature is not that of these files by this key") == 1
    )
    assert len(said) < len(str(copy)) + 300 and not re.search(
        r"[{}\[\]]|[0-9a-f]{16}|Traceback|Error|b'", said
    ), said


def test_what_is_refused_before_signing(signed, tmp_path):
    where, private, public = signed
    with pytest.raises(InputError, match="must not be signed yet"):
        sign(where, key=private)
    bad = shutil.copytree(where, tmp_path / "bad")
    (bad / SIGNATURE).unlink()
    with pytest.raises(InputError, match="key must be a private key"):
        sign(bad, key=public)
    assert not (bad / SIGNATURE).exists()
    (bad / "model.json").write_text((bad / "model.json").read_text() + " ")
    with pytest.raises(InputError, match="verifies before it is signed"):
        sign(bad, key=private)


def test_the_command_line_signs_with_an_encrypted_key(tmp_path, monkeypatch):
    where = trained(2).save(tmp_path / "m")
    private, public = keys(tmp_path, "sealed", b"word")
    monkeypatch.setenv(PASSWORD, "word")
    done = CliRunner().invoke(cli.app, ["sign", str(where), "--key", str(private)])
    assert done.exit_code == 0 and li.verify(where, key=public).holds


def test_without_the_library_there_is_a_word_on_it(signed, monkeypatch):
    where, _, public = signed
    for name in [name for name in sys.modules if name.startswith("model_signing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(
        InputError, match=r"^key needs the libraries .*pip install 'lastiterate\[sign\]'"
    ):
        li.verify(where, key=public)
