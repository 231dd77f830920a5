"""``train --init-from``: a new run starts from the weights of another one, and from nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rl_training.errors import ConfigError, SpaceError, shown
from rl_training.experiment.finding import load_acting
from rl_training.experiment.registry import canonical_name
from rl_training.experiment.run import Initial
from rl_training.runtime.divergence import require_finite
from rl_training.runtime.inference import acting_parts, fitting
from rl_training.types import SpaceSpec, State

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer

FACTORS = "normalizer.factors"  # how the factors of ObservationScale end in the weights of a policy


def start_from(trainer: Trainer, source: Path, warn: Callable[[str], None]) -> None:
    """Gives a trainer at step 0 the weights in a run or checkpoint of the same algorithm, on the same spaces. Nothing that
    the checkpoint names is imported."""
    loaded = load_acting(source, warn)
    place = f"the checkpoint {loaded.path}"
    agent, weights, config = loaded.parts["agent"], loaded.parts["policy"], trainer.config
    with fitting(place):
        algo, env_id = canonical_name(str(agent["config"]["algo"])), str(agent["config"]["env_id"])
        if algo != config.algo:
            raise ConfigError(
                f"{place} holds a {algo} agent, but {config.algo} can only start from the weights of a {config.algo} agent"
            )
        _require_same_spaces(place, env_id, SpaceSpec.from_json(agent["spaces"]), config.env_id, trainer.policy.spec)
        _require_same_network(place, weights, trainer.policy.state_dict())
        use_weights(trainer, weights)
    require_finite(trainer.policy, place)
    trainer.initial = Initial(str(source), acting_parts(trainer.policy, config))


def use_weights(trainer: Trainer, weights: State) -> None:
    """Gives a trainer the weights of a policy that fits it; its target networks start from them too."""
    trainer.policy.load_state_dict(weights)
    trainer.algorithm.policy_loaded()
    trainer.collector.refresh()


def _require_same_spaces(place: str, env_id: str, saved: SpaceSpec, own_id: str, needed: SpaceSpec) -> None:
    parts = {"observations": (saved.observation, needed.observation), "actions": (saved.action, needed.action)}
    for name, (old, new) in parts.items():
        if old != new:
            raise SpaceError(
                f"{place} was trained on {env_id}, whose {name} differ from those of {own_id}, so training cannot start from "
                f"its weights ({_first_difference(old, new)}); use an environment of the same spaces"
            )


def _first_difference(saved: Any, needed: Any) -> str:
    """The first field in which two dataclasses differ."""
    for field in fields(saved):
        there, here = getattr(saved, field.name), getattr(needed, field.name)
        if field.name == "leaves":
            unequal = [pair for pair in zip(there, here, strict=False) if pair[0] != pair[1]]
            return _first_difference(*unequal[0]) if unequal else f"{len(there)} arrays there, {len(here)} here"
        if there != here:
            return f"{field.name} {shown(there)} there, {shown(here)} here"
    raise AssertionError("they do not differ")


def _require_same_network(place: str, saved: State, needed: State) -> None:
    found, expected = ({name: tuple(value.shape) for name, value in state.items()} for state in (saved, needed))
    for name in {**expected, **found}:
        if found.get(name) != expected.get(name):
            there, here = (shown(shapes[name]) if name in shapes else "missing" for shapes in (found, expected))
            raise ConfigError(
                f"the network of {place} differs: '{name}' is {there} there and {here} here; use the settings of the network "
                "that it was trained with (hidden_sizes and the like)"
            )
        if name.endswith(FACTORS) and not torch.equal(saved[name], needed[name]):
            there, here = (shown(state[name].tolist()) for state in (saved, needed))
            raise ConfigError(f"observation_scale is {there} in {place} and {here} here; use the same numbers")
