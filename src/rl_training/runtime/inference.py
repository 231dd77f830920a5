"""Using a trained policy: load it once, then predict as often as you like."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.policy import Policy
from rl_training.errors import CheckpointError, ObservationError, RLTrainingError, shown
from rl_training.experiment.checkpoint import load_checkpoint, write_checkpoint
from rl_training.experiment.compat import naming_the_writer
from rl_training.experiment.config import TrainConfig, resolve_config, with_network
from rl_training.experiment.finding import load_acting, run_of
from rl_training.experiment.registry import get_algorithm
from rl_training.experiment.trust import Trust
from rl_training.models.custom import NetworkFunction
from rl_training.runtime.divergence import require_finite
from rl_training.types import (
    Array,
    Carry,
    ObservationLeaf,
    ObservationSpec,
    SpaceSpec,
    State,
    entry_at,
    path_name,
)


def load_policy(
    path: Path, warn: Callable[[str], None], *, trust_modules: bool = False, network: NetworkFunction | None = None
) -> tuple[TrainConfig, Policy, Path]:
    """The policy of a run or checkpoint with its config. Reads no training state and creates no environment.

    ``network`` replaces the user's own network that the config names.
    """
    loaded = load_acting(path, warn)
    policy, config = policy_of(
        loaded.parts,
        f"the checkpoint {loaded.path}",
        loaded.manifest["written_by"],
        Trust(run_of(loaded.path), trust_modules),
        network,
    )
    return config, policy, loaded.path


def policy_of(
    parts: Mapping[str, State], place: str, written_by: object, trust: Trust, network: NetworkFunction | None = None
) -> tuple[Policy, TrainConfig]:
    """The policy and the config in the acting parts of a checkpoint or an export."""
    with fitting(place):
        values = parts["agent"]["config"]
        if not isinstance(values, dict) or not all(isinstance(values.get(key), str) for key in ("algo", "env_id")):
            raise CheckpointError(f"{place} holds no valid config: it names no algorithm or no environment")
        values = with_network(values, network)
        trust.require_algo(values)
        with naming_the_writer(place.removeprefix("the checkpoint "), written_by):
            config = resolve_config(values)
        policy = build_policy(config, SpaceSpec.from_json(parts["agent"]["spaces"]))
        policy.load_state_dict(parts["policy"])
    require_finite(policy, place)
    return policy, config


def recorded_agent(checkpoint: Path) -> tuple[dict[str, Any], ObservationSpec]:
    """The unchecked config of a checkpoint, and the observation spec that it was written with."""
    agent = load_checkpoint(checkpoint, ("agent",)).parts["agent"]
    with fitting(f"the checkpoint {checkpoint}"):
        return dict(agent["config"]), SpaceSpec.from_json(agent["spaces"]).observation


@contextlib.contextmanager
def fitting(place: str) -> Iterator[None]:
    """Whatever a forged or damaged state makes the code raise becomes one sentence."""
    try:
        yield
    except RLTrainingError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{place} does not fit its config: {reason}") from error


def acting_parts(policy: Policy, config: TrainConfig) -> dict[str, State]:
    """The parts of a checkpoint that ``load_policy`` reads."""
    return {
        "agent": {"config": config.describe(), "spaces": policy.spec.to_json()},
        "policy": policy.state_dict(),
    }


def save_policy(policy: Policy, config: TrainConfig, path: Path) -> None:
    """Writes a checkpoint that holds only the policy."""
    write_checkpoint(path, acting_parts(policy, config), {})


def build_policy(config: TrainConfig, spec: SpaceSpec) -> Policy:
    """A policy with its initial weights, on the CPU."""
    return get_algorithm(config.algo).make_policy(config.algo_kwargs, spec, init_generator(config.seed))


def predict(
    policy: Policy,
    obs: Any,
    state: Carry | None = None,
    episode_start: Any = None,
    *,
    reward: Any = None,
    action_mask: Any = None,
    rng: np.random.Generator | None = None,
    env_steps: int = 0,
) -> tuple[Array, Carry]:
    """Environment actions for one observation or a batch of them, and the state to pass to the next call.

    ``reward`` is the reward of the previous action, which some policies take as an input. ``episode_start`` marks
    observations that start an episode: their rows of the state are reset first, and they need no reward. ``action_mask``
    marks the discrete actions that are allowed.
    """
    batch, single = as_batch(obs, policy.spec.observation)
    encoded = policy.spec.observation.encode(batch)
    start = as_starts(episode_start, len(encoded))
    if state is None or start.all():
        carry = policy.initial_carry(len(encoded))
    else:
        require_rows(state, len(encoded))
        noted = policy.note_reward(state, as_rewards(reward, start)) if policy.takes_reward else state
        carry = policy.reset_carry(noted, start)
    mask = as_mask(action_mask, len(encoded), policy.spec)
    output = policy.act(encoded, carry, rng=rng, env_steps=env_steps, action_mask=mask)
    actions = policy.spec.action.to_env(output.action)
    return (actions[0] if single else actions), output.carry


def as_starts(episode_start: Any, rows: int) -> NDArray[np.bool_]:
    """Which of the observations start an episode."""
    try:
        starts = np.asarray(False if episode_start is None else episode_start)
        if starts.dtype.kind not in "biuf" or not np.isin(starts, (0, 1)).all():
            raise ValueError("not boolean")
        return np.broadcast_to(starts.astype(np.bool_), (rows,))
    except ValueError as error:
        raise ObservationError(
            f"episode_start must be one boolean, or {rows} of them, one per observation, not {shown(episode_start)}"
        ) from error


def require_rows(state: Carry, rows: int) -> None:
    """Refuses a state that is not that of these observations."""
    for array in state:
        if len(array) != rows:
            raise ObservationError(
                f"the state has {len(array)} rows, but there are {rows} observations: keep their number, or start new "
                "episodes with episode_start=True"
            )


def as_rewards(reward: Any, start: NDArray[np.bool_]) -> Array:
    """The rewards of the previous actions; 0 where an episode starts."""
    try:
        rewards = np.broadcast_to(_as_numbers(reward).astype(np.float32), start.shape)
    except (TypeError, ValueError, OverflowError):
        rewards = np.full(start.shape, np.nan, np.float32)
    if not (np.isfinite(rewards) | start).all():
        raise ObservationError(
            f"this policy takes rewards as inputs: pass the reward of the previous action for each observation that does not "
            f"start an episode, as one number or one per row, not {shown(reward)}"
        )
    return np.where(start, np.float32(0.0), rewards)


def as_mask(action_mask: Any, rows: int, spec: SpaceSpec) -> NDArray[np.bool_] | None:
    """The allowed actions of each observation; None if there is no mask."""
    if action_mask is None:
        if spec.action.masked:
            warnings.warn(
                "this policy's environment masks actions, but predict got no action_mask: the action may be one that is not "
                "allowed; pass info['action_mask'] as action_mask",
                stacklevel=3,
            )
        return None
    if spec.action.low:
        raise ObservationError("an action_mask needs discrete actions, but this policy's actions are continuous")
    sizes = spec.action.sizes
    count, what = (sum(sizes), "value of a choice") if sizes else (spec.action.count, "action")
    try:
        mask = np.asarray(action_mask)
    except ValueError:  # rows of different lengths
        mask = np.empty(0)
    if mask.shape not in ((count,), (rows, count)) or mask.dtype.kind not in "biu":
        raise ObservationError(f"the action_mask must be {count} booleans, one per {what}, not {shown(action_mask)}")
    allowed = np.broadcast_to(mask.astype(np.bool_), (rows, count))
    if not all(part.any(axis=1).all() for part in np.split(allowed, np.cumsum(sizes)[:-1], axis=1)):
        raise ObservationError("the action_mask allows no action")
    return np.stack([spec.action.mask_of(row) for row in allowed])


def _as_numbers(value: Any) -> Array:
    """An array of numbers. Text is none, even if it could be read as one."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufO" or (
        array.dtype.kind == "O" and any(isinstance(one, (str, bytes)) for one in array.flat)
    ):
        raise TypeError(f"it contains text, dates or the like: {shown(value)}")
    return array if array.dtype == np.uint8 else array.astype(np.float64)


