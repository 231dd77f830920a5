"""When a run is saved, what goes into a checkpoint, and how a run is restored from one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.experiment.checkpoint import Part, load_checkpoint, read_manifest, write_checkpoint
from rl_training.experiment.compat import part_of, with_defaults
from rl_training.experiment.folder import CheckpointFolder
from rl_training.experiment.layout import REPLAY_PART, TRAINING_PARTS
from rl_training.experiment.manifest import checkpoint_name
from rl_training.experiment.segments import SegmentReader
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.inference import acting_parts, fitting
from rl_training.runtime.training_state import restore_training, training_state

if TYPE_CHECKING:
    from rl_training.runtime.trainer import Trainer


class Checkpointer:
    """Saves a trainer and restores it. The replay, which may be large, need not go into every checkpoint."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.count = 0  # checkpoints that were due so far
        self.best_return: float | None = None
        self._saved_at = -1
        self._new: Path | None = None  # a checkpoint that the hooks have not been notified of

    def save_due(self) -> None:
        """Saves a periodic checkpoint."""
        self.count += 1
        self._save(replay_due=(self.count - 1) % max(1, self._trainer.config.checkpoint.replay_every) == 0)

    def save_last(self) -> None:
        """Saves the last checkpoint of this session, with the replay."""
        self._save(replay_due=True)

    def _save(self, *, replay_due: bool) -> None:
        trainer = self._trainer
        if trainer.run is None or self._saved_at == trainer.env_steps:
            return
        trainer.divergence.check()
        trainer.run.wait()  # free the states of the previous checkpoint before collecting new ones
        wanted = trainer.config.checkpoint.replay_every > 0
        replay = not trainer.learner.separate_replay or (wanted and replay_due)
        trainer.run.require_present()
        info = trainer.log.info(trainer.env_steps)
        trainer.run.save(trainer.env_steps, self._parts(replay=replay), info)
        self._new = trainer.run.checkpoints / checkpoint_name(trainer.env_steps)
        if replay or not wanted:
            self._saved_at = trainer.env_steps

    def announce(self) -> None:
        """Notifies the hooks of the last checkpoint once it is on disk."""
        run, self._new, path = self._trainer.run, None, self._new
        if run is not None and path is not None and self._trainer.hooks.listens("on_checkpoint"):
            run.wait()
            self._trainer.hooks.emit("on_checkpoint", path)

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Saves the policy if it is the best one so far."""
        self.outdated()  # a checkpoint already written at this step lacks this evaluation
        trainer = self._trainer
        if self.best_return is not None and result.mean_return <= self.best_return:
            return
        self.best_return = result.mean_return
        if trainer.run is not None and trainer.config.eval.keep_best:
            parts = acting_parts(trainer.policy, trainer.config)
            trainer.run.save(trainer.env_steps, parts, trainer.log.info(trainer.env_steps), best=True)

    def outdated(self) -> None:
        """Marks a checkpoint of this step as out of date."""
        self._saved_at = -1

    def save_to(self, path: Path) -> None:
        """Writes a checkpoint with everything needed to continue, at any path."""
        trainer = self._trainer
        trainer.divergence.check()
        if trainer.run is not None:
            trainer.run.wait()  # two checkpoints cannot be written from the memory of the replay at the same time
        info = trainer.log.info(trainer.env_steps)
        write_checkpoint(path, self._parts(replay=True), info)

    def _parts(self, *, replay: bool) -> dict[str, Part]:
        trainer = self._trainer
        parts: dict[str, Part] = {**acting_parts(trainer.policy, trainer.config), "training": training_state(trainer)}
        if replay:
            parts[REPLAY_PART] = trainer.learner.snapshot()
        return parts

    def restore(self, checkpoint: Path, *, with_replay: bool = True) -> None:
        """Restores the run to a checkpoint, with or without its replay."""
        trainer = self._trainer
        with_replay = with_replay and REPLAY_PART in read_manifest(checkpoint)["parts"]
        loaded = load_checkpoint(checkpoint, (*TRAINING_PARTS, REPLAY_PART) if with_replay else TRAINING_PARTS)
        parts, manifest = loaded.parts, loaded.manifest
        with fitting(f"the checkpoint {checkpoint}"), CheckpointFolder(loaded.path) as folder:
            # A key that this version has and the checkpoint lacks starts from its initial value.
            initial = {"training": training_state(trainer)}
            if with_replay:
                initial[REPLAY_PART] = trainer.learner.replay_defaults(parts[REPLAY_PART])
            for part in initial:
                place = part_of(f"the checkpoint {checkpoint}", part)
                parts[part] = with_defaults(parts[part], initial[part], place, manifest.get("written_by"))
            reader = SegmentReader(folder, REPLAY_PART, manifest)
            restore_training(trainer, parts, reader.read)
            trainer.log.restore(manifest["info"])
        self._new = checkpoint
        if with_replay:
            self._saved_at = trainer.env_steps
            if trainer.run is not None:
                trainer.run.share(loaded.path, reader.segments)
