"""The checklist of a release: every step checks something and refuses to go on without it.

    make release VERSION=1.2.3            every step in order, stopping at the first that is missing
    python tools/release.py 1.2.3 --rehearse   every step, and all that is missing
    python tools/release.py --list        the steps

It builds into dist/VERSION: wheel, source archive, bill of materials, documentation, SHA256SUMS. It
uploads nothing. docs/reference/releasing.md says what a maintainer does before and after.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MOST = 3_000_000
"""Bytes of a wheel or a source archive."""
TESTS = ("make test", "make test-exhaustive")
"""Commands whose outcome the notes of a release record."""
NOTES = ("docs/releases/", "changelog.d/", "CHANGELOG.md", "CITATION.cff")
"""Files that may change between the recorded tests and the release; and the line of the version."""
VERSION_FILE = "src/lastiterate/__init__.py"
LICENCES = (
    *("apache", "mit", "bsd", "isc", "psf", "python software foundation", "mpl", "mozilla", "zlib"),
    *("hpnd", "unlicense", "cc0", "blue oak", "0bsd"),
)
"""Words of licences that let anybody use a requirement, also in closed programs."""
SITES = ("gh-pages", "origin/gh-pages")
"""Branches with a folder for every version of the documentation, as mike writes them."""
OWNERS = {"opt_einsum": "dgasmith/opt_einsum on GitHub; JAX requires it"}
"""Owners of requirements whose metadata name no page."""
LICENCE_OF_EVERY_REQUIREMENT = """
import importlib.metadata, json
found = {}
for each in importlib.metadata.distributions():
    said = each.metadata
    words = [said.get("License-Expression") or "", (said.get("License") or "").split("\\n")[0]]
    words += [w.rsplit("::", 1)[-1].strip() for w in said.get_all("Classifier") or [] if w.startswith("License ::")]
    found[said["Name"]] = {"version": each.version, "licence": next(filter(None, words), ""), "all": words,
        "home": [*filter(None, [said.get("Home-page")]), *(said.get_all("Project-URL") or [])]}
print(json.dumps(found))
"""


class Refusal(Exception):
    """A step whose condition does not hold, in one sentence with its remedy."""


def run(
    words: Sequence[str | Path],
    place: Path,
    *,
    fails: str | None = None,
    environment: Mapping[str, str] = {},
) -> str:
    """Run a command and return its output; where it fails, ``fails`` is refused with its last lines."""
    done = subprocess.run(
        [*map(str, words)],
        cwd=place,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    if done.returncode:
        last = " / ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise Refusal(f"{fails or ' '.join(map(str, words))}, got: {last}")
    return done.stdout


@dataclass(frozen=True)
class Release:
    """A version of the repository at ``root`` that is checked and built."""

    root: Path
    version: str

    @property
    def out(self) -> Path:
        """The folder that is built into."""
        return self.root / "dist" / self.version

    @property
    def notes(self) -> Path:
        """The page that says what was tested."""
        return self.root / "docs" / "releases" / f"{self.version}.md"

    @cached_property
    def installed(self) -> Path:
        """The Python of a new environment that has the wheel and its requirements, and no
        repository."""
        place = Path(tempfile.mkdtemp(prefix="release-")) / "venv"
        venv.create(place, with_pip=True)
        python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
        run(
            [python, "-m", "pip", "install", "--quiet", self.built(".whl")],
            place,
            fails="the wheel must install in a new environment",
        )
        return python

    def git(self, *words: str, fails: str | None = None) -> str:
        """Run git on the repository."""
        return run(["git", *words], self.root, fails=fails).strip()

    def built(self, ending: str) -> Path:
        """Return the one built file of an ending."""
        found = sorted(self.out.glob(f"*{ending}"))
        if len(found) != 1:
            raise Refusal(f"{self.out} must hold one file *{ending}, got {len(found)}")
        return found[0]


# Steps that look at the repository.


def check_tree(release: Release) -> str:
    """Nothing is changed, added or forgotten."""
    changed = release.git("status", "--porcelain").splitlines()
    if changed:
        raise Refusal(f"the tree must be clean, got {len(changed)} changes, first {changed[0]!r}")
    return "clean"


def check_version(release: Release) -> str:
    """The library is of this version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", release.version):
        raise Refusal(f"the version must have the form 1.2.3, got {release.version!r}")
    text = (release.root / VERSION_FILE).read_text("utf-8")
    found = re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    if found != [release.version]:
        raise Refusal(
            f"{VERSION_FILE} must say {release.version}, got {', '.join(found) or 'no version'}; "
            "write it there and commit"
        )
    return release.version


