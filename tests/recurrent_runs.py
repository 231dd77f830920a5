"""What the smoke tests of DRQN and R2D2 share."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import yaml
from conftest import metrics_without_time, tiny_config
from replays import held_slots

from rl_training.algorithms.policy import ActInput
from rl_training.data import RecurrentReplayBuffer
from rl_training.experiment.checkpoint import verify_checkpoint
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.types import Carry, PolicyOutput


def check_run(result: TrainResult, algo: str) -> None:
    """A tiny run that learned, was evaluated and left a whole run directory."""
    run = result.run_dir
    assert run is not None
    assert result.checkpoint is not None
    assert (result.env_steps, result.interrupted_by) == (240, None)
    assert 0 < result.updates <= 240 - 20 + 1
    assert verify_checkpoint(result.checkpoint)["info"]["step"] == 240
    assert yaml.safe_load((run / "config.yaml").read_text())["algo"] == algo
    assert result.evaluation is not None
    assert json.loads((run / "evaluation.json").read_text())["returns"] == result.evaluation.returns
    records = metrics_without_time(run)
    assert [record["step"] for record in records if record["kind"] == "eval"] == [90, 180]
    assert {"loss", "q_value_mean", "target_mean", "td_error_mean", "return_mean", "epsilon"} <= set(records[-1])


def check_stored_states(algo: str, **algo_kwargs: Any) -> None:
    """The state beside every sequence is the one that acting had when it saw the sequence's first observation, and the
    inputs along it are those that acting had."""
    trainer = Trainer(tiny_config(algo, num_envs=3, algo_kwargs={"buffer_size": 400, **algo_kwargs}))
    seen: dict[bytes, Carry] = {}
    choose = trainer.policy.choose

    def noting(given: ActInput) -> PolicyOutput:
        for env in range(len(given.obs)):
            seen[given.obs[env].tobytes()] = tuple(array[env].copy() for array in given.carry)
        return choose(given)

    trainer.policy.choose = noting  # type: ignore[method-assign]
    trainer.train(230)
    assert isinstance(trainer.learner, OffPolicyLearner)
    buffer = trainer.learner.replay.buffer
    assert isinstance(buffer, RecurrentReplayBuffer)
    batch = buffer.gather(held_slots(buffer))
    later = 0
    for b in range(batch.mask.shape[1]):
        first = bool(batch.episode_start[0, b])
        begin = batch.burn_in if first else 0
        carry = seen[batch.obs[begin, b].numpy().tobytes()]
        for stored, state in zip(batch.state, carry, strict=False):
            np.testing.assert_array_equal(stored[b].numpy(), state)
            assert not (first and state.any())
        later += bool(carry[0].any())
        if batch.previous is not None:
            for t in range(begin, batch.burn_in + int(batch.mask[:, b].sum())):
                _, _, previous = seen[batch.obs[t, b].numpy().tobytes()]
                np.testing.assert_array_equal(batch.previous[t, b].numpy(), previous)
    assert later > 5
    trainer.close()
