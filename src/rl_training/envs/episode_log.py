"""A log of each unfinished episode in a few bytes per step: enough to replay it and to find the first step at which a replay
differs.

A step takes its action (in the smallest type that holds it), the exact reward, and a digest of 4 bytes for the observation
and another for the action mask. Digests are of the packed observations that the run uses, in their single precision.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.types import ActionSpec, Array, SpaceSpec, State

Digests = NDArray[np.uint32]
#: Steps are digested many at a time, which takes a tenth of the time; at most this many steps and bytes wait for it.
MOST_WAITING_STEPS = 256
MOST_WAITING_BYTES = 1 << 18


class EpisodeRecord(NamedTuple):
    """The log of one episode. The first digests are of what ``reset`` returned."""

    actions: Array  # (step, ...) as the environment got them
    obs: Digests  # (1 + step,)
    reward: NDArray[np.float32]  # (step,)
    mask: Digests  # (1 + step,); empty if actions are not masked


class _Waiting:
    """Steps of all environments that are not digested yet. Their arrays are reused, so that a step allocates nothing."""

    def __init__(self, steps: int, num_envs: int, spec: SpaceSpec, action_type: np.dtype[Any]) -> None:
        self.count = 0
        self.actions: Array = np.empty((steps, num_envs, *spec.action.raw_shape), action_type)
        self.obs: Array = np.empty((steps, num_envs, *spec.observation.shape), spec.observation.dtype)
        self.reward = np.empty((steps, num_envs), np.float32)
        self.mask = np.empty((steps, num_envs, spec.action.masked_count), np.bool_) if spec.action.masked else None
        self.present: NDArray[np.bool_] | None = None  # (step, env) who made each step; None: everyone made all of them

    @property
    def full(self) -> bool:
        return self.count == len(self.reward)

    def add(
        self, actions: Array, obs: Array, reward: Array, mask: NDArray[np.bool_] | None, active: Sequence[int] | None
    ) -> None:
        k = self.count
        self.actions[k], self.obs[k], self.reward[k] = actions, obs, reward
        if self.mask is not None:
            self.mask[k] = mask
        if active is not None:
            if self.present is None:
                self.present = np.ones(self.reward.shape, np.bool_)
            self.present[k] = np.isin(np.arange(self.reward.shape[1]), active)
        self.count = k + 1

    def clear(self) -> None:
        self.count, self.present = 0, None


class EpisodeLog:
    """The logs of N environments. An episode longer than ``most_steps`` is not kept, because it will not be replayed."""

    def __init__(self, num_envs: int, spec: SpaceSpec, most_steps: int | None = None) -> None:
        self.most_steps = most_steps
        self._steps = 0  # in all
        #: the value of ``_steps`` when each episode began, plus the number of steps that its environment has left out since
        self._begun = [0] * num_envs
        self._num_envs, self._masked = num_envs, spec.action.masked
        self._action_type, self._action_shape = _compact_type(spec.action), spec.action.raw_shape
        fields: list[Any] = [("action", self._action_type, self._action_shape), ("obs", np.uint32), ("reward", np.float32)]
        self._row = np.dtype([*fields, ("mask", np.uint32)] if self._masked else fields)
        self._no_rows = np.empty(0, self._row)
        self._rows = [self._no_rows] * num_envs
        self._kept = [0] * num_envs  # rows in use
        nothing = np.empty(0, np.uint32)
        self._first: list[tuple[Array, NDArray[np.bool_] | None] | None] = [None] * num_envs  # resets not digested yet
        self._first_digests: list[tuple[Digests, Digests]] = [(nothing, nothing)] * num_envs
        self._since = [0] * num_envs  # the waiting steps from here on are of the episode under way
        size = max(1, num_envs * sum(leaf.nbytes for leaf in spec.observation.leaves))
        most_waiting = max(1, min(MOST_WAITING_STEPS, MOST_WAITING_BYTES // size))
        self._waiting = _Waiting(most_waiting, num_envs, spec, self._action_type)

    @property
    def nbytes(self) -> int:
        """The memory of the digested steps."""
        return sum(rows.nbytes for rows in self._rows)

    @property
    def lengths(self) -> list[int]:
        """The number of steps of each episode."""
        return [self._steps - begun for begun in self._begun]

    def length(self, i: int) -> int:
        """The number of steps of the episode of environment i."""
        return self._steps - self._begun[i]

    def begin(self, i: int, obs: Array, mask: NDArray[np.bool_] | None) -> None:
        """Environment i has begun an episode with this observation and this mask."""
        self._first[i] = obs.copy(), None if mask is None else mask.copy()
        self._rows[i], self._kept[i] = self._no_rows, 0
        self._since[i] = self._waiting.count
        self._begun[i] = self._steps

    def add(
        self,
        actions: Array,
        obs: Array,
        reward: NDArray[np.float32],
        mask: NDArray[np.bool_] | None,
        active: Sequence[int] | None = None,
    ) -> None:
        """One step of all environments, or of the active ones. Nothing of the arrays is kept."""
        self._steps += 1
        if active is not None:
            for i in set(range(self._num_envs)).difference(active):
                self._begun[i] += 1
        self._waiting.add(actions, obs, reward, mask, active)
        if self._waiting.full:
            self._digest_waiting()

    def _digest_waiting(self) -> None:
        waiting, count = self._waiting, self._waiting.count
        since, self._since = self._since, [0] * self._num_envs
        if not count:
            return
        steps = np.empty((count, self._num_envs), self._row)
        steps["action"], steps["reward"] = waiting.actions[:count], waiting.reward[:count]
        steps["obs"] = _step_digests(waiting.obs[:count])
        if waiting.mask is not None:
            steps["mask"] = _step_digests(waiting.mask[:count])
        present = waiting.present
        for i in range(self._num_envs):
            own = steps[since[i] :, i]
            self._keep(i, own if present is None else own[present[since[i] : count, i]])
        waiting.clear()

    def _keep(self, i: int, steps: Array) -> None:
        if self.most_steps is not None and self.length(i) > self.most_steps:
            self._rows[i], self._kept[i] = self._no_rows, 0
            return
        kept = self._kept[i]
        needed = kept + len(steps)
        if needed > len(self._rows[i]):
            larger = np.empty(needed + needed // 4, self._row)
            larger[:kept] = self._rows[i][:kept]
            self._rows[i] = larger
        self._rows[i][kept:needed] = steps
        self._kept[i] = needed

    def actions(self, i: int) -> Array | None:
        """The actions of the episode under way as the environment got them; None if they were not kept."""
        self._digest_waiting()
        if self._kept[i] != self.length(i):
            return None
        compact = self._rows[i]["action"][: self._kept[i]]
        return compact.astype(np.int64 if self._action_type.kind == "u" else self._action_type)

    def record(self, i: int) -> EpisodeRecord:
        """The episode of environment i so far; without steps if they were not kept."""
        self._digest_waiting()
        rows = self._rows[i][: self._kept[i]]
        first_obs, first_mask = self._digest_first(i)
        return EpisodeRecord(
            rows["action"].copy(),
            np.concatenate([first_obs, rows["obs"]]),
            rows["reward"].copy(),
            np.concatenate([first_mask, rows["mask"]]) if self._masked else first_mask,
        )

    def state_dict(self) -> State:
        """The records of all environments."""
        records = [self.record(i) for i in range(self._num_envs)]
        return {
            "lengths": self.lengths,
            "actions": [record.actions for record in records],
            "obs_digests": [record.obs for record in records],
            "rewards": [record.reward for record in records],
            "mask_digests": [record.mask for record in records],
        }

    def _digest_first(self, i: int) -> tuple[Digests, Digests]:
        first, self._first[i] = self._first[i], None
        if first is not None:
            obs, mask = first
            self._first_digests[i] = digests(obs[None]), np.empty(0, np.uint32) if mask is None else digests(mask[None])
        return self._first_digests[i]

    def restore(self, i: int, record: EpisodeRecord, length: int) -> None:
        """Environment i continues a recorded episode, which has this many steps."""
        self._digest_waiting()
        rows = np.empty(len(record.actions), self._row)
        rows["action"], rows["obs"], rows["reward"] = record.actions, record.obs[1:], record.reward
        if self._masked:
            rows["mask"] = record.mask[1:]
        self._rows[i], self._kept[i] = rows, len(rows)
        self._first[i], self._first_digests[i] = None, (record.obs[:1], record.mask[:1])
        self._begun[i] = self._steps - length


def _compact_type(action: ActionSpec) -> np.dtype[Any]:
    """The smallest type that holds every action of the environment."""
    if action.low:
        return action.to_env(np.zeros((1, *action.shape), np.float32)).dtype
    if action.sizes:
        return np.dtype(action.raw_dtype)
    last = action.start + action.count - 1
    return np.min_scalar_type(last) if action.start >= 0 else np.dtype(np.int64)


def _step_digests(steps: Array) -> Digests:
    """A digest of each row (step, env, ...)."""
    return digests(steps.reshape(-1, *steps.shape[2:])).reshape(steps.shape[:2])


def digests(rows: Array) -> Digests:
    """A digest of each row: its words of 32 bits times fixed odd numbers, added up, and of this sum the upper half. This is
    multilinear hashing, where two different rows agree by a chance of 2^-32. Checkpoints contain it: it must not change."""
    row_bytes = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)
    if row_bytes.shape[1] % 4:
        row_bytes = np.pad(row_bytes, ((0, 0), (0, -row_bytes.shape[1] % 4)))
    words = row_bytes.view(np.uint32).astype(np.uint64)
    sums: NDArray[np.uint64] = words @ _factors(words.shape[1])
    upper: Digests = (sums >> np.uint64(32)).astype(np.uint32)
    return upper


@functools.cache
def _factors(count: int) -> NDArray[np.uint64]:
    """Fixed odd numbers that look random: the outputs of SplitMix64."""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    factors: NDArray[np.uint64] = (x ^ (x >> np.uint64(31))) | np.uint64(1)
    return factors


def first_difference(saved: EpisodeRecord, found: EpisodeRecord, ended: str | None = None) -> str | None:
    """The first difference between a replay and its episode, or None. ``ended`` is the flag that ended the replay at its last
    step, although the episode had continued."""
    steps = min(len(saved.reward), len(found.reward))
    other_obs = saved.obs[: steps + 1] != found.obs[: steps + 1]
    other_mask = saved.mask[: steps + 1] != found.mask[: steps + 1]
    other_reward = np.concatenate([[False], saved.reward[:steps].view(np.uint32) != found.reward[:steps].view(np.uint32)])
    firsts = [int(other.argmax()) for other in (other_obs, other_mask, other_reward) if other.any()]
    if ended is not None:
        firsts.append(steps)
    if not firsts:
        return None
    step = min(firsts)
    parts = ["another observation"] if other_obs[step] else []
    if other_reward[step]:
        parts.append(f"the reward {found.reward[step - 1]} in place of {saved.reward[step - 1]}")
    if len(other_mask) and other_mask[step]:
        parts.append("another action_mask")
    if ended is not None and step == steps:
        parts.append(f"{ended} = true")
    where = f"step {step} of {len(saved.reward)}" if step else "its reset"
    return f"{where} gave {' and '.join(parts)}"
