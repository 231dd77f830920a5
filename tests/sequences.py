"""For tests of recurrent replay: random episodes put into a buffer, and a twin that cuts them up step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from replays import held_slots

from rl_training.algorithms.base import init_generator
from rl_training.data import PrioritizedRecurrentReplayBuffer, RecurrentRecorder, RecurrentReplayBuffer
from rl_training.models import LSTMQNetwork
from rl_training.rng import RandomStreams
from rl_training.types import ActionSpec, Array, ObservationSpec, SpaceSpec, Step

ACTIONS = 3
STATE = (2, 5)  # layers, hidden
GAMMA = 0.9


@dataclass
class Episode:
    """Everything that really happened."""

    obs: list[Array]
    state: list[Array] = field(default_factory=list)  # before each step
    action: list[int] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    mask: list[Array] = field(default_factory=list)  # what was allowed at each observation after the first
    terminated: bool = False
    ended: bool = False
    cuts: list[dict[str, Any]] | None = None  # of an episode that is over

    def __len__(self) -> int:
        return len(self.action)


class World:
    """Some environments that end at random, in both ways and sometimes in both at once, and the buffer that watches."""

    def __init__(
        self,
        capacity: int,
        *,
        num_envs: int = 2,
        seed: int = 0,
        end_chance: float = 0.1,
        masked: bool = False,
        **options: Any,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.end_chance, self.masked = num_envs, end_chance, masked
        self.options: dict[str, Any] = {
            "sequence_length": 5,
            "gamma": GAMMA,
            "n_step": 1,
            "overlap": 0,
            "burn_in": 0,
            **options,
        }
        self.stack = self.options.get("stack", 1)
        self.buffer_rng = np.random.default_rng(1)
        self.buffer = self.new_buffer(capacity, self.buffer_rng)
        self.recorder = RecurrentRecorder(
            (np.zeros((num_envs, *STATE), np.float32), np.zeros((num_envs, *STATE), np.float32))
        )
        self.carry = [np.zeros((num_envs, *STATE), np.float32) for _ in range(2)]
        self.obs = self._observe(None)
        self.episodes: list[list[Episode]] = [[Episode([self.obs[env]])] for env in range(num_envs)]

    def new_buffer(self, capacity: int, rng: np.random.Generator | None = None) -> RecurrentReplayBuffer:
        kind = PrioritizedRecurrentReplayBuffer if "alpha" in self.options else RecurrentReplayBuffer
        images = self.stack > 1
        return kind(
            capacity,
            (self.stack, 3, 2) if images else (4,),
            obs_dtype=np.uint8 if images else np.float32,
            num_envs=self.num_envs,
            state_shapes=(STATE, STATE),
            masked_actions=ACTIONS if self.masked else 0,
            rng=rng or np.random.default_rng(1),
            **self.options,
        )

    def _observe(self, before: Array | None) -> Array:
        if self.stack == 1:
            return self.rng.standard_normal((self.num_envs, 4), np.float32)
        frame = self.rng.integers(0, 256, (self.num_envs, 1, 3, 2), np.uint8)
        older = np.repeat(frame, self.stack, axis=1) if before is None else before
        return np.concatenate([older[:, 1:], frame], axis=1)

    def step(self) -> None:
        rng, size = self.rng, self.num_envs
        action, reward = rng.integers(0, ACTIONS, size), rng.standard_normal(size, np.float32)
        terminated, truncated = rng.random((2, size)) < self.end_chance
        next_obs, mask = self._observe(self.obs), rng.random((size, ACTIONS)) < 0.7
        mask[:, 0] = True
        step = Step(self.obs, action, reward, next_obs, terminated, truncated, mask if self.masked else None)
        for env in range(size):
            episode = self.episodes[env][-1]
            episode.state.append(np.stack([array[env] for array in self.carry]))
            episode.action.append(int(action[env]))
            episode.reward.append(float(reward[env]))
            episode.mask.append(mask[env])
            episode.obs.append(next_obs[env])
            episode.terminated, episode.ended = bool(terminated[env]), bool(step.ended[env])
        after = tuple(rng.standard_normal((size, *STATE), np.float32) for _ in range(2))
        self.buffer.add(self.recorder.record(step, after))
        ended = step.ended
        fresh = self._observe(None)
        self.obs = np.where(ended.reshape(-1, *[1] * (next_obs.ndim - 1)), fresh, next_obs)
        self.carry = [np.where(ended[:, None, None], np.float32(0), array) for array in after]
        for env in np.flatnonzero(ended).tolist():
            self.episodes[env].append(Episode([self.obs[env]]))

    def run(self, steps: int) -> World:
        for _ in range(steps):
            self.step()
        return self

    def expected(self, env: int) -> list[dict[str, Any]]:
        """Every sequence that ever became complete in an environment, oldest first."""
        found: list[dict[str, Any]] = []
        for episode in self.episodes[env]:
            cuts = episode.cuts or cut_up(episode, **self.options)
            episode.cuts = cuts if episode.ended else None
            found += cuts
        return found

    def found(self) -> list[list[dict[str, Any]]]:
        """What the buffer holds, by environment and oldest first, without padding."""
        buffer = self.buffer
        counts = [ring["queued"] - ring["retired"] for ring in buffer.state_dict()["rings"]]
        numbers = np.cumsum([0, *counts])
        rows = unpack(buffer, held_slots(buffer))
        return [rows[begin:end] for begin, end in pairwise(numbers)]


def cut_up(
    episode: Episode,
    *,
    sequence_length: int,
    gamma: float,
    n_step: int,
    overlap: int,
    burn_in: int,
    previous_actions: int = 0,
    **_: Any,
) -> list[dict[str, Any]]:
    """The complete sequences of an episode, walked through one step after the other."""
    steps, cuts, begin, covered = len(episode), [], 0, 0
    while begin < steps and covered < steps:
        end = min(begin + sequence_length, steps)
        if not episode.ended and (end < begin + sequence_length or end - 1 + n_step > steps):
            break  # the observation that the last step bootstraps from is not there yet
        before = 0 if begin == 0 else burn_in
        cut: dict[str, Any] = {"obs": [], "action": [], "reward": [], "discount": [], "bootstrap": [], "previous": []}
        for t in range(begin, end):
            total, k = 0.0, 0
            for later in range(t, min(t + n_step, steps)):
                total += gamma**k * episode.reward[later]
                k += 1
            over = t + k == steps and episode.terminated
            cut["action"].append(episode.action[t])
            cut["reward"].append(total)
            cut["discount"].append(0.0 if over else gamma**k)
            cut["bootstrap"].append(t - begin + k)
        needed = range(begin - before, begin + cut["bootstrap"][-1] + 1)
        cut["obs"] = [episode.obs[t] for t in needed]
        cut["mask"] = [episode.mask[t - 1] for t in needed if t > begin]
        if previous_actions:
            for t in needed:
                row = np.zeros(previous_actions + 1)
                if t > 0:
                    row[episode.action[t - 1]], row[-1] = 1.0, episode.reward[t - 1]
                cut["previous"].append(row)
        cut["state"] = episode.state[begin - before]
        cut["burn_in"], cut["first"] = before, begin == 0
        cuts.append(cut)
        covered, begin = end, begin + sequence_length - overlap
    return cuts


def unpack(buffer: RecurrentReplayBuffer, slots: Array) -> list[dict[str, Any]]:
    """Sequences as sampled, with their padding taken off."""
    batch = buffer.gather(slots)
    given: dict[str, Array] = {}
    for name in ("mask", "episode_start", "bootstrap", "obs", "action", "reward", "discount", "previous", "action_mask"):
        tensor = getattr(batch, name)
        if tensor is not None:
            given[name] = tensor.numpy()
    states = np.stack([state.numpy() for state in batch.state], axis=1)
    rows = []
    for b in range(len(slots)):
        length = int(given["mask"][:, b].sum())
        first = bool(given["episode_start"][0, b])
        before = 0 if first or batch.has_burn_in is None else batch.burn_in
        bootstrap = given["bootstrap"][:length, b].tolist()
        seen = slice(batch.burn_in - before, batch.burn_in + bootstrap[-1] + 1)
        rows.append(
            {
                "obs": list(given["obs"][seen, b]),
                "action": given["action"][:length, b].tolist(),
                "reward": given["reward"][:length, b].tolist(),
                "discount": given["discount"][:length, b].tolist(),
                "bootstrap": bootstrap,
                "previous": list(given["previous"][seen, b]) if "previous" in given else [],
                "mask": list(given["action_mask"][1 : bootstrap[-1] + 1, b]) if "action_mask" in given else None,
                "state": states[b],
                "burn_in": before,
                "first": first,
            }
        )
    return rows


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Without numpy.testing, which takes twenty times as long for arrays as small as these."""
    for name in ("action", "bootstrap", "burn_in", "first"):
        assert found[name] == expected[name], name
    for name in ("obs", "state", "mask") if found["mask"] is not None else ("obs", "state"):
        first, second = np.asarray(found[name]), np.asarray(expected[name])
        assert first.shape == second.shape, name
        assert (first == second).all(), name
    for name in ("reward", "discount", "previous"):
        first, second = np.asarray(found[name]), np.asarray(expected[name])
        assert first.shape == second.shape, name
        assert (np.abs(first - second) <= 1e-6 + 1e-5 * np.abs(second)).all(), name


