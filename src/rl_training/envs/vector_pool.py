"""A Gymnasium ``VectorEnv`` as a pool: environments that step together by themselves.

It has no seed for each episode, so its promise is weaker than that of ``SeededEnvPool``: a repeated run is the same only if
the vector environment is, and a resumed run goes on with new episodes.

In every mode of automatic resets the steps are those of a plain loop. ``SAME_STEP`` returns the first observation of the next
episode, with the true final one in ``info``. ``DISABLED`` waits for a reset of the environments whose episode has ended.
``NEXT_STEP`` spends the following step on the reset: what it returns then is no transition, and ``Step.present`` says so. If
the environment can reset some of its members (``SyncVectorEnv`` and ``AsyncVectorEnv`` can), that is done at once instead.
"""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

AnyVectorEnv = VectorEnv[Any, Any, Any]
