"""Private selection end to end: the budget, what is drawn, what leaves, and what the certificate
must say."""

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.base import clone, is_classifier
from typer.testing import CliRunner

import lastiterate as li
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.private_selection import Selection
from lastiterate.cli import app
from lastiterate.curves.selection import NegativeBinomial, PoissonRuns
from lastiterate.engine.random import Bits, derive_key
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression, DPSearchCV
from lastiterate.features import Bins, map_registry
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release import tuning
from lastiterate.release.ledger_charge import make_charging
from lastiterate.release.model_kinds import SELECTED
from lastiterate.release.pipeline import run_release
from lastiterate.release.score_meaning import Labels, Range
from lastiterate.release.training_request import TrainingRequest
from lastiterate.release.tuning import ALL, NothingSelected, _draws, _score, parts, plan_candidates
from lastiterate.run.preprocessing import SquareRoots
from oracles.number_of_runs import masses_of

N = 200


def candidate(step: float) -> "tuning.Candidate":
    run = li.Run(
        n=len(parts(N)[0]),
        steps=20,
        step_size=step,
        batching=li.Permuted(40),
        loss=li.Logistic(ridge=1e-2),
    )
    return lambda epsilon, delta: li.calibrate(run, epsilon=epsilon, delta=delta)


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (N, 3)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)


def select(certificate: Certificate, **more: object) -> "tuning.FittedSelected":
    return run_release(
        SELECTED,
        TrainingRequest(
            proof=certificate,
            data=records(),
            delta=1e-5,
            answers=Labels((0, 1)),
            **more,
        ),
    )


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return plan_candidates(
        [(candidate(0.5), ALL), (candidate(1e-6), ALL)],
        epsilon=3.0,
        delta=1e-5,
        law=NegativeBinomial.with_mean(6.0),
        held_out=len(parts(N)[1]),
        regression=False,
    )[0]


def test_the_whole_keeps_the_budget_and_uses_most_of_it(certificate: Certificate) -> None:
    assert 2.6 < certificate.epsilon(1e-5) <= 3.0
    one = li.account(certificate.subject.candidates[0]).curve("composition-gdp")
    naive = li.curves.compose(*[one] * 6).epsilon(1e-5)
    assert naive > certificate.epsilon(1e-5)
    assert certificate.epsilon(1e-5) < certificate.replace_one_epsilon(1e-5) < math.inf


def test_the_score_is_part_of_every_run(certificate: Certificate) -> None:
    chosen = certificate.subject
    louder = Certificate(replace(chosen, score_noise=chosen.score_noise / 2))
    assert louder.epsilon(1e-5) > certificate.epsilon(1e-5) * 1.2


def test_the_good_candidate_wins(certificate: Certificate) -> None:
    found = [select(certificate, seed=seed) for seed in range(8)]
    steps = Counter(float(model.run.step_size.value) for model in found)
    assert steps[0.5] > steps[1e-6]
    assert all("seed" in model.certificate.all_caveats()[0] for model in found)


@pytest.mark.parametrize(
    "law",
    [
        NegativeBinomial(0.0, 0.2),
        NegativeBinomial(1.0, 0.3),
        NegativeBinomial(-0.5, 0.2),
        PoissonRuns(3.0),
    ],
    ids=str,
)
def test_numbers_of_runs_follow_their_law(law: "NegativeBinomial | PoissonRuns") -> None:
    bits = Bits(derive_key(b"law", "tests"), 0)
    draws = np.array([law.draw(bits.integer(256), 256) for _ in range(3000)])
    masses = np.array(masses_of(law, 1e-9))
    cells = [k for k in range(len(masses)) if masses[k] * 3000 > 10]
    expected = np.array([*masses[cells], max(1e-12, 1 - masses[cells].sum())]) * 3000
    seen = np.array([*((draws == k).sum() for k in cells), (~np.isin(draws, cells)).sum()])
    kept = expected > 5
    assert chi2.sf(((seen - expected)[kept] ** 2 / expected[kept]).sum(), kept.sum() - 1) > 1e-6
    assert law.draw(0, 256) == (0 if isinstance(law, PoissonRuns) else 1)


def test_candidates_are_drawn_uniformly_and_independently(certificate: Certificate) -> None:
    counts = Counter(
        certificate.subject.candidates[which].step_size.value
        for seed in range(300)
        for which, *_ in _draws(certificate.subject, seed)
    )
    total = sum(counts.values())
    assert abs(counts[0.5] - total / 2) < 5 * math.sqrt(total) / 2 and abs(total - 300 * 6) < 600


