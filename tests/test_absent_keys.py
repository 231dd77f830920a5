"""Keys that a saved state lacks take their initial values; keys that it must have, or must not have, are named."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_config

from rl_training.errors import CheckpointError, IncompatibleError
from rl_training.experiment.checkpoint import (
    read_checkpoint,
)
from rl_training.experiment.compat import with_defaults
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.training_state import training_state
from rl_training.types import State
from rl_training.version import __version__


def test_an_absent_key_takes_the_initial_value_at_any_depth() -> None:
    saved = {"steps": 5, "owed": {"log": 2}, "pool": {"deep": {"a": 1}}}
    initial = {"steps": 0, "owed": {"log": 0, "film": 9}, "pool": {"deep": {"a": 0, "b": {"c": 3}}}, "extra": [1]}
    assert with_defaults(saved, initial) == {
        "steps": 5,
        "owed": {"log": 2, "film": 9},
        "pool": {"deep": {"a": 1, "b": {"c": 3}}},
        "extra": [1],
    }
    assert saved == {"steps": 5, "owed": {"log": 2}, "pool": {"deep": {"a": 1}}}
    assert initial["owed"] == {"log": 0, "film": 9}


def test_lists_arrays_and_what_is_no_mapping_on_both_sides_are_taken_as_saved() -> None:
    saved: State = {"list": [{"a": 1}], "array": np.ones(2), "tensor": torch.ones(2), "none": None, "some": {"x": 1}}
    initial: State = {
        "list": [{"a": 0, "b": 0}],
        "array": np.zeros(3),
        "tensor": torch.zeros(1),
        "none": {"k": 1},
        "some": None,
    }
    merged = with_defaults(saved, initial)
    assert merged == saved
    assert all(merged[key] is saved[key] for key in ("list", "array", "tensor"))


@pytest.mark.parametrize("name", ["streams", "metrics", "held", "columns"])
def test_mappings_that_are_data_are_taken_as_saved(name: str) -> None:
    saved = {"learner": {name: {"mine": {"state": 1}}}}
    initial = {"learner": {name: {"fresh": 0, "mine": {"state": 0, "inc": 5}}}}
    assert with_defaults(saved, initial) == saved
    assert with_defaults({"learner": {}}, initial) == initial


@pytest.mark.parametrize("place", ["env_steps", "streams", "learner.algorithm.targets"])
def test_what_no_fresh_object_can_stand_in_for_must_be_there(place: str) -> None:
    *outer, last = place.split(".")
    initial: dict[str, Any] = {"env_steps": 0, "streams": {}, "learner": {"algorithm": {"targets": {}, "held": {}}}}
    saved = copy.deepcopy(initial)
    inner = saved
    for key in outer:
        inner = inner[key]
    del inner[last]
    with pytest.raises(CheckpointError, match=rf"lacks '{re.escape(place)}', without which the run cannot be continued"):
        with_defaults(saved, initial)


def test_an_unknown_key_is_refused_for_what_it_says_would_be_lost() -> None:
    saved, initial = {"learner": {"momentum": 1, "steps": 2}}, {"learner": {"steps": 0}}
    with pytest.raises(IncompatibleError) as caught:
        with_defaults(saved, initial, "the part 'training' of X", "99.0.0")
    assert str(caught.value) == (
        f"the part 'training' of X holds 'learner.momentum', which rl_training {__version__} does not know; it was written "
        "by rl_training 99.0.0; install that version or newer"
    )
    with pytest.raises(IncompatibleError, match=r"it was written by rl_training 0\.0\.1; install that version to use it$"):
        with_defaults(saved, initial, "X", "0.0.1")
    with pytest.raises(IncompatibleError, match=r"use the version of rl_training that wrote it$"):
        with_defaults(saved, initial)


def test_the_states_of_every_algorithm_lack_nothing_and_hold_nothing_unknown(algo: str, tmp_path: Path) -> None:
    """A trained state against a fresh one: only what is listed as data may differ in its keys."""
    trained, fresh = Trainer(tiny_config(algo)), Trainer(tiny_config(algo))
    trained.train(130)
    trained.checkpoints.save_to(tmp_path / "c")
    parts = read_checkpoint(tmp_path / "c", ["training", "replay"])
    defaults = fresh.learner.replay_defaults(parts["replay"])
    for part, initial in (("training", training_state(fresh)), ("replay", defaults)):
        assert keys_of(with_defaults(parts[part], initial)) == keys_of(parts[part])
    trained.close()
    fresh.close()


def keys_of(state: Any) -> Any:
    return {key: keys_of(value) for key, value in state.items()} if isinstance(state, Mapping) else None
