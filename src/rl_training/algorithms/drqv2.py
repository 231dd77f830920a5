"""DrQ-v2 (Yarats et al., arXiv:2107.09645): a deterministic actor with scheduled noise, twin critics and n-step targets, on
randomly shifted images."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.config import Count, Number, Positive, PositiveNumber, ScheduledPositive
from rl_training.algorithms.continuous import NoisyPolicy, noisy_action
from rl_training.algorithms.encoders import custom_encoder
from rl_training.algorithms.pixels import PixelAlgorithm, PixelConfig, require_usable_images
from rl_training.algorithms.sac import twin_critic_loss
from rl_training.algorithms.strict_model import MAY_CHANGE
from rl_training.algorithms.update import Known, StageLoss
from rl_training.models.cnn import CNNDrQv2Model
from rl_training.models.mlp import Style
from rl_training.schedules import LinearSchedule, Schedule
from rl_training.types import SpaceSpec, TransitionBatch

__all__ = ["DrQv2", "DrQv2Config", "drqv2_actor_loss", "drqv2_target"]


class DrQv2Config(PixelConfig):
    """Settings of DrQ-v2."""

    learning_rate: ScheduledPositive = Field(1e-4, description="learning rate of actor and critic, a number or a schedule")
    batch_size: Positive = Field(256, description="transitions in one update")
    hidden_sizes: tuple[Positive, ...] = Field((1024, 1024), description="widths of the hidden layers")
    n_step: Positive = Field(3, description="rewards summed in one transition")
    learning_starts: Count = Field(2_000, description="env steps of random acting before the first update")
    train_freq: Positive = Field(2, description="env steps between training phases")
    initial_noise: Number = Field(
        1.0, ge=0.0, description="initial standard deviation of the exploration noise", json_schema_extra=MAY_CHANGE
    )
    final_noise: Number = Field(
        0.1, ge=0.0, description="final standard deviation of the exploration noise", json_schema_extra=MAY_CHANGE
    )
    noise_steps: Count = Field(500_000, description="env steps over which the noise decays", json_schema_extra=MAY_CHANGE)
    noise_clip: PositiveNumber = Field(0.3, description="clip the noise on actions in an update to +-x")

    def noise_schedule(self) -> LinearSchedule:
        return LinearSchedule(self.initial_noise, self.final_noise, self.noise_steps)


def drqv2_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """``reward + discount * min Q'``: (batch,), (batch,), (2, batch) -> (batch,); reward and discount are n-step."""
    assert reward.shape == discount.shape == next_q.shape[1:]
    return reward + discount * torch.minimum(next_q[0], next_q[1])


def drqv2_actor_loss(q: Tensor) -> StageLoss:
    """``-min Q`` of the actor's actions, (2, batch) -> one number per sample."""
    return StageLoss(-torch.minimum(q[0], q[1]))


class DrQv2(PixelAlgorithm[DrQv2Config]):
    """DrQ-v2: deterministic policy gradients on randomly shifted images (Yarats et al. 2021)."""

    name = "drqv2"
    summary = "a deterministic actor with scheduled noise and n-step targets, on images with random shifts"
    policy: NoisyPolicy
    target_encoder = False

    @classmethod
    def make_policy(cls, config: DrQv2Config, spec: SpaceSpec, generator: torch.Generator) -> NoisyPolicy:
        require_usable_images(config, spec, cls.name)
        network = CNNDrQv2Model(
            spec.observation,
            len(spec.action.low),
            config.hidden_sizes,
            generator,
            cnn_layers=config.cnn_layers,
            cnn_features=config.cnn_features,
            style=Style(config.activation, config.layer_norm),
            orthogonal=config.init == "orthogonal",
            encoder=custom_encoder(config, spec, generator),
        )
        return NoisyPolicy(network, spec, config, config.noise_schedule())

    def critic_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        critic = self.policy.network.critic
        with torch.no_grad():
            seen = critic.encode(batch.next_obs)
            action = self.draw(seen, known["critic_noise"], known["noise"])
            target = drqv2_target(batch.reward, batch.discount, self.target.values(seen, action))
        features = critic.encode(batch.obs)
        output = twin_critic_loss(critic.values(features, batch.action), target)
        return output._replace(kept={"features": features.detach()})

    def actor_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        """Uses the features from before the critic's step, as the authors do, which saves a second pass of the encoder."""
        features = known["features"]
        return drqv2_actor_loss(
            self.frozen_critic.values(features, self.draw(features, known["actor_noise"], known["noise"]))
        )

    def draw(self, features: Tensor, noise: Tensor, std: float) -> Tensor:
        """The actor's action with clipped noise of this standard deviation."""
        return noisy_action(torch.tanh(self.policy.network.actor(features)), noise, std, self.config.noise_clip)

    def schedules(self) -> dict[str, Schedule]:
        return {**super().schedules(), "noise": self.policy.noise}
