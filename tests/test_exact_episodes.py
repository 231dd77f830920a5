"""An unfinished episode is restored exactly, or the difference is reported: replays, states that environments save
themselves, episodes too long to replay, faults, and evaluations with episodes of their own."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import exactness_envs
import numpy as np
import pytest
from conftest import ALGORITHMS, final_fingerprint, tiny_config
from exactness_envs import Remembering, StatefulEnv
from gymnasium.wrappers import TimeLimit

from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.pool import NonDeterministicEnvironment, SeededEnvPool
from rl_training.envs.restoring import EpisodeNotReplayed
from rl_training.errors import EnvironmentFault
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer
from rl_training.types import TransitionBatch

BOTH_KINDS = pytest.mark.parametrize("workers", ["inline", "subprocess"])
#: worker processes answer as an environment here does, which the others show; each takes a third of a second to start
MOSTLY_INLINE = pytest.mark.parametrize("workers", ["inline", pytest.param("subprocess", marks=pytest.mark.slow)])


def make_pool(
    env_id: str, *, num_envs: int = 1, workers: str = "inline", most: int | None = None, **kwargs: Any
) -> SeededEnvPool:
    factory = RegisteredEnv(f"exactness_envs:{env_id}", kwargs)
    return SeededEnvPool(factory, num_envs=num_envs, seed=5, env_id=env_id, workers=workers, max_replay_steps=most)


def after(pool: SeededEnvPool, steps: int) -> dict[str, Any]:
    """The state of a new pool after some steps."""
    pool.reset()
    for t in range(steps):
        pool.step(np.full(pool.num_envs, t % 2))
    return pool.state_dict()


# ------------------------------------------------------------------------------------------------------ replays

DRIFTS = {
    "observation": "another observation",
    "reward": "the reward 1.5 in place of 1.0",
    "action_mask": "another action_mask",
    "terminated": "terminated = true",
    "truncated": "truncated = true",
}


@pytest.mark.parametrize("about", DRIFTS)
@pytest.mark.parametrize("at", [1, 3, 7])
def test_whatever_a_replay_gives_otherwise_is_named_with_its_first_step(about: str, at: int, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    pools = [make_pool("Drifting-v0", num_envs=2, about=about, at=at, changed=str(changed)) for _ in range(2)]
    state = after(pools[0], 7)
    assert pools[1].load_state_dict(state) == []
    changed.touch()
    with pytest.warns(NonDeterministicEnvironment) as caught:
        assert pools[1].load_state_dict(state) == [0, 1]
    for i, warning in enumerate(caught):
        assert f"Drifting-v0 (index {i}) is not deterministic" in str(warning.message)
        assert f"step {at} of 7 gave {DRIFTS[about]}, so a new episode starts" in str(warning.message)
    changed.unlink()
    assert pools[1].state_dict()["episode"] == [1, 1]
    assert pools[0].load_state_dict(pools[1].state_dict()) == []


@MOSTLY_INLINE
@pytest.mark.parametrize(
    ("about", "at", "said"),
    [
        ("reward", 150, "step 150 of 300 gave the reward"),
        ("raise", 150, "step 150 of 300 failed: .*not today"),
        ("raise", 0, "its reset failed: .*not today"),
        ("observation", 0, "its reset gave another observation"),
    ],
)
def test_a_difference_in_a_long_episode_is_found(about: str, at: int, said: str, workers: str, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    values: dict[str, Any] = {"about": about, "at": at, "changed": str(changed), "length": 500, "workers": workers}
    pool, restored = (make_pool("Drifting-v0", **values) for _ in range(2))
    state = after(pool, 300)
    assert restored.load_state_dict(state) == []
    changed.touch()
    if (about, at) == ("raise", 0):  # the next episode cannot begin either
        with pytest.warns(NonDeterministicEnvironment, match=said), pytest.raises(EnvironmentFault, match="in reset"):
            restored.load_state_dict(state)
    else:
        with pytest.warns(NonDeterministicEnvironment, match=said):
            assert restored.load_state_dict(state) == [0]
    for each in (pool, restored):
        each.close()


def test_an_environment_may_overwrite_its_action() -> None:
    pool, restored = make_pool("ChangingAction-v0"), make_pool("ChangingAction-v0")
    pool.reset()
    actions = np.array([[0.25, -0.5]], np.float32)
    for _ in range(3):
        pool.step(actions)
    assert actions.tolist() == [[0.25, -0.5]]
    state = pool.state_dict()
    assert state["actions"][0].tolist() == [[0.25, -0.5]] * 3
    assert restored.load_state_dict(state) == []


@MOSTLY_INLINE
def test_an_episode_too_long_to_replay_is_given_up_and_takes_no_memory(workers: str) -> None:
    pool, restored = (make_pool("Drifting-v0", num_envs=2, workers=workers, most=100, length=1000) for _ in range(2))
    state = after(pool, 100)
    assert restored.load_state_dict(state) == []
    pool.step(np.zeros(2, np.int64))
    state = pool.state_dict()
    assert (state["lengths"], [len(actions) for actions in state["actions"]]) == ([101, 101], [0, 0])
    with pytest.warns(EpisodeNotReplayed, match=r"index 0\) is 101 steps into its episode, more than .*max_replay_steps"):
        assert restored.load_state_dict(state) == [0, 1]
    assert restored.state_dict()["lengths"] == [0, 0]
    unlimited = make_pool("Drifting-v0", num_envs=2, workers=workers, length=1000)
    with pytest.warns(EpisodeNotReplayed, match="more than checkpoint.max_replay_steps when it was saved"):
        assert unlimited.load_state_dict(state) == [0, 1]  # whatever the limit is now, there are no actions to replay
    for each in (pool, restored, unlimited):
        each.close()


def test_a_fault_after_more_steps_than_are_kept_says_so(tmp_path: Path) -> None:
    config = tiny_config(
        "dqn",
        env_id="exactness_envs:Drifting-v0",
        env_kwargs={"about": "raise", "at": 60, "changed": "/", "length": 1000},
        checkpoint={"interval": 70, "max_replay_steps": 20},
        output_dir=str(tmp_path / "run"),
    )
    trainer = start_training(config, command="test")
    with pytest.raises(EnvironmentFault, match=r"at step 60 of its episode.*its actions are not kept"):
        trainer.train()
    trainer.close()
    assert json.loads((tmp_path / "run" / "fault-step-59.json").read_text())["actions"] is None


# -------------------------------------------------------------------------- states that environments save themselves


@BOTH_KINDS
def test_an_environment_that_saves_its_state_is_not_replayed(workers: str) -> None:
    pool, restored, replayed = (make_pool("Stateful-v0", num_envs=2, workers=workers) for _ in range(3))
    state = after(pool, 23)
    played = StatefulEnv.played
    assert restored.load_state_dict(state) == []
    assert StatefulEnv.played == played
    assert replayed.load_state_dict({**state, "env_states": [None, None]}) == []
    assert (StatefulEnv.played == played + 2 * 23) == (workers == "inline")
    for t in range(30):  # across the time limit, and into the next episode
        expected = pool.step(np.array([t % 3, 1]))
        for other in (restored, replayed):
            found = other.step(np.array([t % 3, 1]))
            for a, b in zip(found[0], expected[0], strict=True):
                np.testing.assert_array_equal(a, b)
            assert found[1] == expected[1]
    states = [each.state_dict() for each in (pool, restored, replayed)]
    assert repr(states[0]) == repr(states[1]) == repr(states[2])
    for each in (pool, restored, replayed):
        each.close()


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (
            "forgets",
            r"after set_state, get_state does not return what was saved\['state'\]\['position'\]; its episode is replayed",
        ),
        ("set_state raises", "set_state failed .*no state today.*; its episode is replayed instead"),
    ],
)
def test_a_state_that_is_not_restored_is_noticed_and_replaced_by_a_replay(lie: str, said: str) -> None:
    pool, restored = make_pool("Stateful-v0", lie=lie), make_pool("Stateful-v0", lie=lie)
    with pytest.warns(NonDeterministicEnvironment, match=said):
        assert restored.load_state_dict(after(pool, 12)) == []
    found, expected = restored.step(np.array([1]))[0], pool.step(np.array([1]))[0]
    assert found.reward == expected.reward


@pytest.mark.parametrize(
    ("lie", "said"), [("get_state raises", "no state today"), ("an object", r"\['position'\] is <object")]
)
def test_a_state_that_cannot_be_saved_is_said_and_the_episode_replayed(lie: str, said: str) -> None:
    pool, restored = make_pool("Stateful-v0", lie=lie), make_pool("Stateful-v0", lie=lie)
    with pytest.warns(UserWarning, match=f"its own state cannot be saved .*{said}"):
        state = after(pool, 12)
    assert state["env_states"] == [None]
    assert restored.load_state_dict(state) == []


def play(pool: SeededEnvPool, steps: int) -> dict[str, Any]:
    """The state of a pool after some more steps."""
    for t in range(steps):
        pool.step(np.full(pool.num_envs, t % 2))
    return pool.state_dict()


@MOSTLY_INLINE
def test_a_state_that_leaves_something_out_is_found_by_what_the_episode_gave(workers: str) -> None:
    pool, restored = (make_pool("Stateful-v0", lie="leaves out", num_envs=2, workers=workers) for _ in range(2))
    assert None not in after(pool, 5)["env_states"]
    said = r"is incomplete: a copy that was restored at step 5 of its episode did not .*\(step 1 of 7 gave the reward"
    with pytest.warns(NonDeterministicEnvironment, match=said) as warned:
        play(pool, 7)
    assert len(warned) == 1
    state = play(pool, 3)
    assert (state["env_states"], state["env_states_complete"]) == ([None, None], False)
    assert restored.load_state_dict(state) == []  # by a replay
    found, expected = restored.step(np.array([1, 0]))[0], pool.step(np.array([1, 0]))[0]
    np.testing.assert_array_equal(found.reward, expected.reward)
    assert play(restored, 2)["env_states"] == [None, None]
    for each in (pool, restored):
        each.close()


def test_after_a_fault_no_environment_is_a_step_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first environment has made the step in which the second one failed, and its own state is one of after the step."""
    pool, restored = (make_pool("Stateful-v0", num_envs=2) for _ in range(2))
    before = after(pool, 6)

    def fail(action: Any) -> None:
        raise ValueError("not today")

    with monkeypatch.context() as patch, pytest.raises(EnvironmentFault, match="not today"):
        patch.setattr(pool._workers.workers[1], "step", fail)
        pool.step(np.array([1, 1]))
    state = pool.state_dict()
    assert state["env_states"] == [None, None]
    assert restored.load_state_dict(state) == []
    twin = make_pool("Stateful-v0", num_envs=2)
    twin.load_state_dict(before)
    for each in (pool, restored):
        np.testing.assert_array_equal(each.step(np.array([1, 0]))[0].reward, twin.step(np.array([1, 0]))[0].reward)
        twin.load_state_dict(before)


