"""The learning sections of the benchmarks page: tables, verdicts and curves, all generated from the results files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rl_training.bench.charts import Curve, draw_learning_curves
from rl_training.bench.document import markdown_table
from rl_training.bench.jobs import Job
from rl_training.bench.references import DEFAULT_SEEDS, RACE_SEEDS, Peer, Reference
from rl_training.bench.store import Outcomes, by_seed
from rl_training.errors import ConfigError
from rl_training.experiment.aggregate import (
    FEWEST_FOR_AN_INTERVAL,
    interquartile_mean,
    matrix,
    normalised,
    probability_of_improvement,
)
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.experiment.curves import on_common_steps

Results = Mapping[str, Outcomes]
#: Wrappers that change what the agent is shown, but not the task.
PRESENTATION_WRAPPERS = ("scale_observation", "previous_action", "select_observation", "one_hot_planes", "channels_first")
LEARNING_HEADER = (
    "config", "steps", "IQM [95 % interval]", "median", "seeds", "final return, by seed", "bar", "verdict", "published",
    "CPU s", "commit",
)  # fmt: skip
OVERVIEW_HEADER = ("config", "env steps", "IQM of the final returns", "seeds", "to reach", "verdict", "CPU time of a run")
PEER_HEADER = (
    "task", "steps", "seeds", "ours, IQM", "peer", "peer, IQM", "P(ours better)", "CPU s: ours, peer", "peer's settings",
)  # fmt: skip
OTHER_EPISODES, NOT_COMPARABLE = "†", "‡"
RACE_HEADER = (
    "task", "goal", "ours: CPU s, by seed", "median", "peer", "peer: CPU s, by seed", "median", "times faster",
    "median steps: ours, peer", "bar", "",
)  # fmt: skip


def of_entries(results: Results, references: Mapping[str, Reference]) -> dict[str, Outcomes]:
    """The outcomes that count: those of the seeds from each entry's first on. The others were made with earlier settings."""
    firsts = {config: reference.first_seed for config, reference in references.items()}
    return {config: _from(firsts.get(config, 0), outcomes) for config, outcomes in results.items()}


def of_races(results: Results, peers: Mapping[str, Peer]) -> dict[str, Outcomes]:
    """The outcomes of races that count, in the same way."""
    firsts = {race_key(config, side): peer.first_race_seed for config, peer in peers.items() for side in (None, peer)}
    return {key: _from(firsts[key], outcomes) for key, outcomes in results.items() if key in firsts}


def _from(first: int, outcomes: Outcomes) -> Outcomes:
    return {seed: outcome for seed, outcome in outcomes.items() if int(seed) >= first}


def _seeds_of(outcomes: Outcomes) -> str:
    seeds = sorted(map(int, outcomes))
    if len(seeds) > 1 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def returns_of(outcomes: Outcomes) -> list[float]:
    """The returns of the final policies, in the order of the seeds."""
    return [outcome["return"] for outcome in by_seed(outcomes)]


def shown(value: float, digits: int) -> str:
    """Formats a return, with two more digits if it is small."""
    return f"{value:.{_digits(value, digits)}f}"


def _digits(value: float, digits: int) -> int:
    return digits + 2 * (abs(value) < 10)


def _seconds_of(outcomes: Outcomes) -> str:
    seconds = [outcome["seconds"] for outcome in outcomes.values() if outcome["seconds"] is not None]
    return f"{median(seconds):.0f}" if seconds else "-"


def _iqm(returns: list[float]) -> str:
    estimate, form = interquartile_mean(matrix([returns])), f".{_digits(max(returns, key=abs), 1)}f"
    return estimate.text(form) if len(returns) >= FEWEST_FOR_AN_INTERVAL else f"{estimate.value:{form}} [-]"


def learning_table(references: Mapping[str, Reference], results: Results) -> str:
    """A row for each reference, whether it was run or not, and for each further config that was run."""
    rows = []
    for config in (*references, *(config for config in results if config not in references)):
        reference, outcomes = references.get(config), results.get(config, {})
        bar, source = ("-", "-") if reference is None else (reference.bar, reference.source)
        if not outcomes:
            rows.append((config, "", "not run", "", "", "", bar, "not run", source, "", ""))
            continue
        returns = returns_of(outcomes)
        rows.append(
            (
                config,
                "/".join(map(str, sorted({outcome["steps"] for outcome in outcomes.values()}))),
                _iqm(returns),
                shown(median(returns), 1),
                _seeds_of(outcomes),
                ", ".join(shown(value, 0) for value in returns),
                bar,
                verdict_of(config, references, results),
                source,
                _seconds_of(outcomes),
                ", ".join(sorted({outcome.get("commit") or "-" for outcome in outcomes.values()})),
            )
        )
    return markdown_table(LEARNING_HEADER, rows)