def test_scores_move_by_at_most_the_unit_for_one_record() -> None:
    rng = np.random.default_rng(0)
    for answers, unit in ((Labels((0, 1)), 1), (Labels((0, 1, 2)), 1), (Range(0.0, 1.0), 2**16)):
        outputs = 3 if isinstance(answers, Labels) and len(answers.values) == 3 else 1
        found = rng.normal(size=(20, outputs)) * 3
        target = (
            rng.integers(0, max(2, outputs), 20)
            if isinstance(answers, Labels)
            else rng.uniform(-2, 2, 20)
        )
        whole = _score(found, target, answers, unit)
        assert 0 <= whole <= 20 * unit
        for i in range(20):
            without = _score(np.delete(found, i, 0), np.delete(target, i), answers, unit)
            assert 0 <= whole - without <= unit


def test_every_record_is_trained_on_or_scored() -> None:
    train, held = parts(N)
    assert sorted([*train, *held]) == list(range(N)) and (parts(N)[0] == train).all()


def test_folders_are_saved_read_and_verified(certificate: Certificate, tmp_path: Path) -> None:
    x, _ = records()
    model = select(certificate)
    model.save(tmp_path / "m")
    assert li.verify(tmp_path / "m").holds
    again = li.load(tmp_path / "m")
    assert (
        again.predict(x) == model.predict(x)
    ).all() and again.certificate.subject == certificate.subject
    text = (tmp_path / "m" / "certificate.json").read_text()
    stored = json.loads(text)
    for change in (
        dict(epsilon=0.1),
        dict(adjacency="replace-one"),
        dict(caveats=[]),
    ):
        (tmp_path / "m" / "certificate.json").write_text(json.dumps(stored | change))
        assert not li.verify(tmp_path / "m").holds
    (tmp_path / "m" / "certificate.json").write_text(json.dumps(stored | dict(extra=1)))
    with pytest.raises(li.InputError, match=r"certificate\.schema\.json"):
        li.verify(tmp_path / "m")
    quieter = stored["selection"] | dict(score_noise=stored["selection"]["score_noise"] * 2)
    (tmp_path / "m" / "certificate.json").write_text(json.dumps(stored | dict(selection=quieter)))
    assert not li.verify(tmp_path / "m").holds


@pytest.mark.parametrize(
    "change",
    [
        dict(law={"type": "x"}),
        dict(candidates=[]),
        dict(held_out=0),
        dict(held_out="a"),
        dict(score_noise=-1.0),
        dict(score_noise=None),
        dict(unit=0),
        dict(more=1),
        dict(law={"type": "PoissonRuns", "expected": "3"}),
    ],
)
def test_descriptions_that_are_refused(certificate: Certificate, change: dict) -> None:
    with pytest.raises(li.InputError):
        Selection.from_dict(certificate.subject.description() | change)


def test_neighbours_keep_the_split(certificate: Certificate) -> None:
    """One record more would be another split: others would be scored that were trained on, and the
    bound is for one."""
    sides = [np.isin(np.arange(N - 1), parts(n)[1]) for n in (N, N - 1)]
    assert (sides[0] != sides[1]).sum() > 1
    run = li.Run(
        n=160,
        steps=5,
        step_size=0.5,
        clip=1.0,
        batching=li.Poisson(0.2),
        noise=li.NoiseMultiplier(4.0),
        adjacency="add-remove",
        loss=li.Logistic(),
    )
    with pytest.raises(li.InputError, match="adjacency must keep places"):
        replace(certificate.subject, candidates=(run,))
    assert certificate.subject.with_adjacency("add-remove") is None


def test_no_run_at_all_is_said(certificate: Certificate, tmp_path: Path) -> None:
    none = Certificate(replace(certificate.subject, law=PoissonRuns(1e-5)))
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter(3.0, 1e-6))
    charging = make_charging(ledger=ledger, dataset="a", purpose="tune")
    with pytest.raises(NothingSelected, match="number of runs was 0"):
        select(none, charging=charging)
    (release,) = ledger.total().releases
    assert release.state == "touched"


