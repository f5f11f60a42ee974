"""Plots are text that stands alone, says what it shows, and is the same each time."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from userdp.errors import UseError
from userdp.reporting.curves import Plot, Series, draw, points


def plot(*series: Series, **changes: object) -> Plot:
    values: dict[str, object] = {"key": "p", "title": "A & B", "x_label": "step", "y_label": "loss"}
    return Plot(series=series, **{**values, **changes})  # type: ignore[arg-type]


LINE = Series(name="uls <&$x$>", xs=(1.0, 2.0, 3.0), ys=(5.5, 5.25, 5.125))


def test_a_plot_is_well_formed_and_says_what_it_shows() -> None:
    svg = draw(plot(LINE, level=("base", 5.5)))
    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "img"
    words = "".join(root.itertext())
    for part in ("A & B", "uls <&$x$>", "from 5.5 at 1 to 5.125 at 3", "base", "loss"):
        assert part in words


def test_a_plot_embeds_and_fetches_nothing() -> None:
    svg = draw(plot(LINE))
    assert "font-face" not in svg
    assert "base64" not in svg
    assert "http" not in svg
    assert "<metadata" not in svg
    assert "<text" in svg


def test_colours_are_left_to_the_page() -> None:
    svg = draw(plot(LINE, Series(name="els", xs=(1.0,), ys=(5.0,)), level=("base", 5.5)))
    assert "var(--series-1)" in svg
    assert "var(--series-2)" in svg
    assert not re.findall(r"#[0-9a-f]{6}\b", svg)


def test_series_differ_by_more_than_colour() -> None:
    names = ("a", "b", "c")
    svg = draw(plot(*(Series(name=n, xs=(1.0, 2.0), ys=(1.0, i)) for i, n in enumerate(names))))
    dashes = set(re.findall(r"stroke-dasharray: ([\d., ]+)", svg))
    assert len(dashes) >= len(names) - 1  # the first is solid


def test_the_same_plot_is_the_same_text() -> None:
    assert draw(plot(LINE)) == draw(plot(LINE))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(UseError, match="not finite"):
        draw(plot(Series(name="a", xs=(1.0,), ys=(bad,))))
    with pytest.raises(UseError, match="nothing to draw"):
        draw(plot())


def test_missing_values_are_left_out() -> None:
    assert points([(1, 2.0), (2, None), (3, 4.0)]) == ((1, 3), (2.0, 4.0))
