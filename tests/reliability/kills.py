"""Kills runs without warning and compares what they end with: ``make test-kill N=1000``.

Each round draws a case (an algorithm, an environment, where and how many environments run, compiled or not), trains it once
without disturbance, and then kills runs of the same config at moments drawn over the whole run, up to three times each; a
quarter of the kills come while a checkpoint is written. A killed run that is resumed must end with the same bytes.

Every run is a process of its own that calls the command line. It is forked from this one, which has imported the package and
started no threads, because importing takes longer than such a run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from conftest import ALGORITHMS, final_fingerprint, settings_of, tiny_values
from test_kill import SWITCHES

from reliability.processes import Teller, in_a_process
from reliability.results import append, read, without_places
from reliability.strikes import Moment, Progress, count_progress, strike
from rl_training.cli import main
from rl_training.experiment.config import resolve_config
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.trainer import Trainer

RESULTS = "kills.jsonl"
TOTAL = 240
RUNS_OF_A_CASE, KILLS_OF_A_RUN = 3, 3
SHARE_SAVING = 0.4  # some come to nothing, because the checkpoint is complete before; a quarter must be left
SHARE_COMPILED = 0.12  # of the cases that can be compiled: a compilation takes longer than ten such runs


@dataclass(frozen=True)
class Task:
    """An environment with the observations and actions that it has."""

    family: str
    values: dict[str, Any]
    observations: str = "vector"
    actions: str = "discrete"
    needs: str = "gymnasium"
    frame_stack: int = 1

    def fits(self, algo: str) -> bool:
        entry = get_algorithm(algo)
        installed = importlib.util.find_spec(self.needs) is not None
        return installed and self.observations in entry.observations and self.actions in entry.actions


def atari(game: str) -> Task:
    options = {"frameskip": 1, "repeat_action_probability": 0.25, "max_episode_steps": 200}
    values = {"env_id": f"ale_py:ALE/{game}-v5", "env_kwargs": options, "wrappers": [{"name": "atari"}]}
    return Task("Atari", values, observations="image", needs="ale_py", frame_stack=4)


def minatar(game: str) -> Task:
    """Episodes have a limit, because a greedy policy may stay alive for ever."""
    env_id = f"rl_training.envs.minatar:MinAtar/{game}-v1"
    values = {"env_id": env_id, "env_kwargs": {"max_episode_steps": 60}, "wrappers": [{"name": "channels_first"}]}
    return Task("MinAtar", values, observations="image", needs="minatar")


TASKS = {
    "CartPole": Task("classic control", {"env_id": "CartPole-v1", "env_kwargs": {"max_episode_steps": 100}}),
    "Acrobot": Task("classic control", {"env_id": "Acrobot-v1", "env_kwargs": {"max_episode_steps": 70}}),
    "MountainCar": Task("classic control", {"env_id": "MountainCar-v0", "env_kwargs": {"max_episode_steps": 60}}),
    "Pendulum": Task(
        "classic control", {"env_id": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 50}}, actions="continuous"
    ),
    "MountainCarContinuous": Task(
        "classic control",
        {"env_id": "MountainCarContinuous-v0", "env_kwargs": {"max_episode_steps": 60}},
        actions="continuous",
    ),
    "Pendulum pixels": Task(
        "classic control",
        {
            "env_id": "Pendulum-v1",
            "env_kwargs": {"render_mode": "rgb_array", "max_episode_steps": 30},
            "wrappers": [{"name": "pixels", "height": 32, "width": 32}],
        },
        observations="image",
        actions="continuous",
        needs="cv2",
        frame_stack=3,
    ),
    "pictures": Task(
        "tests",
        {"env_id": "rl_training_test_envs:RandomWalkPictures-v0"},
        observations="image",
        actions="continuous",
        frame_stack=3,
    ),
    "LunarLander": Task("LunarLander", {"env_id": "LunarLander-v3", "env_kwargs": {"max_episode_steps": 100}}, needs="Box2D"),
    "LunarLander continuous": Task(
        "LunarLander",
        {"env_id": "LunarLander-v3", "env_kwargs": {"continuous": True, "max_episode_steps": 100}},
        actions="continuous",
        needs="Box2D",
    ),
    "Hopper": Task(
        "MuJoCo", {"env_id": "Hopper-v5", "env_kwargs": {"max_episode_steps": 60}}, actions="continuous", needs="mujoco"
    ),
    "HalfCheetah": Task(
        "MuJoCo", {"env_id": "HalfCheetah-v5", "env_kwargs": {"max_episode_steps": 50}}, actions="continuous", needs="mujoco"
    ),
    "Pong": atari("Pong"),
    "Breakout": atari("Breakout"),
    "MiniGrid DoorKey": Task(
        "MiniGrid",
        {"env_id": "minigrid_env:FlatMiniGrid-v0", "env_kwargs": {"max_steps": 60}},
        needs="minigrid",
    ),
    "POPGym RepeatFirst": Task("POPGym", {"env_id": "popgym:popgym-RepeatFirstEasy-v0"}, needs="popgym"),
    "POPGym HigherLower": Task("POPGym", {"env_id": "popgym:popgym-HigherLowerEasy-v0"}, needs="popgym"),
    "MinAtar Breakout": minatar("Breakout"),
    "MinAtar Seaquest": minatar("Seaquest"),
}


@dataclass(frozen=True)
class Case:
    """What is killed."""

    algo: str
    task: str
    workers: str
    num_envs: int
    compiled: bool

    def values(self, seed: int) -> dict[str, Any]:
        """Its config: a short run that saves, evaluates and logs all the time, with the options that have a state."""
        return tiny_values(
            self.algo,
            **TASKS[self.task].values,
            num_envs=self.num_envs,
            env_workers=self.workers,
            seed=seed,
            total_timesteps=TOTAL,
            compile="on" if self.compiled else "off",
            checkpoint={"interval": 40, "replay_every": 2},
            eval={"interval": 90, "episodes": 2, "final_episodes": 2, "num_envs": 2},
            log={"interval": 10, "tensorboard": False},
            algo_kwargs=settings_of(
                self.algo,
                {
                    "n_step": 3,
                    "buffer_size": 500,
                    "train_freq": 8,
                    "frame_stack": TASKS[self.task].frame_stack,
                    **dict.fromkeys(SWITCHES, True),
                },
            ),
        )


def draw_case(number: int, only: str | None = None) -> Case | None:
    """The case of a round: the algorithms in turn, everything else by chance. With ``only``, the environments are of this
    family; None if the algorithm can use none of them."""
    rng = random.Random(f"case {number}")
    algo = ALGORITHMS[number % len(ALGORITHMS)]
    families: dict[str, list[str]] = {}
    for name, task in TASKS.items():
        if task.fits(algo) and only in (None, task.family):
            families.setdefault(task.family, []).append(name)
    if not families:
        return None
    task_name = rng.choice(families[rng.choice(sorted(families))])
    workers, num_envs = rng.choice(["inline", "inline", "subprocess"]), rng.choice([1, 4])
    eager = Case(algo, task_name, workers, num_envs, False)
    drawn = rng.random() < SHARE_COMPILED and TASKS[task_name].observations != "image"
    return replace(eager, compiled=True) if drawn and can_be_compiled(eager) else eager


def can_be_compiled(case: Case) -> bool:
    """Asked in another process, because this one must start no threads."""

    def ask(tell: Teller) -> int:
        trainer = Trainer(resolve_config({**case.values(0), "env_workers": "inline"}))
        tell(trainer.algorithm.why_not_compiled() is None)
        return 0

    with tempfile.TemporaryDirectory() as folder:
        return bool(in_a_process(ask, Path(folder) / "log").reported[0])


def draw_moment(rng: random.Random, progress: Progress) -> Moment:
    """A moment of the whole run. After the drawn step, the count goes through everything that an average step is part of:
    updates, evaluations, logs and the start of checkpoints."""
    if rng.random() < SHARE_SAVING and progress.saves:
        return Moment(True, rng.randrange(TOTAL), rng.randint(1, max(1, rng.choice(progress.saves))))
    per_step = progress.main // max(1, progress.collected)
    return Moment(False, rng.randrange(TOTAL), rng.randint(1, 2 * per_step + 1))


# ------------------------------------------------------------------------------------------------------------ the rounds


def play_round(case: Case, number: int, folder: Path, runs: int = RUNS_OF_A_CASE) -> list[dict[str, Any]]:
    """The records of a round: one for each run that was killed."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(case.values(seed=number)))
    arguments = command(config, folder / "whole")

    def train_and_count(tell: Teller) -> int:
        progress = count_progress()
        code = main(arguments)
        sys.setprofile(None)
        tell(asdict(progress))
        return code

    whole = in_a_process(train_and_count, folder / "log")
    if whole.code != 0:
        raise RuntimeError(f"{case} cannot be trained: {whole.printed}")
    expected, progress = final_fingerprint(folder / "whole"), Progress(**whole.reported[0])
    rng = random.Random(f"moments {number}")
    return [kill_a_run(case, number, index, config, folder, rng, progress, expected) for index in range(runs)]


