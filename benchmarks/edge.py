"""Shows why value learning falls over on CartPole: what a network believes about the ends of the track, and what is true.

    python benchmarks/edge.py dqn/cartpole --seed 9                                       train, watch and draw
    python benchmarks/edge.py dqn/cartpole --seed 9 --name huber --set algo_kwargs.huber_delta=1.0
    python benchmarks/edge.py drqn/cartpole --seed 100                                    the same for a network with memory
    python benchmarks/edge.py --report                                                    only draw what was recorded

Every thousand steps (2500 with memory) the greedy policy plays episodes beside the run, which this does not change. For every
state on the way there is the value that the network predicts, max Q(s, a), and the discounted return that really follows.
A network with memory is also asked what it would have predicted if it had seen only the last steps, from a state of zeros:
how far these values are from those that it acts on shows what they owe to older steps. And it plays episodes in which its
state is set back to zeros every 10 steps. The figures of docs/value_learning.md are drawn from benchmarks/results/edge.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.algorithms.epsilon_greedy import EpsilonGreedyPolicy
from rl_training.algorithms.policy import Policy
from rl_training.algorithms.recurrent_value import RecurrentQPolicy
from rl_training.bench.charts import figure
from rl_training.experiment.config import apply_overrides, load_config_data, resolve_config
from rl_training.runtime.hooks import Callback, Training
from rl_training.runtime.trainer import Trainer
from rl_training.types import Carry

RESULTS = Path(__file__).parent / "results" / "edge.json"
CHARTS = Path(__file__).parent.parent / "docs" / "charts"
EVERY, EVERY_WITH_MEMORY, EPISODES, LIMIT, SEED = 1000, 2500, 30, 500, 1_000_000
CONTEXTS = (10, 30)  # steps that a network with memory is shown, from a state of zeros
TRACK = 2.4
EDGES = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1, 2.4)  # of the bins of |x|
Array = NDArray[Any]


class Values:
    """The Q-values of a policy along several episodes at once. Its state is that of the policy; () without memory."""

    def __init__(self, policy: Policy) -> None:
        self.memory = isinstance(policy, RecurrentQPolicy)
        if isinstance(policy, RecurrentQPolicy):
            assert not policy.takes_reward, "this script shows networks that take observations only"
            self._step = policy.network.numpy_step()
        else:
            assert isinstance(policy, EpsilonGreedyPolicy)
            self._q = policy.q
        self.initial = policy.initial_carry

    def __call__(self, obs: Array, state: Carry) -> tuple[Array, Carry]:
        return self._step(obs, state, None) if self.memory else (self._q(obs), ())

    def after(self, observations: Sequence[Array]) -> Array:
        """The Q-values at the last of these observations, for a network that begins with the first of them."""
        state, q_values = self.initial(len(observations[0])), np.empty(0)
        for obs in observations:
            q_values, state = self(obs, state)
        return q_values


class Played(NamedTuple):
    """Greedy episodes, (time, episode); a row is meaningful only where ``there``."""

    obs: Array
    q_values: Array  # (time, episode, action)
    there: Array
    fell: Array  # (episode,) whether it ended before the limit
    ends: dict[str, int]  # how many episodes ended at the limit, off the track, or with the pole down

    def returns(self, gamma: float) -> Array:
        """The discounted return that follows. Episodes that reach the time limit would go on, so theirs is that of balancing
        for ever."""
        left = self.there.sum(axis=0) - np.arange(LIMIT)[:, None]
        returns: Array = np.where(self.fell, (1 - gamma ** left.clip(0)) / (1 - gamma), 1 / (1 - gamma))
        return returns

    def surprises(self, values: Values, context: int) -> tuple[float, float] | None:
        """How far the Q-values are from those after only ``context`` steps, and how often the other action is chosen; means
        over every 45th step. None if all episodes are too short for it."""
        distances, flips = [], []
        for time in range(context, LIMIT, 45):
            there = self.there[time]
            if there.any():
                short = values.after([*self.obs[time - context : time + 1, there]])
                acted_on = self.q_values[time, there]
                distances.append(np.abs(short - acted_on).mean())
                flips.append((short.argmax(axis=1) != acted_on.argmax(axis=1)).mean())
        return (float(np.mean(distances)), float(np.mean(flips))) if distances else None


def play(values: Values, forget_every: int | None = None) -> Played:
    """Greedy episodes; a memory can be set back to its initial state every few steps."""
    env = gym.make_vec("CartPole-v1", EPISODES, vectorization_mode="vector_entry_point")
    obs, _ = env.reset(seed=SEED)
    state, alive = values.initial(EPISODES), np.ones(EPISODES, bool)
    seen, ends = [], {"limit": 0, "track": 0, "pole": 0}
    for time in range(LIMIT):
        if forget_every is not None and time % forget_every == 0:
            state = values.initial(EPISODES)
        q_values, state = values(obs, state)
        seen.append((obs, q_values, alive.copy()))
        obs, _, terminated, _, _ = env.step(q_values.argmax(axis=1))
        off = np.abs(obs[:, 0]) > TRACK
        ends["track"] += int((alive & terminated & off).sum())
        ends["pole"] += int((alive & terminated & ~off).sum())
        alive &= ~terminated
    env.close()
    ends["limit"] = int(alive.sum())
    observations, q_all, there = (np.stack(part) for part in zip(*seen, strict=True))
    return Played(observations, q_all, there, ~alive, ends)


class Watch(Callback):
    """Plays with the policy at every logged step."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def on_start(self, training: Training) -> None:
        self._training = training

    def on_update(self, metrics: Mapping[str, float]) -> None:
        values = Values(self._training.policy)
        played = play(values)
        there = played.there
        place, value = np.abs(played.obs[..., 0])[there], played.q_values.max(axis=2)[there]
        truth = played.returns(self._training.config.algo_kwargs.gamma)[there]
        bins = np.digitize(place, EDGES) - 1
        inside = [bins == k for k in range(len(EDGES) - 1)]
        record = {
            "step": self._training.env_steps,
            "return": float(there.sum(axis=0).mean()),
            "ends": played.ends,
            "largest": float(value.max()),
            "gap": float(np.abs(np.diff(played.q_values, axis=2))[there].mean()),
            "predicted": [float(value[where].mean()) if where.any() else None for where in inside],
            "true": [float(truth[where].mean()) if where.any() else None for where in inside],
        }
        if values.memory:
            record["surprises"] = [played.surprises(values, context) for context in CONTEXTS]
            record["forgetful"] = float(play(values, CONTEXTS[0]).there.sum(axis=0).mean())
        self.records.append(record)