def check_changelog(release: Release) -> str:
    """All fragments are in the changelog, under this version and a date."""
    folder = release.root / "changelog.d"
    left = sorted(path.name for path in folder.glob("*.*.md"))
    if left:
        raise Refusal(
            f"changelog.d must hold no fragments, got {len(left)}, first {left[0]}; "
            f"towncrier build --version {release.version}"
        )
    text = (release.root / "CHANGELOG.md").read_text("utf-8")
    first = re.search(r"^## (.*)$", text, re.MULTILINE)
    heading = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", first[1] if first else "")
    if heading is None or heading[1] != release.version:
        raise Refusal(
            f"CHANGELOG.md must begin with {release.version} (YEAR-MONTH-DAY), "
            f"got {first[1] if first else 'no version'!r}"
        )
    cited = (release.root / "CITATION.cff").read_text("utf-8")
    if f"date-released: {heading[2]}" not in cited:
        raise Refusal(f"CITATION.cff must say date-released: {heading[2]}, as CHANGELOG.md does")
    return f"no fragments left, dated {heading[2]}"


def check_tests(release: Release) -> str:
    """The notes record tests of this very code without a failure."""
    where = release.notes.relative_to(release.root).as_posix()
    if not release.notes.is_file():
        raise Refusal(f"{where} must record the tests, got no such file")
    text, said = release.notes.read_text("utf-8"), list[str]()
    for command in TESTS:
        record = re.search(
            rf"^- `{command}`: ([\d,]+) passed, ([\d,]+) failed, at ([0-9a-f]{{40}})$",
            text,
            re.MULTILINE,
        )
        if record is None:
            raise Refusal(
                f"{where} must have a line '- `{command}`: N passed, 0 failed, at COMMIT'"
            )
        passed, failed, commit = record.groups()
        if failed != "0" or passed == "0":
            raise Refusal(f"{command} must pass whole, got {passed} passed and {failed} failed")
        release.git(
            *("merge-base", "--is-ancestor", commit, "HEAD"),
            fails=f"{command} must have run on a commit before this one, got {commit[:12]}",
        )
        later = release.git("diff", "--name-only", commit, "HEAD").splitlines()
        other = [name for name in later if not name.startswith(NOTES) and name != VERSION_FILE]
        if VERSION_FILE in later and not _is_version_alone(release, commit):
            other.append(VERSION_FILE)
        if other:
            raise Refusal(
                f"{command} must have run on this code, got {len(other)} files changed since, "
                f"first {other[0]}"
            )
        said.append(f"{command}: {passed} passed")
    return "; ".join(said)


def _is_version_alone(release: Release, commit: str) -> bool:
    """Return whether the version's line is all that changed in its file."""
    shown = release.git("diff", "--unified=0", commit, "HEAD", "--", VERSION_FILE)
    lines = re.findall(r"^[+-](?![+-]{2} ).*", shown, re.MULTILINE)
    return all(line[1:].startswith("__version__ = ") for line in lines)


def check_tag(release: Release) -> str:
    """A signed tag of this version is on this commit."""
    tag = f"v{release.version}"
    if tag not in release.git("tag", "--list", tag).splitlines():
        raise Refusal(f"the tag {tag} must exist; git tag --sign {tag}")
    if release.git("cat-file", "-t", tag) != "tag":
        raise Refusal(f"{tag} must be an annotated tag with the notes, got a plain one")
    at, head = release.git("rev-parse", f"{tag}^{{commit}}"), release.git("rev-parse", "HEAD")
    if at != head:
        raise Refusal(f"{tag} must be at this commit {head[:12]}, got {at[:12]}")
    release.git(
        "verify-tag", tag, fails=f"{tag} must have a signature that git verifies; git tag --sign"
    )
    return f"{tag} signed at {head[:12]}"


# Steps that build, and look at what was built.


def build(release: Release, source: Path, out: Path) -> None:
    """Build wheel and source archive of a folder, with the builder of this environment; times in
    them are the commit's."""
    moment = release.git("log", "-1", "--format=%ct")
    run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source],
        release.root,
        fails="the package must build",
        environment={"SOURCE_DATE_EPOCH": moment},
    )


def check_build(release: Release) -> str:
    """Wheel and source archive are built into an empty folder."""
    shutil.rmtree(release.out, ignore_errors=True)
    build(release, release.root, release.out)
    names = [release.built(".whl").name, release.built(".tar.gz").name]
    if not all(re.match(rf"lastiterate-{re.escape(release.version)}[-.]", name) for name in names):
        raise Refusal(f"built files must be of version {release.version}, got {', '.join(names)}")
    return ", ".join(names)


