"""What the package says of itself agrees: one version, bounds and their lowest versions, the files
of the wheel."""

import re
import tomllib
from pathlib import Path

import pytest

import lastiterate as li

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = SETTINGS["project"]


def read_pins(name):
    """Return the exact versions of a constraints file, by the names of their distributions."""
    lines = (ROOT / name).read_text("utf-8").splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(equal for _, equal, _ in pins)
    return {re.sub("[-_.]+", "-", name).lower(): version for name, _, version in pins}


def release(version):
    """Return a version as numbers without zeros at its end."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def test_the_version_has_one_place():
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    place = ROOT / SETTINGS["tool"]["hatch"]["version"]["path"]
    assert place.read_text("utf-8").count(f'__version__ = "{li.__version__}"') == 1
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", li.__version__)


def test_lowest_versions_are_the_bounds():
    """A bound that nobody tests is a guess: the file of `make test-lowest` has every one."""
    pins = read_pins("constraints-lowest.txt")
    assert pins.pop("jaxlib") == pins["jax"]
    bounds = {}
    for text in PROJECT["dependencies"]:
        name, bound = re.match(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?$", text).groups()
        bounds[name] = release(bound)
    assert {name: release(version) for name, version in pins.items()} == bounds


def test_every_requirement_has_its_version_of_the_tests():
    """The Makefile itself names torch, which some Pythons have not."""
    pins = read_pins("constraints.txt")
    names = [re.match(r"[\w-]+", text)[0] for text in PROJECT["dependencies"]]
    names += [re.match(r"[\w-]+", text)[0] for text in PROJECT["optional-dependencies"]["test"]]
    plain = {re.sub("[-_.]+", "-", name).lower() for name in names}
    assert not plain - {*pins}


@pytest.mark.parametrize("kind", ["schema.json", "js", "css", "pyi", "typed"])
def test_files_that_are_no_modules_lie_where_the_wheel_takes_them(kind):
    """tools/release.py compares the wheel with these folders, file by file."""
    packages = SETTINGS["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert SETTINGS["tool"]["check-wheel-contents"]["toplevel"] == [
        Path(package).name for package in packages
    ]
    assert [path for package in packages for path in (ROOT / package).rglob(f"*.{kind}")]


def test_hashes_are_of_the_versions_of_the_tests():
    """Both files change together, and every distribution has a hash."""
    text = (ROOT / "requirements-test.txt").read_text("utf-8")
    parts = re.findall(
        r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n?)+)", text, re.M
    )
    assert len(parts) == len(re.findall("^[^# ]", text, re.M)) > 100
    pins = read_pins("constraints.txt")
    locked = {re.sub("[-_.]+", "-", name).lower(): version for name, version, _ in parts}
    assert {name: pins[name] for name in locked if name in pins} == {
        name: version for name, version in locked.items() if name in pins
    }
    names = [re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]]
    names += [re.match(r"[\w-]+", line)[0] for line in PROJECT["optional-dependencies"]["test"]]
    assert {re.sub("[-_.]+", "-", name).lower() for name in names} <= {*locked}


def test_workflows_call_the_commands_of_the_makefile():
    """Whoever runs them by hand runs the same; no step names a program that only a host has."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    files = [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".gitlab-ci.yml"]
    called = [
        words
        for file in files
        for words in re.findall(r"\bmake ([\w-]+)", re.sub("#.*", "", file.read_text("utf-8")))
    ]
    assert len(files) == 3 and {*called} <= targets
    assert {"lint", "test", "test-lowest", "release", "audit", "demo"} <= {*called}


def test_forms_for_issues_and_changes_are_there():
    """Security problems are sent elsewhere, and a change is asked for what CONTRIBUTING.md asks."""
    folder = ROOT / ".github"
    forms = sorted(path.name for path in (folder / "ISSUE_TEMPLATE").iterdir())
    assert forms == ["bug.yml", "config.yml", "feature.yml", "theorem.yml"]
    assert "SECURITY.md" in (folder / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8")
    asked = (folder / "pull_request_template.md").read_text("utf-8")
    assert all(words in asked for words in ("make lint", "make test", "changelog.d", "broken once"))
