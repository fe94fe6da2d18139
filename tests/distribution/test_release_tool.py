"""tools/release.py refuses to go on without each of its steps, in a repository of its own."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("release_tool", ROOT / "tools" / "release.py")
release = importlib.util.module_from_spec(SPEC)
sys.modules["release_tool"] = release
SPEC.loader.exec_module(release)

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]


def git(place, *words):
    done = subprocess.run([*GIT, *words], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(place, name, text):
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def commit(place, words="chore: write"):
    git(place, "add", "-A")
    git(place, "commit", "--quiet", "--allow-empty", "-m", words)
    return git(place, "rev-parse", "HEAD")


def record(place, at, failed="0", commands=release.TESTS):
    lines = [f"- `{command}`: 7,000 passed, {failed} failed, at {at}" for command in commands]
    write(place, "docs/releases/1.2.3.md", "# 1.2.3\n\n" + "\n".join(lines) + "\n")


@pytest.fixture
def ready(tmp_path, monkeypatch):
    """A repository of version 1.2.3 in which nothing is missing but a key for the tag."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git(tmp_path, "init", "--quiet")
    write(tmp_path, release.VERSION_FILE, '"""A library."""\n\n__version__ = "1.2.2"\n')
    write(tmp_path, "src/lastiterate/code.py", "x = 1\n")
    write(tmp_path, "changelog.d/README.md", "fragments\n")
    write(tmp_path, "CHANGELOG.md", "# Changelog\n\n## 1.2.2 (2026-01-01)\n")
    write(tmp_path, "CITATION.cff", "date-released: 2026-01-01\n")
    at = commit(tmp_path)
    write(tmp_path, release.VERSION_FILE, '"""A library."""\n\n__version__ = "1.2.3"\n')
    write(
        tmp_path, "CHANGELOG.md", "# Changelog\n\n## 1.2.3 (2026-02-03)\n\n## 1.2.2 (2026-01-01)\n"
    )
    write(tmp_path, "CITATION.cff", "date-released: 2026-02-03\n")
    record(tmp_path, at)
    commit(tmp_path)
    return release.Release(tmp_path, "1.2.3")


def refused(step, subject):
    with pytest.raises(release.Refusal) as refusal:
        release.STEPS[step](subject)
    return str(refusal.value)


def test_a_repository_that_is_ready_passes(ready):
    for step in ("tree", "version", "changelog", "tests"):
        assert release.STEPS[step](ready)


def test_a_changed_tree_is_refused(ready):
    write(ready.root, "forgotten.txt", "a")
    assert "clean, got 1 changes, first '?? forgotten.txt'" in refused("tree", ready)


def test_another_version_is_refused(ready):
    other = release.Release(ready.root, "1.2.4")
    assert "must say 1.2.4, got 1.2.3" in refused("version", other)
    assert "form 1.2.3, got 'v1.2.3'" in refused("version", release.Release(ready.root, "v1.2.3"))


def test_a_changelog_that_is_not_merged_is_refused(ready):
    write(ready.root, "changelog.d/more.added.md", "Added more.\n")
    assert "no fragments, got 1, first more.added.md; towncrier" in refused("changelog", ready)
    (ready.root / "changelog.d" / "more.added.md").unlink()
    for heading in ("1.2.3 (unreleased)", "1.2.2 (2026-02-03)"):
        write(ready.root, "CHANGELOG.md", f"# Changelog\n\n## {heading}\n")
        assert f"got {heading!r}" in refused("changelog", ready)
    write(ready.root, "CHANGELOG.md", "# Changelog\n\n## 1.2.3 (2026-02-04)\n")
    assert "must say date-released: 2026-02-04" in refused("changelog", ready)


def test_tests_that_nobody_recorded_are_refused(ready):
    at = git(ready.root, "rev-parse", "HEAD~1")
    record(ready.root, at, commands=release.TESTS[:1])
    assert "a line '- `make test-exhaustive`: N passed, 0 failed" in refused("tests", ready)
    record(ready.root, at, failed="2")
    assert "make test must pass whole, got 7,000 passed and 2 failed" in refused("tests", ready)
    record(ready.root, "0" * 40)
    assert "on a commit before this one" in refused("tests", ready)
    ready.notes.unlink()
    assert "docs/releases/1.2.3.md must record the tests" in refused("tests", ready)


def test_tests_of_other_code_are_refused(ready):
    write(ready.root, "src/lastiterate/code.py", "x = 2\n")
    commit(ready.root)
    assert "1 files changed since, first src/lastiterate/code.py" in refused("tests", ready)


def test_a_version_that_brings_other_lines_is_other_code(ready):
    write(ready.root, release.VERSION_FILE, '__version__ = "1.2.3"\nimport os\n')
    commit(ready.root)
    assert f"first {release.VERSION_FILE}" in refused("tests", ready)