def test_a_state_is_found_to_be_complete_once_in_a_run() -> None:
    pool, restored = (make_pool("Stateful-v0", num_envs=2) for _ in range(2))
    first = after(pool, 5)
    assert first["env_states_complete"] is None
    assert restored.load_state_dict(first) == []
    for each in (pool, restored):  # also against the state that a run was resumed from
        assert play(each, 2)["env_states_complete"] is True
        played = StatefulEnv.played
        assert play(each, 2)["env_states_complete"] is True
        assert StatefulEnv.played == played + 2 * 2
    again = make_pool("Stateful-v0", num_envs=2)
    again.load_state_dict(pool.state_dict())
    assert again.state_dict()["env_states_complete"] is True


def test_another_environment_that_cannot_be_made_says_nothing_of_states() -> None:
    made: list[StatefulEnv] = []

    def make() -> StatefulEnv:
        if made:
            raise OSError("there is only one robot")
        made.append(StatefulEnv())
        return made[0]

    pool = SeededEnvPool(make)
    after(pool, 5)
    assert play(pool, 5)["env_states_complete"] is None
    assert pool.state_dict()["env_states"] != [None]


@pytest.mark.parametrize("make", [lambda: Remembering(StatefulEnv()), exactness_envs.TwoArgumentsEnv])
def test_an_environment_whose_state_would_be_incomplete_is_replayed(make: Any) -> None:
    pool, restored = SeededEnvPool(make), SeededEnvPool(make)
    state = after(pool, 5)
    assert state["env_states"] == [None]
    assert restored.load_state_dict(state) == []
    assert restored.step(np.array([1]))[0].reward == pool.step(np.array([1]))[0].reward


