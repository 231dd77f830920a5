"""Reports of environment failures, with everything needed to reproduce them."""

from __future__ import annotations

import json
import shlex

from rl_training.errors import EnvironmentFault
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import replace_text
from rl_training.experiment.run import Run
from rl_training.experiment.trust import trust_option
from rl_training.tracebacks import frames_of


def write_fault_report(run: Run, fault: EnvironmentFault, config: TrainConfig, env_steps: int) -> str:
    """Writes ``fault-step-N.json`` into the run directory; returns a sentence on how to reproduce and to continue."""
    path = run.path / f"fault-step-{env_steps}.json"
    report = {
        "env_id": fault.env_id,
        "env_kwargs": config.env_kwargs,
        "problem": fault.problem,
        "episode_seed": fault.episode_seed,
        "actions": fault.actions,
        "traceback": [] if fault.__cause__ is None else frames_of(fault.__cause__),
    }
    replace_text(path, json.dumps(report) + "\n")
    return (
        f"The run is saved at step {env_steps}; {path} has the episode seed and the actions that reproduce this. Once the "
        f"environment is fixed: rl-training resume {shlex.quote(str(run.path))}{trust_option(config, run.path)}"
    )