def test_a_tag_that_is_missing_plain_elsewhere_or_unsigned_is_refused(ready):
    assert "the tag v1.2.3 must exist; git tag --sign v1.2.3" in refused("tag", ready)
    git(ready.root, "tag", "v1.2.3")
    assert "annotated tag with the notes, got a plain one" in refused("tag", ready)
    git(ready.root, "tag", "--delete", "v1.2.3")
    git(ready.root, "tag", "--annotate", "-m", "notes", "v1.2.3", "HEAD~1")
    assert "must be at this commit" in refused("tag", ready)
    git(ready.root, "tag", "--delete", "v1.2.3")
    git(ready.root, "tag", "--annotate", "-m", "notes", "v1.2.3")
    assert "must have a signature that git verifies" in refused("tag", ready)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_a_signed_tag_passes(ready, tmp_path_factory):
    place = tmp_path_factory.mktemp("keys")
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "key")]
    subprocess.run(make, check=True, capture_output=True)
    (place / "signers").write_text(f"a@b.c {(place / 'key.pub').read_text()}")
    for name, value in {
        "gpg.format": "ssh",
        "user.signingkey": str(place / "key.pub"),
        "gpg.ssh.allowedSignersFile": str(place / "signers"),
    }.items():
        git(ready.root, "config", name, value)
    git(ready.root, "tag", "--sign", "-m", "notes", "v1.2.3")
    assert release.STEPS["tag"](ready).startswith("v1.2.3 signed at ")


def fill(subject, size=10):
    """Put files where the build would."""
    subject.out.mkdir(parents=True)
    for ending in ("-py3-none-any.whl", ".tar.gz"):
        (subject.out / f"lastiterate-1.2.3{ending}").write_bytes(b"x" * size)


def test_what_the_tools_refuse_is_refused(ready, monkeypatch):
    """Each tool is called with the built files, and its failure ends the step."""
    fill(ready)
    called = []

    def failing(words, place, *, fails=None, environment=()):
        called.append([*map(str, words)])
        raise release.Refusal(fails)

    monkeypatch.setattr(release, "run", failing)
    assert refused("metadata", ready) == "twine must accept both files"
    assert called[-1][1:5] == ["-m", "twine", "check", "--strict"] and len(called[-1]) == 7
    assert "nothing else" in refused("contents", ready)
    assert called[-1][2] == "check_wheel_contents" and called[-1][-1].endswith(".whl")
    monkeypatch.undo()
    with pytest.raises(release.Refusal, match=r"^it must work, got: one / two$"):
        release.run(
            [sys.executable, "-c", "print('one'); raise SystemExit('two')"],
            ready.root,
            fails="it must work",
        )


def test_files_that_are_too_large_or_missing_are_refused(ready):
    fill(ready, release.MOST + 1)
    assert "at most 3,000,000 bytes, got 3,000,001" in refused("size", ready)
    ready.built(".whl").unlink()
    assert "one file *.whl, got 0" in refused("metadata", ready)


def test_builds_of_another_version_are_refused(ready, monkeypatch):
    monkeypatch.setattr(release, "build", lambda subject, source, out: fill(subject))
    assert "lastiterate-1.2.3" in release.STEPS["build"](ready)
    other = release.Release(ready.root, "1.2.4")

    def build_old(subject, source, out):
        subject.out.mkdir(parents=True)
        for path in ready.out.iterdir():
            shutil.copy(path, subject.out)

    monkeypatch.setattr(release, "build", build_old)
    assert "must be of version 1.2.4, got lastiterate-1.2.3" in refused("build", other)


@pytest.mark.parametrize("ending", [".whl", ".tar.gz"])
def test_a_second_build_of_other_bytes_is_refused(ready, monkeypatch, ending):
    fill(ready)
    sources = []

    def build_again(subject, source, out):
        sources.append((source, git(source, "rev-parse", "HEAD")))
        shutil.copytree(ready.out, out)

    monkeypatch.setattr(release, "build", build_again)
    assert release.STEPS["reproducible"](ready) == "two builds have the same bytes"
    assert sources[0][0] != ready.root and sources[0][1] == ready.git("rev-parse", "HEAD")

    def build_other(subject, source, out):
        build_again(subject, source, out)
        next(out.glob(f"*{ending}")).write_bytes(b"y")

    monkeypatch.setattr(release, "build", build_other)
    assert "must have the same bytes, got others" in refused("reproducible", ready)