def test_what_leaves_says_nothing_of_the_losers(
    certificate: Certificate, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """Two selections with different numbers of runs: the same text on the screen, the same lines in
    the ledger."""
    seeds = {}
    for seed in range(40):
        seeds.setdefault(
            certificate.subject.law.draw(
                Bits(
                    derive_key(derive_key(seed.to_bytes(16, "big"), "tests"), "selection"), 0
                ).integer(256),
                256,
            ),
            seed,
        )
    few, many = min(seeds), max(seeds)
    assert many > few
    told = []
    for number, count in enumerate((few, many)):
        ledger = Ledger(tmp_path / f"l{number}")
        ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter(3.0, 1e-6))
        charging = make_charging(ledger=ledger, dataset="a", purpose="tune")
        model = select(certificate, seed=seeds[count], charging=charging)
        charging.finish(model)
        (release,) = ledger.total().releases
        told.append(
            (
                release.purpose,
                release.run,
                release.curve,
                release.costs,
                release.day,
                release.state,
                repr(model.certificate),
                model.certificate.explain(1e-5),
                capfd.readouterr(),
            )
        )
    assert told[0] == told[1]


def test_search_over_estimators(tmp_path: Path) -> None:
    x, y = records()
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter(3.0, 1e-6))
    search = DPSearchCV(
        DPLogisticRegression(classes=[0, 1], algorithm="noisy-gd"),
        {"row_norm": [0.5, 2.0]},
        epsilon=3.0,
        mean_runs=3.0,
        random_state=1,
        ledger=ledger,
        dataset="a",
    ).fit(x, y)
    assert (
        search.best_params_["row_norm"] in (0.5, 2.0) and search.certificate_.epsilon(1e-4) <= 3.0
    )
    assert (
        search.score(x, y) > 0.5
        and ledger.total().releases[0].state == "released"
        and ledger.verify() == ()
    )
    assert not hasattr(search, "cv_results_") and not hasattr(search, "best_score_")
    for bad in (
        DPSearchCV(DPLogisticRegression(), {}),
        DPSearchCV("x", {}),
        DPSearchCV(DPLogisticRegression(classes=[0, 1]), {"epsilon": [1.0, 2.0]}),
    ):
        with pytest.raises(li.InputError):
            bad.fit(x, y)
    ridge = DPSearchCV(
        DPHuberRidge(algorithm="noisy-gd", target_range=(-1, 1)),
        {"row_norm": [0.5, 2.0]},
        epsilon=3.0,
        mean_runs=2.0,
        random_state=2,
    ).fit(x, y - 0.5)
    assert ridge.predict(x).shape == (N,)


def test_a_ledger_of_the_estimator_is_not_passed_over(tmp_path: Path) -> None:
    """Nothing would be charged to it, where a grid search of scikit-learn charges every fit."""
    one = DPLogisticRegression(classes=[0, 1], ledger=tmp_path / "l", dataset="a")
    with pytest.raises(li.InputError, match="ledger of the estimator must be None in a search"):
        DPSearchCV(one, {"row_norm": [1.0]}).fit(*records())


def test_what_the_estimator_says_of_its_answers_and_rows_holds(tmp_path: Path) -> None:
    """A threshold decides scores, predictions and the folder, features are the run's; a report of
    accuracy is refused."""
    x, y = records()

    def found(**said: object) -> DPSearchCV:
        one = DPLogisticRegression(row_norm=1.0, classes=(0, 1), algorithm="noisy-gd", **said)
        search = DPSearchCV(
            one, {"row_norm": [1.0, 2.0]}, epsilon=20.0, mean_runs=2.0, random_state=3
        )
        return search.fit(x, y)

    for threshold, share in ((0.999, 0.999), (0.25, 0.25)):
        search = found(threshold=threshold, calibrated=False)
        expected = (search.best_estimator_.predict_proba(x)[:, 1] >= share).astype(int)
        np.testing.assert_array_equal(search.predict(x), expected)
        np.testing.assert_array_equal(search.best_estimator_.fitted_.predict(x), expected)
        search.best_estimator_.fitted_.save(tmp_path / str(share))
        np.testing.assert_array_equal(li.load(tmp_path / str(share)).predict(x), expected)
        assert (expected != (search.best_estimator_.predict_proba(x)[:, 1] >= 0.5)).any()
    assert found(features="sqrt").best_estimator_.run_.preprocessing[0] == SquareRoots()
    for said, word in (
        (dict(threshold=7), "threshold"),
        (dict(report_accuracy=0.05), "report_accuracy"),
        (dict(features="curves"), "schema"),
        (dict(calibrated=1), "calibrated"),
    ):
        with pytest.raises(li.InputError, match=word):
            found(**said)
    assert (
        _score(np.array([[0.1], [3.0], [-3.0]]), np.array([0, 1, 0]), Labels((0, 1), 0.9), 1) == 3
    )


