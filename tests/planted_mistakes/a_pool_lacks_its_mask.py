"""Environments that do not tell which actions are allowed."""

from rl_training.envs.pool import EnvPool, SeededEnvPool


class Mistaken:
    """A pool has nine members."""

    num_envs = 1


def pools(right: SeededEnvPool, wrong: Mistaken) -> list[EnvPool]:
    """What collectors take."""
    return [right, wrong]  # expect: list-item