def overview_table(references: Mapping[str, Reference], results: Results) -> str:
    """A short row for each reference that belongs into the overview."""
    rows = []
    for config, reference in references.items():
        outcomes = results.get(config, {})
        if not reference.overview:
            continue
        if not outcomes:
            rows.append((config, "", "not run", "", reference.bar, "not run", ""))
            continue
        steps = max(outcome["steps"] for outcome in outcomes.values())
        verdict = verdict_of(config, references, results)
        iqm = _iqm(returns_of(outcomes))
        rows.append((config, f"{steps:,}", iqm, str(len(outcomes)), reference.bar, verdict, f"{_seconds_of(outcomes)} s"))
    return markdown_table(OVERVIEW_HEADER, rows)


def verdict_of(config: str, references: Mapping[str, Reference], results: Results) -> str:
    """Whether a config that was run satisfies its reference, after a warning if settings have changed since."""
    reference, outcomes = references.get(config), results[config]
    warning = _outdated(Job(config, 0, Path(), reference=reference), outcomes)
    if reference is None:
        return f"{warning}no reference"
    control: list[float] = []
    if reference.above is not None:
        other, runs = references[reference.above], results.get(reference.above, {})
        control = returns_of(runs) if len(runs) >= max(other.seeds, FEWEST_FOR_AN_INTERVAL) else []
        warning = warning or _outdated(Job(reference.above, 0, Path(), reference=other), runs)
    first = [curve[0][1] if (curve := outcome.get("curve")) else None for outcome in by_seed(outcomes)]
    return f"{warning}{reference.verdict(returns_of(outcomes), first, control)}"


def _outdated(job: Job, outcomes: Outcomes) -> str:
    """A warning to put before the verdict if the config or the peer's settings have changed since the runs."""
    known = {outcome["config"] for outcome in outcomes.values() if "config" in outcome}
    return "OUTDATED, the config has changed: " if known - {_digest(job)} else ""


def _either_outdated(
    config: str, references: Mapping[str, Reference], peer: Peer, ours: Outcomes, theirs: Outcomes, race: float | None
) -> str:
    our_job = Job(config, 0, Path(), None, race, references.get(config))
    return _outdated(our_job, ours) or _outdated(Job(config, 0, Path(), peer, race, references.get(config)), theirs)


def _digest(job: Job) -> str | None:
    try:
        return job.digest
    except ConfigError:  # the config no longer exists
        return None


def seeds_for(config: str, references: Mapping[str, Reference]) -> int:
    """The number of runs that a verdict needs."""
    return references[config].seeds if config in references else DEFAULT_SEEDS


def _incomplete(seeds: int, wanted: int) -> str:
    """Stands in for the verdict if there are too few seeds for one."""
    return f"incomplete: {seeds} of {wanted} seeds" if seeds < wanted else ""


