"""The speed harness's tables and pictures, from made-up measurements."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import speed
from candidates.lstm_limit import Bare
from charts import draw_speed, groups
from measure import Measurement, Rate
from report import Ratio, Series, compile_times, outcomes, profile, table, work_differences
from worker import settle
from workloads import COMPILED, OURS, WORKLOADS, Candidate, SequenceSettings

RATE = "env steps"
PHASES = {"environment": 1.0, "acting": 2.0, "sampling": 0.0, "update": 5.0, "rest": 0.5}


def series(*rates: float, compile_seconds: float = 0.0, updates: int = 100) -> Series:
    """One second of work per round."""
    work, outcome = {"updates": updates}, {"idle share": 0.25}
    seconds = {"compilation": compile_seconds}
    return Series([Measurement({RATE: Rate(int(rate), 1.0, 2.0)}, work, outcome, seconds) for rate in rates])


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Series]]:
    """w1 with two peers, one of which has a separate bar, and a limit with a share to reach."""
    candidates = {
        **{name: WORKLOADS["w1"].candidates[name] for name in (OURS, "sb3")},
        "tianshou": Candidate("x:y", "tianshou", bars={RATE: 6.0}),
        "compiled": Candidate("x:y", "torch", is_limit=True, bars={RATE: 0.85}),
        "eager": Candidate("x:y", "torch", is_limit=True),
    }
    monkeypatch.setitem(WORKLOADS, "w1", replace(WORKLOADS["w1"], bars={RATE: 1.8}, candidates=candidates, compiled_bars={}))
    return {
        "w1": {
            OURS: series(200, 400, 900, compile_seconds=20.0),
            "sb3": series(100, 100, 300),
            "tianshou": series(50, 80, 100),
            "compiled": series(250, 500, 1000),
            "eager": Series(absent="failed"),
        }
    }


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def test_ratios_are_of_rounds_and_every_bar_gets_a_verdict(results: dict[str, dict[str, Series]]) -> None:
    shown = {(row[2], row[4]): row[5:] for row in rows(table(results))}
    assert shown[OURS, "sb3"] == [
        "100 (100..300)",
        "3.00 (2.00..4.00)",
        "1.8",
        "reached",
        "200, 50",
    ]  # 2, 4, 3: not 400 / 100
    assert shown[OURS, "tianshou"][1:4] == ["5.00 (4.00..9.00)", "6", "MISSED"]
    assert shown[OURS, "compiled (limit)"][1:4] == ["0.80 (0.80..0.90)", "0.85", "MISSED"]
    assert shown[OURS, "eager (limit)"] == ["failed", "-", "-", "", "-"]
    assert compile_times(results) == ["w1, ours: 20 (20..20) s"]


def test_with_several_threads_wall_clock_time_decides() -> None:
    """Twice the CPU seconds in half the wall-clock time is twice as fast; a part is judged by its share of that time."""

    def one(cpu: float, wall: float, **shares: float) -> Measurement:
        return Measurement({"updates": Rate(100, cpu, wall)}, {"updates": 100}, shares)

    shares = {"augmentation's share": 0.05, "augmentation's share of the wall": 0.09}
    known = {"w5t2": {OURS: Series([one(4.0, 2.0, **shares)]), "bare torch": Series([one(2.0, 1.5)])}}
    fields = {name: asdict(candidate) for name, candidate in known["w5t2"].items()}
    results = {"w5t2": speed.series_of(fields, WORKLOADS["w5t2"].threads)}
    (row,) = rows(table(results))
    assert row[4:9] == ["bare torch (limit)", "50 (50..50)", "0.75 (0.75..0.75) wall", "0.85", "MISSED"]
    assert outcomes(results) == ["w5t2: augmentation's share 9.0% of the time (at most 8%: MISSED)."]
    single = {"w5": speed.series_of(fields, WORKLOADS["w5"].threads)}
    assert rows(table(single))[0][6:9] == ["0.50 (0.50..0.50)", "0.85", "MISSED"]
    assert outcomes(single) == ["w5: augmentation's share 5.0% of the time (at most 8%: reached)."]


def test_our_compiled_candidate_has_separate_bars(
    results: dict[str, dict[str, Series]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = WORKLOADS["w1"]
    candidates = {COMPILED: Candidate("x:y", "rl-training"), **ours.candidates}
    monkeypatch.setitem(WORKLOADS, "w1", replace(ours, candidates=candidates, compiled_bars={RATE: 3.5}))
    results["w1"][COMPILED] = series(400, 450, 1200)
    shown = {(row[2], row[4]): row[6:9] for row in rows(table(results))}
    assert shown[OURS, "sb3"] == ["3.00 (2.00..4.00)", "1.8", "reached"]
    assert shown[COMPILED, "sb3"] == ["4.00 (4.00..4.50)", "3.5", "reached"]
    assert shown[OURS, "compiled (limit)"][1:] == ["-", ""], "a share of the limit is asked of the compiled one"
    assert shown[COMPILED, "compiled (limit)"] == ["1.20 (0.90..1.60)", "0.85", "reached"]
    (group,) = groups(results)
    assert [bar.label for bar in group.bars[:2]] == [COMPILED, OURS]


def test_a_candidate_that_did_other_work_is_named(results: dict[str, dict[str, Series]]) -> None:
    assert work_differences(results) == []
    results["w1"]["sb3"] = series(100, 100, 300, updates=50)
    assert work_differences(results) == ["w1, updates: 50 by sb3, 100 by us"]


def test_work_that_one_candidate_does_not_report_is_a_difference(results: dict[str, dict[str, Series]]) -> None:
    def silent() -> Series:
        return Series([replace(measurement, work={}) for measurement in series(100, 100).rounds])

    ours = results["w1"][OURS]
    assert work_differences({"w1": {OURS: ours, "sb3": silent()}}) == ["w1, updates: an unknown number by sb3, 100 by us"]
    assert work_differences({"w1": {OURS: silent(), "sb3": ours}}) == ["w1, updates: 100 by sb3, an unknown number by us"]


def test_bars_are_divided_by_the_fastest_peer(results: dict[str, dict[str, Series]]) -> None:
    (group,) = groups(results)
    assert group.unit == "sb3"
    bars = {bar.label: bar for bar in group.bars}
    assert set(bars) == {OURS, "sb3", "tianshou", "compiled"}
    assert [bars[name].ratio.median for name in (OURS, "sb3", "compiled")] == [3.0, 1.0, pytest.approx(10 / 3)]
    assert bars[OURS].kind == "missed"
    assert bars[OURS].target == pytest.approx(max(1.8, 6 * 0.5, 0.85 * 10 / 3))
    assert (bars["sb3"].kind, bars["compiled"].kind) == ("peer", "limit")


def test_without_a_peer_the_limit_is_the_unit(results: dict[str, dict[str, Series]]) -> None:
    only = {"w1": {name: results["w1"][name] for name in (OURS, "compiled")}}
    (group,) = groups(only)
    assert (group.unit, group.bars[0].ratio.median) == ("compiled", 0.8)


def test_ratio_of_what_was_not_measured_is_none() -> None:
    assert Ratio.of(series(1), Series(absent="failed"), RATE) is None
    assert Ratio.of(series(1), Series(), RATE) is None


@pytest.mark.parametrize("failing", [OURS, "sb3"])
def test_a_candidate_that_fails_after_a_good_round_is_left_out_of_the_chart(
    results: dict[str, dict[str, Series]], failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_round = series(100).rounds[0]
    monkeypatch.setattr(Candidate, "is_installed", True)
    monkeypatch.setattr(speed, "run_worker", lambda _, name, seed, __: None if name == failing and seed else one_round)
    results["w1"] = speed.measure("w1", 2, None)
    assert (results["w1"][failing].absent, len(results["w1"][failing].rounds)) == ("failed", 1)
    assert failing not in {bar.label for group in groups(results) for bar in group.bars}
    assert draw_speed(results, tmp_path / "bars.svg") == (failing != OURS)
    assert "failed" in {cell for row in rows(table(results)) for cell in row}


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_chart_is_drawn_reproducibly(results: dict[str, dict[str, Series]], ending: str, tmp_path: Path) -> None:
    one, two = tmp_path / f"one.{ending}", tmp_path / f"two.{ending}"
    assert draw_speed(results, one)
    assert draw_speed(results, two)
    assert one.read_bytes() == two.read_bytes()
    assert len(one.read_bytes()) > 5000
    assert not draw_speed({"w1": {OURS: series(1)}}, tmp_path / "none.svg")


def kept(results: dict[str, Series], **fields: Any) -> dict[str, Any]:
    """A workload as stored in the results file."""
    return {
        "settings": json.loads(json.dumps(asdict(WORKLOADS["w1"].settings))),
        "candidates": {name: asdict(one) for name, one in results.items()},
        **fields,
    }


def test_the_page_is_written_again_without_measuring(
    results: dict[str, dict[str, Series]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, page = tmp_path / "speed.json", tmp_path / "docs" / "benchmarks.md"
    made = {"date": "2026-01-02", "versions": {"torch": "2"}, "machine": "a machine"}
    for measurement in results["w1"][OURS].rounds:
        measurement.seconds.update(PHASES)
    changed = kept(results["w1"], **made)
    changed["settings"]["batch_size"] = 7
    later = {**WORKLOADS["w1"].candidates, "prioritised": Candidate("x:y", "torch")}
    monkeypatch.setitem(WORKLOADS, "w1", replace(WORKLOADS["w1"], candidates=later))
    figures.write_text(json.dumps({"workloads": {"w1": changed, "gone": changed}}))
    arguments = ["speed.py", "--report", "--results", str(figures), "--page", str(page)]
    monkeypatch.setattr("sys.argv", arguments)
    assert speed.main() == 0
    text = page.read_text()
    for part in (
        "charts/speed.svg",
        "3.00 (2.00..4.00)",
        "OUTDATED: w1",
        "Not measured: w1 (prioritised), w1c,",
        "w1: idle share 25.0% of the time.",
        "Compile times with an empty cache, not included in the rates: w1, ours: 20 (20..20) s.",
        "- w1: 2026-01-02, 3 rounds; torch 2; a machine; `python benchmarks/speed.py --workloads w1 --rounds 3`",
    ):
        assert part in text
    assert (tmp_path / "docs" / "charts" / "speed.svg").exists()
    (row,) = rows((tmp_path / "docs" / "performance.md").read_text().split("<!-- profile: begin -->")[1].strip())[:1]
    assert row == ["w1", OURS, "2,500", "5,000", "0", "12,500", "1,250", "21,250"]
    assert "gone" not in text


def test_older_files_are_read(results: dict[str, dict[str, Series]], tmp_path: Path) -> None:
    old = kept(results["w1"], bars={RATE: 1.8})
    for one in old["candidates"].values():
        for measurement in one["rounds"]:
            del measurement["seconds"]
    path = tmp_path / "speed.json"
    path.write_text(json.dumps({"versions": {"torch": "1"}, "machine": "x86_64", "workloads": {"w1": old}}))
    text = speed.report(speed.load_measurements(path), None)
    assert "- w1: undated, 3 rounds; torch 1; x86_64" in text
    assert "OUTDATED" not in text


def test_every_round_compiles_from_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has its own cache, which is removed afterwards."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, os, sys\n"
        "cache = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
        "fresh = os.path.isdir(cache) and not os.listdir(cache)\n"
        "open(os.path.join(cache, 'kernel'), 'w').close()\n"
        f"print(cache, file=open({str(tmp_path / 'caches')!r}, 'a'))\n"
        "print(json.dumps({'rates': {}, 'outcome': {'fresh': fresh}}))\n"
    )
    monkeypatch.setattr(speed, "WORKER", worker)
    rounds = [speed.run_worker("w1", COMPILED, seed, None) for seed in range(2)]
    assert [measured.outcome for measured in rounds if measured] == [{"fresh": True}] * 2
    caches = (tmp_path / "caches").read_text().split()
    assert len(set(caches)) == 2
    assert not any(Path(cache).exists() for cache in caches)


def test_the_quick_part_takes_less_than_five_minutes() -> None:
    """Judged by the committed figures, with four seconds for the start of each process."""
    kept = json.loads(speed.RESULTS.read_text())["workloads"]
    rounds = [one for name in speed.QUICK for each in kept[name]["candidates"].values() for one in each["rounds"]]
    seconds = [sum(rate["wall_seconds"] for rate in one["rates"].values()) for one in rounds]
    compiling = [one["seconds"].get("compilation", 0.0) for one in rounds]
    count = len(kept[speed.QUICK[0]]["candidates"][OURS]["rounds"])
    assert (sum(seconds) + sum(compiling) + 4.0 * len(rounds)) / count * speed.QUICK_ROUNDS < 300.0


def test_the_profile_is_of_an_env_step() -> None:
    measured = Measurement({RATE: Rate(1000, 1.0, 2.0)}, {"env steps": 1000}, seconds={**PHASES, "compilation": 9.0})
    (row,) = rows(profile({"w1": {OURS: Series([measured]), "sb3": series(100)}}))
    assert row == ["w1", OURS, "1,000", "2,000", "0", "5,000", "500", "8,500"]


def test_the_profile_of_an_updates_only_workload_is_per_update_and_leaves_peers_out() -> None:
    split = Measurement({"updates": Rate(1000, 1.0, 2.0)}, {"updates": 1003}, seconds={"sampling": 0.5, "update": 1.5})
    whole = Measurement({"updates": Rate(1000, 1.0, 3.0)}, {"updates": 1003})
    by_name = {OURS: Series([split]), "bare nn.LSTM": Series([whole]), "axiomrl": Series([whole])}
    assert rows(profile({"w4": by_name})) == [
        ["w4", OURS, "0", "0", "500", "1,500", "0", "2,000"],
        ["w4", "bare nn.LSTM", "0", "0", "0", "3,000", "0", "3,000"],
    ]


def test_the_bare_loop_of_sequences_cuts_episodes_and_sums_rewards() -> None:
    """Its targets follow the definition, so that the limit does the same work as the algorithm."""
    settings = SequenceSettings("r2d2", sequence_length=4, n_step=3, width=2, obs_dim=1, gamma=0.5)
    bare = Bare(settings, 5, seed=0)
    memory = [np.full(2, float(t), np.float32) for t in range(7)]
    episode = [(np.array([t], np.float32), t % 2, float(2**t), memory[t], memory[t]) for t in range(6)]
    assert bare.store(1, episode, np.array([6], np.float32), True) == 3
    assert bare.obs[1:3, :, 0].tolist() == [[0, 1, 2, 3, 4, 5, 6], [4, 5, 6, 6, 6, 6, 6]]
    assert bare.mask[1:3].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert bare.reward[1].tolist() == [3, 6, 12, 24]
    assert bare.discount[1].tolist() == [0.125, 0.125, 0.125, 0]
    assert bare.bootstrap[1].tolist() == [3, 4, 5, 6]
    assert bare.reward[2, :2].tolist() == [32, 32]
    assert bare.discount[2, :2].tolist() == [0, 0]
    assert bare.h[1:3, 0, 0].tolist() == [0, 4]


def test_a_core_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["speed.py", "--core", "9999"])
    with pytest.raises(SystemExit):
        speed.main()
    assert "--core 9999: this machine has the cores 0 to" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores can be chosen on Linux only")
def test_a_worker_does_not_run_on_fewer_cores_than_it_has_threads() -> None:
    last = max(os.sched_getaffinity(0))
    with pytest.raises(SystemExit, match=f"this needs 2 core\\(s\\) from {last} on"):
        settle(2, last)


def test_figures_are_kept_if_ours_fails(
    results: dict[str, dict[str, Series]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "speed.json"
    figures.write_text(json.dumps({"workloads": {"w1": kept(results["w1"], date="2026-01-02", versions={}, machine="")}}))
    before = figures.read_text()
    monkeypatch.setattr(speed, "measure", lambda *_: {OURS: Series(absent="failed"), "sb3": series(1)})
    arguments = ["speed.py", "--workloads", "w1", "--results", str(figures), "--page", str(tmp_path / "page.md")]
    monkeypatch.setattr("sys.argv", arguments)
    assert speed.main() == 1
    assert figures.read_text() == before
