"""A GRU in place of the LSTM, in every recurrent algorithm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ALGORITHMS, EXPORTED, config_fields, final_fingerprint, tiny_config

from rl_training.algorithms.base import init_generator
from rl_training.api import load_agent
from rl_training.models import GRUCore
from rl_training.runtime.sessions import resume_training, start_training

RECURRENT = [name for name in ALGORITHMS if "recurrent_cell" in config_fields(name)]


def test_a_step_by_hand() -> None:
    """One unit, all weights 0 but the biases: r = 1/2, z = sigmoid(log 3) = 3/4, n = tanh(b + r * c)."""
    core = GRUCore(1, 1, 1, init_generator(0))
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.zero_()
        biases = dict(core.gru.named_parameters())
        biases["bias_ih_l0"].copy_(torch.tensor([0.0, np.log(3.0), 0.3]))
        biases["bias_hh_l0"][2] = 0.4
    (after,) = core.step(torch.zeros(1, 1), torch.full((1, 1, 1), 2.0))
    assert after.item() == pytest.approx(0.25 * np.tanh(0.3 + 0.5 * 0.4) + 0.75 * 2.0)


@pytest.mark.parametrize("layers", [1, 2])
def test_stepping_on_torch_and_on_numpy_equals_unrolling(layers: int) -> None:
    core = GRUCore(3, 5, layers, init_generator(0))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4, 3), np.float32)
    state = rng.standard_normal((4, layers, 5), np.float32)
    with torch.no_grad():
        out, last = core(torch.from_numpy(x), torch.from_numpy(state))
        stepped, through_numpy, numpy_step = torch.from_numpy(state), state, core.numpy_step()
        for t in range(6):
            (stepped,) = core.step(torch.from_numpy(x[t]), stepped)
            (through_numpy,) = numpy_step(x[t], through_numpy)
            torch.testing.assert_close(stepped[:, -1], out[t])
            np.testing.assert_allclose(through_numpy[:, -1], out[t].numpy(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(stepped, last)


def test_there_are_recurrent_algorithms() -> None:
    assert {"drqn", "r2d2", "recurrent_ppo"} <= set(RECURRENT)


@pytest.mark.parametrize("exported", EXPORTED)
@pytest.mark.parametrize("algo", RECURRENT)
def test_a_run_resumes_exactly_predicts_and_is_exported(algo: str, exported: str, tmp_path: Path) -> None:
    settings = {"recurrent_cell": "gru"}
    for name, stop_at in (("whole", None), ("parted", 137)):
        config = tiny_config(algo, num_envs=2, algo_kwargs=settings, output_dir=str(tmp_path / name))
        trainer = start_training(config, command="test")
        trainer.train(stop_at)
        trainer.close()
    resumed = resume_training(tmp_path / "parted", warn=pytest.fail)
    resumed.train()
    resumed.close()
    assert final_fingerprint(tmp_path / "parted") == final_fingerprint(tmp_path / "whole")
    agent = load_agent(tmp_path / "whole")
    assert any(isinstance(module, GRUCore) for module in agent.policy.network.modules())
    action, state = agent.predict(np.zeros((2, 4)))
    again, _ = agent.predict(np.zeros((2, 4)), state, reward=1.0)
    assert len(action) == len(again) == 2
    agent.export(tmp_path / f"policy.{exported}")  # verified against the policy, over several steps
