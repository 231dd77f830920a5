"""The tables beside the peers: which seeds and which CPU seconds count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from conftest import tiny_values
from test_bench import PEER, outcome
from test_bench import _few_resamples as _few_resamples
from test_bench import place as place

from rl_training.bench.jobs import Job
from rl_training.bench.references import RACE_SEEDS, Peer, Reference
from rl_training.bench.report import peer_table, race_table


def test_side_by_side_only_seeds_that_both_have_count() -> None:
    peers = {name: Peer.model_validate(PEER) for name in ("a", "b", "c")}
    ours = {"a": {"0": outcome(500), "1": outcome(500), "2": outcome(0)}, "b": {"0": outcome(261)}, "c": {"0": outcome(1)}}
    theirs = {"a": {"0": outcome(100, 40), "1": outcome(200, 40)}, "b": {"0": {**outcome(22), "same_episodes": True}}}
    references = {name: Reference.model_validate({"seeds": seeds, "source": "x"}) for name, seeds in (("a", 2), ("b", 1))}
    text = peer_table(references, peers, ours, theirs)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:5]]
    assert rows[0][2:7] == ["2", "500.0 [-]", "stable-baselines3", "150.0 [-] †", "1.00 [1.00, 1.00]"]
    assert rows[1][5] == "22.0 [-]", "on the episodes that ours is scored on"
    assert "† An older result: the peer was not scored on the episodes of ours" in text
    assert rows[2][5] == "not run"
    assert "Over the 2 complete tasks (seeds per task: 1;" in text
    assert "our IQM is 0.750 [0.750, 0.750] and the peers' IQM is 0.082" in text  # (1 + .5) / 2 and (78/478 + 0) / 2


def test_cpu_seconds_are_compared_only_within_one_start_of_a_machine() -> None:
    peers = {name: Peer.model_validate(PEER) for name in ("a", "b")}
    references = {name: Reference.model_validate({"seeds": 2, "source": "x"}) for name in peers}

    def runs(seconds: float) -> dict[str, dict[str, Any]]:
        return {str(seed): {**outcome(500, seconds), "session": "one"} for seed in range(2)}

    ours, theirs = {"a": runs(10), "b": runs(10)}, {"a": runs(40), "b": runs(10)}
    text = peer_table(references, peers, ours, theirs)
    assert "‡" not in text
    on_two = (
        "On the 2 tasks where CPU seconds can be compared, ours take 0.62 times the peer's (median; 0.25 to 1.00), and at "
    )
    assert f"{on_two}most half on 1 of them." in text
    for session in ("another", None):
        theirs["a"]["1"]["session"] = session
        text = peer_table(references, peers, ours, theirs)
        assert "| 10, 40 ‡ " in text
        assert "‡ Not known to have been measured on one machine" in text
        assert "where CPU seconds can be compared" not in text, "one task is left"
    ours["a"]["1"]["session"] = None
    assert "| 10, 40 ‡ " in peer_table(references, peers, ours, theirs), "two that are not known are not the same"


def test_too_few_seeds_give_no_verdict_against_a_peer() -> None:
    peers = {"tiny.yaml": Peer.model_validate(PEER)}
    four = {"tiny.yaml": {str(seed): outcome(500) for seed in range(4)}}
    row = [cell.strip() for cell in peer_table({}, peers, four, four).splitlines()[2].split("|")[1:-1]]
    assert row[2:7] == [
        "4",
        "500.0 [500.0, 500.0]",
        "stable-baselines3",
        "500.0 [500.0, 500.0] †",
        "incomplete: 4 of 5 seeds",
    ]


def test_races_and_peers_with_other_settings_are_outdated() -> None:
    peer = Peer.model_validate(PEER)
    peers = {"tiny.yaml": peer}
    changed = {"tiny.yaml": peer.model_copy(update={"steps": 7})}

    def results(race: float | None) -> list[dict[str, dict[str, Any]]]:
        """As many seeds of ours and of the peer as a race needs."""
        jobs = (Job("tiny.yaml", 0, Path("runs"), side, race) for side in (None, peer))
        return [
            {
                str(seed): {**outcome(500), "solved": True, "cpu_seconds": 1.0, "config": job.digest}
                for seed in range(8000, 8000 + RACE_SEEDS)
            }
            for job in jobs
        ]

    ours, theirs = results(peer.solved)
    races = {"tiny.yaml ours": ours, "tiny.yaml stable-baselines3": theirs}
    assert "| MISSED |" in race_table({}, peers, races)
    assert "OUTDATED, the config has changed: MISSED" in race_table({}, changed, races)
    our_results, other = ({"tiny.yaml": seeds} for seeds in results(None))
    assert "OUTDATED" not in peer_table({}, peers, our_results, other)
    assert "OUTDATED, the config has changed: 0.50" in peer_table({}, changed, our_results, other)
    Path("tiny.yaml").write_text(yaml.safe_dump(tiny_values("dqn", algo_kwargs={"gamma": 0.9})))
    assert "OUTDATED" in race_table({}, peers, races)
    assert "OUTDATED" in peer_table({}, peers, our_results, other)


def test_an_outdated_task_does_not_count_among_all() -> None:
    peers = {f"{name}.yaml": Peer.model_validate(PEER) for name in "abc"}
    for name in peers:
        Path(name).write_text(yaml.safe_dump(tiny_values("dqn")))
    ours, theirs = (
        {
            name: {str(seed): {**outcome(500), "config": Job(name, 0, Path(), side).digest} for seed in range(5)}
            for name in peers
        }
        for side in (None, peers["a.yaml"])
    )
    assert "Over the 3 complete tasks" in peer_table({}, peers, ours, theirs)
    for run in ours["a.yaml"].values():
        run["config"] = "earlier settings"
    assert "Over the 2 complete tasks" in peer_table({}, peers, ours, theirs)
