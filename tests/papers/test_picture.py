"""Pictures of items: legends beside the lines, ticks that can be read, points without lines over
names."""

from itertools import pairwise

import pytest

from lastiterate.report.charts import STYLES
from lastiterate_papers import Panel, Trace
from lastiterate_papers.files import arranged, drawn, plain

STYLE = list(STYLES)
X = (500.0, 1000.0, 2000.0)


def lines(count, x=X, label="a line with a name of some length, number"):
    return tuple(
        Trace(f"{label} {k}", x, tuple((k + 1.0) * value for value in x), STYLE[k])
        for k in range(count)
    )


def panel(traces, log=True, **more):
    return Panel("a title", "n", "risk", traces, log, log, **more)


CASES = {
    "eight lines, twice": [panel(lines(8)), panel(lines(8))],
    "two legends": [panel(lines(2, label="short")), panel(lines(5))],
    "one line": [panel(lines(1))],
    "three panels and one below": [panel(lines(3))] * 3 + [panel(lines(7), False)],
    "names": [
        panel(lines(3, (1.0, 2.0, 3.0)), False, names=("head alone", "last block", "no privacy"))
    ],
    "one point": [panel(lines(2, (20_000.0,)))],
    "close numbers": [
        Panel(
            "t",
            "order",
            "mean",
            (Trace("a", (1.5, 2.0, 5.0, 20.0), (31.92941, 31.92942, 31.92943, 31.92960)),),
            True,
        )
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_legends_cover_nothing_and_ticks_do_not_overlap(name):
    panels = CASES[name]
    figure = arranged(panels)
    figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    legends = [legend for part in (figure, *figure.subfigs) for legend in part.legends]
    assert len(boxes) == len(panels) and not any(axes.get_legend() for axes in figure.axes)
    same = len(panels) > 1 and len({tuple(t.label for t in each.traces) for each in panels}) == 1
    assert len(legends) == (1 if same else sum(len(each.traces) > 1 for each in panels))
    for legend in legends:
        found = legend.get_window_extent()
        assert not any(found.overlaps(box) for box in boxes)
        assert (
            figure.bbox.x0 <= found.x0 and found.x1 <= figure.bbox.x1 and figure.bbox.y0 <= found.y0
        )
        assert not any(found.overlaps(axes.xaxis.label.get_window_extent()) for axes in figure.axes)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [
                label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()
            ]
            assert labels and not any(one.overlaps(two) for one, two in pairwise(labels))
            assert axis.get_offset_text().get_text() == ""
        assert axes.title.get_window_extent().x1 <= figure.bbox.x1


def test_over_names_stand_points_and_a_line_of_one_point_is_seen():
    (axes,) = arranged(CASES["names"]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "head alone",
        "last block",
        "no privacy",
    ]
    assert all(
        line.get_linestyle() == "None" and line.get_marker() not in ("None", "")
        for line in axes.lines
    )
    assert len({line.get_marker() for line in axes.lines}) == 3
    (axes,) = arranged(CASES["one point"]).axes
    assert all(line.get_marker() not in ("None", "") for line in axes.lines)
    assert drawn(CASES["one line"]) == drawn(CASES["one line"])  # the same bytes, without dates


def test_numbers_of_ticks():
    assert [plain(value) for value in (2000, 0.05, 1e-5, 2e6, 1.0)] == [
        "2000",
        "0.05",
        "1e-5",
        "2e6",
        "1",
    ]
