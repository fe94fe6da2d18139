"""Every snippet of the README and of the documentation runs, and prints what its page says."""

import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
import typer

from docs.snippets import BLOCK, blocks, check, commands, run_command, run_python
from lastiterate.cli import app
from lastiterate.errors import RepeatedFitWarning
from lastiterate.release import composition_reminder

pytestmark = pytest.mark.usefixtures("optimised")  # as readers have them, and large fits

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
}
WITH_BLOCKS = [name for name, text in PAGES.items() if "```" in text]

CLUSTER = "docs/guides/train-on-a-cluster.md"
NOT_RUN = {
    "make test": "is what runs this",
    "make lint": "CI runs it",
    "pip ": "installations are what CI does first",
    "torchrun ": "tests/torch_modules/test_job.py starts the file of that page with it",
}
"""Beginnings of commands that are not executed here, and why not."""
REDUCED = {
    "make demo": (
        "lastiterate train digits --epsilon 1",
        "that is its recipe, after an installation",
    ),
    "trials=2000)": (
        "trials=40, attack='projection')",
        "fewer models and one attack show the same verdict",
    ),
    "trials=20_000)": ("trials=2000)", "a tenth of the models show the same verdict"),
    "lastiterate audit model/ ": (
        "lastiterate audit model/ --trials 20 --attack projection ",
        "a minute by default",
    ),
}
"""What is executed in the place of what would take minutes, and why that shows the same."""

NEEDED = {
    "docs/quickstart-torch.md": ("torch",),
    "docs/tutorials/table.md": ("model_signing",),
    "docs/guides/from-opacus.md": ("torch", "opacus"),
    "docs/guides/fine-tuning.md": ("torch",),
    "docs/guides/hugging-face.md": ("torch", "transformers", "accelerate"),
    "docs/guides/cannot-be-private.md": ("torch",),
    "docs/guides/from-optax.md": ("optax",),
    "docs/tutorials/lora.md": ("torch", "transformers", "peft"),
}
"""Pages whose blocks need a library that is no dependency."""


def executed(text):
    """The text of a block with what is reduced in it."""
    for whole, (part, _) in REDUCED.items():
        text = text.replace(whole, part)
    return text


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A reader's folder; warnings about repeated fits as in a new process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(composition_reminder, "REMINDER", composition_reminder.Reminder())
    matplotlib.use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedFitWarning)
        yield tmp_path


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_a_page_does_what_it_shows(page, desk):
    names = {}
    for library in NEEDED.get(page, ()):
        found = pytest.importorskip(
            library, reason=f"{page} needs {library}, which has no build for this machine"
        )
        if library == "torch":
            found.set_num_threads(1)  # small tensors: threads would wait for one another
    if "$ openssl " in PAGES[page] and shutil.which("openssl") is None:
        pytest.skip(f"{page} needs the command openssl")
    for block in blocks(PAGES[page]):
        if page == CLUSTER and block.language in ("bash", "yaml"):
            continue  # tests/cli/test_processes.py starts them
        assert block.language in ("python", "console", "toml", "r"), (
            f"{page}: a block of another kind is not executed"
        )
        if block.language == "r":  # without R: the commands that it calls
            called = re.findall(r"^lastiterate\((.*)\)$", block.text, re.MULTILINE)
            assert called
            for arguments in called:
                words = ["lastiterate", *re.findall(r'"(.*?)"', arguments)]
                assert "error:" not in run_command(" ".join(words), desk, page)
            continue
        if (
            block.language == "toml"
        ):  # a file that the reader saves under the name in its first line
            (desk / re.match(r"# ([\w-]+\.toml)\n", block.text)[1]).write_text(block.text)
            continue
        if block.language == "python":
            run_python(replace(block, text=executed(block.text)), names, page)
            continue
        printed = ""
        for command, shown in commands(block.text):
            bare = command.split("  #")[0].strip()
            if bare.startswith(tuple(NOT_RUN)):
                continue
            found = run_command(executed(command), desk, page)
            assert shown is not None or not found.startswith("error:"), (
                f"{page}: {command}\n{found}"
            )
            if shown is not None:
                check(shown, found, f"{page}: {command}")
            printed += found
        if block.printed is not None:
            check(block.printed, printed, page)


def test_what_is_not_executed_as_it_stands_is_little_and_still_there():
    every = "\n".join(PAGES.values())
    assert len(NOT_RUN) + len(REDUCED) <= 8 and all(
        whole in every for whole in (*NOT_RUN, *REDUCED)
    )
    demo = (ROOT / "Makefile").read_text().split("\ndemo:")[1].splitlines()[1]
    assert demo.strip().removeprefix("$(BIN)/") == REDUCED["make demo"][0]


def test_flags_in_running_text_exist():
    """Commands that are mentioned, and not shown in a block, use the flags of their command."""
    group = typer.main.get_command(app)
    known = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in group.commands.items()
    }
    mentioned = [
        (page, found)
        for page, text in PAGES.items()
        for found in re.findall(r"`lastiterate ([a-z]+)( [^`]*)?`", BLOCK.sub("", text))
    ]
    assert len(mentioned) > 10
    for page, (name, rest) in mentioned:
        wrong = set(re.findall(r"--[a-z-]+", rest)) - known[name]
        assert not wrong or name == "ledger", (page, name, wrong)


def test_a_page_that_says_something_else_is_noticed(tmp_path):
    page = "```python\nprint(1 + 1)  # 3\n```\n"
    with pytest.raises(AssertionError, match=r"says: +3"):
        run_python(blocks(page)[0], {}, "page")
    with pytest.raises(AssertionError, match="does not show"):
        run_python(blocks("```python\nprint(1)\n```\n")[0], {}, "page")
    with pytest.raises(NameError):
        run_python(blocks("```python\nx + 1\n```\n")[0], {}, "page")
    assert blocks("```python\nprint(1)\n```\n\n```text\n1\n```\n")[0].printed == "1\n"
    check("a ... c", "a b c", "page")
    check("test accuracy 0.925", "test accuracy  0.8", "page")
    for other in (
        "test accuracy none",
        "test accuracy 1.2",
        "test accuracy nan",
        "test accuracy -0.1",
        "accuracy 0.9",
    ):
        with pytest.raises(AssertionError):
            check("test accuracy 0.9", other, "page")
    assert commands("$ a  # why\n1\n2\n$ b \\\n  c") == [("a  # why", "1\n2"), ("b    c", None)]
    assert run_command("lastiterate verify nothing", tmp_path, "page").startswith("error:")
