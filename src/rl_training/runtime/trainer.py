"""The training loop of all algorithms: collects steps, and learns, evaluates, logs and writes checkpoints when due.

Everything that determines the future of a run is in the policy, the state of the training (``training_state.py``) and the
replay. A run that is stopped between any two steps and resumed in another process therefore takes exactly the path that it
would have taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.algorithms.base import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm, init_generator
from rl_training.algorithms.policy import Policy
from rl_training.data.memory import available_memory, require_memory
from rl_training.envs.boundary import Boundary
from rl_training.envs.factory import EnvFactory
from rl_training.envs.limit import EpisodeLimit
from rl_training.envs.pool import EnvPool
from rl_training.envs.vector_pool import VectorEnvPool
from rl_training.experiment.changes import Change
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm, require_fit
from rl_training.experiment.run import Initial, Run
from rl_training.limits import keep_freed_memory
from rl_training.rng import FINAL_EPISODES, SELECTION_EPISODES, RandomStreams
from rl_training.runtime.announcements import announce_absent_keys, announce_changes, announce_no_updates, announce_run
from rl_training.runtime.cadence import Due, PhaseTimer, cpu_threads
from rl_training.runtime.checkpointing import Checkpointer
from rl_training.runtime.collector import Collector
from rl_training.runtime.collector_factory import CollectorFactory
from rl_training.runtime.collector_group import CollectorGroup
from rl_training.runtime.compilation import Compilation
from rl_training.runtime.divergence import DivergenceWatch
from rl_training.runtime.episodes import EpisodeStatistics
from rl_training.runtime.evaluation import EvaluationResult, Extent, evaluate_policy
from rl_training.runtime.evaluation_budget import EvaluationBudget
from rl_training.runtime.faults import explained
from rl_training.runtime.hooks import Hooks, Training
from rl_training.runtime.learner import Learner, make_learner
from rl_training.runtime.progress import Progress
from rl_training.runtime.result import TrainResult as TrainResult
from rl_training.runtime.run_log import RunLog
from rl_training.runtime.setup import make_pool, require_room_to_learn, usable_device
from rl_training.runtime.signals import StopRequest
from rl_training.runtime.stop_at_return import StopAtReturn
from rl_training.runtime.stopping import TrainerStop
from rl_training.runtime.trackers import make_trackers, require_trackers
from rl_training.types import ObservationSpec


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
        """``recorded`` is the observation spec of a checkpoint, which takes precedence over the environment's."""
        keep_freed_memory()
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
        collecting = CollectorFactory(config, factory, recorded)
        pool = collecting.first_pool()
        require_fit(algorithm_class, pool.spec, config.env_id)
        self._free_at_first = available_memory()
        with cpu_threads(config.threads):
            policy = algorithm_class.make_policy(config.algo_kwargs, pool.spec, init_generator(config.seed))
            self.device = usable_device(config.device)
            policy.network.to(self.device)
            require_room_to_learn(policy)
            self.algorithm: Algorithm[Any, Any] = algorithm_class(policy, config.algo_kwargs, self.streams)
            if isinstance(self.algorithm, OffPolicyAlgorithm):
                self.algorithm.actor_priorities = config.collectors.actor_priorities
            self.learner: Learner = make_learner(self.algorithm, config.num_envs, self.timer)
        self.compilation = Compilation(config, self.algorithm, self.learner, self.timer, self._changing_shapes(pool))
        self.collector: Collector | CollectorGroup = collecting.make(pool, policy, self.timer)
        self._eval_pool: EnvPool | None = None
        self.creating = Boundary("creating the environments for evaluation")
        self.env_steps = 0
        self.changes: Mapping[str, Change] = {}  # changed settings since the checkpoint that the run continues from
        self.episodes = EpisodeStatistics.of(config)
        self.evaluations = EvaluationBudget(config.eval, pool.num_envs if isinstance(pool, VectorEnvPool) else 1)
        self.due = {
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
        """The environments of the first collector, if it is in this process."""
        return self.collector.pools()[0]

    def pools(self) -> list[EnvPool]:
        """All pools in this process, for training and for evaluation."""
        return [*self.collector.pools(), *([] if self._eval_pool is None else [self._eval_pool])]

    def _changing_shapes(self, pool: EnvPool) -> str | None:
        """Why an on-policy update cannot be compiled: with steps left out, its minibatches have different sizes."""
        if isinstance(pool, VectorEnvPool) and pool.skips_steps and isinstance(self.algorithm, OnPolicyAlgorithm):
            return "this vector environment spends steps on resets, so the number of steps in a rollout changes"
        return None

    def require_room_to_save(self) -> None:
        """Checks that memory holds the replay and the part of it that a checkpoint in the background copies."""
        if self.learner.separate_replay and self.config.checkpoint.replay_every:
            require_memory(
                self.learner.nbytes + self.learner.snapshot_nbytes,
                "the replay, with the copy of its newest part that checkpoints are written from,",
                "lower algo_kwargs.buffer_size, or set checkpoint.replay_every: 0 and resume with an empty replay",
                self._free_at_first,
            )

    def train(
        self,
        total_timesteps: int | None = None,
        *,
        evaluate: bool | None = None,
        owns_process: bool = False,
        callbacks: Sequence[object] = (),
    ) -> TrainResult:
        """Trains until the run has ``total_timesteps`` env steps (default: as configured), then evaluates; by default only
        as far as ``eval.budget`` allows. If the run ``owns_process``, a second signal ends the process."""
        total = self.config.total_timesteps if total_timesteps is None else total_timesteps
        stop = StopRequest(self._stopping, owns_process=owns_process)
        chores = (self.episodes, self.evaluations, self.log, self.progress, self.checkpoints)
        self.log.start_clock()
        begun_at = self.env_steps
        with cpu_threads(self.config.threads), stop, self.progress:
            announce_run(self)
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

    def _session(self, total: int, stop: StopRequest, evaluate: bool | None) -> EvaluationResult | None:
        evaluation = None
        with self._stopping.no_fault_during(stop):
            self.divergence.check()
            if not self.started:
                self.collector.start()
                self.started = True
            for env_index in self.collector.recover():
                self.learner.discard(env_index)
                self.checkpoints.outdated()
            with self._stopping.no_fault_during(stop):
                self.compilation.begin(self.config, self.progress, stop)
            self.hooks.emit("on_start", Training(self, total))
            announce_changes(self)
            self.timer.start()  # opening trackers is no training
            self.checkpoints.announce()
            with self._stopping.no_fault_during(stop):
                self._loop(total, stop)
            self.checkpoints.save_last()
            self.checkpoints.announce()
            if self.hooks.stopped_by is not None:
                self.progress.say(f"step {self.env_steps}: {self.hooks.stopped_by}")
            if not stop:
                announce_no_updates(self)
                announce_absent_keys(self)
                if evaluate is not False:
                    asked = evaluate is True
                    extent = self.evaluations.at_end(self.env_steps, self.config.num_envs, self.episodes, asked=asked)
                    evaluation = None if extent is None else self.evaluate(extent, stop)
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
            self._advance(stop)

    def _advance(self, stop: StopRequest) -> None:
        """One step of every environment, or a stretch of steps; then the updates that are due."""
        self.timer.lap("rest")
        count, finished = self.collector.advance(self.env_steps, self.learner, stop)
        self.env_steps += count
        for due in self.due.values():
            due.add(count)
        if self.learner.learn(self.env_steps, count):
            self.collector.refresh()
        if finished:
            self.hooks.emit("on_episode", *finished)

    def _chores(self, stop: StopRequest) -> None:
        """Logging, evaluation and checkpoints that are due between two steps."""
        if self.due["log"].settle():
            self.divergence.check()
            if self.run is not None or self.hooks.listens("on_update"):
                self.hooks.emit("on_update", {**self.train_metrics(), **self.log.time_metrics(self.env_steps)})
        if self.due["eval"].count():
            extent = self.evaluations.during(self.env_steps, self.config.num_envs, self.episodes)
            result = None if extent is None else self.evaluate(extent, stop, stream=SELECTION_EPISODES)
            if extent is not None and result is None:
                return  # stopped early: still due, so it is repeated after resuming
            self.due["eval"].settle()
            if result is not None:
                self.hooks.emit("on_evaluation", result)
        if self.due["checkpoint"].settle():
            self.checkpoints.save_due()
            self.checkpoints.announce()
        self.progress.update()

    def evaluate(
        self, extent: Extent, stop: StopRequest | None = None, *, stream: str = FINAL_EPISODES
    ) -> EvaluationResult | None:
        """Evaluates the deterministic policy on separate environments; training is not affected."""
        self.divergence.check()
        if self._eval_pool is None:
            self._eval_pool = self._make_eval_pool()
        limit = EpisodeLimit(extent.longest_episode or self.config.eval.max_episode_steps, self.config.env_id)
        self.timer.lap("rest")
        with cpu_threads(self.config.threads):
            result = evaluate_policy(
                self.collector.policy,
                self._eval_pool,
                extent.episodes,
                lambda: bool(stop),
                stream=stream,
                limit=limit,
                most_steps=extent.most_steps,
                watch=self.progress.evaluating,
            )
        self.timer.lap("evaluation")
        return result

    def _make_eval_pool(self) -> EnvPool:
        """Creates the pool under a boundary, because creating environments may hang, as their steps may."""
        try:
            self.creating.enter()
            envs = self.config.eval.num_envs
            return make_pool(self.config, self._factory, SELECTION_EPISODES, envs, recorded=self._recorded)
        finally:
            self.creating.leave()

    def train_metrics(self) -> dict[str, float]:
        scheduled = self.algorithm.schedule_values(self.env_steps)
        return {**self.episodes.metrics(), "updates": self.learner.updates, **scheduled, **self.learner.metrics}

    def close(self) -> None:
        self.log.close()
        self.collector.close()
        if self._eval_pool is not None:
            self._eval_pool.close()
        if self.run is not None:
            self.run.close()
