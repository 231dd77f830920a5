"""Measurements into a table of medians and ratios, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from measure import Measurement
from workloads import OURS, WORKLOADS, Candidate, Workload

from rl_training.bench.document import markdown_table

HEADER = ("workload", "rate", "ours / CPU s", "against", "its rate / CPU s", "ratio", "bar", "", "wall: ours, it")
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


@dataclass(frozen=True)
class Ratio:
    """Ours divided by another's, round by round: neighbours in time share the machine's mood, which the ratio of two medians
    would let back in."""

    by_round: Sequence[float]

    @classmethod
    def of(cls, one: Series, other: Series, rate: str) -> Ratio | None:
        """None if one of the two was not measured."""
        if one.absent or other.absent or not one.rounds or not other.rounds:
            return None
        return cls([a / b for a, b in zip(one.cpu_rates(rate), other.cpu_rates(rate), strict=True)])

    @property
    def median(self) -> float:
        return median(self.by_round)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.by_round):.2f}..{max(self.by_round):.2f})"


#: by workload, then by candidate
Results = Mapping[str, Mapping[str, Series]]
NOT_MEASURED = Series(absent="not measured")


def bar_of(workload: Workload, candidate: Candidate, rate: str) -> float | None:
    """What our rate divided by the candidate's must reach: its own bar, or the workload's unless it is a limit."""
    if candidate.bars is not None:
        return candidate.bars.get(rate)
    return None if candidate.is_limit else workload.bars[rate]


def verdict(ratio: float, bar: float | None) -> str:
    return "" if bar is None else "reached" if ratio >= bar else "MISSED"


def table(results: Results) -> str:
    """A row for each rate and peer or limit: medians over the rounds, in brackets the smallest..largest."""
    return markdown_table(HEADER, [row for name, series in results.items() for row in _rows(name, series)])


def _rows(workload_name: str, series: Mapping[str, Series]) -> Iterator[tuple[str, ...]]:
    workload = WORKLOADS[workload_name]
    ours = series.get(OURS, NOT_MEASURED)
    for rate in workload.bars:
        for name, candidate in workload.candidates.items():
            if name != OURS:
                label = f"limit: {name}" if candidate.is_limit else name
                other = series.get(name, NOT_MEASURED)
                yield (workload_name, rate, *_comparison(ours, label, other, rate, bar_of(workload, candidate, rate)))


def _comparison(ours: Series, label: str, other: Series, rate: str, bar: float | None) -> tuple[str, ...]:
    bar_text = "-" if bar is None else f"{bar:g}"
    our_text = ours.absent or _spread(ours.cpu_rates(rate), ",.0f")
    other_text = other.absent or _spread(other.cpu_rates(rate), ",.0f")
    ratio = Ratio.of(ours, other, rate)
    if ratio is None:
        return (our_text, label, other_text, "-", bar_text, "", "-")
    wall = f"{median(ours.wall_rates(rate)):,.0f}, {median(other.wall_rates(rate)):,.0f}"
    return (our_text, label, other_text, str(ratio), bar_text, verdict(ratio.median, bar), wall)


def _spread(values: Sequence[float], form: str) -> str:
    if max(values) < 10:  # updates of large networks: whole numbers would say nothing
        form = ".2f"
    return f"{median(values):{form}} ({min(values):{form}}..{max(values):{form}})"


def compile_times(results: Results) -> list[str]:
    """A sentence for each candidate that compiled: its rates are without that time."""
    sentences = []
    for workload_name, series in results.items():
        for name, candidate in series.items():
            seconds = [measurement.compile_seconds for measurement in candidate.rounds if measurement.compile_seconds]
            if seconds:
                sentences.append(f"{workload_name}, {name}: {_spread(seconds, '.1f')} s")
    return sentences


def work_differences(results: Results) -> list[str]:
    """A sentence for each candidate that did another amount of work than we did, whose ratio therefore means nothing."""
    sentences = []
    for workload_name, series in results.items():
        if OURS not in series:
            continue
        for name, candidate in series.items():
            for ours, theirs in zip(series[OURS].rounds, candidate.rounds, strict=False):
                for unit, amount in ours.work.items():
                    if abs(theirs.work[unit] - amount) > WORK_TOLERANCE * amount:
                        sentences.append(f"{workload_name}: {name} did {theirs.work[unit]} {unit}, we did {amount}")
    return sentences