def make_algorithm(algorithm: Any, spec: SpaceSpec | None = None, seed: int = 0, **settings: Any) -> Any:
    """A tiny DRQN or R2D2 whose states fit ``World``'s, with different weights in its two networks."""
    small = {"encoder_sizes": (6,), "hidden_sizes": (7,), "lstm_layers": STATE[0], "lstm_size": STATE[1], "gamma": GAMMA}
    config = algorithm.config_class.model_validate({**small, **settings})
    spec = spec or SpaceSpec(ObservationSpec.vector(4), ActionSpec("discrete", count=ACTIONS))
    made = algorithm(algorithm.make_policy(config, spec, init_generator(seed)), config, RandomStreams(seed))
    other = algorithm.make_policy(config, spec, init_generator(seed + 1)).network
    made.target.load_state_dict(other.state_dict())
    return made


def walk_q_values(network: LSTMQNetwork, cut: dict[str, Any]) -> list[Array]:
    """The Q-values at each observation of a sequence, one step after the other from the stored state; of the burn-in none."""
    state = tuple(torch.from_numpy(part.copy())[None] for part in cut["state"])
    values = []
    for t, obs in enumerate(cut["obs"]):
        previous = torch.tensor(np.array(cut["previous"][t : t + 1]), dtype=torch.float32) if cut["previous"] else None
        with torch.no_grad():
            q_values, state = network.q_values_step(torch.from_numpy(np.array(obs))[None], state, previous)
        values.append(q_values[0].double().numpy())
    return values[cut["burn_in"] :]


def walk_targets(
    online: LSTMQNetwork, target: LSTMQNetwork, cut: dict[str, Any], *, double: bool, rescaled: bool, masked: bool
) -> list[float]:
    """What each step of a sequence should be worth, by the book."""

    def h(x: float) -> float:
        return float(np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x)

    def h_inverse(x: float) -> float:
        root = (np.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3
        return float(np.sign(x) * (root**2 - 1))

    online_values, target_values = walk_q_values(online, cut), walk_q_values(target, cut)
    targets = []
    for reward, discount, row in zip(cut["reward"], cut["discount"], cut["bootstrap"], strict=True):
        allowed = cut["mask"][row - 1] if masked else np.ones(ACTIONS, np.bool_)
        chooser = np.where(allowed, (online_values if double else target_values)[row], -np.inf)
        value = float(target_values[row][chooser.argmax()])
        if rescaled:
            targets.append(h(reward + discount * h_inverse(value)))
        else:
            targets.append(reward + discount * value)
    return targets
