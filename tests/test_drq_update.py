"""DrQ by worked numbers: the random shift, the averages over shifts, and which loss moves which weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.drq import DrQ, DrQConfig, drq_loss
from rl_training.algorithms.sac import sac_target
from rl_training.data import random_shift
from rl_training.data.augmentation import shift_by_gather
from rl_training.errors import SpaceError
from rl_training.models import CNNDrQModel, NatureCNN
from rl_training.models.continuous import Critics
from rl_training.rng import RandomStreams
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec, TransitionBatch

SHAPE = (3, 20, 20)
LAYERS = ((4, 4, 2), (6, 3, 2))
MODES: dict[str, dict[str, Any]] = {
    "v1": {},
    "learned temperature": {"learn_alpha": True},
    "averages": {"target_shifts": 2, "loss_shifts": 2},
    "paper": {"encoder": "paper", "target_shifts": 2, "loss_shifts": 2, "learn_alpha": True},
}


def make_spec(shape: tuple[int, ...] = SHAPE, actions: int = 1) -> SpaceSpec:
    bounds = tuple([2.0] * actions)
    action = ActionSpec("continuous", low=tuple(-bound for bound in bounds), high=bounds, raw_shape=(actions,))
    return SpaceSpec(ObservationSpec.image(*shape), action)


def make_drq(actions: int = 1, **settings: Any) -> DrQ:
    small = {"hidden_sizes": (16,), "batch_size": 4, "buffer_size": 50, "cnn_layers": LAYERS, "cnn_features": 12}
    config = DrQConfig(**{**small, **settings})
    return DrQ(DrQ.make_policy(config, make_spec(actions=actions), init_generator(0)), config, RandomStreams(0))


def make_batch(rows: int = 4, seed: int = 0) -> TransitionBatch:
    generator = torch.Generator().manual_seed(seed)

    def images() -> Tensor:
        return torch.randint(0, 256, (rows, *SHAPE), dtype=torch.uint8, generator=generator)

    action, reward = torch.rand(rows, 1, generator=generator) * 2 - 1, torch.randn(rows, generator=generator)
    return TransitionBatch(images(), action, reward, images(), torch.full((rows,), 0.9))


# -------------------------------------------------------------------------------------------------- the random shift


def crops(image: Tensor, pad: int) -> Tensor:
    """All crops of a padded image, (2 * pad + 1)^2 of them, by torch's own padding."""
    height, width = image.shape[1:]
    padded = torch.nn.functional.pad(image[None].float(), (pad, pad, pad, pad), mode="replicate")[0].to(torch.uint8)
    return torch.stack([padded[:, y : y + height, x : x + width] for y in range(2 * pad + 1) for x in range(2 * pad + 1)])


def which_crops(images: Tensor, shifted: Tensor, pad: int = 4) -> list[int]:
    """The number of the crop that each image became; every channel must be of the same one."""
    numbers = []
    for row, result in enumerate(shifted):
        same = (crops(images[row % len(images)], pad) == result).flatten(1).all(dim=1)
        assert int(same.sum()) == 1, "not one of the whole-pixel crops"
        numbers.append(int(same.nonzero()))
    return numbers


def noise_images(rows: int, shape: tuple[int, ...] = (9, 24, 30)) -> Tensor:
    return torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_a_shift_is_one_of_81_crops_and_all_are_as_likely() -> None:
    image = noise_images(1, (2, 9, 10))
    images = image.expand(4000, -1, -1, -1).contiguous()
    shifted = random_shift(images, 4, np.random.default_rng(0))
    possible = {crop.numpy().tobytes(): number for number, crop in enumerate(crops(image[0], 4))}
    assert len(possible) == 81
    counts = np.bincount([possible[row.numpy().tobytes()] for row in shifted], minlength=81)
    assert 20 < counts.min() <= counts.max() < 85  # 49.4 +- 7 each
    assert torch.equal(images, image.expand(4000, -1, -1, -1))


def test_channels_move_together_and_samples_on_their_own() -> None:
    images = noise_images(16)
    numbers = which_crops(images, random_shift(images, 4, np.random.default_rng(0)))
    assert len(set(numbers)) > 8


def test_the_middle_crop_is_the_image_itself() -> None:
    images = noise_images(3)
    assert [int((crops(image, 4)[40] == image).all()) for image in images] == [1, 1, 1]
    assert torch.equal(random_shift(images, 0, np.random.default_rng(0)), images)