def test_the_command_line(tmp_path: Path) -> None:
    found = CliRunner().invoke(
        app,
        [
            "tune",
            "iris",
            "--epsilon",
            "6",
            "--mean-runs",
            "2",
            "--algorithms",
            "noisy-gd,permuted-sgd",
            "--class-weight",
            "0=1,1=2,2=4",
            "--features",
            "curves",
            "--out",
            str(tmp_path / "m"),
        ],
    )
    assert found.exit_code == 0, found.output
    model = li.load(tmp_path / "m")
    assert model.run.loss.class_weights == (0.25, 0.5, 1.0)
    assert [one.name for one in model.schema.features] == ["curves"]
    card = " ".join(found.output.replace("│", " ").split())
    assert "on average, by a noisy accuracy from 2 candidates, 24 records" in card
    said = (
        "accuracy hardly counts them: even with class weights a rare class may never be predicted"
    )
    assert said in card
    assert "class weights 0 0.25, 1 0.5, 2 1 (scaled so that the largest is 1)" in card
    assert "secret number of runs" in found.output and li.verify(tmp_path / "m").holds
    for words in (
        [],
        ["--row-norms", "2,2"],
        ["--row-norms", "a"],
        ["--runs", "fixed"],
        ["--mean-runs", "0.5"],
        ["--algorithms", "x"],
        ["--class-weight", "0=1"],
        ["--class-weight", "balanced"],
        ["--features", "scattering"],
        ["--features", "sqrt", "--algorithms", "noisy-gd"],
    ):
        found = CliRunner().invoke(
            app, ["tune", "iris", "--epsilon", "6", *words, "--out", str(tmp_path / "n")]
        )
        assert found.exit_code == 2 and not (tmp_path / "n").exists(), found.output


def test_the_card_names_the_row_norm_that_was_asked_for(tmp_path: Path) -> None:
    """Of a run that centres its rows, whose loss clips them once more."""
    words = ["--epsilon", "1", "--row-norms", "2,3", "--mean-runs", "2", "--time-budget", "5"]
    words += ["--class-weight", "0=1,1=2"]
    with pytest.warns(UserWarning, match="compared by plain accuracy, whatever the class weights"):
        found = CliRunner().invoke(
            app, ["tune", "breast_cancer", *words, "--out", str(tmp_path / "m")]
        )
    assert found.exit_code == 0, found.output
    run = li.load(tmp_path / "m").run
    mean = next(part for part in run.preprocessing if isinstance(part, li.PrivateMean))
    card = " ".join(found.output.replace("│", " ").split())
    said = f"row norm {mean.row_norm:g} ({run.loss.row_norm:g} once a noisy mean is subtracted)"
    assert mean.row_norm in (2, 3) and run.loss.row_norm < mean.row_norm and said in card


FACTS = {
    "target": "y",
    "classes": ["no", "yes"],
    "columns": {"a": {"kind": "number", "low": -1, "high": 1}, "who": {"kind": "id"}},
}


def table() -> tuple[dict[str, list], list[str]]:
    """Records whose label a curve of ``a`` knows and no line does; two rows of each person."""
    a = np.random.default_rng(0).uniform(-1, 1, 400)
    columns = {"a": a.tolist(), "who": [f"p{i // 2}" for i in range(400)]}
    return columns, ["yes" if abs(one) < 0.5 else "no" for one in a]


def search_maps(maps: list[str], **said: object) -> DPSearchCV:
    one = DPLogisticRegression(schema=FACTS, row_norm=1.0, algorithm="noisy-gd")
    return DPSearchCV(one, {"features": maps}, **dict(epsilon=20.0, mean_runs=8.0) | said)


