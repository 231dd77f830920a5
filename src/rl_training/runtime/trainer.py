"""The one training loop: collect, learn when due, evaluate when due, log, checkpoint when due.

Everything that decides the future of a run is in ``_training_state`` and the replay, so a run that is stopped anywhere
between two steps and resumed in another process takes exactly the path it would have taken.
"""

from __future__ import annotations

import json
import shlex
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.base import Algorithm, Policy, init_generator
from rl_training.data.memory import available_memory, require_memory
from rl_training.envs.factory import EnvFactory
from rl_training.envs.pool import EnvPool
from rl_training.errors import CheckpointError, EnvironmentFault
from rl_training.experiment.checkpoint import read_checkpoint, read_manifest, write_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.metrics import MetricsLog
from rl_training.experiment.registry import get_algorithm
from rl_training.experiment.run import REPLAY_PART, TRAINING_PARTS, Run
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import Due, PhaseTimer, cpu_seconds, cpu_threads
from rl_training.runtime.compilation import Compilation
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.inference import acting_parts
from rl_training.runtime.learner import Learner
from rl_training.runtime.learners import make_learner
from rl_training.runtime.progress import Progress
from rl_training.runtime.setup import make_pool, usable_device
from rl_training.runtime.signals import StopRequest
from rl_training.types import PolicyOutput, State

RECENT_EPISODES = 100


@dataclass(frozen=True)
class TrainResult:
    """What a call of ``train`` did and where it is."""

    env_steps: int  # of the whole run
    steps_now: int  # of this call
    episodes: int
    updates: int
    metrics: dict[str, float]
    evaluation: EvaluationResult | None
    best_return: float | None
    run_dir: Path | None
    checkpoint: Path | None
    interrupted_by: int | None  # the number of the signal that stopped it
    seconds: dict[str, float] = field(default_factory=dict)


