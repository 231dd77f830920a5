"""Managed algorithms: an agent that makes its environments, learns, evaluates, predicts, saves, resumes and exports.

agent = DQN("CartPole-v1", seed=1, learning_rate=1e-3)
agent.learn(total_timesteps=50_000)
action, state = agent.predict(obs)
"""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Self

from rl_training.algorithms.policy import Policy
from rl_training.algorithms.strict_model import old_names
from rl_training.api.environments import EnvLike, describe_env, evaluate_apart, factory_of, require_spaces
from rl_training.api.signatures import IMPLIED
from rl_training.envs.factory import EnvFactory
from rl_training.envs.limit import EpisodeLimit
from rl_training.errors import ConfigError, DivergenceError, did_you_mean
from rl_training.experiment.changes import with_settings
from rl_training.experiment.checkpoint import read_manifest
from rl_training.experiment.config import TrainConfig, load_config_data, rename_old, resolve_config
from rl_training.experiment.finding import run_of
from rl_training.experiment.layout import TRAINING_PARTS
from rl_training.experiment.registry import AlgorithmClass, get_algorithm
from rl_training.experiment.run import Run
from rl_training.experiment.trust import Trust
from rl_training.models.custom import NetworkFunction
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import cpu_threads
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.export import export_policy
from rl_training.runtime.hooks import require_hooks
from rl_training.runtime.inference import load_policy, predict, save_policy
from rl_training.runtime.initial import start_from, use_weights
from rl_training.runtime.progress import Progress, choose_progress
from rl_training.runtime.sessions import resume_training
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.runtime.video import Film, film_episode
from rl_training.types import Array, Carry


def warn_caller(message: str) -> None:
    """Warns of something at the line that called a method of an agent."""
    warnings.warn(message, stacklevel=3)


