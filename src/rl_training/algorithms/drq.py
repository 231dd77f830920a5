"""DrQ (Kostrikov et al., arXiv:2004.13649): SAC on images, with random shifts of the current and the next observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.config import Positive, PositiveNumber, ScheduledPositive
from rl_training.algorithms.encoders import custom_encoder, custom_encoders
from rl_training.algorithms.pixels import PixelAlgorithm, PixelConfig, require_usable_images
from rl_training.algorithms.sac import SOFT_N_STEP, EntropyConfig, GaussianPolicy, SoftActorCritic
from rl_training.algorithms.update import Known, StageLoss
from rl_training.errors import SpaceError
from rl_training.models.cnn import CNNDrQModel
from rl_training.models.encoder import Encoder
from rl_training.models.mlp import Style
from rl_training.types import SpaceSpec, TransitionBatch

__all__ = ["DrQ", "DrQConfig", "drq_loss"]


class DrQConfig(PixelConfig, EntropyConfig):
    """Settings of DrQ."""

    learning_rate: ScheduledPositive = Field(
        1e-3, description="learning rate of actor, critic and temperature, a number or a schedule"
    )
    batch_size: Positive = Field(128, description="transitions in one update")
    n_step: Positive = Field(1, description=SOFT_N_STEP)
    alpha: PositiveNumber = Field(0.1, description="temperature, the weight of the entropy; its initial value if learned")
    learn_alpha: bool = Field(False, description="learn the temperature so that the entropy approaches target_entropy")
    encoder: Literal["nature", "paper"] = Field(
        "nature",
        description="nature: actor and critic have separate NatureCNNs; paper: they share convolutions that only the critic "
        "trains, and each adds a layer normalisation",
    )
    target_shifts: Positive = Field(1, description="random shifts of the next observation averaged in a target (K)")
    loss_shifts: Positive = Field(1, description="random shifts of an observation averaged in the critic's loss (M)")


def drq_loss(q: Tensor, targets: Tensor) -> StageLoss:
    """Squared errors of both critics on M shifts of an observation, (2, M, batch), one number per sample: averaged over the
    shifts and summed over the critics. The target is the mean over K shifts of the next observation, (K, batch) (section 3).

    The actor's loss is SAC's.
    """
    assert q.dim() == 3
    assert targets.dim() == 2
    assert (q.shape[0], q.shape[2]) == (2, targets.shape[1])
    target = targets.detach().mean(dim=0)
    loss = (q - target).square().mean(dim=1).sum(dim=0)
    return StageLoss(loss, {"q_value_mean": q.detach()[0], "target_q_mean": target})


def _own_encoders(config: DrQConfig, spec: SpaceSpec, generator: torch.Generator) -> Sequence[Encoder]:
    """The user's encoders, if there are any: one that is shared, in the paper's network, or one each for actor and critic."""
    if config.encoder == "paper":
        shared = custom_encoder(config, spec, generator)
        return () if shared is None else (shared,)
    return custom_encoders(config, spec, generator) or ()


class DrQ(PixelAlgorithm[DrQConfig], SoftActorCritic[DrQConfig]):
    """Data-regularized Q: soft actor-critic on randomly shifted images (Kostrikov et al. 2020)."""

    name = "drq"
    summary = "SAC on images with random shifts; optionally with the paper's encoder and averages over shifts"

    def build(self) -> None:
        super().build()
        self.obs_views, self.next_obs_views = self.config.loss_shifts, self.config.target_shifts

    @classmethod
    def make_policy(cls, config: DrQConfig, spec: SpaceSpec, generator: torch.Generator) -> GaussianPolicy:
        require_usable_images(config, spec, cls.name)
        actions, paper = len(spec.action.low), config.encoder == "paper"
        if actions != 1 and not paper:
            raise SpaceError(
                f"drq takes one-dimensional continuous actions, but this environment's have {actions} dimensions; set "
                "algo_kwargs.encoder: paper, which takes any number, or use drqv2"
            )
        network = CNNDrQModel(
            spec.observation,
            actions,
            config.hidden_sizes,
            generator,
            paper=paper,
            cnn_layers=config.cnn_layers,
            cnn_features=config.cnn_features,
            style=Style(config.activation, config.layer_norm),
            orthogonal=config.init == "orthogonal",
            encoders=_own_encoders(config, spec, generator),
        )
        return GaussianPolicy(network, spec, config)

    def critic_loss(self, batch: TransitionBatch, known: Known) -> StageLoss:
        rows, critic = len(batch.reward), self.policy.network.critic
        with torch.no_grad():
            k = self.next_obs_views
            reward, discount = batch.reward.repeat(k), batch.discount.repeat(k)
            targets = self.target_values(batch.next_obs, reward, discount, known["critic_noise"])
        q = critic.values(critic.encode(batch.obs), batch.action.repeat(self.obs_views, 1))
        return drq_loss(q.view(2, -1, rows), targets.view(-1, rows))
