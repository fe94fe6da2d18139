"""What the screen shows fits 80 columns, leads with the answer, and can be taken elsewhere."""

import csv
import io
import json
import warnings
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.accounting.noise_calibration import warn_of_epsilon
from lastiterate.audit.attacks import ATTACKS
from lastiterate.cli import app
from lastiterate.cli.account import format_latex
from lastiterate.cli.app import format_csv
from lastiterate.cli.help import COMMANDS, OPTIONS
from lastiterate.features.map_registry import TABLE as MAPS
from lastiterate.planning.presets import NAMED
from lastiterate.report.exports import FORMATS
from lastiterate.theorems import TABLE

RUN = [
    "--n",
    "6000",
    "--steps",
    "300",
    "--step-size",
    "0.05",
    "--noise-multiplier",
    "3",
    "--clip",
    "1",
    "--batch",
    "cyclic:1500",
    "--smooth",
    "1",
    "--strong",
    "0.01",
    "--trust-constants",
]


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def call(*arguments):
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    return done.exit_code, done.output


def test_every_theorem_is_listed_with_its_whole_statement():
    code, out = call("theorems")
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    joined = " ".join(out.split())
    for one in TABLE.values():
        assert f"{one.name} ({one.kind}) {' '.join(one.title.split())}" in joined
    assert "\u2026" not in out


BARE = ("account", "--n", 1000, "--steps", 100, "--step-size", 0.1)


@pytest.mark.parametrize(
    "noise, missing, remedies",
    [
        (
            ("--noise-std", 1),
            "composition-gdp: the gradient's sensitivity is unknown: clip per-example gradients "
            "(--clip C), or state --sensitivity S or --lipschitz L",
            [
                ("--clip", 1),
                ("--sensitivity", 1, "--trust-constants"),
                ("--lipschitz", 1, "--trust-constants"),
            ],
        ),
        (
            ("--noise-std", 1, "--sensitivity", 1),
            "composition-gdp: rests on ASSUMED facts (sensitivity given by the caller): pass "
            "--trust-constants to rely on them",
            [("--trust-constants",)],
        ),
        (
            ("--noise-multiplier", 1),
            "noise_multiplier needs a clip or a lipschitz constant to multiply",
            [("--clip", 1), ("--lipschitz", 1, "--trust-constants")],
        ),
    ],
)
def test_a_run_that_nothing_certifies_takes_few_lines_and_names_a_flag_that_helps(
    noise, missing, remedies
):
    code, out = call(*BARE, *noise)
    first, second = out.splitlines()[:2]
    assert code == 1 and first == "no theorem certifies this run."
    assert second.startswith("Nearest is composition-gdp: ") and len(out.splitlines()) < 16
    joined = " ".join(out.split())
    assert missing in joined and "theorems do not apply: --all says why" in joined
    assert "correlated-gdp" not in joined, "one theorem is nearest"
    for remedy in remedies:
        code, said = call(*BARE, *noise, *remedy)
        assert code == 0 and said.startswith("epsilon ")
    code, every = call(*BARE, *noise, "--all")
    assert code == 1 and len(every.splitlines()) > 40 and missing in " ".join(every.split())
    assert all(f"--{word}" in every for word in ("batch poisson:q", "radius R", "hoelder H"))


def test_a_budget_that_nothing_certifies_names_the_command_that_says_why():
    code, out = call("calibrate", *BARE[1:], "--epsilon", 1)
    said = " ".join(out.split())
    assert code == 2 and "(--clip C)" in said and "lastiterate account --all says it of all" in said


def test_account_leads_with_the_answer_and_folds_the_rest():
    code, out = call("account", *RUN)
    fails = sum(
        not row["applies"] for row in json.loads(call("account", *RUN, "--json")[1])["verdicts"]
    )
    assert code == 0 and out.startswith("epsilon ") and len(out.splitlines()) < 30 and fails > 20
    assert f"{fails} theorems do not apply" in " ".join(out.split()) and "sources:" not in out
    _, every = call("account", *RUN, "--all")
    joined = " ".join(every.split())
    assert (
        every.startswith(out.splitlines()[0]) and "sources:" in every and "does not apply:" in every
    )
    assert all(name in joined for name in TABLE)


