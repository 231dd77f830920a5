"""The average of the weights: what it is, who acts with it, and that training does not notice it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import family, tiny_config
from torch import nn

from rl_training import load_agent
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.algorithms.policy import Policy
from rl_training.algorithms.update import AveragedNetwork
from rl_training.algorithms.value import QLearning
from rl_training.runtime.collector import Collector, acting_copy
from rl_training.runtime.divergence import weights_problem
from rl_training.runtime.sessions import start_training
from rl_training.runtime.trainer import Trainer

FAMILY = family(QLearning)


def averaging(algo: str, updates: int = 5, **values: Any) -> Trainer:
    options = {"learning_rate": 0.05, "normalize_observations": True, **values.pop("algo_kwargs", {})}
    return Trainer(tiny_config(algo, algo_kwargs={**options, "average_updates": updates}, **values))


def trained(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainer.policy.network.parameters()])


def average(trainer: Trainer) -> torch.Tensor:
    assert trainer.policy.average is not None
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainer.policy.average.parameters()])


def test_it_is_the_mean_so_far_and_then_an_exponential_moving_average() -> None:
    module, copy = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizer = FlatAdam(module, max_norm=None)
    averaged = AveragedNetwork(copy, optimizer, updates=4)
    found = []
    for number, weight in enumerate((8.0, 4.0, 0.0, 4.0, 8.0, 0.0), start=1):
        optimizer.parameters.fill_(weight)
        averaged.follow(averaged.vector, averaged.source, averaged.share(number))
        found.append(copy.weight.item())
    # Means of one to four weights: 8, 6, 4, 4. Then 4 + (8 - 4) / 4 = 5, and 5 + (0 - 5) / 4 = 3.75.
    assert found == pytest.approx([8.0, 6.0, 4.0, 4.0, 5.0, 3.75])


@pytest.mark.parametrize("name", FAMILY)
def test_training_does_not_notice_it_and_it_is_what_a_plain_loop_computes(name: str) -> None:
    plain, averaged = averaging(name, 0), averaging(name)
    assert plain.policy.average is None
    expected: np.ndarray[Any, Any] | None = None
    updates = 0
    for steps in range(20, 120, 4):  # an update every four steps
        for trainer in (plain, averaged):
            trainer.train(steps, evaluate=False)
        assert torch.equal(trained(plain), trained(averaged))
        assert averaged.learner.updates <= updates + 1
        if averaged.learner.updates > updates:
            updates += 1
            weights = trained(averaged).double().numpy()
            expected = weights if expected is None else expected + max(1 / 5, 1 / updates) * (weights - expected)
    assert expected is not None
    assert updates > 10
    np.testing.assert_allclose(average(averaged), expected, rtol=1e-4, atol=1e-5)
    assert (average(averaged) - trained(averaged)).abs().max() > 1e-3
    for trainer in (plain, averaged):
        trainer.close()


@pytest.mark.parametrize("name", FAMILY)
def test_it_acts_except_to_collect_experience(name: str) -> None:
    trainer, plain = averaging(name), averaging(name, 0)
    policy, other = trainer.policy, plain.policy
    assert policy.average is not None
    obs = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)

    def actions(policy: Policy, *, explore: bool, learning: bool = False) -> list[int]:
        rng = np.random.default_rng(1) if explore else None
        action = policy.act(obs, policy.initial_carry(64), rng=rng, env_steps=10**6, learning=learning).action
        return [int(one) for one in action]

    collecting, greedy = actions(policy, explore=True, learning=True), actions(policy, explore=False)
    with torch.no_grad():
        for parameter in policy.average.parameters():
            parameter.neg_()
    other.load_state_dict(policy.state_dict())
    assert actions(policy, explore=True, learning=True) == collecting
    assert actions(policy, explore=False) == actions(other, explore=False) != greedy
    assert actions(policy, explore=True) == actions(other, explore=True) != collecting
    values = []
    for module in (policy.export_module(), other.export_module()):
        with torch.no_grad():
            reward = [torch.zeros(64)] if module.takes_reward else []
            values.append(module(torch.from_numpy(obs), *reward, *module.initial_state(64))[1])
    assert torch.equal(*values)
    for each in (trainer, plain):
        each.close()


def test_what_was_evaluated_is_what_is_saved_loaded_and_exported(tmp_path: Path) -> None:
    settings = {"average_updates": 30, "learning_rate": 0.05}
    run = tmp_path / "run"
    trainer = start_training(tiny_config("r2d2", algo_kwargs=settings, output_dir=str(run)), command="test")
    result = trainer.train()
    assert result.evaluation is not None
    assert not torch.equal(average(trainer), trained(trainer))
    trainer.close()
    agent = load_agent(run)
    assert agent.evaluate(episodes=2).returns == result.evaluation.returns
    module = trainer.policy.export_module()
    obs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    state = module.initial_state(16)
    ours, _ = agent.predict(obs.numpy())
    assert np.array_equal(module(obs, *state)[0].numpy(), ours)


def test_what_is_saved_has_the_noise_that_the_weights_act_with() -> None:
    trainer = averaging("dqn", algo_kwargs={"noisy": True})
    trainer.train(150, evaluate=False)
    saved, buffers = trainer.policy.state_dict(), dict(trainer.policy.network.named_buffers())
    assert any("noise" in name for name in buffers)
    assert all(torch.equal(saved[name], buffer) for name, buffer in buffers.items())
    trainer.close()


def test_a_run_that_starts_from_it_learns_from_the_averaged_weights(tmp_path: Path) -> None:
    settings = {"average_updates": 30, "learning_rate": 0.05}
    run, further = tmp_path / "run", tmp_path / "further"
    first = start_training(tiny_config("dqn", algo_kwargs=settings, output_dir=str(run)), command="test")
    first.train()
    first.close()
    config = tiny_config("dqn", algo_kwargs=settings, output_dir=str(further), seed=1)
    second = start_training(config, command="test", init_from=run)
    for weights in (trained(second), average(second)):
        assert torch.equal(weights, average(first))
    second.close()


def test_a_copy_on_another_device_follows_both() -> None:
    trainer = averaging("dqn")
    assert isinstance(trainer.collector, Collector)
    trainer.collector.policy = copy = acting_copy(trainer.policy)
    trainer.train(150, evaluate=False)
    trainer.close()
    for own, network in zip(copy.networks, trainer.policy.networks, strict=True):
        for name, value in own.state_dict().items():
            assert torch.equal(value, network.state_dict()[name]), name


def test_an_average_that_is_not_finite_is_named() -> None:
    trainer = averaging("dqn")
    average(trainer)
    assert weights_problem(trainer.policy) is None
    assert trainer.policy.average is not None
    with torch.no_grad():
        next(trainer.policy.average.parameters())[0] = torch.nan
    problem = weights_problem(trainer.policy)
    assert problem is not None
    assert problem.startswith("the weights 'average.")
    trainer.close()