def test_copies_are_shifted_each_for_itself() -> None:
    images = noise_images(5)
    numbers = which_crops(images, random_shift(images, 4, np.random.default_rng(0), copies=3))
    assert len(numbers) == 15
    assert numbers[:5] != numbers[5:10] != numbers[10:]


def test_the_shift_of_other_devices_is_the_same() -> None:
    images, pad = noise_images(6), 4
    expected = random_shift(images, pad, np.random.default_rng(5), copies=2)
    shifts = torch.from_numpy(np.random.default_rng(5).integers(-pad, pad + 1, (12, 2)))
    assert torch.equal(shift_by_gather(images, shifts), expected)


def test_an_update_shifts_current_and_next_observations_from_its_own_stream() -> None:
    algorithm, batch = make_drq(shift_pad=3), make_batch()
    stream = RandomStreams(0)["augment"]
    views = algorithm.views(batch)
    for found, images in ((views.obs, batch.obs), (views.next_obs, batch.next_obs)):
        torch.testing.assert_close(found, random_shift(images, 3, stream) / 255.0 - 0.5)
    plain = make_drq(shift_pad=0, encoder="paper").views(batch)
    torch.testing.assert_close(plain.obs, batch.obs / 255.0)


# --------------------------------------------------------------------------------------------------- worked losses


def test_loss_by_hand() -> None:
    """Targets 1 and 3 average to 2. Critic 1 says 2 and 4: (0 + 4) / 2; critic 2 says 1 and 1: (1 + 1) / 2."""
    q = torch.tensor([[[2.0], [4.0]], [[1.0], [1.0]]])
    output = drq_loss(q, torch.tensor([[1.0], [3.0]]))
    torch.testing.assert_close(output.loss, torch.tensor([2.0 + 1.0]))
    torch.testing.assert_close(output.metrics["target_q_mean"], torch.tensor([2.0]))


def test_two_shifts_each_are_the_average_by_hand() -> None:
    """K = M = 2: the loss from each view on its own, put together by hand, gives the same numbers and gradient."""
    algorithm, batch = make_drq(target_shifts=2, loss_shifts=2), make_batch()
    views, twin, rows = algorithm.views(batch), copy.deepcopy(algorithm), len(batch.reward)
    network, noise = twin.policy.network, RandomStreams(0)["noise"].standard_normal((8, 1), np.float32)
    targets = []
    for k in range(2):
        seen = views.next_obs[k * rows : (k + 1) * rows]
        mean, log_std = network.distribution(network.actor(seen))
        u = mean + log_std.exp() * torch.from_numpy(noise[k * rows : (k + 1) * rows])
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)  # type: ignore[no-untyped-call]
        log_prob = (density - torch.log(1.0 - torch.tanh(u).square())).squeeze(1)
        next_q = twin.target.values(twin.target.encode(seen), torch.tanh(u))
        targets.append(sac_target(batch.reward, batch.discount, next_q, log_prob, twin.alpha).detach())
    target = (targets[0] + targets[1]) / 2
    loss = torch.zeros(rows)
    for m in range(2):
        q1, q2 = network.critic.values(network.critic.encode(views.obs[m * rows : (m + 1) * rows]), batch.action)
        loss = loss + ((q1 - target).square() + (q2 - target).square()) / 2
    found = algorithm.critic_loss(views, algorithm.updater.draw(views))
    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.metrics["target_q_mean"], target)
    for one, output in ((algorithm, found.loss), (twin, loss)):
        one.critic_optimizer.gradient.zero_()
        torch.autograd.backward(output.mean(), inputs=list(one.policy.network.critic.parameters()))
    first, second = ([p.grad for p in one.policy.network.critic.parameters()] for one in (algorithm, twin))
    torch.testing.assert_close(first, second)


# --------------------------------------------------------------------------------------------------- gradient routing


def gradient_of(algorithm: DrQ, loss: Tensor) -> tuple[set[str], set[str]]:
    """Names of the weights of the network that a loss reaches, and of those that it does not."""
    for optimizer in (algorithm.actor_optimizer, algorithm.critic_optimizer):
        optimizer.gradient.zero_()
    torch.autograd.backward(loss.sum())
    reached: set[str] = set()
    untouched: set[str] = set()
    for name, parameter in algorithm.policy.network.named_parameters():
        assert parameter.grad is not None
        (reached if parameter.grad.abs().sum() > 0 else untouched).add(name)
    for module in (algorithm.target, algorithm.frozen_critic):
        assert all(parameter.grad is None for parameter in module.parameters())
    return reached, untouched


