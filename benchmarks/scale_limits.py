"""How little collecting can cost the learner: bare programs that do only what no arrangement can save, beside the trainer.

    python benchmarks/scale_limits.py                 # inline and processes
    python benchmarks/scale_limits.py --ray           # and Ray, on an instance of its own

Inline, that is acting, stepping the environments, storing each stretch as one block, and learning. For collectors elsewhere
it is sending the weights, receiving an answer of the size of a real one, unpickling and storing it. What is measured is the
CPU time of this process, in turns with the trainer; the statistic is the smallest of all parts, because everything else on
the machine can only add to it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import isnan, nan
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from scale import CASES, COLLECTORS, ENVS, STRETCH, Measured, config_of, in_turns, without_learning

from rl_training.bench.document import markdown_table, write_section
from rl_training.bench.machine import machine, today
from rl_training.data.blocks import joined
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.cadence import cpu_threads
from rl_training.runtime.flat_weights import FlatWeights
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.ray_cluster import connected
from rl_training.runtime.stretch_collector import Call, CollectorServer, Place, Reply, Setup
from rl_training.runtime.trainer import Trainer
from rl_training.types import Transitions

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"


class Bare:
    """A part of the trainer's work, in rounds of ``steps`` steps."""

    def __init__(self, round_of: Callable[[], int], steps: int) -> None:
        self._round, self._steps = round_of, steps

    def microseconds(self) -> float:
        """CPU time per step of some rounds."""
        begun, played = time.process_time(), 0
        with cpu_threads(1):
            while played < self._steps:
                played += self._round()
        return 1e6 * (time.process_time() - begun) / played

    def close(self) -> None:
        """Does nothing; what it uses is closed by its owner."""


def bare_stretches(leaving: ExitStack) -> Callable[[], int]:
    """Acting, stepping, storing and learning, in stretches."""
    trainer = Trainer(config_of({"stretch": STRETCH}))
    leaving.callback(trainer.close)
    learner, pool, policy, rng = trainer.learner, trainer.pool, trainer.policy, trainer.streams["explore"]
    assert isinstance(learner, OffPolicyLearner)
    recorder, replay = learner.replay.recorder, learner.replay
    pool.reset()
    at = 0

    def play() -> int:
        nonlocal at
        items: list[Transitions] = []
        for _ in range(STRETCH):
            step, _ = pool.step(policy.act(pool.obs, (), rng=rng, env_steps=at).action)
            recorded = recorder.record(step, ())
            assert recorded is not None
            items.append(recorded)
        replay.add_block(joined(items), 0)
        at += STRETCH * ENVS
        learner.learn(at, STRETCH * ENVS)
        return STRETCH * ENVS

    return play


def real_reply(config: TrainConfig) -> bytes:
    """The pickled answer of a collector of this run."""
    place = Place(0, COLLECTORS, ENVS // COLLECTORS)
    server = CollectorServer(Setup(config, None, None, place).to_bytes(), None)
    call = Call(0, config.collectors.stretch, 0, None)
    replies = [server.play(call) for _ in range(2)]
    server.close()
    return pickle.dumps(replies[1], pickle.HIGHEST_PROTOCOL)


def taking_in(config: TrainConfig, exchange: Callable[[bytes], list[bytes]], leaving: ExitStack) -> Callable[[], int]:
    """Sending weights to all collectors, and storing and learning from what comes back."""
    trainer = Trainer(config.with_values(collectors={"stretch": STRETCH}))
    leaving.callback(trainer.close)
    weights, learner = FlatWeights(trainer.policy.network), trainer.learner
    stretch, at = config.collectors.stretch, 0

    def play() -> int:
        nonlocal at
        call = pickle.dumps(Call(at, stretch, 0, weights.to_bytes()), pickle.HIGHEST_PROTOCOL)
        for content in exchange(call):
            reply: Reply = pickle.loads(content)
            assert reply.answer is not None
            learner.add_block(reply.answer.block, reply.answer.seen, 0)
        at += stretch * ENVS
        learner.learn(at, stretch * ENVS)
        return stretch * ENVS

    return play


def _echo(pipe: Connection, reply: bytes) -> None:
    while pipe.recv_bytes():
        pipe.send_bytes(reply)


@contextmanager
def by_pipe(reply: bytes) -> Iterator[Callable[[bytes], list[bytes]]]:
    """Processes that answer at once."""
    context = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    for _ in range(COLLECTORS):
        own, remote = context.Pipe()
        processes.append(context.Process(target=_echo, args=(remote, reply), daemon=True))
        processes[-1].start()
        pipes.append(own)

    def exchange(call: bytes) -> list[bytes]:
        for pipe in pipes:
            pipe.send_bytes(call)
        left: list[Any] = list(pipes)
        found = []
        while left:
            for ready in wait(left):
                found.append(ready.recv_bytes())  # type: ignore[union-attr]
                left.remove(ready)
        return found

    yield exchange
    for process in processes:
        process.kill()
        process.join()


@contextmanager
def by_ray(reply: bytes) -> Iterator[Callable[[bytes], list[bytes]]]:
    """Actors that answer at once, on an instance that the two runs that are measured use as well."""
    with connected(None, num_cpus=2 * COLLECTORS) as ray:

        class Echo:
            def play(self, call: bytes) -> bytes:
                return reply

        actors = [ray.remote(num_cpus=0)(Echo).remote() for _ in range(COLLECTORS)]

        def exchange(call: bytes) -> list[bytes]:
            replies = [actor.play.remote(call) for actor in actors]
            found: list[bytes] = ray.get(ray.wait(replies, num_returns=len(replies))[0])
            return found

        yield exchange


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000, help="in each part")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    steps = arguments.steps
    kinds: dict[str, Any] = {"process": by_pipe, **({"ray": by_ray} if arguments.ray else {})}
    first, stretches = "inline, step by step", "inline, in stretches, one collector"
    with ExitStack() as leaving:
        runs: dict[str, Any] = {name: Measured(config_of(CASES[name]), steps) for name in (first, stretches)}
        bare: dict[str, Any] = {stretches: Bare(bare_stretches(leaving), steps)}
        for kind, transport in kinds.items():
            learning = config_of(CASES[f"{kind}, lockstep"])
            for name, config in ((kind, learning), (f"{kind}, without learning", without_learning(learning))):
                exchange = leaving.enter_context(transport(real_reply(config)))
                runs[name] = Measured(config, steps)
                bare[name] = Bare(taking_in(config, exchange, leaving), steps)
        for run in bare.values():
            run.microseconds()  # as a trainer does when it is made: fills the replay
        found = in_turns({**runs, **{f"{name}: bare": run for name, run in bare.items()}}, arguments.repeats)
    rows = []
    for name in runs:
        own, least = min(found[name]), min(found.get(f"{name}: bare", [nan]))
        rows.append((name, f"{own:.1f}", *(("-", "-") if isnan(least) else (f"{least:.1f}", f"{least / own:.2f}"))))
    table = markdown_table(("collectors", "us of CPU per step", "bare program", "share of its speed"), rows)
    text = (
        f"{table}\n\nThe smallest of {arguments.repeats} parts of {steps} steps, in turns. Without learning, messages have "
        f"256 steps, otherwise {STRETCH * ENVS // COLLECTORS}. {today()}; {machine()}."
    )
    write_section(PAGE, "limits", text)
    print(text)


if __name__ == "__main__":
    main()
