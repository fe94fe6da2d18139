"""The leaderboard's page and its JSON are what its measurements say."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_and_its_json_follow_from_the_measurements(tmp_path):
    script = (
        "import sys; sys.path.insert(0, 'tools'); from pathlib import Path; import json\n"
        "from leaderboard_page import named\n"
        "from leaderboard_screen import screen, summary\n"
        "found = summary(Path('benchmarks/board.jsonl')); print(json.dumps([found, screen(found), "
        "named()]))"
    )
    made = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    found, page, algorithms = json.loads(made.stdout)
    assert json.loads((ROOT / "docs" / "leaderboard.json").read_text()) == found
    assert (ROOT / "docs" / "leaderboard.md").read_text() == page + "\n" + algorithms


def test_a_difference_within_its_paired_standard_error_is_a_tie(monkeypatch):
    """Differences .02, -.01, .02, -.01 of ours: mean .005, standard error .0087; by medians ours
    would be ahead."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from leaderboard_page import behind
    from leaderboard_screen import cell, paired, verdict

    level = {"auroc": 0.9, "log_loss": 0.3}
    ours = [
        {"seed": seed, "accuracy": 0.8 + off} | level
        for seed, off in enumerate((0.02, -0.01, 0.02, -0.01))
    ]
    theirs = [{"seed": seed, "accuracy": 0.8, "auroc": 0.91, "log_loss": 0.4} for seed in range(5)]
    found = paired(ours, theirs)
    assert found["accuracy"] == [0.005, 0.00866] and found["log_loss"][0] == 0.1, (
        "positive where others are behind"
    )
    assert [verdict(pair) for pair in found.values()] == ["tie", "worse", "better"]
    assert cell({"behind": found} | theirs[0]) == "*.8000* / **.9100** / .4000"
    best, row = ({"accuracy": [fit["accuracy"] for fit in fits]} for fits in (ours, theirs))
    assert (
        behind(best, row) == "0.0050 (tie)"
        and behind(best, {"accuracy": [0.79, 0.77, 0.79, 0.78]}) == "0.0225"
    )


def test_the_board_has_rows_without_privacy_and_of_other_libraries():
    _, _, text = (ROOT / "docs" / "leaderboard.md").read_text().partition("# Named algorithms")
    tables = text.split("\n## ")[1:-1]
    assert len(tables) == 24 and all(
        "| *no privacy* |" in table and "noisy-sgd" in table for table in tables
    )
    assert sum("| Opacus" in table for table in tables) == 6


def test_every_method_saw_the_same_seeds_and_enough_sets_are_on_the_board():
    found = json.loads((ROOT / "docs" / "leaderboard.json").read_text())
    ours = {(one["set"], one["epsilon"]): one for one in found if one["method"] == "lastiterate"}
    assert len({short for short, _ in ours}) >= 15 and {budget for _, budget in ours} == {
        0.3,
        1,
        3,
        8,
    }
    for one in found:
        if one["method"] not in ("none", "none-mapped", "best"):
            assert (one["set"], one["epsilon"]) in ours, one


def test_maps_of_images_are_compared_by_means_and_deviations_of_five_seeds(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from leaderboard_screen import compare_maps

    fit = {"set": "mnist", "epsilon": 1.0, "accuracy": 0.5}
    first = [fit | {"method": "patches", "map": "patches", "seed": seed} for seed in (0, 1)]
    first[1]["accuracy"] = 0.7
    second = [fit | {"method": "lastiterate", "map": "plain", "seed": seed} for seed in range(10)]
    second += [
        {**second[0], "map": "patches", "accuracy": 0.9},
        {**second[0], "method": "opacus"},
        {**second[0], "set": "wine"},
        {**second[0], "epsilon": None},
    ]
    for name, rows in (("a", first), ("b", second)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compare_maps([tmp_path / "a", tmp_path / "b"])[3:] == [
        "| MNIST | patches |  | 0.6000 ± 0.1414 (2) |  |  |",
        "| MNIST | pixels |  | 0.5000 ± 0.0000 |  |  |",
    ]
    text = (ROOT / "docs" / "leaderboard.md").read_text()
    (row,) = [
        line
        for line in text.splitlines()
        if line.startswith("| Natural images of 20 classes | patches |")
    ]
    assert row.count("±") == 4 and "(" not in row, "five seeds at four budgets"
