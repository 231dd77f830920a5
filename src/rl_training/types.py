"""The small data types that travel between the parts. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
#: What a policy remembers between steps; a feed-forward policy's is ``()``.
Carry = tuple[Any, ...]
#: Nested dicts and lists of arrays, tensors and plain JSON values: what every ``state_dict`` returns.
State = dict[str, Any]


def reset_rows(carry: Carry, rows: NDArray[np.bool_]) -> Carry:
    """The carry with these rows (env,) at the start of an episode, which is zero everywhere."""
    if not carry or not rows.any():
        return carry
    fresh = tuple(array.copy() for array in carry)
    for array in fresh:
        array[rows] = 0
    return fresh


class Step(NamedTuple):
    """One step of N environments. ``next_obs`` is the true next observation, the final one of an ended episode."""

    obs: Array  # (env, ...)
    action: Array  # (env, ...) as the policy gave it, before scaling to the environment
    reward: NDArray[np.float32]  # (env,)
    next_obs: Array  # (env, ...)
    terminated: NDArray[np.bool_]  # (env,)
    truncated: NDArray[np.bool_]  # (env,)
    next_action_mask: NDArray[np.bool_] | None = None  # (env, action): what is allowed at next_obs

    @property
    def ended(self) -> NDArray[np.bool_]:
        return self.terminated | self.truncated


class PolicyOutput(NamedTuple):
    """What ``Policy.act`` returns: actions, the carry after them, and whatever a recorder wants to store."""

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


class TransitionBatch(NamedTuple):
    """Sampled transitions as tensors."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    next_action_mask: Tensor | None = None
    weights: Tensor | None = None  # importance weights of prioritised replay
    indices: NDArray[np.int64] | None = None  # where the priorities go


class SequenceBatch(NamedTuple):
    """Sampled sequences as tensors, time first. They never cross an episode; padding follows a sequence's end.

    A target is always ``reward + discount * value(obs[burn_in + bootstrap])``, the value in the state that is reached there.
    """

    obs: Tensor  # (burn_in + time + n, batch, ...): before the sequence, of its steps, and what their targets need after it
    action: Tensor  # (time, batch)
    reward: Tensor  # (time, batch) summed over up to n steps
    discount: Tensor  # (time, batch) gamma^k * (1 - terminated)
    bootstrap: Tensor  # (time, batch) t + k, with k the number of rewards really summed
    mask: Tensor  # (time, batch) 1 for real steps, 0 for padding
    episode_start: Tensor  # (time, batch) whether an episode starts there
    state: tuple[Tensor, ...]  # (batch, ...) each: what acting remembered before the first row
    previous: Tensor | None = None  # (burn_in + time + n, batch, action + 1) the action before, one-hot, and its reward
    action_mask: Tensor | None = None  # (time + n, batch, action) what is allowed
    burn_in: int = 0  # rows of ``obs`` that precede the sequences
    has_burn_in: Tensor | None = None  # (batch,) False: the sequence starts its episode, and the rows before it mean nothing
    weights: Tensor | None = None  # (batch,) importance weights of prioritised replay
    indices: NDArray[np.int64] | None = None  # where the priorities go


@dataclass(frozen=True)
class UpdateResult:
    """What one gradient update measured. Samples stay tensors; means are taken when somebody looks."""

    samples: Mapping[str, Tensor]
    priorities: Tensor | None = None  # (batch,) what prioritised replay should remember
    share: Tensor | None = None  # how much each sample counts in a mean; none: all alike

    @cached_property
    def metrics(self) -> dict[str, float]:
        share = self.share
        if share is None:
            return {name: float(value.mean()) for name, value in self.samples.items()}
        return {name: float((value * share).sum()) for name, value in self.samples.items()}


@dataclass(frozen=True)
class ObservationSpec:
    """An observation as a policy sees it: a float32 vector or a channel-first uint8 image.

    ``raw_shape`` is the environment's own shape; ``one_hot_sizes`` is set for Discrete and MultiDiscrete spaces, whose
    entries (less ``one_hot_starts``) become one-hot blocks.
    """

    kind: str  # "vector" | "image"
    shape: tuple[int, ...]
    raw_shape: tuple[int, ...]
    one_hot_sizes: tuple[int, ...] = ()
    one_hot_starts: tuple[int, ...] = ()

    @property
    def dtype(self) -> type[np.float32] | type[np.uint8]:
        return np.uint8 if self.kind == "image" else np.float32

    def encode(self, raw: Any) -> Array:
        """A batch of raw observations (batch, *raw_shape) as the policy's input (batch, *shape)."""
        batch = np.asarray(raw)
        if not self.one_hot_sizes:
            return np.ascontiguousarray(batch, dtype=self.dtype).reshape(len(batch), *self.shape)
        indices = batch.reshape(len(batch), -1).astype(np.int64) - np.asarray(self.one_hot_starts)
        if (indices < 0).any():
            raise IndexError(f"{batch.tolist()} lies below the first value")
        blocks = [np.eye(size, dtype=np.float32)[indices[:, i]] for i, size in enumerate(self.one_hot_sizes)]
        return np.concatenate(blocks, axis=1)


@dataclass(frozen=True)
class ActionSpec:
    """An action as a policy gives it: an index from 0, or a vector in [-1, 1]."""

    kind: str  # "discrete" | "continuous"
    count: int = 0  # discrete: how many
    start: int = 0  # discrete: the environment's first action
    masked: bool = False  # discrete: the environment says which actions are allowed
    low: tuple[float, ...] = ()  # continuous: bounds, flat
    high: tuple[float, ...] = ()
    raw_shape: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.kind == "discrete" else (len(self.low),)

    @property
    def dtype(self) -> type[np.int64] | type[np.float32]:
        return np.int64 if self.kind == "discrete" else np.float32

    def to_env(self, action: Array) -> Array:
        """A batch of policy actions in the environment's own terms."""
        if self.kind == "discrete":
            return action + self.start if self.start else action
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        scaled = low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
        scaled = np.minimum(scaled, high)  # of bounds that are not symmetric, the sum can round to above them
        return scaled.astype(np.float32).reshape(len(action), *self.raw_shape)

    def from_env(self, action: Array) -> Array:
        """The inverse of ``to_env``: actions that an environment took as a replay buffer stores them."""
        if self.kind == "discrete":
            return action - self.start
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        return ((action.reshape(len(action), -1) - low) / (high - low) * 2.0 - 1.0).astype(np.float32)


@dataclass(frozen=True)
class SpaceSpec:
    """Both spaces: all that a network needs to know of an environment."""

    observation: ObservationSpec
    action: ActionSpec

    def to_json(self) -> dict[str, Any]:
        return {"observation": dict(vars(self.observation)), "action": dict(vars(self.action))}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SpaceSpec:
        def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
            return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}

        return cls(ObservationSpec(**tuples(data["observation"])), ActionSpec(**tuples(data["action"])))
