"""Audits from the outside: data sets, resuming, bad input, the report, the command line."""

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

import lastiterate as li
from lastiterate.audit import DataSet, Neighbours, audit, end_to_end, worst_case
from lastiterate.audit.attacks import choose_thresholds, count
from lastiterate.audit.canaries import execute
from lastiterate.audit.report import format_bound
from lastiterate.audit.runner import GIVEN, Interrupted, certificate_of
from lastiterate.engine import Trainer, keys_from_seed
from lastiterate.engine.linear_gradients import arrange
from lastiterate.errors import InputError
from lastiterate.report.plots import forbidden
from support import call

LOSS = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.5, intercept=0.5)
RUN = li.Run(n=6, steps=5, step_size=li.Constant(0.5), noise=li.GradientNoise(0.5), loss=LOSS)


def released(run, data_set, keys):
    return execute(run, data_set, Trainer(run).fit_many, keys)


def test_the_record_that_is_zeroed_pulls_nowhere():
    """Without noise: the data sets differ by the gradient of one record at every step, and by
    nothing else."""
    run = replace(RUN, noise=li.GradientNoise(0.0))
    neighbours = worst_case(run)
    one, two = (
        released(run, data_set, keys_from_seed(0, 1))[0, 0]
        for data_set in (neighbours.with_record, neighbours.without_record)
    )
    shift = sum(0.5 * (1 - 0.5 * 0.5) ** k for k in range(5)) / 6
    assert one - two == pytest.approx(shift * neighbours.direction[0], rel=1e-5)
    assert np.linalg.norm(neighbours.direction) == pytest.approx(np.hypot(1.0, 0.5))
    rows, _ = arrange(run, neighbours.with_record.features, neighbours.with_record.target)
    assert (rows.reshape(6, -1)[:, -1] == 0.5).all(), "and the engine is as before"


def test_the_record_is_found_in_every_block():
    noisy = replace(RUN, batching=li.Cyclic(4), steps=2)
    run, neighbours = replace(noisy, noise=li.GradientNoise(0.0)), worst_case(noisy)
    assert neighbours.record == 4, "the last block, whose contribution no later step shrinks"
    both = neighbours.with_record
    moved = Neighbours(both, replace(both, absent=1), 1, "a record of the first block")
    for found in (neighbours, moved):
        one, two = (
            released(run, data, keys_from_seed(0, 1))
            for data in (found.with_record, found.without_record)
        )
        assert np.abs(one - two).max() > 0.01


def test_replacing_a_record_moves_the_model_twice_as_far():
    zeroed, replaced = (
        released(
            run, worst_case(replace(run, adjacency=adjacency)).without_record, keys_from_seed(0, 1)
        )[0, 0]
        for run in (replace(RUN, noise=li.GradientNoise(0.0)),)
        for adjacency in ("zero-out", "replace-one")
    )
    present = released(
        replace(RUN, noise=li.GradientNoise(0.0)), worst_case(RUN).with_record, keys_from_seed(0, 1)
    )[0, 0]
    assert present - replaced == pytest.approx(2 * (present - zeroed), rel=1e-5)


def test_logistic_canaries_have_nearly_their_full_gradient():
    loss = li.Logistic(row_norm=2.0, ridge=0.001, intercept=0.5)
    for adjacency, least in (("zero-out", 0.9), ("replace-one", 1.4)):
        run = replace(
            RUN,
            n=200,
            loss=loss,
            steps=200,
            step_size=li.Constant(0.5),
            noise=li.GradientNoise(0.0),
        )
        neighbours = worst_case(replace(run, adjacency=adjacency))
        theta = released(run, neighbours.without_record, keys_from_seed(0, 1))[0, 0]
        found = []
        for data_set in (neighbours.with_record, neighbours.without_record):
            rows, labels = arrange(run, data_set.features, data_set.target)
            row, label = (
                rows.reshape(run.n, -1)[neighbours.record],
                labels.reshape(run.n)[neighbours.record],
            )
            found.append(
                (1 / (1 + np.exp(-row @ theta)) - label) * row
                if data_set.absent is None
                else 0 * row
            )
        assert np.linalg.norm(found[0] - found[1]) > least * np.hypot(2.0, 0.5)


SWAPPED = replace(RUN, adjacency="replace-one")


def quick(features, target, keys):
    """A pure function of (data, key) that needs no compiler: one Gaussian along the record's
    target."""
    bits = np.asarray(keys)
    noise = np.array([np.random.default_rng(row).normal(size=2) for row in bits])
    return (noise + 1e-31 * target.sum() * np.array([1.0, 0.5]))[:, None, :]


