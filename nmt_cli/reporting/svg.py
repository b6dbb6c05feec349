"""Charts as inline SVG. Colours come from the page's style, so that they fit light, dark and paper."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt_cli.reporting.page import escape

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 26
MOST_POINTS = 400  # of a line: more cannot be told apart at this width
COLOURS = 6


@dataclass(frozen=True)
class Line:
    """One line of a chart: (step, value) in order; lines of one run share a colour."""

    name: str
    points: list[tuple[float, float]]
    colour: int = 0
    dashed: bool = False


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers from low to high, about `count` of them."""
    rough = (high - low) / count
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 2, 5, 10 and so on; evenly spaced ones within half a decade."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [f * 10.0**d for d in decades for f in (1, 2, 5) if low * 0.999 <= f * 10.0**d <= high * 1.001]
    return found if len(found) > 2 else ticks(low, high)


def number(value: float) -> str:
    """Return a number as an axis shows it: 5k, 0.0002, 27."""
    if abs(value) >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:.3g}"


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    band: tuple[float, float, str] | None = None,
    marks: Sequence[int] = (),
    log: bool = False,
) -> str:
    """Return a chart over steps, or "" where no line has a point.

    Args:
        title: what the values are, with their unit.
        lines: drawn in this order.
        band: lowest and highest expected value, and what they are.
        marks: steps to mark from top to bottom.
        log: whether the values' axis is logarithmic.
    """
    lines = [
        Line(line.name, [p for p in line.points if not log or p[1] > 0], line.colour, line.dashed) for line in lines
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    scaled = np.log10 if log else np.asarray
    values = [value for line in lines for _, value in line.points] + list(band[:2] if band else ())
    low, high = float(scaled(min(values))), float(scaled(max(values)))
    low, high = (low, high) if high - low > 1e-12 else (low - abs(low or 1) * 0.1, high + abs(high or 1) * 0.1)
    low, high = (min(low, 0), high) if not log and 0 <= low < 0.5 * high else (low, high)
    end = max(step for line in lines for step, _ in line.points) or 1

    def x(step: float) -> float:
        return round(LEFT + step / end * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - float(scaled(value))) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    parts = []
    if band:
        top, height = y(band[1]), max(2.0, y(band[0]) - y(band[1]))
        parts.append(f'<rect class="band" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{height}"/>')
    for value in log_ticks(10**low, 10**high) if log else ticks(low, high):
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{number(value)}</text>')
    for step in ticks(0, end):
        parts.append(f'<text x="{x(step)}" y="{HEIGHT - 8}" text-anchor="middle">{number(step)}</text>')
    parts += [f'<line class="used" x1="{x(m)}" x2="{x(m)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' for m in marks]
    for line in lines:
        stride = math.ceil(len(line.points) / MOST_POINTS)
        kept = line.points[:-1:stride] + line.points[-1:]
        path = " ".join(f"{x(step)},{y(value)}" for step, value in kept)
        kind = f"s{line.colour % COLOURS}{' dashed' if line.dashed else ''}"
        dot = f'<circle class="f0 {kind}" cx="{x(kept[0][0])}" cy="{y(kept[0][1])}" r="2.5"/>' if len(kept) == 1 else ""
        last = f"{line.name}: {line.points[-1][1]:.4g} at step {line.points[-1][0]:,}"
        parts.append(f'<polyline class="{kind}" points="{path}"><title>{escape(last)}</title></polyline>{dot}')
    legend = "".join(_legend(line) for line in lines) if len(lines) > 1 else ""
    about = f" · shaded: {escape(band[2])}" if band else ""
    return _figure(f"<b>{escape(title)}</b>{about}", (WIDTH, HEIGHT), parts, legend)


def _figure(caption: str, size: tuple[int, int], parts: Sequence[str], legend: str = "", *, scaled: bool = True) -> str:
    """Return a chart with its caption and legend; `scaled`: as wide as its place, else in its own size."""
    name = re.sub("<[^>]*>", "", caption)  # what is left is escaped already
    own = f'viewBox="0 0 {size[0]} {size[1]}"' if scaled else f'width="{size[0]}" height="{size[1]}"'
    drawn = f'<svg {own} role="img" aria-label="{name}">{"".join(parts)}</svg>'
    drawn = drawn if scaled else f'<div class="wide">{drawn}</div>'
    return f'<figure><figcaption>{caption}</figcaption>{drawn}<div class="legend">{legend}</div></figure>'


def _legend(line: Line) -> str:
    kind = f"s{line.colour % COLOURS}{' dashed' if line.dashed else ''}"
    swatch = f'<svg width="22" height="8"><polyline class="{kind}" points="0,4 22,4"/></svg>'
    return f"<span>{swatch} {escape(line.name)} {line.points[-1][1]:.4g}</span>"


def histogram(title: str, sides: Sequence[tuple[str, npt.NDArray[np.int64]]], bins: int = 30) -> str:
    """Return how often each length occurs on either side, side by side; the last bin holds all that is longer."""
    longest = max(int(np.quantile(lengths, 0.995)) for _, lengths in sides)
    width = max(1, math.ceil(longest / bins))
    count = longest // width + 1
    counts = [np.bincount(np.minimum(lengths // width, count - 1), minlength=count) for _, lengths in sides]
    most = max(int(c.max()) for c in counts) or 1
    slot = (WIDTH - LEFT - RIGHT) / count
    parts = [f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{most:,}</text>']
    for side, values in enumerate(counts):
        for i, value in enumerate(values.tolist()):
            height = value / most * (HEIGHT - TOP - BOTTOM)
            x, y = LEFT + i * slot + side * slot * 0.45, HEIGHT - BOTTOM - height
            more = " and more" if i == count - 1 else ""
            label = f"{sides[side][0]}, {i * width} to {(i + 1) * width - 1}{more} pieces: {value:,}"
            parts.append(
                f'<rect class="f{side}" x="{x:.1f}" y="{y:.1f}" width="{slot * 0.42:.1f}" height="{height:.1f}">'
                f"<title>{escape(label)}</title></rect>"
            )
    for i in range(0, count, max(1, count // 8)):
        parts.append(
            f'<text x="{LEFT + (i + 0.5) * slot:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{i * width}</text>'
        )
    box = '<svg width="10" height="10"><rect class="f{}" width="10" height="10"/></svg> {}, mean {:.1f}, longest {:,}'
    legend = "".join(
        f"<span>{box.format(i, escape(name), lengths.mean(), lengths.max())}</span>"
        for i, (name, lengths) in enumerate(sides)
    )
    return _figure(f"<b>{escape(title)}</b>", (WIDTH, HEIGHT), parts, legend)


def heat_map(title: str, rows: Sequence[str], columns: Sequence[str], values: npt.NDArray[np.float64]) -> str:
    """Return a table of shares from 0 to 1 as squares, rows and columns named."""
    cell, left = 22, 10 + 7 * max(map(len, rows))
    top = 12 + 6 * max(map(len, columns))
    width, height = left + cell * len(columns) + top // 2, top + cell * len(rows) + 2
    parts = []
    for j, name in enumerate(columns):
        place = f"translate({left + cell * j + 14} {top - 6}) rotate(-60)"
        parts.append(f'<text class="strong" transform="{place}">{escape(name)}</text>')
    for i, name in enumerate(rows):
        y = top + cell * i
        parts.append(f'<text class="strong" x="{left - 6}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        for j, value in enumerate(values[i].tolist()):
            parts.append(
                f'<rect class="heat" fill-opacity="{value:.3f}" x="{left + cell * j}" y="{y}" width="{cell - 1}" '
                f'height="{cell - 1}"><title>{escape(f"{name} → {columns[j]}: {value:.3f}")}</title></rect>'
            )
    size = f'x="{left - 1}" y="{top - 1}" width="{cell * len(columns) + 1}" height="{cell * len(rows) + 1}"'
    parts.append(f'<rect class="frame" {size}/>')
    return _figure(escape(title), (width, height), parts, scaled=False)