def record(config: str, seed: int, overrides: Sequence[str]) -> dict[str, Any]:
    """Trains and returns what was seen on the way."""
    data = apply_overrides(load_config_data(config), [*overrides, "eval.interval=1000000"])
    settings = resolve_config(data).algo_kwargs
    memory, bound = "lstm_size" in type(settings).model_fields, 1.0 / (1.0 - settings.gamma)  # with a reward of 1 per step
    data = apply_overrides(data, [f"log.interval={EVERY_WITH_MEMORY if memory else EVERY}"])
    watch = Watch()
    with closing(Trainer(resolve_config({**data, "seed": seed}))) as trainer:
        trainer.train(evaluate=False, callbacks=[watch])
    return {"config": config, "seed": seed, "set": [*overrides], "memory": memory, "bound": bound, "records": watch.records}


def draw(runs: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Three panels: the return, the largest predicted value, and prediction and truth along the track at the worst moment or,
    with memory, how much of the values depends on what was seen long ago."""
    with figure(path, 11, 3.6, ncols=3) as (_, axes):
        left, middle, right = axes[0]
        memory = False
        for k, (name, run) in enumerate(runs.items()):
            records, memory, bound = run["records"], run["memory"], run["bound"]
            steps = [one["step"] for one in records]
            left.plot(steps, [one["return"] for one in records], color=f"C{k}", linewidth=1.4, label=name)
            if memory:
                label = f"{name}, its state set back every {CONTEXTS[0]} steps"
                left.plot(steps, [one["forgetful"] for one in records], ":", color=f"C{k}", linewidth=1.2, label=label)
            middle.plot(steps, [one["largest"] / bound for one in records], color=f"C{k}", linewidth=1.4, label=name)
            if memory:
                _draw_memory(right, name, records, f"C{k}")
            else:
                _draw_track(right, name, records, bound, f"C{k}")
        middle.axhline(1, color="black", linewidth=0.8, linestyle="--", label="largest possible")
        third = "what a value owes to older steps" if memory else "value along the track * (1 - gamma)"
        titles = ("return of the greedy policy", "largest predicted value * (1 - gamma)", third)
        for axis, title in zip(axes[0], titles, strict=True):
            axis.set_title(title, fontsize="medium")
            axis.set_xlabel("environment steps" if axis is not right or memory else "distance from the middle, |x|")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="x-small")


def _draw_track(axis: Any, name: str, records: Sequence[Mapping[str, Any]], bound: float, color: str) -> None:
    worst = max(records[len(records) // 2 :], key=lambda one: one["largest"])
    centres = [(low + high) / 2 for low, high in pairwise(EDGES)]
    for key, style in (("predicted", "-"), ("true", ":")):
        seen = [(x, y / bound) for x, y in zip(centres, worst[key], strict=True) if y is not None]
        label = f"{name}: {key}, step {worst['step']}"
        axis.plot(*zip(*seen, strict=True), style, marker="o", markersize=3, color=color, label=label)


def _draw_memory(axis: Any, name: str, records: Sequence[Mapping[str, Any]], color: str) -> None:
    for k, style in enumerate(("-", ":")):
        seen = [(one["step"], one["surprises"][k][0]) for one in records if one["surprises"][k] is not None]
        label = f"{name}: more than {CONTEXTS[k]} steps ago"
        axis.plot(*zip(*seen, strict=True), style, color=color, linewidth=1.2, label=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", help="a packaged config of DQN or its relatives on CartPole")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", help="the run's name in the figure (default: the config's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override for the config")
    parser.add_argument("--report", action="store_true", help="only draw")
    arguments = parser.parse_args()
    runs = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if not arguments.report:
        if arguments.config is None:
            parser.error("give a config, or --report")
        runs[arguments.name or arguments.config] = record(arguments.config, arguments.seed, arguments.set)
        RESULTS.write_text(json.dumps(runs) + "\n", "utf-8")
    for file, memory in (("value_learning.svg", False), ("value_learning_memory.svg", True)):
        chosen = {name: run for name, run in runs.items() if run["memory"] == memory}
        if chosen:
            draw(chosen, CHARTS / file)


if __name__ == "__main__":
    main()
