"""How far one learner can be fed: a discrete-event simulation of free collectors, from costs measured on one machine.

    python benchmarks/scale_simulation.py           # draws the cases to 256 collectors, into docs/scale.md
    python benchmarks/scale_simulation.py --check   # first compares 1, 2 and 4 real collectors with what it predicts of them

Every collector plays a message of steps, sends it over the learner's link, and gets new weights when the learner has taken it
in and made the updates that are due. Collectors have a core of their own; the learner and both directions of its link serve
one after the other. Weights go once to each node, as Ray's object store sends them.
"""

from __future__ import annotations

import argparse
import heapq
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scale import Sleeping, config_of

from rl_training.bench.document import markdown_table, write_section
from rl_training.bench.machine import machine, today
from rl_training.runtime.svg import Line, standalone
from rl_training.runtime.trainer import Trainer

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
CHART = PAGE.parent / "charts" / "scale.svg"
COUNTS = [2**k for k in range(9)]
CHECKED = (1, 2, 4)
#: A learner that is busy for this share of the time is the bottleneck.
SATURATED = 0.95
GIGABIT = 1e9 / 8
#: Seconds of CPU time of the learner per message, and per step of a vector and of an 84x84 frame.
MESSAGE, VECTOR, FRAME = 0.5e-3, 1.2e-6, 9e-6
#: Bytes of a frame of 84x84 with what goes with it, and of the weights of the network of the Atari papers.
FRAME_BYTES, CNN_BYTES = 7100, 6.8e6


@dataclass(frozen=True)
class Case:
    """The costs of a run, in seconds and bytes."""

    name: str
    step: float  # of a collector, per step of one of its environments
    steps: int  # in a message
    insert: float  # of the learner, per step
    update: float  # of the learner, with sampling
    per_update: int  # steps
    step_bytes: float
    weights_bytes: float
    message: float = MESSAGE  # of the learner, per message
    link: float = 10 * GIGABIT  # bytes per second
    per_node: int = 16  # collectors, which share one copy of the weights


@dataclass(frozen=True)
class Outcome:
    """What a number of collectors achieves."""

    rate: float  # steps per second
    learner: float  # share of the time in which the learner works
    link: float  # share of the time in which the busier direction of its link does


