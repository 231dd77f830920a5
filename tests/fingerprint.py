"""Fingerprints of fixed-seed runs, to show that a refactoring changes no bit.

    python tests/fingerprint.py before.json
    (change the code)
    python tests/fingerprint.py after.json --against before.json

A fingerprint covers the final weights (whatever their names), every logged number and the final evaluation. It holds for one
CPU and one set of versions. ``--compiled`` adds the runs with a compiled update, which take minutes the first time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from conftest import ALGORITHMS, EVERY_OPTION, metrics_without_time, settings_of, tiny_values
from safetensors.numpy import load_file

from rl_training.experiment.config import resolve_config
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.sessions import start_training
from rl_training.runtime.trainer import Trainer

#: Not among them, so that fingerprints of earlier trees can be compared.
LATER = ("train_freq", "gradient_steps", "target_kl", "loss_over_time", "average_updates")
OPTIONS = {**{name: value for name, value in EVERY_OPTION.items() if name not in LATER}, "clip_reward": 0.5}


def can_be_compiled(algo: str) -> bool:
    """Whether the update of a tiny run has a compiled form."""
    trainer = Trainer(resolve_config(tiny_values(algo)))
    trainer.close()
    return trainer.algorithm.why_not_compiled() is None


def cases(compiled: bool) -> dict[str, dict[str, Any]]:
    """Configs by name."""
    chosen: dict[str, dict[str, Any]] = {}
    for algo in ALGORITHMS:
        modes = ["off", "on"] if compiled and can_be_compiled(algo) else ["off"]
        for mode in modes:
            name = f"{algo}{' compiled' if mode == 'on' else ''}"
            common: dict[str, Any] = {"compile": mode, "log": {"interval": 7, "tensorboard": False}}
            chosen[name] = tiny_values(algo, **common, seed=3)
            chosen[f"{name}, options"] = tiny_values(
                algo, **common, num_envs=3, seed=11, algo_kwargs=settings_of(algo, OPTIONS)
            )
        discrete = "discrete" in get_algorithm(algo).actions
        if discrete and "image" in get_algorithm(algo).observations:
            images = {"frame_stack": 3, "buffer_size": 90, "n_step": 2, "train_freq": 4, "cnn_layers": [[4, 8, 4]]}
            chosen[f"{algo}, images"] = tiny_values(
                algo,
                env_id="rl_training_test_envs:ImageWalk-v0",
                num_envs=2,
                total_timesteps=100,
                log={"interval": 7, "tensorboard": False},
                algo_kwargs=settings_of(algo, images),
            )
        if discrete:
            chosen[f"{algo}, masks"] = tiny_values(algo, env_id="rl_training_test_envs:Masked-v0", num_envs=2)
    chosen["ppo, kl"] = tiny_values("ppo", algo_kwargs={"target_kl": 0.001, "learning_rate": 0.01})
    chosen["ppo, continuous"] = tiny_values("ppo", env_id="Pendulum-v1", num_envs=2)
    return chosen


def fingerprint(values: dict[str, Any]) -> dict[str, Any]:
    """The fingerprint of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        trainer = start_training(resolve_config({**values, "output_dir": str(run)}), command="fingerprint")
        result = trainer.train()
        trainer.close()
        weights = load_file(run / "checkpoints" / "latest" / "policy.safetensors")
        tensors = sorted(hashlib.sha256(array.tobytes()).hexdigest() for array in weights.values())
        metrics = json.dumps(metrics_without_time(run), sort_keys=True)
        assert result.evaluation is not None
        return {
            "weights": hashlib.sha256("".join(tensors).encode()).hexdigest()[:16],
            "metrics": hashlib.sha256(metrics.encode()).hexdigest()[:16],
            "updates": result.updates,
            "returns": result.evaluation.returns,
        }


def main() -> int:
    """Writes the fingerprints, and compares them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("output", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found = {name: fingerprint(values) for name, values in cases(arguments.compiled).items() if arguments.only in name}
    arguments.output.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if arguments.against is None:
        return 0
    before = json.loads(arguments.against.read_text("utf-8"))
    differing = [name for name in found if found[name] != before.get(name)]
    print(f"{len(found)} runs, {len(differing)} differ", *differing, sep="\n  ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
