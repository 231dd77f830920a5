"""The training loop of all algorithms: collects steps, and learns, evaluates, logs and writes checkpoints when due.

Everything that determines the future of a run is in the policy, ``training_state`` and the replay. A run that is stopped
between any two steps and resumed in another process therefore takes exactly the path that it would have taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.algorithms.base import Algorithm, OnPolicyAlgorithm, init_generator
from rl_training.algorithms.policy import Policy
from rl_training.data.memory import available_memory, require_memory
from rl_training.data.segments import ReadBlock
from rl_training.envs.factory import EnvFactory
from rl_training.envs.limit import EpisodeLimit
from rl_training.envs.pool import EnvPool
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.errors import ConfigError
from rl_training.experiment.changes import Change
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layout import REPLAY_PART
from rl_training.experiment.registry import get_algorithm, require_fit
from rl_training.experiment.run import Initial, Run
from rl_training.models.observation import describe_action, describe_observation
from rl_training.rng import FINAL_EPISODES, SELECTION_EPISODES, TRAINING_EPISODES, RandomStreams
from rl_training.runtime.cadence import Due, PhaseTimer, cpu_threads
from rl_training.runtime.checkpointing import Checkpointer
from rl_training.runtime.collector import Collector
from rl_training.runtime.compilation import Compilation
from rl_training.runtime.divergence import DivergenceWatch
from rl_training.runtime.episodes import EpisodeStatistics
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.evaluation_budget import EvaluationBudget
from rl_training.runtime.faults import explained
from rl_training.runtime.hooks import Hooks, Training
from rl_training.runtime.learner import Learner, make_learner
from rl_training.runtime.progress import Progress
from rl_training.runtime.result import TrainResult as TrainResult
from rl_training.runtime.run_log import RunLog
from rl_training.runtime.setup import make_pool, usable_device
from rl_training.runtime.signals import StopRequest
from rl_training.runtime.stop_at_return import StopAtReturn
from rl_training.runtime.stopping import TrainerStop
from rl_training.runtime.trackers import make_trackers, require_trackers
from rl_training.types import ObservationSpec, State


class Trainer:
    """One run, from its config to its last checkpoint: schedule, evaluation, log and checkpoints. Without a ``run`` it writes
    nothing."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        run: Run | None = None,
        factory: EnvFactory | None = None,
        progress: Progress | None = None,
        recorded: ObservationSpec | None = None,
    ) -> None:
        """``recorded`` is what a checkpoint takes the observations for."""
        self.config = config
        self.run = run
        self.progress = progress or Progress()
        self._factory, self._recorded = factory, recorded
        self.timer = PhaseTimer()
        self.log = RunLog(self)
        self.hooks = Hooks()
        self.streams = RandomStreams(config.seed)
        algorithm_class = get_algorithm(config.algo)
        require_trackers(config)
        pool = self._make_pool(TRAINING_EPISODES, config.num_envs, config.env_workers)
        if pool.num_envs != config.num_envs:
            pool.close()
            raise ConfigError(
                f"num_envs is {config.num_envs}, but the vector environment {config.env_id} has {pool.num_envs} members; set "
                f"num_envs to {pool.num_envs}"
            )
        require_fit(algorithm_class, pool.spec, config.env_id)
        self._free_at_first = available_memory()
        with cpu_threads(config.threads):
            policy = algorithm_class.make_policy(config.algo_kwargs, pool.spec, init_generator(config.seed))
            self._device = usable_device(config.device)
            policy.network.to(self._device)
            self.algorithm: Algorithm[Any, Any] = algorithm_class(policy, config.algo_kwargs, self.streams)
            self.learner: Learner = make_learner(self.algorithm, config.num_envs, self.timer)
        self.collector = Collector(policy, pool, config.seed, self.timer)
        self.compilation = Compilation(config, self.algorithm, self.learner, self.timer, self._changing_shapes(pool))
        self._eval_pool: EnvPool | None = None
        self.env_steps = 0
        self.changes: Mapping[str, Change] = {}  # of settings, since the checkpoint that the run continues from
        self.episodes = EpisodeStatistics()
        self.evaluations = EvaluationBudget(config.eval)
        self._due = {
            "log": Due(config.log.interval),
            "eval": Due(config.eval.interval),
            "checkpoint": Due(config.checkpoint.interval),
        }
        self.checkpoints = Checkpointer(self)
        self.divergence = DivergenceWatch(self)
        self._stopping = TrainerStop(self)
        self.started = False
        self.initial: Initial | None = None  # weights of another run that this one starts from

    @property
    def policy(self) -> Policy:
        return self.algorithm.policy

    @property
    def pool(self) -> EnvPool:
        return self.collector.pool

    def pools(self) -> list[EnvPool]:
        return [self.pool] if self._eval_pool is None else [self.pool, self._eval_pool]

    def _make_pool(self, stream: str, num_envs: int, workers: str) -> EnvPool:
        return make_pool(self.config, self._factory, stream, num_envs, workers, recorded=self._recorded)

    def _changing_shapes(self, pool: EnvPool) -> str | None:
        """Why an on-policy update cannot be compiled: with steps left out, its minibatches have different sizes."""
        if isinstance(pool, VectorEnvPool) and pool.skips_steps and isinstance(self.algorithm, OnPolicyAlgorithm):
            return "this vector environment spends steps on resets, so the number of steps in a rollout changes"
        return None

    def require_room_to_save(self) -> None:
        """Checks that the replay fits into memory with what a checkpoint, written while training continues, copies of it."""
        if self.learner.separate_replay and self.config.checkpoint.replay_every:
            require_memory(
                self.learner.nbytes + self.learner.snapshot_nbytes,
                "the replay, with the copy of its newest part that checkpoints are written from,",
                "lower algo_kwargs.buffer_size, or set checkpoint.replay_every: 0 and resume with an empty replay",
                self._free_at_first,
            )

    # ---------------------------------------------------------------------------------------------- the loop

    def train(
        self,
        total_timesteps: int | None = None,
        *,
        evaluate: bool = True,
        owns_process: bool = False,
        callbacks: Sequence[object] = (),
    ) -> TrainResult:
        """Continues to this many env steps in all (default: as configured), then evaluates. A second signal ends a process
        that it owns."""
        total = self.config.total_timesteps if total_timesteps is None else total_timesteps
        stop = StopRequest(self._stopping, owns_process=owns_process)
        chores = (self.episodes, self.evaluations, self.log, self.progress, self.checkpoints)
        self.log.start_clock()
        begun_at = self.env_steps
        with cpu_threads(self.config.threads), stop, self.progress:
            self.progress.note(self.describe())
            self._note_spaces()
            try:
                trackers = make_trackers(self.config, self.run)
                self.hooks.attach(chores, [*trackers, *StopAtReturn.of(self.config), *callbacks])
                evaluation = self._session(total, stop, evaluate)
                self.log.stop_clock()
                result = TrainResult(
                    env_steps=self.env_steps,
                    steps_now=self.env_steps - begun_at,
                    episodes=self.episodes.count,
                    updates=self.learner.updates,
                    metrics=self.train_metrics(),
                    evaluation=evaluation,
                    best_return=self.checkpoints.best_return,
                    run_dir=None if self.run is None else self.run.path,
                    checkpoint=None if self.run is None else self.run.checkpoints / "latest",
                    interrupted_by=stop.signal_number,
                    stopped_by=self.hooks.stopped_by,
                    seconds=dict(self.timer.seconds),
                )
                self.hooks.emit("on_stop", result)
            except Exception as error:
                raised = explained(self, error)
                self.hooks.emit_fault(raised)
                if raised is error:
                    raise
                raise raised from error
            finally:
                self.log.close()
        return result

    def _session(self, total: int, stop: StopRequest, evaluate: bool) -> EvaluationResult | None:
        evaluation = None
        with self._stopping.no_fault_during(stop):
            self.divergence.check()
            if not self.started:
                self.collector.start()
                self.started = True
            for env_index in self.collector.recover():
                self.learner.discard(env_index)
                self.checkpoints.outdated()
            self.compilation.begin(self.config, self.progress, stop)
            self.hooks.emit("on_start", Training(self, total))
            self._note_changes()
            self.timer.start()  # opening trackers is no training
            self.checkpoints.announce()
            with self._stopping.no_fault_during(stop):
                self._loop(total, stop)
            self.checkpoints.save_last()
            self.checkpoints.announce()
            if self.hooks.stopped_by is not None:
                self.progress.say(f"step {self.env_steps}: {self.hooks.stopped_by}")
            if evaluate and not stop:
                episodes = self.evaluations.episodes_at_end(self.env_steps, self.config.num_envs, self.episodes)
                evaluation = self.evaluate(episodes, stop)
        if self.run is not None:
            if evaluation is not None:
                self.run.write_evaluation({"step": self.env_steps, **evaluation.to_json()})
            self.run.wait()
        return evaluation

    def _loop(self, total: int, stop: StopRequest) -> None:
        while not stop and self.hooks.stopped_by is None:
            self._chores(stop)
            if self.env_steps >= total or self.hooks.stopped_by is not None:
                break
            self._advance()

    def _advance(self) -> None:
        """One step of every environment, then the updates that are due."""
        self.timer.lap("rest")
        collected = self.collector.collect(self.env_steps)
        count = len(collected.step.envs)
        self.env_steps += count
        for due in self._due.values():
            due.add(count)
        if self.learner.observe(collected, self.env_steps):
            self.collector.refresh()
        if collected.finished:
            self.hooks.emit("on_episode", *collected.finished)

    def _chores(self, stop: StopRequest) -> None:
        """Logging, evaluation and checkpoints that are due between two steps."""
        if self._due["log"].settle():
            self.divergence.check()
            self.hooks.emit("on_update", {**self.train_metrics(), **self.log.time_metrics(self.env_steps)})
        if self._due["eval"].count():
            episodes = self.evaluations.episodes_during(self.env_steps, self.config.num_envs, self.episodes)
            result = self.evaluate(episodes, stop, stream=SELECTION_EPISODES) if episodes else None
            if episodes and result is None:
                return  # stopped early: still due, so it is repeated after resuming
            self._due["eval"].settle()
            if result is not None:
                self.hooks.emit("on_evaluation", result)
        if self._due["checkpoint"].settle():
            self.checkpoints.save_due()
            self.checkpoints.announce()
        self.progress.update()

    def evaluate(
        self,
        episodes: int,
        stop: StopRequest | None = None,
        *,
        stream: str = FINAL_EPISODES,
        max_episode_steps: int | None = None,
    ) -> EvaluationResult | None:
        """Evaluates the deterministic policy on separate environments; training is not affected."""
        self.divergence.check()
        if self._eval_pool is None:
            self._eval_pool = self._make_eval_pool()
        limit = EpisodeLimit(max_episode_steps or self.config.eval.max_episode_steps, self.config.env_id)
        self.timer.lap("rest")
        with cpu_threads(self.config.threads):
            result = evaluate_policy(
                self.collector.policy,
                self._eval_pool,
                episodes,
                lambda: bool(stop),
                stream=stream,
                limit=limit,
                watch=self.progress.evaluating,
            )
        self.timer.lap("evaluation")
        return result

    def _make_eval_pool(self) -> EnvPool:
        """Creating environments may hang as their steps may; there is no time limit for it."""
        boundary = self.pool.boundary
        try:
            boundary.enter(calls=math.inf)
            return self._make_pool(SELECTION_EPISODES, self.config.eval.num_envs, "inline")
        finally:
            boundary.leave()

    # --------------------------------------------------------------------------------------------- reporting

    def train_metrics(self) -> dict[str, float]:
        scheduled = self.algorithm.schedule_values(self.env_steps)
        return {**self.episodes.metrics(), "updates": self.learner.updates, **scheduled, **self.learner.metrics}

    def describe(self) -> str:
        """One line that describes the run, with the memory of the replay."""
        config, megabytes = self.config, self.learner.nbytes / 1e6
        where = "nowhere" if self.run is None else self.run.path
        return (
            f"{config.algo} on {config.env_id}, seed {config.seed}, {config.num_envs} env(s), device {self._device}, replay "
            f"{megabytes:.1f} MB, writing to {where}"
        )

    def _note_spaces(self) -> None:
        """Says what observations and actions were taken for."""
        spec = self.policy.spec
        self.progress.note(f"observation: {describe_observation(spec.observation, self.policy.network)}")
        action = describe_action(spec.action)
        if action is not None:
            self.progress.note(f"action: {action}")

    def _note_changes(self) -> None:
        """Logs the settings that a resumed run continues with, if they are others than before."""
        if self.changes:
            shown_values = ", ".join(f"{key} {change.before} -> {change.after}" for key, change in self.changes.items())
            self.progress.note(f"changed: {shown_values}")
            self.log.write_changes({key: change.after for key, change in self.changes.items()})
            self.changes = {}

    # ------------------------------------------------------------------------------------------- checkpoints

    def training_state(self) -> State:
        """Everything that decides the future of the run, besides the policy and the replay."""
        return {
            "env_steps": self.env_steps,
            "episodes": self.episodes.state_dict(),
            "evaluations": self.evaluations.state_dict(),
            "best_return": self.checkpoints.best_return,
            "owed": {name: due.owed for name, due in self._due.items()},
            "checkpoints": self.checkpoints.count,
            "streams": self.streams.state_dict(),
            "collector": self.collector.state_dict(),
            "compiled": self.compilation.in_force,
            "learner": self.learner.state_dict(),
            "hooks": self.hooks.state_dict(),
        }

    def load(self, parts: Mapping[str, State], read: ReadBlock) -> None:
        """Restores the parts of a checkpoint; ``read`` gives the blocks of its replay."""
        state = parts["training"]
        self.env_steps = state["env_steps"]
        self.policy.load_state_dict(parts["policy"])
        self.learner.load_state_dict(state["learner"])
        self.learner.load_replay(parts.get(REPLAY_PART), self.env_steps, read)
        self.streams.load_state_dict(state["streams"])
        self.compilation.in_force = state["compiled"]
        self.episodes.load_state_dict(state["episodes"])
        self.evaluations.load_state_dict(state["evaluations"])
        self.checkpoints.best_return = state["best_return"]
        for name, due in self._due.items():
            due.owed = state["owed"][name]
        self.checkpoints.count = state["checkpoints"]
        self.hooks.load_state_dict(state["hooks"])
        for env_index in self.collector.load_state_dict(state["collector"]):
            self.learner.discard(env_index)
        self.started = True

    def close(self) -> None:
        self.log.close()
        self.collector.close()
        if self._eval_pool is not None:
            self._eval_pool.close()
        if self.run is not None:
            self.run.close()
