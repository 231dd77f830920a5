"""The recall task: solvable by who remembers, a coin toss for who does not."""

from __future__ import annotations

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from moments import PATIENCE

from rl_training.envs.factory import RegisteredEnv
from rl_training.envs.recall import RecallEnv
from rl_training.errors import ConfigError


@pytest.mark.parametrize("k", [1, 2, 20])
def test_the_cue_decides_the_answer_k_steps_later(k: int) -> None:
    env = RegisteredEnv("rl_training/Recall-v0", {"k": k})()
    cues = []
    for seed in range(40):
        obs, _ = env.reset(seed=seed)
        cue = int(obs[0] > 0)
        assert obs.tolist() == [2 * cue - 1, 0]
        cues.append(cue)
        for t in range(k):
            obs, reward, terminated, truncated, _ = env.step(t % 2)
            assert obs.tolist() == [0, t == k - 1]
            assert (reward, terminated, truncated) == (0.0, False, False)
        right = seed % 3 != 0
        _, reward, terminated, _, _ = env.step(cue if right else 1 - cue)
        assert (reward, terminated) == (float(right), True)
    assert 10 < sum(cues) < 30


def test_it_is_an_environment_of_gymnasiums() -> None:
    check_env(RecallEnv(3), skip_render_check=True)
    assert isinstance(gym.make("rl_training/Recall-v0", k=7).unwrapped, RecallEnv)
    first = [RecallEnv().reset(seed=seed)[0][0] for seed in range(20)]
    assert first == [RecallEnv().reset(seed=seed)[0][0] for seed in range(20)]
    assert np.unique(first).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    "code",
    ["gym.make('rl_training.envs:rl_training/Recall-v0', k=7)",
     "import rl_training.envs; gym.make('rl_training/Recall-v0', k=7)",
     "gym.make('rl_training.envs:rl_training/Recall-v0'); gym.make('rl_training.envs:rl_training/Recall-v0')"],
)  # fmt: skip
def test_it_is_there_for_code_that_is_not_ours_without_torch_and_without_a_warning(code: str) -> None:
    whole = f"import sys; import gymnasium as gym; {code}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-W", "error", "-c", whole], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("k", [0, 1.5, "3"])
def test_a_wrong_k_is_refused(k: object) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        RecallEnv(k)  # type: ignore[arg-type]
