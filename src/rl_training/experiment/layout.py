"""The names of what a run directory holds."""

from __future__ import annotations

CONFIG_FILE = "config.yaml"
METADATA_FILE = "metadata.json"
EVALUATION_FILE = "evaluation.json"
#: Holds the name of the run in the trackers.
TRACKERS_FILE = "trackers.json"
LOCK_FILE = ".lock"
#: Prefix of a report on a fault of the environment; a step and .json follow.
FAULT_PREFIX = "fault-step-"
INITIAL = "initial"
CHECKPOINTS = "checkpoints"
#: Checkpoints that are damaged, or later than the one that the run was resumed from.
SET_ASIDE = "set-aside"
LATEST, BEST = "latest", "best"
TENSORBOARD = "tensorboard"
#: What W&B writes into the directory that it is given.
WANDB = "wandb"
#: Parts of a checkpoint. Acting needs only ``agent`` and ``policy``; the others are for continuing training.
ACTING_PARTS = ("agent", "policy")
TRAINING_PARTS = (*ACTING_PARTS, "training")
REPLAY_PART = "replay"
#: A checkpoint that is no longer needed has this prefix while it is removed, so that no reader starts on it.
PRUNED_PREFIX = ".pruned-"