def test_tables_for_other_programs_hold_the_same_numbers_and_round_to_the_safe_side():
    verdicts = {
        row["theorem"]: row for row in json.loads(call("account", *RUN, "--json")[1])["verdicts"]
    }
    rows = list(csv.DictReader(io.StringIO(call("account", *RUN, "--csv")[1])))
    assert len(rows) == len(verdicts)
    for row in rows:
        wanted = verdicts[row["theorem"]]
        assert (row["applies"] == "yes") == wanted["applies"]
        assert (float(row["epsilon"]) if row["epsilon"] else None) == wanted["epsilon"]
    shown = call("account", *RUN, "--latex")[1]
    assert shown.startswith(r"\begin{tabular}{lllrll}") and shown.count(r"\\") == len(verdicts) + 1
    for line in shown.splitlines()[4:-2]:
        name, kind, _, epsilon, *_ = (
            cell.strip() for cell in line.removesuffix(r"\\").split(" & ")
        )
        exact = verdicts[name]["epsilon"]
        if exact is None:
            assert epsilon == "--"
        else:
            assert (
                exact * 0.998 <= float(epsilon) <= exact
                if kind == "lower"
                else exact <= float(epsilon)
            )
    assert len(list(csv.reader(io.StringIO(call("theorems", "--csv")[1])))) == len(TABLE) + 1
    code, said = call("account", *RUN, "--csv", "--json")
    assert code == 2 and "cannot be combined" in said


def test_no_text_of_a_cell_can_become_latex_or_another_cell():
    rows = [["a & b\\", 'x,"y"\n', "50 % {$_^~#}"]]
    assert list(csv.reader(io.StringIO(format_csv(["1", "2", "3"], rows))))[1] == rows[0]
    line = format_latex(["1", "2", "3"], rows).splitlines()[4]
    assert (
        line.count(" & ") == 2 and r"a \& b\textbackslash{} & " in line and r"50 \% \{\$\_" in line
    )


def every_flag(command, name):
    for word, inner in getattr(command, "commands", {}).items():
        yield from every_flag(inner, f"{name} {word}")
    yield from ((name, each) for each in command.params)


def test_every_flag_has_help_of_one_line():
    wrong = [
        f"{name} {each.opts[0]}"
        for name, each in every_flag(typer.main.get_command(app), "lastiterate")
        if each.name not in ("help", "install_completion", "show_completion")
        and not 0 < len(getattr(each, "help", None) or "") <= 70
    ]
    assert not wrong


def commands():
    group = typer.main.get_command(app)
    ledger = group.commands["ledger"].commands
    return [[name] for name in group.commands] + [["ledger", name] for name in ledger]


@pytest.mark.parametrize("names", commands(), ids=" ".join)
def test_help_fits_eighty_columns_without_a_broken_word(names):
    code, out = call(*names, "--help")
    assert (
        code == 0
        and "\u2026" not in out
        and "``" not in out
        and max(map(len, out.splitlines())) <= 80
    )
    command = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]
    lines = out.splitlines()
    for each in command.params:  # a line for each
        assert sum((each.help or "?") in line for line in lines) >= 1, each.name


def test_commands_are_listed_in_the_order_of_use_in_a_line_each():
    code, out = call("--help")
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    ordered = [name for names in COMMANDS.values() for name in names]
    assert code == 0 and [name for name in listed if name in ordered] == ordered
    every = typer.main.get_command(app).commands
    assert set(every) == set(ordered)
    assert all(len(command.get_short_help_str(200)) <= 62 for command in every.values())


def test_the_stored_list_of_commands_is_what_help_writes():
    """After ``python -m lastiterate --help`` that imports every command; ``overview.txt`` is from
    its first option on."""
    stored = Path(li.__file__).with_name("overview.txt").read_text()
    assert call("--help")[1].partition("[OPTIONS]")[2] == stored.partition("[OPTIONS]")[2]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_panel(name):
    command = typer.main.get_command(app).commands[name]
    flags = [part for part in command.params if part.param_type_name == "option"]
    assert not [part.opts for part in flags if part.rich_help_panel not in OPTIONS[name]]
    if name != "account":
        assert flags[0].name == "epsilon"


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (("train", "wine", "--epsilon", 1, "--algorithm", "list"), NAMED),
        (("train", "wine", "--epsilon", 1, "--features", "list"), MAPS),
        (("train", "wine", "--epsilon", 1, "--algorithm", "noisy-sgd", "--prox", "list"), ["l1:W"]),
        (("train", "--batch", "list"), ["permuted:B", "allocation:B"]),
        (("account", *RUN[:-1], "--batch", "list"), ["permuted:B", "allocation:B"]),
        (("calibrate", "--prox", "list"), ["none", "nuclear-norm:W"]),
        (("export", ".", "--format", "list"), FORMATS),
        (("audit", "nothing", "--attack", "list"), [*ATTACKS, "replay", "one-run"]),
    ],
    ids=["algorithm", "features", "prox", "batch", "account", "calibrate", "format", "attack"],
)
def test_the_word_list_shows_all(arguments, known):
    """One line each, with what it is."""
    code, out = call(*arguments)
    lines = [line.split("  ", 1) for line in out.splitlines()]
    assert code == 0 and {*known} <= {name for name, _ in lines}
    assert all(about.strip() for _, about in lines)


