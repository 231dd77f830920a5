"""Replay of sequences for networks with memory (Hausknecht & Stone 2015, arXiv:1507.06527; stored states, burn-in and
overlap: Kapturowski et al. 2019, OpenReview r1lyTjAqYX)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.data.sequence_rings import SequenceRings
from rl_training.types import Array, SequenceBatch


class RecurrentReplayBuffer(SequenceRings):
    """Sequences of ``sequence_length`` steps from about the newest ``capacity`` steps, an equal share for each environment.

    A sequence starts every ``sequence_length`` - ``overlap`` steps of an episode; the last one may be shorter and is padded
    when sampled. A sequence can be sampled once its episode has ended or the n further steps that its targets need have been
    added. A batch also has the ``burn_in`` steps before each sequence and the state before those; the first sequence of an
    episode has no burn-in. With ``previous_actions`` (the number of actions) it also has the previous action and reward of
    each observation.
    """

    def sample(self, batch_size: int, beta: float = 0.0) -> SequenceBatch:
        """Samples ``batch_size`` sequences uniformly with replacement. Uniform samples need no correction by ``beta``."""
        return self.gather(self._draw(batch_size, beta)[0])

    def example(self, batch_size: int) -> SequenceBatch:
        """A batch with the right shapes and arbitrary contents."""
        return self.gather(np.zeros(batch_size, np.int64))

    def gather(self, slots: NDArray[np.int64]) -> SequenceBatch:
        """The sequences that start in these slots, as new tensors."""
        columns, total = self._columns, self.sequence_length
        length, first = columns["sequence"][slots], columns["first"][slots]
        time = np.arange(total)[:, None]
        mask = (time < length).astype(np.float32)
        steps = self._shifted(slots, np.minimum(time, length - 1))  # padding repeats the last step
        windows = columns["length"][steps]
        last = length - 1 + windows[-1]  # the last observation that a target needs; later rows repeat it
        earliest = np.where(first, 0, -self.burn_in)
        rows = np.arange(-self.burn_in, total + self.n_step)[:, None].clip(earliest, last)
        observed = self._shifted(slots, rows)
        mask_tensor = self._to_device(mask)
        return SequenceBatch(
            obs=self._sequences(slots, earliest, last) if self.stack > 1 else self._take("frame", observed),
            action=self._take("action", steps),
            reward=self._take("reward", steps) * mask_tensor,
            discount=self._take("discount", steps) * mask_tensor,
            bootstrap=self._to_device(np.where(mask, time + windows, time)),
            mask=mask_tensor,
            episode_start=self._to_device((time == 0) & first),
            state=tuple(self._state(states, slots, first) for states in self._states),
            previous=self._previous(observed) if self._previous_actions else None,
            action_mask=self._take("action_mask", observed[self.burn_in :]) if "action_mask" in columns else None,
            burn_in=self.burn_in,
            has_burn_in=self._to_device(~first) if self.burn_in else None,
        )

    def _sequences(self, slots: NDArray[np.int64], earliest: NDArray[np.int64], last: NDArray[np.int64]) -> torch.Tensor:
        """The stacks of sequences that start in these slots, from row ``earliest`` to ``last``; the rows before and after are
        padding. Missing frames before the first row repeat the oldest."""
        oldest = earliest - self._columns["age"][self._shifted(slots, earliest)]
        rows = np.arange(1 - self.stack - self.burn_in, self.sequence_length + self.n_step)[:, None].clip(oldest, last)
        return self._frames.windows(self._columns["frame"], self._shifted(slots, rows).T, self._device)

    def _state(self, states: Array, slots: NDArray[np.int64], first: NDArray[np.bool_]) -> torch.Tensor:
        taken = torch.empty((len(slots), *states.shape[1:]))
        states.take(slots // self._stride, axis=0, out=taken.numpy(), mode="clip")
        taken[torch.from_numpy(first)] = 0.0
        return taken.to(self._device)

    def _previous(self, observed: NDArray[np.int64]) -> torch.Tensor:
        """(row, batch, action + 1): one-hot previous action and its reward of each observation; zero where there is none."""
        previous = torch.zeros((*observed.shape, self._previous_actions + 1))
        array = previous.numpy()
        array[..., :-1] = self._columns["previous_action"][observed][..., None] == np.arange(self._previous_actions)
        array[..., -1] = self._columns["previous_reward"][observed]
        return previous.to(self._device)

    def _to_device(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