class Trainer:
    """One run, from its config to its last checkpoint. Without a ``run`` nothing is written."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        run: Run | None = None,
        factory: EnvFactory | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.config = config
        self.run = run
        self.progress = progress or Progress()
        self._factory = factory
        self.timer = PhaseTimer()
        self.streams = RandomStreams(config.seed)
        entry = get_algorithm(config.algo)
        self.pool = self._make_pool("env", config.num_envs, config.env_workers)
        entry.require_fit(self.pool.spec, config.env_id)
        self._free_at_first = available_memory()
        with cpu_threads(config.threads):
            algorithm_class: Any = entry.load()
            policy = algorithm_class.make_policy(config.algo_kwargs, self.pool.spec, init_generator(config.seed))
            policy.network.to(usable_device(config.device))
            self.algorithm: Algorithm = algorithm_class(policy, config.algo_kwargs, self.streams)
            self.learner: Learner = make_learner(self.algorithm, config.num_envs, self.streams, self.timer)
        self.compilation = Compilation(config, self.algorithm, self.learner, self.timer)
        self._carry = self.policy.initial_carry(config.num_envs)
        self._pending: PolicyOutput | None = None
        self._eval_pool: EnvPool | None = None
        self._log: MetricsLog | None = None
        self.env_steps = 0
        self.episodes = 0
        self.best_return: float | None = None
        self._recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._recent_lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._due = {
            "log": Due(config.log.interval),
            "eval": Due(config.eval.interval),
            "checkpoint": Due(config.checkpoint.interval),
        }
        self._checkpoints = 0
        self._started = False
        self._saved_at = -1
        self._metrics_bytes = 0
        self._earlier_seconds = self._earlier_cpu_seconds = 0.0
        self._cpu_start = cpu_seconds()

    @property
    def policy(self) -> Policy:
        return self.algorithm.policy

    def _make_pool(self, stream: str, num_envs: int, workers: str) -> EnvPool:
        return make_pool(self.config, self._factory, stream, num_envs, workers)

    def require_room_to_save(self) -> None:
        """Checkpoints of the replay are written from a copy of it, while training goes on: both must fit."""
        if self.learner.separate_replay and self.config.checkpoint.replay_every:
            require_memory(
                2 * self.learner.nbytes,
                "the replay with the copy of it that a checkpoint is written from",
                "lower algo_kwargs.buffer_size, or set checkpoint.replay_every: 0 and resume with an empty replay",
                self._free_at_first,
            )

    # ---------------------------------------------------------------------------------------------- the loop

    def train(self, total_timesteps: int | None = None) -> TrainResult:
        """Goes on until the run has seen this many env steps in all (default: the configured number)."""
        total = self.config.total_timesteps if total_timesteps is None else total_timesteps
        stop = StopRequest()
        evaluation = None
        self.timer.start()
        self._cpu_start, begun_at = cpu_seconds(), self.env_steps
        with cpu_threads(self.config.threads), stop, self.progress:
            self.progress.note(self.describe())
            self._open_log()
            try:
                if not self._started:
                    self.pool.reset()
                    self._started = True
                self.compilation.begin(self.config, self.progress, stop)
                self.progress.start(self, total)
                self._loop(total, stop)
                self._close_log()
                self._checkpoint(final=True)
                if not stop:
                    evaluation = self.evaluate(self.config.eval.final_episodes, stop)
            except EnvironmentFault as fault:
                self._save_after_fault(fault)
            finally:
                self._close_log()
            if self.run is not None:
                if evaluation is not None:
                    self.run.write_evaluation({"step": self.env_steps, **evaluation.to_json()})
                self.run.wait()
            self.timer.lap("rest")
        self._earlier_cpu_seconds += cpu_seconds() - self._cpu_start
        return TrainResult(
            env_steps=self.env_steps,
            steps_now=self.env_steps - begun_at,
            episodes=self.episodes,
            updates=self.learner.updates,
            metrics=self._train_metrics(),
            evaluation=evaluation,
            best_return=self.best_return,
            run_dir=None if self.run is None else self.run.path,
            checkpoint=None if self.run is None else self.run.checkpoints / "latest",
            interrupted_by=stop.signal_number,
            seconds=dict(self.timer.seconds),
        )

    def _loop(self, total: int, stop: StopRequest) -> None:
        try:
            while not stop:
                self._chores(stop)
                if self.env_steps >= total:
                    break
                self._advance()
        except EnvironmentFault:
            if not stop:  # a signal to the whole process group takes the environments' processes with it: no fault of theirs
                raise

    def _advance(self) -> None:
        """One step of every environment, and the learning that it makes due."""
        timer = self.timer
        timer.lap("rest")
        if self._pending is None:
            self._pending = self.policy.act(
                self.pool.obs,
                self._carry,
                rng=self.streams["explore"],
                env_steps=self.env_steps,
                action_mask=self.pool.action_mask,
            )
            timer.lap("acting")
        output = self._pending  # kept until the step has succeeded: a run saved after a fault repeats it
        step, finished = self.pool.step(output.action)
        self._pending = None
        timer.lap("environment")
        self._carry = self.policy.next_carry(output.carry, step)
        count = len(step.reward)
        self.env_steps += count
        for due in self._due.values():
            due.add(count)
        for episode in finished:
            self.episodes += 1
            self._recent_returns.append(episode.episode_return)
            self._recent_lengths.append(episode.length)
        self.learner.observe(step, output, self.env_steps)

    def _chores(self, stop: StopRequest) -> None:
        """What is due between two steps."""
        if self._due["log"].settle() and self._log is not None:
            self._log.write("train", self.env_steps, {**self._train_metrics(), **self._time_metrics()})
        if self._due["eval"].count():
            result = self.evaluate(self.config.eval.episodes, stop)
            if result is None:
                return  # stopped on the way: still due, and done again after the resume
            self._due["eval"].settle()
            self._note_evaluation(result)
        if self._due["checkpoint"].settle():
            self._checkpoints += 1
            self._checkpoint(final=False)
        self.progress.update(self)

    def evaluate(self, episodes: int, stop: StopRequest | None = None) -> EvaluationResult | None:
        """The deterministic policy on evaluation environments; training notices nothing of it."""
        if self._eval_pool is None:
            self._eval_pool = self._make_pool("eval", self.config.eval.num_envs, "inline")
        self.timer.lap("rest")
        with cpu_threads(self.config.threads):
            result = evaluate_policy(self.policy, self._eval_pool, episodes, lambda: bool(stop))
        self.timer.lap("evaluation")
        return result

    def _note_evaluation(self, result: EvaluationResult) -> None:
        self._saved_at = -1  # a checkpoint of this step, written before, does not know of it
        improved = self.best_return is None or result.mean_return > self.best_return
        if improved:
            self.best_return = result.mean_return
        if self._log is not None:
            self._log.write("eval", self.env_steps, {**result.summary(), **self._time_metrics()})
        self.progress.evaluated(self, result)
        if improved and self.run is not None:
            self.run.save(self.env_steps, self._acting_parts(), self._info(), best=True)

    # --------------------------------------------------------------------------------------------- reporting

    def _train_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {"episodes": self.episodes, "updates": self.learner.updates}
        if self._recent_returns:
            metrics["return_mean"] = float(np.mean(self._recent_returns))
            metrics["length_mean"] = float(np.mean(self._recent_lengths))
        return {**metrics, **self.algorithm.schedule_values(self.env_steps), **self.learner.metrics}

    def describe(self) -> str:
        """One line on what is about to run, with the memory that the replay takes."""
        config, megabytes = self.config, self.learner.nbytes / 1e6
        where = "nowhere" if self.run is None else self.run.path
        return (
            f"{config.algo} on {config.env_id}, seed {config.seed}, {config.num_envs} env(s), device {config.device}, replay "
            f"{megabytes:.1f} MB, writing to {where}"
        )

    def progress_values(self) -> dict[str, float]:
        """What a progress display shows."""
        metrics, shown = self._train_metrics(), ("return_mean", "loss", "critic_loss")
        return {name.removesuffix("_mean"): metrics[name] for name in shown if name in metrics}

    def _time_metrics(self) -> dict[str, float]:
        seconds = self._earlier_seconds + self.timer.total
        return {
            "time/seconds": round(seconds, 3),
            "time/cpu_seconds": round(self._earlier_cpu_seconds + cpu_seconds() - self._cpu_start, 3),
            "time/evaluation_seconds": round(self.timer.seconds["evaluation"], 3),
            "time/steps_per_second": round(self.env_steps / max(seconds, 1e-9), 1),
        }

    def _open_log(self) -> None:
        if self.run is not None and self._log is None:
            self._log = MetricsLog(
                self.run.path,
                tensorboard=self.config.log.tensorboard,
                keep_bytes=self._metrics_bytes,
                from_step=self.env_steps,
            )

    def _close_log(self) -> None:
        if self._log is not None:
            self._metrics_bytes = self._log.position()
            self._log.close()
            self._log = None

    # ------------------------------------------------------------------------------------------- checkpoints

    def _acting_parts(self) -> dict[str, State]:
        return acting_parts(self.policy, self.config)

    def _training_state(self) -> State:
        pending = self._pending
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes,
            "best_return": self.best_return,
            "recent_returns": list(self._recent_returns),
            "recent_lengths": list(self._recent_lengths),
            "owed": {name: due.owed for name, due in self._due.items()},
            "checkpoints": self._checkpoints,
            "streams": self.streams.state_dict(),
            "pool": self.pool.state_dict(),
            "carry": list(self._carry),
            "pending": None
            if pending is None
            else {"action": pending.action, "carry": list(pending.carry), "extras": dict(pending.extras)},
            "compiled": self.compilation.in_force,
            "learner": self.learner.state_dict(),
        }

    def _info(self) -> dict[str, Any]:
        """For the manifest: what differs from one repetition of a run to the next."""
        position = self._log.position() if self._log is not None else self._metrics_bytes
        return {"step": self.env_steps, "metrics_bytes": position, **self._time_metrics()}

    def _parts(self, *, replay: bool) -> dict[str, State]:
        parts = {**self._acting_parts(), "training": self._training_state()}
        if replay:
            parts[REPLAY_PART] = self.learner.replay_state() or {}
        return parts

    def _checkpoint(self, *, final: bool) -> None:
        if self.run is None or self._saved_at == self.env_steps:
            return
        self.run.wait()  # the states of the checkpoint before go before there are new ones
        every = self.config.checkpoint.replay_every
        replay = not self.learner.separate_replay or (every > 0 and (final or (self._checkpoints - 1) % every == 0))
        self.run.save(self.env_steps, self._parts(replay=replay), self._info())
        if replay or every == 0:
            self._saved_at = self.env_steps

    def _save_after_fault(self, fault: EnvironmentFault) -> None:
        """Keeps the run as it was before the failing step, and what reproduces the failure; then raises it."""
        if self.run is None:
            raise fault
        path = self.run.path / f"fault-step-{self.env_steps}.json"
        report = {
            "env_id": fault.env_id,
            "env_kwargs": self.config.env_kwargs,
            "problem": fault.problem,
            "episode_seed": fault.episode_seed,
            "actions": fault.actions,
        }
        try:
            path.write_text(json.dumps(report) + "\n", "utf-8")
            self._checkpoint(final=True)
            self.run.wait()
        except (CheckpointError, OSError) as error:
            raise CheckpointError(f"{fault}; and then: {error}") from fault
        fault.args = (
            f"{fault} The run is saved at step {self.env_steps}; {path} has the episode seed and the actions that "
            f"reproduce this. When the environment is mended: rl-training resume {shlex.quote(str(self.run.path))}",
        )
        raise fault

    def save(self, path: Path) -> None:
        """Writes a checkpoint with all that continuing needs, anywhere."""
        write_checkpoint(path, self._parts(replay=True), self._info())

    def restore(self, checkpoint: Path) -> None:
        """Puts the run back to the moment of a checkpoint."""
        manifest = read_manifest(checkpoint)
        with_replay = REPLAY_PART in manifest["parts"]
        parts = read_checkpoint(checkpoint, (*TRAINING_PARTS, REPLAY_PART) if with_replay else TRAINING_PARTS)
        try:
            self._load(parts, manifest["info"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint {checkpoint} does not fit its config: {error}") from error

    def _load(self, parts: Mapping[str, State], info: Mapping[str, Any]) -> None:
        state = parts["training"]
        self.policy.load_state_dict(parts["policy"])
        self.learner.load_state_dict(state["learner"])
        self.learner.load_replay_state(parts.get(REPLAY_PART), state["env_steps"])
        if REPLAY_PART in parts:
            self._saved_at = state["env_steps"]
        self.streams.load_state_dict(state["streams"])
        self.compilation.in_force = state["compiled"]
        self.env_steps, self.episodes = state["env_steps"], state["episodes"]
        self.best_return = state["best_return"]
        self._recent_returns.extend(state["recent_returns"])
        self._recent_lengths.extend(state["recent_lengths"])
        for name, due in self._due.items():
            due.owed = state["owed"][name]
        self._checkpoints = state["checkpoints"]
        self._carry = tuple(state["carry"])
        pending = state["pending"]
        if pending is not None:
            self._pending = PolicyOutput(pending["action"], tuple(pending["carry"]), pending["extras"])
        strayed = self.pool.load_state_dict(state["pool"])
        if strayed:
            self._pending = None
            ended = np.isin(np.arange(self.pool.num_envs), strayed)
            self._carry = self.policy.reset_carry(self._carry, ended)
            for index in strayed:
                self.learner.discard(index)
        self._metrics_bytes = info["metrics_bytes"]
        self._earlier_seconds, self._earlier_cpu_seconds = info["time/seconds"], info["time/cpu_seconds"]
        self._started = True

    def close(self) -> None:
        self._close_log()
        self.pool.close()
        if self._eval_pool is not None:
            self._eval_pool.close()
        if self.run is not None:
            self.run.close()
