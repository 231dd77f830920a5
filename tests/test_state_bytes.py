"""A state that is saved, loaded and saved again has the same bytes, whatever it holds and whichever algorithm it is of."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import EVERY_OPTION, settings_of, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint import read_checkpoint, read_manifest, write_checkpoint
from rl_training.experiment.registry import get_algorithm
from rl_training.models import RunningMoments
from rl_training.runtime.trainer import Trainer

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "float16", "uint64")
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
TENSORS = ARRAYS.filter(lambda array: array.dtype != np.uint64).map(lambda array: torch.from_numpy(array.copy()))
NAMES = st.one_of(st.sampled_from(["a", "b", "a/b", "", "/0", "~2", "a~2", "__metadata__", "0"]), st.text("xyz/", max_size=3))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text("xyz$", max_size=4))
FORTRAN = ARRAYS.map(np.asfortranarray)
LEAVES = st.one_of(PLAIN, ARRAYS, TENSORS, FORTRAN)
STATES = st.dictionaries(
    NAMES,
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
        max_leaves=8,
    ),
    max_size=4,
)


def flat(value: Any) -> list[Any]:
    """The leaves of a state in their order, arrays with their kind, type, shape and bytes."""
    if isinstance(value, dict):
        return [leaf for name, item in value.items() for leaf in (name, *flat(item))]
    if isinstance(value, list):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, torch.Tensor):
        return ["tensor", *flat(value.numpy())[1:]]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.shape, value.tobytes()]
    return [repr(value)]


@settings(max_examples=60, deadline=None)
@given(STATES)
def test_what_is_saved_twice_has_the_same_bytes(state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        write_checkpoint(first, {"policy": state}, {})
        loaded = read_checkpoint(first, ["policy"])["policy"]
        write_checkpoint(second, {"policy": loaded}, {})
        assert flat(loaded) == flat(state)
        assert read_manifest(second)["files"] == read_manifest(first)["files"]


def test_numbers_without_a_dimension_keep_their_shape(tmp_path: Path) -> None:
    state = {"array": np.array(3.0), "tensor": torch.tensor(4), "list": [np.array(True)]}
    write_checkpoint(tmp_path / "c", {"policy": state}, {})
    loaded = read_checkpoint(tmp_path / "c", ["policy"])["policy"]
    assert (loaded["array"].shape, loaded["tensor"].shape, loaded["list"][0].shape) == ((), (), ())


def test_moments_as_release_0_2_0_saved_them_are_read() -> None:
    for mean in (2.0, np.array([2.0]), np.array(2.0)):
        moments = RunningMoments()
        moments.load_state_dict({"count": 3.0, "mean": mean, "squares": mean})
        assert {name: np.shape(value) for name, value in moments.state_dict().items()} == dict.fromkeys(
            ("count", "mean", "squares"), ()
        )
        assert moments.mean == 2.0


@pytest.mark.parametrize("name", ["$tensor", "$array"])
def test_a_key_that_means_an_array_cannot_be_saved(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved"):
        write_checkpoint(tmp_path / "c", {"policy": {"x": {name: 3}}}, {})


MASKED = {"env_id": "rl_training_test_envs:Masked-v0", "num_envs": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "every option": ({"num_envs": 3}, EVERY_OPTION),
    "masked actions": (MASKED, {"recurrent_cell": "gru", "clip_reward": 0.5}),
    "own state": ({"env_id": "exactness_envs:Stateful-v0", "num_envs": 2}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_is_saved_twice_with_the_same_bytes(algo: str, case: str, tmp_path: Path) -> None:
    values, options = CASES[case]
    if "env_id" in values and "discrete" not in get_algorithm(algo).actions:
        pytest.skip("the environment has discrete actions")
    config = tiny_config(algo, **values, algo_kwargs=settings_of(algo, options))
    trainer = Trainer(config)
    trainer.train(100)
    trainer.checkpoints.save_to(tmp_path / "first")
    trainer.close()
    loaded = Trainer(config)
    loaded.checkpoints.restore(tmp_path / "first")
    loaded.checkpoints.save_to(tmp_path / "second")
    loaded.close()
    assert loaded.env_steps >= 100
    assert read_manifest(tmp_path / "second")["files"] == read_manifest(tmp_path / "first")["files"]
