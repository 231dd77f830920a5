"""``rl-training bench``: plans the jobs, runs them, records their results and writes the report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl_training.bench.document import write_section
from rl_training.bench.jobs import Job
from rl_training.bench.references import DEFAULT_SEEDS, FIRST_RACE_SEED, RACE_SEEDS, Peer, Reference, load_entries
from rl_training.bench.report import (
    Results,
    draw_curves,
    learning_table,
    made_with,
    of_entries,
    of_races,
    overview_table,
    peer_table,
    race_key,
    race_table,
    seeds_for,
    shown,
)
from rl_training.bench.runners import require_usable_ray, runners
from rl_training.bench.store import load_results, record
from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.aggregate import kept_in, require_rliable
from rl_training.experiment.config import load_config_data, resolve_config

#: Defaults in the repository's root. Elsewhere, configs must be named, and all output goes to the runs directory.
REFERENCES, PEERS = Path("benchmarks/learning.yaml"), Path("benchmarks/peers.yaml")
RESULTS, PAGE = Path("benchmarks/results"), Path("docs/benchmarks.md")
#: In the runs directory: the intervals of the last report, so that only those of new results are computed.
BOOTSTRAPS = ".bootstraps.json"


@dataclass(frozen=True)
class Plan:
    """The jobs of a bench and the places of its output."""

    configs: Sequence[str]
    seeds: int | None
    jobs: int | None  # at a time; None: as many as the Ray cluster has CPUs for
    runs: Path
    references: Mapping[str, Reference]
    peers: Mapping[str, Peer]
    results: Path
    page: Path
    with_peers: bool = False
    race: bool = False
    missing: bool = False  # leave out what the results have already
    ray: str | None = None  # the address of a Ray cluster; "local" starts an instance

    def jobs_to_run(self) -> list[Job]:
        """The planned jobs; with ``missing``, only those that the results do not have with the present settings."""
        jobs = self.planned_jobs()
        if not self.missing:
            return jobs
        recorded = {file: load_results(self.results / file) for file in ("learning.json", "peers.json")}

        def is_recorded(job: Job) -> bool:
            file, key = _place_of(job)
            outcome = recorded[file].get(key, {}).get(str(job.seed), {})
            comparable = job.peer is None or outcome.get("same_episodes", False)
            return comparable and outcome.get("config") == job.digest

        return [job for job in jobs if not is_recorded(job)]

    def planned_jobs(self) -> list[Job]:
        """The jobs seed by seed, alternating ours and the peer's, so that runs to be compared run close together in time."""
        planned = []
        for k in range(max(map(self._seeds, self.configs), default=0)):
            for config in self.configs:
                if k >= self._seeds(config):
                    continue
                seed = k + self._first_seed(config)
                peer = self.peers.get(config)
                goal = None if peer is None or not self.race else peer.solved
                if not self.race or goal is not None:
                    planned.append(Job(config, seed, self.runs, race=goal, reference=self.references.get(config)))
                compared = self.with_peers and (self.seeds is not None or k < DEFAULT_SEEDS)
                if peer is not None and (compared or goal is not None):
                    planned.append(Job(config, seed, self.runs, peer, goal, self.references.get(config)))
        return planned

    def _first_seed(self, config: str) -> int:
        if self.race:
            return self.peers[config].first_race_seed if config in self.peers else FIRST_RACE_SEED
        return self.references[config].first_seed if config in self.references else 0

    def _seeds(self, config: str) -> int:
        if self.seeds is not None:
            return self.seeds
        return RACE_SEEDS if self.race else seeds_for(config, self.references)


