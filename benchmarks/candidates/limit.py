"""The upper limit: bare programs that do the same work as DQN, QR-DQN or C51 with nothing around it.

They have no config, checkpoints, recorder or metrics, only arrays, a network as a function of one parameter vector, and a
loop. The eager program lets torch run operation by operation; the compiled ones are a single graph from sampled indices to
new weights.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
import torch._inductor
from measure import Measurement, Stopwatch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from workloads import DQNSettings, UpdateSettings

from rl_training.runtime.cadence import PhaseTimer

#: Operation by operation; with torch.compile, as documented; with torch's compiler alone, as we do it.
Mode = Literal["eager", "compiled", "graph"]
BETAS, EPS = (0.9, 0.999), 1e-8
V_MIN, V_MAX = 0.0, 100.0


class Bare:
    """Replay columns, the parameter vectors of the two networks, and the update."""

    def __init__(self, settings: DQNSettings | UpdateSettings, obs_dim: int, actions: int) -> None:
        torch.manual_seed(0)
        self.settings, self.actions = settings, actions
        self.atoms = settings.num_quantiles or settings.num_atoms or 1
        sizes = (obs_dim, *settings.hidden_sizes, actions * self.atoms)
        self.shapes = [shape for i, o in pairwise(sizes) for shape in ((o, i), (o,))]
        bounds = [1.0 / math.sqrt(i) for i in sizes[:-1] for _ in range(2)]
        parts = [torch.empty(shape).uniform_(-b, b) for shape, b in zip(self.shapes, bounds, strict=True)]
        self.online = torch.cat([part.reshape(-1) for part in parts])
        self.target = self.online.clone()
        size = settings.buffer_size
        self.obs, self.next_obs = torch.zeros(size, obs_dim), torch.zeros(size, obs_dim)
        self.action, self.reward, self.alive = torch.zeros(size, dtype=torch.long), torch.zeros(size), torch.ones(size)
        self.support = torch.linspace(V_MIN, V_MAX, self.atoms)
        self.levels = ((torch.arange(self.atoms) + 0.5) / self.atoms).unsqueeze(1)

    def weights(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def network(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        for i in range(0, len(weights), 2):
            x = F.linear(x, weights[i], weights[i + 1])
            x = torch.relu_(x) if i + 2 < len(weights) else x
        return x.view(len(x), self.actions, self.atoms)

    def loss(self, online: Sequence[Tensor], target: Sequence[Tensor], *batch: Tensor) -> Tensor:
        obs, action, reward, next_obs, alive = batch
        discount = (self.settings.gamma * alive).unsqueeze(1)
        rows = torch.arange(len(obs))
        with torch.no_grad():
            after = self.network(target, next_obs)
            if self.settings.num_atoms:
                after = after.softmax(2)
                after = after[rows, (after @ self.support).argmax(1)]
                place = (reward.unsqueeze(1) + discount * self.support - V_MIN) * ((self.atoms - 1) / (V_MAX - V_MIN))
                place = place.clamp(0.0, self.atoms - 1.0)
                lower = place.floor()
                share, index = place - lower, lower.long()
                goal = torch.zeros(len(obs), self.atoms + 1)
                goal = goal.scatter_add(1, index, after * (1.0 - share)).scatter_add(1, index + 1, after * share)
            else:
                goal = reward.unsqueeze(1) + discount * after[rows, after.mean(2).argmax(1)]
        now = self.network(online, obs)[rows, action]
        if self.settings.num_atoms:
            return -(goal[:, : self.atoms] * now.log_softmax(1)).sum(1).mean()
        if not self.settings.num_quantiles:
            return F.smooth_l1_loss(now, goal)
        shape = (len(obs), self.atoms, self.atoms)
        predicted, desired = now.unsqueeze(2).expand(shape), goal.unsqueeze(1).expand(shape)
        huber = F.smooth_l1_loss(predicted, desired, reduction="none")
        return (torch.where(desired < predicted, 1.0 - self.levels, self.levels) * huber).mean(2).sum(1).mean()

    def make_update(self, mode: Mode) -> Callable[[int], Any]:
        """A function that samples from the first ``size`` transitions and learns from them."""
        return self._eager_update() if mode == "eager" else self._compiled_update(mode)

    def _eager_update(self) -> Callable[[int], Any]:
        online = [nn.Parameter(weight) for weight in self.weights(self.online)]  # views: acting reads the same memory
        optimizer = torch.optim.Adam(online, lr=self.settings.learning_rate, fused=True)
        target = self.weights(self.target)
        columns = (self.obs, self.action, self.reward, self.next_obs, self.alive)

        def update(size: int) -> None:
            index = torch.randint(0, size, (self.settings.batch_size,))
            optimizer.zero_grad()
            self.loss(online, target, *(column.index_select(0, index) for column in columns)).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(online, self.settings.max_grad_norm)
            optimizer.step()

        return update

    def _compiled_update(self, mode: Mode) -> Callable[[int], Any]:
        zeros, rate = torch.zeros_like(self.online), self.settings.learning_rate
        columns = (self.obs, self.action, self.reward, self.next_obs, self.alive)
        fixed = (self.online, self.target, zeros.clone(), zeros.clone(), torch.ones(2), torch.tensor(BETAS), *columns)

        def step(*tensors: Tensor) -> list[Tensor]:
            online, target, mean, square, decay, betas, *columns, index = tensors
            batch = [column[index] for column in columns]
            gradient = torch.func.grad(lambda flat: self.loss(self.weights(flat), self.weights(target), *batch))(online)
            norm = torch.linalg.vector_norm(gradient)
            gradient = gradient * (self.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
            decay.mul_(betas)
            mean.lerp_(gradient, 1.0 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1.0 - BETAS[1])
            online.sub_(rate / (1.0 - decay[0]) * mean / ((square / (1.0 - decay[1])).sqrt() + EPS))
            return [norm]

        graph: Any = torch.compile(step, dynamic=False, fullgraph=True)
        if mode == "graph":  # without the checks before each call
            inputs: list[Any] = [*fixed, torch.zeros(self.settings.batch_size, dtype=torch.long)]
            with torch.no_grad():
                traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
                graph = torch._inductor.compile(traced, inputs, {"cpp_wrapper": True})

        @torch.no_grad()
        def update(size: int) -> None:
            graph(*fixed, torch.randint(0, size, (self.settings.batch_size,)))

        return update

    def make_act(self) -> Callable[[Any], Any]:
        """Observations (env, ...) to greedy actions (env,) through numpy views of the weights."""
        weights = [weight.numpy() for weight in self.weights(self.online)]
        support = self.support.numpy()

        def act(x: Any) -> Any:
            for i in range(0, len(weights), 2):
                x = x @ weights[i].T
                x += weights[i + 1]
                if i + 2 < len(weights):
                    np.maximum(x, 0.0, out=x)
            if self.atoms == 1:
                return x.argmax(1)
            x = x.reshape(len(x), self.actions, self.atoms)
            if not self.settings.num_atoms:
                return x.mean(2).argmax(1)
            x = np.exp(x - x.max(2, keepdims=True))
            return ((x @ support) / x.sum(2)).argmax(1)

        return act


def eager(settings: DQNSettings, seed: int) -> Measurement:
    return train(settings, seed, "eager")


def compiled(settings: DQNSettings, seed: int) -> Measurement:
    return train(settings, seed, "compiled")


def graph(settings: DQNSettings, seed: int) -> Measurement:
    return train(settings, seed, "graph")


def train(settings: DQNSettings, seed: int, mode: Mode) -> Measurement:
    """The loop of DQN: act, step, store, learn."""
    envs = [gym.make(settings.env_id) for _ in range(settings.num_envs)]
    space: Any = envs[0].action_space
    bare = Bare(settings, envs[0].observation_space.shape[0], int(space.n))  # type: ignore[index]
    update, act, compile_seconds = prepared(bare, mode)
    columns = [column.numpy() for column in (bare.obs, bare.action, bare.reward, bare.next_obs, bare.alive)]
    obs_column, action_column, reward_column, next_obs_column, alive_column = columns
    chance = random.Random(seed)
    obs = np.stack([env.reset(seed=seed * 1000 + i)[0] for i, env in enumerate(envs)])
    slope = (1.0 - settings.final_epsilon) / settings.exploration_steps
    updates = place = size = 0
    watch, timer = Stopwatch(), PhaseTimer()
    for step in range(0, settings.total_steps, settings.num_envs):
        epsilon = 1.0 if step < settings.learning_starts else max(settings.final_epsilon, 1.0 - slope * step)
        explore = [chance.random() < epsilon for _ in envs]
        greedy = [0] * len(envs) if all(explore) else act(obs).tolist()
        timer.lap("acting")
        for i, env in enumerate(envs):
            action = chance.randrange(bare.actions) if explore[i] else greedy[i]
            obs_column[place] = obs[i]
            timer.lap("rest")
            obs[i], reward, terminated, truncated, _ = env.step(action)
            timer.lap("environment")
            action_column[place], reward_column[place], next_obs_column[place] = action, reward, obs[i]
            alive_column[place] = not terminated
            place = (place + 1) % settings.buffer_size
            size = min(size + 1, settings.buffer_size)
            if terminated or truncated:
                timer.lap("rest")
                obs[i] = env.reset()[0]
                timer.lap("environment")
        done = step + settings.num_envs
        timer.lap("rest")
        if done >= settings.learning_starts and done % settings.steps_per_update == 0:
            update(size)
            updates += 1
            if done % settings.target_copy_steps == 0:
                bare.target.copy_(bare.online)
            timer.lap("update")
    return Measurement(
        rates={"env steps": watch.rate(settings.total_steps)},
        work={"env steps": settings.total_steps, "updates": updates},
        seconds={**timer.seconds, "compilation": compile_seconds},
    )


def prepared(bare: Bare, mode: Mode) -> tuple[Callable[[int], Any], Callable[[Any], Any], float]:
    """The update after its first call, the function that acts, and the time that compilation took."""
    watch, update = Stopwatch(), bare.make_update(mode)
    update(bare.settings.buffer_size)
    return update, bare.make_act(), watch.rate(1).wall_seconds if mode != "eager" else 0.0


def update_eager(settings: UpdateSettings, seed: int) -> Measurement:
    return update_alone(settings, "eager")


def update_compiled(settings: UpdateSettings, seed: int) -> Measurement:
    return update_alone(settings, "compiled")


def update_graph(settings: UpdateSettings, seed: int) -> Measurement:
    return update_alone(settings, "graph")


def update_alone(settings: UpdateSettings, mode: Mode) -> Measurement:
    """Updates from a full replay, sampling included."""
    bare = Bare(settings, settings.obs_dim, settings.actions)
    for column in (bare.obs, bare.next_obs, bare.reward):
        column.normal_()
    bare.action.random_(0, settings.actions)
    update, _, compile_seconds = prepared(bare, mode)
    for _ in range(settings.warm_up):
        update(settings.buffer_size)
    watch = Stopwatch()
    for _ in range(settings.updates):
        update(settings.buffer_size)
    rate, updates = watch.rate(settings.updates), settings.warm_up + settings.updates
    return Measurement({"updates": rate}, {"updates": updates}, seconds={"compilation": compile_seconds})