def check_metadata(release: Release) -> str:
    """An index would take the metadata and show the README."""
    files = [release.built(".whl"), release.built(".tar.gz")]
    run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        release.root,
        fails="twine must accept both files",
    )
    return "twine check --strict"


def check_contents(release: Release) -> str:
    """The wheel has every file of the sources and no other."""
    run(
        [sys.executable, "-m", "check_wheel_contents", release.built(".whl")],
        release.root,
        fails="the wheel must hold the sources and nothing else",
    )
    return "check-wheel-contents"


def check_size(release: Release) -> str:
    """Neither file is larger than ``MOST``."""
    sizes = {path.name: path.stat().st_size for path in sorted(release.out.glob("lastiterate-*"))}
    for name, size in sizes.items():
        if size > MOST:
            raise Refusal(f"{name} must have at most {MOST:,} bytes, got {size:,}")
    return ", ".join(f"{size / 1e6:.2f} MB" for size in sizes.values())


def check_reproducible(release: Release) -> str:
    """A second build, of a clone in another folder, has the same bytes."""
    with tempfile.TemporaryDirectory() as place:
        clone, out = Path(place) / "clone", Path(place) / "out"
        run(["git", "clone", "--quiet", release.root, clone], release.root)
        run(["git", "checkout", "--quiet", release.git("rev-parse", "HEAD")], clone)
        build(release, clone, out)
        for ending in (".whl", ".tar.gz"):
            one = release.built(ending)
            if hash_file(one) != hash_file(out / one.name):
                raise Refusal(f"two builds of {one.name} must have the same bytes, got others")
    return "two builds have the same bytes"


def check_installation(release: Release) -> str:
    """The installed commands work without the repository."""
    place = release.installed.parent.parent
    said = run([release.installed, "-m", "lastiterate", "--version"], place).strip()
    if said != f"lastiterate {release.version}":
        raise Refusal(f"the installed command must be lastiterate {release.version}, got {said!r}")
    train = ["-m", "lastiterate", "train", "digits", "--epsilon", "1", "--out", "model"]
    run([release.installed, *train], place, fails="the demo must train")
    run(
        [release.installed, "-m", "lastiterate", "verify", "model"],
        place,
        fails="the demo's certificate must hold",
    )
    return "train and verify work"


def check_licences(release: Release) -> str:
    """Every requirement has a licence that lets anybody use it, and a page of its owner."""
    found = json.loads(run([release.installed, "-c", LICENCE_OF_EVERY_REQUIREMENT], release.root))
    for name in ("lastiterate", "pip", "setuptools"):  # itself, and what every environment has
        found.pop(name, None)
    refuse_licences(found)
    return f"{len(found)} distributions"


def refuse_licences(found: Mapping[str, Mapping[str, object]]) -> None:
    """Refuse distributions without a known licence, or without a page."""
    for name, about in sorted(found.items()):
        licences = [str(words).lower() for words in about["all"] if words]  # pyright: ignore
        strict = [
            text for text in licences if re.search(r"gpl|copyleft", text) and " or " not in text
        ]
        known = [word for text in licences for word in LICENCES if re.search(rf"\b{word}\b", text)]
        if strict or not known:
            raise Refusal(
                f"{name} must have a licence that anybody may use, got {about['licence']!r}; look at "
                "it, and add its words to LICENCES where it is one"
            )
        if not about["home"] and name not in OWNERS:
            raise Refusal(f"{name} must name a page of its owner, got none")


def check_bill(release: Release) -> str:
    """The bill of materials (CycloneDX) lists the wheel and all it requires."""
    file = release.out / f"lastiterate-{release.version}.cdx.json"
    run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", release.installed),
            *("--output-reproducible", "--output-format", "JSON", "--output-file", file),
        ],
        release.root,
        fails="the bill of materials must be written",
    )
    bill = json.loads(file.read_text("utf-8"))
    bill["components"] = [part for part in bill["components"] if part["name"] != "pip"]
    refuse_bill(bill, release.version)
    wheel = release.built(".whl")
    own = next(part for part in bill["components"] if part["name"] == "lastiterate")
    bill["components"].remove(own)
    own.pop("externalReferences", None)  # the folder that it was installed from
    bill["metadata"]["component"] = own | {
        "hashes": [{"alg": "SHA-256", "content": hash_file(wheel)}]
    }
    file.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", "utf-8")
    return f"{len(bill['components'])} components"