class ManagedAlgorithm:
    """The interface of all managed classes. Keyword arguments are the settings of ``TrainConfig`` and of the algorithm.

    With ``output_dir`` the agent keeps a run directory (log, checkpoints) that ``resume`` can continue; without it, it writes
    nothing until ``save`` is called.
    """

    _init_from: str | Path | None
    algo_name: ClassVar[str]
    algorithm_class: ClassVar[AlgorithmClass]

    def __init__(
        self, env: EnvLike, *, init_from: str | Path | None = None, overwrite: bool = False, **settings: Any
    ) -> None:
        values, factory = describe_env(env)
        self._set_up(resolve_config({"algo": self.algo_name, **values, **self._sort(settings)}), factory)
        self._evaluates, self._overwrite, self._init_from = "eval" in settings, overwrite, init_from

    def _set_up(self, config: TrainConfig, factory: EnvFactory | None) -> None:
        self.config = config
        self.result: TrainResult | None = None
        self._factory = factory
        self._trainer: Trainer | None = None
        self._policy: Policy | None = None
        self._checkpoint: Path | None = None
        self._closed = False
        self._evaluates = False  # at the end of ``learn``
        self._init_from, self._overwrite = None, False
        self._divergence: str | None = None  # why the policy cannot be used
        self._trust: Trust | None = None  # of a loaded agent, whose config is not the user's own
        self._predict_rng = RandomStreams(config.seed)["predict"]

    @classmethod
    def _sort(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Sorts settings into a config, under their current names: the run's at the top level, the algorithm's under
        ``algo_kwargs``."""
        config_class = cls.algorithm_class.config_class
        common = set(TrainConfig.model_fields) - IMPLIED
        own = set(config_class.model_fields)
        on_top = common | {old for old, new in old_names(TrainConfig).items() if new in common and old not in own}
        below = own | (set(old_names(config_class)) - common)
        for name in settings:
            if name not in on_top | below:
                raise ConfigError(f"{cls.__name__} has no setting '{name}'{did_you_mean(name, common | own)}")
        top = {name: value for name, value in settings.items() if name in on_top}
        algo_kwargs = {name: value for name, value in settings.items() if name in below}
        values = rename_old({"algo": cls.algo_name, **top, "algo_kwargs": algo_kwargs})
        del values["algo"]
        return values

    @classmethod
    def from_config(
        cls,
        name_or_path: str,
        env: EnvLike | None = None,
        *,
        init_from: str | Path | None = None,
        overwrite: bool = False,
        **settings: Any,
    ) -> Self:
        """An agent from a packaged config or a YAML file; ``settings`` override its values."""
        data = load_config_data(name_or_path)
        if "algo" not in data or get_algorithm(str(data["algo"])) is not cls.algorithm_class:
            raise ConfigError(f"the config {name_or_path} is for '{data.get('algo')}', not for {cls.algo_name}")
        sorted_settings = cls._sort(settings)
        algo_kwargs = {**(data.get("algo_kwargs") or {}), **sorted_settings.pop("algo_kwargs")}
        factory = None
        if env is not None:
            values, factory = describe_env(env)
            data.update(values)
        agent = cls.__new__(cls)
        agent._set_up(resolve_config({**data, **sorted_settings, "algo_kwargs": algo_kwargs}), factory)
        agent._evaluates = "eval" in data or "eval" in settings
        agent._init_from, agent._overwrite = init_from, overwrite
        return agent

    def learn(
        self,
        total_timesteps: int | None = None,
        *,
        progress: bool | None = None,
        evaluate: bool | None = None,
        callbacks: Iterable[object] = (),
    ) -> Self:
        """Trains until the agent has seen ``total_timesteps`` env steps in all, including earlier calls.

        ``progress`` shows how far it is; by default it does so on a terminal. ``evaluate`` evaluates the policy at the end
        (``result.evaluation``); by default only if the settings have ``eval``, or if it continues a run. ``callbacks`` are
        hooks, objects with some of the methods of ``Callback``; if one asked to stop, ``result.stopped_by`` names it.
        Ctrl-C finishes the step, saves if there is a run directory, and raises ``KeyboardInterrupt``.
        """
        if self._closed:
            raise ConfigError("the agent is closed and cannot learn; load or resume it again")
        hooks = require_hooks(callbacks)
        total = self.config.total_timesteps if total_timesteps is None else total_timesteps
        asked = self._config_for(total)
        started = self._trainer is not None and self._trainer.env_steps > 0
        if not started or total > self.config.total_timesteps:  # a started run can be stopped early, not shortened
            self.config = asked
        trainer = self._get_trainer()
        if trainer.env_steps >= total:
            warn_caller(
                f"the agent has already seen {trainer.env_steps} steps; total_timesteps includes these, so pass a "
                "larger number to train further"
            )
        if trainer.run is None and self.config.output_dir is not None:
            trainer.require_room_to_save()
            command = f"{type(self).__name__}.learn"
            trainer.run = Run.create(self.config, command, overwrite=self._overwrite, initial=trainer.initial)
        elif trainer.run is not None:
            trainer.run.change(self.config, trainer.env_steps, f"{type(self).__name__}.learn")
        trainer.config = self.config
        trainer.progress = choose_progress() if (sys.stderr.isatty() if progress is None else progress) else Progress()
        try:
            evaluate = self._evaluates if evaluate is None else evaluate
            self.result = trainer.train(total, evaluate=evaluate, callbacks=hooks)
        except DivergenceError as error:
            self._divergence = str(error)
            raise
        if self.result.interrupted_by == signal.SIGINT:
            raise KeyboardInterrupt
        if self.result.interrupted_by is not None:
            raise SystemExit(128 + self.result.interrupted_by)
        return self

    def _config_for(self, total: int) -> TrainConfig:
        """The config of a run that has this many steps in all. Fewer than learning needs are the first part of the configured
        run, whose total then stays."""
        try:
            return self.config.with_values(total_timesteps=total)
        except ConfigError:
            if not isinstance(total, int) or not 0 < total < self.config.total_timesteps:
                raise
            return self.config

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        max_episode_steps: int | None = None,
        render: bool = False,
        progress: bool = False,
    ) -> EvaluationResult:
        """Whole episodes of the policy, on environments and seeds that training never sees; each ``seed`` has its own.

        An episode is stopped after ``max_episode_steps`` (default: the setting ``eval.max_episode_steps``). If not
        ``deterministic``, the policy explores as it does in training. With ``render`` the episodes are shown on the screen.
        """
        shown = choose_progress() if progress else Progress()
        own_pool = self._trainer is None and self._policy is not None  # a loaded agent needs only its policy and config
        if own_pool or render or seed is not None or not deterministic:
            config = self.config if seed is None else self.config.with_values(seed=seed)
            rng = None if deterministic else RandomStreams(config.seed)["predict"]
            self._require_trusted_env()
            result = evaluate_apart(
                self.policy,
                config,
                self._factory,
                episodes,
                limit=EpisodeLimit(max_episode_steps or config.eval.max_episode_steps, config.env_id),
                rng=rng,
                render=render,
                env_steps=self._env_steps(),
                shown=shown,
            )
        else:
            result = self._get_trainer().evaluate(episodes, max_episode_steps=max_episode_steps)
        assert result is not None
        return result

    def _require_trusted_env(self) -> None:
        """Before an environment is made: its module may be one that only the checkpoint names."""
        if self._trust is None:
            return
        if self._factory is None and not self.config.env_from_python:
            self._trust.require_env(self.config.env_id)
        self._trust.require_wrappers(self.config.wrappers)

    def film(self, path: str | Path, *, seed: int | None = None) -> Film:
        """Writes a video (.gif or .mp4) of an evaluation's first episode; each ``seed`` has its own."""
        self._require_trusted_env()
        config = self.config if seed is None else self.config.with_values(seed=seed)
        with cpu_threads(self.config.threads):
            return film_episode(self.policy, config, self._factory, Path(path))

    def _env_steps(self) -> int:
        return self._trainer.env_steps if self._trainer is not None else self.config.total_timesteps

    def predict(
        self,
        obs: Any,
        state: Carry | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
        reward: Any = None,
    ) -> tuple[Array, Carry]:
        """The action for one observation, or one per row of a batch, and the state to pass to the next call.

        ``reward`` is the previous reward, for policies that take it as an input.
        """
        rng: np.random.Generator | None = None if deterministic else self._predict_rng
        return predict(
            self.policy,
            obs,
            state,
            episode_start,
            reward=reward,
            action_mask=action_mask,
            rng=rng,
            env_steps=self._env_steps(),
        )

    def save(self, path: str | Path, *, full: bool = False) -> None:
        """Writes a checkpoint: the policy, or with ``full`` everything needed to continue exactly, replay included."""
        if not full:
            save_policy(self.policy, self.config, Path(path))
        elif self._closed:
            raise ConfigError("the agent is closed, so only its policy can be saved; use full=False")
        else:
            self._get_trainer().checkpoints.save_to(Path(path))

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: EnvLike | None = None,
        *,
        trust_modules: bool = False,
        network: NetworkFunction | None = None,
        **settings: Any,
    ) -> Self:
        """An agent from a run directory or a checkpoint. If the checkpoint is a full one, ``learn`` continues from it.

        A module that only the checkpoint names is imported from installed packages and ``PYTHONPATH``; from elsewhere only
        with ``trust_modules``. ``network`` is needed if the agent's network is a function that cannot be imported.
        ``settings`` replace those of the checkpoint that may change on the way, such as ``learning_rate``.
        """
        config, policy, checkpoint = load_policy(Path(path), warn_caller, trust_modules=trust_modules, network=network)
        changed = cls._changed(config, settings, f"{path} holds a {config.algo} agent; load it", "load")
        agent = cls._of_policy(changed, policy, checkpoint, env, trust_modules)
        agent._evaluates = "eval" in settings
        return agent

    @classmethod
    def _changed(cls, config: TrainConfig, settings: Mapping[str, Any], advice: str, method: str) -> TrainConfig:
        """A saved config, which must be of this class, with settings that may change on the way."""
        right = get_algorithm(config.algo)
        if right is not cls.algorithm_class:
            raise ConfigError(f"{advice} with {right.public_name}.{method}")
        return with_settings(config, cls._sort(settings))

    @classmethod
    def _of_policy(
        cls, config: TrainConfig, policy: Policy, checkpoint: Path, env: EnvLike | None, trust_modules: bool
    ) -> Self:
        agent = cls.__new__(cls)
        agent._set_up(config.with_values(output_dir=None), None if env is None else factory_of(env))
        agent._policy, agent._checkpoint = policy, checkpoint
        agent._trust = Trust(run_of(checkpoint), trust_modules)
        return agent

    @classmethod
    def resume(
        cls,
        run_dir: str | Path,
        env: EnvLike | None = None,
        *,
        trust_modules: bool = False,
        network: NetworkFunction | None = None,
        **settings: Any,
    ) -> Self:
        """An agent at the last good checkpoint of a run directory; ``learn`` continues in that directory.

        ``trust_modules`` and ``network`` are those of ``load``. ``settings`` change the run from here on; that is recorded
        in its metadata and its log.
        """
        factory = None if env is None else factory_of(env)
        trainer = resume_training(
            Path(run_dir),
            change=lambda left: cls._changed(left, settings, f"{run_dir} is a run of {left.algo}; resume it", "resume"),
            command=f"{cls.__name__}.resume",
            factory=factory,
            warn=warn_caller,
            trust_modules=trust_modules,
            network=network,
        )
        agent = cls.__new__(cls)
        agent._set_up(trainer.config, factory)
        agent._trainer, agent._evaluates = trainer, True
        return agent

    def export(self, path: str | Path, file_format: str | None = None) -> Path:
        """Writes the policy as ONNX or safetensors (by the file's ending), and checks it against this one."""
        export_policy(self.policy, self.config, Path(path), file_format)
        return Path(path)

    @property
    def policy(self) -> Policy:
        """The policy with its network; a policy that has diverged cannot be used."""
        if self._divergence is not None:
            raise DivergenceError(self._divergence)
        if self._trainer is not None:
            return self._trainer.policy
        if self._policy is None:
            self._policy = self._get_trainer().policy
        return self._policy

    def _get_trainer(self) -> Trainer:
        if self._trainer is None:
            self._require_trusted_env()
            recorded = None if self._policy is None else self._policy.spec.observation
            trainer = Trainer(self.config, factory=self._factory, recorded=recorded)
            try:
                self._restore(trainer)
            except BaseException:
                trainer.close()
                raise
            self._trainer = trainer
        return self._trainer

    def _restore(self, trainer: Trainer) -> None:
        """Gives a new trainer what the agent was loaded with, or is to start from."""
        if self._checkpoint is not None and set(TRAINING_PARTS) <= set(read_manifest(self._checkpoint)["parts"]):
            trainer.checkpoints.restore(self._checkpoint)
        elif self._policy is not None:
            require_spaces(self._policy, trainer.pool.spec)
            use_weights(trainer, self._policy.state_dict())
        elif self._init_from is not None:
            start_from(trainer, Path(self._init_from), warn_caller)

    def close(self) -> None:
        """Closes the environments and releases the run directory; the agent can still predict and be evaluated."""
        if self._trainer is not None:
            trainer, self._trainer = self._trainer, None
            self._policy, self._checkpoint = trainer.policy, None
            self._closed = True
            trainer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