def peer_table(references: Mapping[str, Reference], peers: Mapping[str, Peer], ours: Results, theirs: Results) -> str:
    """Compares ours and the peers on the seeds that both have, then over all tasks that have all their seeds."""
    rows = []
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    ratios = []  # of the CPU time of ours to that of the peer, where they can be compared
    for config, peer in peers.items():
        our_runs, peer_runs = ours.get(config, {}), theirs.get(config, {})
        seeds = sorted(set(our_runs) & set(peer_runs), key=int)
        if not seeds:
            ran = ["" if runs else "not run" for runs in (our_runs, peer_runs)]
            rows.append((config, "", "0", ran[0], peer.package, ran[1], "", "", peer.source))
            continue
        left, right = {seed: our_runs[seed] for seed in seeds}, {seed: peer_runs[seed] for seed in seeds}
        pair = returns_of(left), returns_of(right)
        outdated = _either_outdated(config, references, peer, left, right, None)
        better = _incomplete(len(seeds), min(seeds_for(config, references), DEFAULT_SEEDS))
        timed_together = all(_ran_together(left[seed], right[seed]) for seed in seeds)
        if not better:
            better = probability_of_improvement(*(matrix([values]) for values in pair)).text(".2f")
            if not outdated:
                pairs[config] = pair
                if timed_together:
                    ratios.append(
                        median(run["seconds"] for run in left.values()) / median(run["seconds"] for run in right.values())
                    )
        steps = {str(outcome["steps"]) for outcome in (*left.values(), *right.values())}
        rows.append(
            (
                config,
                "/".join(sorted(steps, key=int)),
                str(len(seeds)),
                _iqm(pair[0]),
                peer.package,
                f"{_iqm(pair[1])}{'' if all(run.get('same_episodes') for run in right.values()) else f' {OTHER_EPISODES}'}",
                f"{outdated}{better}",
                f"{_seconds_of(left)}, {_seconds_of(right)}{'' if timed_together else f' {NOT_COMPARABLE}'}",
                peer.source,
            )
        )
    table = markdown_table(PEER_HEADER, rows)
    if any(OTHER_EPISODES in row[5] for row in rows):
        table += (
            f"\n\n{OTHER_EPISODES} An older result: the peer was not scored on the episodes of ours, and its seeds share "
            "most of theirs. The task counts below all the same."
        )
    if any(NOT_COMPARABLE in row[7] for row in rows):
        table += (
            f"\n\n{NOT_COMPARABLE} Not known to have been measured on one machine, so the CPU seconds of the two sides "
            "cannot be compared."
        )
    if len(pairs) >= 2:
        table += f"\n\n{_over_all_tasks(peers, pairs)}"
    if len(ratios) >= 2:
        half = sum(ratio <= 0.5 for ratio in ratios)
        table += (
            f" On the {len(ratios)} tasks where CPU seconds can be compared, ours take {median(ratios):.2f} times the peer's "
            f"(median; {min(ratios):.2f} to {max(ratios):.2f}), and at most half on {half} of them."
        )
    return table


