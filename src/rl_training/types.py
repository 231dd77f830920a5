"""The data types that the parts of the library exchange. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.specs import ActionKind as ActionKind
from rl_training.specs import ActionSpec as ActionSpec
from rl_training.specs import Array as Array
from rl_training.specs import LeafPath as LeafPath
from rl_training.specs import ObservationKind as ObservationKind
from rl_training.specs import ObservationLeaf as ObservationLeaf
from rl_training.specs import ObservationSpec as ObservationSpec
from rl_training.specs import SpaceSpec as SpaceSpec
from rl_training.specs import entry_at as entry_at
from rl_training.specs import path_name as path_name

if TYPE_CHECKING:
    from torch import Tensor

#: The state that a policy carries between steps; ``()`` for a feed-forward policy.
Carry = tuple[Any, ...]
#: Nested dicts and lists of arrays, tensors and plain JSON values: what every ``state_dict`` returns.
State = dict[str, Any]


def reset_rows(carry: Carry, rows: NDArray[np.bool_]) -> Carry:
    """The carry with these rows (env,) reset to the start of an episode, which is all zeros."""
    if not carry or not rows.any():
        return carry
    fresh = tuple(array.copy() for array in carry)
    for array in fresh:
        array[rows] = 0
    return fresh


class ActingValues(NamedTuple):
    """What the policy expected of a step when it acted."""

    chosen: NDArray[np.float32]  # (env,) the Q-value of the action
    after: NDArray[np.float32]  # (env,) the largest one at the next observation; NaN where it did not act on that


class Step(NamedTuple):
    """One step of N environments. ``next_obs`` is the true next observation; if the episode ended, its final one."""

    obs: Array  # (env, ...)
    action: Array  # (env, ...) as the policy gave it, before scaling to the environment
    reward: NDArray[np.float32]  # (env,)
    next_obs: Array  # (env, ...)
    terminated: NDArray[np.bool_]  # (env,)
    truncated: NDArray[np.bool_]  # (env,)
    next_action_mask: NDArray[np.bool_] | None = None  # (env, action): the actions allowed at next_obs
    #: (env,) False where there was no step, because the environment spent it on a reset; None: all are present. Such a row
    #: is marked as terminated, with a reward of 0, and must not be learned from.
    present: NDArray[np.bool_] | None = None
    values: ActingValues | None = None  # for initial priorities

    @property
    def ended(self) -> NDArray[np.bool_]:
        return self.terminated | self.truncated

    @property
    def envs(self) -> Sequence[int]:
        """The environments that have made this step."""
        return range(len(self.reward)) if self.present is None else np.flatnonzero(self.present).tolist()


class PolicyOutput(NamedTuple):
    """The result of ``Policy.act``: actions, the carry after them, and extra arrays for the recorder."""

    action: Array
    carry: Carry
    extras: Mapping[str, Array]


class Transitions(NamedTuple):
    """Items of one-step or n-step replay, ready to store. A target is always ``reward + discount * value(next_obs)``."""

    obs: Array
    action: Array
    reward: NDArray[np.float32]
    next_obs: Array
    discount: NDArray[np.float32]  # gamma^k * (1 - terminated)
    next_action_mask: NDArray[np.bool_] | None = None
    priority: NDArray[np.float32] | None = None  # initial ones; NaN, or None for all: not known


class TransitionBatch(NamedTuple):
    """Sampled transitions as tensors."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    next_action_mask: Tensor | None = None
    weights: Tensor | None = None  # importance weights of prioritised replay
    indices: NDArray[np.int64] | None = None  # identify the items when their priorities are updated


class SequenceBatch(NamedTuple):
    """Sampled sequences as tensors, time first. They never cross an episode boundary; padding follows the end of a sequence.

    A target is always ``reward + discount * value(obs[burn_in + bootstrap])``, with the recurrent state at that row.
    """

    obs: Tensor  # (burn_in + time + n, batch, ...): the burn-in, the sequence, and n more for its targets; may be a view
    action: Tensor  # (time, batch)
    reward: Tensor  # (time, batch) summed over up to n steps
    discount: Tensor  # (time, batch) gamma^k * (1 - terminated)
    bootstrap: Tensor  # (time, batch) t + k, where k is the number of rewards summed
    mask: Tensor  # (time, batch) 1 for real steps, 0 for padding
    episode_start: Tensor  # (time, batch) whether an episode starts there
    state: tuple[Tensor, ...]  # (batch, ...) each: the state of acting before the first row
    previous: Tensor | None = None  # (burn_in + time + n, batch, action + 1) one-hot previous action, its reward
    action_mask: Tensor | None = None  # (time + n, batch, action) the allowed actions
    burn_in: int = 0  # rows of ``obs`` that precede the sequences
    has_burn_in: Tensor | None = None  # (batch,) False: the first sequence of an episode; its burn-in rows are padding
    weights: Tensor | None = None  # (batch,) importance weights of prioritised replay
    indices: NDArray[np.int64] | None = None  # identify the items when their priorities are updated


@dataclass(frozen=True)
class UpdateResult:
    """The results of one gradient update. Samples stay tensors; means are only computed when ``metrics`` is read."""

    samples: Mapping[str, Tensor]
    priorities: Tensor | None = None  # (batch,) new priorities for prioritised replay
    share: Tensor | None = None  # weight of each sample in a mean; None: equal weights

    @cached_property
    def metrics(self) -> dict[str, float]:
        share = self.share
        if share is None:
            return {name: float(value.mean()) for name, value in self.samples.items()}
        return {name: float((value * share).sum()) for name, value in self.samples.items()}
