"""Turns measurements into Markdown tables of medians and ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from measure import Measurement
from workloads import COMPILED, OURS, WORKLOADS, Workload

from rl_training.bench.document import markdown_table

HEADER = ("workload", "rate", "we", "our rate / CPU s", "against", "its rate / CPU s", "ratio", "bar", "", "wall: ours, its")
#: Phases of the training loop, in the order of the table.
PHASES = ("environment", "acting", "sampling", "update", "rest")
#: Candidates whose amounts of work differ by more than this share did not do the same job.
WORK_TOLERANCE = 0.01


@dataclass
class Series:
    """A candidate's measurements, one per round, or the reason why there are none."""

    rounds: list[Measurement] = field(default_factory=list)
    absent: str | None = None
    threads: int = 1

    def rates(self, name: str) -> list[float]:
        """The rates to take ratios of. With several threads these are wall-clock rates: CPU seconds would hide the gain."""
        return self.cpu_rates(name) if self.threads == 1 else self.wall_rates(name)

    @property
    def measured(self) -> bool:
        """Whether every round was measured. A candidate that failed midway has too few rounds to be compared."""
        return bool(self.rounds) and self.absent is None

    def cpu_rates(self, name: str) -> list[float]:
        return [measurement.rates[name].per_cpu_second for measurement in self.rounds]

    def wall_rates(self, name: str) -> list[float]:
        return [measurement.rates[name].per_wall_second for measurement in self.rounds]


@dataclass(frozen=True)
class Ratio:
    """Our rate divided by another's, round by round. Measurements of one round run under similar load, so their ratio is
    steadier than the ratio of two medians."""

    by_round: Sequence[float]

    @classmethod
    def of(cls, one: Series, other: Series, rate: str) -> Ratio | None:
        """None if one of the two was not measured."""
        if not (one.measured and other.measured):
            return None
        return cls([a / b for a, b in zip(one.rates(rate), other.rates(rate), strict=True)])

    @property
    def median(self) -> float:
        return median(self.by_round)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.by_round):.2f}..{max(self.by_round):.2f})"


#: Measurements by workload, then by candidate.
Results = Mapping[str, Mapping[str, Series]]


def bar_of(workload: Workload, ours: str, name: str, rate: str) -> float | None:
    """The ratio that this candidate of ours must reach against the named one."""
    candidate = workload.candidates[name]
    if candidate.bars is not None:
        best = COMPILED if COMPILED in workload.candidates else OURS
        return candidate.bars.get(rate) if ours == best else None
    if candidate.is_limit:
        return None
    return (workload.bars if ours == OURS else workload.compiled_bars).get(rate)


def verdict(ratio: float, bar: float | None) -> str:
    return "" if bar is None else "reached" if ratio >= bar else "MISSED"


def table(results: Results) -> str:
    """A row for each rate and each peer or limit: medians over the rounds, with the range in brackets."""
    return markdown_table(HEADER, [row for name, series in results.items() for row in _rows(name, series)])


def _rows(workload_name: str, series: Mapping[str, Series]) -> Iterator[tuple[str, ...]]:
    workload = WORKLOADS[workload_name]
    for rate in workload.bars:
        for ours in (OURS, COMPILED):
            for name, candidate in workload.candidates.items():
                if ours in series and name in series and name not in (OURS, COMPILED):
                    label = f"{name} (limit)" if candidate.is_limit else name
                    bar = bar_of(workload, ours, name, rate)
                    yield (workload_name, rate, ours, *_comparison(series[ours], label, series[name], rate, bar))


