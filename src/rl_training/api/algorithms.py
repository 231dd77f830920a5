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

from typing_extensions import Self

from rl_training.algorithms.policy import Policy
from rl_training.api.acting import ActingAgent
from rl_training.api.environments import EnvLike, describe_env, factory_of, require_spaces
from rl_training.api.signatures import sorted_settings
from rl_training.envs.factory import EnvFactory
from rl_training.errors import ConfigError, DivergenceError
from rl_training.experiment.changes import with_settings
from rl_training.experiment.checkpoint import read_manifest
from rl_training.experiment.config import TrainConfig, load_config_data, resolve_config
from rl_training.experiment.finding import run_of
from rl_training.experiment.layout import TRAINING_PARTS
from rl_training.experiment.registry import AlgorithmClass, get_algorithm
from rl_training.experiment.run import Run
from rl_training.experiment.trust import Trust
from rl_training.models.custom import NetworkFunction
from rl_training.runtime.hooks import require_hooks
from rl_training.runtime.inference import load_policy
from rl_training.runtime.initial import start_from, use_weights
from rl_training.runtime.progress import Progress, choose_progress
from rl_training.runtime.sessions import resume_training
from rl_training.runtime.trainer import Trainer, TrainResult


def warn_caller(message: str) -> None:
    """Warns of something at the line that called a method of an agent."""
    warnings.warn(message, stacklevel=3)


class ManagedAlgorithm(ActingAgent):
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
        given = sorted_settings(self.algorithm_class, settings)
        self._set_up(resolve_config({"algo": self.algo_name, **values, **given}), factory)
        self._evaluates, self._overwrite, self._init_from = "eval" in settings, overwrite, init_from

    def _set_up(self, config: TrainConfig, factory: EnvFactory | None) -> None:
        super().__init__(config, factory)
        self.result: TrainResult | None = None
        self._checkpoint: Path | None = None
        self._evaluates = False  # at the end of ``learn``
        self._init_from, self._overwrite = None, False

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
        given = sorted_settings(cls.algorithm_class, settings)
        algo_kwargs = {**(data.get("algo_kwargs") or {}), **given.pop("algo_kwargs")}
        factory = None
        if env is not None:
            values, factory = describe_env(env)
            data.update(values)
        agent = cls.__new__(cls)
        agent._set_up(resolve_config({**data, **given, "algo_kwargs": algo_kwargs}), factory)
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
        (``result.evaluation``); by default only if the settings have ``eval``, or if it continues a run, and ``eval.budget``
        is enough for an episode. ``callbacks`` are
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
            chosen = False if evaluate is None and not self._evaluates else evaluate
            self.result = trainer.train(total, evaluate=chosen, callbacks=hooks)
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
        return with_settings(config, sorted_settings(cls.algorithm_class, settings))

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
            require_spaces(self._policy, trainer.policy.spec)
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
