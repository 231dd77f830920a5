"""Any Gymnasium space: random nested spaces against naive twins, what arrays are taken for, and several choices at once."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.base import init_generator
from rl_training.data import FrameReplayBuffer
from rl_training.data.augmentation import random_shift, shift_images
from rl_training.envs.checks import make_receiver
from rl_training.envs.pool import SeededEnvPool
from rl_training.envs.spaces import describe_spaces
from rl_training.envs.wrappers import SelectObservation
from rl_training.errors import ConfigError, EnvironmentFault, ObservationError, SpaceError
from rl_training.models.observation import (
    EncoderConfig,
    describe_observation,
    encode_observation,
    make_encoder,
    unpack,
)
from rl_training.runtime.inference import as_batch, nested
from rl_training.types import Array, ObservationSpec, SpaceSpec, Step


class SpaceEnv(gym.Env[Any, Any]):
    """Samples of its spaces."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> None:
        self.observation_space, self.action_space = observation, action or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return self.observation_space.sample(), 0.0, False, True, {}


def described(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> SpaceSpec:
    return describe_spaces(SpaceEnv(observation, action), "Own-v0")


# ---------------------------------------------------------------------------------------------------- random spaces

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
LEAVES = st.one_of(
    SHAPES.map(lambda shape: spaces.Box(-5.0, 5.0, shape, np.float32)),
    SHAPES.map(lambda shape: spaces.Box(-5.0, 5.0, shape, np.float64)),
    st.tuples(st.integers(1, 4), st.integers(-2, 2)).map(lambda n: spaces.Discrete(n[0], start=n[1])),
    st.lists(st.tuples(st.integers(1, 3), st.integers(-2, 2)), min_size=1, max_size=3).map(
        lambda choices: spaces.MultiDiscrete([n for n, _ in choices], start=[start for _, start in choices])
    ),
    st.integers(1, 4).map(spaces.MultiBinary),
    st.sampled_from([(3, 5, 4), (6, 5, 3), (2, 7, 7)]).map(lambda shape: spaces.Box(0, 255, shape, np.uint8)),
    st.sampled_from([(37, 36, 2), (1, 36, 38)]).map(lambda shape: spaces.Box(0.0, 1.0, shape, np.float32)),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda entries: spaces.Tuple(entries)),
        st.dictionaries(st.sampled_from(["a", "b", "z", "0"]), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)


def naive_leaves(space: spaces.Space[Any], value: Any) -> list[Array]:
    """Each array of an observation as a network should see it, in the order of the space."""
    if isinstance(space, spaces.Dict):
        return [leaf for key, inner in space.spaces.items() for leaf in naive_leaves(inner, value[key])]
    if isinstance(space, spaces.Tuple):
        return [leaf for inner, entry in zip(space.spaces, value, strict=True) for leaf in naive_leaves(inner, entry)]
    if isinstance(space, spaces.Discrete):
        return [np.array([float(value == space.start + k) for k in range(int(space.n))], np.float32)]
    if isinstance(space, spaces.MultiDiscrete):
        pairs = zip(np.ravel(value), np.ravel(space.start), np.ravel(space.nvec), strict=True)
        return [np.array([float(x == start + k) for x, start, n in pairs for k in range(n)], np.float32)]
    assert isinstance(space, spaces.Box | spaces.MultiBinary)
    array = np.asarray(value)
    if array.ndim == 3 and (array.dtype == np.uint8 or min(sorted(array.shape)[1:]) >= 36):
        height, width, channels = array.shape
        if channels < min(height, width):
            array = np.stack([array[:, :, c] for c in range(channels)])
        return [array if array.dtype == np.uint8 else array.astype(np.float32)]
    return [array.astype(np.float32).reshape(-1)]


@settings(max_examples=80, deadline=None)
@given(NESTED, st.integers(0, 2**16))
def test_packing_is_a_naive_flattening(space: spaces.Space[Any], seed: int) -> None:
    spec = described(space)
    space.seed(seed)
    samples = [space.sample() for _ in range(3)]
    by_sample = [naive_leaves(space, sample) for sample in samples]
    expected = [np.stack(arrays) for arrays in zip(*by_sample, strict=True)]
    out: Array = np.zeros((3, *spec.observation.shape), spec.observation.dtype)
    store = make_receiver(spec).store
    for i, sample in enumerate(samples):
        assert store(out, None, i, (sample, None)) is None
    for found in (spec.observation.entries(out), unpack(spec.observation, torch.from_numpy(out))):
        for entry, array in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(entry), array)
    batched = [np.stack(arrays) for arrays in zip(*(raw_leaves(space, sample) for sample in samples), strict=True)]
    np.testing.assert_array_equal(spec.observation.encode(nested(spec.observation, batched)), out)
    batch, single = as_batch(nested(spec.observation, batched), spec.observation)
    assert not single
    np.testing.assert_array_equal(spec.observation.encode(batch), out)
    again = SpaceSpec.from_json(spec.to_json())
    assert again == spec
    # what an exported policy computes from the raw entries
    floats = encode_observation(tuple(map(torch.from_numpy, batched)), spec.observation)
    for leaf, entry, array in zip(spec.observation.leaves, unpack(spec.observation, floats), expected, strict=True):
        scale = 255.0 if leaf.kind == "image" and not leaf.floating and spec.observation.kind == "mixed" else 1.0
        np.testing.assert_allclose(entry.numpy(), array / scale, rtol=1e-6)