@pytest.mark.parametrize("mode", MODES)
def test_each_loss_reaches_its_own_weights_and_no_others(mode: str) -> None:
    algorithm, batch = make_drq(**MODES[mode]), make_batch()
    views = algorithm.views(batch)
    known = algorithm.updater.draw(views)
    reached, untouched = gradient_of(algorithm, algorithm.critic_loss(views, known).loss)
    assert {name for name in reached if not name.startswith("critic.")} == set()
    assert {name for name in untouched if not name.startswith("actor.")} == set()
    reached, untouched = gradient_of(algorithm, algorithm.actor_loss(views, known).loss)
    assert {name for name in reached if not name.startswith("actor.")} == set()
    assert {name for name in untouched if not name.startswith("critic.")} == set()
    assert algorithm.temperature.log_alpha.grad == 0


def test_the_papers_convolutions_are_one_set_that_the_actor_looks_through() -> None:
    algorithm, batch = make_drq(encoder="paper"), make_batch()
    network = algorithm.policy.network
    assert network.shared_encoder
    assert all(parameter.dim() < 4 for parameter in network.actor.parameters())  # no convolutions of its own
    before = network(batch.obs)
    with torch.no_grad():
        for parameter in network.critic.encoder.parameters():  # type: ignore[union-attr]
            parameter.add_(0.1)
    assert not torch.equal(network(batch.obs), before)


