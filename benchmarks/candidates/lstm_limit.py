"""The upper limit of DRQN and R2D2: the same two networks, unrolled by ``nn.LSTM`` over whole sequences, and fused Adam."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from measure import Measurement, Stopwatch, timed
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import SequenceSettings

from rl_training.runtime.cadence import PhaseTimer

ALPHA, BETA, ETA = 0.9, 0.6, 0.9  # R2D2's priorities
FINAL_EPSILON, EXPLORATION_STEPS = 0.05, 10_000


class Network(nn.Module):
    def __init__(self, settings: SequenceSettings) -> None:
        super().__init__()
        width = settings.width
        self.encoder = nn.Linear(settings.obs_dim, width)
        self.lstm = nn.LSTM(width, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, settings.actions)

    def forward(self, obs: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        length, batch = obs.shape[:2]  # flat: a layer on three axes returns a view, which is costly to overwrite
        memory, _ = self.lstm(torch.relu_(self.encoder(obs.flatten(0, 1))).view(length, batch, -1), state)
        values: Tensor = self.head(torch.relu_(self.hidden(memory.flatten(0, 1))))
        return values.view(length, batch, -1)

    def numpy_step(self) -> Callable[[Any, Any, Any], tuple[Any, Any, Any]]:
        """One step of one environment: (obs, h, c) -> (Q-values, h, c), using the parameters' memory directly."""
        encoder, hidden, head = (
            (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in (self.encoder, self.hidden, self.head)
        )
        w_in, w_state, b_in, b_state = (parameter.detach().numpy() for parameter in self.lstm.parameters())

        def step(obs: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
            x = np.maximum(encoder[0] @ obs + encoder[1], 0.0)
            enter, forget, value, leave = np.split(w_in @ x + w_state @ h + b_in + b_state, 4)
            c = c / (1.0 + np.exp(-forget)) + np.tanh(value) / (1.0 + np.exp(-enter))
            h = np.tanh(c) / (1.0 + np.exp(-leave))
            return head[0] @ np.maximum(hidden[0] @ h + hidden[1], 0.0) + head[1], h, c

        return step


class Bare:
    """Sequences as rows of tensors, the two networks, and the update."""

    def __init__(self, settings: SequenceSettings, rows: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.settings, self.updates = settings, 0
        self.online, self.target = Network(settings), Network(settings)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=settings.learning_rate, fused=True)
        length = settings.sequence_length
        self.obs = torch.randn(rows, length + settings.n_step, settings.obs_dim)
        self.action = torch.randint(0, settings.actions, (rows, length))
        self.reward, self.discount = torch.ones(rows, length), torch.full((rows, length), settings.gamma)
        self.bootstrap = torch.arange(1, length + 1).repeat(rows, 1)  # the row that a target bootstraps from
        self.mask = torch.ones(rows, length)
        self.h, self.c = torch.zeros(rows, 1, settings.width), torch.zeros(rows, 1, settings.width)
        self.priority = np.ones(rows)
        self.prioritized = settings.algo == "r2d2"
        self.rng = np.random.default_rng(seed)

    def update(self, rows: int, timer: PhaseTimer) -> None:
        """Samples from the first ``rows`` sequences and learns from them."""
        weight, batch_size = None, self.settings.batch_size
        if self.prioritized:
            sums = np.cumsum(self.priority[:rows] ** ALPHA)
            index = np.searchsorted(sums, self.rng.random(batch_size) * sums[-1])
            chance = self.priority[index] ** ALPHA / sums[-1]
            weights = (rows * chance) ** -BETA
            weight = torch.from_numpy((weights / weights.max()).astype(np.float32))
            drawn = torch.from_numpy(index)
        else:
            drawn = torch.randint(0, rows, (batch_size,))
        columns = (self.obs, self.h, self.c, self.action, self.reward, self.discount, self.bootstrap, self.mask)
        batch = [column.index_select(0, drawn).transpose(0, 1).contiguous() for column in columns]
        timer.lap("sampling")
        errors = self.learn(batch, weight)
        timer.lap("update")
        if self.prioritized:
            self.priority[index] = ETA * errors.amax(0).numpy() + (1.0 - ETA) * errors.mean(0).numpy()
            timer.lap("sampling")

    def learn(self, batch: list[Tensor], weight: Tensor | None) -> Tensor:
        obs, h, c, action, reward, discount, bootstrap, mask = batch
        length = len(action)
        with torch.no_grad():
            target_values = self.target(obs, (h, c))
        if self.prioritized:  # one pass of the online network serves both the loss and the choice of action
            online_values = self.online(obs, (h, c))
            value = target_values.gather(2, online_values.detach().argmax(2, keepdim=True)).squeeze(2)
        else:
            online_values, value = self.online(obs[:length], (h, c)), target_values.amax(2)
        chosen = online_values[:length].gather(2, action.unsqueeze(2)).squeeze(2)
        goal = reward + discount * value.gather(0, bootstrap)
        share = mask if weight is None else mask * weight
        loss = (F.smooth_l1_loss(chosen, goal, reduction="none") * share).sum() / mask.sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.settings.target_copy_updates == 0:
            self.target.load_state_dict(self.online.state_dict())
        errors: Tensor = (goal - chosen.detach()).abs_().mul_(mask)
        return errors

    def store(self, row: int, episode: list[Any], last: Any, terminated: bool) -> int:
        """Cuts an episode of (obs, action, reward, h, c) into sequences from this row on; returns the row after them."""
        settings, end = self.settings, len(episode)
        seen = np.array([*(step[0] for step in episode), last])
        for begin in range(0, end, settings.sequence_length):
            place = np.arange(begin, begin + settings.sequence_length + settings.n_step).clip(max=end)
            self.obs[row] = torch.from_numpy(seen[place])
            self.h[row, 0], self.c[row, 0] = (torch.from_numpy(episode[begin][i]) for i in (3, 4))
            for t in range(settings.sequence_length):
                at = begin + t
                self.mask[row, t] = float(at < end)
                if at < end:
                    stop = min(at + settings.n_step, end)
                    self.action[row, t] = episode[at][1]
                    self.reward[row, t] = sum(settings.gamma**k * episode[at + k][2] for k in range(stop - at))
                    self.discount[row, t] = 0.0 if stop == end and terminated else settings.gamma ** (stop - at)
                    self.bootstrap[row, t] = stop - begin
            self.priority[row] = self.priority[:row].max(initial=1.0)
            row += 1
        return row


def updates(settings: SequenceSettings, seed: int) -> Measurement:
    bare = Bare(settings, settings.sequences, seed)
    rate, seconds = timed(lambda timer: bare.update(settings.sequences, timer), settings.warm_up, settings.updates)
    return Measurement({"updates": rate}, {"updates": bare.updates}, seconds=seconds)


def run(settings: SequenceSettings, seed: int) -> Measurement:
    """The loop on CartPole: act, step, store at the end of an episode, learn."""
    bare, chance, env = Bare(settings, settings.total_steps, seed), random.Random(seed), gym.make("CartPole-v1")
    act, zeros = bare.online.numpy_step(), np.zeros(settings.width, np.float32)
    obs, h, c, rows = env.reset(seed=seed)[0], zeros, zeros, 0
    episode: list[Any] = []
    watch, timer = Stopwatch(), PhaseTimer()
    for done in range(1, settings.total_steps + 1):
        epsilon = 1.0 if done <= settings.learning_starts else 1.0 - (1.0 - FINAL_EPSILON) * done / EXPLORATION_STEPS
        values, next_h, next_c = act(obs, h, c)
        action = chance.randrange(settings.actions) if chance.random() < epsilon else int(values.argmax())
        timer.lap("acting")
        next_obs, reward, terminated, truncated, _ = env.step(action)
        timer.lap("environment")
        episode.append((obs, action, reward, h, c))
        obs, h, c = next_obs, next_h, next_c
        if terminated or truncated:
            rows = bare.store(rows, episode, obs, bool(terminated))
            timer.lap("rest")
            episode, obs, h, c = [], env.reset()[0], zeros, zeros
            timer.lap("environment")
        if done >= settings.learning_starts:
            bare.update(rows, timer)
    rate = watch.rate(settings.total_steps)
    return Measurement(
        {"env steps": rate}, {"env steps": settings.total_steps, "updates": bare.updates}, seconds=timer.seconds
    )
