"""Every example of the gallery runs, draws and prints; its page has all of it."""

import re
import sys
import time
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import generate_gallery as gallery  # noqa: E402

sys.path.remove(str(DOCS))


def test_there_are_examples():
    assert len(gallery.names()) >= 5
    assert all(f"{name}.md" in gallery.overview() for name in gallery.names())


@pytest.mark.parametrize("name", gallery.names())
def test_an_example_runs(name):
    begun = time.process_time()
    found = gallery.made(name)
    assert found.picture.startswith(b"\x89PNG") and len(found.picture) > 5000 and found.printed
    assert found.title.endswith(".") and ": " in found.title and len(found.source.splitlines()) < 40
    text = gallery.page(name)
    assert (
        found.source in text
        and found.printed in text
        and f"]({name}.py)" in text
        and f"]({name}.png)" in text
    )
    assert time.process_time() - begun < 60, "an example takes seconds"


def test_the_gallery_says_what_it_shows():
    """The claims of the titles, in the numbers that are printed."""
    last, every = (
        [float(number) for number in re.findall(r"(?:epsilon|steps,) (\d+\.\d+)", line)]
        for line in gallery.made("last_iterate_over_steps").printed.splitlines()
    )
    assert last[1] < 2 * last[0] and every[1] > 5 * last[1] and every[0] == last[0]
    order = [
        float(line.split(" multiplier ")[1].split()[0])
        for line in gallery.made("secret_order").printed.splitlines()
    ]
    assert order[0] > order[1] > order[2]
    assert "two releases: 1.47" in gallery.made("several_releases").printed
