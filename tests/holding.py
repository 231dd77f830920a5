"""Holds the process of an environment where a test needs it; steps are counted over all environments of the process."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

#: Environment variables: the steps from which on ``hold`` waits or freezes, and the folder of checkpoints.
WAIT_AT, FREEZE_AT, FREEZE_IN = "RL_TRAINING_TEST_WAIT_AT", "RL_TRAINING_TEST_FREEZE_AT", "RL_TRAINING_TEST_FREEZE_IN"
_steps = 0
_handler: Any = None


def hold() -> None:
    """Counts a step. From step ``WAIT_AT`` on it waits until the process has been asked to stop by a signal that training
    handles. From step ``FREEZE_AT`` on it freezes the whole process, with all its threads, once a checkpoint is being
    written in ``FREEZE_IN``."""
    global _steps, _handler
    _handler = _handler or signal.getsignal(signal.SIGTERM)
    _steps += 1
    if _steps >= int(os.environ.get(WAIT_AT, sys.maxsize)):
        while signal.getsignal(signal.SIGTERM) == _handler:  # the first signal changes it
            time.sleep(0.002)
    if _steps >= int(os.environ.get(FREEZE_AT, sys.maxsize)) and any(Path(os.environ[FREEZE_IN]).glob(".writing-*")):
        os.kill(os.getpid(), signal.SIGSTOP)
