"""An update whose stages take something else than the replay's batches."""

from rl_training.algorithms.on_policy import MinibatchInput
from rl_training.algorithms.transitions import TransitionAlgorithm, TransitionConfig
from rl_training.algorithms.update import Update
from rl_training.types import SequenceBatch, TransitionBatch


class Mistaken(TransitionAlgorithm[TransitionConfig]):
    """Its replay gives transitions."""

    def make_update(self) -> Update[MinibatchInput]:  # expect: override
        raise AssertionError

    def inputs(self, batch: TransitionBatch) -> SequenceBatch:  # expect: override
        raise AssertionError
