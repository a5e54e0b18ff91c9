"""Figures as SVG: values where they belong, on every kind of axis, whatever the width."""

import re
from math import log10
from xml.etree import ElementTree

import pytest
from plotly.graph_objects import Bar, Figure, Heatmap, Scatter
from plotly.subplots import make_subplots

from symbayes.report.axes import Axis
from symbayes.report.plots import style
from symbayes.report.svg import draw


def parse(figure, width=600):
    """The elements of a figure; that it is XML is a part of the test."""
    drawn = draw(figure, width, "name", label="a & b")
    assert 'aria-label="a &amp; b"' in drawn
    return ElementTree.fromstring(drawn)


def texts(root):
    return [element.text for element in root.iter("text")]


def points(root):
    found = [re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d")) for path in root.iter("path") if path.get("fill") == "none"]
    return [[(float(x), float(y)) for x, y in one] for one in found]


@pytest.mark.parametrize(
    ("settings", "values", "labels"),
    [
        ({}, [0, 10], ["0", "2", "4", "6", "8", "10"]),
        ({}, [-0.1, 0.1], ["−0.10", "−0.05", "0.00", "0.05", "0.10"]),
        ({"range": [0, 3000]}, [], ["0", "500", "1,000", "1,500", "2,000", "2,500", "3,000"]),
        ({"dtick": 15, "ticksuffix": "°"}, [0, 45], ["0°", "15°", "30°", "45°"]),
        ({"tickformat": "d"}, [1, 3], ["1", "2", "3"]),
        ({"type": "log"}, [1e-5, 1e4], ["10⁻⁴", "0.01", "1", "100", "10⁴"]),
        ({"type": "log"}, [0.1, 0.9], ["0.1", "0.2", "0.5", "1"]),
        ({"type": "log"}, [1.13, 1.42], ["1.2", "1.3", "1.4"]),
        ({"categoryarray": ["a &amp; b", "c"]}, ["c"], ["a & b", "c"]),
    ],
)
def test_ticks_are_round_numbers_and_few(settings, values, labels):
    axis = Axis(settings, values)
    ticks = axis.ticks(6)
    assert [words for _, words in ticks] == labels
    assert all(-1e-9 <= axis.share(at) <= 1 + 1e-9 for at, _ in ticks)


def test_axes_end_where_they_should_and_may_be_reversed():
    axis = Axis({"range": [0, 4]}, [])
    assert (axis.share(0), axis.share(1), axis.share(4)) == (0, 0.25, 1)
    turned = Axis({"autorange": "reversed"}, ["first", "second"])
    assert turned.share(turned.coordinate("first")) == pytest.approx(0.75)
    power = Axis({"type": "log", "range": [0, 2]}, [])
    assert power.share(power.coordinate(10)) == 0.5
    assert str(power.coordinate(-1)) == "nan"


def test_lines_go_through_their_points_and_stop_at_gaps():
    figure = Figure(Scatter(x=[0, 1, None, 2, 3], y=[0, 1, None, 1, 0], mode="lines"))
    style(figure, 300)
    first, second = points(parse(figure))
    assert len(first) == len(second) == 2
    assert first[0][0] < first[1][0] < second[0][0] < second[1][0]
    assert first[0][1] == second[1][1] > first[1][1] == second[0][1]  # up is up
    steps = [b[0] - a[0] for a, b in ((first[0], first[1]), (first[1], second[0]))]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)


def test_a_log_axis_is_logarithmic():
    figure = Figure(Scatter(x=[0, 1, 2], y=[1, 10, 1000], mode="lines"))
    style(figure, 300, y={"type": "log"})
    (line,) = points(parse(figure))
    heights = [y for _, y in line]
    assert (heights[1] - heights[2]) / (heights[0] - heights[1]) == pytest.approx(2, abs=0.02)


def test_panels_share_their_x_axis_and_titles_are_shown():
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_titles=["above", "below"])
    figure.add_trace(Scatter(x=[0, 5], y=[0, 1], mode="lines"), row=1, col=1)
    figure.add_trace(Scatter(x=[5, 10], y=[0, 1], mode="lines"), row=2, col=1)
    style(figure, 400)
    figure.update_xaxes(title="epoch", row=2, col=1)
    root = parse(figure)
    first, second = points(root)
    assert first[1][0] == second[0][0]
    assert max(y for _, y in first) < min(y for _, y in second)
    assert {"above", "below", "epoch"} <= set(texts(root))


