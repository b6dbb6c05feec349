"""Line charts: where everything goes in an SVG image, which the template's macro `chart` draws in the page's colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_POINTS = 400  # of a line: more cannot be told apart at this width
COLOURS = 6


@dataclass(frozen=True)
class Line:
    """One line of a chart: (x, value) in order; lines of one run share a colour."""

    name: str
    points: list[tuple[float, float]]
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Curve:
    """A line as drawn; `single` is its place where it has one point only."""

    style: str
    path: str
    hint: str
    legend: str
    single: tuple[float, float] | None


@dataclass(frozen=True)
class Chart:
    """A chart as drawn: labelled places of both axes, curves, x of marked steps, and a band (top, height, name)."""

    title: str
    rows: list[tuple[float, str]]
    columns: list[tuple[float, str]]
    curves: list[Curve]
    marks: list[float]
    band: tuple[float, float, str] | None
    # the image, and the edges of the drawing in it
    width, height = 480, 240
    left, right, top, bottom = 52, 468, 10, 214


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers from low to high, about `count` of them."""
    rough = (high - low) / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 2, 5, 10 and so on; evenly spaced ones within half a decade."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [f * 10.0**d for d in decades for f in (1, 2, 5) if low * 0.999 <= f * 10.0**d <= high * 1.001]
    return steps if len(steps) > 2 else ticks(low, high)


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:.3g}"


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    band: tuple[float, float, str] | None = None,
    marks: Sequence[int] = (),
    log: bool = False,
    over_steps: bool = True,
) -> Chart | None:
    """Lay out a chart; None where no line has a point.

    Args:
        title: what the values are, with their unit.
        lines: drawn in this order.
        band: a range of values to shade: lowest, highest and what it is.
        marks: steps to mark from top to bottom.
        log: whether the values' axis is logarithmic.
        over_steps: x is training steps, so that the last value of a line is worth a place in the legend.
    """
    visible = [(line, [p for p in line.points if not log or p[1] > 0]) for line in lines]
    visible = [(line, points) for line, points in visible if points]
    if not visible:
        return None
    scaled = np.log10 if log else np.asarray
    values = [value for _, points in visible for _, value in points] + list(band[:2] if band else ())
    low, high = float(scaled(min(values))), float(scaled(max(values)))
    low, high = (low, high) if high - low > 1e-12 else (low - abs(low or 1) * 0.1, high + abs(high or 1) * 0.1)
    low = min(low, 0) if not log and 0 <= low < 0.5 * high else low
    end = max(points[-1][0] for _, points in visible) or 1

    def x(step: float) -> float:
        return round(Chart.left + step / end * (Chart.right - Chart.left), 1)

    def y(value: float) -> float:
        return round(Chart.top + (high - float(scaled(value))) / (high - low) * (Chart.bottom - Chart.top), 1)

    curves = []
    for line, points in visible:
        stride = math.ceil(len(points) / MOST_POINTS)
        places = [(x(step), y(value)) for step, value in points[:-1:stride] + points[-1:]]
        step, value = points[-1]
        curves.append(
            Curve(
                f"s{line.colour % COLOURS}{' dashed' * line.dashed}",
                " ".join(f"{a},{b}" for a, b in places),
                f"{line.name}: {value:.4g} at step {step:,}" if over_steps else line.name,
                f"{line.name} {value:.4g}" if over_steps else line.name,
                places[0] if len(places) == 1 else None,
            )
        )
    rows = [(y(value), _number(value)) for value in (log_ticks(10**low, 10**high) if log else ticks(low, high))]
    columns = [(x(step), _number(step)) for step in ticks(0, end)]
    shaded = (y(band[1]), max(2.0, y(band[0]) - y(band[1])), band[2]) if band else None
    return Chart(title, rows, columns, curves, [x(mark) for mark in marks], shaded)