def test_an_interrupted_audit_resumes(tmp_path):
    file, trained = tmp_path / "scores.jsonl", []

    def counting(features, target, keys):
        trained.append(len(keys))
        if len(trained) == 11:
            raise KeyboardInterrupt
        return quick(features, target, keys)

    settings = dict(trials=400, batch_models=100, seed=3, attack="projection")
    whole = audit(SWAPPED, **settings, train=quick)
    with pytest.raises(KeyboardInterrupt) as caught:
        audit(SWAPPED, **settings, results=file, train=counting)
    early = caught.value.report
    assert early.trials == 200 and early.caveats == (
        GIVEN,
        "interrupted: 400 models per data set were planned",
    )
    assert np.array_equal(early.scores, [part[:200] for part in whole.scores]), (
        "what was counted, of both data sets"
    )
    assert early.lower <= early.ceiling < whole.ceiling
    with file.open("a") as half:
        half.write('{"data_set": 1, "first": 300, "sco')  # cut off while it was written
    trained.extend([0] * 10)
    before = len(trained)
    resumed = audit(SWAPPED, **settings, results=file, train=counting)
    assert resumed.rates == whole.rates and np.array_equal(resumed.scores, whole.scores)
    assert len(trained) - before == 5 + 3, (
        "the pilots again, and the three batches that are missing"
    )
    assert audit(SWAPPED, results=file, train=counting, attack="projection") == resumed, (
        "with the settings of the file"
    )
    assert len(trained) - before == 10 + 3, "nothing is missing now"
    with pytest.raises(InputError, match="belong to another audit"):
        audit(SWAPPED, **{**settings, "seed": 4}, results=file, train=quick)
    written = file.read_text()
    header = written.split("\n")[0]
    file.write_text(header)  # cut off right behind its first line
    assert np.array_equal(
        audit(SWAPPED, **settings, results=file, train=quick).scores, whole.scores
    )
    assert file.read_text().startswith(header + "\n")
    for damaged in (
        "something else\n",
        written.replace('"first"', '"last"', 1),
        written.replace("[", "", 1),
    ):
        file.write_text(damaged)
        with pytest.raises(InputError, match="must be a file that an audit wrote"):
            audit(SWAPPED, **settings, results=file, train=quick)


def test_progress_tells_speed_and_time_left():
    seen = []
    audit(
        SWAPPED,
        trials=300,
        batch_models=100,
        seed=1,
        train=quick,
        attack="projection",
        progress=lambda *told: seen.append(told),
    )
    assert [done for done, *_ in seen] == [0, 100, 200, 300, 400, 500, 600], (
        "the estimate, then batch after batch"
    )
    assert all(total == 600 for _, total, *_ in seen)
    assert seen[-1][2] > 0 and seen[-1][3] == 0 < seen[3][3] and seen[0][2] > 0 and seen[0][3] > 0


def test_by_default_as_many_models_as_a_minute_holds(monkeypatch):
    monkeypatch.setattr(
        end_to_end, "rate", lambda run, neighbours, train, size: 20.0 if size == 64 else 10.0
    )
    assert end_to_end.measure_rate(SWAPPED, OTHER, quick, 1000, None) == (10.0, 16), (
        "a batch of 64 would take longer than 2 s"
    )
    monkeypatch.setattr(
        end_to_end, "rate", lambda run, neighbours, train, size: 1e3 * min(size, 64)
    )
    assert end_to_end.measure_rate(SWAPPED, OTHER, quick, 1000, None) == (64e3, 64)
    assert end_to_end.measure_rate(SWAPPED, OTHER, quick, 1000, 100) == (16e3, 16), "over soon"
    assert (
        end_to_end.trials_for(1e-3) == 100
        and end_to_end.trials_for(44.0) == 1200
        and end_to_end.trials_for(1e9) == 50_000
    )
    monkeypatch.setattr(end_to_end, "rate", lambda run, neighbours, train, size: 10.0)
    assert audit(SWAPPED, seed=1, train=quick, attack="projection").trials == 270
    slow = audit(SWAPPED, seed=1, train=quick)
    assert (slow.trials, slow.pilot, slow.pairs) == (100, 100, 4), "there is time for few pairs"


def test_an_interruption_before_anything_is_counted_reports_nothing():
    def stopped(features, target, keys):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        audit(SWAPPED, trials=400, train=stopped)
    assert not isinstance(caught.value, Interrupted)