def kill_a_run(
    case: Case,
    number: int,
    index: int,
    config: Path,
    folder: Path,
    rng: random.Random,
    progress: Progress,
    expected: dict[str, Any],
) -> dict[str, Any]:
    """Trains, killed and resumed up to three times, then undisturbed to the end; compares that."""
    run, kills, said = folder / f"killed-{index}", [], ""
    for left in reversed(range(rng.randint(1, KILLS_OF_A_RUN) + 1)):
        moment = draw_moment(rng, progress) if left else None
        ended = in_a_process(partial(continue_run, command(config, run), moment), folder / "log")
        said += ended.printed
        if moment is None or ended.code != -signal.SIGKILL or not ended.reported:
            break  # a run that ends before the moment is no kill, and one that hangs has reported no place
        kills.append({**asdict(moment), **ended.reported[0], "orphans": ended.orphans})
    if ended.code != 0:
        outcome = f"exit code {ended.code}"
    else:
        found = final_fingerprint(run)
        outcome = "identical" if found == expected else f"different: {difference(found, expected)}"
    if "Traceback" in said:
        outcome = f"traceback; {outcome}"
    record = {"round": number, **asdict(case), "family": TASKS[case.task].family, "kills": kills, "outcome": outcome}
    if outcome != "identical":
        record["said"] = without_places(said)[-3000:]
    else:
        shutil.rmtree(run)
    return record