def raw_leaves(space: spaces.Space[Any], value: Any) -> list[Array]:
    if isinstance(space, spaces.Dict):
        return [leaf for key, inner in space.spaces.items() for leaf in raw_leaves(inner, value[key])]
    if isinstance(space, spaces.Tuple):
        return [leaf for inner, entry in zip(space.spaces, value, strict=True) for leaf in raw_leaves(inner, entry)]
    return [np.asarray(value)]


MIXTURES = st.tuples(
    st.lists(st.sampled_from([(8, 9), (7, 8)]), min_size=1, max_size=2),  # sides of images
    st.integers(1, 3),  # frames in a stack
    st.integers(1, 2),  # channels of a frame
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(MIXTURES, st.integers(0, 2**16), st.integers(1, 3))
def test_frames_stored_once_are_whole_observations(
    mixture: tuple[list[tuple[int, int]], int, int, bool], seed: int, n_step: int
) -> None:
    """Random episodes of a mixture: what is rebuilt from single frames is what a list of whole transitions holds."""
    sides, stack, channels, repeated = mixture
    rng = np.random.default_rng(seed)
    entries: dict[str, spaces.Space[Any]] = {"pose": spaces.Box(-9, 9, (2,), np.float32)}
    for k, side in enumerate(sides):
        entries[f"eye{k}"] = spaces.Box(0, 255, (stack * channels, *side), np.uint8)
    entries["zone"] = spaces.Discrete(3)
    spec = ObservationSpec(
        tuple(leaf for key in entries for leaf in described(spaces.Dict({key: entries[key]})).observation.leaves)
    )
    buffer = FrameReplayBuffer(30, spec.shape, stack=stack, num_envs=1, n_step=n_step, gamma=0.5, rng=rng, observation=spec)
    whole: list[tuple[Array, Array]] = []
    for _ in range(3):
        stacks = [rng.integers(0, 4, (stack, channels, *side)).astype(np.uint8) for side in sides]
        if repeated:
            stacks = [np.repeat(frames[:1], stack, axis=0) for frames in stacks]
        episode = []
        for t in range(6):
            if t:
                new = [rng.integers(0, 4, (1, channels, *side)).astype(np.uint8) for side in sides]
                stacks = [np.concatenate([frames[1:], frame]) for frames, frame in zip(stacks, new, strict=True)]
            raw: dict[str, Array] = {"pose": rng.normal(size=(1, 2)), "zone": rng.integers(0, 3, 1)}
            raw |= {f"eye{k}": frames.reshape(1, -1, *frames.shape[2:]) for k, frames in enumerate(stacks)}
            episode.append(spec.encode(raw))
        for t in range(5):
            flags = np.array([t == 4]), np.array([False])
            buffer.add(Step(episode[t], np.array([0]), np.zeros(1, np.float32), episode[t + 1], *flags))
            whole.append((episode[t][0], episode[min(t + n_step, 5)][0]))
    held = buffer.gather(buffer._slots_of(np.arange(len(buffer))))
    newest = whole[-len(buffer) :]
    assert len(newest) == len(buffer) == 15
    for i, (obs, next_obs) in enumerate(newest):
        np.testing.assert_array_equal(held.obs[i].numpy(), obs)
        np.testing.assert_array_equal(held.next_obs[i].numpy(), next_obs)


# -------------------------------------------------------------------------------------------- what is taken for what


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(0, 255, (3, 64, 64), np.uint8), "image 3x64x64 uint8 -> NatureCNN"),
        (spaces.Box(0, 255, (64, 64, 3), np.uint8), "image 3x64x64 uint8 (turned from 64x64x3, channels last) -> NatureCNN"),
        (spaces.Box(0, 255, (84, 84), np.uint8), "image 1x84x84 uint8 -> NatureCNN"),
        (spaces.Box(0.0, 1.0, (64, 64, 3), np.float32), "image 3x64x64 float32 in [0, 1], stored as it is with 4 bytes per "
         "pixel (turned from 64x64x3, channels last) -> NatureCNN"),
        (spaces.Box(0.0, 1.0, (84, 84), np.float32),
         "image 1x84x84 float32 in [0, 1], stored as it is with 4 bytes per pixel -> NatureCNN"),
        (spaces.Box(0, 255, (6, 7), np.uint8), "vector 42"),  # a board
        (spaces.Box(0.0, 1.0, (6, 7), np.float32), "vector 42"),
        (spaces.Box(0.0, 1.0, (4, 5, 2), np.float32), "vector 40"),
        (spaces.Box(-1.0, 1.0, (64, 64, 3), np.float32), "vector 12288"),
        (spaces.MultiDiscrete([2, 3]), "2 whole numbers as one-hot 5"),
        (spaces.Dict({"eye": spaces.Box(0, 255, (3, 64, 64), np.uint8), "pose": spaces.Box(-1, 1, (2,), np.float32)}),
         "eye: image 3x64x64 uint8 -> NatureCNN, pose: vector 2"),
    ],
)  # fmt: skip
def test_what_an_observation_is_taken_for(space: spaces.Space[Any], words: str) -> None:
    spec = described(space).observation
    assert describe_observation(spec, make_encoder(spec, EncoderConfig(), init_generator(0))) == words


