"""The environments that can be passed from Python: names, objects and functions."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.algorithms.policy import Policy
from rl_training.envs.factory import AnyVectorEnv, EnvFactory, GivenEnv, RegisteredEnv, env_name
from rl_training.envs.known import package_of
from rl_training.envs.limit import EpisodeLimit
from rl_training.errors import ConfigError, SpaceError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.plain_data import require_plain
from rl_training.rng import FINAL_EPISODES
from rl_training.runtime.cadence import cpu_threads
from rl_training.runtime.evaluation import EvaluationResult, evaluate_policy
from rl_training.runtime.progress import Progress
from rl_training.runtime.setup import make_pool
from rl_training.runtime.video import filming, on_screen
from rl_training.types import SpaceSpec

EnvLike = str | gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any] | EnvFactory


def describe_env(env: EnvLike) -> tuple[dict[str, Any], EnvFactory | None]:
    """An environment as config values, and a factory if those cannot describe it."""
    if isinstance(env, str):
        return {"env_id": env}, None
    if isinstance(env, gym.vector.VectorEnv):
        members = _described_by_spec(env) if env is env.unwrapped else None
        named = {"env_id": env_name(env), "env_from_python": True} if members is None else {**members, "env_vector": True}
        return {**named, "num_envs": env.num_envs}, GivenEnv(env)
    if isinstance(env, gym.Env):
        known = _described_by_spec(env)
        return known or {"env_id": env_name(env), "env_from_python": True}, GivenEnv(env)
    if callable(env):
        return {"env_id": getattr(env, "__name__", type(env).__name__), "env_from_python": True}, env
    raise ConfigError(f"env must be a Gymnasium id, an environment or a function that creates one, not {env!r}")


def _described_by_spec(env: gym.Env[Any, Any] | AnyVectorEnv) -> dict[str, Any] | None:
    """The config values of an environment that ``gym.make`` made, or of the members of one that ``gym.make_vec`` made, if
    these are all that it takes to make it again."""
    spec = env.spec
    if spec is None or spec.id not in gym.registry or spec.additional_wrappers:
        return None
    registered = gym.registry[spec.id]
    if spec.max_episode_steps != registered.max_episode_steps or spec.entry_point != registered.entry_point:
        return None
    given = {key: value for key, value in spec.kwargs.items() if registered.kwargs.get(key, ...) != value}
    given.pop("render_mode", None)
    if isinstance(env, gym.vector.VectorEnv):
        if given.pop("max_episode_steps", spec.max_episode_steps) != spec.max_episode_steps or "wrappers" in given:
            return None
        for how in ("num_envs", "vectorization_mode", "vector_kwargs"):
            given.pop(how, None)
    try:
        require_plain(given, "env_kwargs")
    except ConfigError:
        return None
    module = spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else None
    if module is None or module == "__main__":
        return None
    here = not module.startswith(("gymnasium.", "rl_training.")) and package_of(spec.id) is None
    return {"env_id": f"{module}:{spec.id}" if here else spec.id, "env_kwargs": given}


def factory_of(env: EnvLike) -> EnvFactory:
    """The factory of the environment."""
    values, factory = describe_env(env)
    return factory or RegisteredEnv(values["env_id"])


def evaluate_apart(
    policy: Policy,
    config: TrainConfig,
    factory: EnvFactory | None,
    episodes: int,
    *,
    limit: EpisodeLimit,
    rng: np.random.Generator | None,
    render: bool,
    video: Path | None,
    env_steps: int,
    shown: Progress,
) -> EvaluationResult | None:
    """An evaluation on environments of its own."""
    with contextlib.ExitStack() as stack:
        made_by, num_envs, film = factory, min(config.eval.num_envs, episodes), None
        if render:
            made_by, num_envs = on_screen(config, factory), 1
        elif video is not None:
            film, made_by = stack.enter_context(filming(config, factory, video))
        pool = make_pool(config, made_by, FINAL_EPISODES, num_envs, recorded=policy.spec.observation)
        stack.enter_context(contextlib.closing(pool))
        require_spaces(policy, pool.spec)
        if film is not None:
            film.running = True
        with cpu_threads(config.threads), shown:
            result = evaluate_policy(
                policy, pool, episodes, limit=limit, rng=rng, env_steps=env_steps, watch=shown.evaluating
            )
    return result and replace(result, film=film)


def require_spaces(policy: Policy, spec: SpaceSpec) -> None:
    """Refuses an environment that the policy was not trained for."""
    if policy.spec != spec:
        raise SpaceError("the spaces of the environment differ from those that the policy was trained with")
