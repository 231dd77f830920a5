"""Rollouts for tests: drawn at random, or acted by a policy on drawn observations."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.policy import Policy
from rl_training.data import Rollout, RolloutBuffer
from rl_training.types import ActionSpec, Array, ObservationSpec, SpaceSpec, Step

VECTOR = ObservationSpec.vector(4)
DISCRETE = SpaceSpec(VECTOR, ActionSpec("discrete", count=3))
GAUSSIAN = SpaceSpec(VECTOR, ActionSpec("continuous", low=(-2.0, -1.0), high=(2.0, 1.0), raw_shape=(2,)))
IMAGE = SpaceSpec(ObservationSpec.image(3, 36, 36), ActionSpec("discrete", count=3))


def observations(spec: SpaceSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    full = (*shape, *spec.observation.shape)
    if spec.observation.kind == "image":
        return rng.integers(0, 256, full, np.uint8)
    return rng.standard_normal(full, np.float32)


@torch.no_grad()
def strengthen(actor: nn.Module) -> None:
    """Undoes the small start of a policy, so that differences in the last bits of its network show in what it puts out."""
    *_, weight, _ = actor.parameters()
    weight.mul_(300.0)


def act_and_store(policy: Policy, steps: int, num_envs: int, seed: int = 0, end_chance: float = 0.2) -> Rollout:
    """A policy acts; episodes end at random, in both ways and sometimes in both at once."""
    rng, spec = np.random.default_rng(seed), policy.spec
    carry = policy.initial_carry(num_envs)
    buffer = RolloutBuffer(
        steps,
        num_envs,
        spec.observation.shape,
        spec.action.shape,
        obs_dtype=spec.observation.dtype,
        action_dtype=spec.action.dtype,
        carry=carry,
    )
    obs = observations(spec, (num_envs,), rng)
    for t in range(steps):
        output = policy.act(obs, carry, rng=rng)
        next_obs = observations(spec, (num_envs,), rng)
        terminated, truncated = rng.random((2, num_envs)) < end_chance
        reward = rng.standard_normal(num_envs, np.float32)
        step = Step(obs, output.action, reward, next_obs, terminated, truncated)
        carry = policy.reset_carry(output.carry, step.ended)
        buffer.add(step, output.carry, carry)
        obs = np.where(step.ended.reshape(-1, *[1] * (obs.ndim - 1)), observations(spec, (num_envs,), rng), next_obs)
        assert len(buffer) == t + 1
    return buffer.rollout()


def random_rollout(spec: SpaceSpec, steps: int = 12, num_envs: int = 3, seed: int = 0) -> Rollout:
    """A rollout of random actions."""
    rng = np.random.default_rng(seed)
    size = (steps, num_envs)
    action: Array = (
        rng.integers(0, spec.action.count, size)
        if spec.action.kind == "discrete"
        else rng.standard_normal((*size, *spec.action.shape), np.float32)
    )
    terminated, truncated = rng.random((2, *size)) < 0.2
    obs = observations(spec, size, rng)
    next_obs = observations(spec, size, rng)
    inside = ~(terminated | truncated)[:-1]
    next_obs[:-1][inside] = obs[1:][inside]  # within an episode the next observation is the one acted on next
    return Rollout(obs, action, rng.standard_normal(size, np.float32), next_obs, terminated, truncated, (), ())
