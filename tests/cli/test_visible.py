"""No text of anybody's steers a terminal: escape sequences, bells and overrides of the direction of
text are shown."""

import numpy as np
from rich.table import Table
from typer.testing import CliRunner

import lastiterate as li
from lastiterate import cli
from lastiterate.cli.app import Terminal, visible
from lastiterate.data.schema import Schema

EVIL = "no\x1b]0;owned\x07\x1b[31m\u202eyes\u2066\x9b2J\r"


def harmless(text):
    return not any(letter in text for letter in "\x1b\x07\u202e\u2066\x9b\r")


def test_visible_text():
    assert (
        visible("a\tb\né") == "a\tb\né"
        and visible("\x1b[0m") == "\\x1b[0m"
        and harmless(visible(EVIL))
    )


def test_everything_that_a_console_prints_is_visible(capsys):
    console = Terminal(width=200)
    console.print(EVIL, markup=False)
    table = Table(title=EVIL.replace("[", ""))
    table.add_column("a")
    table.add_row(EVIL.replace("[", ""))
    console.print(table)
    assert harmless(capsys.readouterr().out)


def test_predictions_and_exports_of_a_hostile_folder(tmp_path):
    from dataclasses import replace

    from lastiterate.release.score_meaning import Labels

    rng = np.random.default_rng(0)
    run = li.Run(
        n=60, steps=3, step_size=0.5, noise=li.NoiseMultiplier(12.0), loss=li.Logistic(ridge=0.05)
    )
    schema = Schema.from_dict(
        {
            "target": "y",
            "classes": [EVIL, "b"],
            "source": "",
            "columns": {},
            "array": {"low": 0.0, "high": 1.0, "outside": "clip"},
        }
    )
    model = li.train(
        run,
        (rng.random((60, 2)), rng.integers(0, 2, 60)),
        delta=1e-5,
        statement={"purpose": "\u202eepsilon", "contact": "\x1b[2Jdpo"},
    )
    where = replace(model, schema=schema, answers=Labels(schema.classes)).save(
        tmp_path / f"m{EVIL[:3]}\x1b"
    )
    np.save(tmp_path / "new.npy", rng.random((5, 2)))
    exports = (
        ["export", str(where), "--format", form]
        for form in ("model-card", "registry", "scai", "bibtex")
    )
    for command in (
        ["predict", str(where), str(tmp_path / "new.npy")],
        ["verify", str(where)],
        *exports,
    ):
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 0 and done.stdout and harmless(done.output), command
    done = CliRunner().invoke(cli.app, ["verify", str(tmp_path / f"no{EVIL}")])
    assert done.exit_code == 2 and harmless(done.output)
