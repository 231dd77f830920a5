"""Rings that also take many steps at a time. They hold afterwards what they would hold if the steps came one by one."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from rl_training.data.blocks import CompactSteps, Span, expanded, item_at
from rl_training.data.episode_rings import EpisodeRings
from rl_training.types import Array, SpaceSpec


class BlockRings(EpisodeRings):
    """``EpisodeRings`` that take blocks in spans: consecutive steps of one environment within an episode."""

    def check(self, spec: SpaceSpec) -> None:
        """Refuses what was loaded if it cannot come from environments with this spec."""
        self._queue.check(self._slots)
        self._check_columns(spec, self.n_step)
        if self._priorities is not None:
            self._priorities.check(self._held_slots())

    def _held_slots(self) -> NDArray[np.int64]:
        """The first slots of all items."""
        return self._slots_of(np.arange(len(self)))

    def _check_block(self, block: CompactSteps, first: int) -> None:
        """Makes the checks of single steps; row 0 of the block is environment ``first``. If the block has only the newest
        frames, the stacks were checked when the others were dropped."""
        if block.next_obs.shape[2:] == block.first.shape[1:] and self._stacks.looks:
            steps = expanded(block)
            for t in range(len(steps.reward)):
                self._stacks.check(item_at(steps, t), first)
        present = block.rest.present
        rows = range(len(block.first)) if present is None else np.flatnonzero(present[0]).tolist()
        self._check_continues(block.first, [first + row for row in rows], first)

    @property
    def _longest_span(self) -> int:
        """The most steps that can be added at a time: those of incomplete items must not be overwritten."""
        return self._slots - self._under_way

    def _add_span(self, env: int, block: CompactSteps, span: Span) -> None:
        """Adds some steps of an environment. The caller then settles the priorities."""
        ring, columns, steps = self._rings[env], self._columns, block.rest
        if not ring.running:
            self._begin(env, block.obs_at(span.begin, span.env))
        begin, count = ring.written - 1, span.end - span.begin
        slots = self._run(env, begin, count + 1)
        columns["action"][slots[:-1]] = steps.action[span.place]
        columns["reward"][slots[:-1]] = steps.reward[span.place]
        self._append_frames(env, block, span, slots)
        if "action_mask" in columns and steps.next_action_mask is not None:
            columns["action_mask"][slots[1:]] = steps.next_action_mask[span.place]
        terminated, truncated = bool(steps.terminated[span.end - 1, span.env]), bool(steps.truncated[span.end - 1, span.env])
        ended, end = terminated or truncated, begin + count
        complete = end if ended else end + 1 - self.n_step  # the first incomplete window
        windows = range(ring.waiting, max(ring.waiting, complete))
        if "error" in columns:
            assert steps.values is not None, "these rings need the Q-values of acting"
            columns["error"][slots[:-1]] = steps.values.chosen[span.place]
        if windows:
            self._complete_windows(env, windows, end, terminated)
            if self._targets is not None and steps.values is not None:
                self._note_errors(env, windows, begin, steps.values.after[span.place])
        ring.waiting = windows.stop
        ring.running = not ended
        self._enqueue_items(env, np.fromiter(self._items(env, windows, ended), np.int64))

    def _append_frames(self, env: int, block: CompactSteps, span: Span, slots: NDArray[np.int64]) -> None:
        """Stores the observations after these steps and retires the items whose oldest slots they overwrite; ``slots`` begin
        with that of the observation before."""
        ring, count = self._rings[env], len(slots) - 1
        self._retire_below(env, ring.written + count - self._slots)
        if self._unsaved is not None:
            self._unsaved.before_writing(f"env{env}", ring.written + count)
        frames = block.next_obs[span.place]
        whole = frames.shape[1:] != self._frames.dtype.shape
        self._columns["frame"][slots[1:]] = self._frames.newest(frames) if whole else frames
        age = self._columns["age"][slots[0]] + np.arange(1, count + 1)
        self._columns["age"][slots[1:]] = np.minimum(age, self.stack - 1)
        ring.written += count

    def _retire_below(self, env: int, limit: int) -> None:
        """Retires the items that need a position below this."""
        ring = self._rings[env]
        if not len(ring):
            return
        suspects = min(limit + self._longest_reach - self._queue.oldest(env), len(ring))
        if suspects > 0:
            reach = self._reach(env, self._queue.first(env, suspects))
            self._retire_items(env, int(np.count_nonzero(reach < limit)))

    def _retire_items(self, env: int, count: int) -> None:
        """Retires the oldest items; none if the number is not above 0."""
        if count > 0:
            self._note(env, self._queue.first(env, count), held=False)
            self._rings[env].retired += count

    def _enqueue_items(self, env: int, positions: NDArray[np.int64]) -> None:
        ring = self._rings[env]
        for begin in range(0, len(positions), ring.quota):
            some = positions[begin : begin + ring.quota]
            self._retire_items(env, len(ring) + len(some) - ring.quota)
            self._queue.extend(env, some)
            self._note(env, some, held=True)

    def _note(self, env: int, positions: NDArray[np.int64], *, held: bool) -> None:
        if self._priorities is not None:
            slots = (env * self._slots + positions % self._slots).tolist()
            self._priorities.changed |= dict.fromkeys(slots, held)
            if held and self._targets is not None:
                self._priorities.initial |= zip(slots, self._first_priorities(env, positions).tolist(), strict=True)

    @abstractmethod
    def _first_priorities(self, env: int, positions: NDArray[np.int64]) -> Array:
        """The priorities of new items, from the TD errors of acting; NaN where they are not known."""

    def _note_errors(self, env: int, windows: range, begin: int, after: Array) -> None:
        """Stores the TD errors of complete windows; ``after`` are the values after the steps from position ``begin`` on."""
        assert self._targets is not None
        slots = self._run(env, windows.start, len(windows))
        last = np.arange(windows.start, windows.stop) + self._columns["length"][slots] - 1
        reward, discount = (self._columns[name][slots].astype(np.float64) for name in ("reward", "discount"))
        target = self._targets(reward, discount, after[last - begin].astype(np.float64))
        self._columns["error"][slots] = np.abs(target - self._columns["error"][slots])

    def _complete_windows(self, env: int, windows: range, end: int, terminated: bool) -> None:
        """Stores the n-step sums of these windows over their first rewards, which are not needed again. A window ends after n
        steps, or before position ``end``."""
        count, n = len(windows), self.n_step
        slots = self._run(env, windows.start, end - windows.start)
        reward = np.zeros(count + n - 1)
        reward[: len(slots)] = self._columns["reward"][slots]
        total = np.zeros(count)
        for k in reversed(range(n)):
            total = reward[k : k + count] + self.gamma * total
        length = np.minimum(end - np.arange(windows.start, windows.stop), n)
        discount = self._powers[length]
        if terminated:
            discount[max(0, count - n) :] = 0.0
        slots = slots[:count]
        self._columns["reward"][slots], self._columns["length"][slots] = total, length
        self._columns["discount"][slots] = discount
