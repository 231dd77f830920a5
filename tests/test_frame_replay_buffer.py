"""The replay of single frames against a twin that keeps whole stacks of whole episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replays import held_slots, priorities_of

from rl_training.data import memory
from rl_training.data.frame_replay_buffer import FrameReplayBuffer
from rl_training.errors import ConfigError
from rl_training.types import Array, Step

GAMMA = 0.5  # with rewards that are whole numbers every sum is exact
ACTIONS = 3


def make_frame(number: int, channels: int) -> Array:
    """A frame whose pixels tell its number."""
    frame = np.zeros((channels, 3, 3), np.uint8)
    frame[:, 0, :2] = number % 256, number // 256
    frame[:, 2, 2] = range(channels)
    return frame


@dataclass
class EnvTwin:
    """One environment that plays episodes of (length, end, first observation) over and over, and remembers everything."""

    episodes: list[tuple[int, str, str]]
    stack: int
    step: int = 0  # of the episode
    episode: int = 0
    frames: int = 1  # frames made so far; number 0 pads
    history: list[int] = field(default_factory=list)  # numbers of the frames of the current observation
    slots: int = 0  # frames that had to be stored
    first_slot: int = 0  # where this episode's first one is
    rows: list[dict[str, Any]] = field(default_factory=list)  # all steps

    def new_frame(self) -> int:
        self.frames += 1
        return self.frames - 1

    def play(self) -> dict[str, Any]:
        length, end, first = self.episodes[self.episode % len(self.episodes)]
        if self.step == 0:
            numbers = {
                "repeated": lambda: [self.new_frame()] * self.stack,
                "padded": lambda: [0] * (self.stack - 1) + [self.new_frame()],
                "different": lambda: [self.new_frame() for _ in range(self.stack)],
            }
            self.history = numbers[first]()
            self.first_slot = self.slots
            self.slots += len(set(self.history))
        following = [*self.history[1:], self.new_frame()]
        over = self.step + 1 == length
        row = {
            "obs": self.history,
            "next_obs": following,
            "reward": float((7 * len(self.rows)) % 11 - 5),
            "terminated": over and end in ("terminated", "both"),
            "truncated": over and end in ("truncated", "both"),
            "discarded": over and end == "discarded",
            "oldest_slot": max(self.first_slot, self.slots - self.stack),
        }
        self.rows.append(row)
        self.history = following
        self.slots += 1
        self.step = 0 if over else self.step + 1
        self.episode += over
        return row

    def window(self, t: int, n: int) -> tuple[float, list[int], float] | None:
        """The n-step reward, next observation and discount from step t; None if the window is not complete."""
        total = 0.0
        for k, row in enumerate(self.rows[t : t + n], start=1):
            total += GAMMA ** (k - 1) * row["reward"]
            if row["terminated"] or row["truncated"] or k == n:
                return total, row["next_obs"], 0.0 if row["terminated"] else GAMMA**k
            if row["discarded"]:
                return None
        return None


@dataclass
class World:
    """Some environments, the buffer that records them, and what must be in it."""

    envs: list[EnvTwin]
    buffer: FrameReplayBuffer
    channels: int = 1
    steps: int = 0

    def advance(self, buffers: list[FrameReplayBuffer] | None = None) -> None:
        rows = [env.play() for env in self.envs]
        number = self.steps * len(self.envs)
        step = Step(
            np.stack([self.stack_of(row["obs"]) for row in rows]),
            np.arange(number, number + len(rows)),
            np.array([row["reward"] for row in rows], np.float32),
            np.stack([self.stack_of(row["next_obs"]) for row in rows]),
            np.array([row["terminated"] for row in rows]),
            np.array([row["truncated"] for row in rows]),
            np.stack([self.mask_of(row["next_obs"]) for row in rows]),
        )
        for buffer in [self.buffer] if buffers is None else buffers:
            buffer.add(step)
            for env, row in enumerate(rows):
                if row["discarded"]:
                    buffer.discard(env)
        self.steps += 1

    def stack_of(self, numbers: list[int]) -> Array:
        return np.concatenate([make_frame(number, self.channels) for number in numbers])

    @staticmethod
    def mask_of(numbers: list[int]) -> Array:
        return np.array([action != numbers[-1] % ACTIONS for action in range(ACTIONS)])

    def expected(self) -> dict[int, tuple[Any, ...]]:
        """By action, which numbers all steps: the newest complete windows of which every frame is still in the ring."""
        found, ring = {}, self.buffer.state_dict()["fits"]["slots"]
        for index, env in enumerate(self.envs):
            share = self.buffer.capacity // len(self.envs) + (index < self.buffer.capacity % len(self.envs))
            windows = [(t, env.window(t, self.buffer.n_step)) for t in range(len(env.rows))]
            complete = [(t, window) for t, window in windows if window is not None]
            for t, (reward, following, discount) in complete[-share:]:
                if env.rows[t]["oldest_slot"] >= env.slots - ring:
                    stacks = [self.stack_of(numbers).tolist() for numbers in (env.rows[t]["obs"], following)]
                    row = (stacks[0], reward, stacks[1], discount, self.mask_of(following).tolist())
                    found[t * len(self.envs) + index] = row
        return found


def contents(buffer: FrameReplayBuffer) -> dict[int, tuple[Any, ...]]:
    """Everything that can be sampled, by action."""
    batch = buffer.gather(held_slots(buffer))
    assert batch.next_action_mask is not None
    fields = (batch.obs, batch.reward, batch.next_obs, batch.discount, batch.next_action_mask)
    return dict(zip(batch.action.tolist(), zip(*(column.tolist() for column in fields), strict=True), strict=True))


def make_buffer(capacity: int, stack: int = 2, num_envs: int = 1, n_step: int = 1, **options: Any) -> FrameReplayBuffer:
    rng = np.random.default_rng(options.pop("seed", 0))
    shape = (stack * options.pop("channels", 1), 3, 3)
    options = {"masked_actions": ACTIONS, "gamma": GAMMA, "rng": rng, **options}
    return FrameReplayBuffer(capacity, shape, stack=stack, num_envs=num_envs, n_step=n_step, **options)


def make_world(capacity: int, episodes: list[list[tuple[int, str, str]]], stack: int = 2, **options: Any) -> World:
    buffer = make_buffer(capacity, stack, len(episodes), **options)
    return World([EnvTwin(plan, stack) for plan in episodes], buffer, options.get("channels", 1))


LONG = [(10**6, "terminated", "repeated")]  # never ends
episodes = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.sampled_from(["terminated", "truncated", "both", "discarded"]),
        st.sampled_from(["repeated", "padded", "different"]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=120, deadline=None)
@given(
    envs=st.lists(episodes, min_size=1, max_size=3),
    stack=st.integers(1, 4),
    n_step=st.integers(1, 5),
    channels=st.integers(1, 2),
    alpha=st.sampled_from([None, 0.5]),
    capacity=st.integers(3, 40),
    count=st.integers(1, 110),
)
def test_holds_exactly_what_the_twin_holds(
    envs: list[list[tuple[int, str, str]]],
    stack: int,
    n_step: int,
    channels: int,
    alpha: float | None,
    capacity: int,
    count: int,
) -> None:
    world = make_world(capacity, envs, stack, n_step=n_step, channels=channels, alpha=alpha)
    buffer = world.buffer
    for t in range(count):
        world.advance()
        if t % 13 and t + 1 < count:
            continue
        expected = world.expected()
        assert contents(buffer) == expected
        assert len(buffer) == len(expected)
        if alpha is not None:
            assert np.flatnonzero(priorities_of(buffer)).tolist() == sorted(held_slots(buffer).tolist())


@pytest.mark.parametrize("first", ["repeated", "different"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_holds_all_of_its_capacity_when_episodes_have_a_hundred_steps(num_envs: int, first: str) -> None:
    world = make_world(2000, [[(100, "truncated", first)]] * num_envs, stack=4, n_step=3)
    while world.steps < 2300 // num_envs:
        world.advance()
    assert len(world.buffer) == 2000
    assert contents(world.buffer) == world.expected()


@pytest.mark.parametrize("num_envs", [1, 8])
def test_the_memory_of_a_hundred_thousand_atari_transitions(num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: None)  # nothing is touched, so nothing is really taken
    rng = np.random.default_rng(0)
    buffer = FrameReplayBuffer(10**5, (4, 84, 84), stack=4, num_envs=num_envs, n_step=3, gamma=0.99, rng=rng, alpha=0.6)
    assert 10**5 * 7056 < buffer.nbytes <= 1.15 * 10**5 * 7056


def test_what_cannot_fit_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = make_buffer(10**5, alpha=0.5).nbytes
    monkeypatch.setattr(memory, "available_memory", lambda: int(0.98 * needed))
    with pytest.raises(ConfigError, match=r"GB.*algo_kwargs\.buffer_size"):
        make_buffer(10**5, alpha=0.5)
    monkeypatch.setattr(memory, "available_memory", lambda: int(1.02 * needed))
    make_buffer(10**5, alpha=0.5)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"needs \d{4,}\.\d GB"):
        make_buffer(10**13)


def chi_squared(counts: Array, expected: Array) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_uniform_sampling_is_uniform() -> None:
    world = make_world(20, [[(4, "terminated", "different")], LONG], stack=3, n_step=2)
    for _ in range(60):
        world.advance()
    actions = sorted(world.expected())
    assert len(actions) == 20
    draws = np.concatenate([world.buffer.sample(100).action.numpy() for _ in range(200)])
    counts = np.bincount(draws, minlength=actions[-1] + 1)
    assert counts[actions].sum() == 20_000
    assert chi_squared(counts[actions], np.full(20, 1000.0)) < 43.8  # the 0.999 quantile at 19 degrees of freedom


def test_a_sample_has_the_right_shapes_and_types_and_is_a_copy() -> None:
    world = make_world(8, [LONG], stack=3, channels=2)
    for _ in range(8):
        world.advance()
    batch = world.buffer.sample(5)
    assert batch.obs.shape == batch.next_obs.shape == (5, 6, 3, 3)
    assert batch.obs.dtype == batch.next_obs.dtype == torch.uint8
    assert batch.action.dtype == torch.int64
    assert batch.reward.dtype == batch.discount.dtype == torch.float32
    assert (batch.weights, batch.indices) == (None, None)
    before = [batch.obs.clone(), batch.next_obs.clone()]
    for _ in range(30):
        world.advance()
    assert torch.equal(batch.obs, before[0])
    assert torch.equal(batch.next_obs, before[1])


def prioritized_world(priorities: list[float]) -> World:
    """As many transitions as priorities, alpha 0.5."""
    world = make_world(len(priorities), [LONG], alpha=0.5)
    for _ in priorities:
        world.advance()
    world.buffer.update_priorities(held_slots(world.buffer), np.array(priorities))
    return world


def test_proportions_and_weights_of_the_worked_example() -> None:
    buffer = prioritized_world([1.0, 2.0, 4.0, 1.0]).buffer
    share, weight = np.array([0.1847, 0.2612, 0.3694, 0.1847]), np.array([1.0, 0.8706, 0.7579, 1.0])
    counts = np.zeros(4)
    for _ in range(1000):
        batch = buffer.sample(8, beta=0.4)
        assert batch.weights is not None
        actions = batch.action.numpy()
        counts += np.bincount(actions, minlength=4)
        np.testing.assert_allclose(batch.weights.numpy(), weight[actions] / weight[actions].max(), atol=2e-4)
    assert chi_squared(counts, 8000 * share) < 16.3  # the 0.999 quantile at 3 degrees of freedom


def test_a_new_transition_gets_the_largest_priority_ever_seen() -> None:
    world = prioritized_world([1.0, 9.0, 2.0, 2.0, 3.0])
    first = held_slots(world.buffer)[1:2]
    world.buffer.update_priorities(first, np.array([4.0]))  # so the largest is of the past
    world.advance()
    batch = world.buffer.sample(200, beta=1.0)  # weights are then inverse to sqrt(p), and the largest here is that of p = 2
    assert batch.weights is not None
    weights = dict(zip(batch.action.tolist(), batch.weights.tolist(), strict=True))
    expected = {1: 4.0, 2: 2.0, 3: 2.0, 4: 3.0, 5: 9.0}  # transition 0 is gone
    assert weights == pytest.approx({action: (2.0 / p) ** 0.5 for action, p in expected.items()}, abs=1e-5)


def test_priorities_of_transitions_that_are_gone_are_ignored() -> None:
    world = prioritized_world([1.0, 1.0, 1.0, 1.0])
    batch = world.buffer.sample(16)
    for _ in range(4):
        world.advance()
    assert batch.indices is not None
    world.buffer.update_priorities(batch.indices, np.full(16, 1e9))
    assert set(world.buffer.sample(100).action.tolist()) == {4, 5, 6, 7}


def test_a_uniform_buffer_takes_no_priorities() -> None:
    world = make_world(4, [LONG])
    world.advance()
    world.buffer.update_priorities(np.zeros(1, np.int64), np.ones(1))
    assert world.buffer.sample(1).weights is None


def test_discard_drops_the_open_windows_and_nothing_else() -> None:
    world = make_world(50, [[(6, "discarded", "repeated"), (5, "terminated", "repeated")], LONG], n_step=3)
    for _ in range(11):
        world.advance()
    held = {divmod(action, 2) for action in contents(world.buffer)}
    assert {t for t, env in held if env == 0} == {0, 1, 2, 3, 6, 7, 8, 9, 10}  # 4 and 5 were open
    assert {t for t, env in held if env == 1} == set(range(9))
    world.buffer.discard(0)  # between episodes there is nothing to discard
    assert contents(world.buffer) == world.expected()
