"""Recurrent PPO: sequences that never cross an episode, padding without effect, and memory that learns."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from rollouts import DISCRETE, GAUSSIAN, IMAGE, act_and_store, strengthen
from torch import Tensor

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.on_policy import flat, gae
from rl_training.algorithms.ppo import ppo_loss
from rl_training.algorithms.recurrent_ppo import RecurrentPhase, RecurrentPPO, RecurrentPPOConfig
from rl_training.data import Rollout, Sequences
from rl_training.rng import RandomStreams
from rl_training.types import Array, SpaceSpec


def make_ppo(spec: SpaceSpec = DISCRETE, **settings: Any) -> RecurrentPPO:
    small = {"hidden_sizes": (8,), "lstm_size": 6, "n_minibatches": 2, "n_epochs": 2}
    config = RecurrentPPOConfig.model_validate({**small, **settings})
    return RecurrentPPO(RecurrentPPO.make_policy(config, spec, init_generator(0)), config, RandomStreams(3))


def test_the_forget_bias_reaches_the_memory_of_the_actor_and_of_the_critic() -> None:
    plain, lasting = make_ppo().policy.network, make_ppo(forget_bias=3.0).policy.network
    assert len(lasting.cores) == 2
    for before, after in zip(plain.cores, lasting.cores, strict=True):
        forget = slice(6, 12)  # of the input, forget, cell and output gates, six units each
        expected = before.state_dict()
        assert not expected["lstm.bias_ih_l0"].any()
        expected["lstm.bias_ih_l0"][forget] = 3.0
        torch.testing.assert_close(dict(after.state_dict()), dict(expected), rtol=0, atol=0)


# -------------------------------------------------------------------------------------------------- sequences


def starts(*rows: str) -> Array:
    """Environments as rows of steps; ``x`` starts an episode."""
    marks: Array = np.array([[mark == "x" for mark in row] for row in rows]).T
    return marks


def test_sequences_are_cut_where_an_episode_starts() -> None:
    sequences = Sequences.of(starts("...x...x", "........", ".x......"))
    found = list(zip(*(array.tolist() for array in sequences), strict=True))
    assert found == [(0, 0, 3), (0, 3, 4), (0, 7, 1), (1, 0, 8), (2, 0, 1), (2, 1, 7)]


def test_sequences_are_cut_to_a_length() -> None:
    sequences = Sequences.of(starts("...x....", "........"), longest=3)
    found = list(zip(*(array.tolist() for array in sequences), strict=True))
    assert found == [(0, 0, 3), (0, 3, 3), (0, 6, 2), (1, 0, 3), (1, 3, 3), (1, 6, 2)]


@pytest.mark.parametrize("count", [1, 2, 4, 50])
def test_dealing_gives_every_step_once_and_parts_of_about_the_same_size(count: int) -> None:
    rng = np.random.default_rng(0)
    start = rng.random((64, 8)) < 0.1
    sequences = Sequences.of(start)
    parts = sequences.split(count, rng)
    assert 1 <= len(parts) <= count
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(sequences.length)))
    sizes = [int(sequences.length[part].sum()) for part in parts]
    assert max(sizes) <= start.size / count + sequences.length.max()
    steps = []
    for part in parts:
        padded, real = sequences.pad(part, 8)
        steps += padded.reshape(-1)[real].tolist()
    assert sorted(steps) == list(range(start.size))


def test_padding_follows_the_end_of_a_sequence() -> None:
    sequences = Sequences.of(starts("..x..", "....."))
    padded, real = sequences.pad(np.array([2, 0]), num_envs=2)
    assert padded.T.tolist() == [[1, 3, 5, 7, 9], [0, 2, 0, 0, 0]]
    assert real.tolist() == [0, 1, 2, 3, 4, 6, 8]


# ------------------------------------------------------------------------------------------------------ phase


@pytest.mark.parametrize("minibatches", [2, 50])  # 50: single sequences, which torch computes in another way than many
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("spec", [DISCRETE, GAUSSIAN, IMAGE], ids=["discrete", "continuous", "image"])
@pytest.mark.parametrize("longest", [None, 3])
def test_the_ratio_is_exactly_1_before_the_first_step(
    spec: SpaceSpec, layers: int, longest: int | None, minibatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"lstm_size": 32, "lstm_layers": layers, "n_minibatches": minibatches, "n_epochs": 1}
    algorithm = make_ppo(spec, **sizes, sequence_length=longest, shared_lstm=layers == 2)
    strengthen(algorithm.policy.network.actor)
    rollout = act_and_store(algorithm.policy, steps=11, num_envs=4)
    assert rollout.start.any()  # resets inside the rollout
    seen: list[Tensor] = []
    original = ppo_loss

    def noting(log_prob: Tensor, old_log_prob: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append((log_prob - old_log_prob).exp().detach())
        return original(log_prob, old_log_prob, *args, **kwargs)

    monkeypatch.setattr("rl_training.algorithms.ppo.ppo_loss", noting)
    algorithm.update(rollout)
    assert (seen[0] == 1.0).all()
    assert (torch.cat(seen[1:]) != 1.0).any()


def evaluate_all(phase: RecurrentPhase) -> tuple[Tensor, Tensor]:
    log_prob, value = torch.zeros(len(phase.action)), torch.zeros(len(phase.action))
    with torch.no_grad():
        for minibatch in phase.minibatches(3, np.random.default_rng(0)):
            evaluated = phase.evaluate(phase.inputs(minibatch))
            log_prob[minibatch.steps], value[minibatch.steps] = evaluated.log_prob, evaluated.value
    return log_prob, value


def by_stepping(algorithm: RecurrentPPO, rollout: Rollout) -> tuple[Array, Array]:
    """Log-probabilities and values of an environment after another, a step at a time, resetting where an episode starts."""
    network: Any = algorithm.policy.network
    log_prob, value = np.zeros_like(rollout.reward), np.zeros_like(rollout.reward)
    for i in range(rollout.reward.shape[1]):
        state = [torch.from_numpy(array[0, i : i + 1]) for array in rollout.carry]
        for t in range(len(rollout.reward)):
            keep = 1.0 - float(rollout.start[t, i])
            state = [array * keep for array in state]
            obs = torch.from_numpy(rollout.obs[t, i : i + 1])
            value[t, i] = network.value(obs, state)
            output, actor_state = network.action_step(obs, *state[:2])
            critic_state = network.cores[-1].step(obs, *state[-2:])
            state = [*actor_state, *critic_state][: len(state)]
            action = torch.from_numpy(rollout.action[t, i : i + 1])
            log_prob[t, i] = network.head.log_prob_and_entropy(output, action)[0]
    return log_prob, value


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("longest", [None, 4])
def test_training_sees_the_memory_that_acting_had(longest: int | None, shared: bool) -> None:
    algorithm = make_ppo(lstm_layers=2, sequence_length=longest, shared_lstm=shared)
    with torch.no_grad():
        for parameter in algorithm.policy.network.parameters():
            parameter.mul_(2.0)
        rollout = act_and_store(algorithm.policy, steps=15, num_envs=3)
        expected = by_stepping(algorithm, rollout)
    found = evaluate_all(algorithm.begin_phase(rollout))
    for first, second in zip(found, expected, strict=True):
        np.testing.assert_allclose(first.numpy().reshape(second.shape), second, rtol=1e-4, atol=1e-5)


def test_a_rollout_continues_from_the_memory_of_the_previous_one() -> None:
    policy = make_ppo().policy
    carry = tuple(np.ones_like(array) for array in policy.initial_carry(2))
    ended = np.array([True, False])
    fresh = policy.reset_carry(carry, ended)
    for array in fresh:
        assert not array[0].any()
        assert (array[1] == 1.0).all()
    assert all((array == 1.0).all() for array in carry)  # the original is left alone


def test_padding_changes_nothing_by_a_bit() -> None:
    algorithm = make_ppo(lstm_layers=2, entropy_coef=0.01)
    rollout = act_and_store(algorithm.policy, steps=13, num_envs=3)
    results = []
    for altered in (False, True):
        twin = copy.deepcopy(algorithm)
        phase = twin.phase = twin.begin_phase(rollout)
        (minibatch,) = phase.minibatches(1, np.random.default_rng(0))
        padding = torch.ones(minibatch.padded.numel(), dtype=torch.bool)
        padding[minibatch.real] = False
        assert padding.any()
        if altered:  # padded places hold something else, and much larger
            phase.prepared = torch.cat([phase.prepared, torch.full_like(phase.prepared[:1], 1e3)])
            minibatch.padded.view(-1)[padding] = len(phase.prepared) - 1
        phase.recorded = torch.linspace(-1, 1, 4 * len(phase.action)).view(-1, 4)
        output = twin.minibatch_loss(phase.inputs(minibatch), {"clip_range": 0.2})
        twin.optimizer.step(output.loss.mean(), 1e-3)
        assert len(output.loss) == 13 * 3  # one number per real step, so every mean is over real steps
        results.append([output.loss, *output.metrics.values(), twin.optimizer.gradient, twin.optimizer.parameters])
    for plain, other in zip(*results, strict=True):
        assert torch.equal(plain, other)


def test_truncation_bootstraps_with_the_memory_after_the_step() -> None:
    """Against a plain loop that steps the network onto the final observation."""
    algorithm = make_ppo(lstm_layers=2, gamma=0.9, gae_lambda=0.8)
    network: Any = algorithm.policy.network
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2.0)
    rollout = act_and_store(algorithm.policy, steps=12, num_envs=4)
    assert (rollout.truncated & ~rollout.terminated).any()
    assert (rollout.truncated & rollout.terminated).any()
    with torch.no_grad():
        _, value = by_stepping(algorithm, rollout)
        advantage, target = algorithm.targets(algorithm.begin_phase(rollout), value)
        next_value, trace = np.zeros_like(value), np.zeros_like(value)
        for i in range(4):
            state = [torch.from_numpy(array[0, i : i + 1]) for array in rollout.carry]
            for t in range(12):
                state = [array * (1.0 - float(rollout.start[t, i])) for array in state]
                obs = torch.from_numpy(rollout.obs[t, i : i + 1])
                state = [*network.cores[0].step(obs, *state[:2]), *network.cores[1].step(obs, *state[2:])]
                next_value[t, i] = network.value(torch.from_numpy(rollout.next_obs[t, i : i + 1]), state)
                trace[t, i] = 0.0 if rollout.ended[t, i] else 0.72
    expected = gae(rollout.reward, value, next_value, 0.9 * ~rollout.terminated, trace)
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(target, expected + value, rtol=1e-4, atol=1e-5)


def test_fewer_sequences_than_minibatches_are_no_problem() -> None:
    algorithm = make_ppo(n_minibatches=4, n_epochs=3)
    rollout = act_and_store(algorithm.policy, steps=6, num_envs=1, end_chance=0.0)
    algorithm.update(rollout)
    assert algorithm.updates == 3


def test_acting_follows_every_update() -> None:
    algorithm = make_ppo(learning_rate=0.1, normalize_observations=True)
    rollout = act_and_store(algorithm.policy, steps=12, num_envs=3)
    algorithm.update(rollout)
    obs, carry = flat(rollout.obs)[:5], algorithm.policy.initial_carry(5)
    with torch.no_grad():
        output, _ = algorithm.policy.network.action_step(torch.from_numpy(obs), *map(torch.from_numpy, carry[:2]))
    assert output.argmax(1).tolist() == algorithm.policy.act(obs, carry).action.tolist()
