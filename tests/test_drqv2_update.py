"""DrQ-v2 by worked numbers: targets, noise and its schedule, the one encoder, and which loss moves which weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from test_drq_update import LAYERS, SHAPE, make_batch, make_spec
from torch import Tensor
from torch.nn import functional as F

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.continuous import noisy_action
from rl_training.algorithms.drqv2 import DrQv2, DrQv2Config, drqv2_actor_loss, drqv2_target
from rl_training.data import FrameReplayBuffer, random_shift
from rl_training.errors import SpaceError
from rl_training.models import CNNDrQv2Model
from rl_training.rng import RandomStreams
from rl_training.types import Step


def make_drqv2(**settings: Any) -> DrQv2:
    small = {"hidden_sizes": (16,), "batch_size": 4, "buffer_size": 50, "cnn_layers": LAYERS, "cnn_features": 12}
    config = DrQv2Config(**{**small, **settings})
    return DrQv2(DrQv2.make_policy(config, make_spec(), init_generator(0)), config, RandomStreams(0))


# --------------------------------------------------------------------------------------------------- worked numbers


def test_target_and_actor_loss_by_hand() -> None:
    """1 + 0.9 min(4, 3) = 3.7; a true termination has discount 0 and keeps its rewards only."""
    next_q = torch.tensor([[4.0, 4.0], [3.0, 3.0]])
    target = drqv2_target(torch.tensor([1.0, 1.0]), torch.tensor([0.9, 0.0]), next_q)
    torch.testing.assert_close(target, torch.tensor([3.7, 1.0]))
    torch.testing.assert_close(drqv2_actor_loss(torch.tensor([[1.0, 5.0], [2.0, 4.0]])).loss, torch.tensor([-1.0, -4.0]))


def test_noise_is_clipped_and_so_is_the_action_but_not_its_gradient() -> None:
    mean = torch.tensor([[0.0], [0.5], [0.9], [-0.9]], requires_grad=True)
    action = noisy_action(mean, torch.tensor([[0.1], [2.0], [1.0], [-5.0]]), std=0.5, clip=0.3)
    torch.testing.assert_close(action, torch.tensor([[0.05], [0.8], [1.0], [-1.0]]))
    torch.autograd.backward(action.sum())
    torch.testing.assert_close(mean.grad, torch.ones(4, 1))


def test_the_noise_falls_in_a_line_with_the_steps_of_the_agent() -> None:
    algorithm = make_drqv2(initial_noise=1.0, final_noise=0.2, noise_steps=100)
    values = [algorithm.schedule_values(step)["noise"] for step in (0, 25, 50, 100, 500)]
    assert values == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])
    published = DrQv2Config()
    schedule = published.noise_schedule()
    assert (schedule.initial, schedule.final, schedule.steps, published.noise_clip) == (1.0, 0.1, 500_000, 0.3)
    assert (published.n_step, published.train_freq, published.learning_rate, published.batch_size) == (3, 2, 1e-4, 256)


def test_exploring_adds_the_scheduled_noise_and_stays_in_bounds() -> None:
    policy = make_drqv2(initial_noise=0.05, final_noise=0.0, noise_steps=1000, learning_starts=10).policy
    obs = make_batch(1).obs.numpy()
    mean = policy.act(obs, ()).action
    many = np.repeat(obs, 500, axis=0)
    rng = np.random.default_rng(0)
    spread = [float(policy.act(many, (), rng=rng, env_steps=step).action.std()) for step in (10, 500, 1000)]
    assert spread == pytest.approx([0.0495, 0.025, 0.0], abs=0.004)
    np.testing.assert_allclose(policy.act(many, (), rng=rng, env_steps=1000).action, np.repeat(mean, 500, 0), atol=1e-5)
    wild = make_drqv2(initial_noise=5.0, learning_starts=0).policy.act(many, (), rng=rng).action
    assert np.abs(wild).max() == 1.0


def test_the_replay_sums_three_rewards_and_a_termination_stays_without_bootstrap() -> None:
    algorithm = make_drqv2(gamma=0.5, frame_stack=3)
    buffer = algorithm.make_replay(1).buffer
    assert isinstance(buffer, FrameReplayBuffer)
    frames = [np.full((1, 1, *SHAPE[1:]), value, np.uint8) for value in (0, 0, 0, 1, 2, 3, 4)]
    for t in range(4):
        obs, next_obs = (np.concatenate(frames[k : k + 3], axis=1) for k in (t, t + 1))
        flag = np.array([t == 3])
        buffer.add(Step(obs, np.array([[0.1 * t]]), np.array([2.0**t]), next_obs, flag, np.array([False])))
    batch = buffer.gather(np.array([0, 1, 2, 3]))
    torch.testing.assert_close(batch.reward, torch.tensor([1 + 1 + 1.0, 2 + 2 + 2.0, 4 + 4.0, 8.0]))
    torch.testing.assert_close(batch.discount, torch.tensor([0.125, 0.0, 0.0, 0.0]))
    assert batch.next_obs[0, -1, 0, 0] == 3
    assert batch.action.shape == (4, 1)


# --------------------------------------------------------------------------------------------------- gradient routing


def gradients(algorithm: DrQv2, loss: Tensor) -> set[str]:
    for optimizer in (algorithm.actor_optimizer, algorithm.critic_optimizer):
        optimizer.gradient.zero_()
    torch.autograd.backward(loss.sum())
    for module in (algorithm.target, algorithm.frozen_critic):
        assert all(parameter.grad is None for parameter in module.parameters())
    named = algorithm.policy.network.named_parameters()
    return {name for name, parameter in named if parameter.grad is not None and parameter.grad.abs().sum() > 0}


def test_the_encoder_is_trained_by_the_critic_only() -> None:
    algorithm, batch = make_drqv2(), make_batch()
    names = {name for name, _ in algorithm.policy.network.named_parameters()}
    views = algorithm.views(batch)
    known = {**algorithm.updater.scheduled(0), **algorithm.updater.draw(views)}
    critic = algorithm.critic_loss(views, known)
    assert not critic.kept["features"].requires_grad
    assert gradients(algorithm, critic.loss) == {name for name in names if name.startswith("critic.")}
    actor = algorithm.actor_loss(views, {**known, **critic.kept})
    assert gradients(algorithm, actor.loss) == {name for name in names if name.startswith("actor.")}
    assert all(parameter.dim() < 4 for parameter in algorithm.policy.network.actor.parameters())  # no convolutions of its own


def test_there_is_no_target_encoder() -> None:
    algorithm = make_drqv2()
    assert algorithm.target.encoder is None
    heads = torch.cat(
        [p.reshape(-1) for name, p in algorithm.policy.network.critic.named_parameters() if "encoder" not in name]
    )
    torch.testing.assert_close(algorithm.target_network.vector, heads)
    algorithm.update(make_batch())
    after = torch.cat(
        [p.reshape(-1) for name, p in algorithm.policy.network.critic.named_parameters() if "encoder" not in name]
    )
    torch.testing.assert_close(algorithm.target_network.vector, heads.lerp(after, 0.01))


def test_an_update_follows_the_authors_step_by_step() -> None:
    """A naive twin with torch's own Adam: critic and encoder, then the actor on what the encoder saw before its step."""
    algorithm, batch = make_drqv2(learning_rate=1e-3, tau=0.1, shift_pad=2, initial_noise=0.5, noise_steps=1000), make_batch()
    network, target = copy.deepcopy(algorithm.policy.network), copy.deepcopy(algorithm.policy.network.critic)
    critic_adam = torch.optim.Adam(network.critic.parameters(), lr=1e-3)
    actor_adam = torch.optim.Adam(network.actor.parameters(), lr=1e-3)
    streams = RandomStreams(0)

    def draw(features: Tensor, std: float) -> Tensor:
        noise = torch.from_numpy(streams["noise"].standard_normal((4, 1), np.float32))
        mean = torch.tanh(network.actor(features))
        action = mean + (std * noise).clamp(-0.3, 0.3)
        return action - action.detach() + action.detach().clamp(-1, 1)

    for step in (0, 250, 500):
        std = 0.5 - 0.4 * step / 1000
        obs = network.critic.encode(random_shift(batch.obs, 2, streams["augment"]) / 255.0 - 0.5)
        with torch.no_grad():
            next_obs = network.critic.encode(random_shift(batch.next_obs, 2, streams["augment"]) / 255.0 - 0.5)
            next_q = target.values(next_obs, draw(next_obs, std)).min(dim=0).values
            y = batch.reward + batch.discount * next_q
        q1, q2 = network.critic.values(obs, batch.action)
        critic_adam.zero_grad()
        torch.autograd.backward(F.mse_loss(q1, y) + F.mse_loss(q2, y))
        critic_adam.step()
        actor_adam.zero_grad()
        loss = -network.critic.values(obs.detach(), draw(obs.detach(), std)).min(dim=0).values.mean()
        torch.autograd.backward(loss, inputs=list(network.actor.parameters()))
        actor_adam.step()
        with torch.no_grad():
            for parameter, online in zip(target.parameters(), network.critic.parameters(), strict=True):
                parameter.lerp_(online, 0.1)
        result = algorithm.update(batch, env_steps=step)
    for name, value in algorithm.policy.network.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name], rtol=1e-3, atol=1e-4)
    assert set(result.metrics) == {"critic_loss", "actor_loss", "q_value_mean", "target_q_mean"}
    assert algorithm.updates == 3


# ------------------------------------------------------------------------------------------------------- the networks


def test_the_networks_are_the_papers() -> None:
    network = CNNDrQv2Model((9, 44, 44), 6, (64, 64), init_generator(0))
    images = torch.randint(0, 256, (2, 9, 44, 44), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    prepared = network.prepare(images)
    torch.testing.assert_close(prepared, images / 255.0 - 0.5)
    assert network.critic.encode(prepared).shape == (2, 32 * 15 * 15)
    assert network(images).shape == (2, 6)
    assert [tuple(layer.weight.shape) for layer in network.actor.mlp.linears] == [(64, 50), (64, 64), (6, 64)]
    assert network.critic.q1.linears[0].weight.shape == (64, 56)


def test_channel_last_images_are_refused_by_name() -> None:
    with pytest.raises(SpaceError, match="drqv2 takes channel-first images"):
        DrQv2.make_policy(DrQv2Config(), make_spec((84, 84, 3)), init_generator(0))