def simulate(case: Case, collectors: int, messages: int = 4000) -> Outcome:
    """The steady state, after the first quarter of the messages."""
    played, arrived = 0, 1
    events = [(case.steps * case.step * (1 + k / collectors), played, k) for k in range(collectors)]  # not all at once
    heapq.heapify(events)
    learner = inwards = outwards = 0.0  # when each is free again
    busy = np.zeros(3)
    owed = taken = 0
    begun, at_begin = 0.0, busy.copy()
    while taken < messages:
        now, kind, number = heapq.heappop(events)
        if kind == played:
            cost = case.steps * case.step_bytes / case.link
            inwards = max(inwards, now) + cost
            busy[1] += cost
            heapq.heappush(events, (inwards, arrived, number))
            continue
        owed += case.steps
        cost = case.message + case.steps * case.insert + owed // case.per_update * case.update
        owed %= case.per_update
        learner = max(learner, now) + cost
        sending = case.weights_bytes / case.per_node / case.link
        outwards = max(outwards, learner) + sending
        busy += (cost, 0.0, sending)
        heapq.heappush(events, (outwards + case.steps * case.step, played, number))
        taken += 1
        if taken == messages // 4:
            begun, at_begin = learner, busy.copy()
    seconds = learner - begun
    shares = (busy - at_begin) / seconds
    return Outcome((messages - messages // 4) * case.steps / seconds, float(shares[0]), float(shares[1:].max()))


VECTORS = Case("DQN on vectors, an update every 32 steps", 60e-6, 256, VECTOR, 1.35e-3, 32, 40, 7e4)
APEX = Case("Ape-X on frames", 1.4e-3, 200, FRAME, 53e-3, 850, FRAME_BYTES, CNN_BYTES)
R2D2 = Case("R2D2 on frames", 2.2e-3, 240, FRAME, 0.2, 1900, FRAME_BYTES + 50, 2 * CNN_BYTES)
CASES = [
    VECTORS,
    replace(VECTORS, name="DQN on vectors, an update every 256 steps", per_update=256),
    replace(VECTORS, name="DQN, an environment of 10 ms", step=10e-3, steps=64),
    APEX,
    replace(APEX, name="Ape-X on frames, 1 Gbit/s", link=GIGABIT),
    replace(APEX, name="Ape-X, whole stacks on the wire, 1 Gbit/s", link=GIGABIT, step_bytes=8 * FRAME_BYTES),
    replace(R2D2, name="R2D2 on frames, if each stack were gathered by itself", update=0.2 + 0.14),
    R2D2,
]


# -------------------------------------------------------------------------------------------------- against the real thing


def measured(count: int, steps: int) -> tuple[float, float, float]:
    """Steps per second of real collectors with two environments each, and the learner's seconds per message and update."""
    config = config_of({"kind": "process", "mode": "free", "count": count, "stretch": 32})
    settings = {**config.model_dump(mode="json")["algo_kwargs"], "train_freq": 4}
    config = config.with_values(num_envs=2 * count, algo_kwargs=settings, env_from_python=True)
    trainer = Trainer(config, factory=Sleeping)
    trainer.train(1500, evaluate=False)
    begun, seconds, updates = time.perf_counter(), dict(trainer.timer.seconds), trainer.learner.updates
    first = trainer.env_steps
    trainer.train(first + steps * count, evaluate=False)
    wall, made = time.perf_counter() - begun, trainer.learner.updates - updates
    spent = {name: value - seconds[name] for name, value in trainer.timer.seconds.items()}
    trainer.close()
    played = trainer.env_steps - first
    return played / wall, spent["rest"] / (played / 64), (spent["update"] + spent["sampling"]) / made


def check(steps: int, repeats: int) -> str:
    """A table of what 1, 2 and 4 collectors give, and what is predicted of them from the costs of a single one. Those of a
    message and of an update are measured; that of a step is what is left of its time."""
    found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in CHECKED}
    for _ in range(repeats):
        for count in CHECKED:
            found[count].append(measured(count, steps))
    rate, message, update = (float(np.median(column)) for column in zip(*found[1], strict=True))
    case = Case("check", 1 / rate - message / 64 - update / 4, 64, 0.0, update, 4, 0.0, 0.0, message=message, link=1e12)
    rows = []
    for count in CHECKED:
        real = float(np.median([one[0] for one in found[count]]))
        predicted = simulate(case, count).rate
        rows.append((str(count), f"{real:.0f}", f"{predicted:.0f}", f"{100 * (predicted / real - 1):+.0f} %"))
    table = markdown_table(("collectors", "steps per second", "predicted", "difference"), rows)
    return (
        f"{table}\n\nAn environment that sleeps for a millisecond, two for each collector (`process`, `free`), messages of "
        f"64 steps, an update of DQN every 4 steps; medians of {repeats} runs in turns. {today()}; {machine()}."
    )


# --------------------------------------------------------------------------------------------------------- the page


def drawn() -> str:
    """The table of all cases; the chart is written beside it."""
    rows, lines = [], []
    for case in CASES:
        outcomes = {count: simulate(case, count) for count in COUNTS}
        full = next((count for count in COUNTS if outcomes[count].learner >= SATURATED), None)
        crowded = next((count for count in COUNTS if outcomes[count].link >= SATURATED), None)
        limit = "learner" if full else "link" if crowded else "none yet"
        most = outcomes[COUNTS[-1]]
        updates = most.rate / case.per_update
        rows.append((case.name, str(full or crowded or "-"), limit, f"{most.rate:,.0f}", f"{updates:.1f}"))
        shares = [outcomes[count].rate / most.rate for count in COUNTS]
        lines.append(Line(case.name, [float(np.log2(count)) for count in COUNTS], shares))
    title = "Steps per second with more and more collectors, as a share of those with 256"
    CHART.write_text(standalone(title, [(title, lines)], columns=1, x_name="collectors, as a power of two"), "utf-8")
    header = ("case", "full from", "by the", "steps/s with 256", "updates/s")
    return f"{markdown_table(header, rows)}\n\n![{title}](charts/{CHART.name})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with real collectors first")
    parser.add_argument("--steps", type=int, default=4000, help="of each collector, with --check")
    parser.add_argument("--repeats", type=int, default=3, help="with --check")
    arguments = parser.parse_args()
    if arguments.check:
        text = check(arguments.steps, arguments.repeats)
        write_section(PAGE, "check", text)
        print(text)
    text = drawn()
    write_section(PAGE, "simulation", text)
    print(text)


if __name__ == "__main__":
    main()
