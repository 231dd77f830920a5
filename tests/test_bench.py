"""``rl-training bench``: files, reports, and runs that continue where a killed bench left them."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import tiny_values
from moments import PATIENCE
from pydantic import ValidationError

from rl_training.bench.command import Plan, write_report
from rl_training.bench.document import markdown_table, write_section
from rl_training.bench.jobs import Job
from rl_training.bench.references import DEFAULT_SEEDS, RACE_SEEDS, Peer, Reference, load_entries
from rl_training.bench.report import (
    _seeds_of,
    draw_curves,
    learning_table,
    made_with,
    of_entries,
    of_races,
    race_table,
    task_of,
)
from rl_training.bench.runner import Runner, locked
from rl_training.bench.store import load_results, record
from rl_training.errors import ConfigError
from rl_training.experiment import aggregate
from rl_training.experiment.packaged import packaged_configs

ROOT = Path(__file__).parent.parent
REFERENCE = {"overview": True, "seeds": 2, "threshold": 5, "passing": 2, "source": "unpublished"}
PEER: dict[str, Any] = {
    "package": "stable-baselines3",
    "algorithm": "stable_baselines3:DQN",
    "steps": 2000,
    "settings": {"policy": "MlpPolicy", "learning_starts": 50, "learning_rate": "lin_0.001"},
    "policy_kwargs": {"net_arch": [16], "activation_fn": "nn.Tanh"},
    "scale": [22, 500],
    "solved": 1,
    "times": 3,
    "source": "unpublished",
}


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for what these tests look at, and forty times cheaper."""
    monkeypatch.setattr(aggregate, "RESAMPLES", 50)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("dqn")))
    Path("references.yaml").write_text(yaml.safe_dump({"tiny.yaml": REFERENCE}))
    Path("peers.yaml").write_text(yaml.safe_dump({"tiny.yaml": PEER}))
    return tmp_path


# --------------------------------------------------------------------------------------------------------- entries


def test_an_entry_can_be_another_config_with_changes() -> None:
    entry = Reference.model_validate({"seeds": 1, "config": "dqn/cartpole", "set": ["algo_kwargs.n_step=1"], "source": "x"})
    data = entry.data("dqn/one_step")
    assert data["env_id"] == "CartPole-v1"
    assert data["algo_kwargs"]["n_step"] == 1
    job = Job("dqn/one_step", 3, Path("runs"), reference=entry)
    assert Job.from_json(job.to_json()).load_config() == job.load_config()
    assert job.path == Path("runs/dqn/one_step/seed3")


def test_the_files_of_the_repository() -> None:
    references = load_entries(ROOT / "benchmarks" / "learning.yaml", Reference)
    peers = load_entries(ROOT / "benchmarks" / "peers.yaml", Peer)
    assert {entry.config or name for name, entry in references.items()} <= set(packaged_configs())
    assert {"dqn/cartpole", "qr_dqn/cartpole", "ppo/cartpole"} <= set(peers)
    raced = {config for config, peer in peers.items() if peer.solved is not None}
    bars = {
        "dqn/cartpole": 4,
        "qr_dqn/cartpole": 3,
        "ppo/cartpole": 5,
        "sac/pendulum": 2,
        "recurrent_ppo/cartpole_no_velocity": 5,
    }
    assert {config: peers[config].times for config in raced} == bars
    assert all("rl-zoo3" in peer.source for peer in peers.values())


# --------------------------------------------------------------------------------------------------------- reports


def outcome(value: float, seconds: float = 10.0) -> dict[str, Any]:
    curve = [[100, value / 2], [200, value]]
    made = {"date": "2026-01-02", "versions": {"python": "3"}, "machine": "a machine"}
    return {"return": value, "steps": 200, "seconds": seconds, "curve": curve, **made}


def test_the_learning_table_names_what_was_not_run_and_what_falls_short() -> None:
    references = {name: Reference.model_validate({**REFERENCE, "threshold": 475}) for name in ("good", "bad", "none")}
    results = {
        "good": {"0": outcome(500), "1": outcome(480)},
        "bad": {"0": outcome(500), "1": {"return": 9.0, "steps": 90, "seconds": 3.0}},  # as in older files
        "other": {"10": outcome(7), "9": outcome(8)},
    }
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in learning_table(references, results).splitlines()[2:]]
    assert [row[0] for row in rows] == ["good", "bad", "none", "other"]
    assert [row[7] for row in rows] == ["pass: 2 of 2", "FALLS SHORT: 1 of 2", "not run", "no reference"]
    assert [row[4] for row in rows] == ["0 to 1", "0 to 1", "", "9 to 10"]
    assert [row[3] for row in rows] == ["490.0", "254.5", "", "7.500"]
    assert rows[0][2] == "490.0 [-]", "two seeds make no interval"
    assert rows[3][5] == "8.00, 7.00", "in the order of the seeds"
    assert rows[1][1] == "90/200", "in the order of the numbers"
    assert made_with(results.values()).splitlines() == [
        "- 2026-01-02: python 3; a machine",
        "- some runs were recorded without their versions",
    ]
    known = [{"0": {**outcome(1), "commit": "b"}}, {"1": {**outcome(1), "commit": "a"}, "2": outcome(1)}]
    assert made_with(known, with_commits=True) == "- 2026-01-02: python 3; a machine; commits a, b"
    assert made_with(known) == "- 2026-01-02: python 3; a machine", "the long table has a column of commits"


