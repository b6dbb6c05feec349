"""Lay out line charts. The template macro `chart` draws them as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# In SVG units: the size of a chart, and the edges of its plot area.
SIZE = {"width": 480, "height": 240, "left": 52, "right": 468, "top": 10, "bottom": 214}


@dataclass(frozen=True)
class Line:
    """A line of a chart: its (x, value) points by ascending x. `color` is an index into the six colors of style.css."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    dashed: bool = False


def ticks(low: float, high: float) -> list[float]:
    """Return two to six evenly spaced round numbers from low to high."""
    rough = (high - low) / 5
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 2, 5, 10, ... If fewer than three fit, return `ticks`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [f * 10.0**d for d in decades for f in (1, 2, 5) if low * 0.999 <= f * 10.0**d <= high * 1.001]
    return steps if len(steps) > 2 else ticks(low, high)


def line_chart(
    title: str, lines: Sequence[Line], marks: Sequence[float] = (), log: bool = False
) -> dict[str, Any] | None:
    """Return the layout of a chart, or None if no line has a point.

    `marks` are the x values of vertical marks. If `log` is true, the vertical axis is logarithmic, and values that are
    not positive are drawn at the lowest positive value.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    values = [value for line in lines for _, value in line.points]
    least = min([value for value in values if value > 0], default=1.0)

    def scaled(value: float) -> float:
        return math.log10(max(value, least)) if log else value

    low, high = scaled(min(values)), scaled(max(values))
    if not high - low > 1e-12:
        low, high = low - abs(low or 1) * 0.1, high + abs(high or 1) * 0.1
    if not log and 0 <= low < 0.5 * high:
        low = 0
    end = max(line.points[-1][0] for line in lines) or 1

    def x(step: float) -> float:
        return round(SIZE["left"] + step / end * (SIZE["right"] - SIZE["left"]), 1)

    def y(value: float) -> float:
        return round(SIZE["top"] + (high - scaled(value)) / (high - low) * (SIZE["bottom"] - SIZE["top"]), 1)

    def label(value: float) -> str:
        return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:.3g}"

    curves = []
    for line in lines:
        # The plot is only 416 units wide, so draw about 400 points at most. Repeat the last point, so that a line with
        # a single point shows as a dot.
        points = [*line.points[: -1 : math.ceil(len(line.points) / 400)], line.points[-1], line.points[-1]]
        path = " ".join(f"{x(step)},{y(value)}" for step, value in points)
        style = f"s{line.color % 6}{' dashed' * line.dashed}"
        curves.append({"name": line.name, "last": line.points[-1], "style": style, "path": path})
    ys = log_ticks(10**low, 10**high) if log else ticks(low, high)
    return {
        **SIZE,
        "title": title,
        "rows": [(y(value), label(value)) for value in ys],
        "columns": [(x(step), label(step)) for step in ticks(0, end)],
        "curves": curves,
        "marks": [x(mark) for mark in marks],
    }