def test_an_interrupted_portfolio_reports_what_both_pairs_have():
    trained, wanted = [], dict(trials=400, batch_models=100, seed=3)
    whole = audit(SWAPPED, **wanted, train=quick, progress=lambda done, *_: trained.append(done))

    def stopped(done, *_):
        if done == trained[7]:  # the second pair has one batch of both data sets, the favourite two
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        audit(SWAPPED, **wanted, train=quick, progress=stopped)
    early = caught.value.report
    assert (
        early.caveats == (GIVEN, "interrupted: 400 models per data set were planned")
        and early.lower <= early.ceiling
    )
    assert len({one.neighbours for one in early.seen}) == 2 and early.trials == 200
    assert (
        np.array_equal(early.scores, [part[:200] for part in whole.scores])
        and early.ceiling < whole.ceiling
    )


def test_control_c_in_a_terminal_shows_the_report(tmp_path):
    """As a user does it: an audit of many models in a process of its own, interrupted while it
    counts.

    One attack is enough here: what is left of many is in the test above.
    """
    file = tmp_path / "run.json"
    file.write_text(RUN.to_json())
    command = [
        sys.executable,
        "-m",
        "lastiterate",
        "audit",
        str(file),
        "--trials",
        "1000000",
        "--batch-models",
        "200",
        "--attack",
        "projection",
        "--results",
        str(tmp_path / "scores"),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while (
            not (tmp_path / "scores").is_file() or (tmp_path / "scores").read_text().count("\n") < 7
        ):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
    assert process.returncode == 130 and "Traceback" not in error
    assert (
        "no contradiction" in out and "interrupted: 1000000 models per data set were planned" in out
    )
    assert error.startswith("2,000,000 models, about ") and "Ctrl-C reports" in error


NOISE = np.random.default_rng(0)
OTHER = worst_case(RUN)


def drifting(features, target, keys):
    """Takes randomness from elsewhere than the keys."""
    return quick(features, target, keys) + NOISE.normal()


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: audit(RUN, trials=3), "trials are too few for any statement"),
        (lambda: audit(RUN, trials=500, delta=0.9999), "delta is above what the trials resolve"),
        (lambda: audit(SWAPPED, trials=500, train=drifting), "train is not a pure function of"),
        (
            lambda: audit(RUN, trials=500, attack="magic"),
            "attack must be one of projection, trajectory",
        ),
        (
            lambda: audit(RUN, trials=500, train=quick, batch_models=0),
            "batch_models must be an integer >= 1",
        ),
        (
            lambda: audit(replace(RUN, adjacency="replace-one"), neighbours=OTHER),
            "neighbours zero out a record",
        ),
        (
            lambda: audit(RUN, neighbours=worst_case(replace(RUN, adjacency="replace-one"))),
            "neighbours replace a record",
        ),
        (lambda: audit(replace(RUN, loss=li.KnownConstants())), "cannot be executed"),
        (lambda: audit(RUN, train=quick), "train takes no absent="),
        (lambda: audit(RUN, features=0), "features must be an integer >= 1"),
        (
            lambda: audit(SWAPPED, train=lambda x, y, keys: np.zeros((1, 2))),
            "must return one model per key",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value) and str(caught.value).count(". ") == 0


def test_a_perturbed_objective_is_audited_and_less_noise_refuted():
    """Its noise says how many columns the made-up data have; no step has noise that could be asked
    for."""
    loss = li.Logistic(ridge=0.5, intercept=0.0)
    run = li.Run(
        n=20,
        steps=300,
        step_size=1.2,
        noise=li.NoiseMultiplier(2.0),
        loss=loss,
        method=li.ObjectivePerturbation(2),
    )
    assert (
        audit(run, trials=100, seed=1, delta=1e-3, batch_models=500).lower
        <= li.account(run).epsilon(1e-3)
        < 2
    )
    quiet = replace(run, noise=li.NoiseMultiplier(0.05), method=li.ObjectivePerturbation(2))
    assert audit(
        run, trials=100, seed=1, delta=1e-3, batch_models=500, train=Trainer(quiet).fit_many
    ).refuted
    with pytest.raises(InputError, match="must be 1, as the parameters of the method says"):
        audit(run, trials=100, features=3)


def test_neighbours_that_differ_in_two_records_are_refused():
    present = OTHER.with_record
    target = present.target.copy()
    target[[1, 3]] *= -1
    with pytest.raises(InputError, match=r"must differ in one record, not in 2, got \[1, 3\]"):
        Neighbours(present, DataSet(present.features, target), 1, "two")
    with pytest.raises(InputError, match="not in 2"):
        Neighbours(
            present,
            DataSet(present.features, np.where(np.arange(6) == 1, -1, 1) * present.target, 3),
            3,
            "one and a zero",
        )
    with pytest.raises(InputError, match="must differ in one record, not in 0"):
        Neighbours(present, present, 1, "none")
    with pytest.raises(InputError, match=r"hold the records 0 \.\. 5"):
        Neighbours(present, DataSet(present.features, present.target, 6), 6, "beyond")
    with pytest.raises(InputError, match="must be the one in which the data sets differ"):
        Neighbours(present, DataSet(present.features, present.target, 2), 4, "another")