def _ran_together(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether the CPU seconds of two outcomes can be compared: they were measured on one machine, without a restart of it."""
    known = [run.get("session") for run in (ours, theirs) if run.get("seconds") is not None]
    return len(known) == 2 and known[0] is not None and known[0] == known[1]


def _over_all_tasks(peers: Mapping[str, Peer], pairs: Mapping[str, tuple[list[float], list[float]]]) -> str:
    scales = {config: peers[config].scale for config in pairs}
    seeds = min(len(returns) for returns, _ in pairs.values())
    ours, theirs = (normalised({config: pair[side][:seeds] for config, pair in pairs.items()}, scales) for side in (0, 1))
    return (
        f"Over the {len(pairs)} complete tasks (seeds per task: {seeds}; returns scaled so that a random policy scores 0 and "
        f"the reference return 1), our IQM is {interquartile_mean(ours).text('.3f')} and the peers' IQM is "
        f"{interquartile_mean(theirs).text('.3f')}. The probability that one of our runs ends better is "
        f"{probability_of_improvement(ours, theirs).text('.2f')}."
    )


def race_table(references: Mapping[str, Reference], peers: Mapping[str, Peer], results: Results) -> str:
    """Time to solve: medians over the seeds that both have raced. A seed that never solved the task counts as infinite."""
    races = of_races(results, peers)
    rows = []
    for config, peer in peers.items():
        if peer.solved is None:
            continue
        goal, bar = f"{peer.solved:g}", "-" if peer.times is None else f"{peer.times:g}"
        our_runs, peer_runs = (races.get(race_key(config, side), {}) for side in (None, peer))
        seeds = sorted(set(our_runs) & set(peer_runs), key=int)
        if not seeds:
            rows.append((config, goal, "not run", "", peer.package, "not run", "", "", "", bar, ""))
            continue
        times = [[_time_to_solve(outcomes[seed]) for seed in seeds] for outcomes in (our_runs, peer_runs)]
        ours, theirs = (median(values) for values in times)
        ratio = theirs / ours if ours < np.inf else float("nan")
        reached = _incomplete(len(seeds), RACE_SEEDS)
        if not reached and peer.times is not None:
            reached = "reached" if ratio >= peer.times else "MISSED"
        outdated = _either_outdated(config, references, peer, our_runs, peer_runs, peer.solved)
        faster = f"{ratio:.2f}" if ratio < np.inf else "-" if ratio != ratio else "unbounded"
        our_text, peer_text = (", ".join(map(_time_text, values)) for values in times)
        steps = [median(_steps_to_solve(outcomes[seed]) for seed in seeds) for outcomes in (our_runs, peer_runs)]
        rows.append(
            (
                config,
                goal,
                our_text,
                _time_text(ours),
                peer.package,
                peer_text,
                _time_text(theirs),
                faster,
                ", ".join(f"{count:.0f}" if count < np.inf else "unsolved" for count in steps),
                bar,
                f"{outdated}{reached}",
            )
        )
    return markdown_table(RACE_HEADER, rows)


def race_key(config: str, peer: Peer | None) -> str:
    """The key under which the results of a race are stored."""
    return f"{config} {'ours' if peer is None else peer.package}"


def _time_to_solve(outcome: Mapping[str, Any]) -> float:
    return float(outcome["cpu_seconds"]) if outcome["solved"] else float("inf")


def _steps_to_solve(outcome: Mapping[str, Any]) -> float:
    return float(outcome["steps"]) if outcome["solved"] else float("inf")


def _time_text(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < np.inf else "unsolved"


def made_with(results: Iterable[Outcomes], *, with_commits: bool = False) -> str:
    """The versions and machines behind some results, each listed once; with the commits of all that were made with them."""
    dates: dict[str, set[str]] = {}
    commits: dict[str, set[str]] = {}
    unknown = False
    for outcomes in results:
        for outcome in outcomes.values():
            if "versions" not in outcome:
                unknown = True
                continue
            versions = ", ".join(f"{name} {version}" for name, version in outcome["versions"].items())
            text = f"{versions}; {outcome['machine'] or 'machine not recorded'}"
            dates.setdefault(text, set()).add(outcome["date"])
            commits.setdefault(text, set()).update({outcome["commit"]} if with_commits and outcome.get("commit") else ())
    lines = [f"- {_span(dates[text])}: {text}{_at_commits(commits[text])}" for text in sorted(dates)]
    if unknown:
        lines.append("- some runs were recorded without their versions")
    return "\n".join(lines)


def _at_commits(commits: set[str]) -> str:
    return f"; commits {', '.join(sorted(commits))}" if commits else ""


def _span(dates: set[str]) -> str:
    return min(dates) if len(dates) == 1 else f"{min(dates)} to {max(dates)}"


def draw_curves(
    references: Mapping[str, Reference], ours: Results, theirs: Results, peers: Mapping[str, Peer], path: Path
) -> bool:
    """Draws the curves of every config that has any, with a panel for each task. False if there is nothing to draw."""
    panels: dict[str, list[Curve]] = {}
    for config, outcomes in ours.items():
        if (task := task_of(config, references.get(config))) is None:
            continue
        package = peers[config].package if config in peers else "peer"
        published = references[config].curves if config in references else ()
        for curves, label, of_others in (
            (_curves_of(outcomes), config, False),
            (_curves_of(theirs.get(config, {})), f"{package}, as {config}", True),
            (published, f"published, as {config}", True),
        ):
            if curves:
                steps, returns = on_common_steps([([p[0] for p in curve], [p[1] for p in curve]) for curve in curves])
                panels.setdefault(task, []).append(Curve(label, config, steps, returns, of_others))
    if panels:
        draw_learning_curves(panels, path)
    return bool(panels)


def _curves_of(outcomes: Outcomes) -> Sequence[Sequence[tuple[int, float]]]:
    return [outcome["curve"] for outcome in by_seed(outcomes) if len(outcome.get("curve", ())) > 1]


def task_of(config: str, reference: Reference | None) -> str | None:
    """The environment and the wrappers that define the task; None for a config that no longer exists."""
    try:
        resolved = resolve_config(load_config_data(config) if reference is None else reference.data(config))
    except ConfigError:
        return None
    wrappers = [wrapper["name"] for wrapper in resolved.wrappers if wrapper["name"] not in PRESENTATION_WRAPPERS]
    return ", ".join([resolved.env_id.rpartition(":")[2], *wrappers])  # without the module or file before the colon
