"""Charts as inline SVG: lines with bands, and bars. Colours are the page's, so that they follow its light or dark theme.

Every point has a title, which a browser shows under the pointer; the page has the same numbers as a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 12, 48
#: A line has at most this many points, and few points have dots.
MOST_POINTS, FEW_POINTS = 400, 60
COLORS = 8  # classes c0 to c7 of the page


@dataclass(frozen=True)
class Line:
    """A curve, with the spread around it if it is a mean."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step."""

    step: float
    label: str


@dataclass
class _Axes:
    """Turns data into places on the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    counts: bool = False  # of things, so that there are no fractions
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
            self.parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{number(tick)}</text>')
        for tick in ticks(*self.x):
            x, _ = self.at(tick, self.y[0])
            self.parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{number(tick)}</text>')
        self.parts.append(
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_name)}</text>'
        )

    def svg(self, title: str) -> str:
        box = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
        return f'<svg {box} role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(self.parts)}</svg>'


def line_chart(title: str, lines: Sequence[Line], marks: Sequence[Mark] = ()) -> str:
    """Curves over environment steps."""
    thinned = [_thinned(line) for line in lines]
    lows = [value - spread for line in thinned for value, spread in _with_spread(line)]
    highs = [value + spread for line in thinned for value, spread in _with_spread(line)]
    steps = [step for line in thinned for step in line.steps]
    axes = _Axes(_widened(0.0, max(steps)), _widened(min(lows), max(highs)))
    axes.grid("environment steps")
    for mark in marks:
        x, _ = axes.at(min(mark.step, axes.x[1]), axes.y[0])
        drawn = f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        axes.parts.append(f"<g><title>{escape(mark.label)}</title>{drawn}</g>")
    for k, line in enumerate(thinned):
        color = f"c{k % COLORS}"
        pairs = list(zip(line.steps, line.values, strict=True))
        if line.spread:
            upper = [(step, value + spread) for (step, value), spread in zip(pairs, line.spread, strict=True)]
            lower = [(step, value - spread) for (step, value), spread in zip(pairs, line.spread, strict=True)]
            axes.parts.append(f'<polygon class="band {color}" points="{axes.path([*upper, *reversed(lower)])}"/>')
        axes.parts.append(f'<polyline class="line {color}" points="{axes.path(pairs)}"/>')
        radius = 3 if len(pairs) <= FEW_POINTS else 2
        shown = "dot" if len(pairs) <= FEW_POINTS else "dot hidden"  # there to be pointed at
        for step, value in pairs:
            x, y = axes.at(step, value)
            text = escape(f"{line.label}: {number(value)} at step {step:g}")
            axes.parts.append(
                f'<circle class="{shown} {color}" cx="{x}" cy="{y}" r="{radius}"><title>{text}</title></circle>'
            )
    return axes.svg(title)


def bar_chart(title: str, values: Sequence[float], name: str) -> str:
    """How often values occur: a histogram."""
    low, high = _widened(min(values), max(values), 0.0)
    bins = min(20, max(5, math.isqrt(len(values))))
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    axes = _Axes((low, high), (0.0, float(max(counts))), counts=True)
    axes.grid(name)
    for k, count in enumerate(counts):
        begin, end = (low + (high - low) * edge / bins for edge in (k, k + 1))
        (x1, y1), (x2, y2) = axes.at(begin, count), axes.at(end, 0.0)
        text = escape(f"{count} of {len(values)} between {number(begin)} and {number(end)}")
        bar = f'x="{x1}" y="{y1}" width="{max(1.0, x2 - x1 - 1):.1f}" height="{y2 - y1:.1f}"'
        axes.parts.append(f'<rect class="bar" {bar}><title>{text}</title></rect>')
    return axes.svg(title)


def number(value: float) -> str:
    """A number as people read it."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def ticks(low: float, high: float) -> list[float]:
    """About six round numbers from one bound to the other."""
    size = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(size))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= size)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _widened(low: float, high: float, margin: float = 0.04) -> tuple[float, float]:
    if high <= low:
        size = abs(low) / 10 or 1.0
        return low - size, high + size
    return (low - margin * (high - low) if low else low), high + margin * (high - low)


def _with_spread(line: Line) -> list[tuple[float, float]]:
    return list(zip(line.values, line.spread or [0.0] * len(line.values), strict=True))


def _thinned(line: Line) -> Line:
    """Every n-th point, and always the last."""
    every = -(-len(line.steps) // MOST_POINTS)
    kept = sorted({*range(0, len(line.steps), every), len(line.steps) - 1})
    return Line(
        line.label,
        [line.steps[k] for k in kept],
        [line.values[k] for k in kept],
        [line.spread[k] for k in kept] if line.spread else (),
    )
