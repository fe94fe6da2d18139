"""Plug-ins: theorems of other packages, asked when they are allowed, and marked wherever they count."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import lastiterate as li
from lastiterate import plugins
from lastiterate.errors import InputError, NotCertified
from lastiterate.theorems import TABLE, find_theorem, theorem
from support import call, install_plugin
from test_surface import SOURCE

RUN = li.Run(
    n=100,
    steps=1,
    step_size=0.5,
    clip=1.0,
    noise=li.NoiseMultiplier(9.0),
    loss=li.KnownConstants(li.LossFacts()),
)
DELTA = 1e-5
BY = "somebodys-theorems 1.0"
MARK = f"theorem one-step: by {BY}, not reviewed by this project"
MODULE = """
from dataclasses import replace
from lastiterate.curves import Gdp
from lastiterate.theorems import TABLE

known = TABLE["composition-gdp"]
one_step = replace(known, name="one-step", bound=lambda run: Gdp(known.bound(run).mu * {factor}))
"""


def offer(tmp_path, monkeypatch, *, factor=1.0, name="one-step", target="one_step", module=MODULE):
    """Install a package whose theorem is ``factor`` times the composition theorem."""
    text = module.replace("{factor}", str(factor))
    points = {"theorems": {name: f"somebodys_theorems:{target}"}}
    install_plugin(tmp_path, monkeypatch, "somebodys-theorems", points, text)


def test_nothing_of_a_plug_in_is_imported_before_it_is_allowed(tmp_path, monkeypatch):
    offer(tmp_path, monkeypatch, module="raise SystemExit('imported')")
    assert "one-step" not in TABLE and len(TABLE) == len(tuple(TABLE))
    assert li.account(RUN).epsilon(DELTA) > 0 and "somebodys_theorems" not in sys.modules
    for words in (["theorems"], ["account", "--help"], ["--version"]):
        assert call(*words).code == 0
    assert f"not asked: {MARK} (--allow-plugins)" in " ".join(call("theorems").out.split())
    with pytest.raises(InputError, match=r"until plug-ins are allowed, got 'one-step'"):
        find_theorem("one-step")
    assert call("theorems", "one-step").code == 2
    assert "--allow-plugins" in call("theorems", "one-step").err
    assert "somebodys_theorems" not in sys.modules


def test_permission_ends_with_its_block(tmp_path, monkeypatch):
    offer(tmp_path, monkeypatch)
    with li.allow_plugins():
        assert plugins.are_allowed() and "one-step" in TABLE
        with li.allow_plugins():
            pass
        assert plugins.are_allowed()
    assert not plugins.are_allowed() and "one-step" not in TABLE


def test_a_theorem_that_counts_is_marked_everywhere(tmp_path, monkeypatch):
    # on a run that nothing else certifies better; within what the witness of the class allows
    offer(tmp_path, monkeypatch, factor=0.995)
    bare = li.account(RUN)
    with li.allow_plugins():
        certificate = li.account(RUN)
        assert certificate.verdict("one-step").theorem.mark == MARK.partition(": ")[2]
        assert certificate.epsilon(DELTA) < bare.epsilon(DELTA)
        stored = certificate.to_dict(DELTA)
        assert li.read_certificate(json.dumps(stored)) == certificate
        assert li.Certificate.check(stored).plugins == (MARK,)
    assert certificate.verify() and not plugins.are_allowed()
    assert certificate.all_caveats()[0] == MARK == stored["caveats"][0]
    assert stored["plugins"] == [{"kind": "theorem", "name": "one-step", "by": BY}]
    assert f"by one-step (by {BY}, not reviewed" in certificate.explain(DELTA)
    assert "plugins" not in bare.to_dict(DELTA)


def test_a_theorem_that_is_as_good_as_one_of_this_project_is_not_chosen(tmp_path, monkeypatch):
    fewer = MODULE + "one_step = replace(one_step, assumptions=known.assumptions[:3])"
    offer(tmp_path, monkeypatch, module=fewer)
    with li.allow_plugins():
        certificate = li.account(RUN)
        assert certificate.best(DELTA).theorem.name == "composition-gdp"
        assert f"one-step (upper, enforced facts, by {BY}, not" in certificate.explain(DELTA)


def test_a_marked_certificate_is_checked_with_permission_alone(tmp_path, monkeypatch):
    offer(tmp_path, monkeypatch)
    with li.allow_plugins():
        body = li.account(RUN).to_dict(DELTA)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(body))
    refused = call("verify", path)
    assert refused.code == 2 and f"cannot be checked: it rests on the {MARK}" in refused.err
    assert "--allow-plugins" in refused.err
    for words in (["--allow-plugins", "verify", path], ["verify", path, "--allow-plugins"]):
        checked = call(*words)
        assert checked.code == 0 and f"from outside: {MARK}." in " ".join(checked.out.split())
    assert json.loads(call("verify", path, "--json", "--allow-plugins").out)["plugins"] == [MARK]
    assert not plugins.are_allowed()
    for key, value, said in (
        ("by", "somebodys-theorems 2.0", "and somebodys-theorems 1.0 is installed"),
        ("name", "other", "and no such package is installed"),
        ("kind", "opinion", "must name kind, name and package"),
    ):
        other = body | {"plugins": [body["plugins"][0] | {key: value}]}
        with li.allow_plugins(), pytest.raises(InputError, match=said):
            li.Certificate.check(other)


@pytest.mark.parametrize("what", ["plugins", "caveats"])
def test_a_mark_that_is_taken_off_is_missed(tmp_path, monkeypatch, what):
    offer(tmp_path, monkeypatch, factor=0.995)
    with li.allow_plugins():
        stored = li.account(RUN).to_dict(DELTA)
        bare = {
            "plugins": {key: value for key, value in stored.items() if key != "plugins"},
            "caveats": stored | {"caveats": stored["caveats"][1:]},
        }[what]
        assert not li.Certificate.check(bare).holds
    if what == "plugins":
        assert not li.Certificate.check(bare).holds


def test_a_certificate_of_this_project_stays_what_it_is(tmp_path, monkeypatch):
    """Also where plug-ins are allowed, tighter ones and those that do not apply."""
    bare, everything = li.account(RUN), replace(RUN, release="all", loss=li.Logistic(ridge=0.1))
    stored, other = bare.to_dict(DELTA), li.account(everything).to_dict(DELTA)
    only_last = MODULE + "from lastiterate.theorems.assumptions import last_iterate_only\n"
    only_last += "one_step = replace(one_step, assumptions=(*known.assumptions, last_iterate_only))"
    offer(tmp_path, monkeypatch, factor=0.995, module=only_last)
    with li.allow_plugins():
        assert li.Certificate.check(stored).holds
        assert li.read_certificate(json.dumps(stored)).epsilon(DELTA) == bare.epsilon(DELTA)
        assert li.account(everything).to_dict(DELTA) == other
        assert "one-step" in li.account(everything).explain(DELTA, all=True)


def test_a_theorem_that_promises_too_much_is_refused_at_issue(tmp_path, monkeypatch):
    offer(tmp_path, monkeypatch, factor=0.5)
    with li.allow_plugins():
        certificate = li.account(RUN)
        for issue in (certificate.to_dict, certificate.explain):
            with pytest.raises(NotCertified, match=f"one-step certifies .* author of {BY}"):
                issue(DELTA)
        with pytest.raises(NotCertified, match="one of the two is false"):
            li.calibrate(replace(RUN, noise=None), epsilon=1.0, delta=DELTA)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"module": "1 / 0"}, "ZeroDivisionError: division by zero"),
        ({"module": "raise SystemExit"}, "SystemExit"),
        ({"target": "nothing"}, "AttributeError"),
        ({"target": "known.name"}, "must name a lastiterate.theorems.Theorem"),
        ({"name": "composition-gdp"}, "must be called one-step"),
        (
            {
                "name": "composition-gdp",
                "module": "from lastiterate.theorems import TABLE\none_step = TABLE['composition-gdp']",
            },
            "must have a name that no theorem of this project has",
        ),
        (
            {
                "module": "from lastiterate.theorems import TABLE, register\nfrom dataclasses import "
                "replace\none_step = register(replace(TABLE['composition-gdp'], name='one-step'))"
            },
            "must come from this project",
        ),
    ],
)
def test_a_broken_plug_in_is_one_error_that_names_its_package(tmp_path, monkeypatch, change, said):
    offer(tmp_path, monkeypatch, **change)
    with li.allow_plugins(), pytest.raises(InputError) as caught:
        li.account(RUN)
    assert said in str(caught.value) or change["name"] == "composition-gdp"
    if change.get("name") != "composition-gdp":
        assert BY in str(caught.value) and "\n" not in str(caught.value)
        listed = call("--allow-plugins", "theorems")
        assert listed.code == 2 and BY in listed.err and "Traceback" not in listed.err
    for words in (["--version"], ["ledger", "--help"], ["predict", "--help"]):
        assert call("--allow-plugins", *words).code == 0


def test_two_packages_cannot_share_a_name(tmp_path, monkeypatch):
    offer(tmp_path / "one", monkeypatch)
    points = {"theorems": {"one-step": "somebodys_theorems:one_step"}}
    install_plugin(tmp_path / "two", monkeypatch, "another", points, MODULE)
    with (
        li.allow_plugins(),
        pytest.raises(InputError, match=f"another 1.0 and {BY}|{BY} and another"),
    ):
        li.account(RUN)


def test_no_theorem_enters_the_table_by_hand():
    known = TABLE["composition-gdp"]
    with pytest.raises(InputError, match="must come from this project"):
        theorem.register(replace(known, name="mine"))


def test_the_checker_says_that_it_does_not_know_the_theorem(tmp_path, monkeypatch):
    from lastiterate_check import check

    offer(tmp_path, monkeypatch, factor=0.995)
    with li.allow_plugins():
        report = check.check(li.account(RUN).to_dict(DELTA))
    assert report.verdict == check.NOT_COVERED
    assert f"theorem one-step: by {BY}, not reviewed" in report.lines
    assert any("the theorem one-step" in words for words in report.lines)


def test_the_import_stays_light():
    code = (
        "import sys, lastiterate as li\nwith li.allow_plugins(): pass\n"
        "assert not {'numpy', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SOURCE.parent)