@pytest.mark.filterwarnings("ignore")
def test_maps_are_candidates_of_their_own_though_their_runs_are_equal(tmp_path: Path) -> None:
    """The winner brings its maps, and is charged for the choice among all of them."""
    columns, labels = table()
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter(30.0, 1e-6))
    search = search_maps(["plain", "curves"], ledger=ledger, dataset="a").fit(columns, labels)
    chosen = search.certificate_.subject
    assert len(chosen.candidates) == 2 and len(set(chosen.candidates)) == 1
    assert search.certificate_.epsilon(1e-4) <= 20.0
    assert ledger.total().releases[0].state == "released" and ledger.verify() == ()
    wins = Counter(
        search_maps(["plain", "curves"], random_state=seed)
        .fit(columns, labels)
        .best_params_["features"]
        for seed in range(3)
    )
    assert wins["curves"] >= 2, "a line cannot know these labels"
    assert search.fitted_ is search.best_estimator_.fitted_ and not hasattr(
        clone(search), "fitted_"
    )
    search.fitted_.save(tmp_path / "m")
    again = li.load(tmp_path / "m")
    assert [one.name for one in again.schema.features] in ([], ["curves"])
    rows = search.best_estimator_.transformer_.transform(columns)
    np.testing.assert_array_equal(again.predict(rows), search.predict(columns))
    assert search.classes_.tolist() == ["no", "yes"] and li.verify(tmp_path / "m").holds
    assert is_classifier(search) and search.n_features_in_ == 2


@pytest.mark.filterwarnings("ignore")
def test_one_row_of_each_person_is_searched_in_a_table() -> None:
    columns, labels = table()
    search = search_maps(["plain", "curves"]).fit(columns, labels, units=columns["who"])
    chosen = search.certificate_.subject
    assert chosen.candidates[0].n + chosen.held_out == 200
    numbers = FACTS | {"target_range": [-1, 1]}
    del numbers["classes"]
    ridge = DPSearchCV(
        DPHuberRidge(schema=numbers), {"features": ["plain", "bins"]}, epsilon=9.0, mean_runs=2.0
    ).fit(columns, columns["a"])
    assert np.abs(ridge.predict(columns)).max() <= 1


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        (["plain"], "candidates must be at least two"),
        (["plain", "plain"], "candidates must be at least two different"),
        (["plain", "words"], "nothing to map: words"),
        (["plain", 3], "features must be a text"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_searches_of_maps_that_are_refused(maps: list, words: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l")
    ledger.add("a", unit="record", adjacency="zero-out", filter=GaussianFilter(30.0, 1e-6))
    with pytest.raises(li.InputError, match=words):
        search_maps(maps, ledger=ledger, dataset="a").fit(*table())
    with pytest.raises(li.InputError, match="must be rows of numbers where"):
        DPSearchCV(DPLogisticRegression(classes=[0, 1]), {"row_norm": [1, 2]}).fit({"a": [1]}, [1])
    assert ledger.total().releases == ()


def test_maps_of_a_file_are_candidates(tmp_path: Path) -> None:
    columns, labels = table()
    lines = [
        "a,who,y",
        *map(",".join, zip(map(str, columns["a"]), columns["who"], labels, strict=True)),
    ]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    (tmp_path / "d.toml").write_text(
        'target = "y"\nclasses = ["no", "yes"]\n[columns.a]\nkind = "number"\nlow = -1\nhigh = 1\n'
        '[columns.who]\nkind = "id"\n'
    )
    words = ["tune", str(tmp_path / "d.csv"), "--epsilon", "20", "--row-norms", "1"]
    words += ["--algorithms", "noisy-gd", "--unit", "who", "--out", str(tmp_path / "m")]
    tried = ["--features", "plain", "--features", "curves", "--features", "bins,gated"]
    found = CliRunner().invoke(app, [*words, *tried])
    assert found.exit_code == 0, found.output
    card = " ".join(found.output.replace("│", " ").split())
    assert "3 candidates, 40 records" in card and "who" in card
    model = li.load(tmp_path / "m")
    assert li.verify(tmp_path / "m").holds and model.certificate.unit == "who"
    assert tuple(one.name for one in model.schema.features) in ((), ("curves",), ("bins", "gated"))
    assert CliRunner().invoke(app, ["predict", str(tmp_path / "m"), words[1]]).exit_code == 0
    again = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "n"), "--features", "plain"])
    assert again.exit_code == 2 and "--features several times" in again.output.replace("\n", " ")


@pytest.mark.filterwarnings("ignore")
def test_plug_ins_that_provide_a_map_of_any_candidate_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(map_registry._PROVIDERS, Bins, "some-package 1.0")
    search = search_maps(["plain", "bins"], mean_runs=2.0).fit(*table())
    assert any("some-package" in text for text in search.certificate_.all_caveats())
