"""A self-contained HTML page for reports: no requests, light and dark, readable on a phone, and everything that is
drawn can be read as a table.

A run directory is data, whoever made it: all of it is escaped, and the page's policy allows no script but the one here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.files import replace_text
from rl_training.runtime.svg import CHART_STYLE, STEPS, Line, Mark, line_chart, number
from rl_training.version import __version__

MOST_ROWS = 100
STYLE = """
:root{color-scheme:light dark}*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;font:1rem/1.5 system-ui,sans-serif;background:var(--back);color:var(--text)}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:0 0 .3rem;font-weight:600}
p{margin:.3rem 0}.soft{color:var(--soft)}code{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}
pre{background:var(--panel);border:1px solid var(--edge);border-radius:6px;padding:.6rem;white-space:pre-wrap;margin:.5rem 0}
pre{overflow-x:auto}pre span{white-space:nowrap}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:1rem 0}
dl.facts div{background:var(--panel);border:1px solid var(--edge);border-radius:6px;padding:.5rem .7rem}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.25rem;font-weight:600}dd small{font-size:.8rem;font-weight:400}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:1.2rem}
figure{margin:0;min-width:0}svg{width:100%;height:auto;display:block}figure img{max-width:100%;height:auto;border-radius:6px}
.charts svg text{font-size:18px}main>figure{max-width:52rem}@media(max-width:40rem){svg text{font-size:19px}}
svg:focus-visible,summary:focus-visible,.wide:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
output{display:block;min-height:1.4em;font-size:.9rem;color:var(--soft);font-variant-numeric:tabular-nums}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .7rem .2rem 0;text-align:left;border-bottom:1px solid var(--edge);vertical-align:top}
.wide{overflow-x:auto}.wide>svg{min-width:44rem}td{overflow-wrap:break-word;min-width:4.5rem}
table{margin:.3rem 0}caption{text-align:left;color:var(--soft)}
summary{cursor:pointer;color:var(--soft);font-size:.9rem}.changed td,.changed th{font-weight:700}
.key{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin-right:.4em}
ul.legend{list-style:none;padding:0;margin:.3rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.9rem}
"""
#: Shows the numbers of a chart at the place of the pointer, or of the arrow keys.
SCRIPT = """
"use strict";
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const chart = JSON.parse(svg.dataset.chart), rule = svg.querySelector(".rule");
  const out = svg.parentNode.querySelector("output");
  const places = [...new Set(chart.lines.flatMap(line => line.x))].sort((a, b) => a - b);
  let at = -1;
  const nearest = (values, x) => values.reduce(
    (best, value, k) => Math.abs(value - x) < Math.abs(values[best] - x) ? k : best, 0);
  const shown = value => Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
  const show = k => {
    at = Math.max(0, Math.min(places.length - 1, k));
    const x = places[at], place = chart.left + (x - chart.x[0]) / (chart.x[1] - chart.x[0]) * (chart.right - chart.left);
    rule.setAttribute("x1", place); rule.setAttribute("x2", place); rule.style.visibility = "visible";
    out.textContent = shown(x) + " " + chart.name + ": " + chart.lines.map(line =>
      line.label + " " + shown(line.y[nearest(line.x, x)])).join(", ");
  };
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), place = (event.clientX - box.left) / box.width * chart.width;
    show(nearest(places, chart.x[0] + (place - chart.left) / (chart.right - chart.left) * (chart.x[1] - chart.x[0])));
  });
  svg.addEventListener("pointerleave", () => { rule.style.visibility = "hidden"; out.textContent = ""; });
  svg.addEventListener("keydown", event => {
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1}[event.key];
    if (to !== undefined) { event.preventDefault(); show(to); }
  });
}
"""
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; img-src data:"


def page(title: str, body: str) -> str:
    """A whole page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{escape(title)}</title>'
        f"<style>{CHART_STYLE}{STYLE}</style></head><body><main><h1>{escape(title)}</h1>{body}</main>"
        f'<footer class="soft"><p>Written by rl-training {__version__}.</p></footer><script>{SCRIPT}</script></body></html>\n'
    )


def write_page(text: str, output: Path) -> None:
    """Writes a page, whole or not at all."""
    try:
        replace_text(output, text)
    except CheckpointError as error:
        raise ConfigError(f"cannot write the report {output}: {getattr(error.__cause__, 'strerror', error)}") from error


def facts(values: Iterable[tuple[str, str]]) -> str:
    """Figures at a glance: names, and values as HTML."""
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in values)
    return f'<dl class="facts">{shown}</dl>'


def shell(command: str) -> str:
    """A command to copy. It is broken between its words only, not after the hyphens of its options."""
    words = " ".join(f"<span>{escape(word)}</span>" for word in command.split(" "))
    return f"<pre><code>{words}</code></pre>"


def curves(title: str, lines: Sequence[Line], marks: Sequence[Mark] = (), level: int = 0, x_name: str = STEPS) -> str:
    """Curves with their names, what is under the pointer, and a table."""
    keys = "".join(
        f'<li><span class="key c{(k if line.color is None else line.color) % 8}"></span>{escape(line.label)}</li>'
        for k, line in enumerate(lines)
    )
    legend = f'<ul class="legend">{keys}</ul>' if len(lines) > 1 else ""
    read = '<output aria-live="polite"></output>'
    tables = "".join(_line_table(title, line, x_name) for line in lines)
    return figure(title, f"{line_chart(title, lines, marks, x_name)}{read}{legend}", tables, level)


def figure(title: str, drawing: str, tables: str, level: int = 3) -> str:
    """A drawing with its heading, and the tables behind it."""
    heading = f"<h{level}>{escape(title)}</h{level}>" if level else ""
    return f"<figure>{heading}{drawing}{details(tables)}</figure>"


def broad(content: str) -> str:
    """Something wide, which scrolls on a narrow screen, also with the keyboard."""
    return f'<div class="wide" tabindex="0">{content}</div>'


def _line_table(title: str, line: Line, x_name: str) -> str:
    every = -(-len(line.xs) // MOST_ROWS)
    kept = sorted({*range(0, len(line.xs), every), len(line.xs) - 1})
    bounds = [(line.low[k], line.high[k]) if line.low else () for k in range(len(line.xs))]
    head = (x_name, title, *(("low", "high") if line.low else ()))
    return table(line.label, head, [(number(line.xs[k]), *map(number, (line.ys[k], *bounds[k]))) for k in kept])


def details(content: str, summary: str = "as a table") -> str:
    """Something that is shown on demand."""
    return f"<details><summary>{summary}</summary>{broad(content)}</details>"


def section(title: str, content: str, note: str = "") -> str:
    """A part of a page; nothing if it has no content."""
    note_html = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(title)}</h2>{note_html}{content}" if content else ""


def charts(figures: Iterable[str]) -> str:
    """Small figures side by side."""
    inside = "".join(figures)
    return f'<div class="charts">{inside}</div>' if inside else ""


def wide_table(head: Sequence[str], rows: Iterable[Sequence[Any]], marked: Sequence[bool] = ()) -> str:
    """A table that scrolls on a narrow screen."""
    return broad(table("", head, rows, marked))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], marked: Sequence[bool] = ()) -> str:
    """A table whose first column names the rows."""
    lines = []
    for k, (first, *others) in enumerate(rows):
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in others)
        shown = ' class="changed"' if k < len(marked) and marked[k] else ""
        lines.append(f'<tr{shown}><th scope="row">{escape(str(first))}</th>{cells}</tr>')
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f"<table>{named}<thead><tr>{columns}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