def test_a_trainer_that_ignores_its_key_gives_everything_away():
    key = keys_from_seed(0, 1)[0]

    def keyless(features, target, keys):
        return quick(features, target, jax.numpy.stack([key] * len(keys)))

    report = audit(SWAPPED, trials=500, seed=1, train=keyless)
    assert report.refuted and report.lower == report.ceiling


def test_thresholds_come_from_the_pilot_alone():
    rng = np.random.default_rng(1)
    middle, best = choose_thresholds(
        rng.normal(1, 1, 4000), rng.normal(0, 1, 4000), 100_000, 1e-5, 0.05
    )
    assert middle == pytest.approx(0.5, abs=0.1)
    assert abs(best - 0.5) > 1.5, "pure epsilon is read in the tails"
    assert choose_thresholds(np.ones(9), np.ones(9), 100, 0.0, 0.05)[0] == pytest.approx(1)
    odd = count(np.array([np.nan, 2.0]), np.array([np.nan, 0.0, 0.0]), 1.0)
    assert (odd.false_positives, odd.false_negatives) == (1, 0)


def test_the_report_says_what_was_found():
    report = audit(replace(RUN, release="all", domain=li.domains.Ball(9.0)), trials=30, seed=1)
    body = json.loads(report.to_json())
    assert body["verdict"] == report.verdict and body["trials"] == 30 and body["seed"] == 1
    assert "scores" not in body and body["upper"] == report.upper
    assert any("are attacked as they are" in text for text in report.caveats)
    shown = dict(replace(report, lower=0.12349, upper=1.23411, ceiling=2.0).rows()[::-1])
    assert (
        shown["at least"][:6],
        shown["at most, certified"][:5],
        shown["ceiling of this attack"],
    ) == (
        "0.1234",
        "1.235",
        "2",
    )
    nothing = audit(replace(RUN, noise=li.GradientNoise(0.0)), trials=300, seed=1)
    assert nothing.lower == nothing.ceiling and "nothing certifies" in nothing.verdict
    assert json.loads(nothing.to_json())["upper"] is None


def test_the_certified_numbers_of_what_was_executed_and_of_the_whole_run_are_linked():
    """An audit of a planned run shows the plan's epsilon next to that of the steps alone."""
    planned = replace(RUN, rows_per_unit=2)
    report = audit(planned, trials=100, seed=1, attack="projection")
    assert report.rows()[-1][0] == "not attacked" and "with all of its rows" in report.rows()[-1][1]
    assert audit(RUN, trials=30, seed=1, attack="projection").rows()[-1][0] == "verdict"
    unknown = dict(replace(report, lower_gaussian=None).rows())
    assert unknown["at least (Gaussian)"].startswith("not computed: ")
    executed, whole = certificate_of(planned).epsilon(1e-5), li.account(planned).epsilon(1e-5)
    assert report.upper == executed < report.upper_whole == whole
    shown = dict(report.rows())
    assert shown["at most, certified"].endswith(", for what was executed")
    assert shown["at most, whole run"] == (
        f"{format_bound(whole, math.ceil)}, with the parts that were not executed"
    )
    assert json.loads(report.to_json())["upper_whole"] == whole
    assert json.loads(report.to_json())["not_attacked"] == [report.rows()[-1][1]]
    same = audit(RUN, trials=100, seed=1, attack="projection")
    assert json.loads(same.to_json())["not_attacked"] == []
    assert same.upper_whole is None and "at most, whole run" not in dict(same.rows())
    assert "executed" not in dict(same.rows())["at most, certified"]
    infinite = replace(report, upper=math.inf, upper_whole=math.inf)
    assert json.loads(infinite.to_json())["upper_whole"] is None


def test_the_default_length_is_counted_in_single_models():
    """Pilots and counted models fill a minute by themselves; pages name what all of it takes."""
    assert 30 <= end_to_end.PILOTS + end_to_end.COUNTED <= end_to_end.MINUTE == 60
    help_text = " ".join(call("audit", "--help")[1].replace("\u2502", " ").split())
    assert "default: one to four minutes" in help_text


