"""TQC: truncated targets and losses by worked numbers, and its update against a plain program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import CONTINUOUS_SPEC, continuous_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from soft_twin import SETTINGS, SoftTwin
from torch import Tensor

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.tqc import TQC, TQCConfig, tqc_actor_loss, tqc_critic_loss, tqc_target
from rl_training.rng import RandomStreams


def make_tqc(**options: Any) -> TQC:
    sizes = {"hidden_sizes": (16, 16), "batch_size": 8, "buffer_size": 100}
    config = TQCConfig(**{**sizes, "n_critics": 3, "num_quantiles": 5, "dropped_quantiles": 2, **options})
    return TQC(TQC.make_policy(config, CONTINUOUS_SPEC, init_generator(0)), config, RandomStreams(0))


def test_target_by_hand() -> None:
    """Of 5, 1, 9 and 4, 2, 8 the two largest are dropped, wherever they come from; the rest less 0.5 * 2."""
    next_quantiles = torch.tensor([[[5.0, 1.0, 9.0], [0.0, 0.0, 0.0]], [[4.0, 2.0, 8.0], [7.0, 7.0, 7.0]]])
    target = tqc_target(
        torch.tensor([1.0, 3.0]),
        torch.tensor([0.9, 0.0]),
        next_quantiles,
        torch.tensor([2.0, 2.0]),
        torch.tensor(0.5),
        dropped=1,
    )
    torch.testing.assert_close(target, torch.tensor([[1.0, 1.9, 3.7, 4.6 - 0.0], [3.0, 3.0, 3.0, 3.0]]))


def test_critic_loss_by_hand() -> None:
    """Two critics with quantiles at 1/4 and 3/4 against the targets 0 and 2, each term a Huber loss with threshold 1."""
    output = tqc_critic_loss(torch.tensor([[[0.0, 2.0]], [[1.0, 4.0]]]), torch.tensor([[0.0, 2.0]]))
    first = (0.25 * 1.5 + 0.0) / 2 + (0.25 * 1.5 + 0.0) / 2  # u = 0, 2 and -2, 0
    second = (0.75 * 0.5 + 0.25 * 0.5) / 2 + (0.25 * 3.5 + 0.25 * 1.5) / 2  # u = -1, 1 and -4, -2
    torch.testing.assert_close(output.loss, torch.tensor([(first + second) / 4]))
    torch.testing.assert_close(output.metrics["q_value_mean"], torch.tensor([1.75]))


def test_actor_loss_by_hand() -> None:
    """The actor sees every quantile: 0.5 * 2 - (1 + 2 + 3 + 6) / 4."""
    output = tqc_actor_loss(torch.tensor([2.0]), torch.tensor([[[1.0, 2.0]], [[3.0, 6.0]]]), torch.tensor(0.5))
    torch.testing.assert_close(output.loss, torch.tensor([-2.0]))


@settings(max_examples=60, deadline=None)
@given(
    quantiles=st.lists(st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4), min_size=1, max_size=4),
    dropped=st.integers(0, 3),
)
def test_the_kept_quantiles_are_the_smallest_of_all(quantiles: list[list[float]], dropped: int) -> None:
    everything = sorted(value for critic in quantiles for value in critic)
    zero, one = torch.zeros(1), torch.ones(1)
    found = tqc_target(zero, one, torch.tensor(quantiles).unsqueeze(1), zero, torch.tensor(0.3), dropped)
    assert found[0].tolist() == pytest.approx(everything[: len(everything) - dropped * len(quantiles)])


def naive_huber(quantiles: Tensor, targets: Tensor) -> Tensor:
    """(critic, batch, quantile), (batch, kept) -> the mean over all pairs."""
    u = targets[None, :, None, :] - quantiles[..., None]
    huber = torch.where(u.abs() <= 1.0, 0.5 * u.square(), u.abs() - 0.5)
    levels = (torch.arange(quantiles.shape[2]) + 0.5) / quantiles.shape[2]
    return ((levels[:, None] - (u < 0).float()).abs() * huber).mean()


def test_updates_follow_the_paper_step_by_step() -> None:
    algorithm, batch = make_tqc(**SETTINGS), continuous_batch()
    twin = SoftTwin(algorithm)

    def quantiles(critics: Any, obs: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([obs, action], dim=1)
        return torch.stack([critics.q1(x), critics.q2(x), critics.q3(x)])

    for _ in range(4):
        alpha = twin.alpha
        with torch.no_grad():
            action, log_prob = twin.draw(batch.next_obs)
            pooled = quantiles(twin.target, batch.next_obs, action).permute(1, 0, 2).reshape(8, 15)
            kept = torch.stack([torch.tensor(sorted(row.tolist())[:9]) for row in pooled])
            y = batch.reward[:, None] + batch.discount[:, None] * (kept - alpha * log_prob[:, None])
        critic_loss = naive_huber(quantiles(twin.network.critic, batch.obs, batch.action), y)
        twin.learn_critic(critic_loss)
        action, log_prob = twin.draw(batch.obs)
        actor_loss = (alpha * log_prob - quantiles(twin.network.critic, batch.obs, action).mean(dim=(0, 2))).mean()
        twin.learn_actor(actor_loss)
        twin.learn_temperature(-log_prob, -2.0)
        result = algorithm.update(batch)
        assert result.metrics["critic_loss"] == pytest.approx(float(critic_loss.detach()), rel=1e-4)
        assert result.metrics["actor_loss"] == pytest.approx(float(actor_loss.detach()), rel=1e-3, abs=1e-5)
    twin.assert_equal()


def test_all_quantiles_cannot_be_dropped() -> None:
    with pytest.raises(ValueError, match="dropped_quantiles \\(5\\) must be below num_quantiles \\(5\\)"):
        make_tqc(dropped_quantiles=5)
