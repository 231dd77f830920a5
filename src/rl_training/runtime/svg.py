"""Charts as SVG: curves with bands, histograms, bars with intervals. Colours are those of ``CHART_STYLE``, which follow the
reader's light or dark theme.

A chart of curves carries its numbers, which the page's script shows under the pointer; the page has them as a table too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 12, 48
#: A line has at most this many points, and few points have dots.
MOST_POINTS, FEW_POINTS = 300, 60
COLORS = 8  # classes c0 to c7
STEPS = "environment steps"
#: The width of a digit in the largest font of a page.
WIDEST = 11
#: Bar charts: the height of a row, the width of the column of names, and the longest name beside a bar.
ROW, NAMES, LONGEST_NAME = 26, 200, 18

CHART_STYLE = """
:root{--back:#fff;--text:#1c1e21;--soft:#5c636b;--edge:#d8dce1;--panel:#f6f7f9;
--c0:#1f6fb4;--c1:#c2570c;--c2:#24803a;--c3:#a4262c;--c4:#6b4fbb;--c5:#7a5230;--c6:#b0307d;--c7:#4d6370}
@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#e6e8eb;--soft:#a3abb5;--edge:#3a4149;--panel:#1e2227;
--c0:#6cb2f0;--c1:#f09a5a;--c2:#6ccb84;--c3:#f28b8f;--c4:#b3a1f2;--c5:#d0a27c;--c6:#ef8fca;--c7:#a3b8c4}}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}svg text.strong{fill:var(--text);font-weight:600}
.grid{stroke:var(--edge)}.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:6 4}.band{opacity:.18;stroke:none}
.dot{stroke:none}.mark{stroke:var(--c3);stroke-dasharray:4 3}.rule{stroke:var(--soft);visibility:hidden}
.whisker{stroke:var(--text)}.halo text{paint-order:stroke;stroke:var(--back);stroke-width:4px}
""" + "".join(
    f".line.c{k}{{stroke:var(--c{k})}}.dot.c{k},.band.c{k},.bar.c{k}{{fill:var(--c{k})}}.key.c{k}{{background:var(--c{k})}}"
    for k in range(COLORS)
)


@dataclass(frozen=True)
class Line:
    """A curve, with the bounds of a band around it if there is one."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False
    color: int | None = None  # default: by its place among the lines
    joined: bool = True  # false: only points


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step."""

    step: float
    label: str


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart, with the interval of its value if there is one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    color: int = 0


@dataclass(frozen=True)
class Scale:
    """An upright axis: its name, and what is written at which height, from 0 to 1."""

    name: str
    marks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Route:
    """A line from axis to axis: its height on each, from 0 to 1, and how strongly it is drawn."""

    label: str
    heights: Sequence[float]
    strength: float
    color: int = 0


@dataclass
class Axes:
    """Turns data into places on a drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    counts: bool = False  # whether the values count things, so that there are no fractions
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x},{y}" for x, y in (self.at(*point) for point in points))

    def grid(self, x_name: str) -> None:
        for tick in (tick for tick in ticks(*self.y) if not self.counts or float(tick).is_integer()):
            _, y = self.at(self.x[0], tick)
            self.parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            self.parts.append(text(LEFT - 6, y + 4, number(tick), "end"))
        for tick in ticks(*self.x):
            (x, _), words = self.at(tick, self.y[0]), number(tick)
            inside = x + WIDEST * len(words) / 2 <= WIDTH
            self.parts.append(text(x if inside else WIDTH, HEIGHT - BOTTOM + 20, words, "middle" if inside else "end"))
        self.parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_name, "middle"))