def refuse_bill(bill: Mapping[str, object], version: str) -> None:
    """Refuse a bill of another form, without the library, or with nameless versions."""
    parts: list[dict[str, str]] = bill.get("components", [])  # pyright: ignore
    if bill.get("bomFormat") != "CycloneDX" or not parts:
        raise Refusal("the bill of materials must be CycloneDX with components, got another file")
    if ("lastiterate", version) not in {(part["name"], part.get("version")) for part in parts}:
        raise Refusal(f"the bill of materials must list lastiterate {version}, got none")
    for part in parts:
        if not part.get("version"):
            raise Refusal(f"{part['name']} must have a version in the bill of materials, got none")


def check_documentation(release: Release) -> str:
    """The site has this version, made of this commit; its copy for reading offline is added."""
    ways = [
        ref
        for ref in SITES
        if ref in release.git("branch", "--all", "--format=%(refname:short)").split()
    ]
    remedy = f"make docs-version VERSION={release.version}"
    if not ways:
        raise Refusal(f"the branch {SITES[0]} must have the site, got no such branch; {remedy}")
    folder = release.version.rpartition(".")[0]
    versions = json.loads(release.git("show", f"{ways[0]}:versions.json"))
    title = {each["version"]: each["title"] for each in versions}.get(folder)
    if title != release.version:
        raise Refusal(f"{ways[0]} must have {release.version} in {folder}, got {title}; {remedy}")
    said = release.git("log", "-1", "--format=%s", ways[0], "--", folder)
    made = re.match(r"Deployed ([0-9a-f]+) to ", said)
    head = release.git("rev-parse", "HEAD")
    if made is None or not head.startswith(made[1]):
        raise Refusal(f"{folder} must be made of this commit {head[:7]}, got {said!r}; {remedy}")
    file = release.out / f"documentation-{release.version}.zip"
    release.git("archive", "--prefix=lastiterate-", f"--output={file}", ways[0], folder)
    return f"{file.name}, {file.stat().st_size / 1e6:.1f} MB"


def write_hashes(release: Release) -> str:
    """SHA256SUMS has the hash of every file."""
    files = sorted(path for path in release.out.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hash_file(path)}  {path.name}\n" for path in files]
    (release.out / "SHA256SUMS").write_text("".join(lines), "utf-8")
    return f"{len(lines)} files"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


STEPS: dict[str, Callable[[Release], str]] = {
    "tree": check_tree,
    "version": check_version,
    "changelog": check_changelog,
    "tests": check_tests,
    "tag": check_tag,
    "build": check_build,
    "metadata": check_metadata,
    "contents": check_contents,
    "size": check_size,
    "reproducible": check_reproducible,
    "installation": check_installation,
    "licences": check_licences,
    "bill of materials": check_bill,
    "documentation": check_documentation,
    "hashes": write_hashes,
}
"""Every step by its name, in order."""


def follow(release: Release, steps: Iterable[str], rehearse: bool) -> list[str]:
    """Go through steps and print each outcome; return the refusals, of which the first ends it
    unless it is a rehearsal."""
    refused = list[str]()
    for name in steps:
        try:
            print(f"{name}: {STEPS[name](release)}", flush=True)
        except Refusal as refusal:
            refused.append(f"{name}: {refusal}")
            print(f"missing: {refused[-1]}.", file=sys.stderr, flush=True)
            if not rehearse:
                break
    return refused


def main(words: Sequence[str] | None = None) -> int:
    """Check and build a release; 0 where nothing is missing, 1 where something is."""
    parser = argparse.ArgumentParser(description="Check and build a release.")
    parser.add_argument("version", nargs="?", help="1.2.3, as the library says it")
    parser.add_argument("--rehearse", action="store_true", help="go on, and list what is missing")
    parser.add_argument("--list", action="store_true", help="list the steps")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    given = parser.parse_args(words)
    if given.list:
        for name, step in STEPS.items():
            print(f"{name:18} {(step.__doc__ or '').strip().splitlines()[0]}")
        return 0
    if given.version is None:
        parser.error("version: must be given, as in: python tools/release.py 1.2.3")
    release = Release(given.root, given.version.removeprefix("v"))  # a tag's name is taken, too
    try:
        refused = follow(release, STEPS, given.rehearse)
    finally:
        if "installed" in vars(release):
            shutil.rmtree(release.installed.parents[2], ignore_errors=True)
    if not refused:
        print(f"dist/{given.version} is ready to be signed and uploaded.")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