def test_seeds_below_the_first_of_an_entry_do_not_count() -> None:
    """They were scored with earlier settings, which may have had the same file: a packaged config can build on another."""
    entry = Reference.model_validate({**REFERENCE, "first_seed": 60})
    runs = {"a": {"59": outcome(9), "60": outcome(1), "61": outcome(2)}, "b": {"59": outcome(9)}}
    left = of_entries(runs, {"a": entry})
    assert {config: list(outcomes) for config, outcomes in left.items()} == {"a": ["60", "61"], "b": ["59"]}
    for file in ("learning.json", "peers.json"):
        for seed in (59, 60, 61):
            record(Path(file), "tiny.yaml", seed, {**outcome(seed), "same_episodes": True})
    peers = {"tiny.yaml": Peer.model_validate(PEER)}
    text = write_report(Plan(["tiny.yaml"], None, 1, Path(), {"tiny.yaml": entry}, peers, Path(), Path("page.md")))
    assert text.count("60 to 61") == 1
    assert "59" not in text
    assert "incomplete" not in text


@pytest.mark.parametrize(
    ("ours", "theirs", "cells"),
    [
        ([10, 10, 20, 30, 30], [60, 60, 60, 90, 90], ["20.0", "60.0", "3.00", "2000, 6000", "3", "reached"]),
        ([10, 10, 20, 30, 30], [59] * 5, ["20.0", "59.0", "2.95", "2000, 5900", "3", "MISSED"]),
        ([10, 20, 30, 30], [60, 60, 90, 90, 90], ["25.0", "75.0", "3.00", "2500, 7500", "3", "incomplete: 8 of 10 seeds"]),
        ([10, 10, None, None, None], [5, 6, 6, 7, 7], ["unsolved", "6.0", "-", "unsolved, 600", "3", "MISSED"]),
        (
            [10, 10, 20, None, None],
            [5, 5, None, None, None],
            ["20.0", "unsolved", "unbounded", "2000, unsolved", "3", "reached"],
        ),
    ],
)
def test_a_seed_that_never_solves_the_task_counts_as_infinite(ours: list[Any], theirs: list[Any], cells: list[str]) -> None:
    def results(times: list[Any]) -> dict[str, dict[str, Any]]:
        numbers = [{"cpu_seconds": time or 99, "steps": 100 * (time or 99)} for time in times]
        return {str(8000 + seed): {"solved": times[seed] is not None, **number} for seed, number in enumerate(numbers)}

    runs = {"x ours": results(ours * 2), "x stable-baselines3": results(theirs * 2)}
    for outcomes in runs.values():
        outcomes["3"] = {"solved": True, "cpu_seconds": 0.1, "steps": 1}  # from an earlier race, to be left out
    assert not {seed for outcomes in of_races(runs, {"x": Peer.model_validate(PEER)}).values() for seed in outcomes} & {"3"}
    text = race_table({}, {"x": Peer.model_validate(PEER)}, runs)
    row = [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]]
    assert [row[3], *row[6:]] == cells


@pytest.mark.parametrize("kept", [[], [{"name": "mask_observation", "indices": [1, 3]}], ["flatten_observation"]])
@pytest.mark.parametrize(
    "scale", [{"name": "scale_observation", "factors": [2.0] * 4}, {"scale_observation": {"factors": [2.0] * 4}}]
)
def test_a_peer_plays_the_task_without_the_factors_that_we_chose(kept: list[Any], scale: Any) -> None:
    plain = {key: value for key, value in tiny_values("ppo").items() if key != "wrappers"}
    Path("scaled.yaml").write_text(yaml.safe_dump({**plain, "wrappers": [*kept, scale]}))
    Path("bare.yaml").write_text(yaml.safe_dump({**plain, **({"wrappers": kept} if kept else {})}))
    peer = Peer.model_validate(PEER)
    ours, theirs, bare = (
        Job(file, 0, Path("runs"), player)
        for file, player in (("scaled.yaml", None), ("scaled.yaml", peer), ("bare.yaml", peer))
    )
    assert len(ours.load_config().wrappers) == len(kept) + 1
    assert theirs.load_config().wrappers == bare.load_config().wrappers
    assert theirs.digest == bare.digest  # figures from before we chose them stay