def _comparison(ours: Series, label: str, other: Series, rate: str, bar: float | None) -> tuple[str, ...]:
    bar_text = "-" if bar is None else f"{bar:g}"
    our_text, other_text = (series.absent or _spread(series.cpu_rates(rate)) for series in (ours, other))
    ratio = Ratio.of(ours, other, rate)
    if ratio is None:
        return (our_text, label, other_text, "-", bar_text, "", "-")
    wall = ", ".join(_rate(median(series.wall_rates(rate))) for series in (ours, other))
    of_wall = " wall" if ours.threads > 1 else ""
    return (our_text, label, other_text, f"{ratio}{of_wall}", bar_text, verdict(ratio.median, bar), wall)


def _spread(values: Sequence[float]) -> str:
    return f"{_rate(median(values))} ({_rate(min(values))}..{_rate(max(values))})"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def outcomes(results: Results) -> list[str]:
    """A sentence for each share of the time that a workload of ours measured besides its rates: of CPU time, or of wall-clock
    time if it has several threads."""
    sentences = []
    for workload_name, series in results.items():
        workload, rounds = WORKLOADS[workload_name], series[OURS].rounds if OURS in series else []
        for name in rounds[0].outcome if rounds else ():
            if name.endswith("share"):
                of_wall = f"{name} of the wall"
                key = of_wall if workload.threads > 1 and of_wall in rounds[0].outcome else name
                share, most = median(measurement.outcome[key] for measurement in rounds), workload.share_bars.get(name)
                judged = "" if most is None else f" (at most {most:.0%}: {'reached' if share <= most else 'MISSED'})"
                sentences.append(f"{workload_name}: {name} {share:.1%} of the time{judged}.")
    return sentences


def compile_times(results: Results) -> list[str]:
    """A sentence for each candidate that compiled; its rates do not include that time."""
    sentences = []
    for workload_name, series in results.items():
        for name, candidate in series.items():
            seconds = [measurement.seconds.get("compilation", 0.0) for measurement in candidate.rounds]
            if any(seconds):
                sentences.append(f"{workload_name}, {name}: {_spread(seconds)} s")
    return sentences


def profile(results: Results) -> str:
    """Where the time goes, for ours and for the limits: microseconds per env step, or per update in workloads that only make
    updates; medians over the rounds."""
    rows = []
    for workload_name, series in results.items():
        for name, candidate in WORKLOADS[workload_name].candidates.items():
            if name in series and (name in (OURS, COMPILED) or candidate.is_limit):
                rounds = [phases for phases in map(microseconds, series[name].rounds) if phases]
                if rounds:
                    parts = [median(phases.get(phase, 0.0) for phases in rounds) for phase in PHASES]
                    rows.append((workload_name, name, *(f"{part:,.0f}" for part in (*parts, sum(parts)))))
    return markdown_table(("workload", "candidate", *PHASES, "all"), rows)


def microseconds(measured: Measurement) -> dict[str, float]:
    """The microseconds of one step by phase; empty if they are not known."""
    if len(measured.rates) != 1:
        return {}
    ((what, rate),) = measured.rates.items()
    if "update" in measured.seconds:
        return {phase: seconds * 1e6 / rate.count for phase, seconds in measured.seconds.items()}
    # A candidate that only made updates and did not split them into phases.
    return {"update": rate.wall_seconds * 1e6 / rate.count} if what == "updates" else {}


def work_differences(results: Results) -> list[str]:
    """A sentence for each candidate whose amount of work differs from ours, so that its ratio is meaningless."""
    sentences = []
    for workload_name, series in results.items():
        if OURS not in series:
            continue
        for name, candidate in series.items():
            for ours, theirs in zip(series[OURS].rounds, candidate.rounds, strict=False):
                for unit in {**ours.work, **theirs.work}:
                    our_work, their_work = ours.work.get(unit), theirs.work.get(unit)
                    if our_work is None or their_work is None or abs(their_work - our_work) > WORK_TOLERANCE * our_work:
                        their_text, our_text = ("an unknown number" if n is None else n for n in (their_work, our_work))
                        sentences.append(f"{workload_name}, {unit}: {their_text} by {name}, {our_text} by us")
    return list(dict.fromkeys(sentences))