def test_licences_and_owners_of_requirements_are_looked_at():
    fine = {"licence": "MIT", "all": ["", "MIT"], "home": ["Source, a page"]}
    either = fine | {"all": ["GPL-2.0 OR MIT"]}
    release.refuse_licences({"a": fine, "b": fine | {"all": ["BSD License"]}, "c": either})
    release.refuse_licences({name: fine | {"home": []} for name in release.OWNERS})
    for wrong, said in (
        ({"licence": "", "all": []}, "a must have a licence that anybody may use, got ''"),
        ({"licence": "AGPL-3.0", "all": ["AGPL-3.0"]}, "got 'AGPL-3.0'"),
        ({"licence": "GPL-3.0 AND MIT", "all": ["GPL-3.0 AND MIT"]}, "got 'GPL-3.0 AND MIT'"),
        ({"licence": "Limited Permission", "all": ["Limited Permission"]}, "got 'Limited Perm"),
        ({"home": []}, "a must name a page of its owner"),
    ):
        with pytest.raises(release.Refusal, match=said):
            release.refuse_licences({"a": fine | wrong})


def test_a_bill_that_does_not_list_the_wheel_is_refused():
    parts = [{"name": "lastiterate", "version": "1.2.3"}, {"name": "numpy", "version": "2.0"}]
    release.refuse_bill({"bomFormat": "CycloneDX", "components": parts}, "1.2.3")
    for bill, said in (
        ({"components": parts}, "must be CycloneDX"),
        ({"bomFormat": "CycloneDX", "components": []}, "must be CycloneDX with components"),
        ({"bomFormat": "CycloneDX", "components": parts[1:]}, "must list lastiterate 1.2.3"),
        (
            {"bomFormat": "CycloneDX", "components": [*parts, {"name": "b", "version": ""}]},
            "b must have a version",
        ),
    ):
        with pytest.raises(release.Refusal, match=said):
            release.refuse_bill(bill, "1.2.3")


def test_documentation_of_another_version_or_commit_is_refused(ready):
    """The branch has what mike writes: a list of versions, and a commit for every folder."""
    remedy = "make docs-version VERSION=1.2.3"
    assert f"must have the site, got no such branch; {remedy}" in refused("documentation", ready)
    main, head = ready.git("branch", "--show-current"), ready.git("rev-parse", "--short", "HEAD")

    def deploy(title, at):
        git(ready.root, "checkout", "--quiet", "-B", "gh-pages")
        write(ready.root, "1.2/index.html", f"<p>{title} {at}</p>")
        write(ready.root, "versions.json", f'[{{"version": "1.2", "title": "{title}"}}]')
        commit(ready.root, f"Deployed {at} to 1.2 with MkDocs 1.6 and mike 2.2")
        git(ready.root, "checkout", "--quiet", main)

    deploy("1.2.2", head)
    assert f"must have 1.2.3 in 1.2, got 1.2.2; {remedy}" in refused("documentation", ready)
    deploy("1.2.3", "0123456")
    assert f"made of this commit {head}, got 'Deployed 0123456" in refused("documentation", ready)
    deploy("1.2.3", head)
    ready.out.mkdir(parents=True)
    assert "documentation-1.2.3.zip" in release.STEPS["documentation"](ready)
    with zipfile.ZipFile(ready.out / "documentation-1.2.3.zip") as copy:
        assert "lastiterate-1.2/index.html" in copy.namelist()


def test_hashes_are_those_of_the_files(ready):
    fill(ready)
    assert release.STEPS["hashes"](ready) == "2 files"
    lines = (ready.out / "SHA256SUMS").read_text().splitlines()
    assert lines[0].split("  ") == [hashlib.sha256(b"x" * 10).hexdigest(), lines[0][66:]]
    assert [line[66:] for line in lines] == sorted(
        path.name for path in ready.out.iterdir() if path.name != "SHA256SUMS"
    )


def test_the_first_refusal_ends_it_and_a_rehearsal_lists_all(ready, monkeypatch, capsys):
    def missing(subject):
        raise release.Refusal("it is not there")

    steps = {"one": lambda subject: "fine", "two": missing, "three": missing}
    monkeypatch.setattr(release, "STEPS", steps)
    asked = ["1.2.3", "--root", str(ready.root)]
    assert release.main(asked) == 1
    shown = capsys.readouterr()
    assert shown.out == "one: fine\n" and shown.err == "missing: two: it is not there.\n"
    assert release.main([*asked, "--rehearse"]) == 1
    assert capsys.readouterr().err.count("missing: ") == 2
    monkeypatch.setattr(release, "STEPS", {"one": lambda subject: subject.version})
    assert release.main(["v1.2.3", *asked[1:]]) == 0, "a tag's name is taken, too"
    assert "ready to be signed and uploaded" in capsys.readouterr().out


def test_the_list_has_a_sentence_for_every_step(capsys):
    assert release.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(release.STEPS) and all(line.endswith(".") for line in lines)
