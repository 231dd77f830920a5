"""DeepMind Control (extra ``dmc``) through Shimmy: vectors, pictures, exact restoring. With no screen, set MUJOCO_GL=egl."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import EnvPool, SeededEnvPool
from rl_training.envs.wrappers import WrappedEnv

pytest.importorskip("shimmy")
pytest.importorskip("dm_control")

ENV_ID = "shimmy:dm_control/cartpole-swingup-v0"
FLAT = {"name": "flatten_observation"}
DRAWN = {"render_mode": "rgb_array", "render_kwargs": {"height": 84, "width": 84, "camera_id": 0}}


def pool_of(wrappers: tuple[dict[str, Any], ...], kwargs: dict[str, Any] | None = None) -> EnvPool:
    return SeededEnvPool(WrappedEnv(RegisteredEnv(ENV_ID, kwargs or {}), wrappers), seed=1)


def test_a_vector_task_is_cut_off_not_terminated() -> None:
    pool = pool_of(({"name": "action_repeat", "times": 8}, FLAT))
    assert (pool.spec.observation.shape, pool.spec.action.shape) == ((5,), (1,))
    pool.reset()
    for _ in range(1000 // 8 - 1):
        step, _ = pool.step(np.array([[0.5]], np.float32))
        assert not step.ended[0]
    step, finished = pool.step(np.array([[0.5]], np.float32))
    assert (bool(step.terminated[0]), bool(step.truncated[0]), finished[0].length) == (False, True, 125)


def test_an_episode_is_restored_exactly() -> None:
    original, restored = pool_of((FLAT,)), pool_of((FLAT,))
    original.reset()
    for k in range(20):
        original.step(np.array([[np.sin(k)]], np.float32))
    assert restored.load_state_dict(original.state_dict()) == []
    expected, got = (pool.step(np.array([[0.3]], np.float32))[0].next_obs for pool in (original, restored))
    np.testing.assert_array_equal(expected, got)


def test_pictures() -> None:
    pool = pool_of(({"name": "action_repeat", "times": 8}, {"name": "pixels", "gray": False}), DRAWN)
    pool.reset()
    assert pool.obs.shape == (1, 9, 84, 84)
    assert pool.obs.std() > 10
    step, _ = pool.step(np.array([[1.0]], np.float32))
    np.testing.assert_array_equal(step.next_obs[:, :6], step.obs[:, 3:])
    assert not np.array_equal(step.next_obs[:, 6:], step.obs[:, 6:])
