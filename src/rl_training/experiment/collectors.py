"""The settings of collecting: where the environments of a run are played, and when their steps are learned from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from rl_training.algorithms.config import AlgorithmConfig, OnPolicyConfig, Positive, PositiveNumber
from rl_training.algorithms.strict_model import MAY_CHANGE, StrictModel
from rl_training.algorithms.value import QLearningConfig


class CollectorsConfig(StrictModel):
    """How steps are collected: by how many collectors, where, and how many steps at a time."""

    kind: Literal["inline", "process", "ray"] = Field(
        "inline",
        description="where collectors run: in this process, in processes on this machine, or on a Ray cluster",
        json_schema_extra=MAY_CHANGE,
    )
    count: Positive = Field(1, description="number of collectors, each with an equal share of num_envs")
    stretch: Positive = Field(1, description="steps of each environment that are collected with the same weights")
    mode: Literal["lockstep", "pipelined", "free"] = Field(
        "lockstep",
        description="lockstep: collect, then learn; pipelined: learn while the next stretch is collected with the "
        "previous weights; free: each collector on its own, which cannot be reproduced",
    )
    address: str | None = Field(
        None,
        description="address of the Ray cluster: auto for the one on this machine, or host:port; null: start one here",
        json_schema_extra=MAY_CHANGE,
    )
    cpus: PositiveNumber = Field(1.0, description="CPUs that Ray reserves for a collector", json_schema_extra=MAY_CHANGE)
    broadcast_interval: Positive = Field(1, description="stretches after which collectors get new weights")
    actor_priorities: bool = Field(
        False,
        description="new items of prioritised replay get their priorities from the Q-values of acting instead of the largest "
        "one; each step is then learned from one step later",
    )

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is not None and not is_address(address):
            raise ValueError("must be auto, or the host:port of a Ray cluster")
        return address

    @property
    def step_by_step(self) -> bool:
        """Whether every step is learned from before the next one is collected, in this process."""
        plain = (self.kind, self.count, self.stretch, self.mode) == ("inline", 1, 1, "lockstep")
        return plain and not self.actor_priorities

    def problem(self, num_envs: int, env_workers: str, settings: AlgorithmConfig) -> str | None:
        """Why these settings do not fit those of the run, if they do not."""
        if num_envs % self.count:
            below = max(count for count in range(1, self.count) if num_envs % count == 0)
            return (
                f"collectors.count ({self.count}) does not divide the environments (num_envs {num_envs}) into equal shares; "
                f"set it to {below}, or num_envs to {self.count * (num_envs // self.count + 1)}"
            )
        if self.kind != "inline" and env_workers != "inline":
            return (
                f"collectors.kind {self.kind} has processes of its own, in which environments run one after the other; set "
                "env_workers: inline and raise collectors.count"
            )
        if self.actor_priorities:
            if not (isinstance(settings, QLearningConfig) and settings.prioritizes):
                return (
                    "collectors.actor_priorities is for algorithms that act by Q-values and have prioritised replay; set "
                    "algo_kwargs.prioritized: true if the algorithm has that setting, or leave out actor_priorities"
                )
            if settings.normalize_rewards:
                return (
                    "collectors.actor_priorities needs rewards as they are, but algo_kwargs.normalize_rewards scales them "
                    "when they are learned from; set one of them to false"
                )
        if self.step_by_step or not isinstance(settings, OnPolicyConfig):
            return None
        if self.mode != "lockstep":
            return (
                f"collectors.mode {self.mode} would learn from steps of older weights, which this on-policy algorithm must "
                "not; set it to lockstep"
            )
        if self.stretch != settings.n_steps:
            return (
                f"collectors.stretch is {self.stretch}, but this on-policy algorithm learns from whole rollouts; set it to "
                f"algo_kwargs.n_steps ({settings.n_steps})"
            )
        return None


def is_address(text: str) -> bool:
    """Whether a text can be the address of a Ray cluster: auto, or host:port."""
    host, separator, port = text.rpartition(":")
    return text == "auto" or bool(host and separator and port.isascii() and port.isdigit() and 0 < int(port) < 65_536)
