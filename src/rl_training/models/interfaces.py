"""The interfaces of actors and critics, as the algorithms use them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from rl_training.models.action_head import ActionHead
from rl_training.models.encoder import Encoder, through_torch
from rl_training.models.normalization import Preparation
from rl_training.types import Array


class ActionNetwork(nn.Module, ABC):
    """A network whose output describes a distribution over actions, by its ``head``."""

    head: ActionHead

    @abstractmethod
    def action_output(self, obs: Tensor) -> Tensor:
        """The output for observations that are not prepared."""

    def numpy_action_output(self) -> Callable[[Array], Array]:
        """``action_output`` on numpy arrays. Valid until the parameters move to other memory."""
        return through_torch(self.action_output, self)


class SeparateActorCritic(nn.Module):
    """An actor and a critic without parameters in common, so that each has its own optimiser."""

    actor: nn.Module
    critic: nn.Module

    def __init__(self) -> None:
        super().__init__()
        # prepares vectors for actor and critic alike. A default in the class would hide the module
        self.normalizer: Preparation | None = None

    def prepare(self, obs: Tensor) -> Tensor:
        """Prepares observations for both. This has no parameters, so an update does it once for all its passes."""
        prepared: Tensor = obs if self.normalizer is None else self.normalizer(obs)
        encoder = getattr(self.critic, "encoder", None)
        return encoder.scale(prepared) if isinstance(encoder, Encoder) else prepared