def test_curves_of_a_peer_that_is_no_longer_known_are_drawn(tmp_path: Path) -> None:
    both = {"tiny.yaml": {str(seed): outcome(500) for seed in range(3)}}
    assert draw_curves({}, both, both, {}, tmp_path / "curves.svg")
    assert "peer, as tiny.yaml" in (tmp_path / "curves.svg").read_text()


def test_published_curves_are_drawn_beside_ours(tmp_path: Path) -> None:
    entry = {"seeds": 3, "source": "a paper", "curves": [[[0, 20], [500, 400], [900, 500]], [[0, 30], [900, 490]]]}
    references = {"tiny.yaml": Reference.model_validate(entry)}
    ours = {"tiny.yaml": {str(seed): outcome(500) for seed in range(3)}}
    drawn = [tmp_path / "with.svg", tmp_path / "without.svg"]
    for file, known in zip(drawn, (references, {}), strict=True):
        assert draw_curves(known, ours, {}, {}, file)
    assert ["published, as tiny.yaml (2)" in file.read_text() for file in drawn] == [True, False]


def test_a_published_curve_has_two_points() -> None:
    with pytest.raises(ValidationError, match="at least two points"):
        Reference.model_validate({"seeds": 1, "source": "a paper", "curves": [[[0, 20]]]})


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ("ppo/cartpole_no_velocity", "CartPole-v1, mask_observation"),
        ("dqn/minatar_breakout", "MinAtar/Breakout-v1"),  # neither the module that registers it nor the layout of its images
    ],
)
def test_a_panel_is_named_after_the_task(config: str, task: str) -> None:
    assert task_of(config, None) == task


def test_the_committed_page_marks_outdated_figures() -> None:
    """rl-training bench --report marks configs that have changed since they were measured."""
    references = load_entries(ROOT / "benchmarks" / "learning.yaml", Reference)
    results = of_entries(load_results(ROOT / "benchmarks" / "results" / "learning.json"), references)
    section = (ROOT / "docs" / "benchmarks.md").read_text("utf-8").split("<!-- learning: begin -->")[1].split("<!--")[0]
    lines = {line.split("|")[1].strip(): line for line in section.splitlines() if line.startswith("|")}
    for config, outcomes in results.items():
        if not outcomes:
            assert "not run" in lines[config], config
            continue
        assert _seeds_of(outcomes) == lines[config].split("|")[5].strip(), config
        digest = Job(config, 0, Path("runs"), reference=references[config]).digest
        is_outdated = {outcome["config"] for outcome in outcomes.values() if "config" in outcome} - {digest}
        assert ("OUTDATED" in lines[config]) == bool(is_outdated), config


def test_a_stop_ends_the_wait_for_a_lock() -> None:
    job = Job("tiny.yaml", 0, Path("runs"))
    runner = Runner([job], 1, io.StringIO())
    with locked(job):
        waiting = threading.Thread(target=runner._run, args=(job,), daemon=True)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        runner._stop()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()


def test_a_section_is_replaced_and_the_rest_of_the_page_stays() -> None:
    page = Path("docs/page.md")
    write_section(page, "one", "first")
    write_section(page, "two", "second")
    page.write_text(page.read_text() + "\nby hand\n")
    write_section(page, "one", "third")
    text = page.read_text()
    assert "first" not in text
    assert text.index("third") < text.index("second") < text.index("by hand")
    page.write_text("<!-- one: begin -->")
    with pytest.raises(ConfigError, match="no end marker"):
        write_section(page, "one", "x")


def test_a_table_with_an_empty_column_is_still_a_table() -> None:
    assert markdown_table(("a", ""), [("1", "")]).splitlines()[1] == "| --- | --- |"


def test_a_budget_for_evaluations_does_not_make_figures_outdated() -> None:
    """A bench evaluates without one."""

    def job(**evaluation: Any) -> Job:
        return Job("x", 0, Path("runs"), content=tiny_values("dqn", eval=evaluation or None))

    plain, limited, other = job(interval=100), job(interval=100, budget=0.1), job(interval=200)
    assert plain.digest == limited.digest != other.digest
    assert limited.data["eval"] == {"interval": 100, "budget": 0.1}
    assert job().digest != plain.digest  # eval: null