def test_the_excluded_region_is_the_certificates():
    """For a Gaussian certificate the border is the trade-off curve of mu-GDP."""
    from scipy.special import ndtr, ndtri

    certificate = certificate_of(RUN)
    mu = certificate.best(1e-5).result.curve.mu
    fpr = np.array([0.01, 0.1, 0.5, 0.9])
    exact = ndtr(ndtri(fpr) + mu)
    found = forbidden(certificate, fpr, points=400)
    assert (found >= exact - 1e-9).all() and (found <= exact + 2e-3).all()


def test_the_command(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(RUN.to_json())
    asked = ("audit", file, "--trials", 300, "--seed", 1, "--batch-models", 200)
    code, out, _ = call(*asked, "--plot", tmp_path / "roc.svg")
    assert code == 0 and "no contradiction" in out and "at most, certified" in out
    assert (tmp_path / "roc.svg").stat().st_size > 5000
    code, out, _ = call(*asked, "--json")
    body = json.loads(out)
    assert code == 0 and body["attack"] == "projection" and body["lower"] <= body["upper"]
    assert body["trials"] == 300 and len(body["rates"]) == 2


@pytest.mark.parametrize(
    "flags,words",
    [
        (["missing.json"], "audit needs an existing run file or model folder"),
        (["--trials", "2"], "trials are too few"),
        (
            ["--attack", "magic"],
            "attack must be one of projection, trajectory, learned, covariance, likelihood, "
            "coordinate, tails, nearest",
        ),
        (["--plot", "roc.txt"], "--plot must end in .png"),
    ],
)
def test_the_command_refuses(tmp_path, flags, words):
    file = tmp_path / "run.json"
    file.write_text(RUN.to_json())
    code, out, error = call("audit", *([] if flags[0] == "missing.json" else [file]), *flags)
    assert code == 2 and out == "" and words in error


def test_a_refuted_certificate_ends_with_an_error(tmp_path, patched):
    from benchmarks.audit.bugs.noise import NOISE_HALVED

    patched(*NOISE_HALVED)
    file = tmp_path / "run.json"
    file.write_text(RUN.to_json())
    code, out, _ = call("audit", file, "--trials", 5000, "--seed", 1)
    assert code == 1 and "BUG: the certificate is refuted" in out


def test_a_model_folder_is_audited_by_its_run(tmp_path):
    plain = ("--algorithm", "noisy-gd")
    code, _, error = call("train", "iris", "--epsilon", 1, *plain, "--out", tmp_path / "model")
    assert code == 0, error
    code, out, _ = call(
        "audit", tmp_path / "model", "--trials", 60, "--seed", 1, "--json", "--attack", "learned"
    )
    body = json.loads(out)
    stored = json.loads((tmp_path / "model" / "certificate.json").read_text())
    assert code == 0 and not body["refuted"] and body["delta"] == stored["delta"]
    (tmp_path / "model" / "certificate.json").write_text("{")
    code, _, error = call("audit", tmp_path / "model")
    assert code == 2 and "certificate.json must be complete JSON" in error
    for change, said in (
        (lambda: stored.update(epsilon=0.1), "model does not fit its certificate"),
        (lambda: stored.pop("run"), "certificate must fit certificate.schema.json"),
    ):
        change()
        (tmp_path / "model" / "certificate.json").write_text(json.dumps(stored))
        code, _, error = call("audit", tmp_path / "model")
        assert code == 2 and said in " ".join(error.split()), "nothing is attacked"


def test_the_statistics_load_no_trainer():
    heavy = ("jax", "scipy.stats", "sklearn", "matplotlib")
    code = "import sys, lastiterate.audit.statistics, lastiterate.audit.statistics; "
    code += f"print({heavy} & sys.modules.keys())"
    code = code.replace(str(heavy), str(set(heavy)))
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "set()"


def test_a_trainer_of_ones_own_needs_no_linear_loss():
    """A run known by its constants is audited through ``train``, the pair and the batches of models
    given."""
    run = li.Run(
        n=2, steps=1, step_size=1.0, noise=li.GradientNoise(0.5), clip=1.0, adjacency="replace-one"
    )

    def train(features, target, keys):
        noise = [
            np.random.default_rng(np.asarray(key).ravel().astype(np.uint64)).normal(size=(1, 2))
            for key in keys
        ]
        return np.array([[[features.mean(), 0.0]]]) + 0.5 * np.array(noise)

    one, other, target = np.array([[0.0], [1.0]]), np.array([[0.0], [-1.0]]), np.zeros(2)
    pair = Neighbours(DataSet(one, target), DataSet(other, target), 1, "1 or -1")
    report = audit(
        run, attack="learned", trials=500, seed=0, neighbours=pair, train=train, batch_models=250
    )
    assert 1 < report.lower <= report.upper and not report.refuted
