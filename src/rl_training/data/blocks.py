"""Blocks: the items of several steps as one item whose arrays have a leading time axis, and their compact form for a message.

Consecutive observations share most of their data: an observation is the next observation of the step before, except after a
reset, and a stack of frames adds one frame to the stack before. The compact form keeps each part once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_training.types import Array, Step, Transitions

ItemT = TypeVar("ItemT", bound=tuple[Any, ...])


def stacked(items: Sequence[ItemT]) -> ItemT:
    """Items of equal shapes (a ``NamedTuple`` of arrays, tuples and None) with a leading time axis on every array."""
    return _stack(items)  # type: ignore[no-any-return]


def _stack(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Step):
        values = _with_presence(values)
        first = values[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        columns = [_stack(column) for column in zip(*values, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return np.stack(values)


def _with_presence(steps: Sequence[Step]) -> Sequence[Step]:
    """Sets ``present`` in all steps if environments are missing in some of them."""
    if all(step.present is None for step in steps):
        return steps
    return [step._replace(present=np.ones(len(step.reward), np.bool_)) if step.present is None else step for step in steps]


def item_at(block: ItemT, t: int) -> ItemT:
    """The item of step t of a block."""
    return _at(block, t)  # type: ignore[no-any-return]


def _at(value: Any, t: int) -> Any:
    if isinstance(value, tuple):
        parts = [_at(part, t) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return None if value is None else value[t]


def joined(transitions: Sequence[Transitions]) -> Transitions:
    """The transitions of several steps in one batch."""
    columns: list[Any] = [None if values[0] is None else np.concatenate(values) for values in zip(*transitions, strict=True)]
    return Transitions(*columns)


class CompactSteps(NamedTuple):
    """A block of steps without repetitions. ``next_obs`` are whole observations, or only their newest frames."""

    first: Array  # (env, ...): the first observations
    after_reset: Array  # (reset, ...): those that are not the next observation of the step before
    is_after_reset: NDArray[np.bool_]  # (time, env): where they are; never in the first step
    next_obs: Array  # (time, env, ...)
    rest: Step  # the block with empty observations

    def obs_at(self, t: int, env: int) -> Array:
        """The observation before step t of an environment, which is the first step or follows a reset."""
        before = np.count_nonzero(self.is_after_reset.ravel()[: t * self.is_after_reset.shape[1] + env])
        obs: Array = self.first[env] if t == 0 else self.after_reset[before]
        return obs


def compact(steps: Sequence[Step], frame_channels: int | None = None) -> CompactSteps:
    """The compact form of consecutive steps. ``frame_channels`` is the number of channels of a frame if observations are
    stacks of frames; where they are not stacked as they should be, they are kept whole."""
    c = frame_channels
    first = steps[0].obs
    next_obs = [step.next_obs for step in steps]
    if c is not None and c < first.shape[1] and all(np.array_equal(s.next_obs[:, :-c], s.obs[:, c:]) for s in steps):
        next_obs = [array[:, -c:] for array in next_obs]
    fresh = [step.obs[before.ended] for before, step in pairwise(steps)]
    nothing = first[:0]
    rest = stacked([step._replace(obs=nothing, next_obs=nothing) for step in steps])
    reset = np.zeros(rest.reward.shape, np.bool_)
    reset[1:] = rest.ended[:-1]
    return CompactSteps(first, np.concatenate([nothing, *fresh]), reset, np.stack(next_obs), rest)


class Span(NamedTuple):
    """Consecutive steps of one environment of a block, all of one episode."""

    env: int
    begin: int
    end: int

    @property
    def place(self) -> tuple[slice, int]:
        """Where they are in an array (time, env, ...)."""
        return slice(self.begin, self.end), self.env


def spans(block: CompactSteps, longest: int) -> Iterator[Span]:
    """All steps of a block, of one environment after the other, in spans of at most ``longest`` steps. Steps that an
    environment has not made are left out."""
    present, last = block.rest.present, block.rest.ended
    if present is not None:
        last = last | ~present
    for env in range(last.shape[1]):
        begin = 0
        for at in (*np.flatnonzero(last[:-1, env]).tolist(), len(last) - 1):
            end = at + 1 if present is None or present[at, env] else at
            for first in range(begin, end, longest):
                yield Span(env, first, min(first + longest, end))
            begin = at + 1


def expanded(steps: CompactSteps) -> Step:
    """The block that a compact form was made of."""
    next_obs, reset, c = steps.next_obs, steps.is_after_reset, steps.next_obs.shape[2] if steps.next_obs.ndim > 2 else 0
    obs = np.empty((*next_obs.shape[:2], *steps.first.shape[1:]), next_obs.dtype)
    obs[0] = steps.first
    if obs.shape == next_obs.shape:
        obs[1:] = next_obs[:-1]
        obs[reset] = steps.after_reset
        return steps.rest._replace(obs=obs, next_obs=next_obs)
    whole, used = np.empty_like(obs), 0
    for t in range(len(obs)):
        if t:
            obs[t] = whole[t - 1]
            fresh = int(reset[t].sum())
            obs[t][reset[t]] = steps.after_reset[used : used + fresh]
            used += fresh
        whole[t, :, :-c] = obs[t, :, c:]
        whole[t, :, -c:] = next_obs[t]
    return steps.rest._replace(obs=obs, next_obs=whole)
