"""Messages of the library name arguments, and the command line turns them into flags by one table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate.cli import run_flags
from lastiterate.cli.app import VALUES, flag_of, translate_to_flags
from tests.cli.test_cli import call

SOURCES = Path(li.__file__).parent
FLAG = re.compile(r"(?<![\w-])--([a-z]|$)")
COMMAND = re.compile(
    r"lastiterate [a-z]+(?:[^`;.]|[.](?=\S))*"
)  #: a whole command may be quoted, with its flags
QUOTES = {
    "report/execution_section.py": "the command that repeats an audit is put together from its settings",
    "engine/streaming/buffers.py": "an environment variable of another library",
    "release/file_training.py": "several candidates are a matter of the command line alone",
    "release/allowance.py": "a remedy names the option next to the argument",
}


def _texts(tree: ast.AST):
    """Every text of a module, the parts of a formatted one together."""
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "x"
                    for part in node.values
                ),
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.lineno, node.value


def _flags_in(source: str) -> list[str]:
    return [
        f"{line}: {text.strip()[:80]}"
        for line, text in _texts(ast.parse(source))
        if FLAG.search(COMMAND.sub("", text))
    ]


def test_no_text_outside_the_command_line_names_a_flag():
    found = {}
    for path in [*SOURCES.rglob("*.py"), *SOURCES.rglob("*.pyi")]:
        name = path.relative_to(SOURCES).as_posix()
        command = name.startswith("cli/") or name == "__main__.py"
        if not command and (lines := _flags_in(path.read_text(encoding="utf-8"))):
            found[name] = lines
    assert set(found) == set(QUOTES), {
        name: lines for name, lines in found.items() if name not in QUOTES
    }


@pytest.mark.parametrize(
    "text, names",
    [
        ("'state --smooth'", True),
        ("f'use --start gaussian:{1!r}'", True),
        ("f'--{1}'", True),
        ("'lastiterate verify --key checks it'", False),
        ("'lastiterate verify fails. Use --key'", True),
        ("'lastiterate account run.json --delta'", False),
        ("'a -- b'", False),
        ("'<!-- page --><b>'", False),
    ],
)
def test_what_counts_as_a_flag(text: str, names: bool):
    assert bool(_flags_in(text)) == names


@pytest.mark.parametrize(
    "python, read",
    [
        *(
            (
                repr(
                    kind(
                        *(
                            [0.25]
                            if kind is li.Poisson
                            else [7]
                            if run_flags.form(kind) != kind.word
                            else []
                        )
                    )
                ),
                run_flags.parse_batching,
            )
            for kind in run_flags.BATCHES.values()
        ),
        *(
            (repr(kind(*[0.5] * form.count(":"))), run_flags.update)
            for kind, form in zip(
                run_flags.UPDATES.values(), run_flags.UPDATE_FORMS[1:], strict=True
            )
        ),
        ("GaussianStart(0.125)", run_flags.start),
        ("FixedStart()", run_flags.start),
    ],
)
def test_what_the_table_says_is_what_the_command_line_reads(python: str, read):
    part = eval(python, vars(li) | {name: getattr(li, name) for name in li.__all__})
    plain = re.sub(r"\w+=", "", python)  # Cyclic(7), as messages write it
    plain = re.sub(r"(Adam|PostProcessing)\(.*\)", r"\1()", plain)
    name, wanted = {
        run_flags.parse_batching: ("batching", "--batch"),
        run_flags.start: ("start", "--start"),
        run_flags.update: ("optimizer", "--momentum"),
    }[read]
    flag, _, words = translate_to_flags(f"{name}={plain}").partition(" ")
    assert flag == wanted and read(words) == part


def test_numbers_and_switches():
    assert (
        translate_to_flags("(clip=C), or state lipschitz=L") == "(--clip C), or state --lipschitz L"
    )
    assert (
        translate_to_flags("state weak_convexity=m, and strong=0")
        == "state --weak-convexity m, and --strong 0"
    )
    assert translate_to_flags("no_header=True") == "no_header=True"
    assert translate_to_flags("no_header=True", ["no_header"]) == "--no-header"
    assert translate_to_flags("a run with release='all'") == "a run with --release 'all'"
    assert (
        translate_to_flags("a capped loss (cap=) needs no clip; give cap= then", ["cap"])
        == "a capped loss (--cap) needs no clip; give --cap then"
    )
    assert translate_to_flags("x=1, clip == 2, epsilon = 3") == "x=1, clip == 2, epsilon = 3"
    assert (
        translate_to_flags("domain=Ball(2.5)") == "--radius 2.5"
        and translate_to_flags("noise=Langevin(sigma)") == "--sigma sigma"
    )
    assert all(translate_to_flags(python) == flag for python, flag in VALUES.items())


def test_arguments_of_other_names():
    assert flag_of("batch size", ["batch"]) == "--batch" and flag_of("folder", ["out"]) == "--out"
    assert flag_of("weak_convexity", ["weak_convexity"]) == "--weak-convexity"
    assert flag_of("batch size", ["data"]) == "batch size", (
        "a command without the flag has no flag to name"
    )


@pytest.mark.parametrize(
    "given, said",
    [
        (["--batch", "poisson:2"], "--batch must lie in"),
        (["--batch", "fixed:200"], "--batch cannot exceed n = 100"),
        (["--start", "gaussian:-1"], "--start must be"),
        (["--prox", "l1:-1"], "--prox must be"),
        (["--release", "some"], "--release must be one of"),
        (["--adjacency", "no"], "--adjacency must be one of"),
        (["--momentum", "heavy-ball:3"], "--momentum must lie in"),
        (["--hoelder", "1"], "--hoelder and hoelder_exponent belong together"),
        (["--noise-std", "-1"], "--noise-std must"),
    ],
)
def test_errors_of_a_described_run_name_the_flag(given: list[str], said: str):
    described = ["--n", "100", "--steps", "10", "--step-size", ".1", "--clip", "1"]
    code, _, err = call(
        "account", *described, *([] if "--noise-std" in given else ["--noise-std", "1"]), *given
    )
    assert code == 2 and said in " ".join(err.split()), err


def test_reasons_name_arguments_in_python_and_flags_on_the_terminal():
    run = li.Run(
        n=100,
        steps=10,
        step_size=0.1,
        noise=li.NoiseMultiplier(1.0),
        loss=li.KnownConstants(li.LossFacts()),
    )
    reasons = {
        reason for row in li.account(run).answer(1e-5)["verdicts"] for reason in row["reasons"]
    }
    assert not any(FLAG.search(reason) for reason in reasons)
    python, described = " ".join(reasons), ["--n", "100", "--steps", "10", "--step-size", ".1"]
    code, out, _ = call("account", *described, "--noise-multiplier", "1", "--all")
    shown = " ".join(out.split())
    assert code == 1 and not re.search(
        r"\b(batching|clip|domain|start|noise|smooth|strong|lipschitz)=", shown
    )
    for argument, flag in {
        "clip=C": "--clip C",
        "lipschitz=L": "--lipschitz L",
        "domain=Ball(R)": "--radius R",
        "smooth=M and strong=0": "--smooth M and --strong 0",
        "log_sobolev=": "--log-sobolev ",
        "batching=Permuted(b)": "--batch permuted:b",
        "batching=Poisson(q)": "--batch poisson:q",
        "noise=GradientNoise(std)": "--noise-std std",
    }.items():
        assert argument in python and flag not in python, argument
        assert flag in shown and argument not in shown, flag


def test_full_batches_are_an_algorithm_where_algorithms_are_named():
    """``train`` takes --batch with a named algorithm only; ``account`` takes it always."""
    text = "epsilon=1.86 fits with batching=FullBatch()"
    assert translate_to_flags(text, {"algorithm"}).endswith("with --algorithm noisy-gd")
    assert translate_to_flags(text).endswith("with --batch full")