def test_every_option_that_promises_a_list_has_one():
    """The help says that list shows all where it does."""
    found = 0
    for command in typer.main.get_command(app).commands.values():
        for part in command.params:
            if "list shows all" in (getattr(part, "help", None) or ""):
                code, out = call(command.name, part.opts[0], "list")
                assert (code, len(out.splitlines()) > 4) == (0, True), (command.name, part.opts)
                found += 1
    assert found >= 9


def test_an_epsilon_that_promises_next_to_nothing_is_warned_of():
    with pytest.warns(li.errors.BudgetWarning, match="next to nothing"):
        warn_of_epsilon(20.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_epsilon(20.0)
    with pytest.warns(li.errors.BudgetWarning, match="epsilon = 50 promises"):
        li.calibrate(
            li.Run(n=1000, steps=10, step_size=0.1, clip=1.0, loss=li.Logistic()),
            epsilon=50.0,
            delta=1e-5,
        )
    weak = [*RUN[:7], "0.5", *RUN[8:]]
    with pytest.warns(li.errors.BudgetWarning, match="next to nothing"):
        call("account", *weak, "--release", "all")


def test_a_budget_that_buys_nothing_is_warned_of_and_its_plans_say_so(tmp_path):
    with pytest.warns(
        li.errors.BudgetWarning, match="this budget lets hardly anything be learnt from 142 records"
    ):
        code, out = call(
            "train", "wine", "--epsilon", "0.001", "--explain-plan", "--out", tmp_path / "model"
        )
    assert code == 0 and "This budget lets hardly anything be learnt" in " ".join(out.split())


def test_json_of_train_is_a_summary(tmp_path):
    code, out = call(
        "train",
        "breast_cancer",
        "--epsilon",
        "4",
        "--algorithm",
        "noisy-gd",
        "--json",
        "--purpose",
        "a test",
        "--trained-by",
        "us",
        "--out",
        tmp_path / "m",
    )
    body = json.loads(out[out.index("{") :])
    assert code == 0 and len(out) < 2500 and body["run"]["n"] > 400 and "certificate" not in body
    said = json.loads((tmp_path / "m" / "certificate.json").read_text())["word"]
    assert said["purpose"] == "a test" and said["trained_by"] == "us"
    scores = body["test_scores"]
    assert scores["value"] == body["test_score"] and scores["largest_class"] == "1"
    assert said["accuracy"] == (
        f"{body['test_score']:.3f} on a bundled public test set; always answering 1 gets "
        f"{scores['largest_share']:.3f}; AUROC {scores['auroc']:.3f}; average precision "
        f"{scores['average_precision']:.3f} for 0"
    )


@pytest.mark.parametrize(
    "cell",
    [
        "=1+1",
        "+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\uff1d1+1",
        "=",
        "-",
        "-inf",
        "+1e5x",
        "-1_000",
    ],
)
def test_no_cell_of_a_table_is_a_formula(cell):
    assert next(iter(csv.reader(io.StringIO(format_csv([cell], [["x"]]), newline="")))) == [
        "'" + cell
    ]
    assert list(csv.reader(io.StringIO(format_csv(["x"], [[cell]]), newline="")))[1] == ["'" + cell]


def test_numbers_and_names_stay_as_they_are():
    cells = ["-1", "+2.5", "-1e-05", "-.5", "a=b", "x-1", "", "3", "'=1", "\u00fc"]
    assert list(csv.reader(io.StringIO(format_csv(["x"] * 10, [cells]))))[1] == cells
    assert format_csv(["x"], [["a\r=1"]]) == 'x\n"a\r=1"\n', "which would begin another line"
    assert format_csv(["x", "y", "z"], [[-1.5, -2, float("-inf")]]) == "x,y,z\n-1.5,-2,-inf\n"