def test_results_are_added_one_by_one() -> None:
    path = Path("results/learning.json")
    for seed in (10, 2):
        record(path, "x", seed, {"return": float(seed)})
    record(path, "a", 0, {"return": 1.0})
    record(path, "x", 2, {"return": 3.0})
    assert load_results(path) == {"a": {"0": {"return": 1.0}}, "x": {"2": {"return": 3.0}, "10": {"return": 10.0}}}
    assert path.read_text().index('"2"') < path.read_text().index('"10"')
    path.write_text("{")
    with pytest.raises(ConfigError, match="not a results file"):
        load_results(path)


# ------------------------------------------------------------------------------------------------------------ runs


def test_the_seeds_of_an_entry_begin_at_its_first() -> None:
    entry = Reference.model_validate({**REFERENCE, "first_seed": 3000})
    nowhere = Path("nowhere")
    plan = Plan(["tiny.yaml", "other.yaml"], None, 1, nowhere, {"tiny.yaml": entry}, {}, nowhere, nowhere)
    planned = [(job.config, job.seed) for job in plan.planned_jobs()]
    assert planned[:4] == [("tiny.yaml", 3000), ("other.yaml", 0), ("tiny.yaml", 3001), ("other.yaml", 1)]
    assert len(planned) == entry.seeds + DEFAULT_SEEDS


def test_a_peer_runs_on_the_first_five_seeds_and_a_race_has_seeds_of_its_own() -> None:
    nowhere = Path("nowhere")
    entry = Reference.model_validate({**REFERENCE, "first_seed": 3000, "seeds": 20, "passing": 19})
    peers = {"tiny.yaml": Peer.model_validate({**PEER, "solved": 475})}
    plan = Plan(["tiny.yaml"], None, 1, nowhere, {"tiny.yaml": entry}, peers, nowhere, nowhere, with_peers=True)
    ours, theirs = ([job.seed for job in plan.planned_jobs() if (job.peer is not None) is peer] for peer in (False, True))
    assert ours == list(range(3000, 3020))
    assert theirs == list(range(3000, 3005))
    wished = replace(plan, seeds=7).planned_jobs()
    assert sum(job.peer is not None for job in wished) == 7
    races = replace(plan, with_peers=False, race=True).planned_jobs()
    assert [job.seed for job in races[:4]] == [8000, 8000, 8001, 8001]
    again = {"tiny.yaml": peers["tiny.yaml"].model_copy(update={"first_race_seed": 8100})}
    assert [job.seed for job in replace(plan, race=True, peers=again).planned_jobs()[:2]] == [8100, 8100]
    digests = {Job("tiny.yaml", 0, nowhere, entries["tiny.yaml"], 475.0).digest for entries in (peers, again)}
    assert len(digests) == 1, "other seeds are not other settings"
    assert len(races) == 2 * RACE_SEEDS == 20


def test_only_what_the_results_do_not_have_is_run() -> None:
    entry = Reference.model_validate(REFERENCE)
    peer = Peer.model_validate(PEER)
    plan = Plan(
        ["tiny.yaml"], None, 1, Path("runs"), {"tiny.yaml": entry}, {"tiny.yaml": peer}, Path(), Path(), with_peers=True,
        missing=True,
    )  # fmt: skip
    everything = [(0, None), (0, peer), (1, None), (1, peer)]
    assert [(job.seed, job.peer) for job in plan.jobs_to_run()] == everything, "there are no results yet"
    ours, theirs = (Job("tiny.yaml", 0, Path("runs"), which).digest for which in (None, peer))
    record(Path("learning.json"), "tiny.yaml", 1, {"config": ours})
    record(Path("peers.json"), "tiny.yaml", 0, {"config": theirs, "same_episodes": True})
    for unlike_ours in ({"config": "other settings", "same_episodes": True}, {"config": theirs}):
        record(Path("peers.json"), "tiny.yaml", 1, unlike_ours)
        assert [(job.seed, job.peer) for job in plan.jobs_to_run()] == [(0, None), (1, peer)]
    assert [(job.seed, job.peer) for job in replace(plan, missing=False).jobs_to_run()] == everything
    other = Reference.model_validate(REFERENCE | {"set": ["algo_kwargs.gamma=0.5"]})
    changed = replace(plan, references={"tiny.yaml": other})
    assert [job.seed for job in changed.jobs_to_run() if job.peer is None] == [0, 1], "the settings of a reference count"
    longer = replace(plan, references={"tiny.yaml": Reference.model_validate(REFERENCE | {"set": ["total_timesteps=300"]})})
    assert {job.total_steps for job in longer.planned_jobs()} == {300}, "for the peer too"
