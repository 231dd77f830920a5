"""The collector: acting with weights of its own changes nothing, and a step that failed is repeated, not forgotten."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import tiny_config

from rl_training.errors import EnvironmentFault
from rl_training.runtime.collector import Collector, acting_copy
from rl_training.runtime.trainer import Trainer


def collector_of(trainer: Trainer) -> Collector:
    assert isinstance(trainer.collector, Collector)
    return trainer.collector


def test_acting_with_a_copy_of_the_weights_is_the_same_run(algo: str) -> None:
    """As it is when the learner's weights are on another device."""
    shared, copied = (Trainer(tiny_config(algo, num_envs=2)) for _ in range(2))
    collector_of(copied).policy = acting_copy(copied.policy)
    for trainer in (shared, copied):
        trainer.train(150)
        trainer.close()
    assert shared.learner.updates == copied.learner.updates > 0
    for name, value in shared.policy.state_dict().items():
        assert torch.equal(value, copied.policy.state_dict()[name]), name


def test_without_a_refresh_the_copy_keeps_its_old_weights() -> None:
    trainer = Trainer(tiny_config("dqn"))
    collector_of(trainer).policy = copy = acting_copy(trainer.policy)
    trainer.collector.refresh = lambda: None  # type: ignore[method-assign]
    before = copy.state_dict()
    trainer.train(60)
    trainer.close()
    assert all(torch.equal(value, before[name]) for name, value in copy.state_dict().items())
    assert any(not torch.equal(value, before[name]) for name, value in trainer.policy.state_dict().items())


def test_what_is_collected_is_what_the_environments_gave() -> None:
    trainer = Trainer(tiny_config("recurrent_ppo", num_envs=3))
    collector = collector_of(trainer)
    collector.start()
    for t in range(60):
        obs = collector.pool.obs
        collected = collector.collect(3 * t)
        np.testing.assert_array_equal(collected.step.obs, obs)
        ended = collected.step.ended
        going = ~ended
        np.testing.assert_array_equal(collector.pool.obs[going], collected.step.next_obs[going])
        for after, following in zip(collected.carry, collected.next_carry, strict=True):
            np.testing.assert_array_equal(after[going], following[going])
            assert not following[ended].any()
        assert {episode.env_index for episode in collected.finished} == set(np.flatnonzero(ended))
    trainer.close()


def test_a_step_that_failed_is_repeated_with_the_same_action() -> None:
    trainer = Trainer(tiny_config("dqn"))
    collector = collector_of(trainer)
    collector.start()
    step, actions = collector.pool.step, []

    def failing(taken: np.ndarray, active: object = None) -> object:
        actions.append(taken.copy())
        if len(actions) == 1:
            raise EnvironmentFault("it failed", env_id="x", env_index=0, episode_seed=0, actions=[], step=1)
        return step(taken)

    collector.pool.step = failing  # type: ignore[assignment,method-assign]
    with pytest.raises(EnvironmentFault):
        collector.collect(0)
    assert collector.state_dict()["pending"] is not None
    collector.collect(0)
    assert np.array_equal(actions[0], actions[1])
    assert collector.state_dict()["pending"] is None
    trainer.close()


@pytest.mark.parametrize("algo", ["recurrent_ppo", "r2d2"])
def test_an_episode_that_is_not_restored_begins_without_memory_and_without_an_action(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other environments keep their memory."""
    trainer = Trainer(tiny_config(algo, num_envs=2, env_id="rl_training_test_envs:RandomWalk-v0"))
    collector = collector_of(trainer)
    collector.start()
    collector.collect(0)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(collector.pool, "step", lambda action: 1 // 0)
        collector.collect(2)
    saved = collector.state_dict()
    assert saved["pending"] is not None
    assert all(carry[1].any() for carry in saved["carry"])
    monkeypatch.setattr(collector.pool, "load_state_dict", lambda state: [1])
    assert collector.load_state_dict(saved) == [1]
    restored = collector.state_dict()
    assert restored["pending"] is None
    for before, after in zip(saved["carry"], restored["carry"], strict=True):
        np.testing.assert_array_equal(after[0], before[0])
        assert not after[1].any()
    trainer.close()
