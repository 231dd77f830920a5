"""A pool without the mask of allowed actions."""

from rl_training.envs.pool import EnvPool, SeededEnvPool


class Mistaken:
    """A pool has ten members."""

    num_envs = 1


def pools(right: SeededEnvPool, wrong: Mistaken) -> list[EnvPool]:
    """What collectors take."""
    return [right, wrong]  # expect: list-item