@pytest.mark.parametrize(
    ("cnn", "shown"),
    [("nature", "NatureCNN"), ("impala", "ImpalaCNN"), ("drq", "NatureCNN (drq)"), ("minatar", "NatureCNN (minatar)")],
)
def test_the_convolutions_are_named(cnn: Any, shown: str) -> None:
    spec = described(spaces.Box(0, 255, (3, 64, 64), np.uint8)).observation
    encoder = make_encoder(spec, EncoderConfig(cnn=cnn), init_generator(0))
    assert describe_observation(spec, encoder) == f"image 3x64x64 uint8 -> {shown}"


def test_float_images_are_not_rounded() -> None:
    pool = SeededEnvPool(lambda: SpaceEnv(spaces.Box(0.0, 1.0, (40, 40, 3), np.float32)), seed=1)
    pool.reset()
    assert pool.spec.observation.dtype is np.float32
    step, _ = pool.step(np.array([0]))
    assert step.next_obs.shape == (1, 3, 40, 40)
    assert len(np.unique(step.next_obs)) > 256  # more values than a byte has


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "Own-v0 has Text observations.*flatten_observation"),
        (spaces.Graph(spaces.Discrete(2), None), "Own-v0 has Graph observations"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "Own-v0 has OneOf observations"),
        (
            spaces.Dict({"words": spaces.Text(5), "pose": spaces.Discrete(2), "eye": spaces.Discrete(3)}),
            r"the entry 'words' .* of Own-v0 is a Text space.*\{name: select_observation, keys: \[eye, pose\]\}",
        ),
        (
            spaces.Dict({"in": spaces.Tuple([spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))])}),
            r"the entry 'in\.1' .* is a Sequence space.*keys: \[in\.0\]",
        ),
        (spaces.Dict({}), "empty observation_space"),
        (spaces.Dict({"a": spaces.Box(0, 1, (0,)), "b": spaces.Discrete(2)}), r"'a' .* is empty.*keys: \[b\]"),
    ],
)
def test_spaces_without_numbers_are_refused(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        described(space)


def test_selecting_entries() -> None:
    inner = spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])
    env = SpaceEnv(spaces.Dict({"words": spaces.Text(5), "pose": spaces.Box(-1, 1, (2,), np.float32), "in": inner}))
    one, two = SelectObservation(env, ["pose"]), SelectObservation(env, ["pose", "in.0"])
    assert one.observation_space == spaces.Box(-1, 1, (2,), np.float32)
    assert isinstance(two.observation_space, spaces.Dict)
    assert set(two.observation_space) == {"pose", "in.0"}
    for wrapped in (one, two):
        assert wrapped.observation_space.contains(wrapped.reset(seed=0)[0])
        assert wrapped.observation_space.contains(wrapped.step(0)[0])
    for keys, message in (
        (["pos"], "no entry 'pos'; did you mean 'pose'"),
        ("pose", "keys must be a list"),
        ([], "keys must be a list"),
    ):
        with pytest.raises(ConfigError, match=message):
            SelectObservation(env, keys)
    with pytest.raises(ConfigError, match="works on a Dict or Tuple"):
        SelectObservation(SpaceEnv(spaces.Discrete(2)), ["a"])