def test_v1_encoders_are_separate_nature_cnns() -> None:
    network = CNNDrQModel((9, 84, 84), 1, (256, 256), init_generator(0))
    encoders = [network.actor.encoder, network.critic.encoder]
    assert all(isinstance(encoder, NatureCNN) for encoder in encoders)
    weights = [list(encoder.parameters()) for encoder in encoders if encoder is not None]
    assert [tuple(p.shape) for p in weights[0] if p.dim() == 4] == [(32, 9, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert not any(torch.equal(first, second) for first, second in zip(*weights, strict=True) if first.dim() > 1)
    images = torch.randint(0, 256, (2, 9, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, log_std = network.distribution(network(images))
    assert mean.shape == log_std.shape == (2, 1)
    assert network.critic.values(network.critic.encode(network.prepare(images)), torch.zeros(2, 1)).shape == (2, 2)


def test_the_papers_encoder() -> None:
    """32 filters of 3 x 3 four times, strides 2, 1, 1, 1: 35 x 35 from 84 x 84; then 50 numbers, normalised, in -1..1."""
    network = CNNDrQModel((9, 84, 84), 1, (1024, 1024), init_generator(0), paper=True)
    images = torch.randint(0, 256, (2, 9, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    encoded = network.critic.encode(network.prepare(images))
    assert encoded.shape == (2, 32 * 35 * 35)
    assert network.critic.trunk is not None
    features = network.critic.trunk(encoded)
    assert features.shape == (2, 50)
    assert features.abs().max() <= 1.0
    first = next(p for p in network.critic.encoder.parameters() if p.dim() == 4).flatten(1)  # type: ignore[union-attr]
    torch.testing.assert_close(first @ first.T, 2.0 * torch.eye(32))
    _, log_std = network.distribution(torch.tensor([[0.0, 0.0], [0.0, -50.0], [0.0, 50.0]]))
    torch.testing.assert_close(log_std, torch.tensor([[-4.0], [-10.0], [2.0]]))


# ------------------------------------------------------------------------------------------------- the whole update


@pytest.mark.parametrize("mode", MODES)
def test_an_update_counts_reports_and_moves_what_it_should(mode: str) -> None:
    algorithm, batch = make_drq(**MODES[mode]), make_batch()
    before = {
        "actor": algorithm.actor_optimizer.parameters.clone(),
        "critic": algorithm.critic_optimizer.parameters.clone(),
        "target": algorithm.target_network.vector.clone(),
    }
    alpha = algorithm.alpha
    result = algorithm.update(batch)
    assert algorithm.updates == 1
    assert {"critic_loss", "actor_loss", "target_q_mean", "entropy_term"} <= set(result.metrics)
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert not torch.equal(algorithm.actor_optimizer.parameters, before["actor"])
    assert not torch.equal(algorithm.critic_optimizer.parameters, before["critic"])
    moved = before["target"].lerp(algorithm.critic_optimizer.parameters, algorithm.config.tau)
    torch.testing.assert_close(algorithm.target_network.vector, moved)
    assert torch.equal(algorithm.alpha, alpha) != algorithm.config.learn_alpha
    algorithm.update(batch)
    assert algorithm.updates == 2


@pytest.mark.parametrize("learn_alpha", [False, True])
@pytest.mark.parametrize("loss_shifts", [1, 2])
@pytest.mark.parametrize("target_shifts", [1, 2])
@pytest.mark.parametrize("encoder", ["nature", "paper"])
def test_an_update_follows_the_paper_step_by_step(
    encoder: str, target_shifts: int, loss_shifts: int, learn_alpha: bool
) -> None:
    """A naive twin, one view at a time and with torch's own Adam, in the order critic, actor, temperature, target."""
    shifts = {"target_shifts": target_shifts, "loss_shifts": loss_shifts}
    algorithm = make_drq(
        encoder=encoder, **shifts, learn_alpha=learn_alpha, learning_rate=1e-2, adam_eps=1e-4, tau=0.1, alpha=0.3
    )
    batch, paper, streams = make_batch(), encoder == "paper", RandomStreams(0)
    network, target = copy.deepcopy(algorithm.policy.network), copy.deepcopy(algorithm.target)
    actor, critic, rows = network.actor, network.critic, len(batch.reward)
    log_alpha = torch.tensor(np.log(0.3), dtype=torch.float32, requires_grad=True)
    critic_adam, actor_adam, alpha_adam = (
        torch.optim.Adam(parameters, lr=1e-2, eps=1e-4)
        for parameters in (critic.parameters(), actor.parameters(), [log_alpha])
    )

    def views(images: Tensor, copies: int) -> tuple[Tensor, ...]:
        shifted = random_shift(images, algorithm.config.shift_pad, streams["augment"], copies).float() / 255.0
        return torch.split(shifted if paper else shifted - 0.5, rows)

    def draw(view: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = actor(critic.encode(view) if paper else view).chunk(2, dim=1)
        log_std = 6.0 * torch.tanh(raw) - 4.0 if paper else raw
        u = mean + log_std.exp() * torch.from_numpy(streams["noise"].standard_normal((rows, 1), np.float32))
        density = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)  # type: ignore[no-untyped-call]
        return torch.tanh(u), (density - torch.log(1.0 - torch.tanh(u).square())).squeeze(1)

    def smaller(judge: Critics, view: Tensor, action: Tensor) -> Tensor:
        return judge.values(judge.encode(view), action).min(dim=0).values

    def descend(adam: torch.optim.Adam, loss: Tensor) -> None:
        adam.zero_grad()
        torch.autograd.backward(loss)
        adam.step()

    for _ in range(2):
        alpha = log_alpha.detach().exp()
        obs, next_obs = views(batch.obs, loss_shifts), views(batch.next_obs, target_shifts)
        y = torch.zeros(rows)
        with torch.no_grad():
            for view in next_obs:
                action, log_prob = draw(view)
                y += batch.reward + batch.discount * (smaller(target, view, action) - alpha * log_prob)
        y /= target_shifts
        loss = torch.zeros(())
        for view in obs:
            for q in critic.values(critic.encode(view), batch.action):
                loss = loss + (q - y).square().mean() / loss_shifts
        descend(critic_adam, loss)
        action, log_prob = draw(obs[0])  # the critic, its encoder too, is that of after its step
        descend(actor_adam, (alpha * log_prob - smaller(critic, obs[0], action)).mean())
        if learn_alpha:
            descend(alpha_adam, (log_alpha.exp() * (-log_prob.detach() + 1.0)).mean())
        with torch.no_grad():
            for parameter, online in zip(target.parameters(), critic.parameters(), strict=True):
                parameter.lerp_(online, 0.1)
        algorithm.update(batch)
    for name, value in algorithm.policy.network.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name], rtol=1e-3, atol=3e-5, msg=name)
    torch.testing.assert_close(algorithm.alpha, log_alpha.detach().exp())
    for found, expected in zip(algorithm.target.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=3e-5)


def test_alpha_is_fixed_by_the_config_unless_learned() -> None:
    assert not DrQConfig().learn_alpha
    assert float(make_drq(alpha=0.37).alpha) == pytest.approx(0.37)


# ----------------------------------------------------------------------------------------------------- what is refused


def test_other_images_and_actions_are_refused_by_name() -> None:
    config = DrQConfig()
    with pytest.raises(SpaceError, match=r"drq takes channel-first images.*\(84, 84, 3\).*wrapper pixels"):
        DrQ.make_policy(config, make_spec((84, 84, 3)), init_generator(0))
    with pytest.raises(SpaceError, match=r"drq takes one-dimensional continuous actions.*2 dimensions.*encoder: paper"):
        DrQ.make_policy(config, make_spec((3, 84, 84), actions=2), init_generator(0))
    assert make_drq(actions=2, encoder="paper").policy.network.actions == 2