def test_stacked_bars_follow_each_other_and_say_their_share():
    look = {"y": ["layer"], "orientation": "h", "texttemplate": "%{x:.0f} %", "hovertemplate": "%{y}: %{x:.1f} %"}
    first = Bar(name="a", x=[25.0], marker={"color": "#0072B2"}, **look)
    figure = Figure([first, Bar(name="b", x=[75.0], marker={"color": "#E69F00"}, **look)])
    style(figure, 200, x={"range": [0, 100]}, barmode="stack", showlegend=True)
    root = parse(figure)
    first, second = [one for one in root.iter("rect") if one.find("title") is not None]
    assert float(first.get("x")) + float(first.get("width")) == pytest.approx(float(second.get("x")), abs=0.2)
    assert float(second.get("width")) / float(first.get("width")) == pytest.approx(3, abs=0.02)
    assert first.find("title").text == "a, layer: 25.0 %"
    assert {"25 %", "75 %", "a", "b"} <= set(texts(root))


def test_bars_on_a_log_axis_begin_at_its_end():
    figure = Figure(Bar(x=[1, 2], y=[1.0, 100.0], marker={"color": "#000000"}))
    style(figure, 300, y={"type": "log", "range": [-1, 3]})
    low, high = [float(one.get("height")) for one in parse(figure).iter("rect")]
    assert high / low == pytest.approx((log10(100) + 1) / (log10(1) + 1), abs=0.02)


def test_markers_heatmaps_notes_and_dashed_lines_are_drawn():
    figure = Figure(Scatter(x=[0, 1], y=[0, 1], mode="markers", marker={"size": [10, 20], "color": "#000000"}))
    style(figure, 300)
    figure.add_hline(y=0.5, line={"color": "#666666", "dash": "5px,4px"})
    figure.add_annotation(text="truth<br>45°", x=1, xref="paper", xanchor="left", y=0.5, showarrow=False)
    root = parse(figure)
    assert [one.get("r") for one in root.iter("circle")] == ["5.0", "10.0"]
    assert {one.get("fill") for one in root.iter("circle")} == {"currentColor"}  # black on white, white on black
    assert [one.get("stroke-dasharray") for one in root.iter("line") if one.get("stroke-dasharray")] == ["5 4"]
    assert {"truth", "45°"} <= set(texts(root))
    scale = ((0, "#0000ff"), (0.5, "#ffffff"), (1, "#ff0000"))
    cells = Figure(Heatmap(z=[[-1.0, 0.0], [0.5, 1.0]], zmin=-1, zmax=1, colorscale=scale))
    style(cells, 300)
    assert [one.get("fill") for one in parse(cells).iter("rect")] == ["#0000ff", "#ffffff", "#ff8080", "#ff0000"]


@pytest.mark.parametrize("width", [358, 940])
def test_nothing_is_drawn_outside(width):
    names = [f"a run with quite a long name, number {index}" for index in range(6)]
    figure = Figure([Scatter(x=[0, 1], y=[index, 1], name=name, mode="lines") for index, name in enumerate(names)])
    style(figure, 400, y={"title": "log evidence (nats per datum)"})
    root = parse(figure, width)
    for text in root.iter("text"):
        if text.get("transform") is None:
            long = 0.6 * 13 * len(text.text)
            left = float(text.get("x")) - {"start": 0, "middle": long / 2, "end": long}[text.get("text-anchor")]
            assert left > -1
            assert left + long < width + 1
            assert 0 < float(text.get("y")) < 400
    assert [text for text in texts(root) if text in names] == names


def test_names_are_text_whatever_they_are():
    figure = Figure(Scatter(x=[0, 1], y=[0, 1], name="&lt;script&gt;", mode="lines", showlegend=True))
    style(figure, 300, showlegend=True)
    assert "<script>" in texts(parse(figure))


def test_long_lines_are_thinned_without_losing_what_stands_out():
    values = [0.0] * 9001
    values[4321], values[-1] = 1.0, 0.5
    drawn = draw(Figure(Scatter(x=list(range(9001)), y=values, mode="lines")), 400, "long")
    heights = [float(point.split()[1]) for point in re.findall(r'd="M([^"]*)"', drawn)[0].split("L")]
    assert 200 < len(heights) < 900
    assert heights.count(min(heights)) == 1
    assert heights[-1] == pytest.approx((min(heights) + max(heights)) / 2, abs=0.1)


def test_bars_without_a_length_are_left_out():
    drawn = draw(Figure(Bar(x=["a", "b", "c"], y=[1.0, float("nan"), None])), 400, "bars")
    assert drawn.count("<rect") == 1
    assert "nan" not in drawn