class Returning(SpaceEnv):
    """Returns a given observation."""

    def __init__(self, observation: spaces.Space[Any], value: Any) -> None:
        super().__init__(observation)
        self._value = value

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._value, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"eye": np.zeros((3, 5, 4), np.uint8)}, "no entry 'pose'"),
        (
            {"eye": np.zeros((3, 5, 4), np.uint8), "pose": np.zeros(3)},
            r"entry 'pose' has shape \(3,\), but",
        ),
        ({"eye": np.zeros((3, 5, 4), np.uint8), "pose": np.array([0.0, np.nan])}, "entry 'pose' is not finite"),
        ({"eye": np.full((3, 5, 4), 0.5), "pose": np.zeros(2)}, "entry 'eye' contains 0.5, but an image is made of whole"),
        (np.zeros(2), "no entry 'eye'"),
    ],
)
def test_a_wrong_entry_is_a_fault_that_names_it(value: Any, message: str) -> None:
    space = spaces.Dict({"eye": spaces.Box(0, 255, (3, 5, 4), np.uint8), "pose": spaces.Box(-1, 1, (2,), np.float32)})
    pool = SeededEnvPool(lambda: Returning(space, value))
    pool.reset()
    with pytest.raises(EnvironmentFault, match=message):
        pool.step(np.array([0]))


def test_an_entry_outside_its_bounds_gives_a_warning_that_names_it() -> None:
    space = spaces.Dict({"eye": spaces.Box(0, 255, (3, 5, 4), np.uint8), "pose": spaces.Box(-1, 1, (2,), np.float32)})
    value = {"eye": np.zeros((3, 5, 4), np.uint8), "pose": np.array([0.0, 7.0], np.float32)}
    pool = SeededEnvPool(lambda: Returning(space, value))
    pool.reset()
    with pytest.warns(UserWarning, match=re.escape("entry 'pose' [1] is 7.0, but its bounds are -1.0 and 1.0")):
        pool.step(np.array([0]))


def test_predicting_names_the_entry_that_is_wrong() -> None:
    spec = described(spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})).observation
    for obs, message in (
        ({"a": [0, 0]}, "entry 'b' is missing; this policy takes {a: \\(2,\\), b: \\(\\)}"),
        ({"a": [0, 0], "b": 3}, "entry 'b' must be whole numbers"),
        ({"a": [[0, 0]], "b": 1}, "entries disagree"),
        ([1, 2], "entry 'a' is missing"),
    ):
        with pytest.raises(ObservationError, match=message):
            as_batch(obs, spec)


def test_shifts_move_the_images_of_a_mixture_only() -> None:
    entries: dict[str, spaces.Space[Any]] = {
        "eye": spaces.Box(0, 255, (3, 9, 8), np.uint8),
        "glow": spaces.Box(0, 1, (2, 36, 37), np.float32),
    }
    space = spaces.Dict({**entries, "pose": spaces.Box(-1, 1, (2,), np.float32)})
    spec = described(space).observation
    raw = {key: np.stack([space[key].sample() for _ in range(4)]) for key in space}
    shifted = shift_images(torch.from_numpy(spec.encode(raw)), spec, 2, np.random.default_rng(5), copies=3)
    twin = np.random.default_rng(5)
    eye = random_shift(torch.from_numpy(raw["eye"]), 2, twin, 3)
    glow = random_shift(torch.from_numpy(raw["glow"]), 2, twin, 3)
    for found, expected in zip(unpack(spec, shifted), (eye, glow, np.tile(raw["pose"], (3, 1))), strict=True):
        np.testing.assert_array_equal(found.numpy(), np.asarray(expected))
