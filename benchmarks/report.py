"""Measurements into a table of medians and ratios, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from measure import Measurement
from workloads import COMPILED, OURS, WORKLOADS

HEADER = ("workload", "rate", "", "ours / CPU s", "peer", "peer / CPU s", "ratio", "bar", "", "ours, peer / wall s")
#: of the loop, in the order of a table
PHASES = ("environment", "acting", "sampling", "update", "rest")
#: Candidates whose amounts of work differ by more than this share did not do the same job.
WORK_TOLERANCE = 0.01


@dataclass
class Series:
    """A candidate's measurements, one per round, or the reason why there are none."""

    rounds: list[Measurement] = field(default_factory=list)
    absent: str | None = None

    def cpu_rates(self, name: str) -> list[float]:
        return [measurement.rates[name].per_cpu_second for measurement in self.rounds]

    def wall_rates(self, name: str) -> list[float]:
        return [measurement.rates[name].per_wall_second for measurement in self.rounds]


#: by workload, then by candidate
Results = Mapping[str, Mapping[str, Series]]


def table(results: Results) -> str:
    """A row for each rate and peer: medians over the rounds, in brackets the smallest..largest."""
    rows = [row for name, series in results.items() for row in _rows(name, series)]
    widths = [max(len(row[column]) for row in (HEADER, *rows)) for column in range(len(HEADER))]
    lines = [_line(HEADER, widths), _line(["-" * width for width in widths], widths)]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _rows(workload_name: str, series: Mapping[str, Series]) -> Iterator[tuple[str, ...]]:
    workload = WORKLOADS[workload_name]
    for mine, bars in ((OURS, workload.bars), (COMPILED, workload.compiled_bars)):
        for rate in workload.bars:
            for name, candidate in workload.candidates.items():
                if mine in series and name not in (OURS, COMPILED):
                    applies = None if candidate.is_limit else bars.get(rate)
                    yield (workload_name, rate, mine, *_comparison(series[mine], name, series[name], rate, applies))


def _comparison(ours: Series, name: str, peer: Series, rate: str, bar: float | None) -> tuple[str, ...]:
    bar_text = "-" if bar is None else f"{bar:.2g}"
    our_text = ours.absent or _spread(ours.cpu_rates(rate), ",.0f")
    peer_text = peer.absent or _spread(peer.cpu_rates(rate), ",.0f")
    if ours.absent or peer.absent:
        return (our_text, name, peer_text, "-", bar_text, "", "-")
    # Round by round: neighbours in time share the machine's mood, which the ratio of two medians would let back in.
    by_round = [mine / theirs for mine, theirs in zip(ours.cpu_rates(rate), peer.cpu_rates(rate), strict=True)]
    ratio = median(by_round)
    verdict = "" if bar is None else "reached" if ratio >= bar else "MISSED"
    wall = f"{median(ours.wall_rates(rate)):,.0f}, {median(peer.wall_rates(rate)):,.0f}"
    ratio_text = f"{ratio:.2f} ({min(by_round):.2f}..{max(by_round):.2f})"
    return (our_text, name, peer_text, ratio_text, bar_text, verdict, wall)


def _spread(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}}..{max(values):{form}})"


def profile(results: Results) -> str:
    """Where a step's time goes, for those who measured it: microseconds of an env step, medians over the rounds."""
    lines = [
        f"| workload | candidate | {' | '.join(PHASES)} | all | compilation, s |",
        "|---|---|" + "---|" * (len(PHASES) + 2),
    ]
    for workload_name, series in results.items():
        for name, candidate in series.items():
            rounds = [measured for measured in candidate.rounds if "update" in measured.seconds]
            if rounds:
                steps = [measured.work["env steps"] for measured in rounds]
                cells = [
                    median(measured.seconds[phase] * 1e6 / count for measured, count in zip(rounds, steps, strict=True))
                    for phase in PHASES
                ]
                compiling = median(measured.seconds["compilation"] for measured in rounds)
                figures = " | ".join(f"{cell:.0f}" for cell in (*cells, sum(cells)))
                lines.append(f"| {workload_name} | {name} | {figures} | {compiling:.0f} |")
    return "\n".join(lines)


def work_differences(results: Results) -> list[str]:
    """A sentence for each candidate that did another amount of work than we did, whose ratio therefore means nothing."""
    sentences = []
    for workload_name, series in results.items():
        for name, candidate in series.items():
            for ours, theirs in zip(series[OURS].rounds, candidate.rounds, strict=False):
                for unit, amount in ours.work.items():
                    if abs(theirs.work[unit] - amount) > WORK_TOLERANCE * amount:
                        sentences.append(f"{workload_name}: {name} did {theirs.work[unit]} {unit}, we did {amount}")
    return sentences