def continue_run(arguments: list[str], moment: Moment | None, tell: Teller) -> int:
    """Calls the command line, to be killed at this moment."""
    if moment is not None:
        strike(moment, tell)
    return main(arguments)


def command(config: Path, run: Path) -> list[str]:
    """The command that continues a run, or starts it if its directory was not complete when it was killed."""
    if (run / "metadata.json").exists():
        return ["resume", str(run), "--quiet"]
    shutil.rmtree(run, ignore_errors=True)
    return ["train", "--config", str(config), "--output-dir", str(run), "--quiet"]


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """What differs between two fingerprints."""
    files = [name for name in expected["files"] if found["files"].get(name) != expected["files"][name]]
    lines = [i for i, pair in enumerate(zip(found["metrics"], expected["metrics"], strict=False)) if pair[0] != pair[1]]
    return f"files {files}, lines of the log {lines[:3]}, {len(found['metrics'])} of {len(expected['metrics'])} lines"


def summary(records: list[dict[str, Any]]) -> str:
    """The figures of all kills so far."""
    kills = [(record, kill) for record in records for kill in record["kills"]]
    saving = sum(kill["saving"] for _, kill in kills)
    identical = sum(record["outcome"] == "identical" for record, _ in kills)
    orphans = sum(kill["orphans"] for _, kill in kills)
    return (
        f"{len(kills)} kills, {saving} of them while a checkpoint was written; identical: {identical}; "
        f"processes left behind: {orphans}"
    )


def play(kills: int, only: str | None) -> int:
    """Plays rounds until there are this many more kills; returns the number of runs that did not end identically. With
    ``only``, in the environments of this family."""
    records = read(RESULTS)
    number, done, bad = 1 + max((record["round"] for record in records), default=-1), 0, 0
    while done < kills:
        case = draw_case(number, only)
        if case is None:
            number += 1
            continue
        folder = Path(tempfile.mkdtemp(prefix="kills-"))
        try:
            new = play_round(case, number, folder)
        except Exception as error:
            new = [
                {
                    "round": number,
                    **asdict(case),
                    "family": TASKS[case.task].family,
                    "kills": [],
                    "outcome": without_places(repr(error)),
                }
            ]
        append(RESULTS, new)
        failed = [record for record in new if record["outcome"] != "identical"]
        for record in failed:
            print(f"round {number}: {record['outcome']}; see {folder}: {json.dumps(record)[:2000]}", flush=True)
        if not failed:
            shutil.rmtree(folder)
        bad += len(failed)
        done += sum(len(record["kills"]) for record in new)
        print(f"{number}: {case}: {sum(len(record['kills']) for record in new)} kills", flush=True)
        number += 1
    return bad


def once_each(folder: Path) -> Iterator[dict[str, Any]]:
    """A run of every algorithm that was killed, in the smallest of its environments; every fourth while it saved."""
    for number, algo in enumerate(ALGORITHMS):
        task = next(name for name in ("CartPole", "Pendulum", "pictures") if TASKS[name].fits(algo))
        place = folder / algo
        place.mkdir()
        case = Case(algo, task, "inline", 2, False)
        for attempt in range(10):  # a moment may come to nothing
            (record,) = play_round(case, 1000 * number + attempt, place, runs=1)
            shutil.rmtree(place / "whole")
            if record["kills"] or record["outcome"] != "identical":
                break
        yield record


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--family", choices=sorted({task.family for task in TASKS.values()}), help="only its environments")
    parser.add_argument("--once", type=Path, metavar="FOLDER", help="kill every algorithm once, and print the records")
    arguments = parser.parse_args()
    if arguments.once:
        for killed in once_each(arguments.once):
            print(json.dumps(killed), flush=True)
        sys.exit(0)
    bad = play(arguments.kills, arguments.family)
    print(summary(read(RESULTS)))
    sys.exit(1 if bad else 0)
