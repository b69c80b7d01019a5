"""Charts as inline SVG, made of text: bars in rows (stacked, with whiskers) and lines.

Colours come from the page's style sheet, so that a chart is right on a light and on a dark page. Every mark has
its value as a ``<title>``; rows are labelled in words, so that no reading hangs on a colour alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup

from whiflash_harnesses.report.colours import colour

_WIDTH = 860
_LEFT = 150
"""Where bars begin: labels of rows are to the left of it."""
_LETTER = 6.6
"""Width of a letter; a text's true width is the browser's secret."""
_SHORTEST = 300
"""Least length of the longest bar, however long the texts beside the bars are."""
_ROW = 19
_BAR = 13
_HEAD = 24
"""Height of a group's heading, and of the axis."""


@dataclass(frozen=True)
class Bar:
    """One row. ``parts`` are stacked; ``low`` and ``high`` are the ends of a whisker."""

    label: str
    parts: Sequence[tuple[str, float]]
    """(name, value): the name gives the colour."""
    text: str
    """Written beside the bar."""
    low: float | None = None
    high: float | None = None


def bar_rows(
    name: str, groups: Mapping[str, Sequence[Bar]], *, unit: str = "", reference: float | None = None
) -> Markup:
    """Return a chart of one row per bar under a heading per group. ``reference`` draws a line at that value."""
    bars = [bar for rows in groups.values() for bar in rows]
    ends = [max(bar.high or 0.0, sum(max(value, 0.0) for _, value in bar.parts)) for bar in bars]
    step = _tick_step(max([*ends, reference or 0.0], default=0.0))
    top = step * ceil(max([*ends, reference or 0.0, step]) / step - 1e-9)
    beside = 20 + _LETTER * max((len(bar.text) for bar in bars), default=0)
    scale = max(_WIDTH - _LEFT - beside, _SHORTEST) / top
    body, y = [], 4
    for heading, rows in groups.items():
        y += _HEAD
        body.append(_text(0, y - 8, heading, "heading"))
        for bar in rows:
            body.append(_bar(bar, y, scale, unit))
            y += _ROW
    grid = [_tick(_LEFT + tick * scale, y, tick, step, unit) for tick in _ticks(top, step)]
    if reference is not None:
        grid.append(_line(_LEFT + reference * scale, 10, _LEFT + reference * scale, y, "reference"))
    return _svg(name, _WIDTH, y + _HEAD, Markup("").join([*grid, *body]))


def _bar(bar: Bar, y: float, scale: float, unit: str) -> Markup:
    marks, x = [_text(_LEFT - 8, y + 11, bar.label, "label")], float(_LEFT)
    for name, value in bar.parts:
        width = max(value, 0.0) * scale
        title = f"{bar.label}, {name}: {value:.4g}{unit}" if name != bar.label else f"{name}: {value:.4g}{unit}"
        marks.append(_rectangle(x, y + 1, width, name, title))
        x += width
    if bar.low is not None and bar.high is not None:
        marks.append(_whisker(_LEFT + bar.low * scale, _LEFT + bar.high * scale, y + 1 + _BAR / 2))
        x = max(x, _LEFT + bar.high * scale)
    marks.append(_text(x + 8, y + 11, bar.text, "value"))
    return Markup("").join(marks)


def _whisker(low: float, high: float, y: float) -> Markup:
    ends = [_line(x, y - 4, x, y + 4, "whisker") for x in (low, high)]
    return Markup("").join([_line(low, y, high, y, "whisker"), *ends])


_LINES_WIDTH, _LINES_HEIGHT = 420, 230
_EDGE = {"left": 40, "right": 12, "top": 10, "bottom": 38}


def share_lines(name: str, series: Mapping[str, Sequence[float]], x_label: str) -> Markup:
    """Return a chart of shares (0 to 1) over 1, 2, 3, …; one line per series that has values."""
    count = max((len(values) for values in series.values()), default=0)
    floor_y = _LINES_HEIGHT - _EDGE["bottom"]
    across = (_LINES_WIDTH - _EDGE["left"] - _EDGE["right"]) / max(count - 1, 1)
    height = floor_y - _EDGE["top"]
    marks = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = floor_y - tick * height
        marks.append(_line(_EDGE["left"], y, _LINES_WIDTH - _EDGE["right"], y, "grid"))
        marks.append(_text(_EDGE["left"] - 6, y + 4, f"{tick:.2f}", "tick end"))
    for index in range(count):
        marks.append(_text(_EDGE["left"] + index * across, floor_y + 16, str(index + 1), "tick"))
    marks.append(_text(_LINES_WIDTH / 2, _LINES_HEIGHT - 4, x_label, "tick"))
    for label, values in series.items():
        points = [(_EDGE["left"] + i * across, floor_y - value * height) for i, value in enumerate(values)]
        marks.append(_polyline(label, points, values))
    return _svg(name, _LINES_WIDTH, _LINES_HEIGHT, Markup("").join(marks))


def _polyline(label: str, points: Sequence[tuple[float, float]], values: Sequence[float]) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [
        Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.5" style="fill:rgb({})"><title>{}</title></circle>').format(
            x, y, colour(label), f"{label}, position {index}: {value:.2f}"
        )
        for index, ((x, y), value) in enumerate(zip(points, values, strict=True), start=1)
    ]
    line = Markup('<polyline points="{}" style="stroke:rgb({})"/>')
    return Markup("").join([line.format(path, colour(label)) if len(points) > 1 else Markup(""), *dots])


def legend(names: Sequence[str]) -> Markup:
    """Return the names with their colours, for the charts that stack or cross."""
    entry = Markup('<span class="key"><span class="swatch" style="--c:{}"></span>{}</span>')
    entries = Markup(" ").join(entry.format(colour(name), name) for name in names)
    return Markup('<p class="legend">{}</p>').format(entries)


def _tick_step(top: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that about five steps reach ``top``."""
    if top < 1e-6:  # nothing, or too little for a label
        return 1.0
    power: float = 10.0 ** floor(log10(top / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5.5 >= top)


def _ticks(top: float, step: float) -> list[float]:
    return [index * step for index in range(round(top / step) + 1)]


def _tick(x: float, bottom: float, value: float, step: float, unit: str) -> Markup:
    digits = max(0, -floor(log10(step)))
    return _line(x, 10, x, bottom, "grid") + _text(x, bottom + 16, f"{value:.{digits}f}{unit}", "tick")


def _rectangle(x: float, y: float, width: float, name: str, title: str) -> Markup:
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" style="fill:rgb({})"><title>{}</title></rect>'
    ).format(x, y, width, _BAR, colour(name), title)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        kind, x1, y1, x2, y2
    )


def _text(x: float, y: float, text: str, kind: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, text)


def _svg(name: str, width: float, height: float, body: Markup) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" width="{w}" role="img" aria-label="{n}">{b}</svg>'
    ).format(w=width, h=height, n=name, b=body)
