"""The managed class of every registered algorithm, made when it is first used."""

from __future__ import annotations

import functools
from pathlib import Path

from rl_training.api.algorithms import ManagedAlgorithm, warn_caller
from rl_training.api.environments import EnvLike
from rl_training.api.signatures import MadeWhenUsed, with_signature
from rl_training.experiment.registry import AlgorithmClass, algorithms, built_in, get_algorithm, name_of
from rl_training.models.custom import NetworkFunction
from rl_training.runtime.inference import load_policy


def managed(algorithm: str | AlgorithmClass) -> type[ManagedAlgorithm]:
    """The managed class of an algorithm, which is given by its name, its ``module:Class`` path, or as a class."""
    return _managed(get_algorithm(algorithm) if isinstance(algorithm, str) else algorithm)


@functools.cache
def _managed(algorithm: AlgorithmClass) -> type[ManagedAlgorithm]:
    doc = (
        f"{algorithm.__doc__}\n\nThe agent whose updates are made by ``{algorithm.__module__}.{algorithm.__name__}``. Its "
        "settings are documented at ``__init__``. With ``output_dir`` it keeps a run directory (log, checkpoints) that\n"
        "``resume`` can continue; without it, it writes nothing until ``save`` is called."
    )
    members = {
        "algo_name": name_of(algorithm),
        "algorithm_class": algorithm,
        "__doc__": doc,
        "__module__": __name__,
        "__init__": MadeWhenUsed(lambda: with_signature(ManagedAlgorithm.__init__, algorithm)),
    }
    return type(algorithm.public_name, (ManagedAlgorithm,), members)


def public_names() -> list[str]:
    """The names of the managed classes of all registered algorithms."""
    return [algorithm.public_name for algorithm in algorithms().values()]


def __getattr__(name: str) -> type[ManagedAlgorithm]:
    """One managed class per registered algorithm, made when it is first used. Installed packages are searched last."""
    for search in () if name.startswith("_") else (built_in, algorithms):
        for algorithm in search().values():
            if algorithm.public_name == name:
                return _managed(algorithm)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def load_agent(
    path: str | Path,
    env: EnvLike | None = None,
    *,
    trust_modules: bool = False,
    network: NetworkFunction | None = None,
) -> ManagedAlgorithm:
    """An agent of whatever algorithm the run or checkpoint holds; ``trust_modules`` and ``network`` are those of ``load``."""
    config, policy, checkpoint = load_policy(Path(path), warn_caller, trust_modules=trust_modules, network=network)
    return managed(config.algo)._of_policy(config, policy, checkpoint, env, trust_modules)
