"""What an agent does with its policy, whether it is learning or was loaded: predict, evaluate, film, save and export."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.policy import Policy
from rl_training.api.environments import evaluate_apart
from rl_training.envs.factory import EnvFactory
from rl_training.envs.limit import EpisodeLimit
from rl_training.errors import ConfigError, DivergenceError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.trust import Trust
from rl_training.rng import RandomStreams
from rl_training.runtime.cadence import cpu_threads
from rl_training.runtime.evaluation import EvaluationResult, Extent
from rl_training.runtime.export import export_policy
from rl_training.runtime.inference import predict, save_policy
from rl_training.runtime.progress import Progress, choose_progress
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.video import Film, film_episode
from rl_training.types import Array, Carry


class ActingAgent(ABC):
    """An agent that has a policy, or a trainer that has one."""

    def __init__(self, config: TrainConfig, factory: EnvFactory | None) -> None:
        self.config = config
        self._factory = factory
        self._trainer: Trainer | None = None
        self._policy: Policy | None = None
        self._closed = False
        self._divergence: str | None = None  # why the policy cannot be used
        self._trust: Trust | None = None  # set for a loaded agent, whose config is not the user's own
        self._predict_rng = RandomStreams(config.seed)["predict"]

    @abstractmethod
    def _get_trainer(self) -> Trainer:
        """The trainer, which is made when it is first needed."""

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

    def evaluate(
        self,
        episodes: int = 20,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        max_episode_steps: int | None = None,
        render: bool = False,
        video: str | Path | None = None,
        progress: bool = False,
    ) -> EvaluationResult:
        """Whole episodes of the policy, on environments and seeds that training never sees; each ``seed`` has its own.

        An episode is stopped after ``max_episode_steps`` (default: the setting ``eval.max_episode_steps``). If not
        ``deterministic``, the policy explores as it does in training. With ``render`` the episodes are shown on the screen.
        ``video`` (.gif or .mp4) gets a film of the first one; if it cannot be written, the ``failure`` of the result's
        ``film`` says why.
        """
        shown = choose_progress() if progress else Progress()
        own_pool = self._trainer is None and self._policy is not None  # a loaded agent needs only its policy and config
        film = self.film(video, seed=seed) if render and video is not None else None  # an environment draws in one way
        if own_pool or render or video is not None or seed is not None or not deterministic:
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
                video=None if video is None else Path(video),
                env_steps=self._env_steps(),
                shown=shown,
            )
        else:
            result = self._get_trainer().evaluate(Extent(episodes, max_episode_steps))
        assert result is not None
        return result if film is None else replace(result, film=film)

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

    def export(self, path: str | Path, file_format: str | None = None) -> Path:
        """Writes the policy as ONNX or safetensors (by the file's ending), and checks it against this one."""
        export_policy(self.policy, self.config, Path(path), file_format)
        return Path(path)