def make_plan(
    configs: Sequence[str],
    *,
    seeds: int | None,
    jobs: int | None,
    runs: Path,
    references: Path | None,
    peers: Path | None,
    results: Path | None,
    page: Path | None,
    with_peers: bool,
    race: bool,
    missing: bool = False,
    ray: str | None = None,
) -> Plan:
    """Fills in the defaults and rejects what cannot work, before anything is trained."""
    if race and missing:
        raise ConfigError("--time-to-solve compares times on one machine, so it cannot be combined with --missing")
    at_home = references is None and REFERENCES.exists()
    references = references or (REFERENCES if at_home else None)
    peers = peers or (PEERS if PEERS.exists() else None)
    entries = {} if references is None else load_entries(references, Reference)
    for config, entry in entries.items():
        if entry.above is not None and entry.above not in set(entries) - {config}:
            raise ConfigError(f"{references}: {config}.above: there is no other entry {entry.above!r}")
    peer_entries = {} if peers is None else load_entries(peers, Peer)
    if with_peers or race:
        from rl_training.bench.peers import require_peers

        require_peers()
        if peers is None:
            raise ConfigError(f"the file with the peers' settings, {PEERS}, does not exist; give one with --peers-file")
    require_rliable()
    if ray is not None:
        require_usable_ray(ray)
        if race:
            raise ConfigError("--time-to-solve compares times on one machine, so it cannot be combined with --ray")
    known = [config for config, peer in peer_entries.items() if peer.solved is not None] if race else list(entries)
    chosen = list(configs) or known
    if not chosen:
        raise ConfigError(f"nothing to run: there is no {REFERENCES} here; name the configs, or give --references FILE")
    for config in chosen:
        resolve_config(entries[config].data(config) if config in entries else load_config_data(config))
        if race and config not in known:
            raise ConfigError(f"no time-to-solve race is defined for '{config}'{did_you_mean(config, known)}")
        if with_peers and configs and config not in peer_entries:
            raise ConfigError(f"no peer settings are defined for '{config}'{did_you_mean(config, peer_entries)}")
    home = runs if not at_home else None
    return Plan(
        configs=chosen,
        seeds=seeds,
        jobs=jobs or (1 if race else None if ray is not None else 2),
        runs=runs,
        references=entries,
        peers=peer_entries,
        results=results or home or RESULTS,
        page=page or (home / "benchmarks.md" if home else PAGE),
        with_peers=with_peers,
        race=race,
        missing=missing,
        ray=ray,
    )


def run_bench(plan: Plan, *, report_only: bool) -> int:
    """Runs the plan and returns the exit code: 1 if a job failed, otherwise 0."""
    failures: list[str] = []
    if report_only:
        for job in replace(plan, with_peers=True).planned_jobs():
            if job.is_begun() and job.is_current() and job.result_file.exists():
                _record(plan, job)
    else:
        jobs = plan.jobs_to_run()
        for job in jobs:
            job.is_finished()  # rejects runs made with other settings, before anything starts
        if jobs:
            with runners(plan.ray) as make_runner:
                failures = make_runner(jobs, plan.jobs, sys.stderr).run(lambda job: _record(plan, job))
        else:
            sys.stderr.write("nothing is missing\n")
    sys.stdout.write(write_report(plan) + "\n")
    for failure in failures:
        sys.stderr.write(f"failed: {failure}\n")
    return 1 if failures else 0


def _place_of(job: Job) -> tuple[str, str]:
    """The results file that holds the outcome of a job, and the key under which it holds it."""
    if job.race is not None:
        return "race.json", race_key(job.config, job.peer)
    return "learning.json" if job.peer is None else "peers.json", job.config


def _record(plan: Plan, job: Job) -> str:
    """Adds a finished job to the results and returns a summary of its outcome."""
    outcome, (file, key) = job.outcome(), _place_of(job)
    record(plan.results / file, key, job.seed, outcome)
    if job.race is not None:
        end = "solved" if outcome["solved"] else "not solved"
        return f"{end} after {outcome['steps']} steps, {outcome['cpu_seconds']:.1f} CPU seconds"
    seconds = "" if outcome["seconds"] is None else f" in {outcome['seconds']:.0f} CPU seconds"
    return f"{shown(outcome['return'], 1)}{seconds}"


def write_report(plan: Plan) -> str:
    """Writes the sections for which there are results, and returns the tables."""
    ours, theirs = (
        of_entries(load_results(plan.results / file), plan.references) for file in ("learning.json", "peers.json")
    )
    races = of_races(load_results(plan.results / "race.json"), plan.peers)
    with kept_in(plan.runs / BOOTSTRAPS):
        return _write_sections(plan, ours, theirs, races)


def _write_sections(plan: Plan, ours: Results, theirs: Results, races: Results) -> str:
    def with_curves(results: Results, file: str, text: str) -> str:
        drawn = draw_curves(plan.references, results, theirs, plan.peers, plan.page.parent / "charts" / file)
        return f"![learning curves](charts/{file})\n\n{text}" if drawn else text

    sections = {}
    chosen = [config for config, reference in plan.references.items() if reference.overview]
    if chosen:
        shortened = {config: ours[config] for config in chosen if config in ours}
        sections["overview"] = with_curves(shortened, "overview.svg", overview_table(plan.references, ours))
    table = f"{learning_table(plan.references, ours)}\n\n{made_with(ours.values())}"
    sections["learning"] = with_curves(ours, "learning.svg", table)
    if plan.peers:
        table = peer_table(plan.references, plan.peers, ours, theirs)
        sections["peers"] = f"{table}\n\n{made_with(theirs.values(), with_commits=True)}".rstrip()
        table = race_table(plan.references, plan.peers, races)
        sections["race"] = f"{table}\n\n{made_with(races.values(), with_commits=True)}".rstrip()
    for name, text in sections.items():
        write_section(plan.page, name, text)
    return "\n\n".join([*sections.values(), f"written to {plan.page}"])
