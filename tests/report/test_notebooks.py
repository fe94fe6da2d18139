"""Certificates, plans and audits show themselves in a notebook, as HTML that nothing can break out
of."""

import re
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.audit.report import AuditReport
from lastiterate.errors import InputError
from lastiterate.estimators import DPLogisticRegression
from lastiterate.planning.planner import Choice, Plan
from lastiterate.release.posterior import certify_plan
from lastiterate.report import epsilon_over_steps, receiver_curve
from lastiterate.report.charts import STYLES
from lastiterate.report.plots import theorem_over_steps
from lastiterate.theorems import TABLE

RUN = li.Run(
    n=1000,
    steps=50,
    step_size=0.5,
    noise=li.NoiseMultiplier(12.0),
    batching=li.Permuted(100),
    loss=li.Logistic(ridge=0.01),
)
AUDIT = AuditReport(
    attack="<b>x</b>",
    neighbours="a",
    adjacency="zero-out",
    trials=10,
    pilot=2,
    failure=0.05,
    delta=1e-5,
    lower=0.3,
    lower_gaussian=None,
    mu_lower=0.1,
    ceiling=3.0,
    upper=1.0,
    theorem="composition-gdp",
    refuted_at=None,
    rates=(),
    seed=1,
    caveats=("<script>",),
    scores=(np.random.default_rng(0).normal(1, 1, 500), np.random.default_rng(1).normal(0, 1, 500)),
)


def test_a_certificate_shows_its_answer():
    found = li.account(RUN)
    text = found._repr_html_()
    assert (
        li.account(RUN).explain(1e-5).splitlines()[0].split(" at ")[0] in text
        and "<details>" in text
    )
    assert "replace-one" in text and "shifted-interpolation-permuted (upper, enforced)" in text
    assert (
        "no theorem certifies"
        in li.account(replace(RUN, noise=li.GradientNoise(0.0)))._repr_html_()
    )
    assert (
        "conditional on"
        in li.account(
            replace(
                RUN, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0))
            ),
            min_evidence=li.Evidence.ASSUMED,
        )._repr_html_()
    )


@pytest.mark.parametrize(
    "certificate",
    [
        li.Certificate(ExactRun(replace(RUN, batching=li.FullBatch()))),
        certify_plan(500, 3, row_norm=1.0, epsilon=2.0, delta=1e-5, adjacency="zero-out"),
    ],
)
def test_other_certificates_show_their_words(certificate):
    assert certificate._repr_html_().startswith("<pre>epsilon ")


def test_an_audit_shows_its_rows_and_escapes_them():
    text = AUDIT._repr_html_()
    assert (
        "&lt;b&gt;x" in text
        and "<script>" not in text
        and "no contradiction" in text
        and "color" not in text
    )
    assert "color:#a30000" in replace(AUDIT, refuted_at=0.5)._repr_html_()


def test_plans_show_their_table():
    plans = tuple(
        Plan(name, li.account(RUN), risk, 1.0) for name, risk in (("first", 0.1), ("second", 0.2))
    )
    text = Choice(plans, 0.5)._repr_html_()
    assert "first (chosen)" in text and text.count("<tr>") == 3 and "Permuted" in text


def test_pictures_say_what_a_line_is_and_differ_without_colour(tmp_path):
    looks = [(look.dash, look.width, look.marker) for look in STYLES.values()]
    assert len(set(looks)) == len(looks), "every meaning has a dash, width or marker of its own"
    made = epsilon_over_steps(li.account(RUN), 1e-5, tmp_path / "a.png", points=5)
    axes = made
    said = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any(text.endswith("(upper)") for text in said) and any(
        text.endswith("(lower)") for text in said
    )
    drawn = [(line.get_linestyle(), line.get_linewidth(), line.get_marker()) for line in axes.lines]
    assert len(set(drawn)) == len(drawn) > 3, "no two lines look the same in grey"
    assert axes.get_xlabel() == "steps" and "epsilon at delta = 1e-05" in axes.get_ylabel()
    weak = li.account(
        replace(RUN, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0))),
        min_evidence=li.Evidence.ASSUMED,
    )
    made = epsilon_over_steps(weak, 1e-5, tmp_path / "b.png", points=4)
    assert any("(upper, assumed)" in text.get_text() for text in made.get_legend().get_texts())
    made = receiver_curve(AUDIT, li.account(RUN), tmp_path / "c.png")
    assert "share of models" in made.get_xlabel()