def as_batch(obs: Any, spec: ObservationSpec) -> tuple[Any, bool]:
    """The observations with a batch axis in every entry, nested as the space is, and whether there was none."""
    if spec.plain:
        batch, single = _as_leaf_batch(obs, spec.leaves[0], "the observation")
        return batch, single
    entries, singles = [], set()
    for leaf in spec.leaves:
        name = f"the observation's entry '{path_name(leaf.path)}'"
        try:
            entry = entry_at(obs, leaf.path)
        except (KeyError, IndexError, TypeError) as error:
            raise ObservationError(f"{name} is missing; this policy takes {_shape_of(spec)}, not {shown(obs)}") from error
        batch, single = _as_leaf_batch(entry, leaf, name)
        entries.append(batch)
        singles.add(single)
    if len(singles) > 1 or len({len(batch) for batch in entries}) > 1:
        raise ObservationError("the observation's entries disagree: all must be single, or have the same number of rows")
    return nested(spec, entries), singles.pop()


def _shape_of(spec: ObservationSpec) -> str:
    return f"{{{', '.join(f'{path_name(leaf.path)}: {leaf.raw_shape}' for leaf in spec.leaves)}}}"


def _as_leaf_batch(obs: Any, leaf: ObservationLeaf, name: str) -> tuple[Array, bool]:
    expected = leaf.raw_shape
    try:
        array = _as_numbers(obs)
    except (TypeError, ValueError, OverflowError) as error:
        raise ObservationError(f"{name} is not an array of numbers ({error})") from error
    single = array.shape == expected
    if not single and array.shape[1:] != expected:
        raise ObservationError(f"{name} has shape {array.shape}; this policy takes {expected}, or a batch of those")
    if not (np.abs(array) <= np.finfo(np.float32).max).all():
        raise ObservationError(f"{name} contains NaN, infinity or a number beyond float32")
    if leaf.dtype is np.uint8 and ((array < 0) | (array > 255) | (array % 1 != 0)).any():
        raise ObservationError(f"{'an image observation' if not leaf.path else name} must be whole numbers from 0 to 255")
    batch = array[None] if single else array
    if leaf.kind == "one_hot":
        starts = np.asarray(leaf.starts)
        index = batch.reshape(len(batch), -1) - starts
        if (index != index.round()).any() or (index < 0).any() or (index >= np.asarray(leaf.sizes)).any():
            raise ObservationError(
                f"{name} must be whole numbers from {starts.tolist()}, with {list(leaf.sizes)} possible values"
            )
    return batch, single


def nested(spec: ObservationSpec, entries: Sequence[Any]) -> Any:
    """One value for each leaf, nested as the space is: the inverse of ``entry_at``. Tuples become lists."""
    if spec.plain:
        return entries[0]
    tree: dict[str | int, Any] = {}
    for leaf, entry in zip(spec.leaves, entries, strict=True):
        level = tree
        for key in leaf.path[:-1]:
            level = level.setdefault(key, {})
        level[leaf.path[-1]] = entry
    return _with_lists(tree)


def _with_lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    inner = {key: _with_lists(entry) for key, entry in tree.items()}
    return list(inner.values()) if all(isinstance(key, int) for key in inner) else inner