def test_a_wrapper_around_a_time_limit_counts_too() -> None:
    pool, restored = (SeededEnvPool(lambda: TimeLimit(StatefulEnv(), 9)) for _ in range(2))
    assert restored.load_state_dict(after(pool, 5)) == []
    ends = [bool(restored.step(np.array([1]))[0].truncated[0]) for _ in range(4)]
    assert ends == [False, False, False, True]


@BOTH_KINDS
def test_a_run_resumes_bit_for_bit_from_states_of_the_environments(workers: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "env_id": "exactness_envs:Stateful-v0",
        "num_envs": 2,
        "env_workers": workers,
        "total_timesteps": 120,
        "checkpoint": {"interval": 70, "max_replay_steps": 3},  # too few for any replay
    }
    for name, stop_at in (("whole", None), ("parted", 50)):
        trainer = start_training(tiny_config("dqn", **values, output_dir=str(tmp_path / name)), command="test")
        trainer.train(stop_at)
        trainer.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = resume_training(tmp_path / "parted", warn=pytest.fail)
    trainer.train()
    trainer.close()
    assert final_fingerprint(tmp_path / "parted") == final_fingerprint(tmp_path / "whole")


# -------------------------------------------------------------------------------------------------- after a fault


@pytest.mark.parametrize("algo", [name for name in ALGORITHMS if "discrete" in get_algorithm(name).actions])
def test_after_a_fault_a_new_episode_is_not_joined_to_the_old_one(algo: str, tmp_path: Path) -> None:
    """In the same process, and as when a run is resumed: nothing learned may begin in one episode and end in another."""
    broken = tmp_path / "broken"
    broken.touch()
    n_step = {"n_step": 3} if "n_step" in get_algorithm(algo).config_class.model_fields else {}
    config = tiny_config(
        algo,
        env_id="exactness_envs:ForgetfulFaulty-v0",
        env_kwargs={"broken": str(broken)},
        num_envs=2,
        eval={"interval": 0, "final_episodes": 1, "num_envs": 1},
        total_timesteps=60,
        algo_kwargs=n_step,
    )
    trainer = Trainer(config)
    with pytest.raises(EnvironmentFault):
        trainer.train()
    assert trainer.env_steps == 12
    broken.unlink()
    seen: list[Any] = []
    add = trainer.learner.add

    def watched(collected: Any) -> None:
        seen.append(collected.step.obs[:, 1].tolist())
        add(collected)

    trainer.learner.add = watched  # type: ignore[method-assign]
    with pytest.warns(NonDeterministicEnvironment, match="ForgetfulFaulty-v0"):
        trainer.train()
    trainer.close()
    assert seen[0] == [0.0, 0.0]  # acted on the first observations of new episodes
    learner = trainer.learner
    if isinstance(learner, OffPolicyLearner) and isinstance(learner.replay.example(), TransitionBatch):
        steps = [step for _ in range(50) for step in _steps_of_transitions(trainer)]
        assert {1, 2, 3} >= set(steps) > {1}, "a transition joins two episodes"


def _steps_of_transitions(trainer: Trainer) -> list[int]:
    """The steps between the two observations of sampled transitions."""
    assert isinstance(trainer.learner, OffPolicyLearner)
    batch = trainer.learner.replay.sample(0)
    return [round(10 * step) for step in (batch.next_obs[:, 1] - batch.obs[:, 1]).tolist()]
