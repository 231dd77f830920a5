"""Stable-Baselines3 and sb3-contrib on our tasks, trained and evaluated by our protocol."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rl_training.bench.jobs import Job
from rl_training.bench.references import Peer
from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.wrappers import WrappedEnv
from rl_training.errors import MissingExtraError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.metrics import METRICS_FILE
from rl_training.rng import FINAL_EPISODES, SELECTION_EPISODES, derive_seed
from rl_training.runtime.cadence import cpu_seconds


def require_peers() -> None:
    """Raises if either package is missing; called before anything is trained."""
    for module, package in (("stable_baselines3", "stable-baselines3"), ("sb3_contrib", "sb3-contrib")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(package, "peers")


def load_algorithm(peer: Peer) -> Any:
    """The peer's algorithm class; importing it takes a second or two."""
    module, _, name = peer.algorithm.partition(":")
    return getattr(importlib.import_module(module), name)


class _OurEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """One environment of an evaluation, which starts the episodes that ours plays there, whatever seed it is given. Two
    policies are then compared on the same tasks, and two seeds are not evaluated on the same ones."""

    def __init__(self, factory: Callable[[], Any], seed: int, index: int) -> None:
        super().__init__(factory())
        self._seed, self._index = seed, index
        self.rewind(FINAL_EPISODES)

    def rewind(self, stream: str) -> None:
        """The next episode is the first of this stream."""
        self._stream, self._number = stream, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        number, self._number = self._number, self._number + 1
        return super().reset(seed=derive_seed(self._seed, self._stream, self._index, number), options=options)


class PeerAgent:
    """A peer's model on the environments of our config."""

    def __init__(self, peer: Peer, config: TrainConfig, seed: int) -> None:
        from stable_baselines3.common.vec_env import VecNormalize

        torch.set_num_threads(1)
        settings = _arguments(peer.settings)
        factory = WrappedEnv(RegisteredEnv(config.env_id, config.env_kwargs), config.wrappers)
        env = _vector_env([factory] * peer.num_envs)
        # The peers' environment i of n plays (episodes + i) // n episodes, so the last has the most; of ours, the first has.
        count = config.eval.num_envs
        self._eval_env = _vector_env([partial(_OurEpisodes, factory, seed, count - 1 - i) for i in range(count)])
        if peer.normalize:
            env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
            self._eval_env = VecNormalize(self._eval_env, training=False, norm_reward=False)
            self._eval_env.obs_rms = env.obs_rms  # shared, not copied, so that it is always up to date
        network = _arguments(peer.policy_kwargs)
        self.model: Any = load_algorithm(peer)(env=env, policy_kwargs=network, seed=seed, device="cpu", **settings)
        # The model has seeded environment i with seed + i, which neighbouring seeds would share with each other.
        env.seed(derive_seed(seed, "peer"))

    def evaluate(self, episodes: int, stream: str = FINAL_EPISODES, *, further: bool = False) -> list[float]:
        """The returns of the deterministic policy in the first episodes of a stream, which are those that ours plays; with
        ``further``, in later ones, which nobody else plays."""
        from stable_baselines3.common.evaluation import evaluate_policy

        if not further:
            self._eval_env.env_method("rewind", stream)
        returns, _ = evaluate_policy(
            self.model, self._eval_env, episodes, deterministic=True, return_episode_rewards=True, warn=False
        )
        return [float(value) for value in returns]

    def learn(self, total: int, every: int, keep_going: Callable[[int], bool]) -> int:
        """Trains, asking ``keep_going`` every ``every`` env steps whether to continue. Returns the env steps taken."""
        due = every if every > 0 else total + 1

        def on_step(*_: Any) -> bool:
            nonlocal due
            if self.model.num_timesteps < due:
                return True
            due += every
            return keep_going(self.model.num_timesteps)

        self.model.learn(total, callback=on_step, log_interval=total)
        return int(self.model.num_timesteps)


def _vector_env(factories: Sequence[Callable[[], Any]]) -> Any:
    """Our environments in the peer's vector environment."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    return VecMonitor(DummyVecEnv(list(factories)))


def _arguments(published: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the library's own form: the file gives schedules and activation functions by name."""
    arguments = dict(published)
    for key, value in published.items():
        if isinstance(value, str) and value.startswith("lin_"):
            arguments[key] = _falling(float(value.removeprefix("lin_")))
        elif isinstance(value, str) and value.startswith("nn."):
            arguments[key] = getattr(nn, value.removeprefix("nn."))
    return arguments


def _falling(first: float) -> Callable[[float], float]:
    """A schedule that falls linearly to 0, as a function of the share of training that is left."""
    return lambda share_left: share_left * first


def train_peer(job: Job) -> None:
    """Trains one seed on the same budget as ours, and writes the log and final evaluation in the form of our runs."""
    assert job.peer is not None
    config = job.load_config()
    job.write_description()
    job.note_beginning()
    agent = PeerAgent(job.peer, config, job.seed)
    began = cpu_seconds()
    with (job.path / METRICS_FILE).open("w", encoding="utf-8") as log:

        def keep_going(step: int) -> bool:
            mean = float(np.mean(agent.evaluate(config.eval.episodes, SELECTION_EPISODES)))
            seconds = round(cpu_seconds() - began, 3)
            log.write(json.dumps({"kind": "eval", "step": step, "return_mean": mean, "time/cpu_seconds": seconds}) + "\n")
            log.flush()
            return True

        steps = agent.learn(config.total_timesteps, config.eval.interval, keep_going)
        seconds = round(cpu_seconds() - began, 3)
        log.write(json.dumps({"kind": "train", "step": steps, "time/cpu_seconds": seconds}) + "\n")
    returns = agent.evaluate(config.eval.final_episodes)
    job.write_result({"step": steps, "return_mean": float(np.mean(returns)), "returns": returns, "same_episodes": True})
