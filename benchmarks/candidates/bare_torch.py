"""The same work written as plainly as torch allows, with nothing around it: the limit of what the machine can do."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from measure import Measurement, Stopwatch, repeat
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import DrQSettings, PPOSettings, SACSettings

from candidates.ours import image_batch
from rl_training.data import random_shift
from rl_training.runtime.cadence import PhaseTimer

ReLU = partial(nn.ReLU, inplace=True)


class Tanh(nn.Module):
    """Tanh in place."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh_(x)


def ended(watch: Stopwatch, timer: PhaseTimer, steps: int, updates: int) -> Measurement:
    """What a run has measured when it ends."""
    rate, work = watch.rate(steps), {"env steps": steps, "updates": updates}
    return Measurement(rates={"env steps": rate}, work=work, seconds=timer.seconds)


def mlp(sizes: Sequence[int], activation: Callable[[], nn.Module] = ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def squashed(output: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = output.chunk(2, 1)
    log_std = log_std.clamp(-10.0, 2.0)
    noise = torch.randn_like(mean)
    u = mean + noise * log_std.exp()
    log_prob = -0.5 * noise.square() - log_std - 0.9189385 - 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    return torch.tanh(u), log_prob.sum(1)


def smaller(critics: Sequence[nn.Module], features: Tensor, action: Tensor) -> Tensor:
    x = torch.cat([features, action], 1)
    value: Tensor = torch.min(critics[0](x), critics[1](x)).squeeze(1)
    return value


def adam(modules: Sequence[nn.Module], learning_rate: float) -> torch.optim.Adam:
    return torch.optim.Adam([p for module in modules for p in module.parameters()], learning_rate, fused=True)


def descend(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()


def sac(settings: SACSettings, seed: int) -> Measurement:
    torch.manual_seed(seed)
    env = gym.make(settings.env_id)
    obs, _ = env.reset(seed=seed)
    size, batch_size = len(obs), settings.batch_size
    actor = mlp([size, *settings.hidden_sizes, 2])
    critics = [mlp([size + 1, *settings.hidden_sizes, 1]) for _ in range(2)]
    targets = copy.deepcopy(critics)
    log_alpha = torch.zeros((), requires_grad=True)
    critic_adam, actor_adam = adam(critics, settings.learning_rate), adam([actor], settings.learning_rate)
    alpha_adam = torch.optim.Adam([log_alpha], settings.learning_rate, fused=True)
    online: list[Any] = [p for critic in critics for p in critic.parameters()]
    followers: list[Any] = [p for target in targets for p in target.parameters()]
    store = {name: torch.zeros(settings.buffer_size, width) for name, width in (("s", size), ("a", 1), ("r", 1), ("t", size))}
    rows = {name: tensor.numpy() for name, tensor in store.items()}
    rng = np.random.default_rng(seed)
    updates = 0
    watch, timer = Stopwatch(), PhaseTimer()
    for step in range(settings.total_steps):
        if step < settings.learning_starts:
            action = rng.uniform(-1.0, 1.0, 1).astype(np.float32)
        else:
            with torch.no_grad():
                action = squashed(actor(torch.from_numpy(obs)[None]))[0].numpy()[0]
        timer.lap("acting")
        next_obs, reward, _, truncated, _ = env.step(2.0 * action)
        timer.lap("environment")
        rows["s"][step], rows["a"][step], rows["r"][step], rows["t"][step] = obs, action, float(reward), next_obs
        obs = env.reset()[0] if truncated else next_obs
        timer.lap("rest")
        if step < settings.learning_starts:
            continue
        index = torch.randint(0, step + 1, (batch_size,))
        s, a, r, t = (tensor.index_select(0, index) for tensor in store.values())
        timer.lap("sampling")
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = squashed(actor(t))
            y = r.squeeze(1) + settings.gamma * (smaller(targets, t, next_action) - alpha * next_log_prob)
        x = torch.cat([s, a], 1)
        descend(critic_adam, sum((F.mse_loss(critic(x).squeeze(1), y) for critic in critics), torch.zeros(())))
        for parameter in online:
            parameter.requires_grad_(False)
        action_now, log_prob = squashed(actor(s))
        descend(actor_adam, (alpha * log_prob - smaller(critics, s, action_now)).mean())
        for parameter in online:
            parameter.requires_grad_(True)
        descend(alpha_adam, -(log_alpha.exp() * (log_prob.detach() - 1.0)).mean())
        with torch.no_grad():
            torch._foreach_lerp_(followers, online, settings.tau)
        updates += 1
        timer.lap("update")
    return ended(watch, timer, settings.total_steps, updates)


def ppo(settings: PPOSettings, seed: int) -> Measurement:
    torch.manual_seed(seed)
    count, length, hidden = settings.num_envs, settings.n_steps, settings.hidden_sizes
    envs = [gym.make(settings.env_id) for _ in range(count)]
    obs = np.stack([env.reset(seed=seed * 1000 + i)[0] for i, env in enumerate(envs)])
    space: Any = envs[0].action_space
    actor, critic = mlp([obs.shape[1], *hidden, int(space.n)], Tanh), mlp([obs.shape[1], *hidden, 1], Tanh)
    parameters: list[Any] = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, settings.learning_rate, eps=1e-5, fused=True)
    weights = [
        [p.detach().numpy() for p in net.parameters()] for net in (actor, critic)
    ]  # views: acting reads the same memory
    rng = np.random.default_rng(seed)
    seen, action = np.zeros((length, *obs.shape), np.float32), np.zeros((length, count), np.int64)
    log_prob, reward, alive, value = np.zeros((4, length + 1, count), np.float32)

    def forward(layers: Sequence[Any], x: Any) -> Any:
        for i in range(0, len(layers), 2):
            x = x @ layers[i].T + layers[i + 1]
            x = np.tanh(x) if i + 2 < len(layers) else x
        return x

    def flat(array: Any) -> Tensor:
        return torch.from_numpy(array.reshape(length * count, *array.shape[2:]))

    def learn(columns: Sequence[Tensor]) -> None:
        inputs, chosen, old, advantage, target = columns
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        all_log_probs = F.log_softmax(actor(inputs), 1)
        ratio = (all_log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1) - old).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = loss + 0.5 * F.mse_loss(critic(inputs).squeeze(1), target)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()

    updates = 0
    watch, timer = Stopwatch(), PhaseTimer()
    for _ in range(settings.total_steps // (count * length)):
        for k in range(length):
            scores = forward(weights[0], obs)
            logs = scores - np.logaddexp.reduce(scores, 1, keepdims=True)
            drawn = (rng.random((count, 1)) > np.exp(logs).cumsum(1)[:, :-1]).sum(1)
            seen[k], action[k], log_prob[k] = obs, drawn, logs[np.arange(count), drawn]
            value[k] = forward(weights[1], obs)[:, 0]
            timer.lap("acting")
            for i, env in enumerate(envs):
                obs[i], reward[k, i], terminated, truncated, _ = env.step(drawn[i])
                alive[k, i] = not (terminated or truncated)
                if terminated or truncated:
                    obs[i] = env.reset()[0]
            timer.lap("environment")
        value[length] = forward(weights[1], obs)[:, 0]
        advantage, later = np.zeros((length, count), np.float32), np.zeros(count, np.float32)
        for k in reversed(range(length)):
            later = reward[k] + 0.99 * alive[k] * (value[k + 1] + 0.95 * later) - value[k]
            advantage[k] = later
        columns = [flat(array) for array in (seen, action, log_prob[:length], advantage, advantage + value[:length])]
        timer.lap("rest")
        for _ in range(settings.n_epochs):
            for index in torch.chunk(torch.randperm(length * count), settings.n_minibatches):
                learn([column[index] for column in columns])
                updates += 1
        timer.lap("update")
    return ended(watch, timer, settings.total_steps, updates)


def nature(settings: DrQSettings) -> nn.Sequential:
    convolutions = nn.Sequential(
        nn.Conv2d(settings.shape[0], 32, 8, 4), ReLU(), nn.Conv2d(32, 64, 4, 2), ReLU(), nn.Conv2d(64, 64, 3), ReLU()
    )
    with torch.no_grad():
        flat = convolutions(torch.zeros(1, *settings.shape)).numel()
    head = [nn.Flatten(), nn.Linear(flat, settings.cnn_features), ReLU()]
    encoder: Any = nn.Sequential(convolutions, *head)
    channels_last: nn.Sequential = encoder.to(memory_format=torch.channels_last)
    return channels_last


def drq_update(settings: DrQSettings, seed: int) -> Measurement:
    torch.manual_seed(seed)
    hidden, features = settings.hidden_sizes, settings.cnn_features
    actor, critic = nature(settings), nature(settings)
    policy, critics = mlp([features, *hidden, 2]), [mlp([features + 1, *hidden, 1]) for _ in range(2)]
    target, targets = copy.deepcopy(critic), copy.deepcopy(critics)
    critic_adam = adam([critic, *critics], settings.learning_rate)
    actor_adam = adam([actor, policy], settings.learning_rate)
    online: list[Any] = [p for module in (critic, *critics) for p in module.parameters()]
    followers: list[Any] = [p for module in (target, *targets) for p in module.parameters()]
    batch = image_batch(settings, seed)
    rng = np.random.default_rng(seed)

    def prepare(images: Tensor) -> Tensor:
        shifted = random_shift(images, settings.shift_pad, rng)
        return shifted.contiguous(memory_format=torch.channels_last).float().div_(255.0).sub_(0.5)

    def update() -> None:
        obs, next_obs = prepare(batch.obs), prepare(batch.next_obs)
        with torch.no_grad():
            next_action, next_log_prob = squashed(policy(actor(next_obs)))
            next_value = smaller(targets, target(next_obs), next_action) - settings.alpha * next_log_prob
            y = batch.reward + batch.discount * next_value
        x = torch.cat([critic(obs), batch.action], 1)
        descend(critic_adam, sum((F.mse_loss(q(x).squeeze(1), y) for q in critics), torch.zeros(())))
        with torch.no_grad():
            seen = critic(obs)
        for parameter in online:
            parameter.requires_grad_(False)
        action, log_prob = squashed(policy(actor(obs)))
        descend(actor_adam, (settings.alpha * log_prob - smaller(critics, seen, action)).mean())
        for parameter in online:
            parameter.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(followers, online, settings.tau)

    repeat(update, settings.warm_up)
    rate = repeat(update, settings.updates)
    return Measurement(rates={"updates": rate}, work={"updates": settings.warm_up + settings.updates})