def line_chart(title: str, lines: Sequence[Line], marks: Sequence[Mark] = (), x_name: str = STEPS) -> str:
    """Curves, which can be read off with a pointer or with the arrow keys."""
    drawn = [thinned(line) for line in lines]
    axes = line_axes(drawn, marks, x_name)
    axes.parts.append(f'<line class="rule" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    read_off = [{"label": line.label, "x": [*map(_short, line.xs)], "y": [*map(_short, line.ys)]} for line in drawn]
    frame = {"x": axes.x, "left": LEFT, "right": WIDTH - RIGHT, "width": WIDTH, "name": x_name, "lines": read_off}
    data = f' tabindex="0" data-chart="{escape(json.dumps(frame, separators=(",", ":")))}"'
    return svg(title, axes.parts, data=data)


def line_axes(lines: Sequence[Line], marks: Sequence[Mark] = (), x_name: str = STEPS) -> Axes:
    """The drawing of curves, without a frame."""
    xs = [x for line in lines for x in line.xs]
    ys = [y for line in lines for values in (line.ys, line.low, line.high) for y in values]
    axes = Axes(widened(0.0 if x_name == STEPS else min(xs), max(xs)), widened(min(ys), max(ys)))
    axes.grid(x_name)
    for mark in marks:
        x, _ = axes.at(min(mark.step, axes.x[1]), axes.y[0])
        drawn = f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        axes.parts.append(f"<g><title>{escape(mark.label)}</title>{drawn}</g>")
    for k, line in enumerate(lines):
        color, style = f"c{(k if line.color is None else line.color) % COLORS}", " dashed" if line.dashed else ""
        pairs = list(zip(line.xs, line.ys, strict=True))
        if line.low:
            band = [*zip(line.xs, line.high, strict=True), *reversed([*zip(line.xs, line.low, strict=True)])]
            axes.parts.append(f'<polygon class="band {color}" points="{axes.path(band)}"/>')
        if line.joined:
            axes.parts.append(f'<polyline class="line {color}{style}" points="{axes.path(pairs)}"/>')
        for x, y in pairs if len(pairs) <= FEW_POINTS or not line.joined else ():
            cx, cy = axes.at(x, y)
            axes.parts.append(f'<circle class="dot {color}" cx="{cx}" cy="{cy}" r="3"/>')
    return axes


def histogram(title: str, values: Sequence[float], name: str) -> str:
    """How often values occur."""
    low, high = widened(min(values), max(values), 0.0)
    bins = min(20, max(5, math.isqrt(len(values))))
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    axes = Axes((low, high), (0.0, float(max(counts))), counts=True)
    axes.grid(name)
    for k, count in enumerate(counts):
        begin, end = (low + (high - low) * edge / bins for edge in (k, k + 1))
        (x1, y1), (x2, y2) = axes.at(begin, count), axes.at(end, 0.0)
        words = escape(f"{count} of {len(values)} between {number(begin)} and {number(end)}")
        bar = f'x="{x1}" y="{y1}" width="{max(1.0, x2 - x1 - 1):.1f}" height="{y2 - y1:.1f}"'
        axes.parts.append(f'<rect class="bar c0" {bar}><title>{words}</title></rect>')
    return svg(title, axes.parts)


def bar_chart(title: str, bars: Sequence[Bar], unit: str = "") -> str:
    """Bars from left to right, one below the other, with their numbers."""
    highest = max([bar.value if bar.high is None else bar.high for bar in bars], default=0.0) or 1.0
    long = any(len(bar.label) > LONGEST_NAME for bar in bars)  # then the names are above the bars
    left, row = (8, 2 * ROW - 6) if long else (NAMES, ROW)
    room = WIDTH - left - 110
    parts = []
    for k, bar in enumerate(bars):
        y, width = (k + 1) * row - 22, max(0.0, bar.value / highest * room)
        name = shortened(bar.label, 60 if long else LONGEST_NAME)
        parts.append(text(left, y - 5, name, label=bar.label) if long else text(left - 8, y + 14, name, "end"))
        parts.append(f'<rect class="bar c{bar.color % COLORS}" x="{left}" y="{y}" width="{width:.1f}" height="18"/>')
        end = width
        if bar.low is not None and bar.high is not None:
            low, end = (max(0.0, bound / highest * room) for bound in (bar.low, bar.high))
            line = f'x1="{left + low:.1f}" x2="{left + end:.1f}" y1="{y + 9}" y2="{y + 9}"'
            parts.append(f'<line class="whisker" {line}/>')
        parts.append(text(left + max(end, width) + 6, y + 14, f"{number(bar.value)}{unit}"))
    return svg(title, parts, len(bars) * row + 6)


def parallel_chart(title: str, scales: Sequence[Scale], routes: Sequence[Route]) -> str:
    """Parallel coordinates: an upright axis for each quantity, and a line across them for each thing that has all of them."""
    apart, top, bottom = 130, 48, HEIGHT + 20
    width = apart * len(scales)

    def at(k: int, height: float) -> tuple[float, float]:
        return apart * (k + 0.5), round(bottom - height * (bottom - top), 1)

    parts = []
    for route in sorted(routes, key=lambda route: route.strength):
        points = " ".join(f"{x:g},{y}" for x, y in (at(k, height) for k, height in enumerate(route.heights)))
        drawn = f'class="line c{route.color % COLORS}" points="{points}" stroke-opacity="{0.15 + 0.85 * route.strength:.2f}"'
        parts.append(f"<polyline {drawn}><title>{escape(route.label)}</title></polyline>")
    for k, scale in enumerate(scales):
        x = apart * (k + 0.5)
        parts.append(f'<line class="whisker" x1="{x:g}" x2="{x:g}" y1="{top}" y2="{bottom}"/>')
        parts.append(text(x, 14 + 18 * (k % 2), shortened(scale.name, 24), "middle", strong=True, label=scale.name))
        parts.extend(text(x + 5, at(k, height)[1] + 4, words) for height, words in scale.marks)
    return svg(title, parts, bottom + 12, width, data=' class="halo"')


def svg(title: str, parts: Sequence[str], height: float = HEIGHT, width: float = WIDTH, data: str = "") -> str:
    """A drawing with a name that a screen reader reads."""
    named = f'role="img" aria-label="{escape(title)}"{data}'
    return f'<svg viewBox="0 0 {width} {height}" {named}><title>{escape(title)}</title>{"".join(parts)}</svg>'


def text(x: float, y: float, words: str, anchor: str = "start", *, strong: bool = False, label: str = "") -> str:
    """Words at a place; ``label`` is what they are short for."""
    shown = ' class="strong"' if strong else ""
    whole = f"<title>{escape(label)}</title>" if label not in ("", words) else ""
    return f'<text{shown} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{whole}{escape(words)}</text>'


def standalone(title: str, panels: Sequence[tuple[str, Sequence[Line]]], columns: int = 2, x_name: str = STEPS) -> str:
    """Panels of curves as an SVG file, each with its name above and the names of its curves below. Panels side by side have
    larger words, because a page shows them smaller."""
    parts, top = [], 0.0
    size, between, longest = (12, 18, 90) if columns == 1 else (18, 25, 55)
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        for column, (name, lines) in enumerate(row):
            legend = "".join(_legend_entry(line, k, HEIGHT + 46 + between * k) for k, line in enumerate(lines))
            inside = [
                text(LEFT, 16, shortened(name, longest), strong=True),
                f'<g transform="translate(0 20)">{"".join(line_axes(lines, x_name=x_name).parts)}</g>',
            ]
            parts.append(f'<g transform="translate({column * (WIDTH + 20)} {top:g})">{"".join(inside)}{legend}</g>')
        top += HEIGHT + 50 + between * max(len(lines) for _, lines in row)
    width = columns * (WIDTH + 20)
    named = f'role="img" aria-label="{escape(title)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top:g}" width="{width}" height="{top:g}" {named}>'
    back = f'<rect width="{width}" height="{top:g}" fill="var(--back)"/>'
    style = f"{CHART_STYLE}svg text{{font-size:{size}px}}"
    return f"{head}<title>{escape(title)}</title><style>{style}</style>{back}{''.join(parts)}</svg>\n"


def _legend_entry(line: Line, k: int, y: float) -> str:
    color, style = f"c{(k if line.color is None else line.color) % COLORS}", " dashed" if line.dashed else ""
    drawn = f'<line class="line {color}{style}" x1="{LEFT}" x2="{LEFT + 28}" y1="{y - 4:g}" y2="{y - 4:g}"/>'
    return drawn + text(LEFT + 36, y, line.label)


def number(value: float) -> str:
    """A number as people read it."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def shortened(words: str, most: int) -> str:
    """Words that fit."""
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _short(value: float) -> float:
    """A number with as many digits as a reader of a chart needs."""
    return float(f"{value:.5g}") if abs(value) < 1e5 else round(value)


def ticks(low: float, high: float) -> list[float]:
    """About six round numbers from one bound to the other."""
    size = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(size))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= size)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def widened(low: float, high: float, margin: float = 0.04) -> tuple[float, float]:
    """Bounds with a margin; never an empty range."""
    if high <= low:
        size = abs(low) / 10 or 1.0
        return low - size, high + size
    return (low - margin * (high - low) if low else low), high + margin * (high - low)


def thinned(line: Line) -> Line:
    """Every n-th point, and always the last."""
    every = -(-len(line.xs) // MOST_POINTS)
    kept = sorted({*range(0, len(line.xs), every), len(line.xs) - 1})
    parts = ([values[k] for k in kept] if values else () for values in (line.xs, line.ys, line.low, line.high))
    xs, ys, low, high = parts
    return replace(line, xs=xs, ys=ys, low=low, high=high)
