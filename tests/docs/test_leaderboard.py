"""The leaderboard's page and its JSON are what its measurements say."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_and_its_json_follow_from_the_measurements(tmp_path):
    script = ("import sys; sys.path.insert(0, 'tools'); from pathlib import Path; import json\n"
              "from leaderboard_screen import screen, summary\n"
              "found = summary(Path('benchmarks/board.jsonl')); print(json.dumps([found, screen(found)]))")
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    found, page = json.loads(made.stdout)
    assert json.loads((ROOT / "docs" / "leaderboard.json").read_text()) == found
    assert (ROOT / "docs" / "leaderboard.md").read_text().startswith(page)


def test_every_method_saw_the_same_seeds_and_enough_sets_are_on_the_board():
    found = json.loads((ROOT / "docs" / "leaderboard.json").read_text())
    ours = {(one["set"], one["epsilon"]): one for one in found if one["method"] == "lastiterate"}
    assert len({short for short, _ in ours}) >= 15 and {budget for _, budget in ours} == {0.3, 1, 3, 8}
    for one in found:
        if one["method"] not in ("none", "none-mapped", "best"):
            assert (one["set"], one["epsilon"]) in ours, one