PICTURES = {
    "certificate": lambda **how: epsilon_over_steps(li.account(RUN), 1e-5, points=3, **how),
    "theorem": lambda **how: theorem_over_steps(TABLE["sgld-lsi"], 1e-5, points=3, **how),
    "audit": lambda **how: receiver_curve(AUDIT, li.account(RUN), **how),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_axes_that_a_notebook_shows_and_a_caller_may_give(name, tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *a, **b: pytest.fail("a picture shows nothing itself"))
    before = plt.get_fignums()
    made = PICTURES[name]()
    assert len(plt.get_fignums()) == len(before) + 1, "pyplot knows it, and notebooks show it"
    plt.close(made.figure)
    _, (left, right) = plt.subplots(1, 2)
    assert PICTURES[name](ax=right, path=tmp_path / "both.png") is right and not left.lines
    assert right.lines and (tmp_path / "both.png").stat().st_size > 10_000
    plt.close(right.figure)
    PICTURES[name](path=str(tmp_path / "a.svg"))
    assert plt.get_fignums() == before, "a picture for a file needs no window"
    for how, words in (
        ({"ax": plt}, "ax must be axes of matplotlib, got 'module'; leave it out"),
        ({"path": tmp_path / "a.txt"}, r"must end in .png, .svg or .pdf"),
    ):
        with pytest.raises(InputError, match=words):
            PICTURES[name](**how)


def test_an_audit_without_scores_has_no_picture():
    with pytest.raises(InputError, match="report must hold the scores"):
        receiver_curve(replace(AUDIT, scores=None), li.account(RUN))


class Notebook:
    """What IPython is in a notebook: a shell with a kernel, and lines that are written again."""

    def __init__(self, kernel):
        self.lines, shell = [], SimpleNamespace(kernel=kernel)
        self.ipython = SimpleNamespace(get_ipython=lambda: shell)
        self.module = SimpleNamespace(display=self.display)

    def display(self, said, raw, display_id):
        assert raw and display_id
        self.lines.append([said["text/plain"]])
        line = self.lines[-1]
        return SimpleNamespace(update=lambda said, raw: line.append(said["text/plain"]))


@pytest.mark.parametrize("kernel", [None, "a kernel"])
def test_progress_is_one_line_of_a_notebook_that_is_written_again(kernel, monkeypatch, capfd):
    notebook = Notebook(kernel)
    monkeypatch.setitem(sys.modules, "IPython", notebook.ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.module)
    x = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    run = replace(RUN, n=50, batching=li.FullBatch())
    with warnings.catch_warnings(action="ignore"):
        li.train(run, (x, x[:, 0] > 0), delta=1e-5, progress=True)
        verbose = DPLogisticRegression(
            row_norm=1.5, classes=[0, 1], algorithm="noisy-gd", verbose=1
        ).fit(x, (x[:, 0] > 0).astype(int))
    printed = capfd.readouterr().err
    if kernel is None:
        assert notebook.lines == [] and f"of {verbose.n_iter_} steps" in printed
        return
    training, fit = notebook.lines
    assert printed == "" and re.fullmatch(r"training: 50 of 50 steps, \d+\.\d s", training[-1])
    assert fit[-1].startswith(f"DPLogisticRegression: {verbose.n_iter_} of {verbose.n_iter_} steps")
