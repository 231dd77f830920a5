"""Replay of stacked images that stores every frame once (the idea is from Mnih et al. 2015; priorities: Schaul et al.,
arXiv:1511.05952).

In stacks of 4 each frame occurs 4 times, and again in the next observations, so whole transitions would take 8 times the
memory.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.acting_values import Targets
from rl_training.data.block_rings import BlockRings
from rl_training.data.blocks import CompactSteps, spans
from rl_training.data.episode_rings import STEPS_PER_SPARE_SLOT, equal_shares
from rl_training.data.frames import make_frames
from rl_training.data.loaded import require_masks
from rl_training.errors import ConfigError
from rl_training.types import Array, ObservationSpec, SpaceSpec, Step, TransitionBatch


class FrameReplayBuffer(BlockRings):
    """The newest ``capacity`` n-step transitions, an equal share for each environment; uniform, or prioritised by ``alpha``.

    ``add`` takes steps of all environments. An episode of L steps takes L + 1 slots, and up to ``stack`` - 1 more if its
    first observation is not one frame repeated. The spare slots cover this if episodes have at least 20 steps
    (20 * ``stack`` if first observations are stacks of different frames); with shorter episodes the buffer holds fewer than
    ``capacity`` transitions.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        *,
        stack: int,
        num_envs: int,
        n_step: int,
        gamma: float,
        action_shape: tuple[int, ...] = (),
        action_dtype: type[np.generic] = np.int64,
        masked_actions: int = 0,
        rng: np.random.Generator,
        device: torch.device | str = "cpu",
        alpha: float | None = None,
        batch_size: int = 0,
        observation: ObservationSpec | None = None,
        targets: Targets | None = None,
    ) -> None:
        """``observation`` is the spec, if it is not a plain image of bytes. ``batch_size`` is the number of transitions that
        an update will need; if it can never hold as many, it warns. With ``targets``, blocks come with the Q-values of
        acting, from which items get their first priorities."""
        if capacity < num_envs:
            raise ConfigError(f"algo_kwargs.buffer_size ({capacity}) must be at least num_envs ({num_envs})")
        self.capacity = capacity
        self._obs_dtype = np.uint8 if observation is None else observation.dtype
        shares = equal_shares(capacity, num_envs)
        super().__init__(
            make_frames(obs_shape, self._obs_dtype, stack, observation),
            slots=shares[0] + shares[0] // STEPS_PER_SPARE_SLOT + n_step + 3 * stack + 2,
            quotas=shares,
            longest_reach=stack - 1,
            under_way=n_step + 2 * stack,
            n_step=n_step,
            gamma=gamma,
            action_shape=action_shape,
            action_dtype=action_dtype,
            masked_actions=masked_actions,
            rng=rng,
            device=device,
            alpha=alpha,
            targets=targets,
            further_columns={},
            what=f"a replay of {capacity} transitions, each frame stored once,",
        )

        # In episodes of one step, a transition takes stack + 1 slots: if even these hold a batch, there is nothing to watch.
        self._batch_size = batch_size if batch_size * (stack + 1) > capacity else 0
        self._look_at = 2 * self._slots  # observations of each environment, when every ring has been filled twice

    def add(self, step: Step) -> None:
        """Adds one step of all environments. Observations are whole stacks, oldest frame first."""
        assert step.obs.dtype == step.next_obs.dtype == self._obs_dtype
        self._add_step(step, step.envs)
        self._settle()

    def add_block(self, block: CompactSteps, first: int) -> None:
        """Adds several steps of environment ``first`` and those after it."""
        assert block.first.dtype == block.next_obs.dtype == self._obs_dtype
        self._check_block(block, first)
        for span in spans(block, self._longest_span):
            self._add_span(first + span.env, block, span)
        self._settle()

    def _settle(self) -> None:
        self._settle_priorities()
        if self._batch_size and min(ring.written for ring in self._rings) >= self._look_at:
            self._look_at += self._slots
            self._warn_if_too_few(len(self))

    def _warn_if_too_few(self, held: int) -> None:
        """Short episodes leave room for fewer transitions. With fewer than a batch, no update would ever be made."""
        if held >= self._batch_size:
            return
        further = self.num_envs * (self.n_step + 3 * self.stack + 2)  # slots that do not grow with the capacity
        enough = further - (-self.capacity * self._batch_size // max(held, 1))
        warnings.warn(
            f"the replay is full, but with episodes as short as these it holds only {held} transitions of the "
            f"{self._batch_size} in a batch, so nothing is learned: raise algo_kwargs.buffer_size from {self.capacity} to at "
            f"least {enough}, or lower algo_kwargs.batch_size",
            stacklevel=2,
        )
        self._batch_size = 0  # warn only once

    def _items(self, env: int, windows: range, ended: bool) -> range:
        return windows

    def _reach(self, env: int, positions: Any) -> Any:
        return positions - self._columns["age"][env * self._slots + positions % self._slots]

    def _first_priorities(self, env: int, positions: NDArray[np.int64]) -> Array:
        return self._columns["error"][env * self._slots + positions % self._slots]

    def sample(self, batch_size: int, beta: float = 0.4) -> TransitionBatch:
        """Samples transitions with replacement; if prioritised, with importance weights of exponent ``beta``."""
        slots, weights = self._draw(batch_size, beta)
        batch = self.gather(slots)
        return batch if weights is None else batch._replace(weights=weights, indices=slots)

    def example(self, batch_size: int) -> TransitionBatch:
        """A batch with the right shapes and arbitrary contents."""
        batch = self.gather(np.zeros(batch_size, np.int64))
        return batch if self._priorities is None else batch._replace(weights=torch.ones_like(batch.reward))

    def gather(self, slots: NDArray[np.int64]) -> TransitionBatch:
        """The transitions that start in these slots, as new tensors."""
        next_slots = self._shifted(slots, self._columns["length"][slots])
        obs, next_obs = self._observations(np.stack([slots, next_slots]))
        return TransitionBatch(
            obs=obs,
            action=self._take("action", slots),
            reward=self._take("reward", slots),
            next_obs=next_obs,
            discount=self._take("discount", slots),
            next_action_mask=self._take("action_mask", next_slots) if "action_mask" in self._columns else None,
        )

    def check(self, spec: SpaceSpec) -> None:
        super().check(spec)
        if "action_mask" in self._columns:
            slots = self._held_slots()
            require_masks(self._columns["action_mask"][self._shifted(slots, self._columns["length"][slots])])

    def _fits(self) -> dict[str, Any]:
        return {"capacity": self.capacity, **super()._fits()}
